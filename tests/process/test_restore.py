"""A real broker loses its disk: killed, its data directory wiped, restored from the object store, served again."""

import asyncio
import shutil

import pytest
from brokers import BrokerProcess

import pydanube
from pydanube.model.errors import Refused
from pydanube.runtime.objects.opening import open_store
from pydanube.server.restoring import restore
from pydanube.settings import Settings
from pydanube.storage.segments.manifest import newest_first

pytestmark = pytest.mark.process
TOPIC, PARTITIONED = "/default/orders", "/shop/events"


@pytest.fixture
def store_url(tmp_path, monkeypatch) -> str:
    url = (tmp_path / "objects").as_uri()
    monkeypatch.setenv("DANUBE_STORAGE_URL", url)
    monkeypatch.setenv("DANUBE_STORAGE_SEGMENT_AGE_S", "0")
    return url


async def until_kept(store_url: str, cluster: str, messages: int, position: int) -> None:
    """Until a manifest knows all messages of the topic as uploaded, and where its subscription stands."""
    async with await open_store(store_url, {}) as objects, asyncio.timeout(200):
        while True:
            async for manifest in newest_first(objects, cluster):
                ends = {key.split("/")[-1] for page in manifest.pairs() for key, _ in page if "/segments/" in key}
                cursors = [cursor for place in manifest.all_positions() for cursor in place.cursors]
                if f"{messages:016x}" in ends and any(cursor.position == position for cursor in cursors):
                    return
                break
            await asyncio.sleep(0.2)


async def everything(url: str, topic: str, partition: int = 0) -> list[tuple[int, bytes]]:
    async with (
        pydanube.connect(url) as client,
        client.reader(topic, partition=partition, start="earliest", end="latest") as reader,
    ):
        return [(message.offset, message.payload) async for message in reader]


class Cut(Exception):
    pass


def cut(_progress) -> None:
    raise Cut


async def test_a_wiped_broker_comes_back_from_its_object_store_alone(tmp_path, store_url):
    data = tmp_path / "data"
    settings = Settings.load(overrides={"server.data_dir": str(data), "storage.url": store_url})
    with BrokerProcess(data) as broker:
        async with pydanube.connect(broker.url) as client:
            await client.create_namespace("shop")
            await client.create_topic(PARTITIONED, partitions=2)
            await client.set_policies(PARTITIONED, retention_s=-1)
            async with client.producer(PARTITIONED) as producer:
                for n in range(10):
                    await producer.send(b"event %d" % n, key=str(n))
            async with client.producer(TOPIC, name="meter") as producer:
                await producer.send_many([b"%d" % n for n in range(100)])
            async with client.consumer(TOPIC, subscription="billing", start="earliest") as consumer:
                for _ in range(30):
                    await consumer.ack(await consumer.receive(timeout=60))
            cluster = (await client.describe_broker()).cluster
            described = await client.describe_topic(TOPIC)
        await until_kept(store_url, cluster, 100, 30)
        before = {index: await everything(broker.url, PARTITIONED, index) for index in range(2)}
        broker.kill()
        with pytest.raises(Refused, match="is not empty"):
            await restore(settings)
        shutil.rmtree(data)
        with pytest.raises(Cut):
            await restore(settings, cut)
        with pytest.raises(AssertionError, match="not a data directory"):
            broker.start()
        with pytest.raises(Refused, match="a restore that was cut short has begun it; delete it, and restore again"):
            await restore(settings)
        shutil.rmtree(data)
        report = await restore(settings)
        assert (report.cluster, report.topics, report.missing) == (cluster, 2, [])
        with pytest.raises(Refused, match="is not empty"):
            await restore(settings)
        broker.start()
        assert await everything(broker.url, TOPIC) == [(n, b"%d" % n) for n in range(100)]
        assert {index: await everything(broker.url, PARTITIONED, index) for index in range(2)} == before
        async with pydanube.connect(broker.url) as client:
            assert (await client.describe_broker()).cluster == cluster
            assert (await client.policies(PARTITIONED)).own.retention_s == -1
            assert (await client.describe_topic(TOPIC)).topic_id == described.topic_id
            async with client.producer(TOPIC, name="meter") as producer:
                receipt = await producer.send(b"100")
            assert receipt.offset > 100
            async with client.consumer(TOPIC, subscription="billing") as consumer:
                got = [await consumer.receive(timeout=60) for _ in range(71)]
            assert sorted(message.payload for message in got) == sorted(b"%d" % n for n in range(30, 101))
            await client.create_topic("/default/new")
            assert (await client.describe_topic("/default/new")).topic_id > described.topic_id + 1000
        assert broker.stop() == 0
        broker.start()
        assert len(await everything(broker.url, TOPIC)) == 101


@pytest.mark.exhaustive
async def test_a_new_broker_does_not_write_among_the_objects_of_a_lost_one(tmp_path, store_url):
    with BrokerProcess(tmp_path / "data") as broker:
        async with pydanube.connect(broker.url) as client:
            async with client.producer(TOPIC) as producer:
                await producer.send(b"x")
            cluster = (await client.describe_broker()).cluster
            await client.create_subscription(TOPIC, "asleep", start="earliest")
        await until_kept(store_url, cluster, 1, 0)
        broker.kill()
        shutil.rmtree(tmp_path / "data")
        broker.start()
        async with pydanube.connect(broker.url) as client, asyncio.timeout(200):
            while True:
                if "holds the history of cluster" in (await client.describe_broker()).state:
                    break
                await asyncio.sleep(0.1)
