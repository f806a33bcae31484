"""`danube config`: values with their sources; wrong ones named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from pydanube.cli.root import cli
from pydanube.model.errors import Invalid


def config(*arguments: str, env: dict[str, str] | None = None):
    return CliRunner().invoke(cli, ["config", *arguments], env=env)


def test_every_setting_is_shown_with_its_source(tmp_path: Path):
    (tmp_path / "danube.toml").write_text('[log]\nfile_bytes = "64MiB"\n[server]\nport = 7000\n')
    shown = config("show", "--config", str(tmp_path / "danube.toml"), "--json", env={"DANUBE_SERVER_PORT": "7001"})
    settings = {one["key"]: one for one in json.loads(shown.output)}
    assert settings["log.file_bytes"]["value"] == "64MiB"
    assert "danube.toml" in settings["log.file_bytes"]["source"]
    assert settings["server.port"]["value"] == "7001"
    assert "DANUBE_SERVER_PORT" in settings["server.port"]["source"]
    assert settings["server.host"]["source"] == "default"


def test_only_what_was_changed_can_be_shown():
    shown = config("show", "--changed", "--json", env={"DANUBE_LOGGING_LEVEL": "debug"})
    assert [one["key"] for one in json.loads(shown.output)] == ["logging.level"]


def test_the_table_has_a_line_for_each():
    lines = config("show").output.splitlines()
    assert lines[0].split() == ["setting", "value", "source", "meaning"]
    assert any(line.startswith("server.port ") for line in lines)


def test_a_valid_file_is_said_to_be_valid(tmp_path: Path):
    (tmp_path / "danube.toml").write_text("[server]\nport = 7000\n")
    done = config("validate", "--config", str(tmp_path / "danube.toml"))
    assert (done.exit_code, done.output) == (0, "valid: 1 setting given, the others have their defaults\n")


def test_a_setting_with_the_value_of_its_default_is_given_too(tmp_path: Path):
    (tmp_path / "danube.toml").write_text('[server]\nhost = "127.0.0.1"\n[logging]\nlevel = "info"\n')
    done = config("validate", "--config", str(tmp_path / "danube.toml"))
    assert (done.exit_code, done.output) == (0, "valid: 2 settings given, the others have their defaults\n")


def test_a_wrong_key_is_refused_by_name(tmp_path: Path):
    (tmp_path / "danube.toml").write_text("[server]\nprot = 7000\n")
    done = config("validate", "--config", str(tmp_path / "danube.toml"))
    assert isinstance(done.exception, Invalid)
    assert "server.prot" in done.exception.message or "prot" in done.exception.message


def test_a_file_that_is_not_there_is_wrong_usage():
    assert config("show", "--config", "/no/such/file").exit_code == 2


@pytest.mark.parametrize("command", ["show", "validate"])
def test_json_is_json(command: str):
    json.loads(config(command, "--json").output)
