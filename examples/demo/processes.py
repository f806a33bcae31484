"""The two processes of the demo: a broker, and the pipeline, which is killed and started again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

PIPELINE = Path(__file__).with_name("orders.yaml")
DANUBE = [sys.executable, "-m", "pydanube.cli"]


class Trouble(Exception):
    """A process did not do what it should; the message has the end of its log."""


class Broker:
    """`danube serve` on its own directory and a free port."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._log = directory / "broker.log"
        self.url = ""

    async def __aenter__(self) -> Broker:
        command = [*DANUBE, "serve", "--data-dir", str(self._directory / "data")]
        ports = ["--port=0", "--grpc-port=0", "--admin-port=0", "--http-port=0"]
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *command, *ports, stdout=asyncio.subprocess.PIPE, stderr=log
            )
        assert self._process.stdout is not None
        ready = (await self._process.stdout.readline()).decode()
        if not ready.startswith("danube ready"):
            raise Trouble(f"the broker did not start:\n{self._log.read_text()[-2000:]}")
        self.url = f"danube://{ready.split('native=')[1].split()[0]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process.returncode is None:
            self._process.terminate()
            await self._process.wait()


class Job:
    """`danube pipeline run`, with the JVM and the Python workers it starts, which are killed together."""

    def __init__(self, url: str, directory: Path, told: Callable[[int, dict[str, Any]], None]) -> None:
        self._command = [
            *DANUBE,
            "pipeline",
            "run",
            str(PIPELINE),
            "--json",
            "--url",
            url,
            "--set",
            f"DATA={directory}",
        ]
        self._log = directory / "spark.log"
        self._told = told
        self._process: asyncio.subprocess.Process | None = None
        self._starts: asyncio.Queue[asyncio.subprocess.Process] = asyncio.Queue()

    async def start(self) -> int:
        """Start the pipeline, and return the id of its process."""
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdout=asyncio.subprocess.PIPE, stderr=log, start_new_session=True
            )
        self._starts.put_nowait(self._process)
        return self._process.pid

    async def listen(self) -> None:
        """Pass on the pipeline's lines until it ends by itself; after a kill, continue with the next process."""
        while True:
            process = await self._starts.get()
            assert process.stdout is not None
            async for line in process.stdout:
                self._told(process.pid, json.loads(line))
            code = await process.wait()
            if code == 0:
                return
            if code != -signal.SIGKILL:
                raise Trouble(f"the pipeline failed:\n{self._log.read_text()[-3000:]}")

    async def kill(self) -> None:
        """Kill the pipeline and everything that it started with SIGKILL."""
        assert self._process is not None
        for pid in [self._process.pid, *descendants(self._process.pid)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await self._process.wait()

    def finish(self) -> None:
        """Let the pipeline end after its batches."""
        assert self._process is not None
        self._process.terminate()

    async def __aenter__(self) -> Job:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process is not None and self._process.returncode is None:
            await self.kill()


def descendants(pid: int) -> list[int]:
    """Return the children of a process, their children, and so on: the JVM is in a process group of its own."""
    try:
        listed = subprocess.run(["ps", "-A", "-o", "ppid=,pid="], capture_output=True, text=True).stdout
    except FileNotFoundError:  # no ps: the JVM ends by itself when it notices that the pipeline is gone
        return []
    pairs = [tuple(map(int, line.split())) for line in listed.splitlines()]
    found = [pid]
    for one in found:  # grows meanwhile
        found += [child for parent, child in pairs if parent == one]
    return found[1:]
