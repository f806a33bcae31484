"""Two `stored` partitions share the slices of their broker: what their records say of them, and who takes them over."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from broker_harness import open_client

from pydanube.broker.cluster.membership import SoleMembership
from pydanube.broker.partitions.ownership import Ownership
from pydanube.broker.registry.ids import IdBlocks
from pydanube.broker.registry.records import LedgerRecord, PartitionRecord, ledger_key, partition_key
from pydanube.codec.slice import slice_key
from pydanube.metadata.embedded import EmbeddedStore
from pydanube.metadata.packing import pack, unpack
from pydanube.metadata.store import Put
from pydanube.model.errors import DanubeError, Unavailable
from pydanube.model.topics import AckLevel
from pydanube.operations.topics import UnloadTopic
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.objects.memory import MemoryStore
from pydanube.runtime.objects.object_store import Buffer, ObjectInfo
from waiting import until


class HeldStore(MemoryStore):
    """A store whose puts of slices never arrive while they are held."""

    is_held = False
    held = 0
    """How many puts of slices are held."""
    fails_seals = 0
    """How many markers are still refused."""

    async def put(
        self, key: str, data: Buffer | Sequence[Buffer], *, create: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        if key.startswith("slices/") and self.is_held:
            self.held += 1
            await asyncio.Event().wait()
        if key.startswith("slices/") and self.fails_seals:
            self.fails_seals -= 1
            raise Unavailable("the request was lost")
        return await super().put(key, data, create=create, if_match=if_match)


async def test_a_partition_that_opens_while_a_slice_is_on_its_way_names_no_slice_behind_it(tmp_path: Path) -> None:
    """Else its taker would seal the sequence behind a slice that was never stored, which the other partition needs."""
    objects = HeldStore()
    async with open_client(tmp_path, objects=objects, crash=True) as client:
        await client.create(partitions=2, ack_level=AckLevel.STORED)
        first = await client.producer(partition=0)
        assert (await client.publish(first, [b"acked"])).base_offset == 0
        objects.is_held = True
        for on_their_way in range(1, 4):
            client.publish(first, [b"never stored"])
            await until(lambda wanted=on_their_way: objects.held == wanted)
        second = await client.producer(partition=1)
        client.publish(second, [b"never stored"])
        await until(lambda: objects.held == 4)
        topic_id = client.broker._registry.topic(client.topic).topic_id
        for index in (0, 1):
            found = await client.broker._store.get(partition_key(topic_id, index))
            assert found is not None
            for sequence in unpack(found.value, PartitionRecord).sequences:
                for number in range(sequence.lowest):
                    await objects.head(slice_key(sequence.incarnation, number))
    objects.is_held = False
    async with open_client(tmp_path, objects=objects) as client:
        assert await client.read_all(1) == []
        assert await client.read_all(0) == [(0, b"acked")]


async def test_a_seal_that_fails_is_tried_again_and_ends_no_task(tmp_path: Path) -> None:
    objects = HeldStore()
    async with open_client(tmp_path, objects=objects, crash=True) as client:
        await client.create(ack_level=AckLevel.STORED)
        await client.publish(await client.producer(), [b"acked"])
    objects.fails_seals = 1
    async with open_client(tmp_path, objects=objects) as client:
        with pytest.raises(Unavailable, match="the request was lost"):
            await client.read_all()
        client.broker._partitions.try_again()
        assert await client.read_all() == [(0, b"acked")]


async def test_an_ack_that_comes_while_the_partition_is_released_is_not_confirmed(tmp_path: Path) -> None:
    """It would be in a slice behind the end that the record names, which no later owner reads."""
    async with open_client(tmp_path, objects=MemoryStore()) as client:
        await client.create(ack_level=AckLevel.STORED)
        await client.publish(await client.producer(), [b"one", b"two"])
        sink = await client.subscribe()
        await sink.wait_for(2)
        await sink.ack((0, 1))
        (partition,) = client.broker._partitions.of(client.topic)
        recorded, go_on = asyncio.Event(), asyncio.Event()
        end_slices = partition.ownership.end_slices

        async def end_and_wait() -> None:
            await end_slices()
            recorded.set()
            await go_on.wait()

        partition.ownership.end_slices = end_and_wait  # type: ignore[method-assign]
        unloading = asyncio.ensure_future(client.broker.topics.unload(UnloadTopic(topic=client.topic)))
        await recorded.wait()
        answer: asyncio.Future[DanubeError | None] = asyncio.get_running_loop().create_future()
        sink.consumer.ack([(1, 2)], False, answer.set_result, None)
        await asyncio.wait([answer], timeout=60)
        go_on.set()
        await unloading
        assert answer.result() is not None, "the ack was confirmed"
        again = await client.subscribe()
        assert await again.wait_for(1) == [(1, b"two")]


async def test_ledgers_are_in_the_order_of_their_owners_whatever_their_ids(tmp_path: Path) -> None:
    """Brokers take ids in blocks: the ledger of a later owner may have a lower id than that of an earlier one."""
    store = await EmbeddedStore.open(tmp_path / "metadata.db", SystemClock())
    ownership = Ownership(store, IdBlocks(store, "ledger", 1000), 1, 0, SoleMembership("a"))
    for ledger_id, epoch in ((1005, 1), (50, 2), (51, 2), (1006, 3)):
        await store.transact([], [Put(ledger_key(1, 0, ledger_id), pack(LedgerRecord("data", epoch)))])
    assert [ledger_id for ledger_id, _ in await ownership.ledgers()] == [1005, 50, 51, 1006]
    await store.close()
