"""Prepares data directories as real brokers leave them, with a record of everything that was acknowledged.

A world has topics of all kinds, subscriptions of all types with gaps in what they acked, named producers, deleted
topics, staged writes, leases, and with `tiered` also segments in the object store and a trimmed log. It is written by
real broker processes, several in turn, and the last of them is stopped in order or killed with `kill -9` under load.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from brokers import BrokerProcess
from expected import Expected, ExpectedSubscription, ExpectedTopic, Identity, Stage

import pydanube
from pydanube.client.consuming.messages import ReceivedBatch
from pydanube.client.history.range_fetch import RangeFetch
from pydanube.client.history.reader import split_batches
from pydanube.codec.batch import encode
from pydanube.codec.native import requests
from pydanube.metadata.embedded import EmbeddedStore
from pydanube.metadata.store import Put
from pydanube.model.errors import DanubeError
from pydanube.model.failure import Poison
from pydanube.model.topics import AckLevelName, SubscriptionTypeName
from pydanube.runtime.clock import SystemClock

HANG_S = 120
"""Only a hang takes as long."""

PLAIN = {
    "log.file_bytes": "65536",
    "log.group_bytes_max": "65536",
    "storage.shutdown_upload_s": "0",
    "storage.segment_age_s": "86400",
}
TIERED = {
    **PLAIN,
    "storage.segment_bytes": "65536",
    "storage.shared_below_bytes": "4000",
    "storage.log_keep_bytes": "0",
    "storage.shutdown_upload_s": "20",
}
LOAD = Path(__file__).with_name("load.py")
PUBLISHED_AT = 1_700_000_000_000_000
LEASE_MS = 24 * 3600 * 1000


@dataclass(frozen=True)
class Scenario:
    name: str
    tiered: bool
    end: str
    rounds: int = 2


SCENARIOS = {
    one.name: one
    for one in (
        Scenario("plain-stop", tiered=False, end="stop"),
        Scenario("plain-kill", tiered=False, end="kill"),
        Scenario("tiered-stop", tiered=True, end="stop"),
        Scenario("tiered-kill", tiered=True, end="kill"),
        Scenario("often-stop", tiered=True, end="stop", rounds=4),
        Scenario("often-kill", tiered=False, end="kill", rounds=4),
    )
}


async def prepare(root: Path, scenario: Scenario, seed: int) -> Expected:
    """Fill `root/data` as the scenario says, and save what is expected of it as `root/expected.json`."""
    return await asyncio.wait_for(_World(root, scenario, random.Random(seed)).prepare(), HANG_S)


async def stored(client: pydanube.Client, topic: str, partition: int, start: int, end: int) -> dict[int, str]:
    """Return the messages of a partition in [start, end), by offset. Does not wait for new messages."""
    found: dict[int, str] = {}
    async for answer in client.fetches(RangeFetch(topic, partition, start, end)):
        for batch in split_batches(answer.body):
            received = ReceivedBatch(batch, topic, partition)
            for offset, payload in zip(received.offsets.tolist(), received.payloads, strict=True):
                assert offset not in found, f"{topic}[{partition}]: offset {offset} was read twice"
                found[offset] = bytes(payload).decode(errors="backslashreplace")
    return found


class _World:
    def __init__(self, root: Path, scenario: Scenario, chance: random.Random) -> None:
        self.root = root
        self.scenario = scenario
        self.chance = chance
        settings = TIERED if scenario.tiered else PLAIN
        self.expected = Expected(settings=dict(settings), ended=scenario.end)
        self.sent = 0

    async def prepare(self) -> Expected:
        self.root.mkdir(parents=True, exist_ok=True)
        directory = self.root / "data"
        with pytest.MonkeyPatch.context() as patch:
            for key, value in self.expected.settings.items():
                patch.setenv("DANUBE_" + key.replace(".", "_").upper(), value)
            with BrokerProcess(directory) as broker:
                for number in range(self.scenario.rounds):
                    last = number == self.scenario.rounds - 1
                    if number:
                        await asyncio.to_thread(broker.start)
                    await self._round(broker, number, last)
                    if not last:
                        await self._end(broker, self.chance.choice(["stop", "kill"]))
                        await self._grant_leases(directory, number)
        self.expected.save(self.root / "expected.json")
        return self.expected

    async def _end(self, broker: BrokerProcess, how: str) -> None:
        if how == "kill":
            await asyncio.to_thread(broker.kill)
        else:
            assert await asyncio.to_thread(broker.stop, HANG_S) == 0

    async def _grant_leases(self, directory: Path, number: int) -> None:
        async with await EmbeddedStore.open(directory / "metadata.db", SystemClock()) as store:
            lease, _ = await store.grant_lease(LEASE_MS)
            key = f"/sessions/damage-{number}"
            await store.transact([], [Put(key, b"held", lease=lease)])
            self.expected.leases[lease] = key

    async def _round(self, broker: BrokerProcess, number: int, last: bool) -> None:
        async with pydanube.connect(broker.url) as client:
            if number == 0:
                await self._create(client)
            for name in list(self.expected.topics):
                await self._publish(client, name, self.chance.randint(20, 60))
            await self._commit_stage(client, number)
            await self._consume(client)
            if self.scenario.tiered:
                await client.upload_storage()
                for name in self.chance.sample(sorted(self.expected.topics), 4):
                    await self._publish(client, name, self.chance.randint(1, 20))
            if number == 0:
                await self._delete(client)
            await self._publish_as(client, f"meter-{number}")
        if last:
            await self._last(broker)

    # -- what exists ---------------------------------------------------------------------------------------------------

    async def _create(self, client: pydanube.Client) -> None:
        expected = self.expected
        await client.create_namespace("billing")
        await client.set_policies("billing", consumers_max=77)
        expected.namespaces = ["billing", "default"]
        expected.namespace_policies = {"billing": {"consumers_max": 77}}
        await self._create_topic(client, "/default/plain")
        await self._create_topic(client, "/default/parts", partitions=3)
        await self._create_topic(client, "/default/written", ack_level="written")
        await self._create_topic(client, "/default/written-parts", partitions=2, ack_level="written")
        await self._create_topic(client, "/default/memory", ack_level="memory")
        await self._create_topic(client, "/default/passing", reliable=False)
        await self._create_topic(client, "/billing/invoices")
        await self._create_topic(client, "/default/remade")
        await self._create_topic(client, "/default/gone", partitions=2)
        await self._create_topic(client, "/default/staged", partitions=2)
        await client.set_policies("/billing/invoices", retention_s=30 * 86400, ttl_s=20 * 86400)
        expected.topics["/billing/invoices"].policies = {"retention_s": 30 * 86400, "ttl_s": 20 * 86400}
        policy = pydanube.FailurePolicy(redeliveries_max=9, delay_ms=50, poison=Poison.DROP)
        for kind in ("exclusive", "failover", "shared", "key-shared"):
            await self._subscribe(client, "/default/plain", kind, kind, policy if kind == "shared" else None)
            await self._subscribe(client, "/default/parts", kind, kind)
        for topic in expected.topics:
            await self._subscribe(client, topic, "audit", "exclusive")
        await self._subscribe(client, "/default/parts", "load", "shared")

    async def _create_topic(
        self,
        client: pydanube.Client,
        name: str,
        partitions: int = 0,
        reliable: bool = True,
        ack_level: AckLevelName = "durable",
    ) -> None:
        await client.create_topic(name, partitions=partitions, reliable=reliable, ack_level=ack_level)
        topic = ExpectedTopic(partitions, reliable, ack_level if reliable else "memory")
        topic.topic_id = (await client.describe_topic(name)).topic_id
        self.expected.topics[name] = topic

    async def _subscribe(
        self,
        client: pydanube.Client,
        topic: str,
        name: str,
        kind: SubscriptionTypeName,
        policy: pydanube.FailurePolicy | None = None,
    ) -> None:
        await client.create_subscription(topic, name, type=kind, start="earliest", failure_policy=policy)
        shown = str((await client.describe_subscription(topic, name)).failure_policy)
        self.expected.topics[topic].subscriptions[name] = ExpectedSubscription(kind, shown)

    async def _delete(self, client: pydanube.Client) -> None:
        for name in ("/default/gone", "/default/remade"):
            await client.delete_topic(name)
            self.expected.deleted.append(name)
            del self.expected.topics[name]
        self.expected.deleted.remove("/default/remade")
        await self._create_topic(client, "/default/remade")
        await self._subscribe(client, "/default/remade", "again", "exclusive")
        await self._publish(client, "/default/remade", 10)

    # -- messages ------------------------------------------------------------------------------------------------------

    def _payloads(self, topic: str, count: int) -> list[str]:
        self.sent += count
        first = self.sent - count
        made = [f"{topic} {first + n} " + "x" * self.chance.randint(0, 400) for n in range(count)]
        self.expected.topics[topic].sent.update(made)
        return made

    async def _publish(self, client: pydanube.Client, name: str, count: int) -> None:
        topic = self.expected.topics[name]
        async with client.producer(name, name="meter", compression=self.chance.choice([None, "lz4"])) as producer:
            payloads = self._payloads(name, count)
            receipts = await asyncio.gather(*[producer.send(one.encode(), key=one.split()[1]) for one in payloads])
            if topic.reliable:
                for payload, receipt in zip(payloads, receipts, strict=True):
                    topic.add(receipt.partition, receipt.offset, payload)

    async def _publish_as(self, client: pydanube.Client, name: str) -> None:
        """Publish a batch under a named identity and record both, so that the batch can be sent again later."""
        topic = "/default/plain"
        payloads = self._payloads(topic, 3)
        opened, offset, _ = await publish_as(client, topic, name, payloads)
        for number, payload in enumerate(payloads):
            self.expected.topics[topic].add(0, offset + number, payload)
        identity = Identity(topic, name, opened.producer_id, opened.producer_epoch, payloads, offset)
        self.expected.identities.append(identity)

    async def _commit_stage(self, client: pydanube.Client, batch_id: int) -> None:
        stage = await self._stage(client, "nightly", batch_id)
        done = await client.commit_stages(stage.query, stage.run, batch_id, stage.stages, wait_ms=10_000)
        assert done.applied
        stage.committed = True

    async def _stage(self, client: pydanube.Client, query: str, batch_id: int) -> Stage:
        topic = "/default/staged"
        payloads = {partition: self._payloads(topic, 5) for partition in range(2)}
        async with client.stager(query, run="run", batch_id=batch_id) as stager:
            for partition, rows in payloads.items():
                await stager.add(topic, partition, encode([one.encode() for one in rows], publish_times=PUBLISHED_AT))
            stage = Stage(query, "run", batch_id, await stager.finish(), topic, payloads)
        self.expected.stages.append(stage)
        return stage

    async def _consume(self, client: pydanube.Client) -> None:
        """Receive everything through each subscription but `load`, and ack ranges with gaps between them."""
        for name, topic in self.expected.topics.items():
            for subscription, wanted in topic.subscriptions.items():
                if topic.is_stored and subscription != "load" and name != "/default/staged":
                    await self._ack_some(client, name, subscription, wanted)

    async def _ack_some(
        self, client: pydanube.Client, name: str, subscription: str, wanted: ExpectedSubscription
    ) -> None:
        topic = self.expected.topics[name]
        waiting = sum(
            offset not in wanted.settled.get(partition, ())
            for partition, offsets in topic.acked.items()
            for offset in offsets
        )
        acking = True
        async with client.consumer(name, subscription=subscription, name="c", ack_linger_ms=0.0) as consumer:
            settled: list[tuple[int, int]] = []
            for _ in range(waiting):
                message = await consumer.receive(timeout=HANG_S)
                if self.chance.random() < 0.15:
                    acking = not acking
                if acking:
                    await consumer.ack(message)
                    settled.append((message.partition, message.offset))
            await consumer.flush()
        for partition, offset in settled:
            wanted.settled.setdefault(partition, []).append(offset)

    # -- the end -------------------------------------------------------------------------------------------------------

    async def _last(self, broker: BrokerProcess) -> None:
        async with pydanube.connect(broker.url) as client:
            await self._create_topic(client, "/default/late", partitions=2)
            await self._subscribe(client, "/default/late", "late", "shared")
            await self._publish(client, "/default/late", 20)
            await self._stage(client, "waiting", 0)
        if self.scenario.end == "stop":
            await self._end(broker, "stop")
            return
        await self._kill_under_load(broker, ["/default/plain", "/default/parts", "/default/written", "/default/late"])

    async def _kill_under_load(self, broker: BrokerProcess, topics: list[str]) -> None:
        """Kill the broker while another process publishes and acks; then kill that process and read the rest of its
        output."""
        seed, enough = self.chance.randrange(2**32), self.chance.randint(50, 400)
        load = await asyncio.create_subprocess_exec(
            *(sys.executable, str(LOAD), broker.url, str(seed), "/default/parts", *topics),
            stdout=asyncio.subprocess.PIPE,
            limit=1 << 20,
        )
        assert load.stdout is not None
        acked = 0
        try:
            while line := await load.stdout.readline():
                if line.endswith(b"\n"):  # else it was killed in the middle of it
                    acked += self._hear(json.loads(line))
                if acked >= enough and broker.is_alive:
                    await self._end(broker, "kill")
                    load.kill()
        finally:
            with suppress(ProcessLookupError):
                load.kill()
            await load.wait()
        assert not broker.is_alive, "the load ended by itself"

    def _hear(self, said: dict[str, Any]) -> bool:
        """Record one line of the load process; return whether it reports an acknowledgement."""
        load = self.expected.topics["/default/parts"].subscriptions["load"]
        if "sent" in said:
            self.expected.topics[said["sent"]].sent.update(said["payloads"])
        elif "acked" in said:
            self.expected.topics[said["acked"]].add(said["partition"], said["offset"], said["payload"])
        elif "took" in said:
            load.perhaps.setdefault(said["partition"], []).append(said["offset"])
        else:
            load.settled = {partition: list(offsets) for partition, offsets in load.perhaps.items()}
        return "acked" in said


class _Published:
    """Waits for the answer to one published batch."""

    def __init__(self) -> None:
        self.done: asyncio.Future[tuple[int, bool]] = asyncio.get_running_loop().create_future()

    def published(self, ticket: object, base_offset: int, duplicate: bool, owner_epoch: int) -> None:
        self.done.set_result((base_offset, duplicate))

    def refused(self, ticket: object, error: DanubeError) -> None:
        self.done.set_exception(error)


async def publish_as(
    client: pydanube.Client, topic: str, name: str, payloads: Iterable[str], producer_id: int = 0, epoch: int = 0
) -> tuple[requests.ProducerOpened, int, bool]:
    """Publish a batch with sequence 0 as this producer; return its identity, the offset, and whether it was there."""
    connection = await client._brokers.owner(topic, 0)
    request = requests.OpenProducer(
        topic=topic, partition=0, name=name, producer_id=producer_id, producer_epoch=epoch, opener=1
    )
    opened = await connection.request(request, requests.ProducerOpened)
    batch = encode(
        [one.encode() for one in payloads],
        publish_times=PUBLISHED_AT,
        producer_name=name,
        producer_id=opened.producer_id,
        producer_epoch=opened.producer_epoch,
        first_sequence=0,
    )
    listener = _Published()
    connection.publish(opened.handle, batch, listener, None)
    offset, duplicate = await asyncio.wait_for(listener.done, HANG_S)
    await connection.request(requests.CloseProducer(handle=opened.handle), requests.Done)
    return opened, offset, duplicate
