"""An earlier commit of this repository as an installed wheel: its brokers and commands run beside those of this one."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Final

from pydanube.version import __version__

ROOT = Path(__file__).parents[2]
COMMIT = os.environ.get("DANUBE_UPGRADE_FROM", "")


@dataclass(frozen=True)
class Release:
    """A release of pydanube, beside which nothing else is on the path of its processes."""

    version: str
    """As `danube brokers list` shows it."""
    environment: dict[str, str]
    """With it, a process imports this release."""

    def danube(self, *arguments: str, stdin: str = "") -> str:
        """Run a command, and return what it prints."""
        return self._python("-m", "pydanube.cli", *arguments, stdin=stdin)

    def newest_level(self) -> int:
        """Return the newest feature level that the release knows."""
        return int(self._python("-c", "from pydanube.model.levels import THIS_RELEASE as r; print(r.newest)"))

    def _python(self, *arguments: str, stdin: str = "") -> str:
        done = subprocess.run(
            [sys.executable, *arguments],
            env={**os.environ, **self.environment},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"{arguments}: {done.stderr}"
        return done.stdout


THIS: Final = Release(__version__, {})


def install(commit: str, directory: Path) -> Release:
    """Build the wheel of a commit and install it into a directory of its own, without what it depends on."""
    source, site = directory / "source", directory / "site"
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=BytesIO(archive)) as files:
        files.extractall(source, filter="data")
    named = source / "src" / "pydanube" / "version.py"
    text = named.read_text()
    version = f"{text.rpartition('= ')[2].strip().strip(chr(34))}+{commit}"
    named.write_text(text[: text.rindex("=")] + f'= "{version}"\n')
    isolation = ["--no-isolation"] if find_spec("hatchling") else []
    _run("build", "--wheel", *isolation, "--outdir", str(directory), str(source))
    (wheel,) = directory.glob("*.whl")
    _run("pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel))
    return Release(version, {"PYTHONPATH": str(site)})


def _run(module: str, *arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", module, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{module} {arguments}\n{done.stdout}\n{done.stderr}"
