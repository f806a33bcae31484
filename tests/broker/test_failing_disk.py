"""A disk that fails under a running broker: nothing unsynced is acked, reads go on, and it cures itself."""

import asyncio
import errno

import pytest
from broker_harness import TOPIC, BrokerClient, created, open_broker, open_topic

from pydanube.core.access import ANONYMOUS
from pydanube.model.errors import Unavailable
from pydanube.model.names import TopicName
from pydanube.model.settings.sections import LogSettings
from pydanube.model.topics import TopicConfig
from pydanube.runtime.clock import ManualClock
from pydanube.runtime.disk import OsDisk

FAST_CURE = LogSettings(cure_ms=20)


class FailingFile:
    def __init__(self, file, disk) -> None:
        self._file = file
        self._disk = disk

    def __getattr__(self, name: str):
        return getattr(self._file, name)

    def sync_data(self) -> None:
        if self._disk.sync_error:
            raise OSError(self._disk.sync_error, "sync failed")
        self._file.sync_data()

    def pwritev(self, buffers, position: int) -> int:
        if self._disk.write_error:
            raise OSError(self._disk.write_error, "write failed")
        return self._file.pwritev(buffers, position)


class FailingDisk(OsDisk):
    """The real disk, which fails while the test says so."""

    def __init__(self) -> None:
        self.sync_error = 0
        self.write_error = 0

    def open(self, path):
        return FailingFile(super().open(path), self)

    def create(self, path, *, private=False):
        return FailingFile(super().create(path, private=private), self)


async def until_cured(client: BrokerClient, producer, sequence: int):
    while True:
        try:
            return await client.publish(producer, [b"after"], sequence=sequence)
        except Unavailable:
            continue


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        ({"sync_error": errno.EIO}, "disk error EIO"),
        ({"write_error": errno.EIO}, "disk error EIO"),
        ({"write_error": errno.ENOSPC}, "disk full"),
    ],
)
async def test_a_disk_error_refuses_publishes_keeps_reads_and_cures_itself(tmp_path, failure, message):
    disk = FailingDisk()
    async with open_topic(tmp_path, disk=disk, wal=FAST_CURE) as client:
        producer, consumer = await client.producer(), await client.subscribe()
        await client.publish(producer, [b"before"], sequence=0)
        await consumer.wait_for(1)
        for name, value in failure.items():
            setattr(disk, name, value)
        with pytest.raises(Unavailable, match=message):
            await client.publish(producer, [b"lost"], sequence=1)
        with pytest.raises(Unavailable, match=message):
            await client.publish(producer, [b"lost"], sequence=1)
        assert message in client.broker.describe(ANONYMOUS).state
        assert await client.read_all() == [(0, b"before")], "what was not acked is not seen"
        for name in failure:
            setattr(disk, name, 0)
        answer = await until_cured(client, producer, sequence=1)
        assert (answer.base_offset, answer.duplicate) == (1, False)
        assert [payload for _, payload in await consumer.wait_for(2)] == [b"before", b"after"]
        await consumer.ack((0, 2))
        assert client.broker.describe(ANONYMOUS).state == "ok"
    async with open_broker(tmp_path) as broker:
        assert await BrokerClient(broker).read_all() == [(0, b"before"), (1, b"after")], (
            "a failed file's tail stays away"
        )
        place = (await broker.subscriptions.describe(ANONYMOUS, TOPIC, "billing")).partitions[0]
        assert (place.position, place.lag) == (2, 0)


async def test_acks_given_while_the_disk_failed_are_kept_once_it_is_cured(tmp_path):
    disk = FailingDisk()
    async with open_topic(tmp_path, disk=disk, wal=FAST_CURE, crash=True) as client:
        producer, consumer = await client.producer(), await client.subscribe()
        await client.publish(producer, [b"a", b"b", b"c"], sequence=0)
        await consumer.wait_for(3)
        await consumer.ack((0, 1))
        disk.sync_error = errno.EIO
        with pytest.raises(Unavailable):
            await client.publish(producer, [b"lost"], sequence=3)
        consumer.consumer.ack([(1, 2)], False)
        disk.sync_error = 0
        await until_cured(client, producer, sequence=3)
        await consumer.ack((1, 2))
    async with open_broker(tmp_path) as broker:
        place = (await broker.subscriptions.describe(ANONYMOUS, TOPIC, "billing")).partitions[0]
        assert (place.position, place.lag) == (2, 2)


async def test_metadata_that_cannot_be_written_shows_until_it_can_be_again(tmp_path):
    disk, clock = FailingDisk(), ManualClock()
    async with open_broker(tmp_path, clock=clock, metadata_disk=disk) as broker:
        await created(broker)
        assert broker.describe(ANONYMOUS).state == "ok"
        disk.write_error = errno.ENOSPC
        for _ in range(2):
            with pytest.raises(Unavailable, match="metadata"):
                await broker.topics.create(ANONYMOUS, TopicName.parse("/default/another"), TopicConfig())
        state = broker.describe(ANONYMOUS).state
        assert state.startswith("metadata cannot be written: ")
        assert str(tmp_path / "metadata.db") in state
        disk.write_error = 0
        while broker.describe(ANONYMOUS).state != "ok":  # nobody has to write for that
            clock.advance(1)
            await asyncio.sleep(0)
        await broker.topics.create(ANONYMOUS, TopicName.parse("/default/another"), TopicConfig())
