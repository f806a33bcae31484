"""The log frees a ledger only when the metadata records that it was dropped; a kill between any two steps starts."""

import pytest
from broker_harness import TOPIC, BrokerClient, created, open_broker, open_topic
from metadata_harness import FaultyStore, deletes, puts

from pydanube.broker.registry import records
from pydanube.core.access import ANONYMOUS
from pydanube.metadata.embedded import EmbeddedStore
from pydanube.metadata.store import Delete, Put, list_all
from pydanube.model.errors import DanubeError, Refused
from pydanube.model.limits import METADATA_OPERATIONS_MAX
from pydanube.model.names import TopicName
from pydanube.model.settings.sections import LogSettings
from pydanube.runtime.clock import SystemClock

OTHER = TopicName.parse("/default/other")
SMALL = LogSettings(file_bytes=16 << 10, group_bytes_max=4 << 10)


async def keys(store, prefix: str) -> list[str]:
    return [one.key async for one in list_all(store, prefix)]


async def tombstones(broker) -> set[int]:
    return {records.dropped_of_key(key) for key in await keys(broker._registry._store, records.DROPPED)}


async def ledgers(broker) -> set[int]:
    return {records.ledger_of_key(key)[1] for key in await keys(broker._registry._store, records.LEDGERS)}


async def lose(directory, *prefixes: str) -> list[str]:
    """Remove keys from the metadata as damage would: without a tombstone."""
    async with await EmbeddedStore.open(directory / "metadata.db", SystemClock()) as store:
        lost = [key for prefix in prefixes for key in await keys(store, prefix)]
        for start in range(0, len(lost), METADATA_OPERATIONS_MAX):
            await store.transact([], [Delete(key) for key in lost[start : start + METADATA_OPERATIONS_MAX]])
    return lost


async def filled(directory, **options) -> int:
    """Create a topic with messages and a subscription, and return its id."""
    async with open_topic(directory, **options) as client:
        consumer = await client.subscribe()
        await client.publish(await client.producer(), [b"1", b"2"])
        await consumer.wait_for(2)
        await consumer.ack((0, 1))
        return client.broker._registry.topic(TOPIC).topic_id


def log_files(directory) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (directory / "wal").glob("*.log")}


# -- what is dropped leaves a tombstone --------------------------------------------------------------------------------


async def test_a_deleted_topic_leaves_a_tombstone_for_each_ledger_that_the_log_holds(tmp_path):
    await filled(tmp_path)
    async with open_broker(tmp_path) as broker:
        before = await ledgers(broker)
        assert before
        await broker.topics.delete(ANONYMOUS, TOPIC)
        assert await tombstones(broker) == before
        assert await ledgers(broker) == set()
    async with open_broker(tmp_path) as broker:
        known = await tombstones(broker)
        assert await broker._writer.held(sorted(before)) <= known, "what the log has not released meanwhile"
        assert await broker.topics.names(ANONYMOUS) == []


async def test_a_replaced_state_ledger_leaves_a_tombstone(tmp_path):
    await filled(tmp_path)
    async with open_broker(tmp_path) as broker:
        (former,) = {known for known in await ledgers(broker) if broker._writer.ledger(known).has_state}
        consumer = await BrokerClient(broker).subscribe()
        await consumer.wait_for(1)
        await consumer.ack((1, 2))
        partition = await broker._partitions.get(TOPIC, 0)
        while partition.state._former or former in await ledgers(broker):
            await consumer.ack((1, 2))
        assert former in await tombstones(broker)


async def test_a_tombstone_is_removed_once_the_log_has_released_the_files_of_its_ledger(tmp_path):
    async with open_broker(tmp_path, wal=SMALL) as broker:
        doomed, kept = BrokerClient(broker, OTHER), BrokerClient(broker)
        await doomed.create()
        await kept.create()
        producer = await doomed.producer()
        for n in range(100):
            await doomed.publish(producer, [b"x" * 1000], sequence=n)
        await broker.topics.delete(ANONYMOUS, OTHER)
        dropped = await tombstones(broker)
        assert dropped
        await kept.publish(await kept.producer(), [b"kept"])
        await broker._writer.trim()
        await broker._partitions._tombstones.sweep()
        held = await broker._writer.held(sorted(dropped))
        assert await tombstones(broker) == held
    async with open_broker(tmp_path, wal=SMALL) as broker:
        assert await BrokerClient(broker).read_all() == [(0, b"kept")]


async def test_a_start_removes_the_tombstones_of_what_the_log_no_longer_holds(tmp_path):
    await filled(tmp_path)
    async with open_broker(tmp_path) as broker:
        store = broker._registry._store
        for start in range(10_000, 10_300, 100):
            await store.transact([], [Put(records.dropped_key(number), b"") for number in range(start, start + 100)])
    async with open_broker(tmp_path) as broker:
        assert await broker._partitions._tombstones.sweep() == 300
        assert await tombstones(broker) == set()


async def test_a_sweep_sees_what_was_appended_and_is_not_written_yet(broker):
    """A topic that is deleted while its first record waits for the log: the tombstone must outlive the record."""
    writer = broker._writer
    done: list[DanubeError | None] = []
    for number in range(2000):
        writer.append(3, 70_000 + number, 0, 1, b"start", 0, 2, done.append)
    assert await writer.held([71_999, 80_000]) == {71_999}


# -- what is lost refuses the start ------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["all", "ledgers", "topic"])
async def test_metadata_that_lost_a_topic_is_refused_and_nothing_is_freed(tmp_path, what):
    topic_id = await filled(tmp_path)
    good = {path: path.read_bytes() for path in tmp_path.glob("metadata*")}
    prefixes = {
        "ledgers": [records.ledgers_of(topic_id)],
        "topic": [records.topic_key(TOPIC)],
        "all": [records.topic_key(TOPIC), records.ledgers_of(topic_id), records.partitions_of(topic_id)],
    }[what]
    assert await lose(tmp_path, *prefixes)
    before = log_files(tmp_path)
    for _ in range(2):
        with pytest.raises(Refused, match=r"ledger \d+ .*put back the newest good copy") as refusal:
            async with open_broker(tmp_path):
                pass
        if what != "topic":
            assert "wal-0000000001.log" in refusal.value.message
        assert log_files(tmp_path) == before, "nothing was freed, and no file was begun"
    for path in tmp_path.glob("metadata*"):
        path.unlink()
    for path, content in good.items():
        path.write_bytes(content)
    async with open_broker(tmp_path) as broker:
        assert [payload for _, payload in await BrokerClient(broker).read_all()] == [b"1", b"2"]
        place = (await broker.subscriptions.describe(ANONYMOUS, TOPIC, "billing")).partitions[0]
        assert place.position == 1


async def test_a_lost_state_ledger_is_refused_too(tmp_path):
    topic_id = await filled(tmp_path)
    async with open_broker(tmp_path) as broker:
        state = [known for known in await ledgers(broker) if broker._writer.ledger(known).has_state]
    await lose(tmp_path, records.ledger_key(topic_id, 0, state[0]))
    with pytest.raises(Refused, match=f"ledger {state[0]} "):
        async with open_broker(tmp_path):
            pass


# -- directories of earlier releases -----------------------------------------------------------------------------------


async def test_what_an_earlier_release_dropped_without_tombstones_is_recorded_once(tmp_path):
    topic_id = await filled(tmp_path)
    async with open_broker(tmp_path, stamped=False) as broker:
        client = await created(broker, OTHER)
        await client.publish(await client.producer(), [b"kept"])
        doomed = {records.ledger_of_key(key)[1] for key in await keys(broker._registry._store, records.ledgers_of(1))}
    everything = [records.topic_key(TOPIC), records.ledgers_of(topic_id), records.partitions_of(topic_id)]
    await lose(tmp_path, *everything, records.subscriptions_of(topic_id), records.DROPPED)
    async with open_broker(tmp_path) as broker:
        assert await tombstones(broker) >= doomed
        assert await BrokerClient(broker, OTHER).read_all() == [(0, b"kept")]
        other_id = broker._registry.topic(OTHER).topic_id
    await lose(tmp_path, records.ledgers_of(other_id))
    with pytest.raises(Refused, match="neither lists nor records"):
        async with open_broker(tmp_path):
            pass


async def test_keys_of_ledgers_that_an_earlier_release_left_behind_become_tombstones(tmp_path):
    topic_id = await filled(tmp_path, stamped=False)
    await lose(tmp_path, records.topic_key(TOPIC))
    async with open_broker(tmp_path) as broker:
        assert await tombstones(broker)
        assert await keys(broker._registry._store, records.ledgers_of(topic_id)) == []


# -- a kill between any two steps --------------------------------------------------------------------------------------

STEPS = {
    "before the topic's key goes": puts("/deleted/"),
    "before the partitions go": deletes("/partitions/"),
    "before the ledgers go": deletes("/ledgers/"),
    "before the subscriptions go": deletes("/subscriptions/"),
    "before the deletion is done": deletes("/deleted/"),
}


@pytest.mark.parametrize("step", STEPS)
async def test_a_kill_at_any_step_of_a_deletion_leaves_a_broker_that_starts(tmp_path, step):
    metadata = FaultyStore()
    async with open_broker(tmp_path, metadata=metadata, crash=True) as broker:
        doomed, kept = BrokerClient(broker), BrokerClient(broker, OTHER)
        await doomed.create()
        await kept.create()
        consumer = await doomed.subscribe()
        await doomed.publish(await doomed.producer(), [b"1"])
        await kept.publish(await kept.producer(), [b"kept"])
        await consumer.wait_for(1)
        await consumer.ack((0, 1))
        held = await ledgers(broker)
        metadata.refuse_all(STEPS[step])
        try:
            await broker.topics.delete(ANONYMOUS, TOPIC)
        except DanubeError:
            assert step == "before the topic's key goes"
    for _ in range(2):
        async with open_broker(tmp_path, crash=True) as broker:
            assert await BrokerClient(broker, OTHER).read_all() == [(0, b"kept")]
            known = await ledgers(broker) | await tombstones(broker)
            assert await broker._writer.held(sorted(held)) <= known, "listed, or with a tombstone"


async def test_a_kill_between_a_release_and_the_sweep_leaves_a_broker_that_starts(tmp_path):
    metadata = FaultyStore()
    async with open_broker(tmp_path, wal=SMALL, metadata=metadata, crash=True) as broker:
        doomed, kept = BrokerClient(broker, OTHER), BrokerClient(broker)
        await doomed.create()
        await kept.create()
        producer = await doomed.producer()
        for n in range(60):
            await doomed.publish(producer, [b"x" * 1000], sequence=n)
        metadata.refuse_all(deletes("/dropped/"))
        await broker.topics.delete(ANONYMOUS, OTHER)
        await kept.publish(await kept.producer(), [b"kept"])
        await broker._writer.trim()
        left = await tombstones(broker)
        assert left
    async with open_broker(tmp_path, wal=SMALL, crash=True) as broker:
        await broker._partitions._tombstones.sweep()
        assert await tombstones(broker) == await broker._writer.held(sorted(left))
        assert await BrokerClient(broker).read_all() == [(0, b"kept")]


async def test_a_trim_that_a_disk_error_interrupts_keeps_the_tombstones(tmp_path):
    """Files are taken out of the readers' hands before the manifest is written: that is not released yet."""
    async with open_broker(tmp_path, wal=SMALL) as broker:
        doomed = await created(broker, OTHER)
        producer = await doomed.producer()
        for n in range(60):
            await doomed.publish(producer, [b"x" * 1000], sequence=n)
        dropped = await ledgers(broker)
        broker._writer.forget(dropped)
        release, broker._writer._engine.release = broker._writer._engine.release, _failing
        with pytest.raises(OSError, match="no manifest"):
            await broker._writer.trim()
        broker._writer._engine.release = release
        await broker._writer.held([])
        held = await broker._writer.held(sorted(dropped))
        assert held, "the next start finds its records"


def _failing(files) -> None:
    raise OSError("no manifest")


async def test_an_ack_that_comes_after_the_deletion_writes_nothing(tmp_path):
    """Its ledger's tombstone may be gone by then: the next start would find a ledger that nobody knows."""
    async with open_broker(tmp_path) as broker:
        client = await created(broker)
        consumer = await client.subscribe()
        await client.publish(await client.producer(), [b"1", b"2"])
        await consumer.wait_for(2)
        await consumer.ack((0, 1))
        await broker.topics.delete(ANONYMOUS, TOPIC)
        await broker._writer.held([])
        before = broker._writer.appended_bytes
        await consumer.ack((1, 2))
        consumer.consumer.ack([(1, 2)], False)
        await broker._writer.held([])
        assert broker._writer.appended_bytes == before
    async with open_broker(tmp_path) as broker:
        assert await broker.topics.names(ANONYMOUS) == []


async def test_a_ledger_that_is_opened_while_its_topic_is_deleted_gets_no_record(tmp_path):
    metadata = FaultyStore()
    async with open_broker(tmp_path, metadata=metadata) as broker:
        client = await created(broker)
        producer = await client.producer()
        opening = metadata.hold_answer(puts(records.LEDGERS))
        published = client.publish(producer, [b"1"])
        await opening.asked.wait()
        await broker.topics.delete(ANONYMOUS, TOPIC)
        dropped = await tombstones(broker)
        assert dropped
        before = broker._writer.appended_bytes
        opening.go_on()
        with pytest.raises(DanubeError):
            await published
        await broker._partitions._tombstones.sweep()
        assert broker._writer.appended_bytes == before
        assert await tombstones(broker) == set()
    async with open_broker(tmp_path) as broker:
        assert await broker.topics.names(ANONYMOUS) == []
