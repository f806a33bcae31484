"""The targets of the project as scenarios: each is measured with its baseline and gets a verdict.

A ratio is the median over rounds that alternate broker and baseline, so that a busy machine slows both.
"""

from __future__ import annotations

import statistics
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

import msgspec

from pydanube.cli.output import size
from pydanube.model.errors import DanubeError

from . import delivery, tiering
from .broker_process import BrokerProcess
from .results import Result
from .runs import measure_baselines, measure_pipeline
from .scenario import Scenario
from .verdicts import BATCHES, PACED, Check, Verdict, run_alone

MEMORY_LOAD_BYTES: Final = 5_000_000_000
MEMORY_MAX: Final = 400_000_000
READY_SECONDS_MAX: Final = 1.5
RECOVERY_MEGABYTES_MIN: Final = 200
RECOVERY_RECORDS_MIN: Final = 300_000
MESSAGES_MIN: Final = 400_000
WRITTEN_ACK_MS_MAX: Final = 0.5


Says = Callable[[str], None]

LARGER: Final = Scenario(size=1000, batch=100, count=300_000)


async def run(directory: Path, *, rounds: int, full: bool, says: Says) -> AsyncIterator[Verdict]:
    """Measure one target after the other and yield each verdict."""
    checks: list[tuple[str, Check]] = [
        ("integrity", _integrity),
        ("100 B x 500, durable, batches", _batches),
        ("100 B x 500, durable, one message at a time", _messages),
        ("1 KB x 100, durable, batches", _larger),
        ("latency, durable", _latency_durable),
        ("latency, written", _latency_written),
        ("latency, memory", _latency_memory),
        ("1,000 topics", _topics),
        ("shared, 4 consumers", delivery.shared),
        ("key-shared, 4 consumers", delivery.key_shared),
        ("20 subscriptions", delivery.subscriptions),
        ("latency, non-reliable", delivery.non_reliable),
        ("cost of a backlog", delivery.backlog),
        ("publishing while uploading", tiering.saturation),
        ("latency while uploading", tiering.half_load),
        ("reading history", tiering.history),
        ("start-up", _start_up),
        ("recovery of 16 KB batches", _recovery_large),
        ("recovery of small batches", _recovery_small),
    ]
    if full:
        checks += [("publishing gigabytes while uploading", tiering.sustained), ("memory", _memory)]
    for name, check in checks:
        says(name)
        try:
            yield await check(directory, rounds)
        except (DanubeError, OSError) as error:  # a target that cannot be measured does not stop the others
            yield Verdict(name=name, target="to be measured", measured=f"failed: {error}", reached=False)


async def _against_pipeline(name: str, scenario: Scenario, directory: Path, rounds: int) -> Verdict:
    results: list[Result] = []
    for _ in range(rounds):
        result = await run_alone(scenario, directory)
        result.baselines.pipeline = await measure_pipeline(scenario, directory)
        results.append(result)
    ratio = statistics.median(result.ratios()["throughput_to_pipeline"] for result in results)
    rate = statistics.median(result.throughput.best for result in results if result.throughput)
    base = statistics.median(result.baselines.pipeline.best for result in results if result.baselines.pipeline)
    measured = f"{rate:,.0f} msg/s, {rate * scenario.size / 1e6:,.0f} MB/s (pipeline {base:,.0f})"
    return Verdict(
        name=name,
        target="at least 0.5 of the bare pipeline",
        measured=measured,
        ratio=ratio,
        reached=ratio >= 0.5,
        details=[result.to_dict() for result in results],
    )


async def _batches(directory: Path, rounds: int) -> Verdict:
    return await _against_pipeline("100 B x 500, durable, as batches", BATCHES, directory, rounds)


async def _larger(directory: Path, rounds: int) -> Verdict:
    return await _against_pipeline("1 KB x 100, durable, as batches", LARGER, directory, rounds)


async def _messages(directory: Path, rounds: int) -> Verdict:
    scenario = msgspec.structs.replace(BATCHES, receive="messages", count=1_000_000)
    results = [await run_alone(scenario, directory) for _ in range(rounds)]
    rate = statistics.median(result.throughput.end_to_end for result in results if result.throughput)
    return Verdict(
        name="100 B x 500, durable, message by message with acks",
        target=f"at least {MESSAGES_MIN:,} msg/s",
        measured=f"{rate:,.0f} msg/s",
        ratio=None,
        reached=rate >= MESSAGES_MIN,
        details=[result.to_dict() for result in results],
    )


async def _paced(ack_level: str, directory: Path, rounds: int) -> list[Result]:
    scenario = msgspec.structs.replace(PACED, ack_level=ack_level)
    results = []
    for _ in range(rounds):
        result = await run_alone(scenario, directory)
        result.baselines = await measure_baselines(scenario, directory)
        results.append(result)
    return results


async def _latency_durable(directory: Path, rounds: int) -> Verdict:
    results = await _paced("durable", directory, rounds)
    ratio = statistics.median(result.ratios()["ack_p50_to_sync_p50"] for result in results)
    ack, base = _p50(results), statistics.median(r.baselines.sync.p50 for r in results if r.baselines.sync)
    return Verdict(
        name="1,000/s one by one, durable: publish to ack",
        target="p50 at most 3 x fdatasync p50",
        measured=f"p50 {ack:.3f} ms (fdatasync {base:.3f})",
        ratio=ratio,
        reached=ratio <= 3,
        details=[result.to_dict() for result in results],
    )


async def _latency_written(directory: Path, rounds: int) -> Verdict:
    results = await _paced("written", directory, rounds)
    ack = _p50(results)
    return Verdict(
        name="1,000/s one by one, written: publish to ack",
        target=f"p50 at most {WRITTEN_ACK_MS_MAX} ms",
        measured=f"p50 {ack:.3f} ms",
        reached=ack <= WRITTEN_ACK_MS_MAX,
        details=[result.to_dict() for result in results],
    )


async def _latency_memory(directory: Path, rounds: int) -> Verdict:
    results = await _paced("memory", directory, rounds)
    ratio = statistics.median(result.ratios()["receive_p99_to_echo_p99"] for result in results)
    receive = [r.latency.publish_to_receive.p99 for r in results if r.latency and r.latency.publish_to_receive]
    base = statistics.median(r.baselines.echo.p99 for r in results if r.baselines.echo)
    return Verdict(
        name="1,000/s one by one, memory: publish to receive",
        target="p99 at most 3 x asyncio echo p99",
        measured=f"p99 {statistics.median(receive):.3f} ms (echo {base:.3f})",
        ratio=ratio,
        reached=ratio <= 3,
        details=[result.to_dict() for result in results],
    )


def _p50(results: list[Result]) -> float:
    return statistics.median(r.latency.publish_to_ack.p50 for r in results if r.latency and r.latency.publish_to_ack)


async def _topics(directory: Path, rounds: int) -> Verdict:
    one = msgspec.structs.replace(BATCHES, consumers=0, count=1_500_000)
    many = msgspec.structs.replace(one, topics=1000)
    pairs = [(await run_alone(one, directory), await run_alone(many, directory)) for _ in range(rounds)]
    rates = [(a.throughput.publish, b.throughput.publish) for a, b in pairs if a.throughput and b.throughput]
    ratio = statistics.median(several / single for single, several in rates)
    several, single = statistics.median(b for _, b in rates), statistics.median(a for a, _ in rates)
    return Verdict(
        name="1,000 topics in turn, durable: publish",
        target="at least 0.5 of one topic",
        measured=f"{several:,.0f} msg/s (one topic {single:,.0f})",
        ratio=ratio,
        reached=ratio >= 0.5,
        details=[result.to_dict() for pair in pairs for result in pair],
    )


async def _integrity(directory: Path, rounds: int) -> Verdict:
    scenario = msgspec.structs.replace(BATCHES, partitions=3, producers=2, consumers=2, verify=True, count=500_000)
    result = await run_alone(scenario, directory)
    faults = ", ".join(f"{count:,} {kind}" for kind, count in (result.faults or {}).items())
    return Verdict(
        name="2 producers, 3 partitions, 2 consumers: integrity",
        target="every message once, in order, content checked",
        measured=faults or f"{result.received:,} verified",
        reached=not result.faults,
        details=[result.to_dict()],
    )


async def _start_up(directory: Path, rounds: int) -> Verdict:
    import shutil

    taken: list[float] = []
    for index in range(max(3, rounds)):
        place = directory / f"start-{index}"
        async with await BrokerProcess.start(place) as broker:
            taken.append(broker.ready_seconds)
        shutil.rmtree(place, ignore_errors=True)
    median = statistics.median(taken)
    return Verdict(
        name="start-up to readiness, empty data directory",
        target=f"under {READY_SECONDS_MAX} s",
        measured=f"{median:.2f} s",
        reached=median < READY_SECONDS_MAX,
    )


async def _recovery_large(directory: Path, rounds: int) -> Verdict:
    from .recovering import measure as recover

    taken = [await recover(directory, size=1000, batch=16, records=20_000) for _ in range(rounds)]
    rate = statistics.median(one.megabytes_per_second for one in taken)
    return Verdict(
        name="recovery, batches of 16 KB",
        target=f"at least {RECOVERY_MEGABYTES_MIN} MB/s",
        measured=f"{rate:,.0f} MB/s",
        reached=rate >= RECOVERY_MEGABYTES_MIN,
        details=[msgspec.to_builtins(one) for one in taken],
    )


async def _recovery_small(directory: Path, rounds: int) -> Verdict:
    from .recovering import measure as recover

    taken = [await recover(directory, size=100, batch=1, records=200_000) for _ in range(rounds)]
    rate = statistics.median(one.records_per_second for one in taken)
    return Verdict(
        name="recovery, one message of 100 B a batch",
        target=f"at least {RECOVERY_RECORDS_MIN:,} records/s",
        measured=f"{rate:,.0f} records/s",
        reached=rate >= RECOVERY_RECORDS_MIN,
        details=[msgspec.to_builtins(one) for one in taken],
    )


async def _memory(directory: Path, rounds: int) -> Verdict:
    count = MEMORY_LOAD_BYTES // 1000
    result = await run_alone(Scenario(size=1000, batch=100, count=count, consumers=0), directory)
    peak = result.broker_bytes_peak
    return Verdict(
        name="5 GB taken without a consumer: broker memory",
        target=f"under {size(MEMORY_MAX)} resident",
        measured=size(peak) if peak is not None else "this kernel does not tell",
        reached=peak is not None and peak < MEMORY_MAX,
        details=[result.to_dict()],
    )
