"""A client that misbehaves harms only itself: its memory is bounded, and its requests are refused."""

import pytest
from broker_harness import TOPIC, BrokerClient, Collector, open_broker, open_client, open_topic

from pydanube.broker import Attachment
from pydanube.codec.batch import Codec, encode
from pydanube.core.access import ANONYMOUS
from pydanube.model.errors import Full, Invalid, Refused, StaleEpoch
from pydanube.model.limits import ACKED_RANGES_MAX, ACKED_RANGES_REFUSED
from pydanube.model.positions import EARLIEST
from pydanube.model.topics import AckLevel


async def test_a_consumer_that_makes_too_many_gaps_is_closed_and_others_go_on(tmp_path):
    async with open_topic(tmp_path, message_bytes_max=1 << 24) as client:
        producer = await client.producer()
        for n in range(3):
            await client.publish(producer, [b""] * 100_000, sequence=n * 100_000)
        consumer = await client.subscribe()
        consumer.consumer.ack([(n, n + 1) for n in range(1, 300_000, 2)], False)
        assert isinstance(consumer.error, Full)
        place = (await client.broker.subscriptions.describe(ANONYMOUS, TOPIC, "billing")).partitions[0]
        assert ACKED_RANGES_REFUSED < place.acked_ahead <= ACKED_RANGES_REFUSED + ACKED_RANGES_MAX
    async with open_broker(tmp_path) as broker:
        assert (await BrokerClient(broker).fetch()).end_offset == 300_000


async def test_identities_that_were_never_given_out_are_refused(client, topic):
    given, named = await client.producer(), await client.producer("meter")
    for producer_id, epoch in ((named.producer_id + 1, 0), (-1, 0), (2**64 - 1, 0), (given.producer_id, 2**32)):
        with pytest.raises(Refused, match="never given out"):
            await client.producer(producer_id=producer_id, epoch=epoch)
    for producer_id, epoch in ((given.producer_id, 0), (named.producer_id, named.producer_epoch + 1)):
        with pytest.raises(Refused, match="not the one named"):
            await client.producer("meter", producer_id=producer_id, epoch=epoch)
    with pytest.raises(Invalid, match="at most 255 bytes"):
        await client.producer("x" * 256)


async def test_fencing_survives_a_restart(tmp_path):
    async with open_topic(tmp_path) as client:
        older = await client.producer("meter")
        await client.producer("meter")
    async with open_broker(tmp_path) as broker:
        with pytest.raises(StaleEpoch):
            await BrokerClient(broker).producer("meter", producer_id=older.producer_id, epoch=older.producer_epoch)


async def test_reservations_and_ledgers_do_not_fence_each_other(tmp_path):
    async with open_client(tmp_path, offset_block=2) as client:
        await client.create(ack_level=AckLevel.WRITTEN)
        producer, consumer = await client.producer(), await client.subscribe()
        for n in range(50):
            await client.publish(producer, [b"a", b"b"], sequence=n * 2)
            consumer.consumer.ack([(n * 2, n * 2 + 2)], False)
        await consumer.ack((0, 100))
        assert consumer.error is None


async def test_a_compressed_batch_is_not_kept_unpacked(tmp_path):
    async with open_topic(tmp_path, message_bytes_max=1 << 24) as client:
        producer = await client.producer()
        bomb = encode([bytes(1 << 23)], publish_times=1, producer_id=producer.producer_id, codec=Codec.ZSTD)
        batch, _ = client.broker.batches._check_batch(producer, memoryview(bomb))
        assert batch._data is None


async def test_a_subscription_that_is_behind_holds_no_more_than_its_consumer_has_credit_for(tmp_path):
    async with open_topic(tmp_path, tail_bytes=1) as client:
        producer = await client.producer()
        for n in range(20):
            await client.publish(producer, [b"x" * 10_000], sequence=n)
        consumer = Collector()
        consumer.consumer = await client.broker.subscriptions.subscribe(
            ANONYMOUS, TOPIC, 0, Attachment("slow", "a", start=EARLIEST), consumer
        )
        consumer.consumer.credit(1, 1)
        await consumer.wait_for(1)
        (live,) = next(iter(client.broker._partitions)).subscriptions.values()
        assert not live._read_ahead
        consumer.consumer.credit(1_000, 1 << 20)
        assert [offset for offset, _ in await consumer.wait_for(20)] == list(range(20))
