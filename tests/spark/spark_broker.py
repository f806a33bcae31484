"""A broker for the Spark tests, and what is in its topics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pydanube
from pydanube.server.restoring import restore
from pydanube.settings import Settings

TOPIC: Final = "/default/orders"
STEP_SECONDS_MAX: Final = 400
"""For Spark to start and get somewhere, on a machine where everybody else is busy too."""


@dataclass(frozen=True)
class Broker:
    """A broker that lives as long as the test, in this process; its history goes to `directory`/objects."""

    url: str
    directory: Path

    @property
    def servers(self) -> str:
        """What the data source's option `servers` takes."""
        return self.url.removeprefix("danube://")


def messages(client: pydanube.BlockingClient, topic: str = TOPIC) -> dict[int, list[pydanube.Message]]:
    """Return what is stored in each partition."""
    found = {}
    for partition in client.partitions(topic):
        with client.reader(topic, partition=partition.index, start="earliest", end="latest") as reader:
            found[partition.index] = list(reader)
    return found


def payloads(client: pydanube.BlockingClient, topic: str = TOPIC) -> list[bytes]:
    return [one.payload for each in messages(client, topic).values() for one in each]


def until(condition: Callable[[], bool], what: str, log: Callable[[], str] = str) -> None:
    deadline = time.monotonic() + STEP_SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline, f"not within {STEP_SECONDS_MAX} s: {what}\n{log()}"
        time.sleep(0.01)


def restore_into(directory: Path, lost: Path) -> dict[str, object]:
    """Make a data directory of what the broker in `lost`, which was stopped, left in its object store. Returns the
    settings of a broker that serves it."""
    store = (lost / "objects").as_uri()
    settings = Settings.load(overrides={"server.data_dir": str(directory), "storage.url": store})
    asyncio.run(restore(settings))
    return {"storage_url": store}
