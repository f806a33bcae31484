"""Partitions of a broker that is lost: others take them over without its log, and what it has left is kept."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from broker_harness import TOPIC, BrokerClient, created
from cluster_harness import Node, World, open_world, session_key
from tiering_harness import upload_all

from pydanube.broker.partitions.stored_partition import PROMISED_BLOCK
from pydanube.broker.registry import records
from pydanube.broker.registry.records import PartitionRecord
from pydanube.codec.batch import Batch
from pydanube.core.access import ANONYMOUS
from pydanube.metadata.packing import pack, unpack
from pydanube.metadata.store import Put, list_all
from pydanube.model.errors import NotFound, NotOwner, Refused, Unavailable
from pydanube.model.ledgers import CursorEntry
from pydanube.model.leftovers import Loss
from pydanube.model.limits import METADATA_TRANSACTION_BYTES_MAX
from pydanube.model.names import TopicName
from pydanube.model.positions import Position
from pydanube.model.topics import AckLevel
from pydanube.operations.topics import SalvageTopic
from pydanube.runtime.objects.memory import MemoryStore
from waiting import until

SALVAGED = TopicName.parse("/default/salvaged")
SINCE_US = 1_790_000_000_000_000


async def record_of(world: World, node: Node) -> PartitionRecord:
    topic_id = node.broker._registry.topic(TOPIC).topic_id
    found = await world.store.get(records.partition_key(topic_id, 0))
    return unpack(found.value, PartitionRecord)


async def publish(node: Node, *payloads: bytes, topic: TopicName = TOPIC) -> list[int]:
    client = BrokerClient(node.broker, topic)
    producer = await client.producer()
    offsets = [(await client.publish(producer, [one])).base_offset for one in payloads]
    producer.close()
    return offsets


async def lose(world: World, node: Node, name: str = "a", since_us: int = SINCE_US) -> None:
    """End the session of a broker and its process: nothing is closed in an orderly way."""
    await world.sessions.end(name, since_us)
    await node.stop()


@asynccontextmanager
async def lost_broker(directory: Path, level: AckLevel = AckLevel.DURABLE) -> AsyncIterator[tuple[World, Node]]:
    """Yield a cluster whose broker a is lost: offsets 0 to 2 of its topic are uploaded, 3 and 4 are not."""
    async with open_world(directory) as world:
        world.objects = MemoryStore()
        a = await world.start("a", follows=True)
        await a.client.create(ack_level=level)
        assert await publish(a, b"0", b"1", b"2") == [0, 1, 2]
        await upload_all(a.broker)
        assert await publish(a, b"3", b"4") == [3, 4]
        b = await world.start("b", follows=True)
        await lose(world, a)
        yield world, b


async def take_over(node: Node) -> list[Loss]:
    return await node.broker.topics.take_over(ANONYMOUS, TOPIC, None, True)


async def test_lists_of_topics_name_the_broker_that_partitions_wait_for(tmp_path):
    async with lost_broker(tmp_path) as (_world, b):
        statistics = b.broker.statistics
        listed = [one async for chunk in statistics.all(ANONYMOUS) for one in chunk]
        (found,) = await statistics.add_others(ANONYMOUS, listed)
        assert "waits for broker 'a', which is away since 2026-09-21" in found.health
        await take_over(b)
        (found,) = await statistics.add_others(ANONYMOUS, listed)
        assert found.health == "ok"


# -- taking over -------------------------------------------------------------------------------------------------------


async def test_the_partition_of_a_lost_broker_waits_for_it(tmp_path):
    async with lost_broker(tmp_path) as (_world, b):
        with pytest.raises(Unavailable, match=r"waits for broker 'a', which is away since 2026-09-21"):
            await b.client.fetch()


async def test_without_accepting_the_loss_nothing_is_taken_over_and_the_answer_says_what_would_be_lost(tmp_path):
    async with lost_broker(tmp_path) as (world, b):
        before = await record_of(world, b)
        with pytest.raises(Refused, match=r"broker 'a' .* from offset 3 on, at most up to 999999; .*--accept-loss"):
            await b.broker.topics.take_over(ANONYMOUS, TOPIC, 0, False)
        assert await record_of(world, b) == before


async def test_another_broker_goes_on_behind_all_offsets_that_were_given_out(tmp_path):
    async with lost_broker(tmp_path) as (world, b):
        assert await take_over(b) == [Loss(0, 3, PROMISED_BLOCK, "a")]
        assert await b.client.read_all() == [(0, b"0"), (1, b"1"), (2, b"2")]
        (offset,) = await publish(b, b"new")
        assert offset == PROMISED_BLOCK  # which is what the lost broker had promised: no offset is used twice
        assert (await b.client.read_all())[3:] == [(offset, b"new")]
        described = (await b.broker.topics.describe(ANONYMOUS, TOPIC)).partitions[0]
        assert described.gaps.ranges == [(3, PROMISED_BLOCK)]
        assert described.missing_offsets == PROMISED_BLOCK - 3
        assert described.messages == 4
        assert (b.broker.metrics.taken_over, b.broker.metrics.given_up_offsets) == (1, PROMISED_BLOCK - 3)
        record = await record_of(world, b)
        assert (record.owner, record.log, record.epoch) == ("b", "log-b", 3)


async def test_a_reader_skips_what_was_given_up(tmp_path):
    async with lost_broker(tmp_path) as (_world, b):
        await take_over(b)
        sink = await b.client.subscribe()
        await publish(b, b"new")
        assert [payload for _, payload in await sink.wait_for(4)] == [b"0", b"1", b"2", b"new"]
        fetched = await b.client.fetch(Position("offset", 3))
        assert Batch.open(fetched.batches[0], stamped=True).payloads == [b"new"]


async def test_the_taker_recovers_from_its_own_log_after_a_restart(tmp_path):
    async with lost_broker(tmp_path) as (world, b):
        await take_over(b)
        await publish(b, b"new")
        found = await b.client.read_all()
        await lose(world, b, "b")
        b = await world.start("b", follows=True)
        assert await b.client.read_all() == found
        assert await publish(b, b"next") == [PROMISED_BLOCK + 1]


async def test_a_written_partition_goes_on_behind_its_reserved_offsets(tmp_path):
    async with lost_broker(tmp_path, AckLevel.WRITTEN) as (_world, b):
        assert await take_over(b) == [Loss(0, 3, 1000, "a")]
        assert await publish(b, b"new") == [1000]


async def test_a_broker_that_restarts_with_its_log_leaves_no_gap(world):
    world.objects = MemoryStore()
    a = await world.start("a", follows=True)
    await a.client.create(ack_level=AckLevel.DURABLE)
    await publish(a, b"0", b"1")
    await lose(world, a)
    a = await world.start("a", follows=True)
    assert await publish(a, b"2") == [2]
    assert (await a.broker.topics.describe(ANONYMOUS, TOPIC)).partitions[0].missing_offsets == 0


async def test_a_broker_that_stops_in_order_promises_no_more_than_it_gave_out(world):
    world.objects = MemoryStore()
    a = await world.start("a", follows=True)
    await a.client.create(ack_level=AckLevel.DURABLE)
    await publish(a, b"0", b"1")
    b = await world.start("b", follows=True)
    assert (await record_of(world, b)).promised_end == PROMISED_BLOCK
    await a.stop()
    world.sessions.away["a"] = SINCE_US
    assert await take_over(b) == [Loss(0, 0, 2, "a")]
    assert await publish(b, b"new") == [2]


@pytest.mark.parametrize("level", [AckLevel.DURABLE, AckLevel.WRITTEN])
async def test_where_everything_is_uploaded_no_loss_needs_to_be_accepted(world, level):
    world.objects = MemoryStore()
    a = await world.start("a", follows=True)
    await a.client.create(ack_level=level)
    await publish(a, b"0", b"1")
    await upload_all(a.broker)
    b = await world.start("b", follows=True)
    await a.stop()  # in order, so that the record says where its offsets end
    world.sessions.away["a"] = SINCE_US
    (loss,) = await b.broker.topics.take_over(ANONYMOUS, TOPIC, None, False)
    assert loss.is_empty and loss.broker == "a"
    assert await publish(b, b"2") == [2]
    assert await b.client.read_all() == [(0, b"0"), (1, b"1"), (2, b"2")]
    assert (await b.broker.topics.describe(ANONYMOUS, TOPIC)).partitions[0].missing_offsets == 0
    assert await b.broker.leftovers.describe(ANONYMOUS) == []


async def test_a_broker_that_was_back_for_a_moment_may_have_given_out_more(world, monkeypatch):
    """What was known when the command began does not count: the record that is replaced does."""
    world.objects = MemoryStore()
    a = await world.start("a", follows=True)
    await a.client.create(ack_level=AckLevel.DURABLE)
    await publish(a, b"0")
    await upload_all(a.broker)
    b = await world.start("b", follows=True)
    await a.stop()
    world.sessions.away["a"] = SINCE_US
    takeover, taken = b.broker._takeover, b.broker._takeover._take_all

    async def be_slow(*arguments):
        back = await world.start("a", follows=True)
        assert await publish(back, b"1") == [1]
        await lose(world, back)
        return await taken(*arguments)

    monkeypatch.setattr(takeover, "_take_all", be_slow)
    with pytest.raises(Refused, match=r"from offset 1 on.*--accept-loss"):
        await b.broker.topics.take_over(ANONYMOUS, TOPIC, None, False)
    a = await world.start("a", follows=True)
    assert await a.client.read_all() == [(0, b"0"), (1, b"1")]


async def test_a_topic_that_grows_past_what_was_promised_promises_more(world, monkeypatch):
    monkeypatch.setattr("pydanube.broker.partitions.stored_partition.PROMISED_BLOCK", 3)
    a = await world.start("a", follows=True)
    await a.client.create(ack_level=AckLevel.DURABLE)
    for end in range(1, 12):
        await publish(a, b"x")
        promised = (await record_of(world, a)).promised_end
        assert end <= promised < end + 3


async def test_a_broker_alone_promises_nothing(client, broker, topic):
    await client.publish(await client.producer(), [b"x"])
    found = await broker._store.get(records.partition_key(broker._registry.topic(TOPIC).topic_id, 0))
    assert found is not None
    assert b"promised_end" not in found.value


async def test_cursors_continue_where_the_object_store_knows_them(world):
    world.objects = MemoryStore()
    b = await world.start("b", follows=True)  # before a, so that a is not the coordinator of this world: it is "a"
    a = await world.start("a", follows=True)
    await a.client.create(ack_level=AckLevel.DURABLE)
    await publish(a, b"0", b"1", b"2")
    await upload_all(a.broker)
    sink = await a.client.subscribe()
    await sink.wait_for(3)
    await sink.ack((0, 2))
    assert a.broker._tiers is not None
    assert a.broker._tiers.positions is not None
    await a.broker._tiers.positions.write()
    await lose(world, a)
    await until(lambda: b.broker._registry.find_topic(TOPIC) is not None)
    await take_over(b)
    sink = await b.client.subscribe()
    assert await sink.wait_for(1) == [(2, b"2")]


async def test_cursors_that_do_not_fit_into_one_transaction_are_taken_over_in_several(tmp_path, monkeypatch):
    scattered = [(offset, offset + 1) for offset in range(2_000_000, 2_050_000, 2)]
    cursors = [CursorEntry(number, 1, scattered) for number in range(1, 13)]

    async def cursors_of(keys):
        return dict.fromkeys(keys, cursors)

    async with lost_broker(tmp_path) as (world, b):
        monkeypatch.setattr(b.broker._takeover, "_cursors_of", cursors_of)
        await take_over(b)
        topic_id = b.broker._registry.topic(TOPIC).topic_id
        kept = [one async for one in list_all(world.store, records.restored_of(topic_id, 0))]
        assert len(kept) == len(cursors)
        assert sum(len(one.value) for one in kept) > METADATA_TRANSACTION_BYTES_MAX


# -- refusals ----------------------------------------------------------------------------------------------------------


async def test_a_partition_whose_broker_lives_is_not_taken_over(world):
    world.objects = MemoryStore()
    a = await world.start("a", follows=True)
    await a.client.create(ack_level=AckLevel.DURABLE)
    await publish(a, b"0")
    b = await world.start("b", follows=True)
    with pytest.raises(Refused, match=r"belongs to broker 'a', which lives"):
        await b.broker.topics.take_over(ANONYMOUS, TOPIC, 0, True)
    with pytest.raises(Refused, match=r"no partition of topic /default/orders waits"):
        await take_over(b)
    with pytest.raises(NotFound, match="there is no partition 7"):
        await b.broker.topics.take_over(ANONYMOUS, TOPIC, 7, True)


async def test_a_stored_partition_needs_no_takeover(tmp_path):
    async with lost_broker(tmp_path, AckLevel.STORED) as (_world, b):
        with pytest.raises(Refused, match="others take it over by themselves"):
            await b.broker.topics.take_over(ANONYMOUS, TOPIC, 0, True)
        assert [payload for _, payload in await b.client.read_all()] == [b"0", b"1", b"2", b"3", b"4"]


async def test_a_broker_alone_takes_nothing_over(broker):
    await BrokerClient(broker).create()
    with pytest.raises(Refused, match="no part of a cluster"):
        await broker.topics.take_over(ANONYMOUS, TOPIC, None, True)


async def test_a_broker_that_returns_before_the_last_step_keeps_its_partition(tmp_path):
    async with lost_broker(tmp_path) as (world, b):

        async def come_back() -> None:
            await world.store.transact([], [Put(session_key("a"), b"999")])

        world.store.interrupt("/partitions/", come_back)
        with pytest.raises(Unavailable, match="was not taken over"):
            await take_over(b)
        record = await record_of(world, b)
        assert (record.log, record.lost) == ("log-a", [])


async def test_what_a_broker_wrote_when_it_was_alone_cannot_be_taken_over(tmp_path):
    async with lost_broker(tmp_path) as (world, b):
        record = await record_of(world, b)
        record.promised_end = -1
        topic_id = b.broker._registry.topic(TOPIC).topic_id
        await world.store.transact([], [Put(records.partition_key(topic_id, 0), pack(record))])
        with pytest.raises(Refused, match=r"which offsets broker 'a' gave out is not known"):
            await take_over(b)
        assert (await record_of(world, b)).log == "log-a"


# -- by policy ---------------------------------------------------------------------------------------------------------


async def test_a_policy_takes_over_what_has_waited_long_enough_and_nothing_else(tmp_path, monkeypatch):
    async with lost_broker(tmp_path) as (world, b):
        await b.broker._takeover.round()
        assert (await record_of(world, b)).log == "log-a"  # the default: never
        world.sessions.away["a"] = world.clock.now_us() - 10**12  # by the clock of a coordinator before this one
        await b.broker.policies.set(ANONYMOUS, TOPIC, {"takeover_after_s": 30})
        await b.broker._takeover.round()
        assert (await record_of(world, b)).log == "log-a", "clocks of brokers need not agree"
        now = world.clock.monotonic
        monkeypatch.setattr(world.clock, "monotonic", lambda: now() + 50)
        await b.broker.policies.set(ANONYMOUS, TOPIC, {"takeover_after_s": 3600})
        await b.broker._takeover.round()
        assert (await record_of(world, b)).log == "log-a"
        await b.broker.policies.set(ANONYMOUS, TOPIC, {"takeover_after_s": 30})
        await b.broker._takeover.round()
        assert (await record_of(world, b)).log == ""
        assert await publish(b, b"new") == [PROMISED_BLOCK]


# -- leftovers ---------------------------------------------------------------------------------------------------------


async def offsets_left(node: Node) -> list[tuple[int, int]]:
    found = await node.broker.leftovers.describe(ANONYMOUS)
    return [(one.start_offset, one.end_offset) for one in found]


async def salvage(node: Node, drop: bool = False, broker: str = "") -> int:
    published = 0
    while True:
        asked = SalvageTopic(topic=TOPIC, partition=0, to=SALVAGED, drop=drop, broker=broker)
        step = (await node.broker.leftovers.salvage(ANONYMOUS, asked)).step
        published += step.published
        if step.is_last:
            return published


async def test_what_a_returning_broker_has_is_kept_and_listed_and_never_served(tmp_path):
    async with lost_broker(tmp_path) as (world, b):
        await take_over(b)
        await publish(b, b"new")
        served = await b.client.read_all()
        (away,) = await b.broker.leftovers.describe(ANONYMOUS)
        assert (away.broker, away.start_offset, away.end_offset) == ("a", 3, PROMISED_BLOCK)
        assert away.state == "the broker is away"
        for _ in range(2):  # and again after another restart
            a = await world.start("a", follows=True)
            with pytest.raises(NotOwner, match="belongs to broker 'b'"):
                await a.client.fetch()
            (left,) = await a.broker.leftovers.describe(ANONYMOUS)
            assert (left.topic, left.partition, left.broker) == (str(TOPIC), 0, "a")
            assert (left.start_offset, left.end_offset, left.state) == (3, 5, "ok")
            assert left.bytes > 0
            assert left.taken_at > 0
            await a.broker.leftovers.tidy()
            await a.broker._partitions._trim()
            await a.stop()
        assert await b.client.read_all() == served


async def test_leftovers_are_salvaged_once_with_where_they_were(tmp_path):
    async with lost_broker(tmp_path) as (world, b):
        await take_over(b)
        await publish(b, b"new")
        a = await world.start("a", follows=True)
        target = await created(a.broker, SALVAGED)
        assert await salvage(a) == 2
        assert await salvage(a) == 0
        assert [payload for _, payload in await target.read_all()] == [b"3", b"4"]
        fetched = await target.fetch()
        attributes = [one for view in fetched.batches for one in Batch.open(view, stamped=True).attributes]
        assert attributes == [
            {"x-original-topic": str(TOPIC), "x-original-partition": "0", "x-original-offset": "3"},
            {"x-original-topic": str(TOPIC), "x-original-partition": "0", "x-original-offset": "4"},
        ]
        assert await offsets_left(a) == [(3, 5)]
        assert await salvage(a, drop=True) == 0
        assert await offsets_left(a) == []
        assert (await record_of(world, b)).lost == []
        with pytest.raises(NotFound, match="has no leftovers"):
            await salvage(a)
        await a.stop()
        a = await world.start("a", follows=True)  # its log may hold dropped ledgers: that refuses no start
        assert await b.client.read_all() == [(0, b"0"), (1, b"1"), (2, b"2"), (PROMISED_BLOCK, b"new")]


async def test_a_salvage_that_was_interrupted_before_it_was_recorded_publishes_nothing_twice(tmp_path):
    async with lost_broker(tmp_path) as (world, b):
        await take_over(b)
        await publish(b, b"new")
        a = await world.start("a", follows=True)
        target = await created(a.broker, SALVAGED)
        await publish(a, b"warm", topic=SALVAGED)

        async def fail() -> None:
            raise Unavailable("the metadata is away")

        world.store.interrupt("/partitions/", fail)
        with pytest.raises(Unavailable, match="the metadata is away"):
            await salvage(a)
        await salvage(a)
        assert [payload for _, payload in await target.read_all()] == [b"warm", b"3", b"4"]


async def test_leftovers_do_not_go_back_into_their_own_topic_nor_where_nothing_is_kept(tmp_path):
    async with lost_broker(tmp_path) as (world, b):
        await take_over(b)
        leftovers = b.broker.leftovers
        with pytest.raises(Refused, match="cannot be salvaged into the same topic: name another one"):
            await leftovers.salvage(ANONYMOUS, SalvageTopic(topic=TOPIC, partition=0, to=TOPIC))
        with pytest.raises(NotFound, match="topic /default/salvaged does not exist: create it first"):
            await leftovers.salvage(ANONYMOUS, SalvageTopic(topic=TOPIC, partition=0, to=SALVAGED))
        await BrokerClient(b.broker, SALVAGED).create(reliable=False)
        with pytest.raises(Refused, match="is not reliable and keeps nothing"):
            await leftovers.salvage(ANONYMOUS, SalvageTopic(topic=TOPIC, partition=0, to=SALVAGED))
        other = TopicName.parse("/default/other")
        await BrokerClient(b.broker, other).create()
        with pytest.raises(Unavailable, match=r"broker 'a' has the leftovers .* and is away"):
            await leftovers.salvage(ANONYMOUS, SalvageTopic(topic=TOPIC, partition=0, to=other))
        with pytest.raises(NotFound, match="there is no partition 4"):
            await leftovers.salvage(ANONYMOUS, SalvageTopic(topic=TOPIC, partition=4, to=other))
        with pytest.raises(NotFound, match="has no leftovers"):
            await leftovers.salvage(ANONYMOUS, SalvageTopic(topic=SALVAGED, partition=0, to=other))
        assert len((await record_of(world, b)).lost) == 1


async def test_leftovers_without_a_message_are_dropped_when_their_broker_returns(world):
    world.objects = MemoryStore()
    a = await world.start("a", follows=True)
    await a.client.create(ack_level=AckLevel.DURABLE)
    await publish(a, b"0", b"1")
    await upload_all(a.broker)
    b = await world.start("b", follows=True)
    await a.stop()
    await take_over(b)
    assert await publish(b, b"new") == [2]
    assert (await b.broker.topics.describe(ANONYMOUS, TOPIC)).partitions[0].missing_offsets == 0
    a = await world.start("a", follows=True)
    await a.broker.leftovers.tidy()
    assert (await record_of(world, b)).lost == []
    assert await publish(b, b"more") == [3]


async def test_a_partition_that_was_taken_over_twice_keeps_both_parts(tmp_path):
    async with lost_broker(tmp_path) as (world, b):
        await take_over(b)
        await publish(b, b"of b")
        c = await world.start("c", follows=True)
        await lose(world, b, "b")
        await take_over(c)
        (offset,) = await publish(c, b"of c")
        assert offset == 2 * PROMISED_BLOCK
        assert [payload for _, payload in await c.client.read_all()] == [b"0", b"1", b"2", b"of c"]
        a = await world.start("a", follows=True)
        b = await world.start("b", follows=True)
        assert await offsets_left(a) == [(3, 5), (PROMISED_BLOCK, 2 * PROMISED_BLOCK)]
        await BrokerClient(a.broker, SALVAGED).create()
        with pytest.raises(Refused, match=r"several brokers .* choose one with --broker \(a, b\)"):
            await salvage(a)
        assert await salvage(a, broker="a") == 2
        await salvage(a, drop=True, broker="a")
        assert len((await record_of(world, c)).lost) == 1
        assert [one.broker for one in await b.broker.leftovers.describe(ANONYMOUS)] == ["b"]
        await lose(world, c, "c")
        c = await world.start("c", follows=True)
        assert [payload for _, payload in await c.client.read_all()] == [b"0", b"1", b"2", b"of c"]
