"""Owners that are stopped, surely, in the middle of a put of a slice or a segment, for longer than their session.

The store holds the put at a place that the test names; then the broker gets SIGSTOP, others take its partitions over,
and it goes on where it was. The load is recorded. The seed is printed; DANUBE_SEED repeats a run.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from cluster_faults import ACKED_BETWEEN, chosen_seed
from cluster_load import ClusterLoad, LoadTopic, stored_topics
from cluster_world import ClusterBroker, eventually
from commanded_cluster import CommandedCluster, acked_messages, commanded_cluster
from etcd_cluster import missing_etcd
from recorded_history import History, Kept, Outcome, Publish, Tag

import pydanube

pytestmark = [
    pytest.mark.etcd,
    pytest.mark.process,
    pytest.mark.skipif(bool(missing_etcd()), reason=missing_etcd() or "etcd is there"),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.xdist_group("paused puts"),
]
numbers = itertools.count()
SESSION_S = 4
"""Short, and long enough that only a broker that is stopped loses its session, on a busy machine too."""
SLICES, SEGMENTS = "slices/", "segments/"
STILL = 8
"""The number of answers, a tenth of a second apart, with the same number of acks after which no ack is under way."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[CommandedCluster]:
    directory = tmp_path_factory.mktemp("paused")
    async with commanded_cluster(
        directory, DANUBE_CLUSTER_SESSION_S=str(SESSION_S), DANUBE_STORAGE_SEGMENT_AGE_S="1"
    ) as cluster:
        yield cluster


class PausedOwner:
    """A broker that owns `stored` partitions under load, and is stopped in the middle of a put."""

    def __init__(self, cluster: CommandedCluster, broker: ClusterBroker, topics: list[str]) -> None:
        self._cluster = cluster
        self._topics = topics
        self._store = cluster.store_of(broker)
        self.broker = broker
        self.acked = 0
        """What it has acked until it was stopped."""
        self._same = 0
        self._logged = 0

    async def stop_in(self, place: str, prefix: str) -> str:
        """Stop the process while a put of a key with this prefix is held; return the key."""
        self._store.give(f"hold {place} {prefix}")
        await eventually(self._is_held, f"a put of {prefix} is held")
        key = self._store.held_key
        if prefix == SLICES:
            await eventually(self._acks_no_more, "slices before the one that is held count")
        self.broker.freeze()
        self._logged = len(self.broker.log.read_text())
        self._store.let_go()  # it goes on where it was when the process does
        return key

    async def _is_held(self) -> bool:
        return bool(self._store.held_key)

    async def _acks_no_more(self) -> bool:
        """Return whether nothing was acked for several calls: nothing behind the held slice counts."""
        before, self.acked = self.acked, await asyncio.to_thread(acked_messages, self.broker)
        self._same = self._same + 1 if before == self.acked else 0
        return self._same == STILL

    @property
    def _others(self) -> list[ClusterBroker]:
        return [one for one in self._cluster.world.brokers if one is not self.broker]

    def _connect(self) -> pydanube.Client:
        """Return a client that has never heard of this broker."""
        return pydanube.connect("danube://" + ",".join(one.outside.address for one in self._others))

    async def is_replaced(self) -> bool:
        """Return whether other brokers own all partitions of the topics."""
        async with self._connect() as client:
            owners = [one.owner for topic in self._topics for one in await client.partitions(topic)]
        return all(self._cluster.owner_of(owner) in self._others for owner in owners)

    async def publish_to_others(self, history: History) -> None:
        """Let the new owners give out offsets in every partition, also those that this broker may have given out."""
        async with self._connect() as client:
            for topic in self._topics:
                for partition in range(await client.count_partitions(topic)):
                    tag = Tag(f"new-owner-{partition}", 0)
                    async with client.producer(topic, partition_by=partition) as producer:
                        receipt = await producer.send(tag.payload())
                    sent = Publish(tag, Outcome.ACKED, receipt.partition, receipt.offset)
                    history.topics[topic].publishes.append(sent)

    async def knows_it(self) -> bool:
        """Return whether the broker has noticed since it was stopped that it was replaced, and has a session again."""
        _, lost, events = self.broker.log.read_text()[self._logged :].rpartition("session.lost")
        return bool(lost) and "session.taken" in events


async def paused_owner(cluster: CommandedCluster, topics: list[str], chance: random.Random) -> PausedOwner:
    async with pydanube.connect(cluster.world.url) as client:
        owners = [one.owner for topic in topics for one in await client.partitions(topic)]
    broker = cluster.owner_of(chance.choice(owners))
    assert broker is not None
    return PausedOwner(cluster, broker, topics)


async def prepared_load(cluster: CommandedCluster, chance: random.Random, prefix: str) -> tuple[ClusterLoad, list[str]]:
    """Return a load, and the names of its topics that others take over. Segments are of `durable` topics too."""
    suffix = f"{next(numbers)}"
    stored = stored_topics(suffix)
    durable = [LoadTopic(f"/default/durable-{suffix}", Kept.ALL, partitions=3)] if prefix == SEGMENTS else []
    load = ClusterLoad(cluster.world, random.Random(chance.random()), suffix, [*stored, *durable], "stored")
    await load.prepare()
    return load, [one.name for one in stored]


@pytest.mark.parametrize(
    ("prefix", "place"),
    [
        (SLICES, "before"),
        (SLICES, "during"),
        (SLICES, "after"),
        pytest.param(SEGMENTS, "before", marks=pytest.mark.soak),
        (SEGMENTS, "during"),
        pytest.param(SEGMENTS, "after", marks=pytest.mark.soak),
    ],
)
async def test_an_owner_that_is_stopped_in_a_put_harms_nothing_when_it_goes_on(
    cluster: CommandedCluster, prefix: str, place: str
) -> None:
    chance = random.Random(chosen_seed())
    load, topics = await prepared_load(cluster, chance, prefix)
    async with load.running():
        await load.until_acked(ACKED_BETWEEN)
        owner = await paused_owner(cluster, topics, chance)
        key = await owner.stop_in(place, prefix)
        try:
            await eventually(owner.is_replaced, "others own the partitions")
            await owner.publish_to_others(load.history)
        finally:
            owner.broker.thaw()
        print(f"{owner.broker.name} was stopped {place} the put of {key}")
        await load.until_acked(ACKED_BETWEEN)
        await eventually(owner.knows_it, "it has a new session")
        assert await owner.is_replaced()
    if prefix == SLICES and place != "after":
        assert await asyncio.to_thread(acked_messages, owner.broker) == owner.acked, "it has acked what does not count"
    await load.judge()
