"""A broker beside Spark's tests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Broker:
    """A broker that lives as long as the test, in this process; its history goes to `directory`/objects."""

    url: str
    directory: Path

    @property
    def servers(self) -> str:
        """What the data source's option `servers` takes."""
        return self.url.removeprefix("danube://")
