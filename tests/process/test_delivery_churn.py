"""Every topic kind and subscription type while consumers and the broker are killed with -9 under load.

One topic has a subscription of each type; three processes consume all of them, so a kill takes a consumer from each.
"""

import asyncio
import random
import signal
import time
from contextlib import suppress

import pytest
from brokers import BrokerProcess
from churn import Process, Record, check_content, check_once, check_order, check_repetitions
from churn_consumer import TYPES

import pydanube

TOPIC = "/default/churn"
PROCESSES = 3
PRODUCERS = 2
KEYS = 12
PARTITIONS = 3
ACKED_TOGETHER = 40
DONE_SECONDS_MAX = 200


class Churn:
    """The load, the consumers, and the plan of which process is killed when."""

    def __init__(self, broker: BrokerProcess, rng: random.Random) -> None:
        self.broker = broker
        self.rng = rng
        self.record = Record()
        self.processes: list[Process] = []
        self.started: list[Process] = []
        self.stopping = False

    async def produce(self, number: int) -> None:
        record, rng = self.record, random.Random(self.rng.random())
        async with pydanube.connect(self.broker.url) as client, client.producer(TOPIC) as producer:
            count = 0
            while not self.stopping:
                payloads = [f"{number}-{count + n}" for n in range(rng.randint(1, ACKED_TOGETHER))]
                count += len(payloads)
                record.sent.update(dict.fromkeys(payloads, time.monotonic()))
                await asyncio.gather(
                    *[producer.send(one.encode(), key=f"key-{rng.randrange(KEYS)}") for one in payloads]
                )
                record.published(payloads)

    async def until_acked(self, more: int) -> None:
        goal = len(self.record.acked) + more
        await asyncio.wait_for(self.record.until(lambda: len(self.record.acked) >= goal), DONE_SECONDS_MAX)

    async def start_consumer(self, number: int) -> Process:
        process = await Process.start(self.broker.url, TOPIC, f"consumer-{number}", self.record)
        self.started.append(process)
        await asyncio.wait_for(process.attached.wait(), DONE_SECONDS_MAX)
        return process

    async def kill_consumer(self, number: int) -> None:
        await self.processes[number].kill()
        if self.rng.random() < 0.5:
            await self.until_acked(self.rng.randint(1, 200))
        self.processes[number] = await self.start_consumer(number)

    async def kill_broker(self) -> None:
        begin = time.monotonic()
        self.broker.kill()
        self.record.broker_kills.append((begin, time.monotonic()))
        await asyncio.to_thread(self.broker.start)

    async def stand_still(self, number: int) -> None:
        """Stop a consumer with SIGSTOP until some more messages were acked to producers: it must not stop
        publishing."""
        self.processes[number].signal(signal.SIGSTOP)
        try:
            await self.until_acked(self.rng.randint(200, 600))
        finally:
            self.processes[number].signal(signal.SIGCONT)

    async def run(self, acts: list) -> None:
        """Every act under load; afterwards the load ends and the consumers are left alone."""
        self.processes = list(await asyncio.gather(*(self.start_consumer(n) for n in range(PROCESSES))))
        async with asyncio.TaskGroup() as tasks:
            producers = [tasks.create_task(self.produce(number)) for number in range(PRODUCERS)]
            for act, *number in acts:
                await self.until_acked(self.rng.randint(50, 500))
                await act(self, *number)
            await self.until_acked(self.rng.randint(50, 500))
            self.stopping = True
            await asyncio.wait(producers)

    async def finish(self) -> None:
        await asyncio.gather(*(process.stop() for process in self.processes))

    async def abandon(self) -> None:
        """Kill all processes, whatever happened."""
        await asyncio.gather(*(process.kill() for process in self.started if not process.listening.done()))


def plan(rng: random.Random, rounds: int, reliable: bool) -> list:
    """Every process is killed in every round, the broker too where it stores something."""
    acts: list = []
    for _ in range(rounds):
        some = [(Churn.kill_consumer, number) for number in range(PROCESSES)]
        some.append((Churn.kill_broker,) if reliable else (Churn.stand_still, rng.randrange(PROCESSES)))
        rng.shuffle(some)
        acts += some
    return acts


async def churn_of(tmp_path, *, reliable: bool, partitions: int, rounds: int) -> Churn:
    seed = random.randrange(2**32)
    print(f"seed {seed} reliable {reliable} partitions {partitions} rounds {rounds}")
    rng = random.Random(seed)
    with BrokerProcess(tmp_path / "data") as broker:
        async with pydanube.connect(broker.url) as client:
            await client.create_topic(TOPIC, partitions=partitions, reliable=reliable)
            for kind in TYPES:
                await client.create_subscription(TOPIC, kind, type=kind, start="earliest")
            churn = Churn(broker, rng)
            try:
                await churn.run(plan(rng, rounds, reliable))
                if reliable:
                    await everything_received(client, churn.record)
                await churn.finish()
            finally:
                await churn.abandon()
            if reliable:
                for kind in TYPES:
                    described = await client.describe_subscription(TOPIC, kind)
                    assert sum(one.lag for one in described.partitions) == 0, f"{kind}: received and not acked"
    print(f"acked {len(churn.record.acked)}, sessions {len(churn.record.sessions)}")
    return churn


async def everything_received(client: pydanube.Client, record: Record) -> None:
    """Wait until all consumers have received everything, for as long as they make progress."""

    def missing() -> int:
        return sum(map(len, record.missing.values()))

    while before := missing():
        with suppress(TimeoutError):
            await asyncio.wait_for(record.until(lambda: not missing()), DONE_SECONDS_MAX)
        if missing() == before:
            lost = {kind: sorted(ones)[:5] for kind, ones in record.missing.items() if ones}
            told = [f"{kind}: {(await client.describe_subscription(TOPIC, kind)).partitions}" for kind in lost]
            raise AssertionError("\n".join([f"acked and not received: {lost}", *told]))


async def at_least_once(tmp_path, partitions: int, rounds: int) -> None:
    churn = await churn_of(tmp_path, reliable=True, partitions=partitions, rounds=rounds)
    for kind in TYPES:
        check_content(churn.record, kind)
        check_order(churn.record, kind)
        print(f"{kind}: {check_repetitions(churn.record, kind)} came again")


async def at_most_once(tmp_path, partitions: int, rounds: int) -> None:
    churn = await churn_of(tmp_path, reliable=False, partitions=partitions, rounds=rounds)
    for kind in TYPES:
        check_content(churn.record, kind)
        check_order(churn.record, kind)
        check_once(churn.record, kind)
        assert churn.record.seen[kind], "those who listened heard something"
        print(f"{kind}: {len(churn.record.missing[kind])} of {len(churn.record.acked)} were lost")


plain = pytest.param(0, marks=pytest.mark.exhaustive, id="plain")
layouts = pytest.mark.parametrize("partitions", [plain, pytest.param(PARTITIONS, id="partitioned")])


@pytest.mark.process
@layouts
async def test_a_reliable_topic_loses_nothing_when_consumers_and_the_broker_are_killed(tmp_path, partitions):
    await at_least_once(tmp_path, partitions, rounds=1)


@pytest.mark.exhaustive
@pytest.mark.process
@layouts
async def test_a_non_reliable_topic_repeats_nothing_and_never_waits_when_consumers_are_killed(tmp_path, partitions):
    await at_most_once(tmp_path, partitions, rounds=1)


@pytest.mark.soak
@pytest.mark.process
@layouts
async def test_a_reliable_topic_loses_nothing_over_a_hundred_kills(tmp_path, partitions):
    await at_least_once(tmp_path, partitions, rounds=25)


@pytest.mark.soak
@pytest.mark.process
@layouts
async def test_a_non_reliable_topic_repeats_nothing_over_a_hundred_kills(tmp_path, partitions):
    await at_most_once(tmp_path, partitions, rounds=25)
