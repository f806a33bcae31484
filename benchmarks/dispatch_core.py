"""The cost of dispatch by the number of messages in flight: microseconds for one operation, on one core.

    python benchmarks/dispatch_core.py [--most 10000000]

The first table is the cost of assigning and acking a batch of 500. The second is a curve: with ten thousand and with
ten million messages in flight, one delivery, one ack and one nack with its redelivery should cost the same. There is no
broker, disk or network: only the decisions of the dispatcher are measured.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable, Iterator
from random import Random

from pydanube.codec.batch import Batch, encode
from pydanube.core.dispatch.cursor import Cursor
from pydanube.core.dispatch.dispatcher import Dispatcher
from pydanube.core.dispatch.policy import Assignment
from pydanube.model.failure import FailurePolicy
from pydanube.model.topics import SubscriptionType

PLENTY = 1 << 50
ROWS = 500
KEYS = 1000
SAMPLES = 300
ROUNDS = 5


class Bench:
    """A subscription with four consumers and an endless stream of one batch."""

    def __init__(self, kind: SubscriptionType, rows: int) -> None:
        self.dispatcher = Dispatcher(kind, Cursor(0), FailurePolicy(delay_ms=0))
        self.rows = rows
        self.end = 0
        self.nacked: list[int] = []
        self.random = Random(1)
        for number in range(1 if kind is SubscriptionType.EXCLUSIVE else 4):
            member, _ = self.dispatcher.attach(f"consumer-{number}")
            member.messages = member.bytes = PLENTY
        payloads, count = [b"x" * 100] * rows, max(1, KEYS // rows)
        keys = [[f"user-{(one * rows + row) % KEYS}" for row in range(rows)] for one in range(count)]
        self.batches = [Batch.trust(memoryview(encode(payloads, keys=one, publish_times=1))) for one in keys]

    def deliver(self) -> list[Assignment]:
        base, self.end = self.end, self.end + self.rows
        return self.dispatcher.offer(self.batches[base // self.rows % len(self.batches)], base, self.end, 0)

    def fill(self, messages: int) -> None:
        while self.end < messages:
            self.deliver()

    def somewhere(self) -> int:
        return self.random.randrange(1, self.end - 1)

    def ack(self) -> None:
        offset = self.somewhere()
        self.dispatcher.ack([(offset, offset + 1)])

    def nack_and_redeliver(self) -> None:
        dispatcher, offset = self.dispatcher, self.somewhere()
        self.nacked.append(offset)
        dispatcher.nack([(offset, offset + 1)], 0)
        dispatcher.release_due(0)
        if (wanted := dispatcher.offset_to_read) is not None and wanted < self.end:
            base = wanted // self.rows * self.rows
            dispatcher.offer(self.batches[base // self.rows % len(self.batches)], base, base + self.rows, 0)

    def ack_nacked(self) -> None:
        """Ack what was nacked, so that it does not affect the next measurement."""
        self.dispatcher.ack([(offset, offset + 1) for offset in self.nacked])
        self.nacked.clear()


def each_us(work: Callable[[], object]) -> float:
    """Return the median time of many single calls."""
    taken: list[int] = []
    for _ in range(SAMPLES):
        begin = time.perf_counter_ns()
        work()
        taken.append(time.perf_counter_ns() - begin)
    return sorted(taken)[SAMPLES // 2] / 1000


def curve(most: int) -> None:
    shapes = [
        ("exclusive, batches of 500", SubscriptionType.EXCLUSIVE, ROWS),
        ("shared, batches of 500", SubscriptionType.SHARED, ROWS),
        ("shared, single messages", SubscriptionType.SHARED, 1),
        ("key-shared, batches of 500", SubscriptionType.KEY_SHARED, ROWS),
        ("key-shared, single messages", SubscriptionType.KEY_SHARED, 1),
    ]
    print(f"{'microseconds for one':30}{'unacked':>12}{'delivery':>10}{'ack':>8}{'nack + redelivery':>19}{'MB':>7}")
    for name, kind, rows in shapes:
        bench = Bench(kind, rows)
        for unacked in sizes(most):
            bench.fill(unacked)
            figures = [each_us(work) for work in (bench.deliver, bench.ack, bench.nack_and_redeliver)]
            bench.ack_nacked()
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
            print(f"{name:30}{unacked:12,}{figures[0]:10.1f}{figures[1]:8.1f}{figures[2]:19.1f}{memory:7,}", flush=True)


def sizes(most: int) -> Iterator[int]:
    size = 10_000
    while size <= most:
        yield size
        size *= 10


def batches() -> None:
    """Measure a batch of 500 for four consumers: assigning it, acking every second message, acking by consumer."""
    print(f"\n{'microseconds for 500 messages':34}{'assign':>8}{'ack':>8}{'ack by consumer':>17}")
    for kind in (SubscriptionType.EXCLUSIVE, SubscriptionType.SHARED, SubscriptionType.KEY_SHARED):
        best = [float("inf")] * 3
        for _ in range(ROUNDS * 20):
            best = [min(pair) for pair in zip(best, one_batch(kind), strict=True)]
        print(f"{kind!s:34}{best[0]:8.1f}{best[1]:8.1f}{best[2]:17.1f}")


def one_batch(kind: SubscriptionType) -> tuple[float, float, float]:
    bench = Bench(kind, ROWS) if kind not in _benches else _benches[kind]
    _benches[kind] = bench
    base = bench.end
    begin = time.perf_counter_ns()
    bench.deliver()
    assigned = time.perf_counter_ns()
    scattered = [(offset, offset + 1) for offset in range(base, bench.end, 2)]
    between = time.perf_counter_ns()
    bench.dispatcher.ack(scattered)
    bench.dispatcher.ack([(start + 1, end + 1) for start, end in scattered])
    acked = time.perf_counter_ns()
    base = bench.end
    theirs = [ranges_of(one, base) for one in bench.deliver()]
    last = time.perf_counter_ns()
    for ranges in theirs:
        bench.dispatcher.ack(ranges)
    done = time.perf_counter_ns()
    return (assigned - begin) / 1000, (acked - between) / 1000, (done - last) / 1000


_benches: dict[SubscriptionType, Bench] = {}


def ranges_of(assignment: Assignment, base: int) -> list[tuple[int, int]]:
    if assignment.scattered is None:
        return assignment.ranges
    return [(base + row, base + row + 1) for row in assignment.scattered.tolist()]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--most", type=int, default=10_000_000, help="messages in flight at most")
    chosen = arguments.parse_args()
    batches()
    print()
    curve(chosen.most)


if __name__ == "__main__":
    main()
