"""Peers that misbehave, on purpose or not: the listener stays open, others do not notice, memory stays bounded."""

from __future__ import annotations

import asyncio
import random
import resource
from pathlib import Path

import pytest
from native_peer import TOPIC, Between, NativeListener, Peer, neighbour, one_batch, open_listener

from pydanube.codec.native import frames, requests
from pydanube.codec.native.frames import FrameKind
from pydanube.gateway.publish_memory import PauseReason
from pydanube.model.errors import DanubeError, Full, Invalid, Unavailable
from pydanube.model.limits import FRAME_BYTES_MAX, KIB, MIB
from pydanube.model.paging import NamePage
from pydanube.model.positions import Position
from pydanube.operations import namespaces, topics
from pydanube.runtime.clock import ManualClock
from pydanube.runtime.file_descriptors import log_files, plan_connections
from pydanube.runtime.network import counted_address

HELLO = frames.PREAMBLE + frames.encode(FrameKind.HELLO, requests.encode(requests.Hello()))


def resident_bytes() -> int:
    """Memory of this process that is really there."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        pytest.skip("resident memory is read from /proc")
    return int(statm.read_text().split()[1]) * resource.getpagesize()


async def pass_time(clock: ManualClock, seconds: float) -> None:
    for _ in range(round(seconds / 0.1)):
        clock.advance(0.1)
        await asyncio.sleep(0.001)


# -- bytes that make no sense ------------------------------------------------------------------------------------------


async def test_garbage_closes_its_own_connection_only(native):
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed={seed}")
    chance = random.Random(seed)
    async with neighbour(native):
        for _ in range(60):
            async with await Peer.connect(native) as peer:
                start = chance.choice([b"", frames.PREAMBLE, HELLO, HELLO + frames.encode(FrameKind.PING)])
                peer.write(start + chance.randbytes(chance.randint(1, 5_000)))
                if chance.random() < 0.5:
                    peer._writer.write_eof()
                    await peer.closed()
        await native.until(lambda: native.server.connections == 1)


@pytest.mark.parametrize(
    "greeting",
    [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", bytes.fromhex("16030100c2010000be0303") + bytes(180), bytes(8)],
    ids=["http", "tls", "zeros"],
)
async def test_another_protocol_is_told_whose_port_this_is(native, greeting):
    async with await Peer.connect(native) as peer:
        peer.write(greeting)
        error = await peer.last_words()
        assert isinstance(error, Invalid) and "this is a Danube port" in error.message


NONSENSE = [
    (frames.HEADER.pack(16, 99, 0, 0, 0, 0), "kind 99 is unknown"),
    (frames.HEADER.pack(16, 3, 0, 7, 0, 0), "malformed"),
    (frames.HEADER.pack(16, 3, 0, 0, 0, 200), "malformed"),
    (frames.HEADER.pack(3, 3, 0, 0, 0, 0), "frame length 3"),
    (frames.HEADER.pack(2**32 - 1, 20, 0, 0, 1, 4), f"outside 16..{FRAME_BYTES_MAX}"),
    (frames.encode(FrameKind.WELCOME), "does not send WELCOME"),
    (frames.encode(FrameKind.DELIVER), "does not send DELIVER"),
    (frames.encode(FrameKind.HELLO), "does not send HELLO"),
    (frames.encode(FrameKind.PUBLISH, b"abc", 1), "PUBLISH head has 3 bytes"),
    (frames.encode(FrameKind.PUBLISH, frames.PUBLISH.pack(1)), "needs a correlation"),
    (frames.encode(FrameKind.REQUEST, b"\x80"), "needs a correlation"),
    (frames.encode(FrameKind.FETCH, b"\x80"), "needs a correlation"),
    (frames.encode(FrameKind.CREDIT, frames.CREDIT.pack(1, -1, 0)), "never taken back"),
    (frames.encode(FrameKind.CREDIT, b""), "CREDIT head has 0 bytes"),
    (frames.encode(FrameKind.ACK, frames.ACK.pack(1, 1000)), "does not have the length"),
    (frames.encode(FrameKind.ACK, frames.encode_ack_head(1, [(5, 5)])), "empty or negative"),
    (frames.encode(FrameKind.ACK, frames.encode_ack_head(1, []), 0, frames.FLAG_CUMULATIVE), "one range, not 0"),
]


async def test_a_frame_that_makes_no_sense_ends_its_connection_with_the_reason(native):
    async with neighbour(native):
        for frame, complaint in NONSENSE:
            async with await Peer.greet(native) as peer:
                peer.write(frame)
                error = await peer.last_words()
                assert isinstance(error, Invalid)
                assert complaint in error.message


async def test_a_first_frame_that_is_not_hello_is_refused(native):
    async with await Peer.connect(native) as peer:
        peer.write(frames.PREAMBLE + frames.encode(FrameKind.PING))
        assert "the first frame is HELLO" in (await peer.last_words()).message


async def test_before_the_welcome_frames_are_small(native):
    async with await Peer.connect(native) as peer:
        peer.write(frames.PREAMBLE + frames.HEADER.pack(65 * KIB, FrameKind.HELLO, 0, 0, 0, 64 * KIB))
        assert f"outside 4..{64 * KIB}" in (await peer.last_words()).message


async def test_half_a_frame_and_gone_leaves_nothing_behind(native):
    async with neighbour(native):
        whole = frames.encode_front(FrameKind.PUBLISH, frames.PUBLISH.pack(1), MIB, 1) + bytes(MIB)
        for cut in (1, 15, 17, 70, MIB):
            peer = await Peer.greet(native)
            peer.write(whole[:cut])
            await peer.flushed()
            peer.close()
        await native.until(lambda: native.server.connections == 1)
        assert native.server._large_frames.used == 0


# -- peers that take their time ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said", [b"", b"DANU", frames.PREAMBLE, HELLO[:-1]], ids=["nothing", "half", "no hello", "most"]
)
async def test_a_handshake_has_its_time_however_slowly_it_drips(said: bytes) -> None:
    clock = ManualClock()
    async with open_listener(clock=clock, handshake_timeout_ms=2_000) as there, await Peer.connect(there) as peer:
        await there.until(lambda: there.server.connections == 1)
        for byte in said:
            peer.write(bytes([byte]))
            await pass_time(clock, 0.1 if said != HELLO[:-1] else 0.0)
        await pass_time(clock, 2.5)
        assert "no HELLO came within 2000 ms" in (await peer.last_words()).message


async def test_a_frame_has_its_time_even_while_its_peer_is_not_silent() -> None:
    clock = ManualClock()
    timeouts = {"frame_timeout_ms": 3_000, "keep_alive_ms": 1_000}
    async with open_listener(clock=clock, **timeouts) as there, await Peer.greet(there) as peer:
        session = await there.session_of(peer)
        whole = frames.encode(FrameKind.REQUEST, bytes(1_000), 1)
        sent = 0
        while not session.connection.is_closing:
            assert sent < 60, "nobody minds a frame that takes for ever"
            peer.write(whole[sent : sent + 1])
            sent += 1
            await pass_time(clock, 0.1)
        error = await peer.last_words()
        assert isinstance(error, Unavailable)
        assert "did not arrive whole within 3000 ms" in error.message


async def test_many_slow_peers_do_not_slow_the_others() -> None:
    clock = ManualClock()
    timeouts = {"handshake_timeout_ms": 3_000, "keep_alive_ms": 3_600_000}
    async with open_listener(clock=clock, **timeouts) as there, neighbour(there) as busy:
        peers = [await Peer.connect(there) for _ in range(200)]
        for peer in peers:
            peer.write(b"D")
        await there.until(lambda: there.server.connections == 201)
        before = busy.rounds
        await there.until(lambda: busy.rounds > before + 5)
        assert there.server.connections == 201, "their time is not up"
        await pass_time(clock, 3.2)
        await there.until(lambda: there.server.connections == 1)
        for peer in peers:
            peer.close()


# -- too much of a good thing ------------------------------------------------------------------------------------------


class Holding(Between):
    """A broker that stores batches only when the test says so."""

    def __init__(self, broker: object) -> None:
        super().__init__(broker)
        self.held: list[tuple[object, ...]] = []
        self.held_topics: set[str] = {TOPIC}

    def publish(self, principal: object, producer: object, *rest: object) -> None:
        if producer.topic in self.held_topics:  # type: ignore[attr-defined]
            self.held.append((principal, producer, *rest))
        else:
            self._broker.batches.publish(principal, producer, *rest)

    def go_on(self) -> None:
        held, self.held = self.held, []
        self.held_topics = set()
        for arguments in held:
            self._broker.batches.publish(*arguments)


async def test_whoever_overruns_the_publish_window_is_closed_and_told_why() -> None:
    async with open_listener(wrap=Holding, publish_window_bytes=10_000) as there, neighbour(there):
        async with await Peer.greet(there) as peer:
            await peer.create_topic()
            producer = await peer.open_producer()
            batch = one_batch(producer, payload_bytes=1_200)
            for _ in range(2):
                peer.publish(producer.handle, batch)
            await there.until(lambda: len(there.broker.held) == 2)
            peer.publish(producer.handle, batch)
            error = await peer.last_words()
            assert isinstance(error, Invalid) and "overrun the publish window of 10000" in error.message
        assert there.server._resources.door.publish_memory.used_bytes >= 2 * len(batch)
        there.broker.go_on()
        await there.until(lambda: there.server._resources.door.publish_memory.used_bytes < len(batch))


async def test_publishers_together_are_held_back_by_memory_and_go_on_when_it_is_free() -> None:
    async with open_listener(wrap=Holding, pending_publish_bytes_max=80_000) as there:
        peers = [await Peer.greet(there) for _ in range(4)]
        await peers[0].create_topic()
        for peer in peers:
            producer = await peer.open_producer()
            for _ in range(20):
                peer.publish(producer.handle, one_batch(producer, payload_bytes=1_000))
        memory = there.server._resources.door.publish_memory
        await there.until(lambda: all(session._pause_reasons & PauseReason.MEMORY for session in there.sessions))
        assert memory.used_bytes < 40_000 + 4 * 4_000
        there.broker.go_on()
        for peer in peers:
            for _ in range(20):
                await peer.receive(FrameKind.PUBLISHED)
            peer.close()
        assert memory.used_bytes == 0


async def test_a_flood_of_requests_runs_a_few_at_a_time_and_each_is_answered_once() -> None:
    class Counting(Between):
        running = most = 0

        async def names(self, *arguments: object) -> object:
            self.running += 1
            self.most = max(self.most, self.running)
            await asyncio.sleep(0)
            self.running -= 1
            return await self._broker.topics.names(*arguments)

    limits = {"requests_in_flight_max": 8}
    async with open_listener(wrap=Counting, **limits) as there, neighbour(there), await Peer.greet(there) as peer:
        request = requests.encode(topics.ListTopics())
        peer.write(b"".join(frames.encode(FrameKind.REQUEST, request, number) for number in range(1, 3_001)))
        answered = [(await peer.receive(FrameKind.RESPONSE)).correlation for _ in range(3_000)]
        assert sorted(answered) == list(range(1, 3_001))
        assert there.broker.most == 8


async def test_whoever_does_not_read_answers_is_not_asked_for_more_questions() -> None:
    settings = {"write_high_bytes": 64 * KIB, "answers_bytes_max": 128 * KIB, "keep_alive_ms": 60_000}
    async with open_listener(**settings) as there, neighbour(there), await Peer.greet(there) as peer:
        session = await there.session_of(peer)
        peer.stop_reading()
        ping = frames.encode(FrameKind.PING, correlation=1) * 1_000
        while not session._pause_reasons & PauseReason.ANSWERS:
            peer.write(ping)
            await peer.flushed()
            await asyncio.sleep(0)
        for _ in range(100):
            peer.write(ping)
            await asyncio.sleep(0)
        assert session.connection.queued_bytes < 128 * KIB + 64 * KIB
        peer.resume_reading()
        while session._pause_reasons:
            await peer.receive(FrameKind.PONG)


async def test_whoever_fetches_and_does_not_read_gets_no_more_read_for_him() -> None:
    settings = {"write_high_bytes": 256 * KIB, "keep_alive_ms": 60_000}
    async with open_listener(**settings) as there, neighbour(there) as busy, await Peer.greet(there) as peer:
        await fill_topic(peer, total_bytes=4 * MIB)
        session = await there.session_of(peer)
        peer.stop_reading()
        fetch = requests.encode(requests.Fetch(TOPIC, 0, Position("earliest"), bytes_max=MIB))
        peer.write(b"".join(frames.encode(FrameKind.FETCH, fetch, number) for number in range(1, 201)))
        await there.until(lambda: not session.connection.writable)
        later = busy.rounds + 10
        await there.until(lambda: busy.rounds >= later)
        assert session.in_flight > 100
        assert session.connection.queued_bytes <= 256 * KIB + 6 * MIB
        peer.resume_reading()
        seen = {(await peer.receive(FrameKind.FETCHED)).correlation for _ in range(200)}
        assert seen == set(range(1, 201))


async def fill_topic(peer: Peer, total_bytes: int, batch_bytes: int = 100_000) -> int:
    await peer.create_topic()
    producer = await peer.open_producer()
    batch = one_batch(producer, count=10, payload_bytes=batch_bytes // 10)
    for _ in range(total_bytes // len(batch)):
        peer.publish(producer.handle, batch)
        await peer.receive(FrameKind.PUBLISHED)
    return total_bytes // len(batch)


# -- connections -------------------------------------------------------------------------------------------------------


async def come_in(there: NativeListener) -> Peer | DanubeError:
    """Connect; return the welcomed peer, or the error."""
    try:
        return await Peer.greet(there)
    except DanubeError as error:
        return error
    except (AssertionError, ConnectionError):
        return Unavailable("closed without a word")


@pytest.mark.parametrize(
    "limits", [{"connections_per_address_max": 20}, {"connections_max": 20}], ids=["address", "all"]
)
async def test_connections_over_the_limit_are_refused_and_places_come_free_again(limits: dict[str, int]) -> None:
    """None of the peers answers a PING, so none may come as long as this lasts."""
    async with open_listener(keep_alive_ms=600_000, **limits) as there, neighbour(there):
        outcomes = [await come_in(there) for _ in range(150)]
        peers = [one for one in outcomes if isinstance(one, Peer)]
        errors = [one for one in outcomes if isinstance(one, DanubeError)]
        assert len(peers) == 19
        assert all(isinstance(error, (Full, Unavailable)) for error in errors)
        assert any(isinstance(error, Full) and "raise the limit" in error.message for error in errors)
        assert there.server.connections == 20
        for peer in peers:
            peer.close()
        await there.until(lambda: there.server.connections == 1)
        async with await Peer.greet(there) as peer:
            await peer.request(namespaces.ListNamespaces(), NamePage)


async def test_connections_leave_descriptors_for_the_log(monkeypatch):
    monkeypatch.setattr("pydanube.gateway.native.server.raise_descriptor_limit", lambda _wanted: 64)
    monkeypatch.setattr("pydanube.gateway.native.server.open_descriptors", lambda: 16)
    async with open_listener() as native:
        outcomes = [await come_in(native) for _ in range(12)]
        assert sum(isinstance(one, Peer) for one in outcomes) == 4
        assert any(isinstance(one, Full) and "has 4 connections" in one.message for one in outcomes)


@pytest.mark.parametrize(
    ("limit", "in_use", "places"), [(64, 13, 11), (256, 20, 164), (1024, 20, 704), (20_000, 20, 19_680), (40, 30, 1)]
)
def test_connections_get_what_files_do_not_need(limit: int, in_use: int, places: int) -> None:
    assert plan_connections(limit, in_use).connections == places
    assert in_use + log_files(limit) < limit


@pytest.mark.parametrize(
    ("host", "counted"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_whom_a_connection_is_counted_for(host: str, counted: str) -> None:
    assert counted_address(host) == counted


async def test_a_connection_has_a_limited_number_of_handles() -> None:
    async with open_listener(handles_max=3) as there, await Peer.greet(there) as peer:
        await peer.create_topic()
        for _ in range(3):
            await peer.open_producer()
        with pytest.raises(Full, match="open another one"):
            await peer.open_producer()


# -- memory ------------------------------------------------------------------------------------------------------------


async def test_announcing_huge_frames_takes_no_memory(native):
    async with neighbour(native):
        before = resident_bytes()
        peers = [await Peer.greet(native) for _ in range(200)]
        front = frames.encode_front(FrameKind.PUBLISH, frames.PUBLISH.pack(1), 32 * MIB, 1)
        for peer in peers:
            peer.write(front + bytes(1_000))
            await peer.flushed()
        await native.until(lambda: all(s.connection._announced or len(s.consumers) for s in native.sessions))
        assert resident_bytes() - before < 40 * MIB
        for peer in peers:
            peer.close()


async def test_small_batches_between_large_frames_do_not_keep_those_in_memory(native):
    async with neighbour(native), await Peer.greet(native) as peer:
        await peer.create_topic()
        producer = await peer.open_producer()
        batch, ping = one_batch(producer, count=1), frames.encode(FrameKind.PING, bytes(200_000))
        before = resident_bytes()
        for _ in range(500):
            peer.publish(producer.handle, batch)
            peer.write(ping)
            seen = {(await peer.receive(FrameKind.PUBLISHED, FrameKind.PONG)).kind for _ in range(2)}
            assert seen == {FrameKind.PUBLISHED, FrameKind.PONG}
        assert resident_bytes() - before < 40 * MIB, "of 100 MB that went through"


async def test_large_frames_that_never_end_are_bounded_over_all_connections() -> None:
    async with open_listener(large_frames_bytes=8 * MIB) as there, neighbour(there):
        peers = [await Peer.greet(there) for _ in range(10)]
        front = frames.encode_front(FrameKind.PUBLISH, frames.PUBLISH.pack(1), 16 * MIB, 1)
        for peer in peers:
            peer.write(front, bytes(2 * MIB))
        await there.until(lambda: there.server.connections < 11)
        assert there.server._large_frames.used <= 8 * MIB
        for peer in peers:
            peer.close()
        await there.until(lambda: there.server._large_frames.used == 0)


async def test_a_consumer_that_stops_reading_costs_little_and_slows_nobody() -> None:
    async with open_listener(keep_alive_ms=60_000) as there, neighbour(there), await Peer.greet(there) as producing:
        await producing.create_topic()
        producer = await producing.open_producer()
        async with await Peer.greet(there) as stuck, await Peer.greet(there) as reading:
            asleep = await stuck.subscribe("asleep")
            awake = await reading.subscribe("awake")
            stuck.credit(asleep.handle, 2**40, 2**40)
            reading.credit(awake.handle, 2**40, 2**40)
            stuck.stop_reading()
            session = await there.session_of(stuck)
            batch = one_batch(producer, count=10, payload_bytes=20_000)
            before = resident_bytes()
            for index in range(1_000):
                producing.publish(producer.handle, batch)
                await producing.receive(FrameKind.PUBLISHED)
                delivered = await reading.receive(FrameKind.DELIVER)
                assert len(delivered.body) == len(batch)
                if index % 100 == 99:
                    reading.ack(awake.handle, (0, (index + 1) * 10), flags=frames.FLAG_CUMULATIVE)
            assert not session.connection.writable
            assert session.connection.queued_bytes <= MIB + len(batch) + 64 * KIB
            assert resident_bytes() - before < 100 * MIB, "of 200 MB that went through"
            stuck.resume_reading()
            for _ in range(1_000):
                await stuck.receive(FrameKind.DELIVER)


async def test_consumers_of_one_connection_share_it_when_it_is_slow() -> None:
    """A consumer with a long backlog does not starve the one behind it on the same connection."""
    async with open_listener(write_high_bytes=64 * KIB) as there, await Peer.greet(there) as peer:
        batch_count = await fill_topic(peer, total_bytes=8 * MIB)
        handles = [(await peer.subscribe(name)).handle for name in ("one", "two", "three")]
        for handle in handles:
            peer.credit(handle, 2**40, 2**40)
        first_half: list[int] = []
        for _ in range(3 * batch_count // 2):
            frame = await peer.receive(FrameKind.DELIVER)
            first_half.append(frames.decode_deliver_head(frame.head).handle)
        assert set(first_half) == set(handles)
