"""Compressed batches: what they unpack to is bounded per turn of the loop, and other clients are served in between."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from native_peer import TOPIC, Peer, neighbour, open_listener
from test_native_hostile import pass_time
from test_native_staging import end_of, stage

from pydanube.codec import batch as batches
from pydanube.codec.batch import Batch, Codec
from pydanube.codec.native import frames, requests
from pydanube.codec.native.frames import FrameKind
from pydanube.gateway.publish_memory import PauseReason
from pydanube.model.limits import MIB
from pydanube.operations import staging
from pydanube.runtime.clock import ManualClock

TURN_BYTES = 4 * MIB
BOMB_BYTES = 3 * MIB


def bomb(producer: requests.ProducerOpened | None = None, sequence: int = -1, codec: Codec = Codec.ZSTD) -> bytearray:
    """A batch of one message that is a thousand times larger than it looks."""
    identity = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch} if producer else {}
    return batches.encode([bytes(BOMB_BYTES)], publish_times=1, first_sequence=sequence, codec=codec, **identity)


class Turns:
    """Counts the turns of the event loop, and the bytes that are decompressed in each."""

    def __init__(self) -> None:
        self.number = 0
        self.opened: Counter[int] = Counter()
        self._next()

    def _next(self) -> None:
        self.number += 1
        self._handle = asyncio.get_running_loop().call_soon(self._next)

    def stop(self) -> None:
        self._handle.cancel()

    def spy(self) -> type[Batch]:
        turns = self

        class Watched(Batch):
            __slots__ = ()

            @classmethod
            def open(cls, buffer: Any, *, stamped: bool = False) -> Any:
                opened = super().open(buffer, stamped=stamped)
                if opened.header.codec:
                    turns.opened[turns.number] += opened.header.plain_length
                return opened

        return Watched


async def test_publishes_are_unpacked_a_few_at_a_time_in_order_and_others_are_served(native, monkeypatch):
    async with neighbour(native):
        peers = [await Peer.greet(native) for _ in range(4)]
        await peers[0].create_topic()
        producers = [await peer.open_producer() for peer in peers]
        turns = Turns()
        monkeypatch.setattr("pydanube.broker.producers.batches.Batch", turns.spy())
        for peer, producer in zip(peers, producers, strict=True):
            for number in range(16):  # one that is not compressed must not overtake those before it
                codec = Codec.NONE if number % 8 == 7 else [Codec.ZSTD, Codec.LZ4][number % 2]
                peer.publish(producer.handle, bomb(producer, number, codec))
        for peer in peers:
            answers = [await peer.receive(FrameKind.PUBLISHED) for _ in range(16)]
            offsets = [frames.unpack_head(answer.head, frames.PUBLISHED, FrameKind.PUBLISHED)[1] for answer in answers]
            assert offsets == sorted(offsets)
        turns.stop()
        assert sum(turns.opened.values()) >= 4 * 14 * BOMB_BYTES
        assert max(turns.opened.values()) < TURN_BYTES + 2 * BOMB_BYTES
        for peer in peers:
            peer.close()


async def test_stages_are_unpacked_a_few_at_a_time(native, monkeypatch):
    async with neighbour(native), await Peer.greet(native) as peer:
        await peer.create_topic()
        turns = Turns()
        monkeypatch.setattr("pydanube.broker.staging.stage_writer.Batch", turns.spy())
        name = await stage(peer, {(TOPIC, 0): [bomb() for _ in range(20)]})
        turns.stop()
        assert sum(turns.opened.values()) >= 20 * BOMB_BYTES
        assert max(turns.opened.values()) < 2 * TURN_BYTES + BOMB_BYTES
        commit = staging.CommitStages(query="query", run="run", batch_id=0, stages=[name], wait_ms=20_000)
        await peer.request(commit, staging.StagesCommitted)
        assert await end_of(peer) == 20


async def test_what_cannot_be_unpacked_is_refused_in_its_turn_and_the_others_are_stored(peer, topic):
    producer = await peer.open_producer()
    for number in range(9):
        batch = bomb(producer)
        if number % 2:
            batch[-1] ^= 1
        peer.publish(producer.handle, batch)
    answers = [await peer.receive(FrameKind.PUBLISHED, FrameKind.ERROR) for _ in range(9)]
    assert [answer.kind for answer in sorted(answers, key=lambda one: one.correlation)] == [
        FrameKind.ERROR if number % 2 else FrameKind.PUBLISHED for number in range(9)
    ]


async def test_a_client_that_goes_while_its_batch_waits_leaves_nothing_behind(native):
    async with neighbour(native):
        peers = [await Peer.greet(native) for _ in range(3)]
        await peers[0].create_topic()
        for peer in peers:
            producer = await peer.open_producer()
            for _ in range(10):
                peer.publish(producer.handle, bomb(producer))
        async with asyncio.timeout(20.0):
            while not any(session._pause_reasons & PauseReason.DECOMPRESSION for session in native.sessions):  # noqa: ASYNC110
                await asyncio.sleep(0)  # every turn is looked at: it does not last long
        for peer in peers:
            peer.close()
        await native.until(lambda: native.server.connections == 1)
        await native.until(lambda: not native.broker.decompression._waiting)
        await native.until(lambda: native.server._resources.door.publish_memory.used_bytes < BOMB_BYTES)


# -- a broker that was late itself -------------------------------------------------------------------------------------


async def test_a_broker_whose_loop_was_late_does_not_take_its_clients_for_gone() -> None:
    clock = ManualClock()
    settings = {"keep_alive_ms": 1_000, "handshake_timeout_ms": 1_000, "frame_timeout_ms": 1_000}
    async with (
        open_listener(clock=clock, **settings) as there,
        await Peer.greet(there) as idle,
        await Peer.greet(there) as slow,
    ):
        greeting = await Peer.connect(there)
        ping = frames.encode(FrameKind.PING, correlation=1)
        slow.write(ping[:-1])
        session = await there.session_of(slow)
        await there.until(lambda: session.connection.frame_since > 0 and there.server.connections == 3)
        clock.advance(60.0)  # in one step: nobody was heard, and nobody was asked
        await pass_time(clock, 0.4)
        await idle.receive(FrameKind.PING)
        assert there.server.connections == 3
        idle.send(FrameKind.PONG)
        slow.write(ping[-1:])
        assert (await slow.receive(FrameKind.PONG)).correlation == 1
        greeting.close()
        before = clock.monotonic()
        await there.until(lambda: all(one.connection.last_received >= before for one in there.sessions if one.welcomed))
        await pass_time(clock, 3.0)  # from here on the loop is in time, and silence counts
        for peer in (idle, slow):
            while (frame := await peer.next_frame()) is not None and frame.kind is FrameKind.PING:
                pass
            assert frame is not None and frame.kind is FrameKind.ERROR
