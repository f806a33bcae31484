"""The size of etcd's file while segments are uploaded and deleted, for as long as a cluster lives.

    python benchmarks/etcd_churn.py                            # 100,000 segments, as if in ten hours
    python benchmarks/etcd_churn.py --segments 10000 --hours 1

Needs an etcd on the PATH, or in DANUBE_ETCD; its member does not sync its files. The transactions are the broker's own:
the record of an upload, the catalog entries with the partition's record, the start that retention moves, the removal,
and the mark and removal of garbage. The objects are in memory. The clock is simulated: the rounds of the garbage
collector and of the compaction come as often as in a broker. etcd is never defragmented.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from pydanube.broker.cluster.compaction import EVERY_S, MetadataCompaction
from pydanube.broker.cluster.membership import SoleMembership
from pydanube.broker.partitions.ownership import Ownership
from pydanube.broker.registry.ids import LEDGER_COUNTER, IdBlocks
from pydanube.metadata.etcd.place import EtcdPlace, parse_members
from pydanube.metadata.etcd.store import EtcdStore
from pydanube.metadata.store import Compare, Delete, Put, TransactionResult
from pydanube.model.errors import DanubeError
from pydanube.model.limits import MIB
from pydanube.runtime.clock import MICROSECONDS, ManualClock, SystemClock
from pydanube.runtime.objects.memory import MemoryStore
from pydanube.storage.segments.catalog import Catalog, CatalogSegment, SegmentRecord, entries, uploading
from pydanube.storage.segments.garbage_collector import GarbageCollector

sys.path[:0] = [str(Path(__file__).parent.parent / "tests" / one) for one in ("metadata", "process")]
from etcd_cluster import EtcdMember, etcd_cluster, missing_etcd  # noqa: E402 -- found by the path above

TARGET_BYTES = 256 * MIB
PARTITIONS = 100
KEPT_SEGMENTS = 5
"""Of each partition; retention drops older ones."""
SEGMENT_MESSAGES = 10_000
SEGMENT_BYTES = 64 * MIB
GRACE_US = 600 * MICROSECONDS


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--segments", type=int, default=100_000)
    parser.add_argument("--hours", type=float, default=10.0, help="the time in which they are uploaded and deleted")
    return parser.parse_args()


class CountingStore(EtcdStore):
    """Counts the transactions."""

    transactions = 0

    async def transact(self, compares: Sequence[Compare], writes: Sequence[Put | Delete]) -> TransactionResult:
        self.transactions += 1
        return await super().transact(compares, writes)


class ChurningPartition:
    """One partition whose segments come and go."""

    def __init__(self, ownership: Ownership, catalog: Catalog, clock: ManualClock) -> None:
        self._ownership = ownership
        self._catalog = catalog
        self._clock = clock
        self._segments: list[CatalogSegment] = []
        self._total = 0

    async def upload(self) -> None:
        """List one more segment, as an uploader does, and drop what retention does not keep."""
        first, now_us = self._ownership.uploaded_end, self._clock.now_us()
        end, topic_id, index = first + SEGMENT_MESSAGES, self._ownership.topic_id, self._ownership.index
        key = f"segments/{topic_id:016x}/{index:08x}/{first:020d}-{1:016x}-{1:08x}-{'a' * 32}-{first:08x}.seg"
        self._total += SEGMENT_BYTES
        record = SegmentRecord(
            key, first, 64, 64 + SEGMENT_BYTES, SEGMENT_BYTES + 64, SEGMENT_BYTES + 4096, 0, 1, 1, SEGMENT_MESSAGES,
            now_us, now_us, self._total,
        )  # fmt: skip
        segment = CatalogSegment(topic_id, index, end, record)
        await self._catalog.begin_upload(key, now_us)
        await self._ownership.upload(entries(segment), end, [uploading(key)])
        await self._catalog.end_upload(key)
        self._segments.append(segment)
        gone, self._segments = self._segments[:-KEPT_SEGMENTS], self._segments[-KEPT_SEGMENTS:]
        if gone:
            await self._ownership.move_start(gone[-1].end_offset)
            await self._catalog.remove(gone, now_us, self._ownership.rewrite)


class FileSizes:
    """The size of a member's database, as it is sampled."""

    def __init__(self, member: EtcdMember) -> None:
        self._member = member
        self.largest = 0

    def sample(self) -> tuple[int, int]:
        """Return the size of the file, and how much of it is in use."""
        status = self._member.post("maintenance/status")
        size = int(status["dbSize"])
        self.largest = max(self.largest, size)
        return size, int(status.get("dbSizeInUse", 0))


async def churn(wanted: argparse.Namespace, store: CountingStore, sizes: FileSizes) -> None:
    clock = ManualClock()
    catalog, objects = Catalog(store), MemoryStore()
    collector = GarbageCollector(objects, catalog, clock, GRACE_US)
    compaction = MetadataCompaction(store, SoleMembership("a"), clock)
    partitions = []
    for index in range(PARTITIONS):
        ownership = Ownership(store, IdBlocks(store, LEDGER_COUNTER, 1000), 1, index, SoleMembership("a"))
        await ownership.acquire()
        partitions.append(ChurningPartition(ownership, catalog, clock))
    rounds = wanted.segments // PARTITIONS
    step_s, since_round = wanted.hours * 3600 / rounds, 0.0
    begin = time.perf_counter()
    for number in range(1, rounds + 1):
        await asyncio.gather(*(one.upload() for one in partitions))
        clock.advance(step_s)
        since_round += step_s
        if since_round >= EVERY_S or number == rounds:
            since_round = 0.0
            await collector.collect_garbage()
            await compaction.round()
        if number % max(1, rounds // 20) == 0:
            size, in_use = sizes.sample()
            print(
                f"  {number * PARTITIONS:>7,} segments, {number * step_s / 3600:5.1f} h: file {size / MIB:6.1f} MiB, "
                f"in use {in_use / MIB:6.1f} MiB, {time.perf_counter() - begin:.0f} s",
                flush=True,
            )


async def main() -> int:
    wanted = arguments()
    if missing := missing_etcd():
        sys.exit(missing)
    with tempfile.TemporaryDirectory() as name, etcd_cluster(Path(name) / "etcd", 1) as etcd:
        members, prefix = parse_members(etcd.url("churn"))
        sizes = FileSizes(etcd.members[0])
        try:
            async with await CountingStore.open(EtcdPlace(members, prefix), SystemClock()) as store:
                await churn(wanted, store, sizes)
                transactions = store.transactions
        except DanubeError as error:
            sys.exit(f"not measured: {error}")
    print(
        f"{wanted.segments:,} segments in {wanted.hours:g} h: {transactions / wanted.segments:.1f} transactions for "
        f"each; etcd's file {sizes.largest / MIB:.0f} MiB at most (at most {TARGET_BYTES // MIB})"
    )
    return 0 if sizes.largest <= TARGET_BYTES else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
