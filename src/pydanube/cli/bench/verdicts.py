"""What the checks of the suite share: common scenarios, the verdict, and a run with a new broker."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from .results import Result
from .runs import broker_for, measure
from .scenario import Scenario

BATCHES: Final = Scenario(size=100, batch=500, count=2_000_000)
PACED: Final = Scenario(size=100, batch=1, rate=1000, count=8_000, latency=True)


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one check of the suite. `ratio` is None if the target is absolute."""

    name: str
    target: str
    measured: str
    ratio: float | None = None
    reached: bool
    details: list[dict[str, Any]] = []


Check = Callable[[Path, int], Awaitable[Verdict]]


async def run_alone(scenario: Scenario, directory: Path) -> Result:
    """Run the scenario against a new broker and delete its data afterwards."""
    place = directory / "suite"
    try:
        async with broker_for(None, place) as (url, broker):
            return await measure(scenario, url, broker)
    finally:
        shutil.rmtree(place, ignore_errors=True)
