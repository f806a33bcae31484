"""A rolling restart of all brokers by SIGTERM: publishers of `stored` topics notice a moment, and nothing is lost."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from cluster_world import ClusterBroker, cluster_world, eventually, readable
from etcd_cluster import missing_etcd

import pydanube

pytestmark = [
    pytest.mark.etcd,
    pytest.mark.process,
    pytest.mark.skipif(bool(missing_etcd()), reason=missing_etcd() or "etcd is there"),
    pytest.mark.asyncio,
    pytest.mark.xdist_group("rolling restart"),
]
TOPIC = "/default/rolling"
SESSION_S = 30
"""So long that a publish which waits for a session to end is far slower than any other, on a busy machine too."""


class RollingPublisher:
    """Publishes to one partition, one message after the other, and notes how long each took."""

    def __init__(self, partition: int, pause_s: float) -> None:
        self.partition = partition
        self.acked: list[bytes] = []
        self.slowest_s = 0.0
        self._pause_s = pause_s

    async def run(self, client: pydanube.Client, stop: asyncio.Event) -> None:
        async with client.producer(TOPIC, partition_by=self.partition, timeout=60) as producer:
            while not stop.is_set():
                payload = b"%d-%d" % (self.partition, len(self.acked))
                began = time.monotonic()
                await producer.send(payload)
                self.slowest_s = max(self.slowest_s, time.monotonic() - began)
                self.acked.append(payload)
                await asyncio.sleep(self._pause_s)


async def restart(broker: ClusterBroker) -> None:
    assert await asyncio.to_thread(broker.stop) == 0
    await broker.begin()


async def read_partition(client: pydanube.Client, partition: int) -> list[bytes]:
    async with client.reader(TOPIC, partition=partition, start="earliest", end="latest") as reader:
        return [bytes(message.payload) async for message in reader]


@pytest.mark.parametrize(("partitions", "pause_s"), [(6, 0.01), pytest.param(50, 0.05, marks=pytest.mark.soak)])
async def test_publishing_goes_on_over_a_rolling_restart_of_all_brokers(
    tmp_path: Path, partitions: int, pause_s: float
) -> None:
    environment = {"DANUBE_CLUSTER_SESSION_S": str(SESSION_S)}
    async with cluster_world(tmp_path, environment=environment, members=1) as world:
        publishers = [RollingPublisher(partition, pause_s) for partition in range(partitions)]
        stop = asyncio.Event()
        async with pydanube.connect(world.url) as client:
            await client.create_topic(TOPIC, partitions=partitions, ack_level="stored")
        async with pydanube.connect(world.url) as publishing, asyncio.TaskGroup() as tasks:
            for publisher in publishers:
                tasks.create_task(publisher.run(publishing, stop))
            for broker in world.brokers:
                before = [len(one.acked) for one in publishers]

                async def moved_on(before: list[int] = before) -> bool:
                    return all(len(one.acked) > count + 5 for one, count in zip(publishers, before, strict=True))

                await eventually(moved_on, "every partition acks")
                await restart(broker)
            stop.set()
        async with pydanube.connect(world.url) as client:
            await eventually(lambda: readable(client, TOPIC), "every partition is served")
            ends = [one.end_offset for one in await client.partitions(TOPIC)]
            assert ends == [len(one.acked) for one in publishers]
            for one in publishers:
                assert await read_partition(client, one.partition) == one.acked
        slowest = max(one.slowest_s for one in publishers)
        acked = sum(len(one.acked) for one in publishers)
        print(f"{acked} messages to {partitions} partitions; the slowest publish took {slowest:.2f} s")
        assert slowest < SESSION_S / 2, f"a publish took {slowest:.1f} s\n{world.logs()}"
