"""Offsets of a durable topic that neither the log nor the catalog has keep their partition closed, and no other."""

import pytest
from broker_harness import TOPIC, BrokerClient, open_broker

from pydanube.broker.registry import records
from pydanube.broker.registry.tombstones import drop_writes
from pydanube.core.access import ANONYMOUS
from pydanube.metadata.embedded import EmbeddedStore
from pydanube.metadata.packing import unpack
from pydanube.metadata.store import list_all
from pydanube.model.errors import Corrupt
from pydanube.model.names import TopicName
from pydanube.model.topics import AckLevel
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.objects.memory import MemoryStore

OTHER = TopicName.parse("/default/other")


async def fill(directory, objects, runs: int = 3, **config) -> None:
    """Start a broker several times and publish ten messages in each, so that each start has a ledger of its own."""
    for run in range(runs):
        async with open_broker(directory, objects=objects, crash=True) as broker:
            for topic in (TOPIC, OTHER):
                client = BrokerClient(broker, topic)
                if not run:
                    await client.create(**config)
                await client.publish(await client.producer(), [b"%d" % (run * 10 + n) for n in range(10)])
            if run == runs - 1:
                consumer = await BrokerClient(broker).subscribe()
                await consumer.wait_for(1)
                await consumer.ack((0, 1))  # the snapshot before it knows the end


async def lose_ledger(directory, number: int) -> None:
    """Delete a data ledger of the topic from the metadata, as if it had been dropped."""
    async with await EmbeddedStore.open(directory / "metadata.db", SystemClock()) as store:
        found = await store.get(records.topic_key(TOPIC))
        assert found is not None
        topic_id = unpack(found.value, records.TopicRecord).topic_id
        pairs = [one async for one in list_all(store, records.ledgers_of(topic_id))]
        data = [one.key for one in pairs if unpack(one.value, records.LedgerRecord).kind == "data"]
        for writes in drop_writes([(data[number], "")]):
            await store.transact([], writes)


@pytest.mark.parametrize(("number", "missing"), [(0, "0..9"), (1, "10..19"), (2, "20..29")])
async def test_a_hole_in_a_durable_topic_is_corrupt_and_other_topics_open(tmp_path, number, missing):
    objects = MemoryStore()
    await fill(tmp_path, objects)
    await lose_ledger(tmp_path, number)
    for _ in range(2):
        async with open_broker(tmp_path, objects=objects) as broker:
            with pytest.raises(Corrupt, match=rf"/default/orders: offsets {missing} are missing.*put back"):
                await BrokerClient(broker).fetch()
            assert len(await BrokerClient(broker, OTHER).read_all()) == 30


async def test_what_retention_dropped_is_not_a_hole(tmp_path):
    objects = MemoryStore()
    await fill(tmp_path, objects)
    async with open_broker(tmp_path, objects=objects) as broker:
        await (await broker._partitions.get(TOPIC, 0)).trim(10)
    await lose_ledger(tmp_path, 0)
    async with open_broker(tmp_path, objects=objects) as broker:
        assert [offset for offset, _ in await BrokerClient(broker).read_all()] == list(range(10, 30))


async def test_what_is_in_the_catalog_is_not_a_hole(tmp_path):
    objects = MemoryStore()
    await fill(tmp_path, objects)
    async with open_broker(tmp_path, objects=objects) as broker:
        await broker._partitions.get(TOPIC, 0)
        await broker.storage.upload(ANONYMOUS, TOPIC)
        await broker._tiers.upload(broker._tiers.partitions.keys())
    await lose_ledger(tmp_path, 1)
    async with open_broker(tmp_path, objects=objects) as broker:
        assert [offset for offset, _ in await BrokerClient(broker).read_all()] == list(range(30))


async def test_a_topic_that_is_not_durable_may_have_gaps(tmp_path):
    objects = MemoryStore()
    await fill(tmp_path, objects, ack_level=AckLevel.WRITTEN)
    async with open_broker(tmp_path, objects=objects) as broker:
        found = await BrokerClient(broker).read_all()
        assert len(found) == 30
        assert found[-1][0] > 29, "each start went on behind a reserved block"
