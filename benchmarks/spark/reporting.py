"""Formats the results as a table and as JSON."""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import pyspark


@dataclass
class Result:
    """One line of the table. `ours` and `baseline` are of the same rounds, in the same unit."""

    name: str
    unit: str
    target: float
    baseline: list[float] = field(default_factory=list)
    ours: list[float] = field(default_factory=list)
    at_most: bool = False
    """The target is an upper limit of the measured value, not of the ratio."""
    at_least: bool = False
    """The target is a lower limit of the measured value."""
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def ratios(self) -> list[float]:
        return [ours / other for ours, other in zip(self.ours, self.baseline, strict=True)]

    @property
    def value(self) -> float:
        return median(self.ours) if self.at_most or self.at_least else median(self.ratios)

    @property
    def reached(self) -> bool:
        return self.value <= self.target if self.at_most else self.value >= self.target

    def note(self, baseline: float, ours: float) -> None:
        """Add one round."""
        self.baseline.append(baseline)
        self.ours.append(ours)
        line = f"{self.name}: {ours:.2f} of {baseline:.2f} {self.unit} = {ours / baseline:.2f}"
        print(line, file=sys.stderr, flush=True)


def table(results: list[Result]) -> str:
    lines = [f"{'':44} {'baseline':>12} {'danube':>12} {'':8} {'ratio':>6}  {'spread':>11}  target"]
    for one in results:
        verdict = "reached" if one.reached else "MISSED"
        if one.at_most:
            lines.append(
                f"{one.name:44} {'':12} {one.value:12,.0f} {one.unit:8} {'':6}  {'':11}  < {one.target:g}: {verdict}"
            )
            continue
        spread = f"{min(one.ratios):.2f}-{max(one.ratios):.2f}"
        lines.append(
            f"{one.name:44} {median(one.baseline):12,.2f} {median(one.ours):12,.2f} {one.unit:8} "
            f"{median(one.ratios):6.2f}  {spread:>11}  {one.target:g}: {verdict}"
        )
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    lines.append(
        f"{os.cpu_count()} cores, load {load}, Python {platform.python_version()}, Spark {pyspark.__version__}"
    )
    return "\n".join(lines)


def as_json(results: list[Result]) -> dict[str, Any]:
    return {
        "machine": {
            "cores": os.cpu_count(),
            "load": os.getloadavg(),
            "python": platform.python_version(),
            "spark": pyspark.__version__,
        },
        "results": [
            {
                "name": one.name,
                "unit": one.unit,
                "value": one.value,
                "target": one.target,
                "target_is": "at most" if one.at_most else "at least" if one.at_least else "ratio, at least",
                "reached": one.reached,
                "baseline": one.baseline,
                "danube": one.ours,
                **one.details,
            }
            for one in results
        ],
    }
