"""Each log frees only its own ledgers, and no start refuses or deletes what another broker does meanwhile."""

import pytest
from broker_harness import TOPIC, BrokerClient, created
from cluster_harness import Node, World

from pydanube.broker.registry import records
from pydanube.broker.registry.tombstones import KnownLedgers
from pydanube.core.access import ANONYMOUS
from pydanube.metadata.packing import pack
from pydanube.metadata.store import Put, list_all
from pydanube.model.errors import NotFound
from pydanube.model.names import TopicName
from pydanube.model.settings.sections import LogSettings
from waiting import until

OTHER = TopicName.parse("/default/other")
SMALL = LogSettings(file_bytes=16 << 10, group_bytes_max=4 << 10)


async def tombstones(world: World) -> dict[int, bytes]:
    return {records.dropped_of_key(one.key): one.value async for one in list_all(world.store, records.DROPPED)}


async def ledgers(world: World) -> set[int]:
    return {records.ledger_of_key(one.key)[1] async for one in list_all(world.store, records.LEDGERS)}


async def filled(node: Node, topic: TopicName = TOPIC) -> None:
    client = await created(node.broker, topic)
    consumer = await client.subscribe()
    await client.publish(await client.producer(), [b"1", b"2"])
    await consumer.wait_for(2)
    await consumer.ack((0, 1))


async def test_a_topic_that_another_broker_deletes_while_this_one_is_down_is_freed_by_its_next_start(world):
    a = await world.start("a", wal=SMALL)
    await filled(a)
    await a.stop()
    held = await ledgers(world)
    b = await world.start("b", wal=SMALL)
    await b.broker.topics.delete(ANONYMOUS, TOPIC)
    assert await tombstones(world) == dict.fromkeys(held, b"log-a"), "for the broker whose log holds them"
    await b.partitions._tombstones.sweep()
    assert (await tombstones(world)).keys() == held, "they are not this broker's to remove"
    a = await world.start("a", wal=SMALL)
    assert a.broker._registry.find_topic(TOPIC) is None
    with pytest.raises(NotFound):
        await a.client.fetch()
    await filled(a, OTHER)
    client = BrokerClient(a.broker, OTHER)
    producer = await client.producer()
    for _ in range(40):
        await client.publish(producer, [b"x" * 1000])
    await a.writer.trim()
    await a.partitions._tombstones.sweep()
    assert not await a.writer.held(sorted(held))
    assert not held & (await tombstones(world)).keys()


async def test_a_deletion_that_was_only_marked_frees_the_ledgers_of_this_log(world):
    a = await world.start("a")
    await filled(a)
    topic_id = a.broker._registry.topic(TOPIC).topic_id
    await a.stop()
    own = await ledgers(world)
    known = await KnownLedgers.load(world.store, "log-a".__eq__)
    assert known.needed == own
    await a.broker._registry.delete_topic(TOPIC)
    known = await KnownLedgers.load(world.store, "log-a".__eq__)
    assert (known.needed, known.dropped, known.lost) == (set(), own, {})
    assert await world.store.get(records.deleted_key(topic_id)) is not None


async def test_a_start_looks_only_at_the_ledgers_of_its_own_log(world):
    a = await world.start("a")
    await filled(a)
    own = await ledgers(world)
    lost = Put(records.ledger_key(99, 0, 5000), pack(records.LedgerRecord("data", 1, "log-c")))
    await world.store.transact([], [lost, Put(records.dropped_key(5001), b"log-c")])
    known = await KnownLedgers.load(world.store, a.member.is_own_log)
    assert (known.needed, known.dropped, known.lost) == (own, set(), {})
    await a.stop()
    a = await world.start("a")
    assert await a.client.read_all() == [(0, b"1"), (1, b"2")]
    assert {5000} < await ledgers(world)
    assert await a.partitions._tombstones.sweep() == 0
    assert await tombstones(world) == {5001: b"log-c"}


@pytest.mark.parametrize("prefix", [records.LEDGERS, records.TOPICS, records.DELETED, records.DROPPED])
async def test_a_topic_that_another_broker_deletes_while_this_one_starts_is_neither_lost_nor_needed_for_ever(
    world, prefix
):
    a = await world.start("a")
    await filled(a)
    own = await ledgers(world)
    await a.stop()
    b = await world.start("b")
    world.store.interrupt(prefix, lambda: b.broker.topics.delete(ANONYMOUS, TOPIC))
    known = await KnownLedgers.load(world.store, "log-a".__eq__)
    assert world.store.before is None, "the deletion happened in between"
    assert not known.lost
    assert known.needed | known.dropped == own
    a = await world.start("a")
    assert a.broker._registry.find_topic(TOPIC) is None


async def test_a_topic_that_another_broker_creates_while_this_one_starts_keeps_its_ledgers(world):
    b = await world.start("b")
    world.store.interrupt(records.LEDGERS, lambda: filled(b, OTHER))
    a = await world.start("a")
    listed = await ledgers(world)
    assert listed
    await a.stop()
    assert await ledgers(world) == listed
    assert await BrokerClient(b.broker, OTHER).read_all() == [(0, b"1"), (1, b"2")]


async def test_the_tombstone_of_a_ledger_that_this_broker_still_writes_to_stays(world):
    """Another broker deleted the topic, and this one has not learnt it: a record that is written after the tombstone
    was removed would refuse the next start."""
    a = await world.start("a")
    a.partitions._cluster.owners._changed.clear()
    await filled(a)
    partition = await a.partitions.get(TOPIC, 0)
    ledger_id = max(partition.ledger_ids)
    await world.store.transact([], [Put(records.dropped_key(ledger_id), b"log-a")])
    a.writer.held = nothing_held  # its files were released
    await a.partitions._tombstones.sweep()
    assert ledger_id in await tombstones(world)
    a.partitions.abandon(a.broker._registry.topic(TOPIC).topic_id, 0, NotFound("deleted"))
    await until(lambda: not a.partitions._being_closed)
    await a.partitions._tombstones.sweep()
    assert ledger_id not in await tombstones(world)


async def nothing_held(_ledger_ids) -> set[int]:
    return set()


async def test_a_partition_whose_record_another_broker_removed_with_the_topic_is_closed(world):
    a = await world.start("a")
    await filled(a)
    b = await world.start("b")
    partition = await a.partitions.get(TOPIC, 0)
    await b.broker.topics.delete(ANONYMOUS, TOPIC)
    await until(lambda: partition.closed is not None)
    assert not a.partitions.of(TOPIC)
