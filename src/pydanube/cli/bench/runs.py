"""One measurement: starts a broker, producers and consumers, releases them together and collects their results.

Producers and consumers first prepare (connect, subscribe, make payloads), then all are started. Throughput is measured
from the first send of any producer to the last ack (publish), and to the last message at the slowest consumer (end to
end). An exclusive consumer receives everything; with other types, the consumers of a subscription share it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from pydanube.cli.connecting import ANSWER_SECONDS, REACH_SECONDS
from pydanube.codec.batch import HEADER_BYTES
from pydanube.model.limits import ALIGNMENT
from pydanube.runtime.randomness import identity

from . import baselines as baseline_runs
from .broker_process import BrokerProcess
from .checking import Faults, add_faults, compare, unpack
from .measure import MachineMeter, cpu_seconds, percentiles
from .results import Baselines, Latency, Result, Throughput, cpu_per_message
from .scenario import Scenario
from .workers import BenchWorker, Workers

RECORD_HEADER_BYTES: Final = 64
WARM_UP_SHARE: Final = 0.05
BASELINE_COUNT_MAX: Final = 3_000_000
IDLE_SECONDS_MAX: Final = 20.0
"""If nothing is received for this long after the last publish, the missing messages are lost."""
LOSSY_IDLE_SECONDS: Final = 0.5
"""The same for non-reliable topics, where every delivered message is already on its way."""
COUNT_SECONDS: Final = 0.01
STRAGGLER_SECONDS: Final = 0.25
"""With verification: how long to wait for unexpected messages."""


async def measure(scenario: Scenario, url: str, broker: BrokerProcess | None = None) -> Result:
    """Run the scenario against a broker, on new topics, which are not deleted."""
    topics = [f"/default/bench-{identity()[:8]}-{index}" for index in range(scenario.topics)]
    await _create_topics(scenario, url, topics)
    async with Workers() as workers:
        common: dict[str, Any] = {
            "scenario": scenario.to_dict(),
            "url": url,
            "topics": topics,
        }
        consumers = [await workers.start("consumer", index=i, **common) for i in range(scenario.consumers)]
        producers = [
            await workers.start("producer", index=i, precise=scenario.latency, **common)
            for i in range(scenario.producers)
        ]
        await asyncio.gather(*(worker.ready() for worker in (*consumers, *producers)))
        broker_cpu, machine = cpu_seconds(broker.pid) if broker else 0.0, MachineMeter()
        await asyncio.gather(*(consumer.go() for consumer in consumers))
        await asyncio.gather(*(producer.go() for producer in producers))
        produced = await asyncio.gather(*(producer.result() for producer in producers))
        received = await _finish(scenario, consumers, sum(p["sent"] for p in produced))
        resident = broker.resident() if broker else None
        broker_cpu = cpu_seconds(broker.pid) - broker_cpu if broker else 0.0
        others = machine.others(broker_cpu + sum(one["cpu_seconds"] for one in (*produced, *received)))
    result = _combine(scenario, produced, received, broker_cpu)
    result.broker_bytes_peak = resident[1] if resident else None
    result.others_cores = others
    result.broker_ready_seconds = broker.ready_seconds if broker else None
    return result


async def _create_topics(scenario: Scenario, url: str, topics: list[str]) -> None:
    from pydanube.client import connect

    client = connect(url, timeout=ANSWER_SECONDS)
    client.reach_seconds = REACH_SECONDS
    async with client:
        for topic in topics:
            await client.create_topic(
                topic, partitions=scenario.partitions, reliable=scenario.reliable, ack_level=scenario.ack_level
            )


async def _finish(scenario: Scenario, consumers: list[BenchWorker], sent: int) -> list[dict[str, Any]]:
    """After publishing, wait until everything was received or nothing more comes; return the consumers' results."""
    idle_seconds = IDLE_SECONDS_MAX if scenario.reliable else LOSSY_IDLE_SECONDS
    expected, before, moved = sent * scenario.subscription_count, -1, time.perf_counter()
    while consumers:
        counted = sum(one["received"] for one in await asyncio.gather(*(consumer.count() for consumer in consumers)))
        if counted != before:
            before, moved = counted, time.perf_counter()
        if counted >= expected or time.perf_counter() - moved > idle_seconds:
            break
        await asyncio.sleep(COUNT_SECONDS)
    if scenario.verify:
        await asyncio.sleep(STRAGGLER_SECONDS)
    await asyncio.gather(*(consumer.send({"count": {"enough": True}}) for consumer in consumers))
    return await asyncio.gather(*(consumer.result() for consumer in consumers))


def _compare_subscriptions(scenario: Scenario, sent: dict[int, int], received: list[dict[str, Any]]) -> Faults:
    """Compare what was sent with what the consumers of each subscription received."""
    faults = [saw["faults"] for one in received for saw in one["saw"].values()]
    keys = scenario.keys if scenario.type == "key-shared" and scenario.topics == 1 else 0
    for number in range(scenario.subscription_count):
        parts = [unpack(one["saw"][str(number)]["seen"]) for one in received if str(number) in one["saw"]]
        faults.append(compare(parts, sent, lossy=not scenario.reliable, keys=keys))
    return add_faults(faults)


def _combine(
    scenario: Scenario, produced: list[dict[str, Any]], received: list[dict[str, Any]], broker_cpu: float
) -> Result:
    begin = min(p["begin_ns"] for p in produced)
    sent = sum(p["sent"] for p in produced)
    result = Result(scenario=scenario, sent=sent, received=sum(r["received"] for r in received))
    if scenario.verify:
        result.faults = _compare_subscriptions(scenario, {i: p["sent"] for i, p in enumerate(produced)}, received)
    if not scenario.reliable:
        result.dropped = sent * scenario.subscription_count - result.received
    if scenario.latency:
        result.latency = Latency(
            publish_to_ack=percentiles(_join_samples(produced, "acked_ns")),
            publish_to_receive=percentiles(_join_samples(received, "taken_ns")),
            late=percentiles(_join_samples(produced, "late_ns")),
            cpu_us=cpu_per_message(sent, produced, broker_cpu, received),
        )
    else:
        publish_seconds = (max(p["end_ns"] for p in produced) - begin) / 1e9
        seconds = (max(r["end_ns"] for r in received) - begin) / 1e9 if received else 0.0
        result.throughput = Throughput(
            publish=sent / publish_seconds,
            end_to_end=(sent - result.dropped / scenario.subscription_count) / seconds if seconds else 0.0,
            delivered=result.received / seconds if seconds else 0.0,
            size=scenario.size,
            cpu_us=cpu_per_message(sent, produced, broker_cpu, received),
        )
    return result


def _join_samples(parts: list[dict[str, Any]], name: str) -> list[int]:
    """Return the samples of all parts, without the warm-up share at the start of each."""
    return [sample for part in parts for sample in part[name][int(len(part[name]) * WARM_UP_SHARE) :]]


async def measure_baselines(scenario: Scenario, directory: Path) -> Baselines:
    """Measure the baselines that apply to the scenario; `directory` is on the broker's disk."""
    found = Baselines()
    if scenario.latency:
        found.echo = await baseline_runs.echo(scenario)
    else:
        found.loopback_gigabytes_per_second = await baseline_runs.loopback_gigabytes_per_second()
        found.pipeline = await measure_pipeline(scenario, directory)
    if scenario.ack_level == "durable" and scenario.reliable:
        found.sync_bytes = _write_bytes(scenario)
        found.sync = await baseline_runs.sync(directory, found.sync_bytes)
    return found


async def measure_pipeline(scenario: Scenario, directory: Path) -> Throughput:
    import msgspec

    count = min(scenario.count or BASELINE_COUNT_MAX, BASELINE_COUNT_MAX)
    ack_level = scenario.ack_level if scenario.reliable else "memory"
    rates = await baseline_runs.pipeline(msgspec.structs.replace(scenario, count=count, ack_level=ack_level), directory)
    return Throughput(
        publish=rates["publish_per_second"],
        end_to_end=rates["end_to_end_per_second"],
        size=scenario.size,
        cpu_us=rates["cpu_us"],
        others_cores=rates["others_cores"],
    )


def _write_bytes(scenario: Scenario) -> int:
    """Return the aligned bytes that the log writes for a batch: record header, batch header, offsets and payloads."""
    rows = 1 if scenario.latency else scenario.batch
    plain = RECORD_HEADER_BYTES + HEADER_BYTES + rows * (scenario.size + 4)
    return -(-plain // ALIGNMENT) * ALIGNMENT


@asynccontextmanager
async def broker_for(url: str | None, directory: Path) -> AsyncIterator[tuple[str, BrokerProcess | None]]:
    """Return the broker at `url`, or start one in `directory` that ends with the block."""
    if url is not None:
        yield url, None
        return
    async with await BrokerProcess.start(directory / "broker") as broker:
        yield broker.url, broker
