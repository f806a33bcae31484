"""Prints results: the measured values, the baselines of the bare machine, and the ratios."""

from __future__ import annotations

from typing import Final

from pydanube.cli.output import number, size, table

from .measure import Percentiles
from .results import Latency, Result, Throughput
from .scenario import Scenario

BUSY_CORES: Final = 0.15
"""If other programs use more cores than this, absolute numbers are not meaningful."""

Row = tuple[str, str, str, str]


def show(result: Result) -> None:
    rows = [*_throughput(result), *_latency(result), *_integrity(result), *_broker(result)]
    table(["measured", "value", "bare machine", "ratio"], rows, title=result.scenario.title(), right=["ratio"])


def _throughput(result: Result) -> list[Row]:
    if result.throughput is None:
        return []
    found, base = result.throughput, result.baselines
    pipe = base.pipeline
    rows = [("publish", _rate(found.publish, found), _rate(pipe.publish, pipe) + " pipeline" if pipe else "", "")]
    if pipe:
        rows[0] = (*rows[0][:3], _ratio(found.publish, pipe.publish))
    if found.end_to_end:
        bare = _rate(pipe.end_to_end, pipe) + " pipeline" if pipe else ""
        rows.append(
            (
                "end to end",
                _rate(found.end_to_end, found),
                bare,
                _ratio(found.end_to_end, pipe.end_to_end) if pipe else "",
            )
        )
    if result.scenario.subscription_count > 1:
        rows.append(("delivered in total", _rate(found.delivered, found), "", ""))
    if found.cpu_us:
        rows.append(
            ("processor time", _cpu(found), _cpu(pipe) if pipe else "", _cpu_ratio(found, pipe) if pipe else "")
        )
    if base.loopback_gigabytes_per_second:
        gigabytes = base.loopback_gigabytes_per_second
        share = _ratio(found.megabytes() / 1e3, gigabytes)
        rows.append(("payload bytes", f"{found.megabytes():,.0f} MB/s", f"{gigabytes:.2f} GB/s loopback TCP", share))
    if base.sync:
        rows.append(("", "", f"{_times(base.sync)} fdatasync of {size(base.sync_bytes)}", ""))
    return rows


def _latency(result: Result) -> list[Row]:
    if result.latency is None:
        return []
    found, base = result.latency, result.baselines
    rows: list[Row] = []
    if found.publish_to_ack:
        bare = f"{_times(base.sync)} fdatasync of {size(base.sync_bytes)}" if base.sync else ""
        ratio = f"p50 {_ratio(found.publish_to_ack.p50, base.sync.p50)}" if base.sync else ""
        rows.append(("publish to ack", _times(found.publish_to_ack), bare, ratio))
    if found.publish_to_receive:
        bare = f"{_times(base.echo)} asyncio echo" if base.echo else ""
        ratio = f"p99 {_ratio(found.publish_to_receive.p99, base.echo.p99)}" if base.echo else ""
        rows.append(("publish to receive", _times(found.publish_to_receive), bare, ratio))
    if found.cpu_us:
        rows.append(("processor time", _cpu(found), "", ""))
    if found.late:
        rows.append(("sends behind schedule", _times(found.late), "the bench itself", ""))
    return rows


def _integrity(result: Result) -> list[Row]:
    dropped: list[Row] = [("dropped", f"{result.dropped:,} messages", "", "")] if not result.scenario.reliable else []
    if result.faults is None:
        return dropped
    if result.faults:
        found = ", ".join(f"{count:,} {kind}" for kind, count in sorted(result.faults.items()))
        return [*dropped, ("integrity", f"FAILED: {found}", "", "")]
    return [*dropped, ("integrity", f"{result.received:,} messages: {_guarantees(result.scenario)}", "", "")]


def _guarantees(scenario: Scenario) -> str:
    once = "each once" if scenario.reliable else "none twice"
    order = {"partition": ", in order", "key": ", in order of each key", "none": ""}[scenario.order]
    return f"{once}{order}, content checked"


def _broker(result: Result) -> list[Row]:
    rows: list[Row] = []
    if result.broker_bytes_peak is not None:
        rows.append(("broker memory, peak", size(result.broker_bytes_peak), "", ""))
    if result.broker_ready_seconds is not None:
        rows.append(("broker ready after", f"{result.broker_ready_seconds:.2f} s", "", ""))
    if result.busiest() > BUSY_CORES:
        pipe = result.baselines.pipeline
        bare = f"{pipe.others_cores:.1f} cores" if pipe and pipe.others_cores is not None else ""
        rows.append(("busy with other programs", f"{result.others_cores or 0:.1f} cores", bare, "noisy"))
    return rows


def _rate(per_second: float, throughput: Throughput) -> str:
    return f"{number(per_second)} msg/s, {per_second * throughput.size / 1e6:,.0f} MB/s"


def _cpu(found: Throughput | Latency) -> str:
    """Format the processor time of one message by process."""
    return ", ".join(f"{role} {taken:.2f}" for role, taken in found.cpu_us.items()) + " us/msg"


def _cpu_ratio(found: Throughput, pipe: Throughput) -> str:
    """Return the ratio of processor time; above 1 is cheaper than the bare pipeline."""
    return _ratio(sum(pipe.cpu_us.values()), sum(found.cpu_us.values()))


def _times(found: Percentiles) -> str:
    return f"p50 {found.p50:.3f}, p99 {found.p99:.3f}, p99.9 {found.p999:.3f} ms"


def _ratio(value: float, base: float) -> str:
    return f"{value / base:.2f}" if base else ""
