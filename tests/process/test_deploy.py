"""The files of `deploy/`: the broker speaks to systemd as its unit says, and the configuration is valid."""

import configparser
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from brokers import BrokerProcess
from click.testing import CliRunner

from pydanube.cli.root import cli
from pydanube.settings import Settings

pytestmark = pytest.mark.process
DEPLOY = Path(__file__).parents[2] / "deploy"


def unit() -> configparser.ConfigParser:
    parsed = configparser.ConfigParser(strict=False, interpolation=None)
    parsed.optionxform = str
    parsed.read(DEPLOY / "danube.service")
    return parsed


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_systemd_is_told_when_the_broker_is_ready_and_when_it_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    name = f"danube-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + name if kind == "abstract" else str(tmp_path / "notify"))
        manager.settimeout(120)
        monkeypatch.setenv("NOTIFY_SOCKET", "@" + name if kind == "abstract" else str(tmp_path / "notify"))
        with BrokerProcess(tmp_path / "data") as broker:
            assert manager.recv(1000) == b"READY=1"
            assert broker.stop() == 0
            assert manager.recv(1000) == b"STOPPING=1"


def test_a_service_manager_that_is_gone_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))
    with BrokerProcess(tmp_path / "data") as broker:
        assert broker.stop() == 0
        assert "service_manager.not_notified" in broker.log.read_text()


def test_the_unit_starts_a_command_that_exists() -> None:
    program, *arguments = shlex.split(unit()["Service"]["ExecStart"])
    assert program.endswith("/danube")
    assert unit()["Service"]["Type"] == "notify"
    config = arguments.index("/etc/danube/danube.toml")
    arguments[config] = str(DEPLOY / "danube.toml")
    done = CliRunner().invoke(cli, [*arguments, "--help"])
    assert done.exit_code == 0, done.output


def test_the_configuration_is_valid_and_listens_on_this_machine_only() -> None:
    settings = Settings.load(DEPLOY / "danube.toml")
    assert settings.server.host == "127.0.0.1"
    assert settings.server.data_dir.is_relative_to(unit()["Service"]["WorkingDirectory"])


def test_logs_are_rotated_without_a_signal() -> None:
    """SIGHUP, which other servers open their logs anew with, ends the broker."""
    advice = (DEPLOY / "logrotate.d" / "danube").read_text()
    assert "copytruncate" in advice
    assert "postrotate" not in advice


def test_a_log_that_is_copied_and_emptied_goes_on_at_its_beginning(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        shutil.copy(broker.log, tmp_path / "rotated")
        os.truncate(broker.log, 0)
        assert broker.stop() == 0
        assert "broker.started" in (tmp_path / "rotated").read_text()
        assert broker.log.read_bytes().count(b"\0") == 0
        assert "broker.stopped" in broker.log.read_text()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    program = shlex.split(unit()["Service"]["ExecStart"])[0]
    text = (DEPLOY / "danube.service").read_text().replace(program, sys.executable)
    (tmp_path / "danube.service").write_text(text.replace("User=danube\nGroup=danube\n", ""))
    command = ["systemd-analyze", "verify", "--man=no", str(tmp_path / "danube.service")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    ours = [line for line in done.stderr.splitlines() if "danube.service" in line]
    assert ours == [], done.stderr


def test_the_signal_of_the_unit_ends_the_broker_in_order() -> None:
    assert getattr(signal, unit()["Service"]["KillSignal"]) == signal.SIGTERM
