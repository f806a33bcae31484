"""From kill -9 of a broker until every `stored` partition that it had acks again, at other brokers.

    python benchmarks/failover.py                          # 200 and 1,000 partitions, and 100 slices of 1 MiB
    python benchmarks/failover.py --partitions 200 --slices 0
    python benchmarks/failover.py --partitions 1000 --slices 100

Needs an etcd on the PATH, or in DANUBE_ETCD; its member does not sync its files. The first of three brokers has all
partitions and is the coordinator. It is killed after every partition has acked a message, and what was published is in
slices alone: no segment was made of it. The time is that after the session, which is 3 s: a lost broker is not noticed
before.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

from pydanube.cli.bench.broker_process import BrokerProcess
from pydanube.client import Client, connect
from pydanube.model.errors import DanubeError

sys.path[:0] = [str(Path(__file__).parent.parent / "tests" / one) for one in ("metadata", "process")]
from etcd_cluster import EtcdCluster, etcd_cluster, missing_etcd  # noqa: E402 -- found by the path above

SESSION_S = 3
SLICE_BYTES = 1 << 20
TOPIC = "/default/failover"
TARGETS_S = {200: 3.0, 1_000: 10.0}
"""By number of partitions: the seconds after the session."""
SLICES_TARGET_S = 10.0
"""So much more with 100 slices."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, help="one run with so many")
    parser.add_argument("--slices", type=int, default=0, help="of 1 MiB, which are no segments yet")
    parser.add_argument("--logs", action="store_true", help="print the logs of the brokers that were not killed")
    return parser.parse_args()


def settings_of(name: str, etcd: EtcdCluster, directory: Path) -> dict[str, str]:
    return {
        "DANUBE_SERVER_NAME": name,
        "DANUBE_METADATA_URL": etcd.url("failover"),
        "DANUBE_STORAGE_URL": (directory / "objects").as_uri(),
        "DANUBE_STORAGE_SEGMENT_AGE_S": "3600",
        "DANUBE_CLUSTER_SESSION_S": str(SESSION_S),
    }


async def publish_to_all(client: Client, partitions: int) -> None:
    """Publish one message to each partition; returns when all are acked."""
    async with client.producer(TOPIC, partition_by="round-robin", batch_messages=1, timeout=300) as producer:
        receipts = await asyncio.gather(*(producer.send(b"one") for _ in range(partitions)))
        assert {one.partition for one in receipts} == set(range(partitions))


async def fill_slices(client: Client, count: int) -> None:
    async with client.producer(TOPIC, partition_by=0, timeout=60) as producer:
        for _ in range(count):
            await producer.send(os.urandom(SLICE_BYTES - 1024))


async def fail_over(partitions: int, slices: int, logs: bool) -> float:
    """Return the seconds from the end of the session until every partition has acked."""
    with tempfile.TemporaryDirectory() as name, etcd_cluster(Path(name) / "etcd", 1) as etcd:
        directory = Path(name)
        async with AsyncExitStack() as stack:
            brokers = []
            for broker in "abc":
                made = await BrokerProcess.start(directory / broker, environment=settings_of(broker, etcd, directory))
                stack.push_async_callback(made.stop)
                brokers.append(made)
                if broker == "a":  # it gets all partitions
                    async with connect(made.url, timeout=300) as client:
                        await client.create_topic(TOPIC, partitions=partitions, ack_level="stored")
                        await publish_to_all(client, partitions)
                        await fill_slices(client, slices)
            url = "danube://" + ",".join(one.url.removeprefix("danube://") for one in brokers[1:])
            async with connect(url, timeout=300) as client:
                begin = time.perf_counter()
                os.kill(brokers[0].pid, signal.SIGKILL)
                await publish_to_all(client, partitions)
                seconds = time.perf_counter() - begin - SESSION_S
            if logs:
                print(*(one.logs() for one in brokers[1:]), sep="\n")
    return seconds


async def main() -> int:
    wanted = arguments()
    if missing := missing_etcd():
        sys.exit(missing)
    runs = [(200, 0), (1_000, 0), (1_000, 100)]
    if wanted.partitions is not None:
        runs = [(wanted.partitions, wanted.slices)]
    reached = True
    for partitions, slices in runs:
        try:
            seconds = await fail_over(partitions, slices, wanted.logs)
        except DanubeError as error:
            sys.exit(f"not measured: {error}")
        target = TARGETS_S.get(partitions, TARGETS_S[1_000]) + (SLICES_TARGET_S if slices else 0)
        print(
            f"{partitions} partitions, {slices} slices of 1 MiB: all ack {seconds:.1f} s after the session "
            f"(at most {target:.0f})",
            flush=True,
        )
        reached &= seconds <= target
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
