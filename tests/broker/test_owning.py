"""Who may take a partition: one transaction compares the record, the taker's session, and that of the former owner."""

import asyncio

import msgspec
import pytest
from broker_harness import TOPIC, BrokerClient, open_broker, open_topic
from cluster_harness import FOUNDER, Node, World, session_key

from pydanube.broker.partitions.ownership import Ownership
from pydanube.broker.registry import records
from pydanube.broker.registry.ids import LEDGER_COUNTER, IdBlocks
from pydanube.broker.registry.records import PartitionRecord
from pydanube.metadata.packing import pack, unpack
from pydanube.metadata.store import Put, list_all
from pydanube.model.errors import NotOwner, StaleEpoch, Unavailable
from pydanube.model.ledgers import CursorEntry
from pydanube.model.limits import METADATA_TRANSACTION_BYTES_MAX
from pydanube.model.positions import EARLIEST
from pydanube.model.topics import AckLevel
from waiting import until

TOPIC_ID = 7


async def ownership_of(world: World, name: str) -> Ownership:
    """Return the ownership of partition 0 for a broker that has a session and nothing else."""
    member = world.sessions.members.get(name) or await world.sessions.begin(name)
    return Ownership(world.store, IdBlocks(world.store, LEDGER_COUNTER, 10), TOPIC_ID, 0, member)


async def record_of(world: World, topic_id: int = TOPIC_ID) -> PartitionRecord:
    found = await world.store.get(records.partition_key(topic_id, 0))
    return unpack(found.value, PartitionRecord)


async def write(world: World, value: bytes, topic_id: int = TOPIC_ID) -> None:
    await world.store.transact([], [Put(records.partition_key(topic_id, 0), value)])


# -- taking ------------------------------------------------------------------------------------------------------------


async def test_cursors_that_do_not_fit_into_one_transaction_are_kept_in_several(world):
    scattered = [(offset, offset + 1) for offset in range(2_000_000, 2_050_000, 2)]
    owned = await ownership_of(world, "a")
    await owned.acquire()
    await owned.open_ledger("data")
    await owned.leave_ledgers([], [CursorEntry(number, 1, scattered) for number in range(1, 13)])
    kept = [one async for one in list_all(world.store, records.restored_of(TOPIC_ID, 0))]
    assert len(kept) == 12
    assert sum(len(one.value) for one in kept) > METADATA_TRANSACTION_BYTES_MAX
    assert (await record_of(world)).log == ""


async def test_a_partition_is_not_taken_from_a_broker_that_lives(world):
    first, second = await ownership_of(world, "a"), await ownership_of(world, "b")
    await first.acquire()
    with pytest.raises(NotOwner, match="belongs to broker 'a'") as refusal:
        await second.acquire()
    assert refusal.value.owner == "a.test:6650"
    assert (await record_of(world)).owner == "a"
    await first.move_start(5)


async def test_a_partition_without_ledgers_is_taken_when_the_session_of_its_owner_is_over(world):
    first, second = await ownership_of(world, "a"), await ownership_of(world, "b")
    await first.acquire()
    await world.sessions.end("a", learns=False)
    await second.acquire()
    assert (await record_of(world)).owner == "b"
    assert (first.epoch, second.epoch) == (1, 2)


async def test_a_taker_whose_own_session_ends_before_it_writes_takes_nothing(world):
    second = await ownership_of(world, "b")
    world.store.interrupt("/partitions/", lambda: world.sessions.end("b", learns=False))
    with pytest.raises(Unavailable):
        await second.acquire()
    assert await world.store.get(records.partition_key(TOPIC_ID, 0)) is None


async def test_a_taker_that_was_told_too_early_that_the_former_session_is_over_takes_nothing(world):
    first, second = await ownership_of(world, "a"), await ownership_of(world, "b")
    await first.acquire()
    incarnation = (await world.store.get(session_key("a"))).value
    await world.sessions.end("a", learns=False)

    async def come_back() -> None:
        await world.store.transact([], [Put(session_key("a"), incarnation)])

    world.store.interrupt("/partitions/", come_back)
    with pytest.raises(NotOwner):
        await second.acquire()
    assert (await record_of(world)).owner == "a"


async def test_a_broker_takes_its_own_partition_again_within_its_session_and_in_a_new_one(world):
    await (await ownership_of(world, "a")).acquire()
    again = await ownership_of(world, "a")
    await again.acquire()
    assert again.epoch == 2
    await world.sessions.end("a")
    await world.sessions.begin("a")
    later = await ownership_of(world, "a")
    await later.acquire()
    assert later.epoch == 3
    assert (await record_of(world)).incarnation == world.sessions.living["a"].incarnation


async def test_of_two_takers_at_once_one_gets_the_partition_and_the_other_is_told_who(world):
    first, second = await ownership_of(world, "a"), await ownership_of(world, "b")
    world.store.interrupt("/partitions/", first.acquire)
    with pytest.raises(NotOwner, match="'a'"):
        await second.acquire()
    assert (await record_of(world)).owner == "a"


async def test_taking_clears_the_assignment_and_keeps_fields_that_this_release_does_not_know(world):
    await write(world, msgspec.msgpack.encode({"assigned": "a", "reserved_end": 70, "colour": "green"}))
    first = await ownership_of(world, "a")
    await first.acquire()
    await first.move_start(5)
    await first.open_ledger("data")
    stored = msgspec.msgpack.decode((await world.store.get(records.partition_key(TOPIC_ID, 0))).value)
    assert stored["colour"] == "green"
    assert "assigned" not in stored
    assert (stored["reserved_end"], stored["start_offset"], stored["epoch"]) == (70, 5, 1)


# -- the log decides ---------------------------------------------------------------------------------------------------


async def test_a_partition_with_ledgers_waits_for_the_broker_that_writes_their_log(world):
    first, second = await ownership_of(world, "a"), await ownership_of(world, "b")
    await first.acquire()
    await first.open_ledger("data")
    assert (await record_of(world)).log == "log-a"
    assert [one.log for _, one in await first.ledgers()] == ["log-a"]
    await world.sessions.end("a", since_us=1_700_000_000_000_000, learns=False)
    before = await record_of(world)
    with pytest.raises(Unavailable, match=r"log of broker 'a', which is away since 2023-11-14"):
        await second.acquire()
    assert await record_of(world) == before, "trying changes nothing"
    with pytest.raises(Unavailable):  # also if its topic is `stored` by now: that log may hold what it had before
        await second.acquire(is_logged=False)
    assert await record_of(world) == before


async def test_the_second_ledger_of_a_partition_does_not_change_its_record(world):
    first = await ownership_of(world, "a")
    await first.acquire()
    await first.open_ledger("data")
    before = await world.store.get(records.partition_key(TOPIC_ID, 0))
    await first.open_ledger("state")
    assert await world.store.get(records.partition_key(TOPIC_ID, 0)) == before


@pytest.mark.parametrize("name", ["a", "b"])
async def test_ledgers_of_an_earlier_release_belong_to_the_founder(world, name):
    await write(world, msgspec.msgpack.encode({"epoch": 4, "owner": "node"}))
    ledger = Put(records.ledger_key(TOPIC_ID, 0, 3), msgspec.msgpack.encode({"kind": "data", "epoch": 4}))
    await world.store.transact([], [ledger])
    taker = await ownership_of(world, name)
    if name == FOUNDER:
        await taker.acquire()
        assert (await record_of(world)).log == "log-a", "so that later readers need not guess"
        taker.check_ledgers(await taker.ledgers())
    else:
        with pytest.raises(Unavailable, match="log of broker 'node'"):
            await taker.acquire()
        assert (await record_of(world)).epoch == 4


async def test_a_partition_that_an_earlier_release_never_wrote_to_may_be_taken_by_any_broker(world):
    await write(world, msgspec.msgpack.encode({"epoch": 4, "owner": "node"}))
    await (await ownership_of(world, "b")).acquire()
    assert (await record_of(world)).owner == "b"


async def test_metadata_of_an_earlier_release_opens_as_before(tmp_path):
    async with open_topic(tmp_path) as client:
        await client.publish(await client.producer(), [b"one", b"two"])
        store = client.broker._registry._store
        for prefix, names in (("/partitions/", ["incarnation", "assigned", "log"]), (records.LEDGERS, ["log"])):
            for one in [one async for one in list_all(store, prefix)]:
                fields = msgspec.msgpack.decode(one.value)
                assert not fields.keys() & set(names), "a broker alone writes what earlier releases did"
    async with open_broker(tmp_path) as broker:
        assert await BrokerClient(broker).read_all() == [(0, b"one"), (1, b"two")]


# -- ledgers of another log --------------------------------------------------------------------------------------------


async def published(node: Node, *payloads: bytes, create: bool = True, **config) -> int:
    """Publish, and return the id of the topic."""
    if create:
        await node.client.create(**config)
    await node.client.publish(await node.client.producer(), list(payloads))
    return node.broker._registry.topic(TOPIC).topic_id


async def test_a_ledger_of_another_log_is_never_taken_for_an_empty_one(world):
    """A record without a log cannot be: it is written with the first ledger. The ledger alone must be enough."""
    a = await world.start("a")
    topic_id = await published(a, b"acked")
    await a.stop()
    listed = [one async for one in list_all(world.store, records.ledgers_of(topic_id))]
    assert listed
    await write(world, pack(PartitionRecord(epoch=1, incarnation=1, assigned="b")), topic_id)
    b = await world.start("b")
    for _ in range(2):
        with pytest.raises(Unavailable, match="log-a"):
            await b.client.fetch()
    assert [one async for one in list_all(world.store, records.ledgers_of(topic_id))] == listed


async def test_acked_offsets_are_never_given_out_again_and_a_returning_broker_finds_its_bytes(world):
    a = await world.start("a")
    await published(a, b"one", b"two")
    await a.stop()
    b = await world.start("b")
    with pytest.raises(Unavailable, match="broker 'a'"):
        await b.client.fetch()
    with pytest.raises(Unavailable, match="broker 'a'"):
        await b.client.producer()
    a = await world.start("a")
    assert await a.client.read_all() == [(0, b"one"), (1, b"two")]
    assert (await a.client.publish(await a.client.producer(), [b"three"])).base_offset == 2


async def test_a_memory_topic_moves_when_its_owner_is_gone_and_no_offset_is_used_twice(world):
    a = await world.start("a")
    topic_id = await published(a, b"gone", ack_level=AckLevel.MEMORY)
    b = await world.start("b")
    await world.sessions.end("a", learns=False)
    a.member.is_held = False
    record = await record_of(world, topic_id)
    await until(lambda: b.partitions._cluster.owners.owner(topic_id, 0) is None)
    answer = await b.client.publish(await b.client.producer(), [b"new"])
    assert answer.base_offset == record.reserved_end > 0
    assert (await record_of(world, topic_id)).log == ""


# -- losing it ---------------------------------------------------------------------------------------------------------


async def replaced(world: World, a: Node, topic_id: int) -> None:
    """Have another broker take the partition, as after a long pause of this one, which does not know it yet."""
    former = await record_of(world, topic_id)
    taken = msgspec.structs.replace(former, epoch=former.epoch + 1, owner="b", incarnation=99)
    await write(world, pack(taken), topic_id)


async def frozen(world: World) -> Node:
    """Start a broker that learns nothing by watch."""
    a = await world.start("a")
    a.partitions._cluster.owners._changed.clear()
    return a


async def test_no_request_that_meets_a_newer_owner_gets_the_error_that_ends_a_producer(world):
    a = await frozen(world)
    topic_id = await published(a, b"1", b"2", b"3")
    consumer = await a.client.subscribe()
    partition = await a.partitions.get(TOPIC, 0)
    calls = {
        "trim": lambda: partition.trim(1),
        "truncate": lambda: partition.truncate(1),
        "open ledger": lambda: partition.ownership.open_ledger("state"),
        "drop ledgers": lambda: partition.ownership.drop_ledgers([1]),
        "reserve": lambda: partition.ownership.reserve(1000),
        "doubts": partition.ownership.verify,
        "unload": lambda: a.partitions.unload(TOPIC),
    }
    await replaced(world, a, topic_id)
    for name, call in calls.items():
        try:
            await call()
        except StaleEpoch as error:
            raise AssertionError(f"{name}: {error}") from None
        except NotOwner:
            continue
        assert name == "unload", "there is nothing left to unload"
    assert isinstance(consumer.error, NotOwner)
    assert "taken by broker 'b'" in consumer.error.message


@pytest.mark.parametrize("level", [AckLevel.DURABLE, AckLevel.WRITTEN, AckLevel.MEMORY])
async def test_a_publish_that_meets_a_newer_owner_is_answered_not_owner_and_the_partition_is_closed(world, level):
    a = await frozen(world)
    await a.client.create(ack_level=level)
    producer = await a.client.producer()
    reading = asyncio.create_task(a.client.fetch(wait_ms=60_000))
    consumer = await a.client.subscribe()
    topic_id = a.broker._registry.topic(TOPIC).topic_id
    await replaced(world, a, topic_id)
    with pytest.raises(NotOwner, match="taken by broker 'b'"):
        await a.client.publish(producer, [b"x"])
    assert isinstance(consumer.error, NotOwner)
    assert not a.partitions.of(TOPIC)
    with pytest.raises(NotOwner):
        await a.client.publish(producer, [b"x"])
    with pytest.raises(NotOwner):
        await asyncio.wait_for(reading, 60)


async def test_an_ack_that_meets_a_newer_owner_is_answered_not_owner(world):
    a = await frozen(world)
    topic_id = await published(a, b"1")
    consumer = await a.client.subscribe()
    await consumer.wait_for(1)
    await replaced(world, a, topic_id)
    errors = []
    consumer.consumer.ack([(0, 1)], False, errors.append)  # the first ack opens a ledger
    await until(lambda: bool(errors))
    assert isinstance(errors[0], NotOwner)
    assert isinstance(consumer.error, NotOwner)


async def test_a_watched_change_of_the_owner_closes_the_partition_for_readers_too(world):
    a = await world.start("a")
    topic_id = await published(a, b"1")
    consumer = await a.client.subscribe()
    partition = await a.partitions.get(TOPIC, 0)
    await replaced(world, a, topic_id)
    await until(lambda: partition.closed is not None)
    assert isinstance(consumer.error, NotOwner)
    with pytest.raises(NotOwner):
        await partition.fetch(EARLIEST, 1 << 20, 0)


async def test_a_record_that_others_changed_without_taking_the_partition_is_no_loss(world):
    a = await frozen(world)
    topic_id = await published(a, b"1")
    former = await record_of(world, topic_id)
    await write(world, pack(msgspec.structs.replace(former, assigned="a")), topic_id)
    partition = await a.partitions.get(TOPIC, 0)
    await partition.trim(1)
    assert (await record_of(world, topic_id)).start_offset == 1
    assert (await a.client.publish(await a.client.producer(), [b"2"])).base_offset == 1


async def test_what_is_on_its_way_to_the_log_when_the_session_is_lost_is_not_acked_and_found_again(world):
    a = await world.start("a")
    await published(a, b"first")
    producer = await a.client.producer("p")
    await a.client.publish(producer, [b"second"], sequence=0)
    await world.sessions.end("a", learns=False)
    answer = a.client.publish(producer, [b"third"], sequence=1)
    world.sessions.learn(a.member.session)
    assert answer.done(), "at once, not when the log has written it"
    with pytest.raises(NotOwner, match="session of broker 'a' has ended"):
        await answer
    assert not a.partitions.of(TOPIC)
    await world.sessions.begin("a")
    producer = await a.client.come_back(producer, "p")
    again = await a.client.publish(producer, [b"third"], sequence=1)
    assert (again.base_offset, again.duplicate) == (2, True)
    assert await a.client.read_all() == [(0, b"first"), (1, b"second"), (2, b"third")]


async def test_a_lost_partition_is_opened_again_only_after_the_log_wrote_what_was_on_its_way(world):
    """Otherwise recovery would not see it, and give its offsets to other messages."""
    a = await world.start("a")
    await published(a, b"1")
    await a.partitions.get(TOPIC, 0)
    synced, sync = [], a.writer.sync
    a.writer.sync = synced.append
    await world.sessions.end("a")
    await world.sessions.begin("a")
    reading = asyncio.create_task(a.client.read_all())
    await until(lambda: bool(synced))
    taken = await record_of(world, a.broker._registry.topic(TOPIC).topic_id)
    for _ in range(100):
        await asyncio.sleep(0)
    assert not reading.done()
    assert taken.epoch == 1, "nobody has begun to open it"
    a.writer.sync = sync
    for done in synced:
        done(None)
    assert await reading == [(0, b"1")]


async def test_a_partition_that_was_being_opened_when_the_session_ended_is_not_served(world):
    a = await world.start("a")
    await published(a, b"1")
    await a.partitions.unload(TOPIC)

    async def lose() -> None:
        await world.sessions.end("a")
        await world.sessions.begin("a")

    world.store.interrupt(records.LEDGERS, lose)  # the ledgers are read after the partition was taken
    with pytest.raises(Unavailable):
        await a.client.fetch()
    assert await a.client.read_all() == [(0, b"1")]
