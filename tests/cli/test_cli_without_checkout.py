"""Commands for people who have nothing but the package: generate, demo, debug bundle; and `make cluster`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest
import yaml
from commands import danube as danube_elsewhere

from pydanube.cli.setup.generate import _CHANGES, FILES
from pydanube.version import __version__

ROOT = Path(__file__).parents[2]


def test_every_file_that_is_generated_is_in_the_wheel():
    included = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    wanted = {f"deploy/{name}" for names in FILES.values() for name in names} | {"examples/demo"}
    assert included["force-include"] == {place: f"pydanube/shipped/{place}" for place in wanted}


@pytest.mark.parametrize("what", FILES)
def test_what_is_generated_is_what_the_repository_has(what, tmp_path):
    done = danube_elsewhere("generate", what, "--directory", str(tmp_path))
    assert done.returncode == 0, done.stderr
    written = [Path(line) for line in done.stdout.splitlines()]
    assert sorted(written) == sorted(tmp_path.iterdir())
    for place, file in zip(FILES[what], written, strict=True):
        source, text = (ROOT / "deploy" / place).read_text(), file.read_text()
        for here, outside in _CHANGES:
            source = source.replace(here, outside)
        assert text == source
        assert "deploy/" not in text
    printed = danube_elsewhere("generate", what)
    assert printed.stdout == written[0].read_text()
    again = danube_elsewhere("generate", what, "--directory", str(tmp_path))
    assert (again.returncode, "--force" in again.stderr) == (1, True)
    assert danube_elsewhere("generate", what, "--directory", str(tmp_path), "--force").returncode == 0


def test_containers_are_built_without_a_checkout(tmp_path):
    danube_elsewhere("generate", "compose", "--directory", str(tmp_path))
    dockerfile = (tmp_path / "Dockerfile").read_text()
    assert f"pydanube[arrow,cloud,etcd,grpc,schemas]=={__version__}'" in dockerfile
    assert "COPY" not in dockerfile
    services = yaml.safe_load((tmp_path / "compose.yaml").read_text())["services"]
    assert {one["build"]["context"] for one in services.values()} == {"."}
    assert {one["build"]["dockerfile"] for one in services.values()} == {"Dockerfile"}


@pytest.mark.process
def test_the_demo_kills_a_broker_and_loses_nothing(tmp_path):
    environment = {**os.environ, "TMPDIR": str(tmp_path), "DANUBE_STORAGE_URL": "s3://not-for-the-demo"}
    demo = [sys.executable, "-m", "pydanube.cli", "demo", "--seconds", "2", "--rate", "1000", "--kill-after", "0.5"]
    done = subprocess.run(demo, capture_output=True, text=True, timeout=300, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "kill -9" in done.stdout
    assert "all 2,000 acknowledged orders are stored" in done.stdout
    assert done.stdout.count("  yes  ") == 4
    assert list(tmp_path.iterdir()) == []


@pytest.mark.process
@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, *(pytest.param(one, marks=pytest.mark.exhaustive) for one in (signal.SIGTERM, signal.SIGHUP))],
)
def test_a_demo_that_is_stopped_leaves_nothing_behind(number: signal.Signals, tmp_path):
    demo = [sys.executable, "-m", "pydanube.cli", "demo", "--seconds", "600"]
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(demo, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        ready = process.stdout.readline()
        process.send_signal(number)
        _, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (130, "danube: interrupted\n")
    assert list(tmp_path.iterdir()) == []
    host, port = ready.split("danube://")[1].split(",")[0].split(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), timeout=60).close()


def test_the_demo_with_spark_names_what_is_not_installed(tmp_path):
    program = (
        "import importlib.util, sys\n"
        "found = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *more: None if name == 'deltalake' else found(name, *more)\n"
        "from pydanube.cli.root import run\n"
        "run(['demo', '--spark'])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "deltalake is not installed: pip install 'pydanube[" in done.stderr


@pytest.mark.process
def test_a_bundle_has_what_a_report_needs(danube, served, topic, tmp_path):
    danube("produce", topic, "a payload that is nobody's business")
    log = tmp_path / "broker.log"
    log.write_text("".join(f"line {number}\n" for number in range(10)))
    file = tmp_path / "bundle.zip"
    done = danube("debug", "bundle", str(file), "--log", str(log), "--lines", "3", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["missing"] == {}
    assert file.stat().st_mode & 0o777 == 0o600
    with ZipFile(file) as archive:
        texts = {name: archive.read(name).decode() for name in archive.namelist()}
    assert texts["log.txt"] == "line 7\nline 8\nline 9\n"
    assert json.loads(texts["versions.json"])["danube"] == __version__
    assert "danube_topic_messages_in_total" in texts["metrics.txt"]
    assert topic in [one["topic"] for one in json.loads(texts["status.json"])["topics"]]
    assert "server.port" in texts["settings.json"]
    assert "nobody's business" not in "".join(texts.values())
    assert danube("debug", "bundle", str(file)).returncode == 2
    nowhere = danube("debug", "bundle", str(file), "--force", "--log", str(log), url="danube://127.0.0.1:1")
    assert (nowhere.returncode, "without status.json" in nowhere.stderr) == (0, True)


def test_make_cluster_names_the_member_of_a_taken_port_at_once(tmp_path):
    with socket.socket() as taken:
        for shift in range(1000, 15_000, 7):
            with contextlib.suppress(OSError):
                taken.bind(("127.0.0.1", 23793 + shift))  # for the peers of etcd2
                break
        taken.listen()
        command = [sys.executable, str(ROOT / "deploy/cluster/run.py"), "--directory", str(tmp_path / "c")]
        done = subprocess.run(
            [*command, "--shift", str(shift)], capture_output=True, text=True, timeout=120, check=False
        )
    assert done.returncode == 1
    assert f"{23793 + shift} of etcd2" in done.stderr
    assert "--shift" in done.stderr
    assert not (tmp_path / "c").exists()
