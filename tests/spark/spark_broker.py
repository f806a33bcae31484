"""A broker for the Spark tests."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from pydanube.server.restoring import restore
from pydanube.settings import Settings


@dataclass(frozen=True)
class Broker:
    """A broker that lives as long as the test, in this process; its history goes to `directory`/objects."""

    url: str
    directory: Path

    @property
    def servers(self) -> str:
        """What the data source's option `servers` takes."""
        return self.url.removeprefix("danube://")


def restore_into(directory: Path, lost: Path) -> dict[str, object]:
    """Make a data directory of what the broker in `lost`, which was stopped, left in its object store. Returns the
    settings of a broker that serves it."""
    store = (lost / "objects").as_uri()
    settings = Settings.load(overrides={"server.data_dir": str(directory), "storage.url": store})
    asyncio.run(restore(settings))
    return {"storage_url": store}
