"""`danube doctor`: every finding that is not ok says what to do."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from pydanube.cli import checks
from pydanube.cli.app import cli


def doctor(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli, ["doctor", *arguments])
    return done.exit_code, done.output


def test_it_reports_on_everything_a_broker_needs(tmp_path: Path):
    code, output = doctor("--json", "--data-dir", str(tmp_path / "not" / "yet" / "there"))
    report = json.loads(output)
    found = {finding["check"] for finding in report["findings"]}
    assert {"python", "platform", "disk space", "sync speed", "port 6655", "pyarrow", "java"} <= found
    assert (code == 0) == report["ready"]
    assert all(finding["remedy"] for finding in report["findings"] if finding["status"] != "ok")
    assert list(tmp_path.iterdir()) == []


def test_the_table_says_the_same_as_the_json():
    _, output = doctor("--no-sync")
    assert "python" in output
    assert "sync speed" not in output


def test_a_port_in_use_is_a_warning_with_a_remedy():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        finding = checks.port("native", taken.getsockname()[1])
    assert finding.status == "warn"
    assert "--port 0" in finding.remedy


def test_a_full_disk_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(checks, "DISK_FREE_FAIL", 1 << 62)
    code, output = doctor("--no-sync", "--json", "--data-dir", str(tmp_path))
    assert code == 1
    assert "1 of" in output


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ("command not found", None),
    ],
)
def test_the_java_version_is_read_from_what_java_says(text: str, major: int | None):
    assert checks.java_major(text) == major


def test_a_data_directory_that_does_not_exist_is_judged_by_its_nearest_parent(tmp_path: Path):
    assert checks.nearest_existing(tmp_path / "a" / "b") == tmp_path
