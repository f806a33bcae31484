"""The prefetch limits hold over all partitions of a topic."""

from __future__ import annotations

import pytest
from client_harness import TOPIC, numbered, publish, take

from pydanube import Client, Consumer
from waiting import until


async def test_prefetch_is_bounded_by_credit(client: Client) -> None:
    await publish(client, *numbered(1_000), batch=10)
    async with client.consumer(
        TOPIC, subscription="billing", start="earliest", prefetch_messages=100, prefetch_bytes=1 << 20
    ) as consumer:
        first = await consumer.receive_batch(timeout=60)
        described = await client.describe_subscription(TOPIC, "billing")
        assert described.partitions[0].unacked <= 120
        rest = [offset async for offset in offsets_of(consumer, 990)]
        assert [*first.offsets.tolist(), *rest] == list(range(1_000))


@pytest.mark.parametrize(("prefetch", "share"), [(8, 2), (4, 1), (1, 1)])
async def test_prefetch_is_shared_by_the_partitions_of_a_topic(client: Client, prefetch: int, share: int) -> None:
    await client.create_topic(TOPIC, partitions=4)
    async with client.producer(TOPIC, batch_messages=1, partition_by="round-robin") as producer:
        await producer.send_many(numbered(80))

    async def each_has_its_share() -> bool:
        described = await client.describe_subscription(TOPIC, "billing")
        return [one.unacked for one in described.partitions] == [share] * 4

    async with client.consumer(TOPIC, subscription="billing", start="earliest", prefetch_messages=prefetch) as consumer:
        await until(each_has_its_share)
        assert len(await take(consumer, 80)) == 80


async def offsets_of(consumer: Consumer, count: int):  # type: ignore[no-untyped-def]
    seen = 0
    async for batch in consumer.batches():
        for offset in batch.offsets.tolist():
            yield offset
        seen += len(batch)
        if seen >= count:
            return


async def test_a_batch_larger_than_the_credit_is_delivered_all_the_same(client: Client) -> None:
    await publish(client, *[bytes(1_000)] * 500)
    async with client.consumer(
        TOPIC, subscription="billing", start="earliest", prefetch_messages=10, prefetch_bytes=1_000
    ) as consumer:
        assert len(await take(consumer, 500)) == 500
        await publish(client, *[b"next"])
        assert (await consumer.receive(timeout=60)).payload == b"next"
