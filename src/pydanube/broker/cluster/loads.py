"""How much each broker of the cluster does, as it says itself in a key beside its session."""

from __future__ import annotations

from typing import Final

import msgspec

from pydanube.metadata.following import Follower, Handler
from pydanube.metadata.packing import unpack
from pydanube.metadata.store import Event, KeyValue
from pydanube.model.cluster import BrokerSession
from pydanube.model.errors import Corrupt

LOADS: Final = "/brokers/load/"

STORE_OK: Final = "ok"
STORE_AWAY: Final = "away"

LEAVING: Final = "leaving"
"""The state of a broker that stops: it gives its partitions away, and is given none."""


def load_key(name: str) -> str:
    return f"{LOADS}{name}"


class LoadRecord(msgspec.Struct, omit_defaults=True):
    """What a broker says of itself. `partitions`: how many are open there. `state`: "ok", or what is wrong. `store`:
    STORE_AWAY while it can put nothing into the object store; STORE_OK if it has just done so, which it tries while
    another broker is away from it; else nothing, as brokers of earlier releases do."""

    incarnation: int = 0
    partitions: int = 0
    messages_per_s: float = 0.0
    bytes_per_s: float = 0.0
    state: str = "ok"
    store: str = ""

    def says(self, session: BrokerSession, store: str) -> bool:
        """Return whether the broker says this of the store in its present session."""
        return self.store == store and self.incarnation == session.incarnation


class Loads:
    """What the living brokers say of themselves."""

    def __init__(self, follower: Follower | None = None) -> None:
        """`follower` tells it; call this before `follower.start`. A broker alone says nothing, and needs none."""
        self._records: dict[str, LoadRecord] = {}
        if follower is not None:
            follower.add(LOADS, Handler(self._apply, self._replace))

    def of(self, name: str) -> LoadRecord | None:
        """Return the load of a broker; None: it has told none yet."""
        return self._records.get(name)

    def _apply(self, event: Event) -> None:
        if event.current is None:
            self._records.pop(event.key.removeprefix(LOADS), None)
        else:
            self._read(event.current)

    def _replace(self, entries: list[KeyValue]) -> None:
        self._records.clear()
        for entry in entries:
            self._read(entry)

    def _read(self, entry: KeyValue) -> None:
        name = entry.key.removeprefix(LOADS)
        try:
            self._records[name] = unpack(entry.value, LoadRecord)
        except Corrupt:
            self._records.pop(name, None)  # it is only an estimate, and is written again soon
