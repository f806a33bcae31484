"""A child process of the bench: reads its role from stdin, measures, and writes the result to stdout."""

from __future__ import annotations

import asyncio
import json
import os
import selectors
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from pydanube.cli.standard_streams import open_streams
from pydanube.model.errors import DanubeError

Message = dict[str, Any]


class Control:
    """The child's side of the protocol that `workers` describes."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._cpu_begin = 0.0

    @classmethod
    async def open(cls) -> Control:
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        return cls(reader)

    async def receive(self, expected: str) -> Message:
        """Return the parent's next message; exit if the parent is gone."""
        line = await self._reader.readline()
        if not line:
            raise SystemExit(1)
        value = json.loads(line)[expected]
        assert isinstance(value, dict)
        return value

    def send(self, kind: str, value: object) -> None:
        sys.stdout.write(json.dumps({kind: value}) + "\n")
        sys.stdout.flush()

    async def ready(self, **value: object) -> Message:
        """Report that this process is prepared, wait for the start, and return the parent's message."""
        self.send("ready", value)
        told = await self.receive("go")
        self._cpu_begin = time.process_time()
        return told

    def cpu_seconds(self) -> float:
        """Return the processor time since the start."""
        return time.process_time() - self._cpu_begin


Role = Callable[[Control, Message], Awaitable[Message]]


def find_role(name: str) -> Role:
    """Return the function of a role, imported here so that baselines do not load the client's modules."""
    if name == "producer":
        from .publishing import produce as role
    elif name == "consumer":
        from .receiving import receive as role
    elif name == "backlog":
        from .unacked import hold as role
    elif name.startswith("pipeline-"):
        from . import bare_pipeline

        return {
            "pipeline-producer": bare_pipeline.produce,
            "pipeline-broker": bare_pipeline.forward,
            "pipeline-consumer": bare_pipeline.receive,
        }[name]
    else:
        from . import baselines

        return {
            "tcp-sink": baselines.tcp_sink,
            "echo-server": baselines.echo_server,
            "echo-client": baselines.echo_client,
        }[name]
    return role


def precise_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop for sending on schedule; its timers are not rounded up to milliseconds as epoll's are."""
    return asyncio.SelectorEventLoop(selectors.SelectSelector())


async def _work(spec: Message) -> None:
    control = await Control.open()
    try:
        result = await find_role(spec["role"])(control, spec)
        control.send("result", result | {"cpu_seconds": control.cpu_seconds()})
    except (DanubeError, OSError, TimeoutError) as error:
        control.send("error", f"{type(error).__name__}: {error}")


def _first_line() -> bytes:
    """Read the first line of stdin byte by byte, because `Control` reads what follows."""
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            raise SystemExit(1)
        line += byte
    return bytes(line)


def main() -> None:
    open_streams()
    spec = json.loads(_first_line())
    with asyncio.Runner(loop_factory=precise_loop if spec.get("precise") else None) as runner:
        runner.run(_work(spec))


if __name__ == "__main__":
    main()
