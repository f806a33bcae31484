"""What one batch costs in each stage of the hot path, on one core: microseconds per batch and nanoseconds per message.

    python benchmarks/micro.py [--size 100] [--batch 500]

`danube bench` measures whole processes; this says where its time goes.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from crc32c import crc32c

from pydanube.cli.bench.checking import DeliveryVerifier
from pydanube.cli.bench.load import PayloadSource
from pydanube.codec.batch import Batch, Codec, encode, read_header
from pydanube.core.meters import Traffic
from pydanube.core.sizes import Sizes

NOW = 1_700_000_000_000_000
ROUNDS = 5


def best(work: Callable[[], object], seconds: float = 0.2) -> float:
    """Return the seconds of one call, the best of some rounds, because noise only adds time."""
    calls = 1
    while (taken := _timed(work, calls)) < seconds / 10:
        calls *= 4
    calls = max(1, int(calls * seconds / taken))
    return min(_timed(work, calls) for _ in range(ROUNDS)) / calls


def _timed(work: Callable[[], object], calls: int) -> float:
    begin = time.perf_counter()
    for _ in range(calls):
        work()
    return time.perf_counter() - begin


class BatchCounters:
    """The counters that a broker updates for every batch: totals, rates, and bytes by position."""

    def __init__(self, messages: int, size_bytes: int) -> None:
        self._messages, self._bytes = messages, size_bytes
        self._traffic, self._sizes = Traffic(), Sizes(0)
        self._offset, self._now = 0, NOW

    def __call__(self) -> None:
        base, self._now = self._offset, self._now + 100
        self._offset = base + self._messages
        self._sizes.add(base, self._offset, self._bytes)
        self._traffic.mark(self._now, self._messages, self._bytes)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--size", type=int, default=100)
    arguments.add_argument("--batch", type=int, default=500)
    chosen = arguments.parse_args()
    payloads = PayloadSource(producer=0, size=chosen.size, batch=chosen.batch, verify=False).take(chosen.batch)
    keys: list[str | None] = [f"user-{number % 50}" for number in range(chosen.batch)]
    plain = encode(payloads, publish_times=NOW)
    packed = encode(payloads, publish_times=NOW, codec=Codec.ZSTD)
    opened = Batch.open(plain)
    verifier = DeliveryVerifier(size=chosen.size)
    work: dict[str, Callable[[], object]] = {
        "encode": lambda: encode(payloads, publish_times=NOW),
        "encode with keys": lambda: encode(payloads, keys=keys, publish_times=NOW),
        "encode zstd": lambda: encode(payloads, publish_times=NOW, codec=Codec.ZSTD),
        "read_header": lambda: read_header(plain),
        "crc32c of the batch": lambda: crc32c(plain),
        "open (all checks)": lambda: Batch.open(plain),
        "open zstd": lambda: Batch.open(packed),
        "trust (no checks)": lambda: Batch.trust(plain),
        "stamp": lambda: opened.stamp(7, NOW, 1),
        "count it": BatchCounters(chosen.batch, len(plain)),
        "payloads as a list": lambda: Batch.trust(plain).payloads,
        "messages, one by one": lambda: [message.payload for message in Batch.trust(plain).messages()],
        "bench: verify": lambda: verifier.check("/default/t", 0, payloads),
    }
    print(f"{chosen.batch} messages of {chosen.size} B: a batch of {len(plain):,} B")
    for name, call in work.items():
        seconds = best(call)
        print(f"  {name:<24} {seconds * 1e6:9.2f} us/batch {seconds * 1e9 / chosen.batch:9.1f} ns/message")


if __name__ == "__main__":
    main()
