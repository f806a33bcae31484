"""`danube completion`: the script of bash completes commands, options and choices."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from pydanube.cli.root import cli


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_there_is_a_script_for_each_shell(shell: str):
    done = CliRunner().invoke(cli, ["completion", shell], prog_name="danube")
    assert done.exit_code == 0, done.output
    assert f"_DANUBE_COMPLETE={shell}_complete" in done.output
    if (program := shutil.which(shell)) is not None:
        assert subprocess.run([program, "-n"], input=done.output, text=True, timeout=120).returncode == 0


def test_another_shell_is_wrong_usage():
    assert CliRunner().invoke(cli, ["completion", "tcsh"]).exit_code == 2


COMPLETE = """
source <(danube completion bash)
read -ra COMP_WORDS <<< "$1"
[[ $1 == *" " ]] && COMP_WORDS+=("")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
COMPREPLY=()
_danube_completion danube
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.process
@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("danube topics de", {"describe", "delete"}),
        ("danube consume /default/t --type ", {"exclusive", "shared", "failover", "key-shared"}),
        pytest.param("danube consu", {"consume"}, marks=pytest.mark.exhaustive),
        pytest.param("danube consume /default/t --exi", {"--exit"}, marks=pytest.mark.exhaustive),
        pytest.param("danube completion ", {"bash", "zsh", "fish"}, marks=pytest.mark.exhaustive),
        pytest.param("danube cosnume consu", {"consume"}, marks=pytest.mark.exhaustive),
    ],
)
def test_bash_completes_what_was_typed(tmp_path: Path, typed: str, offered: set[str]):
    program = tmp_path / "danube"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m pydanube.cli "$@"\n')
    program.chmod(0o755)
    done = subprocess.run(
        ["bash", "--norc", "-c", COMPLETE, "bash", typed],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )
    assert done.stderr == ""
    assert set(done.stdout.split()) == offered
