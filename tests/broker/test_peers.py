"""Calls from one broker to another over native connections, and what becomes of them when the other fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from broker_harness import TOPIC
from cluster_harness import Sessions, TalkingCluster, talking_cluster

from pydanube.codec.batch import encode
from pydanube.codec.native import frames, requests
from pydanube.codec.native.frames import FrameKind
from pydanube.core.access import ANONYMOUS
from pydanube.core.staging import STAGED_PRODUCER
from pydanube.gateway.native import NativePeers
from pydanube.gateway.native import peers as under_test
from pydanube.model.addresses import BrokerAddresses
from pydanube.model.cluster import BrokerSession
from pydanube.model.dead_letters import LETTER_PRODUCER
from pydanube.model.errors import Corrupt, Invalid, NotFound, NotOwner, Unavailable
from pydanube.model.names import TopicName
from pydanube.model.policies import PolicyReport
from pydanube.model.settings.sections import LimitSettings
from pydanube.model.topics import BrokerDescription
from pydanube.operations import Request, brokers, namespaces
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.tasks import Tasks
from waiting import until

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


def a_batch(producer_id: int = 7, sequence: int = -1, payload: bytes = b"x", epoch: int = 0) -> memoryview:
    return memoryview(
        encode([payload], publish_times=1, producer_id=producer_id, producer_epoch=epoch, first_sequence=sequence)
    )


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[TalkingCluster]:
    async with talking_cluster(tmp_path, "ab") as opened:
        yield opened


async def test_a_broker_asks_another_over_one_connection(cluster):
    a, b = cluster["a"], cluster["b"]
    calls = [a.peers.request("b", brokers.DescribeBroker(), BrokerDescription) for _ in range(20)]
    assert {info.node for info in await asyncio.gather(*calls)} == {"b"}
    assert b.server.connections == 1
    with pytest.raises(NotFound, match="/default/nowhere"):
        await a.peers.request("b", namespaces.GetPolicies(target="/default/nowhere"), PolicyReport)


async def test_a_forwarded_batch_keeps_its_producer_and_sequence(cluster):
    await cluster.create(partitions=2)
    a, b = cluster["a"], cluster["b"]
    first = await a.peers.publish("b", TOPIC, 1, a_batch(7, sequence=0, payload=b"one"))
    again = await a.peers.publish("b", TOPIC, 1, a_batch(7, sequence=0, payload=b"one"))
    other = await a.peers.publish("b", TOPIC, 1, a_batch(8, sequence=0, payload=b"two"))
    assert (first.base_offset, first.duplicate) == (0, False)
    assert (again.base_offset, again.duplicate) == (0, True)
    assert (other.base_offset, other.owner_epoch) == (1, first.owner_epoch)
    assert await b.client.read_all(1) == [(0, b"one"), (1, b"two")]


async def test_brokers_show_each_other_that_they_may_write_dead_letters(cluster):
    await cluster.create(partitions=2)
    a, b = cluster["a"], cluster["b"]
    await a.peers.publish("b", TOPIC, 1, a_batch(LETTER_PRODUCER))
    assert await b.client.read_all(1) == [(0, b"x")]
    with pytest.raises(Invalid, match="stands for a staged query"):
        await a.peers.publish("b", TOPIC, 1, a_batch(STAGED_PRODUCER | 7))


async def test_a_forwarded_batch_is_checked_like_any_other(cluster):
    await cluster.create(partitions=2)
    a = cluster["a"]
    with pytest.raises(Corrupt):
        await a.peers.publish("b", TOPIC, 1, memoryview(b"no batch at all" * 100))
    assert (await a.peers.publish("b", TOPIC, 1, a_batch())).base_offset == 0


async def test_an_ordinary_producer_may_not_publish_for_another(cluster):
    await cluster.create()
    client = cluster["a"].client
    producer = await client.producer()
    batch = encode([b"x"], publish_times=1, producer_id=producer.producer_id + 1)
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    client.broker.batches.publish(ANONYMOUS, producer, memoryview(batch), done.set_result)
    refused = await done
    assert isinstance(refused, Invalid) and "signed by" in refused.message


async def test_forwarding_to_a_broker_that_is_not_the_owner_names_the_owner(tmp_path: Path) -> None:
    async with talking_cluster(tmp_path, "abc") as cluster:
        await cluster.create(partitions=3)
        with pytest.raises(NotOwner) as refused:
            await cluster["a"].peers.publish("b", TOPIC, 2, a_batch())
        assert refused.value.owner == cluster.sessions.living["c"].addresses.native


async def test_a_batch_is_sent_again_after_its_partition_was_unloaded(cluster):
    await cluster.create(partitions=2)
    a, b = cluster["a"], cluster["b"]
    await a.peers.publish("b", TOPIC, 1, a_batch())
    await b.broker._partitions.unload(TOPIC)
    assert (await a.peers.publish("b", TOPIC, 1, a_batch())).base_offset == 1


async def test_batches_stay_within_the_window_of_the_other_broker(tmp_path: Path) -> None:
    payload = bytes(40_000)
    async with talking_cluster(tmp_path, "ab", settings=LimitSettings(publish_window_bytes=100_000)) as cluster:
        await cluster.create(partitions=2)
        a = cluster["a"]
        sent = [a.peers.publish("b", TOPIC, 1, a_batch(payload=payload)) for _ in range(20)]
        assert sorted(one.base_offset for one in await asyncio.gather(*sent)) == list(range(20))
        assert cluster["b"].server.connections == 1


async def test_handles_that_are_not_used_are_closed(cluster, monkeypatch):
    monkeypatch.setattr(under_test, "HANDLES_MAX", 2)
    await cluster.create(partitions=12)
    a, b = cluster["a"], cluster["b"]
    for index in range(1, 12, 2):
        await a.peers.publish("b", TOPIC, index, a_batch())
    await a.peers.request("b", brokers.DescribeBroker(), BrokerDescription)  # behind the requests to close
    (session,) = b.server._sessions
    assert len(session.producers) == 2


# -- brokers that fail -------------------------------------------------------------------------------------------------


@asynccontextmanager
async def strange_broker(serve: Serve, name: str = "b") -> AsyncIterator[tuple[NativePeers, Sessions]]:
    """Yield peers of which the one named "b" is played by `serve`, after the handshake as `name`."""
    sessions, ending = Sessions(), list[asyncio.StreamWriter]()
    await sessions.begin("a")

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ending.append(writer)
        await reader.readexactly(len(frames.PREAMBLE))
        await next_frame(reader)
        writer.write(frames.encode(FrameKind.WELCOME, requests.encode(requests.Welcome(version=1, broker=name))))
        await serve(reader, writer)

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    sessions.living["b"] = BrokerSession("b", 1, BrokerAddresses(f"{host}:{port}"))
    async with Tasks() as tasks:
        peers = NativePeers(sessions.members["a"], SystemClock(), tasks)
        try:
            yield peers, sessions
        finally:
            peers.close()
            for writer in ending:
                writer.close()
            server.close()


async def next_frame(reader: asyncio.StreamReader) -> frames.Frame:
    header = await reader.readexactly(frames.HEADER.size)
    rest = await reader.readexactly(frames.frame_length(memoryview(header)) - len(header))
    return frames.decode(memoryview(header + rest))


async def describe(peers: NativePeers) -> BrokerDescription:
    return await peers.request("b", brokers.DescribeBroker(), BrokerDescription)


async def test_a_broker_that_hangs_is_given_up_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Request, "seconds", 0.05)

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)

    async with strange_broker(hang) as (peers, _):
        with pytest.raises(Unavailable, match=r"broker 'b' at .* did not answer broker.describe within 0.05 s"):
            await describe(peers)
        with pytest.raises(Unavailable, match=r"broker 'b' at .* did not answer a batch within"):
            await peers.publish("b", TOPIC, 0, a_batch())


async def test_a_broker_that_dies_fails_every_call_that_waits() -> None:
    async def die(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(3):
            await next_frame(reader)
        writer.transport.abort()

    async with strange_broker(die) as (peers, _):
        found = await asyncio.gather(*(describe(peers) for _ in range(3)), return_exceptions=True)
        assert [type(one) for one in found] == [Unavailable] * 3
        assert all("broker 'b' was lost" in str(one) for one in found)


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00" * 64,
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        frames.encode(FrameKind.RESPONSE, b"\xc1 no such struct", 1),
        frames.encode(FrameKind.DELIVER, b""),
        frames.encode(FrameKind.PUBLISHED, b"short", 1),
    ],
)
async def test_a_broker_that_answers_garbage_is_unavailable(garbage: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await next_frame(reader)
        writer.write(garbage)
        await reader.read(-1)

    async with strange_broker(answer) as (peers, _):
        with pytest.raises(Unavailable, match="broker 'b' sent what cannot be read"):
            await describe(peers)


async def test_a_slow_broker_does_not_hold_up_the_answers_to_others() -> None:
    async def answer_backwards(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = [await next_frame(reader) for _ in range(3)]
        for one in reversed(asked):
            info = BrokerDescription(str(one.correlation), "b", "", "ok")
            writer.write(frames.encode(FrameKind.RESPONSE, requests.encode(info), one.correlation))
        await reader.read(-1)

    async with strange_broker(answer_backwards) as (peers, _):
        found = await asyncio.gather(*(describe(peers) for _ in range(3)))
        assert [one.version for one in found] == ["1", "2", "3"]


async def test_another_broker_at_the_address_is_not_taken_for_the_one_that_is_asked() -> None:
    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)

    async with strange_broker(never, name="other") as (peers, _):
        with pytest.raises(Unavailable, match=r"broker 'b' cannot be reached: at .* is broker 'other'"):
            await describe(peers)


async def test_a_broker_whose_session_ends_fails_at_once() -> None:
    asked = asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await next_frame(reader)
        asked.set()
        await reader.read(-1)

    async with strange_broker(hang) as (peers, sessions):
        waiting = asyncio.ensure_future(describe(peers))
        await asked.wait()
        await sessions.end("b")
        with pytest.raises(Unavailable, match="the session of broker 'b' is over"):
            await waiting
        with pytest.raises(Unavailable, match="broker 'b' has no session"):
            await describe(peers)


async def test_a_new_incarnation_gets_a_new_connection(cluster):
    a, sessions = cluster["a"], cluster.sessions.living
    await describe(a.peers)
    (former,) = cluster["b"].server._sessions
    sessions["b"] = BrokerSession("b", 99, sessions["b"].addresses)
    assert (await describe(a.peers)).node == "b"
    assert cluster["b"].server._sessions != {former}
    await until(lambda: cluster["b"].server.connections == 1)


async def test_a_broker_that_is_not_there_is_unavailable_by_name() -> None:
    sessions = Sessions()
    await sessions.begin("a")
    sessions.living["b"] = BrokerSession("b", 1, BrokerAddresses("127.0.0.1:1"))
    async with Tasks() as tasks:
        peers = NativePeers(sessions.members["a"], SystemClock(), tasks)
        with pytest.raises(Unavailable, match=r"broker 'b' cannot be reached: cannot connect to 127.0.0.1:1"):
            await describe(peers)
        with pytest.raises(Unavailable, match="broker 'c' has no session"):
            await peers.publish("c", TopicName.parse("/default/x"), 0, a_batch())
