"""The suite's checks of delivery: each subscription type, many subscriptions and a backlog, beside the plain case.

The baseline is one exclusive consumer of the same topic kind, measured in turn with what is compared to it.
"""

from __future__ import annotations

import shutil
import statistics
from pathlib import Path
from typing import Any, Final

import msgspec

from pydanube.cli.output import size

from .results import Result
from .runs import broker_for
from .scenario import Scenario
from .verdicts import BATCHES, PACED, Verdict, run_alone
from .workers import Workers

SHARE_MIN: Final = 0.4
SUBSCRIPTIONS: Final = 20
DELIVERED_MIN: Final = 3.0
MEMORY_GROWTH_MAX: Final = 1.2
BACKLOGS: Final = (10_000, 100_000, 1_000_000, 10_000_000)
COST_GROWTH_MAX: Final = 2.0
"""For a thousand times the backlog. The median of a hundred round trips is not more precise than this."""


async def shared(directory: Path, rounds: int) -> Verdict:
    scenario = msgspec.structs.replace(BATCHES, type="shared", consumers=4)
    return await _share_of_exclusive("100 B x 500, shared by 4 consumers", scenario, BATCHES, directory, rounds)


async def key_shared(directory: Path, rounds: int) -> Verdict:
    """Compare with the same exclusive rate as `shared`, so that the cost of keys is included."""
    scenario = msgspec.structs.replace(BATCHES, keys=1000, count=1_000_000, type="key-shared", consumers=4)
    name = "100 B x 500, 1,000 keys, key-shared by 4 consumers"
    return await _share_of_exclusive(name, scenario, BATCHES, directory, rounds)


async def _share_of_exclusive(
    name: str, scenario: Scenario, exclusive: Scenario, directory: Path, rounds: int
) -> Verdict:
    pairs = [(await run_alone(exclusive, directory), await run_alone(scenario, directory)) for _ in range(rounds)]
    rates = [(a.throughput, b.throughput) for a, b in pairs if a.throughput and b.throughput]
    ratio = statistics.median(b.end_to_end / a.end_to_end for a, b in rates)
    rate, base = (statistics.median(pair[place].end_to_end for pair in rates) for place in (1, 0))
    cpu = statistics.median(sum(a.cpu_us.values()) / sum(b.cpu_us.values()) for a, b in rates)
    return Verdict(
        name=name,
        target=f"at least {SHARE_MIN} of exclusive",
        measured=f"{rate:,.0f} msg/s (exclusive {base:,.0f}; {cpu:.2f} by processor time)",
        ratio=ratio,
        reached=ratio >= SHARE_MIN,
        details=[result.to_dict() for pair in pairs for result in pair],
    )


async def subscriptions(directory: Path, rounds: int) -> Verdict:
    one = msgspec.structs.replace(BATCHES, count=1_000_000)
    many = msgspec.structs.replace(one, subscriptions=SUBSCRIPTIONS, consumers=2)
    pairs = [(await run_alone(one, directory), await run_alone(many, directory)) for _ in range(rounds)]
    rates = [(a.throughput.delivered, b.throughput.delivered) for a, b in pairs if a.throughput and b.throughput]
    ratio = statistics.median(b / a for a, b in rates)
    total, single = statistics.median(b for _, b in rates), statistics.median(a for a, _ in rates)
    memory = [(a.broker_bytes_peak, b.broker_bytes_peak) for a, b in pairs]
    growth = statistics.median(b / a for a, b in memory if a and b) if all(map(all, memory)) else 0.0
    peaks = " and ".join(size(statistics.median(pair[place] or 0 for pair in memory)) for place in (1, 0))
    return Verdict(
        name=f"{SUBSCRIPTIONS} subscriptions of one topic, received by 2 processes: delivered in total",
        target=f"at least {DELIVERED_MIN:.0f} x one subscription; memory at most {MEMORY_GROWTH_MAX} x",
        measured=f"{total:,.0f} msg/s (one {single:,.0f}); broker memory {peaks}",
        ratio=ratio,
        reached=ratio >= DELIVERED_MIN and growth <= MEMORY_GROWTH_MAX,
        details=[result.to_dict() for pair in pairs for result in pair],
    )


async def non_reliable(directory: Path, rounds: int) -> Verdict:
    reliable = msgspec.structs.replace(PACED, count=4_000)
    lossy = msgspec.structs.replace(reliable, reliable=False)
    pairs = [(await run_alone(reliable, directory), await run_alone(lossy, directory)) for _ in range(rounds)]
    times = [(_received_p50(a), _received_p50(b)) for a, b in pairs]
    ratio = statistics.median(b / a for a, b in times)
    taken, base = statistics.median(b for _, b in times), statistics.median(a for a, _ in times)
    return Verdict(
        name="1,000/s one by one, non-reliable: publish to receive",
        target="p50 below that of a reliable topic",
        measured=f"p50 {taken:.3f} ms (reliable {base:.3f})",
        ratio=ratio,
        reached=ratio < 1,
        details=[result.to_dict() for pair in pairs for result in pair],
    )


def _received_p50(result: Result) -> float:
    assert result.latency is not None
    assert result.latency.publish_to_receive is not None
    return result.latency.publish_to_receive.p50


async def backlog(directory: Path, rounds: int) -> Verdict:
    """Compare the medians of a hundred acks and redeliveries at every backlog; `ratio` is the worse growth."""
    curve = await backlog_curve(directory, list(BACKLOGS), "shared")
    growth = {act: [point[act] / curve[0][act] for point in curve] for act in ("ack_ms", "redelivery_ms")}
    shown = [
        f"{word} {curve[0][act]:.2f} ms, then x {', '.join(f'{ratio:.2f}' for ratio in growth[act][1:])}"
        for act, word in (("ack_ms", "ack"), ("redelivery_ms", "redelivery"))
    ]
    ratio = max(ratios[-1] for ratios in growth.values())
    return Verdict(
        name="10^4, 10^5, 10^6, 10^7 unacked messages: an ack and a redelivery",
        target=f"no growth: at most x {COST_GROWTH_MAX:.0f}",
        measured="; ".join(shown),
        ratio=ratio,
        reached=ratio <= COST_GROWTH_MAX,
        details=curve,
    )


async def backlog_curve(directory: Path, sizes: list[int], subscription_type: str) -> list[dict[str, Any]]:
    """Measure an ack and a redelivery at each number of unacked messages in `sizes`."""
    place = directory / "backlog"
    try:
        async with broker_for(None, place) as (url, broker), Workers() as workers:
            worker = await workers.start(
                "backlog", url=url, sizes=sizes, type=subscription_type, broker=broker.pid if broker else 0
            )
            await worker.ready()
            await worker.go()
            curve = (await worker.result())["curve"]
            assert isinstance(curve, list)
            return curve
    finally:
        shutil.rmtree(place, ignore_errors=True)
