"""The results of a measurement, which are printed as one JSON document or one table."""

from __future__ import annotations

from typing import Any

import msgspec

from .measure import Percentiles
from .scenario import Scenario


class Throughput(msgspec.Struct, frozen=True, kw_only=True):
    """Messages per second until the last ack, and until the last message was received (0 without a consumer)."""

    publish: float
    end_to_end: float
    size: int
    delivered: float = 0.0
    """Messages per second over all consumers of all subscriptions."""
    cpu_us: dict[str, float] = {}
    """Processor time for one message: of the producers, the broker (or forwarder) and the consumers."""
    others_cores: float | None = None
    """Cores that other programs kept busy while this was measured."""

    @property
    def best(self) -> float:
        """The end-to-end rate; without a consumer, the publish rate."""
        return self.end_to_end or self.publish

    def megabytes(self) -> float:
        return self.best * self.size / 1e6


def cpu_per_message(
    count: int, produced: list[dict[str, Any]], broker_seconds: float, received: list[dict[str, Any]]
) -> dict[str, float]:
    """Return microseconds by role; a role without processes or without a known time is left out."""
    seconds = {
        "producer": sum(one["cpu_seconds"] for one in produced),
        "broker": broker_seconds,
        "consumer": sum(one["cpu_seconds"] for one in received),
    }
    return {role: taken * 1e6 / count for role, taken in seconds.items() if taken}


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    publish_to_ack: Percentiles | None
    publish_to_receive: Percentiles | None
    late: Percentiles | None
    """How late each send was relative to the schedule: the noise of the bench itself."""
    cpu_us: dict[str, float] = {}
    """Processor time for one message, by role, which a busy machine hardly changes."""


class Baselines(msgspec.Struct, kw_only=True):
    """The same machine without a broker, in the same run. None: not requested or not applicable."""

    loopback_gigabytes_per_second: float | None = None
    sync: Percentiles | None = None
    sync_bytes: int = 0
    echo: Percentiles | None = None
    pipeline: Throughput | None = None


class Result(msgspec.Struct, kw_only=True):
    scenario: Scenario
    sent: int
    received: int
    dropped: int = 0
    """On a non-reliable topic: the messages not delivered, summed over all subscriptions."""
    throughput: Throughput | None = None
    latency: Latency | None = None
    faults: dict[str, int] | None = None
    """None: not verified. Empty: every message once, in order, with the right content."""
    broker_bytes_peak: int | None = None
    broker_ready_seconds: float | None = None
    others_cores: float | None = None
    """Cores that other programs kept busy meanwhile; not near 0: trust ratios and processor time only."""
    baselines: Baselines = msgspec.field(default_factory=Baselines)

    def busiest(self) -> float:
        """Return the most cores that other programs used, in the run or in its pipeline baseline."""
        pipeline = self.baselines.pipeline.others_cores if self.baselines.pipeline else None
        return max(self.others_cores or 0.0, pipeline or 0.0)

    def ratios(self) -> dict[str, float]:
        """Return the measured values divided by the baselines."""
        found: dict[str, float] = {}
        base = self.baselines
        if self.throughput and base.pipeline:
            found["throughput_to_pipeline"] = self.throughput.best / base.pipeline.best
        if self.latency and self.latency.publish_to_ack and base.sync:
            found["ack_p50_to_sync_p50"] = self.latency.publish_to_ack.p50 / base.sync.p50
        if self.latency and self.latency.publish_to_receive and base.echo:
            found["receive_p99_to_echo_p99"] = self.latency.publish_to_receive.p99 / base.echo.p99
        return found

    def to_dict(self) -> dict[str, Any]:
        plain = msgspec.to_builtins(self)
        assert isinstance(plain, dict)
        plain["verified"] = None if self.faults is None else not self.faults
        plain["ratios"] = self.ratios()
        plain["busiest_cores"] = self.busiest()
        return plain
