"""The bare pipeline: producer, forwarder and consumer processes with the same batch bytes and no broker.

```
 producer  -- batches -->  forwarder: CRC, write, one sync for all that waited  -- batches -->  consumer: CRC
           <-- done, u64 --
```

It measures what the machine could do if a broker had no cost: no offsets, no topics, no subscriptions, no cursor, no
frames (a batch carries its own length), one connection each way. The bench reports the broker's rate as a share of it.
"""

from __future__ import annotations

import asyncio
import os
import queue
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from crc32c import crc32c

from pydanube.codec.batch import HEADER_BYTES, Codec, encode
from pydanube.codec.batch.header import HEADER_CRC_START, STAMP_START, field_start
from pydanube.model.errors import Corrupt
from pydanube.runtime.clock import SystemClock

from .load import PayloadSource
from .scenario import Scenario
from .worker import Control, Message

CHUNK_BYTES: Final = 1 << 20
WINDOW_BATCHES: Final = 64
WINDOW_BYTES: Final = 8 << 20
HELD_BYTES_MAX: Final = 8 << 20
"""While the consumer has this many bytes to receive, the producer gets no further confirmations."""
SWITCH_SECONDS: Final = 0.0005
"""How long the event loop may keep the GIL from the sync thread; Python's default is 5 ms, the time of a disk seek."""
IOV_MAX: Final = 1024
LENGTH_START: Final = field_start("stored_length")
BODY_CRC_START: Final = field_start("body_crc")

Take = Callable[[list[memoryview]], None]


class BatchStream(asyncio.BufferedProtocol):
    """Splits a byte stream into batches without copying: they are views into chunks."""

    def __init__(self, take: Take, closed: Callable[[], None] | None = None) -> None:
        self._take, self._closed = take, closed
        self._start = self._end = 0
        self._chunk = memoryview(bytearray(CHUNK_BYTES))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._chunk[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        self._end += nbytes
        chunk, start, end = self._chunk, self._start, self._end
        batches: list[memoryview] = []
        length = 0
        while end - start >= HEADER_BYTES:
            length = HEADER_BYTES + int.from_bytes(chunk[start + LENGTH_START : start + LENGTH_START + 4], "little")
            if end - start < length:
                break
            batches.append(verified(chunk[start : start + length]))
            start += length
        self._start = start
        if len(chunk) - start < max(length, CHUNK_BYTES // 8):
            self._start_chunk(max(CHUNK_BYTES, 2 * length))
        if batches:
            self._take(batches)

    def _start_chunk(self, capacity: int) -> None:
        """Continue in a new chunk, with the incomplete batch copied to its start."""
        rest = self._chunk[self._start : self._end]
        self._chunk = memoryview(bytearray(capacity))
        self._chunk[: len(rest)] = rest
        self._start, self._end = 0, len(rest)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._closed is not None:
            self._closed()


def verified(batch: memoryview) -> memoryview:
    """Return the batch after checking both of its checksums."""
    if crc32c(batch[:HEADER_CRC_START]) != int.from_bytes(batch[HEADER_CRC_START:STAMP_START], "little"):
        raise Corrupt("batch header does not match its checksum")
    if crc32c(batch[HEADER_BYTES:]) != int.from_bytes(batch[BODY_CRC_START:HEADER_CRC_START], "little"):
        raise Corrupt("batch body does not match its checksum")
    return batch


def write_all(descriptor: int, batches: list[memoryview]) -> None:
    for at in range(0, len(batches), IOV_MAX):
        some = batches[at : at + IOV_MAX]
        if os.writev(descriptor, some) != sum(map(len, some)):
            raise OSError("the disk took only a part of a write: is it full?")


# -- the forwarder ---------------------------------------------------------------------------------------------------


class Forwarder:
    """Stores every batch at the ack level, then confirms it to the producer and forwards it to the consumer."""

    def __init__(self, ack_level: str, directory: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._producer: asyncio.Transport | None = None
        self._consumer: asyncio.Transport | None = None
        self._done = 0
        self._early: list[memoryview] = []
        """Batches stored before the consumer was accepted; its own side may be connected a moment earlier."""
        self._file = tempfile.TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115 -- open as long as the process
        self._groups: queue.SimpleQueue[list[memoryview]] = queue.SimpleQueue()
        self.syncs = 0
        if ack_level == "durable":
            sys.setswitchinterval(SWITCH_SECONDS)
            threading.Thread(target=self._commit, name="commit", daemon=True).start()
            self.take: Take = self._groups.put
        else:
            self.take = self._write if ack_level == "written" else self._forward

    def _write(self, batches: list[memoryview]) -> None:
        write_all(self._file.fileno(), batches)
        self._forward(batches)

    def _commit(self) -> None:
        """Group commit, in its own thread: all batches that arrived during one sync share the next."""
        sync = getattr(os, "fdatasync", os.fsync)
        descriptor = self._file.fileno()
        while True:
            group = self._groups.get()
            while not self._groups.empty():
                group = group + self._groups.get_nowait()
            write_all(descriptor, group)
            sync(descriptor)
            self.syncs += 1
            self._loop.call_soon_threadsafe(self._forward, group)

    def _forward(self, batches: list[memoryview]) -> None:
        if self._consumer is None:
            self._early.extend(batches)
            return
        for batch in batches:
            self._consumer.write(batch)
        self._done += len(batches)
        self._confirm()

    def _accept(self, consumer: asyncio.Transport) -> None:
        self._consumer = consumer
        early, self._early = self._early, []
        if early:
            self._forward(early)

    def _confirm(self) -> None:
        assert self._producer is not None
        assert self._consumer is not None
        if self._consumer.get_write_buffer_size() > HELD_BYTES_MAX:
            self._loop.call_later(0.001, self._confirm)
        else:
            self._producer.write(self._done.to_bytes(8, "little"))

    def inlet(self) -> BatchStream:
        forwarder = self

        class Inlet(BatchStream):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                assert isinstance(transport, asyncio.Transport)
                forwarder._producer = transport

        return Inlet(lambda batches: forwarder.take(batches))

    def outlet(self) -> asyncio.Protocol:
        forwarder = self

        class Outlet(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                assert isinstance(transport, asyncio.Transport)
                transport.set_write_buffer_limits(HELD_BYTES_MAX)
                forwarder._accept(transport)

        return Outlet()


async def forward(control: Control, spec: Message) -> Message:
    """Role pipeline-broker: forwards batches until the parent ends it."""
    loop = asyncio.get_running_loop()
    forwarder = Forwarder(spec["ack_level"], spec["directory"])
    inlet = await loop.create_server(forwarder.inlet, "127.0.0.1", 0)
    outlet = await loop.create_server(forwarder.outlet, "127.0.0.1", 0)
    ports = [server.sockets[0].getsockname()[1] for server in (inlet, outlet)]
    await control.ready(inlet=ports[0], outlet=ports[1])
    await control.receive("until")
    return {"syncs": forwarder.syncs}


# -- clients -----------------------------------------------------------------------------------------------------------


class PipelinePublisher(asyncio.Protocol):
    """Keeps a window of batches in flight."""

    def __init__(self) -> None:
        self.done = 0
        self._rest = b""
        self._confirmed = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        whole = len(data) // 8 * 8
        self._rest = data[whole:]
        if whole:
            self.done = int.from_bytes(data[whole - 8 : whole], "little")
            self._confirmed.set()

    async def until(self, done: int) -> None:
        while self.done < done:
            self._confirmed.clear()
            await self._confirmed.wait()


async def produce(control: Control, spec: Message) -> Message:
    """Role pipeline-producer: encodes and sends `count` messages."""
    scenario = Scenario(**spec["scenario"])
    source = PayloadSource(producer=0, size=scenario.size, batch=scenario.batch, verify=False)
    codec = Codec.parse(scenario.compression)
    clock = SystemClock()
    loop = asyncio.get_running_loop()
    transport, publisher = await loop.create_connection(PipelinePublisher, "127.0.0.1", spec["port"])
    await control.ready()
    window = max(2, min(WINDOW_BATCHES, WINDOW_BYTES // (scenario.size * scenario.batch)))
    begin, sent, left = time.perf_counter_ns(), 0, scenario.count
    while left:
        count = min(left, scenario.batch)
        transport.write(encode(source.take(count), publish_times=clock.now_us(), codec=codec))
        sent, left = sent + 1, left - count
        if sent - publisher.done >= window:
            await publisher.until(sent - window + 1)
    await publisher.until(sent)
    end = time.perf_counter_ns()
    transport.close()
    return {"begin_ns": begin, "end_ns": end, "sent": scenario.count}


async def receive(control: Control, spec: Message) -> Message:
    """Role pipeline-consumer: receives `count` messages."""
    finished: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    left: int = spec["count"]

    def take(batches: list[memoryview]) -> None:
        nonlocal left
        for batch in batches:
            left -= int.from_bytes(batch[12:16], "little")
        if left <= 0 and not finished.done():
            finished.set_result(time.perf_counter_ns())

    def closed() -> None:
        if not finished.done():
            finished.set_exception(ConnectionResetError("the forwarder went away"))

    loop = asyncio.get_running_loop()
    await loop.create_connection(lambda: BatchStream(take, closed), "127.0.0.1", spec["port"])
    await control.ready()
    return {"end_ns": await finished, "received": spec["count"] - left}


def result(produced: dict[str, Any], received: dict[str, Any], scenario: Scenario) -> dict[str, Any]:
    """Return the rates of one run."""
    seconds = (received["end_ns"] - produced["begin_ns"]) / 1e9
    publish_seconds = (produced["end_ns"] - produced["begin_ns"]) / 1e9
    return {
        "end_to_end_per_second": scenario.count / seconds,
        "publish_per_second": scenario.count / publish_seconds,
        "megabytes_per_second": scenario.count * scenario.size / seconds / 1e6,
    }
