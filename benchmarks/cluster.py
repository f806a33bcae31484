"""A broker of a cluster beside a broker alone, an idle cluster, and a cluster that starts with many partitions.

    python benchmarks/cluster.py                  # everything: nine pairs, 1,000 partitions (some minutes)
    python benchmarks/cluster.py --pairs 3 --partitions 100

Needs an etcd on the PATH, or in DANUBE_ETCD. Its three members do not sync their files: etcd is not what is measured,
and on one machine they would share the disk with the brokers.

durable       throughput and latency of a durable topic, a broker alone and one of three in turns: medians of ratios
idle          changes of etcd's revision in a cluster where nobody does anything
starting      from the start of three processes until every partition has acked a message
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from pydanube.cli.bench.broker_process import BrokerProcess
from pydanube.cli.bench.runs import measure
from pydanube.cli.bench.scenario import Scenario
from pydanube.client import Client, connect
from pydanube.model.errors import DanubeError

sys.path[:0] = [str(Path(__file__).parent.parent / "tests" / one) for one in ("metadata", "process")]
from etcd_cluster import EtcdCluster, etcd_cluster, missing_etcd  # noqa: E402 -- found by the path above

THROUGHPUT_TARGET, LATENCY_TARGET = 0.9, 1.2
IDLE_TARGET_PER_S, START_TARGET_S = 1.0, 10.0
IDLE_SECONDS = 30
SETTLE_SECONDS = 15
"""Before the idle cluster is measured: uploads, checkpoints and manifests of what was published are done."""
TOPICS = 10
"""The partitions of the idle cluster are of this many topics."""
LATENCY = Scenario(size=100, count=2_000, rate=500.0, latency=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--messages", type=int, default=500_000, help="of each throughput measurement")
    parser.add_argument("--partitions", type=int, default=1_000)
    parser.add_argument("--only", choices=["durable", "many"], help="leave out the other part")
    return parser.parse_args()


def settings_of(name: str, etcd: EtcdCluster, prefix: str, directory: Path) -> dict[str, str]:
    return {
        "DANUBE_SERVER_NAME": name,
        "DANUBE_METADATA_URL": etcd.url(prefix),
        "DANUBE_STORAGE_URL": (directory / f"{prefix}-objects").as_uri(),
    }


@asynccontextmanager
async def brokers_of(etcd: EtcdCluster, prefix: str, directory: Path) -> AsyncIterator[list[BrokerProcess]]:
    """Yield three brokers of one cluster, which were started together."""
    async with AsyncExitStack() as stack:
        starting = [
            BrokerProcess.start(directory / f"{prefix}-{name}", environment=settings_of(name, etcd, prefix, directory))
            for name in ("a", "b", "c")
        ]
        brokers = await asyncio.gather(*starting)
        for broker in brokers:
            stack.push_async_callback(broker.stop)
        yield brokers


# A durable topic


async def throughput(url: str, messages: int) -> float:
    result = await measure(Scenario(size=100, count=messages), url)
    assert result.throughput is not None
    return result.throughput.publish


async def latency(url: str) -> float:
    result = await measure(LATENCY, url)
    assert result.latency is not None and result.latency.publish_to_ack is not None
    return result.latency.publish_to_ack.p50


async def durable(wanted: argparse.Namespace, etcd: EtcdCluster, directory: Path) -> bool:
    rates: list[float] = []
    delays: list[float] = []
    alone = await BrokerProcess.start(directory / "alone")
    try:
        async with brokers_of(etcd, "pairs", directory) as brokers:
            urls = [alone.url, "danube://" + ",".join(broker.url.removeprefix("danube://") for broker in brokers)]
            for number in range(wanted.pairs):
                order = urls if number % 2 == 0 else urls[::-1]  # neither is always the first
                rate = {url: await throughput(url, wanted.messages) for url in order}
                delay = {url: await latency(url) for url in order}
                rates.append(rate[urls[1]] / rate[urls[0]])
                delays.append(delay[urls[1]] / delay[urls[0]])
                print(
                    f"pair {number + 1}: {rate[urls[0]]:,.0f} and {rate[urls[1]]:,.0f} messages/s, "
                    f"p50 of an ack {delay[urls[0]]:.2f} and {delay[urls[1]]:.2f} ms",
                    flush=True,
                )
    finally:
        await alone.stop()
    rate, delay = statistics.median(rates), statistics.median(delays)
    print(f"durable throughput, cluster to alone: {rate:.2f} (at least {THROUGHPUT_TARGET})")
    print(f"durable latency, cluster to alone: {delay:.2f} (at most {LATENCY_TARGET})")
    return rate >= THROUGHPUT_TARGET and delay <= LATENCY_TARGET


# Many partitions


async def serve_all(client: Client, topics: Sequence[str], partitions: int) -> None:
    """Publish one message to every partition of the topics; returns when all are acked."""

    async def serve(topic: str) -> None:
        async with client.producer(topic, partition_by="round-robin", batch_messages=1, timeout=120) as producer:
            receipts = await asyncio.gather(*(producer.send(b"one") for _ in range(partitions)))
            assert {one.partition for one in receipts} == set(range(partitions))

    await asyncio.gather(*(serve(topic) for topic in topics))


def revision(etcd: EtcdCluster) -> int:
    return int(etcd.members[0].post("maintenance/status")["header"]["revision"])


async def many(wanted: argparse.Namespace, etcd: EtcdCluster, directory: Path) -> bool:
    each = wanted.partitions // TOPICS
    topics = [f"/default/many-{number}" for number in range(TOPICS)]
    async with brokers_of(etcd, "many", directory) as brokers, connect(brokers[0].url, timeout=120) as client:
        for topic in topics:
            await client.create_topic(topic, partitions=each)
        await serve_all(client, topics, each)
        owners = [one.owner for topic in topics for one in await client.partitions(topic)]
        print("partitions of each broker:", sorted(owners.count(owner) for owner in set(owners)))
        await asyncio.sleep(SETTLE_SECONDS)
        before = revision(etcd)
        await asyncio.sleep(IDLE_SECONDS)
        idle = (revision(etcd) - before) / IDLE_SECONDS
    print(f"idle, {wanted.partitions} partitions: {idle:.2f} transactions/s (at most {IDLE_TARGET_PER_S})")
    begin = time.perf_counter()
    async with brokers_of(etcd, "many", directory) as brokers:
        ready = time.perf_counter() - begin
        async with connect(brokers[0].url, timeout=120) as client:
            await serve_all(client, topics, each)
        seconds = time.perf_counter() - begin
    print(f"starting, {wanted.partitions} partitions: ready after {ready:.1f} s, all serve after {seconds:.1f} s "
          f"(at most {START_TARGET_S})")  # fmt: skip
    return idle <= IDLE_TARGET_PER_S and seconds <= START_TARGET_S


async def main() -> int:
    wanted = arguments()
    if missing := missing_etcd():
        sys.exit(missing)
    reached = True
    with tempfile.TemporaryDirectory() as name, etcd_cluster(Path(name) / "etcd", 3) as etcd:
        try:
            if wanted.only != "many":
                reached &= await durable(wanted, etcd, Path(name))
            if wanted.only != "durable":
                reached &= await many(wanted, etcd, Path(name))
        except DanubeError as error:
            sys.exit(f"not measured: {error}")
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
