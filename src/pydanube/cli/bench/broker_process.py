"""A broker in a separate process, as an operator runs it: ``danube serve``, ready when it prints its ready line."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Final, Self

from pydanube.model.errors import Unavailable

from .measure import resident_bytes
from .workers import kill_process, spawn

READY_SECONDS_MAX: Final = 120.0
STOP_SECONDS_MAX: Final = 60.0
_NATIVE: Final = re.compile(r"^danube ready native=(\S+):(\d+) ")


class BrokerProcess:
    """``danube serve`` on a data directory and any free port."""

    def __init__(self, process: asyncio.subprocess.Process, logs: IO[bytes], url: str, ready_seconds: float) -> None:
        self._process, self._logs = process, logs
        self.url = url
        self.ready_seconds = ready_seconds
        """From the start of the process to its readiness line."""

    @classmethod
    async def start(cls, data_dir: Path, *, port: int = 0, environment: dict[str, str] | None = None) -> Self:
        """Start a broker and wait until it is ready. Raises Unavailable with its last log line otherwise."""
        logs = tempfile.TemporaryFile()  # noqa: SIM115 -- as long as the process
        begin = time.perf_counter()
        ports = [f"--{option}=0" for option in ("grpc-port", "admin-port", "http-port")]
        process = await spawn(
            *(sys.executable, "-m", "pydanube.cli", "serve", "--data-dir", str(data_dir), f"--port={port}", *ports),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=logs,
            env=os.environ | (environment or {}),
        )
        assert process.stdout is not None
        line = b""
        try:
            with contextlib.suppress(TimeoutError):
                line = await asyncio.wait_for(process.stdout.readline(), READY_SECONDS_MAX)
        except asyncio.CancelledError:
            await kill_process(process)
            raise
        ready = _NATIVE.match(line.decode(errors="replace"))
        if ready is None:
            await kill_process(process)
            raise Unavailable(f"the broker did not get ready: {_last_line(logs) or f'it printed {line!r}'}")
        return cls(process, logs, f"danube://{ready[1]}:{ready[2]}", time.perf_counter() - begin)

    @property
    def pid(self) -> int:
        return self._process.pid

    def resident(self) -> tuple[int, int] | None:
        """Return the resident bytes, now and at the peak."""
        return resident_bytes(self.pid)

    def logs(self) -> str:
        self._logs.seek(0)
        return self._logs.read().decode(errors="replace")

    async def stop(self) -> int:
        """Send SIGTERM, and SIGKILL if the broker does not end in time; return the exit code."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
        try:
            return await asyncio.wait_for(self._process.wait(), STOP_SECONDS_MAX)
        except TimeoutError:
            return await self.kill()

    async def kill(self) -> int:
        return await kill_process(self._process)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await (self.stop() if kind is None else self.kill())
        self._logs.close()


def _last_line(logs: IO[bytes]) -> str:
    logs.seek(0)
    lines = logs.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""
