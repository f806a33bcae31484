"""Framed connections: cutting, memory, flow, and the end, over real loopback sockets."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import tracemalloc
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydanube.model.errors import DanubeError, Full, Invalid, Unavailable
from pydanube.model.limits import KIB, MIB
from pydanube.runtime.budget import Budget
from pydanube.runtime.clock import ManualClock, SystemClock
from pydanube.runtime.network import (
    CHUNK_BYTES_MAX,
    CHUNK_BYTES_MIN,
    GROWTH,
    FramedConnection,
    Framing,
    address_of,
    connect,
    listen,
)

FRAME_MAX = 32 * MIB


def frame_length(header: memoryview) -> int:
    return int.from_bytes(header[:4], "little")


def frame(content: bytes) -> bytes:
    return (4 + len(content)).to_bytes(4, "little") + content


FRAMING = Framing(frame_length, frame_bytes_max=FRAME_MAX)


class Recorder:
    """A handler that remembers what happened."""

    def __init__(self, connection: FramedConnection) -> None:
        self.connection = connection
        self.frames: list[memoryview] = []
        self.writable: list[bool] = []
        self.broken: DanubeError | None = None
        self.error: Exception | None = None
        self.on_frame: Callable[[memoryview], None] = self.frames.append
        self.last_words = b""
        self._changed = asyncio.Event()

    def frame_received(self, frame: memoryview) -> None:
        self.on_frame(frame)
        self._changed.set()

    def stream_broken(self, error: DanubeError) -> None:
        self.broken = error
        self.connection.send(self.last_words)
        self.connection.close()
        self._changed.set()

    def writable_changed(self, writable: bool) -> None:
        self.writable.append(writable)
        self._changed.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.error = error
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


class Pair:
    """A FramedConnection on the server's side and a plain socket as its peer."""

    def __init__(self, recorder: Recorder, peer: socket.socket) -> None:
        self.recorder = recorder
        self.connection = recorder.connection
        self.peer = peer

    async def write(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.peer, data)

    async def read(self, size: int) -> bytes:
        return await asyncio.get_running_loop().sock_recv(self.peer, size)

    async def read_to_the_end(self) -> bytes:
        data = b""
        while received := await self.read(64 * KIB):
            data += received
        return data

    async def arrived(self, size: int) -> None:
        """So many bytes wait in the connection's chunk."""
        async with asyncio.timeout(60):
            while self.connection._end - self.connection._start < size:  # noqa: ASYNC110 - it brings the bytes
                await asyncio.sleep(0)


@asynccontextmanager
async def pair(framing: Framing = FRAMING, clock: ManualClock | SystemClock | None = None) -> AsyncIterator[Pair]:
    recorders: list[Recorder] = []
    accepted = asyncio.Event()

    def factory(connection: FramedConnection) -> Recorder:
        recorders.append(Recorder(connection))
        accepted.set()
        return recorders[-1]

    server = await listen("127.0.0.1", 0, factory, framing, clock or SystemClock())
    with socket.socket() as peer:
        peer.setblocking(False)
        await asyncio.get_running_loop().sock_connect(peer, address_of(server))
        await accepted.wait()
        try:
            yield Pair(recorders[0], peer)
        finally:
            recorders[0].connection.abort()
            server.close()
            await recorders[0].connection.wait_closed()


# -- receiving ---------------------------------------------------------------------------------------------------------


def feed(connection: FramedConnection, data: bytes, pieces: list[int]) -> None:
    """As the loop would: ask for a buffer, fill some of it, tell."""
    sizes = iter(pieces)
    while data:
        room = connection.get_buffer(-1)
        assert len(room) > 0
        size = min(len(room), len(data), next(sizes, 64 * KIB))
        room[:size] = data[:size]
        data = data[size:]
        connection.buffer_updated(size)


@given(
    st.lists(st.one_of(st.integers(0, 300), st.integers(10_000, 40_000), st.just(400 * KIB)), max_size=12),
    st.lists(st.integers(1, 100_000), max_size=200),
)
def test_however_the_bytes_arrive_the_frames_come_out_whole_and_stay_as_they_are(
    sizes: list[int], pieces: list[int]
) -> None:
    contents = [bytes([index + 1]) * size for index, size in enumerate(sizes)]

    async def run() -> None:
        recorder = unconnected(FRAMING)
        feed(recorder.connection, b"".join(map(frame, contents)), pieces)
        assert [bytes(one[4:]) for one in recorder.frames] == contents
        for one in recorder.frames:
            assert not one.readonly

    asyncio.run(run())


def unconnected(framing: Framing) -> Recorder:
    """A connection without a socket, fed by hand."""
    connection = FramedConnection(framing, ManualClock(), Recorder)
    connection._transport = _NoTransport()  # type: ignore[assignment]
    connection._handler = recorder = Recorder(connection)
    return recorder


class _NoTransport:
    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def is_closing(self) -> bool:
        return True


def test_writing_into_a_frame_changes_no_other_frame() -> None:
    async def run() -> None:
        recorder = unconnected(FRAMING)
        feed(recorder.connection, b"".join(frame(bytes([n]) * 100) for n in range(1, 200)), [77] * 1000)
        for one in recorder.frames[::2]:
            one[4:] = bytes(len(one) - 4)
        assert all(bytes(one[4:]) == bytes([n]) * 100 for n, one in list(enumerate(recorder.frames, 1))[1::2])

    asyncio.run(run())


async def test_an_announced_length_takes_no_memory_before_bytes_arrive() -> None:
    recorder = unconnected(FRAMING)
    tracemalloc.start()
    try:
        feed(recorder.connection, (FRAME_MAX).to_bytes(4, "little") + b"x", [1] * 5)
        assert tracemalloc.get_traced_memory()[1] < 2 * CHUNK_BYTES_MAX
        feed(recorder.connection, bytes(MIB), [])
        assert len(recorder.connection._chunk) <= GROWTH * MIB + CHUNK_BYTES_MAX
    finally:
        tracemalloc.stop()


async def test_a_frame_that_drips_in_is_not_copied_again_and_again() -> None:
    recorder = unconnected(FRAMING)
    connection = recorder.connection
    feed(connection, frame(bytes(MIB))[:1000], [])
    chunks = {id(connection._chunk.obj)}
    for _ in range(3_000):
        feed(connection, b"x", [1])
        chunks.add(id(connection._chunk.obj))
    assert len(chunks) <= 2


async def test_a_quiet_connection_holds_a_small_chunk_and_gives_it_back() -> None:
    async with pair() as both:
        await both.write(frame(b"hello"))
        await both.recorder.until(lambda: len(both.recorder.frames) == 1)
        assert len(both.connection._chunk) == CHUNK_BYTES_MIN
        both.connection.release_idle_memory()
        assert len(both.connection._chunk) == 0
        await both.write(frame(b"again"))
        await both.recorder.until(lambda: len(both.recorder.frames) == 2)
        assert bytes(both.recorder.frames[0][4:]) == b"hello"


async def test_large_frames_of_all_connections_share_a_budget() -> None:
    budget = Budget(3 * MIB)
    framing = Framing(frame_length, frame_bytes_max=FRAME_MAX, large_frames=budget)
    whole = frame(bytes(2 * MIB))
    first, second = unconnected(framing), unconnected(framing)
    feed(first.connection, whole[:-1], [])
    assert budget.used >= 2 * MIB
    feed(second.connection, whole[: MIB + MIB // 2], [])
    assert isinstance(second.broken, Full)
    feed(first.connection, whole[-1:], [])
    assert len(first.frames) == 1
    assert budget.used == 0


async def test_large_frames_of_a_principal_leave_memory_for_those_of_others() -> None:
    budget = Budget(7 * MIB)
    framing = Framing(frame_length, frame_bytes_max=FRAME_MAX, large_frames=budget)
    whole = frame(bytes(2 * MIB))
    eve, again, bob = (unconnected(framing) for _ in range(3))
    for peer, user in ((eve, "user:eve"), (again, "user:eve"), (bob, "user:bob")):
        peer.connection.budget_users = (user,)
        feed(peer.connection, whole[:-1], [])
    assert eve.broken is None and isinstance(again.broken, Full) and bob.broken is None
    feed(eve.connection, whole[-1:], [])
    feed(bob.connection, whole[-1:], [])
    assert budget.used_by("user:bob") == 0 and budget.used == budget.used_by("user:eve") < 2 * MIB


async def test_a_length_over_the_limit_breaks_the_stream_and_the_peer_hears_why() -> None:
    async with pair(Framing(frame_length, frame_bytes_max=100)) as both:
        both.recorder.last_words = b"too long"
        await both.write(frame(bytes(97)) + bytes(200_000))
        assert await both.read_to_the_end() == b"too long"
        assert isinstance(both.recorder.broken, Invalid)
        assert both.recorder.frames == []


async def test_an_error_of_ours_raised_by_the_handler_breaks_the_stream_too() -> None:
    async with pair() as both:

        def refuse(_frame: memoryview) -> None:
            raise Invalid("not like this")

        both.recorder.on_frame = refuse
        await both.write(frame(b"a") + frame(b"b"))
        await both.recorder.until(lambda: both.recorder.broken is not None)
        assert both.recorder.broken is not None and both.recorder.broken.message == "not like this"


async def test_a_paused_connection_hands_on_nothing_not_even_what_has_arrived() -> None:
    async with pair() as both:
        recorder, connection = both.recorder, both.connection

        def keep_and_pause(one: memoryview) -> None:
            recorder.frames.append(one)
            connection.pause_reading()

        recorder.on_frame = keep_and_pause
        await both.write(frame(b"1") + frame(b"2") + frame(b"3"))
        for expected in (1, 2, 3):
            await recorder.until(lambda expected=expected: len(recorder.frames) >= expected)  # type: ignore[misc]
            await asyncio.sleep(0)
            assert len(recorder.frames) == expected
            connection.resume_reading()


async def test_when_an_unfinished_frame_began_is_known() -> None:
    clock = ManualClock()
    async with pair(clock=clock) as both:
        whole = frame(bytes(100))
        await both.write(whole + whole[:10])
        await both.recorder.until(lambda: len(both.recorder.frames) == 1)
        began = clock.monotonic()
        assert both.connection.frame_since == began
        clock.advance(7)
        await both.write(whole[10:20])
        await both.arrived(20)
        assert both.connection.frame_since == began
        assert both.connection.last_received == began + 7
        await both.write(whole[20:])
        await both.recorder.until(lambda: len(both.recorder.frames) == 2)
        assert both.connection.frame_since == 0.0


# -- sending -----------------------------------------------------------------------------------------------------------


async def test_what_is_sent_arrives_in_order_whatever_the_sizes() -> None:
    async with pair() as both:
        parts = [bytes([n % 251]) * size for n, size in enumerate([0, 1, 10, 100_000, 3, 2 * MIB, 5, 0, 7] * 3)]
        both.connection.send(*parts[:5])
        for part in parts[5:]:
            both.connection.send(memoryview(part))
        both.connection.close()
        assert await both.read_to_the_end() == b"".join(parts)


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each call that hands some to the kernel."""
    sizes: list[int] = []
    real = os.writev

    def counted(descriptor: int, buffers: Sequence[bytes]) -> int:
        sizes.append(real(descriptor, list(buffers)))
        return sizes[-1]

    monkeypatch.setattr(os, "writev", counted)
    return sizes


async def test_many_small_sends_of_one_turn_are_one_write(writes: list[int]) -> None:
    async with pair() as both:
        for _ in range(100):
            both.connection.send(b"abc")
        assert len(await both.read(1000)) == 300
        assert writes == [300]


async def test_what_is_in_a_hurry_leaves_at_once_and_behind_what_was_sent_before_it() -> None:
    async with pair() as both:
        both.connection.send(b"first ")
        both.connection.send_now(b"then ", b"this")
        assert both.connection.queued_bytes == 0
        assert await both.read(100) == b"first then this"


async def test_the_first_of_a_turn_leaves_at_once_and_what_follows_it_leaves_together(
    writes: list[int],
) -> None:
    async with pair() as both:
        for _ in range(2):
            both.connection.send_first(b"first")
            assert both.connection.queued_bytes == 0
            for _ in range(10):
                both.connection.send_first(b"more")
            assert both.connection.queued_bytes == 40
            await both.read(45)
            await asyncio.sleep(0)
        assert writes == [5, 40] * 2


async def test_a_last_answer_leaves_at_once_and_answers_to_what_arrived_together_leave_together(
    writes: list[int],
) -> None:
    async with pair() as both:
        queued: list[int] = []

        def answer(_: memoryview) -> None:
            both.connection.send_now(b"done")
            queued.append(both.connection.queued_bytes)

        both.recorder.on_frame = answer
        await both.write(frame(b"one") + frame(b"two") + frame(b"three"))
        await both.recorder.until(lambda: len(queued) == 3)
        assert queued == [4, 8, 0]
        assert writes == [12]


async def test_what_a_peer_does_not_take_for_long_is_copied_and_keeps_nothing_else_in_memory() -> None:
    async with pair() as both:
        connection, chunk = both.connection, bytearray(range(256)) * 4 * KIB
        count = 0
        while connection.writable:
            connection.send(memoryview(chunk)[count * KIB % len(chunk) :][: 16 * KIB])
            count += 1
            await asyncio.sleep(0)
        kept, queued = list(connection._outgoing), connection.queued_bytes
        connection.copy_stalled_output(connection.last_sent + 0.9)
        assert list(connection._outgoing) == kept, "it may have been a moment"
        connection.copy_stalled_output(connection.last_sent + 1.1)
        assert connection.queued_bytes == queued
        assert list(connection._outgoing) == [b"".join(kept)]
        del kept
        received = b""
        while len(received) < count * 16 * KIB:
            received += await both.read(MIB)
        expected = b"".join(bytes(chunk[at * KIB % len(chunk) :][: 16 * KIB]) for at in range(count))
        assert received == expected
        connection.copy_stalled_output(connection.last_sent + 9)


async def test_a_peer_that_does_not_read_stops_the_sender_and_costs_references_only() -> None:
    async with pair() as both:
        connection, recorder = both.connection, both.recorder
        batch = memoryview(bytes(64 * KIB))
        sent = 0
        tracemalloc.start()
        while connection.writable:
            connection.send(batch)
            sent += len(batch)
            await asyncio.sleep(0)
        assert recorder.writable == [False]
        assert tracemalloc.get_traced_memory()[1] < 200 * KIB
        tracemalloc.stop()
        assert connection.queued_bytes >= MIB
        received = 0
        while received < sent:
            received += len(await both.read(MIB))
        await recorder.until(lambda: recorder.writable == [False, True])
        assert connection.queued_bytes == 0


async def test_a_peer_that_goes_away_while_we_send_ends_the_connection() -> None:
    async with pair() as both:
        both.peer.close()
        both.connection.send(bytes(100))
        async with asyncio.timeout(60):
            await both.connection.wait_closed()
        both.connection.send(b"into the void")
        assert both.connection.is_closing


async def test_closing_a_peer_that_never_reads_takes_a_second_not_for_ever() -> None:
    async with pair() as both:
        while both.connection.writable:
            both.connection.send(bytes(MIB))
        both.connection.close()
        async with asyncio.timeout(60):
            await both.connection.wait_closed()
        assert both.connection.queued_bytes == 0, "what was not taken is dropped"


async def test_nobody_there_is_unavailable() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        host, port = unused.getsockname()
        with pytest.raises(Unavailable, match=f"cannot connect to {host}:{port}"):
            await connect(host, port, Recorder, FRAMING, SystemClock(), timeout=5)


async def test_a_peer_that_resets_before_the_loop_sees_the_connection_is_a_lost_connection() -> None:
    recorders: list[Recorder] = []

    def factory(connection: FramedConnection) -> Recorder:
        recorders.append(Recorder(connection))
        return recorders[-1]

    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        theirs.close()  # a reset, not an orderly end
    with pytest.raises(ConnectionResetError):
        ours.recv(1)
    _, connection = await asyncio.get_running_loop().create_connection(
        lambda: FramedConnection(FRAMING, SystemClock(), factory), sock=ours
    )
    async with asyncio.timeout(60):
        await connection.wait_closed()
    assert recorders[0].connection is connection
