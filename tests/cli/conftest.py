"""A broker as `danube serve` starts it, and the command line as a script calls it."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

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


Danube = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def danube_process(served: Serve) -> Danube:
    """Run one command against the broker, in a process of its own."""

    def run(*arguments: str, stdin: str | None = None, url: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "pydanube.cli", *arguments],
            capture_output=True,
            text=True,
            input=stdin if stdin is not None else "",
            timeout=120,
            env=os.environ | {"DANUBE_URL": url or served.url},
        )

    return run


@pytest.fixture
def danube(served: Serve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Danube:
    """Run one command against the broker inside the test's process, which is much faster than a process of its own."""
    from pydanube.cli.app import run as run_command

    def run(*arguments: str, stdin: str | None = None, url: str | None = None) -> subprocess.CompletedProcess[str]:
        (tmp_path / "stdin").write_text(stdin or "")
        written = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2)]
        with monkeypatch.context() as patched, (tmp_path / "stdin").open() as given:
            patched.setenv("DANUBE_URL", url or served.url)
            for name, stream in zip(("stdin", "stdout", "stderr"), (given, *written), strict=True):
                patched.setattr(sys, name, stream)
            with pytest.raises(SystemExit) as ended:
                run_command(list(arguments))
        printed, told = (stream.buffer.getvalue().decode() for stream in written)  # type: ignore[attr-defined]
        code = ended.value.code
        return subprocess.CompletedProcess(arguments, code if isinstance(code, int) else 0, printed, told)

    return run


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic named after the test."""
    return "/default/" + re.sub(r"[^a-z0-9_]+", "-", request.node.name.lower())[:120].strip("-")
