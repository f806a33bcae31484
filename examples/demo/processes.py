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
STOP_SECONDS = 5
"""How long a process has to end in order, before it is killed with all that it started."""


class Trouble(Exception):
    """A process did not do what it should; the message has the end of its log."""


class Process:
    """A `danube` command with a log. At the end it is killed, with everything that it started."""

    started: list[Process] = []  # noqa: RUF012

    def __init__(self, name: str, log: Path, *command: str) -> None:
        self.name = name
        self.log = log
        self._command = [*DANUBE, *command]
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    async def spawn(self) -> asyncio.subprocess.Process:
        """Start the command in a session of its own: Ctrl-C reaches the demo only, which ends the others."""
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdout=asyncio.subprocess.PIPE, stderr=log, start_new_session=True
            )
        self.started.append(self)
        return self._process

    async def kill(self) -> None:
        """Kill the process and everything that it started with SIGKILL."""
        self.kill_now()
        if self._process is not None:
            await self._process.wait()

    def kill_now(self) -> None:
        if self._process is not None and self._process.returncode is None:
            for pid in [self.pid, *descendants(self.pid)]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    async def dump_threads(self) -> None:
        """Let the process write to its log where each of its threads is."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGUSR1)
            await asyncio.sleep(1)

    def last_lines(self, count: int = 20) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-count:]) if self.log.exists() else ""

    def failed(self, how: str) -> Trouble:
        return Trouble(f"{self.name} {how}; the whole log: {self.log}; its last lines:\n{self.last_lines()}")

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()


class Broker(Process):
    """`danube serve` on its own directory and free ports."""

    def __init__(self, directory: Path) -> None:
        ports = ["--port=0", "--grpc-port=0", "--admin-port=0", "--http-port=0"]
        super().__init__("the broker", directory / "broker.log", "serve", "--data-dir", str(directory / "data"), *ports)

    async def start(self) -> str:
        """Start the broker and return its address."""
        process = await self.spawn()
        assert process.stdout is not None
        ready = (await process.stdout.readline()).decode()
        if not ready.startswith("danube ready"):
            raise self.failed("did not start")
        return f"danube://{ready.split('native=')[1].split()[0]}"

    async def watch(self) -> None:
        """Raise Trouble when the broker ends before it should."""
        assert self._process is not None
        raise self.failed(f"ended with exit code {await self._process.wait()}")

    async def __aexit__(self, *_: object) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), STOP_SECONDS)
        await self.kill()


class Job(Process):
    """`danube pipeline run`, with the JVM and the Python workers it starts, which are killed together."""

    def __init__(self, url: str, directory: Path, told: Callable[[int, dict[str, Any]], None]) -> None:
        options = ["--json", "--url", url, "--set", f"DATA={directory}"]
        super().__init__("the pipeline", directory / "spark.log", "pipeline", "run", str(PIPELINE), *options)
        self._told = told
        self._starts: asyncio.Queue[asyncio.subprocess.Process] = asyncio.Queue()

    async def start(self) -> int:
        """Start the pipeline, and return the id of its process."""
        self._starts.put_nowait(await self.spawn())
        return self.pid

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
                raise self.failed(f"ended with exit code {code}")

    def finish(self) -> None:
        """Let the pipeline end after its batches."""
        assert self._process is not None
        self._process.terminate()


def descendants(pid: int) -> list[int]:
    """Return the children of a process, their children, and so on: the JVM is in a process group of its own."""
    pairs = parents_and_children()
    found = [pid]
    for one in found:  # grows meanwhile
        found += [child for parent, child in pairs if parent == one]
    return found[1:]


def parents_and_children() -> list[tuple[int, int]]:
    """Return the parent's and the own id of every process: as Linux tells it, or elsewhere `ps`."""
    if (proc := Path("/proc")).joinpath("self/stat").exists():
        found = []
        for stat in proc.glob("[0-9]*/stat"):
            with suppress(OSError):  # it has just ended
                found.append((int(stat.read_text().rpartition(")")[2].split()[1]), int(stat.parent.name)))
        return found
    listed = subprocess.run(["ps", "-A", "-o", "ppid=,pid="], capture_output=True, text=True, check=True).stdout
    return [(int(parent), int(child)) for parent, child in map(str.split, listed.splitlines())]
