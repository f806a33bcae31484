"""`danube storage serve`: the readiness line, the signals, and a store that is used through it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from pydanube.cli.root import cli
from pydanube.model.errors import Unauthenticated
from pydanube.runtime.objects import open_store

READY = re.compile(r"danube storage ready grpc=(\S+:\d+) store=(\S+)\n")


@contextmanager
def serving(*arguments: str, how: signal.Signals = signal.SIGTERM, **environment: str) -> Iterator[str]:
    """The address it listens on; ends it in order."""
    command = [sys.executable, "-m", "pydanube.cli", "storage", "serve", "--port", "0", *arguments]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )
    try:
        assert process.stdout is not None and process.stderr is not None
        matched = READY.fullmatch(process.stdout.readline())
        assert matched, process.stderr.read()
        yield matched[1]
        process.send_signal(how)
        rest, complaints = process.communicate(timeout=120)
        assert (process.returncode, rest) == (0, ""), complaints
    finally:
        process.kill()
        process.communicate()


@pytest.mark.process
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_what_is_put_through_it_is_in_the_store(tmp_path: Path, how: signal.Signals) -> None:
    async def use(address: str) -> None:
        async with await open_store(f"grpc://{address}") as store:
            await store.put("a/b.c", b"through the plug-in", create=True)
            assert store.capabilities.durable and store.capabilities.if_match

    with serving("--store", tmp_path.as_uri(), how=how) as address:
        asyncio.run(use(address))
    assert (tmp_path / "a" / "b.c").read_bytes() == b"through the plug-in"


@pytest.mark.process
def test_the_token_comes_from_the_environment() -> None:
    async def use(address: str) -> None:
        with pytest.raises(Unauthenticated):
            await open_store(f"grpc://{address}")
        async with await open_store(f"grpc://{address}", {"token": "from-the-environment"}) as store:
            await store.put("k", b"")

    with serving("--store", "memory://", DANUBE_STORAGE_TOKEN="from-the-environment") as address:
        asyncio.run(use(address))


def refused(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli, ["storage", "serve", *arguments])
    return done.exit_code, done.output + str(done.exception or "")


def test_what_cannot_be_served_is_said_in_a_line(tmp_path: Path) -> None:
    assert "no store has URLs" in refused("--store", "ftp://x")[1]
    assert "NAME=VALUE" in refused("--store", "memory://", "--option", "x")[1]
    assert "no setting 'x'" in refused("--store", "memory://", "--option", "x=y")[1]
    assert "given together" in refused("--store", "memory://", "--tls-key", __file__)[1]
    (tmp_path / "o.toml").write_text("number = 5")
    assert "not text" in refused("--store", "memory://", "--options-file", str(tmp_path / "o.toml"))[1]
    (tmp_path / "o.toml").write_text("secret hidden-word")
    told = refused("--store", "memory://", "--options-file", str(tmp_path / "o.toml"))[1]
    assert "is not TOML" in told and "hidden-word" not in told
    assert refused()[0] == 2


@pytest.mark.process
def test_a_port_in_use_is_one_clear_line() -> None:
    with serving("--store", "memory://") as address:
        port = address.rpartition(":")[2]
        done = subprocess.run(
            [sys.executable, "-m", "pydanube.cli", "storage", "serve", "--store", "memory://", "--port", port],
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 1 and done.stdout == ""
    assert "is taken" in done.stderr.splitlines()[-1]
