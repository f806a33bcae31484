"""The parent's hold on a child process that measures.

```
 parent                                   child (python -m pydanube.cli.bench.worker)
   {"role": ..., ...}            ------>    prepares: connects, makes payloads
   <------  {"ready": {...}}                waits
   {"go": {...}}                 ------>    measures
   {"count": {"enough": false}}  ------>    (a consumer, again and again once all is published)
   <------  {"counted": {...}}              (until it has enough)
   <------  {"result": {...}} | {"error": "..."}
```

One JSON object a line, on the child's stdin and stdout. Its stderr is ours. A child that dies or stays silent past the
deadline fails the run; none outlives `Workers`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any, Final, Self

from pydanube.model.errors import Unavailable

from .children import end, spawn

SILENCE_SECONDS_MAX: Final = 600.0
LINE_BYTES_MAX: Final = 64 << 20


class BenchWorker:
    """One child."""

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
            await worker.tell({"role": role, **spec})
        except BaseException:
            await end(process)
            raise
        return worker

    async def tell(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            await self._process.stdin.drain()
        except OSError:
            raise Unavailable(f"the {self.role} process of the bench died; its error is above") from None

    async def ready(self) -> dict[str, Any]:
        return await self._hear("ready")

    async def go(self, **more: Any) -> None:
        await self.tell({"go": more})

    async def count(self) -> dict[str, Any]:
        await self.tell({"count": {"enough": False}})
        return await self._hear("counted")

    async def result(self) -> dict[str, Any]:
        return await self._hear("result")

    async def _hear(self, expected: str) -> dict[str, Any]:
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
        """Gone when this returns, whatever it was doing."""
        await end(self._process)


class Workers:
    """The children of one measurement; leaving the block ends them all."""

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
