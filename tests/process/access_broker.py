"""A program: a broker with authentication and a native listener on a directory, where callers without credentials are
a super user. Prints the URL of the listener, and runs until it is killed or its stdin ends.

    python access_broker.py DIRECTORY
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from access_harness import secured
from broker_harness import open_broker

from pydanube.core.access import ANONYMOUS
from pydanube.gateway.native.server import NativeServer
from pydanube.model.settings.sections import LimitSettings
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.tasks import Tasks


class AccessBroker:
    """A running program."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        self.process = subprocess.Popen(
            [sys.executable, __file__, str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        assert self.url.startswith("danube://"), self.url

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


async def serve(directory: Path) -> None:
    async with open_broker(directory, security=secured(ANONYMOUS.id)) as broker, Tasks() as tasks:
        server = NativeServer(broker, LimitSettings(), SystemClock(), tasks)
        host, port = await server.start("127.0.0.1", 0)
        print(f"danube://{host}:{port}", flush=True)
        await asyncio.to_thread(sys.stdin.read)
        await server.close(0)


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
