"""One `danube` command as a script calls it, inside the test's process: much faster than a process of its own."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from pydanube.cli.root import run

Ended = subprocess.CompletedProcess[str]
EndedBytes = subprocess.CompletedProcess[bytes]


def danube_bytes(
    *arguments: str, stdin: bytes = b"", environment: Mapping[str, str] | None = None, url: str | None = None
) -> EndedBytes:
    """Run a command in this environment, or in that of the tests, and return its exit code and what it wrote."""
    written = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2)]
    wanted = dict(os.environ if environment is None else environment)
    if url is not None:
        wanted["DANUBE_URL"] = url
    with pytest.MonkeyPatch.context() as patched, tempfile.TemporaryFile() as file:
        file.write(stdin)
        file.seek(0)
        for name in os.environ.keys() - wanted.keys():
            patched.delenv(name)
        for name, value in wanted.items():
            patched.setenv(name, value)
        given = io.TextIOWrapper(file, encoding="utf-8")
        for name, stream in zip(("stdin", "stdout", "stderr"), (given, *written), strict=True):
            patched.setattr(sys, name, stream)
        with pytest.raises(SystemExit) as ended:
            run(list(arguments))
    code = ended.value.code if isinstance(ended.value.code, int) else int(ended.value.code is not None)
    printed, told = (stream.detach().getvalue() for stream in written)
    return subprocess.CompletedProcess(arguments, code, printed, told)


def danube(
    *arguments: str, stdin: str = "", environment: Mapping[str, str] | None = None, url: str | None = None
) -> Ended:
    """The same with text in and out."""
    done = danube_bytes(*arguments, stdin=stdin.encode(), environment=environment, url=url)
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def answer(done: Ended) -> Any:
    """Return the JSON that the command printed."""
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def consumed(danube: Callable[..., Ended], *arguments: str) -> list[dict[str, Any]]:
    done = danube("consume", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]
