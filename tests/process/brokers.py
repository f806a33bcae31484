"""Real brokers in processes of their own: started, killed, started again on the same directory and port."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ports import free_port

READY = re.compile(r"danube ready native=(\S+):(\d+) grpc=\S+:(\d+) admin=\S+:(\d+) http=\S+:(\d+)\n")

PORTS = ("--port=0", "--grpc-port=0", "--admin-port=0", "--http-port=0")
"""Any free port for every listener: other brokers run on the same machine."""


class BrokerProcess:
    """One `danube serve`. Its log goes to `<directory>.log`, which a failing test shows."""

    def __init__(
        self,
        directory: Path,
        port: int | None = None,
        before_start: Callable[[], None] | None = None,
        grpc_port: int = 0,
        http_port: int = 0,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`arguments` are further ones of `danube serve`; `environment` is added to that of the test."""
        self.directory = directory
        self.port = port or free_port()
        self.admin_port = 0
        """Another one after every start; so are `grpc_port` and `http_port`, unless they are given."""
        self.grpc_port = self._wanted_grpc_port = grpc_port
        self.http_port = self._wanted_http_port = http_port
        self.log = directory.with_suffix(".log")
        self.arguments = list(arguments)
        self.environment = dict(environment or {})
        self._before_start = before_start
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"danube://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> BrokerProcess:
        command = [sys.executable, "-m", "pydanube.cli", "serve", "--data-dir", str(self.directory)]
        ports = [f"--grpc-port={self._wanted_grpc_port}", "--admin-port=0", f"--http-port={self._wanted_http_port}"]
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                [*command, "--port", str(self.port), *ports, *self.arguments],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, **self.environment},
                preexec_fn=self._before_start,
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        found = READY.fullmatch(line)
        assert found, f"not ready: {line!r}\n{self.log.read_text()[-4000:]}"
        self.grpc_port, self.admin_port, self.http_port = int(found[3]), int(found[4]), int(found[5])
        return self

    def kill(self) -> None:
        """Send SIGKILL and wait until the process has ended."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def freeze(self) -> None:
        """Stop the process where it is, and return when all its threads have stopped; `thaw` lets it go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        os.waitpid(self._process.pid, os.WUNTRACED)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def ended(self, timeout: float) -> int:
        """Wait until the process ends by itself and return its exit code."""
        assert self._process is not None
        return self._process.wait(timeout)

    def stop(self, timeout: float = 120) -> int:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(timeout)

    async def restart(self) -> None:
        self.kill()
        await asyncio.to_thread(self.start)

    def __enter__(self) -> BrokerProcess:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()

    def resident_bytes(self) -> int:
        fields = Path(f"/proc/{self.pid}/statm").read_text().split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")
