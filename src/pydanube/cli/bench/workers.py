"""The parent's side of the child processes that measure.

```
 parent                                   child (python -m pydanube.cli.bench.worker)
   {"role": ..., ...}            ------>    prepares: connects, makes payloads
   <------  {"ready": {...}}                waits
   {"go": {...}}                 ------>    measures
   {"count": {"enough": false}}  ------>    (a consumer, again and again once all is published)
   <------  {"counted": {...}}              (until it has enough)
   <------  {"result": {...}} | {"error": "..."}
```

The protocol is one JSON object per line, on the child's stdin and stdout; the child inherits stderr. A child that dies
or stays silent past the deadline fails the run. No child outlives `Workers`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from asyncio.subprocess import Process
from typing import Any, Final, Self

from pydanube.model.errors import Unavailable

SILENCE_SECONDS_MAX: Final = 600.0
LINE_BYTES_MAX: Final = 64 << 20


async def spawn(*command: str, **options: Any) -> Process:
    """Start a child process. If cancelled, a child that was being started is killed first."""
    # Owned here: it is awaited on every path.
    starting = asyncio.ensure_future(asyncio.create_subprocess_exec(*command, **options))  # noqa: TID251
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        await kill_process(await starting)
        raise


async def kill_process(process: Process) -> int:
    """Send SIGKILL if the process still runs; return its exit code."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    return await process.wait()


class BenchWorker:
    """One child process."""

    def __init__(self, role: str, process: asyncio.subprocess.Process) -> None:
        self.role = role
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    @classmethod
    async def start(cls, role: str, spec: dict[str, Any]) -> Self:
        process = await spawn(
            sys.executable,
            "-m",
            "pydanube.cli.bench.worker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=LINE_BYTES_MAX,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )
        worker = cls(role, process)
        try:
            await worker.send({"role": role, **spec})
        except BaseException:
            await kill_process(process)
            raise
        return worker

    async def send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            await self._process.stdin.drain()
        except OSError:
            raise Unavailable(f"the {self.role} process of the bench died; its error is above") from None

    async def ready(self) -> dict[str, Any]:
        return await self._receive("ready")

    async def go(self, **more: Any) -> None:
        await self.send({"go": more})

    async def count(self) -> dict[str, Any]:
        await self.send({"count": {"enough": False}})
        return await self._receive("counted")

    async def result(self) -> dict[str, Any]:
        return await self._receive("result")

    async def _receive(self, expected: str) -> dict[str, Any]:
        assert self._process.stdout is not None
        try:
            line = await asyncio.wait_for(self._process.stdout.readline(), SILENCE_SECONDS_MAX)
        except TimeoutError:
            raise Unavailable(
                f"the {self.role} process of the bench said nothing for {SILENCE_SECONDS_MAX:.0f} s"
            ) from None
        if not line:
            raise Unavailable(f"the {self.role} process of the bench died; its error is above")
        message = json.loads(line)
        if "error" in message:
            raise Unavailable(f"{self.role}: {message['error']}")
        value = message[expected]
        assert isinstance(value, dict)
        return value

    async def close(self) -> None:
        """Kill the child and wait until it has ended."""
        await kill_process(self._process)


class Workers:
    """The child processes of one measurement; leaving the block kills them all."""

    def __init__(self) -> None:
        self._workers: list[BenchWorker] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(worker.close() for worker in self._workers))

    async def start(self, role: str, **spec: Any) -> BenchWorker:
        worker = await BenchWorker.start(role, spec)
        self._workers.append(worker)
        return worker
