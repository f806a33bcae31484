"""Checks of the suite about history: the cost of uploads, and the speed of reading history.

"Off" is a broker whose segment size is larger than anything published here: it checks for uploads, but none is due. The
variants alternate on the same machine and are compared within a round.
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

from pydanube.model.errors import Unavailable
from pydanube.model.limits import MIB
from pydanube.model.policies import SEGMENT_BYTES_MAX

from .broker_process import BrokerProcess
from .results import Result
from .runs import measure
from .scenario import Scenario
from .verdicts import Verdict

GIB: Final = 1024 * MIB

SATURATED: Final = Scenario(size=1000, batch=100, count=1_600_000, partitions=4, consumers=0)
SUSTAINED: Final = Scenario(size=1000, batch=100, count=6_000_000, partitions=16, consumers=0)
"""Enough data that uploads no longer wait for the burst to end: most of the time more than a gigabyte is due."""

UPLOADING: Final = {"DANUBE_STORAGE_SEGMENT_BYTES": str(64 * MIB), "DANUBE_STORAGE_SHUTDOWN_UPLOAD_S": "0"}
OFF: Final = {
    "DANUBE_STORAGE_SEGMENT_BYTES": str(SEGMENT_BYTES_MAX),
    "DANUBE_STORAGE_SEGMENT_AGE_S": str(86_400),
    "DANUBE_STORAGE_SHUTDOWN_UPLOAD_S": "0",
}
KEPT_MIN: Final = 0.75

HALF_LOAD_SIZE: Final = 50_000
HALF_LOAD_SECONDS: Final = 8
HALF_LOAD_PARTITIONS: Final = 8
"""So many that no partition fills a segment if uploads are off."""

P99_GROWTH_MAX: Final = 2.0

HISTORY: Final = Scenario(size=1000, batch=100, count=500_000, consumers=0)
HISTORY_LOG: Final = {"DANUBE_LOG_FILE_BYTES": str(16 * MIB), "DANUBE_STORAGE_SEGMENT_AGE_S": "0"}
HISTORY_RATIO_MIN: Final = 0.5
UPLOAD_SECONDS_MAX: Final = 120.0
LEFT_IN_LOG_BYTES: Final = 64 * MIB


async def saturation(directory: Path, rounds: int) -> Verdict:
    """Compare publishing at full speed with and without uploads."""
    return await _saturation("1 KB x 100, durable: publish while uploading", SATURATED, directory, rounds)


async def sustained(directory: Path, rounds: int) -> Verdict:
    """The same for gigabytes, so that uploads fall behind and no longer wait."""
    return await _saturation("1 KB x 100, durable: publish 6 GB while uploading", SUSTAINED, directory, rounds)


async def _saturation(name: str, scenario: Scenario, directory: Path, rounds: int) -> Verdict:
    pairs: list[tuple[Result, Result]] = []
    uploaded: list[int] = []
    for _ in range(rounds):
        without = await _uploading(scenario, directory, OFF)
        assert not without.uploaded, "off is off"
        uploading = await _uploading(scenario, directory, UPLOADING)
        pairs.append((without.result, uploading.result))
        uploaded.append(uploading.uploaded)
    rates = [(a.throughput.publish, b.throughput.publish) for a, b in pairs if a.throughput and b.throughput]
    ratio = statistics.median(on / off for off, on in rates)
    on, off = statistics.median(b for _, b in rates), statistics.median(a for a, _ in rates)
    share = statistics.median(uploaded) / (scenario.count * scenario.size)
    return Verdict(
        name=name,
        target=f"at least {KEPT_MIN} of publishing without uploads",
        measured=f"{on:,.0f} msg/s (without {off:,.0f}), {share:.0%} uploaded meanwhile",
        ratio=ratio,
        reached=ratio >= KEPT_MIN,
        details=[result.to_dict() for pair in pairs for result in pair],
    )


async def half_load(directory: Path, rounds: int) -> Verdict:
    """Compare the ack latency at half of the maximum rate with and without uploads."""
    pairs: list[tuple[Result, Result]] = []
    for _ in range(rounds):
        # One message per batch here too, because the maximum rate depends on the batch size.
        shape = Scenario(
            size=HALF_LOAD_SIZE, batch=1, count=10_000, partitions=HALF_LOAD_PARTITIONS, consumers=0, latency=False
        )
        full = await _measured(shape, directory, OFF)
        assert full.throughput is not None
        rate = full.throughput.publish / 2
        paced = Scenario(
            size=HALF_LOAD_SIZE,
            batch=1,
            rate=rate,
            count=int(rate * HALF_LOAD_SECONDS),
            partitions=HALF_LOAD_PARTITIONS,
            consumers=0,
            latency=True,
        )
        pairs.append((await _measured(paced, directory, OFF), await _measured(paced, directory, UPLOADING)))
    found = [(_p99(off), _p99(on)) for off, on in pairs]
    growth = statistics.median(on / off for off, on in found)
    on, off = statistics.median(b for _, b in found), statistics.median(a for a, _ in found)
    return Verdict(
        name="50 KB at half load, durable: publish to ack while uploading",
        target=f"p99 at most {P99_GROWTH_MAX:.0f} x without uploads",
        measured=f"p99 {on:.2f} ms (without {off:.2f})",
        ratio=growth,
        reached=growth <= P99_GROWTH_MAX,
        details=[result.to_dict() for pair in pairs for result in pair],
    )


async def history(directory: Path, rounds: int) -> Verdict:
    """Compare reading the same messages from the log and from segments in a directory."""
    found = [await _log_and_objects(directory) for _ in range(rounds)]
    ratio = statistics.median(objects / log for log, objects in found)
    log, objects = statistics.median(a for a, _ in found), statistics.median(b for _, b in found)
    return Verdict(
        name="1 KB x 100: history read from segments on disk",
        target=f"at least {HISTORY_RATIO_MIN} of the rate from the log",
        measured=f"{objects:,.0f} MB/s (log {log:,.0f})",
        ratio=ratio,
        reached=ratio >= HISTORY_RATIO_MIN,
    )


class Uploading(NamedTuple):
    result: Result
    uploaded: int
    """The bytes in objects when the last message was acked."""


async def _uploading(scenario: Scenario, directory: Path, environment: Mapping[str, str]) -> Uploading:
    place = directory / "suite"
    async with _broker(place, environment) as broker:
        result = await measure(scenario, broker.url, broker)
        return Uploading(result, await asyncio.to_thread(_bytes_in, place / "objects" / "segments"))


async def _measured(scenario: Scenario, directory: Path, environment: Mapping[str, str]) -> Result:
    async with _broker(directory / "suite", environment) as broker:
        return await measure(scenario, broker.url, broker)


@asynccontextmanager
async def _broker(place: Path, environment: Mapping[str, str], keep: bool = False) -> AsyncIterator[BrokerProcess]:
    try:
        async with await BrokerProcess.start(place, environment=dict(environment)) as broker:
            yield broker
    finally:
        if not keep:
            shutil.rmtree(place, ignore_errors=True)


async def _log_and_objects(directory: Path) -> tuple[float, float]:
    """Return MB/s from the log and from objects. The broker is restarted before each, so that its cache is empty."""
    place = directory / "history"
    kept = HISTORY_LOG | {"DANUBE_STORAGE_LOG_KEEP_BYTES": str(64 * GIB)}
    trimmed = HISTORY_LOG | {"DANUBE_STORAGE_LOG_KEEP_BYTES": "0"}
    try:
        async with _broker(place, kept, keep=True) as broker:
            await measure(HISTORY, broker.url, broker)
            await _until(lambda: _bytes_in(place / "objects") >= HISTORY.count * HISTORY.size, "upload")
        async with _broker(place, kept, keep=True) as broker:
            log = await _read(broker.url)
        async with _broker(place, trimmed, keep=True) as broker:
            await _touch(broker.url)
            await _until(lambda: _bytes_in(place / "wal") <= LEFT_IN_LOG_BYTES, "trim its log")
        async with _broker(place, trimmed, keep=True) as broker:
            return log, await _read(broker.url)
    finally:
        shutil.rmtree(place, ignore_errors=True)


async def _read(url: str) -> float:
    """Read the whole topic as batches; return megabytes of payload per second."""
    from pydanube.client import connect

    async with connect(url) as client:
        (topic,) = await client.list_topics()
        received = 0
        begin = time.perf_counter()
        async with client.reader(topic, start="earliest") as reader:
            while received < HISTORY.count:
                received += len(await reader.receive_batch())
        return received * HISTORY.size / 1e6 / (time.perf_counter() - begin)


async def _touch(url: str) -> None:
    """Publish one more message, so that the broker checks for uploads and then trims its log."""
    from pydanube.client import connect

    async with connect(url) as client:
        (topic,) = await client.list_topics()
        async with client.producer(topic) as producer:
            await producer.send(b"x")


async def _until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.perf_counter() + UPLOAD_SECONDS_MAX
    while not holds():
        if time.perf_counter() > deadline:
            raise Unavailable(f"the broker did not {what} within {UPLOAD_SECONDS_MAX:.0f} s")
        await asyncio.sleep(0.1)


def _bytes_in(directory: Path) -> int:
    return sum(one.stat().st_blocks * 512 for one in directory.rglob("*") if one.is_file())


def _p99(result: Result) -> float:
    assert result.latency is not None and result.latency.publish_to_ack is not None
    return result.latency.publish_to_ack.p99
