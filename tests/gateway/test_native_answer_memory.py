"""Fetch answers that nobody takes: all connections together hold no more than their limit, and nobody is starved."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from native_peer import TOPIC, Between, NativeListener, Peer, neighbour, one_batch, open_listener
from test_native_hostile import fill_topic

from pydanube.broker import FetchResult, unread_memory
from pydanube.broker.unread_memory import UnreadMemory
from pydanube.codec.native import frames, requests
from pydanube.codec.native.frames import FrameKind
from pydanube.gateway.native.answer_share import AnswerShare
from pydanube.model.errors import Unavailable
from pydanube.model.limits import KIB, MIB
from pydanube.model.positions import Position
from waiting import until

LIMIT = 4 * MIB
ANSWER = 1 * MIB
BATCH = 60_000
"""A small answer, which the first of a connection may be while no memory is free."""
PEERS = 12
FETCHES = 20


class SlowReads(Between):
    """Reads that are answered when the test says so; counts the bytes that they may return at the same time."""

    def __init__(self, broker: Any) -> None:
        super().__init__(broker)
        self.go_on = asyncio.Event()
        self.reading_bytes = self.most_bytes = 0

    async def fetch(
        self, principal: Any, topic: Any, partition: int, start: Any, bytes_max: int, *rest: Any, **named: Any
    ) -> FetchResult:
        self.reading_bytes += bytes_max
        self.most_bytes = max(self.most_bytes, self.reading_bytes)
        try:
            await self.go_on.wait()
            return await self._broker.fetch(principal, topic, partition, start, bytes_max, *rest, **named)
        finally:
            self.reading_bytes -= bytes_max


def fetch_frames(count: int, bytes_max: int = ANSWER) -> bytes:
    fetch = requests.encode(requests.Fetch(TOPIC, 0, Position("earliest"), bytes_max=bytes_max))
    return b"".join(frames.encode(FrameKind.FETCH, fetch, number) for number in range(1, count + 1))


def held_bytes(there: NativeListener) -> int:
    return sum(session.connection.queued_bytes for session in there.sessions) + there.broker.reading_bytes


async def test_many_fetches_of_clients_that_do_not_read_hold_no_more_than_the_limit() -> None:
    async with open_listener(wrap=SlowReads, keep_alive_ms=60_000) as there:
        there.broker.unread.limit_bytes = LIMIT
        peers = [await Peer.greet(there) for _ in range(PEERS)]
        await fill_topic(peers[0], total_bytes=2 * MIB, batch_bytes=BATCH)
        for peer in peers:
            peer.stop_reading()
            peer.write(fetch_frames(FETCHES))
        await there.until(lambda: all(session.in_flight == FETCHES for session in there.sessions))
        await there.until(lambda: there.broker.reading_bytes > LIMIT)  # each has its first, and the limit is used up
        for _ in range(100):
            await asyncio.sleep(0)
        bound = LIMIT + PEERS * (BATCH + 20_000)
        assert there.broker.most_bytes <= bound
        there.broker.go_on.set()
        memory = there.broker.unread
        most = 0
        async with asyncio.timeout(20.0):
            while not memory.queue.locked():
                most = max(most, held_bytes(there))
                await asyncio.sleep(0)
        for _ in range(100):
            most = max(most, held_bytes(there))
            await asyncio.sleep(0.001)
        assert most <= bound
        assert memory.used_bytes <= bound
        for peer in peers:
            peer.resume_reading()
        for peer in peers:
            heard = [await peer.receive(FrameKind.FETCHED, FrameKind.ERROR) for _ in range(FETCHES)]
            assert {one.correlation for one in heard} == set(range(1, FETCHES + 1))
            assert heard[0].kind is FrameKind.FETCHED
        await there.until(lambda: held_bytes(there) == 0)
        memory.refresh()
        assert memory.used_bytes == 0
        for peer in peers:
            peer.close()


async def test_a_client_that_is_gone_gives_back_what_it_did_not_take() -> None:
    async with open_listener(keep_alive_ms=60_000) as there, neighbour(there), await Peer.greet(there) as reader:
        there.broker.unread.limit_bytes = LIMIT
        await fill_topic(reader, total_bytes=2 * MIB, batch_bytes=BATCH)
        memory = there.broker.unread
        peers = [await Peer.greet(there) for _ in range(PEERS)]
        for peer in peers:
            peer.stop_reading()
            peer.write(fetch_frames(FETCHES))
        await until(lambda: memory.queue.locked())
        reader.write(fetch_frames(1))
        answer = await reader.receive(FrameKind.FETCHED)  # a first answer is always there, if only a small one
        assert len(answer.body) >= BATCH
        for peer in peers:
            peer.close()
        await there.until(lambda: there.server.connections == 2)
        reader.write(fetch_frames(1))
        assert len((await reader.receive(FrameKind.FETCHED)).body) > ANSWER - 2 * BATCH


async def test_one_answer_that_is_larger_than_the_limit_is_given_all_the_same(native, peer):
    native.broker.unread.limit_bytes = 10_000
    await fill_topic(peer, total_bytes=500_000, batch_bytes=BATCH)
    peer.write(fetch_frames(5))
    seen = {(await peer.receive(FrameKind.FETCHED)).correlation for _ in range(5)}
    assert seen == set(range(1, 6))


# -- the memory itself -------------------------------------------------------------------------------------------------


class Line:
    """The part of a connection that its share of the memory uses."""

    def __init__(self) -> None:
        self.held_bytes = 0
        self.is_closing = False


def shares(limit: int, count: int) -> tuple[UnreadMemory, list[tuple[AnswerShare, Line]]]:
    memory = UnreadMemory(limit, lambda: False)
    lines = [Line() for _ in range(count)]
    return memory, [(AnswerShare(memory, line), line) for line in lines]  # type: ignore[arg-type]


async def test_waiting_fetches_come_in_the_order_in_which_they_asked() -> None:
    memory, [(one, line), (two, _), (three, _)] = shares(1_000 * KIB, 3)
    assert [await share.reserve(300 * KIB) for share in (one, two, three)] == [300 * KIB] * 3
    order: list[str] = []

    async def again(name: str, share: AnswerShare) -> None:
        await share.reserve(500 * KIB)
        order.append(name)

    waiting = [asyncio.ensure_future(again(name, share)) for name, share in (("two", two), ("three", three))]
    await asyncio.sleep(0)
    line.held_bytes = 300 * KIB
    one.answered(300 * KIB, 300 * KIB)
    await asyncio.sleep(0)
    assert not order, "it was read, and not taken"
    line.held_bytes = 0
    two.answered(300 * KIB, 0)
    await asyncio.gather(waiting[0])
    assert (order, memory.used_bytes) == (["two"], 800 * KIB)
    three.answered(300 * KIB, 0)
    await asyncio.gather(waiting[1])
    assert (order, memory.used_bytes) == (["two", "three"], 1_000 * KIB)


async def test_a_fetch_waits_for_a_while_and_is_then_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unread_memory, "WAIT_S", 0.05)
    memory, [(one, _)] = shares(100 * KIB, 1)
    await one.reserve(100 * KIB)
    with pytest.raises(Unavailable, match="have not taken"):
        await one.reserve(1)
    assert memory.used_bytes == 100 * KIB
    one.answered(100 * KIB, 0)
    assert await one.reserve(100 * KIB) == 100 * KIB


async def test_whoever_is_cancelled_while_it_waits_has_reserved_nothing() -> None:
    memory, [(one, _), (two, _)] = shares(100 * KIB, 2)
    await one.reserve(100 * KIB)
    assert await two.reserve(100 * KIB) == unread_memory.SMALL_BYTES, "the first of a connection goes past the limit"
    waiting = [asyncio.ensure_future(share.reserve(KIB)) for share in (one, two, one)]
    await asyncio.sleep(0)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert memory.used_bytes == 100 * KIB + unread_memory.SMALL_BYTES
    assert not memory.queue.locked()


async def test_what_a_consumer_has_not_received_counts_before_its_connection_is_full_and_is_returned() -> None:
    async with (
        open_listener(keep_alive_ms=60_000) as there,
        await Peer.greet(there) as producing,
        await Peer.greet(there) as stuck,
    ):
        await producing.create_topic()
        producer = await producing.open_producer()
        consumer = await stuck.subscribe("asleep")
        stuck.credit(consumer.handle, 2**40, 2**40)
        stuck.stop_reading()
        session = await there.session_of(stuck)
        connection = session.connection
        while not connection.queued_bytes:
            producing.publish(producer.handle, one_batch(producer, 10, BATCH // 10))
            await producing.receive(FrameKind.PUBLISHED)
        assert connection.writable
        assert session.unread.bytes > connection.queued_bytes - KIB
        assert there.broker.unread.used_bytes >= session.unread.bytes
        stuck.resume_reading()
        while connection.queued_bytes:
            await stuck.next_frame()
        await there.until(lambda: not session.unread.bytes)
        there.broker.unread.refresh()
        assert not there.broker.unread.used_bytes


async def test_memory_is_given_back_to_the_system_when_clients_returned_much_while_others_waited() -> None:
    memory = UnreadMemory(unread_memory.RETURNED_BYTES, lambda: False)
    part = memory.part()
    part.take(unread_memory.RETURNED_BYTES)
    part.give_back(unread_memory.RETURNED_BYTES)
    assert not memory.check(0.0), "nobody waited"
    part.take(unread_memory.RETURNED_BYTES)
    memory.call_when_free("another", memory.part(), MIB, lambda: None)
    assert not memory.check(1.0), "nothing was returned"
    part.give_back(MIB)
    memory.forget("another")
    part.give_back(unread_memory.RETURNED_BYTES - MIB)
    assert memory.check(2.0)
    assert not memory.check(3.0)


def test_memory_is_given_back_after_answers_were_refused_for_want_of_it() -> None:
    memory = UnreadMemory(unread_memory.RETURNED_BYTES, lambda: False)
    part = memory.part()
    part.take(unread_memory.RETURNED_BYTES)
    with pytest.raises(Unavailable):
        memory.part().check_may_take(MIB)
    part.give_back(unread_memory.RETURNED_BYTES)
    assert memory.check(0.0)
