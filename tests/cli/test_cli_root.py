"""The root command: help, version, exit codes, and that it starts at once."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from pydanube.cli.root import COMMANDS, cli, run
from pydanube.model.errors import Unavailable
from pydanube.version import __version__


def danube(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pydanube.cli", *arguments], capture_output=True, text=True, input=stdin, timeout=120
    )


def test_the_version_is_printed_on_stdout():
    done = danube("--version")
    assert (done.returncode, done.stdout) == (0, f"danube {__version__}\n")


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_lists_every_command(flag: str):
    done = danube(flag)
    assert done.returncode == 0
    for name in COMMANDS:
        assert f"  {name} " in done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_the_summary_of_a_command_is_what_its_own_help_begins_with(name: str):
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert command.get_short_help_str(limit=200) == COMMANDS[name][1]


def all_commands() -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        inner = list(command.commands) if isinstance(command, click.Group) else []
        found += [(name,), *((name, sub) for sub in inner)]
    return found


@pytest.mark.parametrize("words", all_commands(), ids=" ".join)
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_every_help_teaches_by_example(words: tuple[str, ...], flag: str):
    done = CliRunner().invoke(cli, [*words, flag], prog_name="danube")
    assert done.exit_code == 0, done.output
    assert "Examples:" in done.output
    assert f"danube {words[0]}" in done.output.split("Examples:")[1]


def test_help_imports_nothing_heavy():
    probe = (
        "import sys; from pydanube.cli.root import cli; cli.main(['--help'], standalone_mode=False);"
        "print([m for m in ('numpy', 'rich', 'asyncio', 'structlog', 'msgspec') if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=120)
    assert done.stderr.strip() == "[]"


def test_an_unknown_command_is_wrong_usage_and_names_the_nearest():
    done = danube("prodce")
    assert done.returncode == 2
    assert "did you mean 'danube produce'?" in done.stderr
    assert done.stdout == ""


def test_an_unknown_option_is_wrong_usage():
    assert danube("doctor", "--no-such-option").returncode == 2


def test_a_failure_is_one_line_on_stderr_and_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def refuse(*_: object, **__: object) -> None:
        raise Unavailable("no broker answers at 127.0.0.1:1;\n start one with 'danube serve'")

    monkeypatch.setattr(cli, "main", refuse)
    with pytest.raises(SystemExit) as left:
        run([])
    assert left.value.code == 1
    assert capsys.readouterr().err == "danube: no broker answers at 127.0.0.1:1; start one with 'danube serve'\n"


@pytest.mark.process
def test_the_broker_may_be_named_before_the_command(danube, served):
    nowhere = "danube://127.0.0.1:1"
    assert danube("--url", served.url, "brokers", "list", url=nowhere).returncode == 0
    assert danube("--url", nowhere, "brokers", "list", "--url", served.url).returncode == 0
    assert danube("--url", nowhere, "topics", "list").returncode == 1
    wrong = danube("--url", "ftp://x", "topics", "list")
    assert (wrong.returncode, "Error: " in wrong.stderr) == (2, True)
