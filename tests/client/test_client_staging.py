"""Staged writes: nobody sees what is staged, a commit publishes all of it once, and lost connections change nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from flaky_wire import wired_broker
from test_client_connection import broker_that, nonsense, silence

import pydanube
from pydanube.client.connection.connection import Connection
from pydanube.client.connection.servers import BrokerAddress
from pydanube.client.producing import staged_writes as staging
from pydanube.client.producing.staged_writes import HEAD_BYTES, Part
from pydanube.codec.batch import Batch, encode
from pydanube.codec.native import frames, requests
from pydanube.codec.native.frames import Frame, FrameKind
from pydanube.model.errors import Invalid, NotFound, Refused, StaleEpoch, Unavailable
from pydanube.model.limits import BATCH_BYTES_MAX, CONTROL_BYTES_MAX, STAGES_PER_COMMIT_MAX
from pydanube.runtime.clock import SystemClock
from waiting import until

TOPIC = "/default/orders"
NOW = 1_700_000_000_000_000


def batch_of(*payloads: bytes) -> bytearray:
    return encode(payloads, publish_times=NOW)


async def stored(client: pydanube.Client, topic: str = TOPIC) -> Counter[tuple[int, bytes]]:
    """Return how often each message is stored, by partition."""
    found: Counter[tuple[int, bytes]] = Counter()
    for partition in await client.partitions(topic):
        async with client.reader(topic, partition=partition.index, start="earliest", end="latest") as reader:
            async for message in reader:
                found[partition.index, message.payload] += 1
    return found


async def staged(
    client: pydanube.Client, batches: Iterable[tuple[int, bytearray]], *, run: str = "run", batch_id: int = 0
) -> list[str]:
    async with client.stager("query", run=run, batch_id=batch_id) as stager:
        for partition, batch in batches:
            await stager.add(TOPIC, partition, batch)
        return await stager.finish()


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "PART_BYTES", 1000)


async def test_what_is_staged_is_seen_after_the_commit_and_not_before(client: pydanube.Client) -> None:
    await client.create_topic(TOPIC, partitions=3)
    stages = await staged(client, [(0, batch_of(b"a", b"b")), (2, batch_of(b"c")), (0, batch_of(b"d"))])
    assert len(stages) == 1
    assert not await stored(client)
    done = await client.commit_stages("query", "run", 0, stages, wait_ms=5_000)
    assert (done.repeated, done.applied) == (False, True)
    assert await stored(client) == Counter({(0, b"a"): 1, (0, b"b"): 1, (0, b"d"): 1, (2, b"c"): 1})


async def test_many_parts_keep_their_order(client, topic, small_parts):
    rows = [b"%04d" % number * 30 for number in range(60)]
    stages = await staged(client, [(0, batch_of(*rows[at : at + 3])) for at in range(0, 60, 3)])
    assert len(stages) > 5
    assert len(set(stages)) == len(stages)
    await client.commit_stages("query", "run", 0, stages, wait_ms=5_000)
    async with client.reader(TOPIC, start="earliest", end="latest") as reader:
        assert [message.payload async for message in reader] == rows


async def test_a_commit_that_is_repeated_changes_nothing(client, topic):
    stages = await staged(client, [(0, batch_of(b"once"))])
    again = await staged(client, [(0, batch_of(b"once"))])
    await client.commit_stages("query", "run", 0, stages, wait_ms=5_000)
    for named in (stages, again):
        done = await client.commit_stages("query", "run", 0, named, wait_ms=5_000)
        assert (done.repeated, done.applied) == (True, True)
    assert await stored(client) == Counter({(0, b"once"): 1})


async def test_a_later_run_fences_the_one_before(client, topic):
    old = await staged(client, [(0, batch_of(b"old"))], run="first")
    new = await staged(client, [(0, batch_of(b"new"))], run="second")
    with pytest.raises(StaleEpoch, match="first"):
        await client.commit_stages("query", "first", 0, old)
    with pytest.raises(StaleEpoch, match="first"):
        await staged(client, [(0, batch_of(b"late"))], run="first")
    await client.commit_stages("query", "second", 0, new, wait_ms=5_000)
    assert await stored(client) == Counter({(0, b"new"): 1})


async def test_queries_are_listed_and_can_be_forgotten(client, topic):
    for batch_id in (0, 7):
        stages = await staged(client, [(0, batch_of(b"x"))], batch_id=batch_id)
        await client.commit_stages("query", "run", batch_id, stages, wait_ms=5_000)
    (query,) = await client.staged_queries()
    assert (query.query, query.run, query.last_batch_id, query.pending) == ("query", "run", 7, 0)
    await client.forget_staged_query("query")
    assert await client.staged_queries() == []
    with pytest.raises(NotFound, match="query"):
        await client.forget_staged_query("query")


async def test_a_topic_is_created_when_it_is_asked_for_unless_that_is_not_wanted(client: pydanube.Client) -> None:
    await client.create_topic("/default/three", partitions=3)
    async with client.stager("query", run="run", batch_id=0) as stager:
        assert await stager.partitions("/default/three") == 3
        with pytest.raises(NotFound, match="/default/new"):
            await stager.partitions("/default/new", create=False)
        assert await stager.partitions("/default/new") == 1


async def test_a_topic_that_grew_is_noticed(url: str, client: pydanube.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "ROUTE_SECONDS", 0.0)
    await client.create_topic(TOPIC, partitions=2)
    async with pydanube.connect(url) as other:
        for wanted in (2, 5):
            async with other.stager("query", run="run", batch_id=0) as stager:
                assert await stager.partitions(TOPIC) == wanted
            await client.grow_topic(TOPIC, 5)


async def test_a_stage_that_is_refused_is_told_to_whoever_is_next(client: pydanube.Client, small_parts: None) -> None:
    async with client.stager("query", run="run", batch_id=0) as stager:
        await stager.add("/default/nowhere", 0, batch_of(bytes(2000)))
        with pytest.raises(NotFound, match="/default/nowhere"):
            await stager.finish()
    async with client.stager("query", run="run", batch_id=0) as stager:
        await stager.add("/default/nowhere", 0, batch_of(bytes(2000)))
        with pytest.raises(NotFound, match="/default/nowhere"):
            await stager.add("/default/nowhere", 0, batch_of(bytes(2000)))


async def test_a_finished_stager_takes_nothing_more(client: pydanube.Client) -> None:
    async with client.stager("query", run="run", batch_id=0) as stager:
        assert await stager.finish() == []
        with pytest.raises(Refused, match="this stager is finished"):
            await stager.add(TOPIC, 0, batch_of(b""))
        with pytest.raises(Refused, match="this stager is finished"):
            await stager.finish()
    with pytest.raises(Refused, match="this stager is closed"):
        await stager.partitions(TOPIC)


async def test_what_makes_no_sense_is_refused_before_it_is_sent(client: pydanube.Client) -> None:
    for wrong in ({"query": ""}, {"run": "\n"}, {"batch_id": -1}, {"batch_id": 2**31}, {"task": -1}):
        with pytest.raises(Invalid, match=next(iter(wrong)).replace("_", ".")):
            client.stager(**({"query": "q", "run": "r", "batch_id": 0} | wrong))  # type: ignore[arg-type]
    with pytest.raises(Invalid, match=f"10001 stages in one commit are over the limit of {STAGES_PER_COMMIT_MAX}"):
        await client.commit_stages("q", "r", 0, ["stage"] * (STAGES_PER_COMMIT_MAX + 1))
    async with client.stager("q", run="r", batch_id=0) as stager:
        with pytest.raises(Invalid, match="over the limit"):
            await stager.add(TOPIC, 0, bytes(BATCH_BYTES_MAX + 1))


async def test_connections_that_end_while_staging_neither_lose_nor_repeat(client, wire, small_parts):
    rows = [b"%06d" % number * 20 for number in range(300)]
    await client.create_topic(TOPIC)
    async with client.stager("query", run="run", batch_id=0) as stager:
        for number, row in enumerate(rows):
            if number % 50 == 25:
                cuts = number // 50
                await until(lambda cuts=cuts: wire.connections > cuts)  # it is connected again
                wire.cut()
            await stager.add(TOPIC, 0, batch_of(row))
        stages = await stager.finish()
    wire.answers_flow = False
    committing = asyncio.create_task(client.commit_stages("query", "run", 0, stages, wait_ms=5_000))
    async with pydanube.connect(f"danube://{wire.target}") as other:
        await until(lambda: _committed(other))
    wire.answers_flow = True
    wire.cut()
    assert (await committing).repeated
    async with client.reader(TOPIC, start="earliest", end="latest") as reader:
        assert [message.payload async for message in reader] == rows


async def _committed(client: pydanube.Client) -> bool:
    return any(query.last_batch_id == 0 for query in await client.staged_queries())


async def test_stages_of_many_share_the_window_of_their_connection(tmp_path: Path, small_parts: None) -> None:
    async with (
        wired_broker(tmp_path / "data", limits_publish_window_bytes="64KiB") as wire,
        pydanube.connect(wire.url) as client,
    ):
        await client.create_topic(TOPIC)
        batch = batch_of(bytes(40_000))

        async def one(task: int) -> list[str]:
            async with client.stager("query", run="run", batch_id=0, task=task) as stager:
                for _ in range(3):
                    await stager.add(TOPIC, 0, batch)
                return await stager.finish()

        async with client.producer(TOPIC, batch_bytes=30_000) as producer:
            sending = asyncio.create_task(producer.send_many([bytes(20_000)] * 20))
            names = await asyncio.gather(*map(one, range(5)))
            await sending
        assert len({name for each in names for name in each}) == 15
        assert wire.connections == 1


def test_the_blocking_form_is_the_same(tmp_path: Path) -> None:
    with pydanube.testing.broker_thread(tmp_path) as url, pydanube.connect_blocking(url) as client:
        with client.stager("query", run="run", batch_id=0, task=1, attempt=2) as stager:
            assert stager.partitions(TOPIC) == 1
            stager.add(TOPIC, 0, batch_of(b"a"))
            stages = stager.finish()
        assert client.commit_stages("query", "run", 0, stages, wait_ms=5_000).applied
        assert [query.query for query in client.staged_queries()] == ["query"]
        client.forget_staged_query("query")
        with client.reader(TOPIC, start="earliest", end="latest") as reader:
            assert [message.payload for message in reader] == [b"a"]


# -- one connection ---------------------------------------------------------------------------------------------------


def sample(number: int = 0) -> tuple[requests.Stage, list[bytes]]:
    part = Part()
    part.add(TOPIC, 1, batch_of(b"x" * number))
    return requests.Stage("query", "run", 0, 0, 0, 0, part.sections()), [bytes(one) for one in part.body()]


async def test_a_stage_is_one_frame_with_its_batches_aligned() -> None:
    seen: list[Frame] = []

    def keep(frame: Frame) -> bytes:
        seen.append(frame)
        return frames.encode(FrameKind.RESPONSE, requests.encode(requests.Staged("name")), frame.correlation)

    part = Part()
    batches = [batch_of(b"x" * size) for size in (1, 100, 64)]
    for number, batch in enumerate(batches):
        part.add(TOPIC, number % 2, batch)
    stage = requests.Stage("query", "run", 3, 4, 5, 6, part.sections())
    async with broker_that(keep) as address:
        connection = await Connection.open(BrokerAddress.parse(address), SystemClock())
        assert (await connection.stage(stage, part.body())).stage == "name"
        await connection.close()
    (frame,) = seen
    assert frame.kind is FrameKind.STAGE
    head = requests.decode(frame.head, requests.Stage)
    assert head == stage
    place = 0
    found = []
    for section in head.sections:
        for length in section.lengths:
            assert Batch.open(frame.body[place : place + length]).count == 1
            found.append((section.partition, bytes(frame.body[place : place + length])))
            place += -(-length // 64) * 64
    assert place == len(frame.body)
    assert found == [(0, bytes(batches[0])), (0, bytes(batches[2])), (1, bytes(batches[1]))]


async def ended(answers: Callable[[Frame], bytes], *, cut: bool = False) -> list[type[object]]:
    """What three stages over a window for one of them end with; all of its room is there again afterwards."""
    async with broker_that(answers) as address:
        connection = await Connection.open(BrokerAddress.parse(address), SystemClock())
        connection.window.limit = 1000
        staging = [asyncio.create_task(connection.stage(*sample(600))) for _ in range(3)]
        if cut:
            await until(lambda: not connection.window.has_room(600))
            connection._framed.abort()
        results = await asyncio.gather(*staging, return_exceptions=True)
        await connection.close()
        assert connection.window.has_room(10**9)
    return [type(result) for result in results]


async def test_stages_that_wait_for_room_hear_that_the_connection_ended() -> None:
    assert await ended(silence, cut=True) == [Unavailable] * 3


async def test_refused_stages_give_their_room_back() -> None:
    def refuse(frame: Frame) -> bytes:
        return frames.encode(FrameKind.ERROR, requests.encode(requests.Failure(3, "no")), frame.correlation)

    assert await ended(refuse) == [Refused] * 3


async def test_an_answer_that_cannot_be_read_ends_the_connection_and_gives_the_room_back() -> None:
    assert await ended(nonsense) == [Unavailable] * 3


def test_parts_stay_within_a_frame_however_many_partitions_they_hold() -> None:
    part = Part()
    batch = batch_of(b"")
    topic = "/default/" + "ü" * 190
    partition = 0
    while part.has_room(len(batch)):
        part.add(topic, partition, batch)
        partition += 1
    assert part.full
    head = requests.encode(requests.Stage("q" * 200, "r" * 200, 2**31 - 1, 2**31 - 1, 2**63 - 1, 9, part.sections()))
    assert HEAD_BYTES // 2 < len(head) < part.head_bytes + 1_000 < CONTROL_BYTES_MAX
    full = Part()
    assert full.has_room(BATCH_BYTES_MAX)
    full.add(topic, 0, bytes(BATCH_BYTES_MAX - 64))
    assert full.has_room(64)
    assert not full.has_room(65)
