"""A broker as `danube serve` starts it, and the command line as a script calls it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import commands
import pytest

READY = re.compile(r"danube ready native=(\S+):(\d+) grpc=\S+:(\d+) admin=\S+:(\d+) http=\S+:(\d+)\n")

PORTS = ("--port=0", "--grpc-port=0", "--admin-port=0", "--http-port=0")
"""Any free port for every listener: other brokers run on the same machine."""


class Serve:
    """A running `danube serve`."""

    def __init__(self, data_dir: Path, *options: str) -> None:
        self.logs = data_dir.parent / f"{data_dir.name}.log"
        with self.logs.open("ab") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pydanube.cli", "serve", "--data-dir", str(data_dir), *PORTS, *options],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        assert self.process.stdout is not None
        self.ready_line = self.process.stdout.readline()
        matched = READY.fullmatch(self.ready_line)
        assert matched, f"{self.ready_line!r}\n{self.logs.read_text()}"
        self.url = f"danube://{matched[1]}:{matched[2]}"

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Wait for the end of the broker and return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        try:
            return self.process.wait(timeout=120)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """One broker for all tests of the command line: each uses topics of its own."""
    serve = Serve(tmp_path_factory.mktemp("served") / "data")
    try:
        yield serve
    finally:
        serve.end()


@pytest.fixture(scope="module")
def secured_serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Serve, str]]:
    """A broker with authentication, and the key of its super user."""
    directory = tmp_path_factory.mktemp("secured") / "data"
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("DANUBE_AUTH_ENABLED", "true")
        serve = Serve(directory)
    try:
        yield serve, (directory / "admin-key").read_text().strip()
    finally:
        serve.end()


@pytest.fixture
def serve() -> Iterator[Callable[..., Serve]]:
    """Start brokers of the test's own; none outlives it."""
    started: list[Serve] = []

    def start(data_dir: Path, *options: str) -> Serve:
        started.append(Serve(data_dir, *options))
        return started[-1]

    yield start
    for one in started:
        one.end()


Danube = Callable[..., commands.Ended]


@pytest.fixture
def danube(served: Serve) -> Danube:
    """Run one command against the broker."""

    def run(*arguments: str, stdin: str | None = None, url: str | None = None) -> commands.Ended:
        return commands.danube(*arguments, stdin=stdin or "", url=url or served.url)

    return run


@pytest.fixture
def start(served: Serve) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start commands as processes that use the broker; none outlives the test."""
    with contextlib.ExitStack() as ends:

        def run(*arguments: str, **streams: Any) -> subprocess.Popen[str]:
            streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams
            process = subprocess.Popen(
                [sys.executable, "-m", "pydanube.cli", *arguments],
                text=True,
                env=os.environ | {"DANUBE_URL": served.url},
                **streams,
            )
            ends.enter_context(process)
            ends.callback(process.kill)
            return process

        yield run


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic named after the test."""
    return f"/default/{named_after(request)}"


@pytest.fixture
def subject(request: pytest.FixtureRequest) -> str:
    """A subject named after the test."""
    return named_after(request)


def named_after(request: pytest.FixtureRequest) -> str:
    return re.sub(r"[^a-z0-9_]+", "-", request.node.name.lower())[:120].strip("-")
