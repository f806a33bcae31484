"""The two processes of the demo: a broker, and the Spark job, which is killed and started again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

JOB = Path(__file__).with_name("job.py")


class Trouble(Exception):
    """A process did not do what it should; the message has the end of its log."""


class Broker:
    """`danube serve` on its own directory and a free port."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._log = directory / "broker.log"
        self.servers = self.url = ""

    async def __aenter__(self) -> Broker:
        command = [sys.executable, "-m", "pydanube.cli", "serve", "--data-dir", str(self._directory / "data")]
        ports = ["--port=0", "--grpc-port=0", "--admin-port=0", "--http-port=0"]
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *command, *ports, stdout=asyncio.subprocess.PIPE, stderr=log
            )
        assert self._process.stdout is not None
        ready = (await self._process.stdout.readline()).decode()
        if not ready.startswith("danube ready"):
            raise Trouble(f"the broker did not start:\n{self._log.read_text()[-2000:]}")
        self.servers = ready.split("native=")[1].split()[0]
        self.url = f"danube://{self.servers}"
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process.returncode is None:
            self._process.terminate()
            await self._process.wait()


class Job:
    """The Spark job with the JVM and the Python workers it starts, which are killed together."""

    def __init__(self, servers: str, directory: Path, told: Callable[[dict[str, object]], None]) -> None:
        self._servers = servers
        self._directory = directory
        self._log = directory / "spark.log"
        self._told = told
        self._starts: asyncio.Queue[asyncio.subprocess.Process] = asyncio.Queue()

    async def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                str(JOB),
                self._servers,
                str(self._directory),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        self._starts.put_nowait(self._process)

    async def listen(self) -> None:
        """Pass on the job's messages until it ends by itself; after a kill, continue with the next process."""
        while True:
            process = await self._starts.get()
            assert process.stdout is not None
            async for line in process.stdout:
                self._told(json.loads(line))
            code = await process.wait()
            if code == 0:
                return
            if code != -signal.SIGKILL:
                raise Trouble(f"the Spark job failed:\n{self._log.read_text()[-3000:]}")

    async def kill(self) -> None:
        """Kill the whole process group with SIGKILL."""
        os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()

    async def finish(self) -> None:
        """Let the job read all available messages, and end."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"finish\n")
        await self._process.stdin.drain()

    async def __aenter__(self) -> Job:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process.returncode is None:
            await self.kill()
