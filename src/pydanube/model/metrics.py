"""Metrics as the broker exports them: families of samples, each with labels and a value. Listeners format them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum


class MetricKind(StrEnum):
    COUNTER = "counter"
    """Only grows, and begins at 0 again when what it counts is opened again. Its name ends with `_total`."""
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class HistogramValue:
    """Counts by bucket, cumulative: `buckets` has (upper bound, how many values were not above it), the last for
    infinity."""

    buckets: Sequence[tuple[float, int]]
    total: float
    """The sum of all values."""


@dataclass(frozen=True, slots=True)
class Sample:
    value: float | HistogramValue
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """All samples of one metric."""

    name: str
    kind: MetricKind
    help: str
    samples: list[Sample]
