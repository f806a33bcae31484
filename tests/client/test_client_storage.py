"""Object storage over the client: usage, segments, uploads on demand, verification, collection; also without await.
Truncating a topic over the native protocol: readers and consumers go on at the new start, and say so."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

import pydanube
from pydanube import Client, Invalid, NotFound, Unavailable
from pydanube.client.admin.area import Asking
from pydanube.client.admin.storage import Storage
from pydanube.client.segments import open_segments
from pydanube.model.storage import SegmentDescription, StorageCollected, StorageUpload, StorageVerified
from pydanube.operations import AnswerT, Operation, answer_of, storage
from pydanube.runtime import telemetry
from pydanube.runtime.objects import open_store

TOPIC = "/default/orders"


async def publish(client: Client, count: int, topic: str = TOPIC) -> None:
    async with client.producer(topic) as producer:
        await producer.send_many([b"x" * 1000] * count)


def stored(data: Path) -> list[Path]:
    return sorted((data / "objects").rglob("*.seg"))


@pytest.fixture
async def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
async def url(data: Path) -> AsyncIterator[str]:
    async with pydanube.testing.broker(data, storage_grace_s=0) as url:
        yield url


async def test_the_log_is_uploaded_counted_listed_and_verified(client: Client, data: Path) -> None:
    await publish(client, 2000)
    before = await client.storage_usage()
    assert (before.total.waiting_messages, before.total.segments, before.status.uploads) == (2000, 0, "ok")
    states: list[StorageUpload] = []
    done = await client.upload_storage(progress=states.append)
    assert (done.left_bytes, done.done, states[-1]) == (0, True, done)
    assert done.total_bytes > 2_000_000
    usage = await client.storage_usage(TOPIC)
    assert (usage.total.messages, usage.total.waiting_messages) == (2000, 0)
    assert [one.topic for one in usage.topics] == [TOPIC]
    assert usage.status.url.startswith("file:///")
    segments = await client.storage_segments(TOPIC)
    assert sum(one.messages for one in segments) == 2000
    assert len(segments) == len(stored(data))
    assert await client.storage_segments(TOPIC, start=segments[-1].first_offset) == segments[-1:]
    assert await client.storage_segments(TOPIC, count=1) == segments[:1]
    seen: list[StorageVerified] = []
    found = await client.verify_storage(progress=seen.append)
    assert (found.messages, found.damages, seen[-1]) == (2000, [], found)


class MergedMeanwhile(Asking):
    """Lists small segments on a first page. Before the second one is asked for, a larger one takes their place."""

    def __init__(self, small: list[SegmentDescription], larger: SegmentDescription, topic_id: int) -> None:
        super().__init__()
        self._pages = {0: small, small[-1].end_offset: [larger]}
        self._end = larger.end_offset
        self._topic_id = topic_id

    async def _do(self, operation: Operation[AnswerT]) -> AnswerT:
        assert isinstance(operation, storage.ListSegments)
        page = self._pages[operation.start.value]
        reached = page[-1].end_offset
        found = storage.SegmentList(page, -1 if reached == self._end else reached, topic_id=self._topic_id)
        assert isinstance(found, answer_of(type(operation)))
        return found


async def test_segments_that_are_merged_while_they_are_listed_give_each_offset_once(client: Client, data: Path) -> None:
    await publish(client, 300)
    await client.upload_storage(TOPIC)
    (whole,) = await client.storage_segments(TOPIC)
    small = [replace(whole, first_offset=first, end_offset=first + 50) for first in (0, 50)]
    listing = MergedMeanwhile(small, whole, (await client.describe_topic(TOPIC)).topic_id)
    (history,) = await Storage(listing).histories([(TOPIC, 0, 0, 300)])
    assert [(one.first_offset, one.end_offset) for one in history.segments] == [(0, 50), (50, 100), (100, 300)]
    async with open_segments((data / "objects").as_uri()) as segments:
        read = [batch async for batch in segments.batches(history.segments, start=0, end=300)]
    assert [int(offset) for batch in read for offset in batch.offsets] == list(range(300))


async def test_a_verification_can_be_slowed_down(client: Client) -> None:
    await publish(client, 300)
    await client.upload_storage()
    assert (await client.verify_storage(TOPIC, rate=1_000_000)).damages == []
    with pytest.raises(Invalid, match="rate"):
        await client.verify_storage(TOPIC, rate=0)


async def test_damaged_objects_are_named(client: Client, data: Path) -> None:
    await publish(client, 100)
    await client.upload_storage()
    (file,) = stored(data)
    file.chmod(0o600)
    content = bytearray(file.read_bytes())
    content[1000] ^= 1
    file.write_bytes(content)
    (damage,) = (await client.verify_storage()).damages
    assert (damage.topic, damage.partition, damage.first_offset, damage.end_offset) == (TOPIC, 0, 0, 100)
    assert damage.object.endswith(file.name)
    file.unlink()
    (damage,) = (await client.verify_storage(TOPIC)).damages
    assert damage.kind == "missing"


async def test_unneeded_objects_are_deleted(client: Client, data: Path) -> None:
    await publish(client, 100)
    await client.upload_storage()
    await client.delete_topic(TOPIC)
    assert (await client.storage_usage()).status.garbage == 1
    assert (await client.collect_garbage(dry_run=True)).deleted == 1
    assert len(stored(data)) == 1
    steps: list[StorageCollected] = []
    done = await client.collect_garbage(orphans=True, progress=steps.append)
    assert (done.deleted, steps[-1], stored(data)) == (1, done, [])


async def test_an_upload_that_the_store_refuses_raises_unavailable(tmp_path: Path) -> None:
    store_url = (tmp_path / "objects").as_uri()
    async with await open_store(store_url) as store:
        await store.put("danube-cluster", b"somebody else")
    async with (
        pydanube.testing.broker(tmp_path / "data", storage_url=store_url) as url,
        pydanube.connect(url) as client,
    ):
        await publish(client, 10)
        with pytest.raises(Unavailable, match="holds the history of cluster"):
            await client.upload_storage()
        assert (await client.storage_usage()).status.uploads == "refused"


async def test_an_unknown_topic_is_refused_by_name(client: Client) -> None:
    for call in (client.storage_usage, client.storage_segments, client.upload_storage, client.verify_storage):
        with pytest.raises(NotFound, match="nowhere"):
            await call("/default/nowhere")
    await client.create_topic(TOPIC)
    with pytest.raises(NotFound, match="partition 7"):
        await client.storage_segments(TOPIC, 7)


async def fill(client: Client, count: int = 30, partition: int = 0) -> None:
    """Publish messages in batches of ten."""
    async with client.producer(TOPIC, batch_messages=10, partition_by=partition) as producer:
        await producer.send_many([b"%d" % number for number in range(count)])


async def test_everything_before_a_position_is_gone_in_one_partition_or_in_all(client: Client) -> None:
    await client.create_topic(TOPIC, partitions=2)
    for partition in range(2):
        await fill(client, partition=partition)
    assert await client.truncate_topic(TOPIC, 5, partition=1) == {1: 5}
    assert await client.truncate_topic(TOPIC, 12) == {0: 12, 1: 12}
    with pytest.raises(Invalid, match="offset 31 is not in partition 0"):
        await client.truncate_topic(TOPIC, 31)
    with pytest.raises(NotFound):
        await client.truncate_topic(TOPIC, 0, partition=2)
    for wrong in ("yesterday", -1):
        with pytest.raises(Invalid):
            await client.truncate_topic(TOPIC, wrong)
    assert [one.start_offset for one in await client.partitions(TOPIC)] == [12, 12]
    assert await client.truncate_topic(TOPIC, datetime.now(UTC)) == {0: 30, 1: 30}
    await fill(client, 1)
    assert await client.truncate_topic(TOPIC, "latest") == {0: 31, 1: 30}
    assert await client.truncate_topic(TOPIC, "earliest") == {0: 31, 1: 30}


async def test_a_reader_at_the_beginning_begins_with_the_first_that_is_left(client: Client) -> None:
    await fill(client)
    await client.truncate_topic(TOPIC, 15)
    async with client.reader(TOPIC, start="earliest", end="latest") as reader:
        assert [message.offset async for message in reader] == [*range(15, 30)]


async def test_a_reader_behind_the_start_says_what_is_gone(
    client: Client, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "_destination", telemetry._Destination())  # as in a program that logs by itself
    caplog.set_level(logging.WARNING, "pydanube.client")
    await fill(client)
    await client.truncate_topic(TOPIC, 15)
    async with client.reader(TOPIC, start=3, end="latest") as reader:
        assert [message.offset async for message in reader] == [*range(15, 30)]
    (told,) = [text for one in caplog.records if "reader.messages_gone" in (text := one.getMessage())]
    assert "start=3 end=15" in told


async def test_a_consumer_with_messages_in_flight_goes_on_after_them(client: Client) -> None:
    await fill(client)
    async with client.consumer(TOPIC, subscription="billing", start="earliest", prefetch_messages=5) as consumer:
        first = await consumer.receive(timeout=60)
        await client.truncate_topic(TOPIC, 20)
        await consumer.ack(first)
        while (message := await consumer.receive(timeout=60)).offset < 20:
            await consumer.ack(message)
        received = [message]
        while len(received) < 10:
            received.append(await consumer.receive(timeout=60))
        assert [one.offset for one in received] == [*range(20, 30)]
        await consumer.ack_cumulative(received[-1])
        await consumer.flush()
    (place,) = (await client.describe_subscription(TOPIC, "billing")).partitions
    assert (place.position, place.lag) == (30, 0)
