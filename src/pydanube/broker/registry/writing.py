"""Writes of the broker to the metadata store, after which it is known whether they were made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pydanube.metadata.store import Compare, Delete, MetadataStore, Put
from pydanube.model.errors import DanubeError, Unavailable
from pydanube.runtime.clock import Clock
from pydanube.runtime.telemetry import get_logger

log = get_logger(__name__)

DOUBT_S: Final = 1.0
"""How long to wait before a failed read of the metadata is tried again."""


async def write_surely(
    store: MetadataStore, clock: Clock, compares: Sequence[Compare], writes: Sequence[Put | Delete]
) -> None:
    """Write to the store; raise if nothing was written. Cancelled: the broker is closing."""
    try:
        result = await store.transact(compares, writes)
    except DanubeError:
        if not await _is_written(store, clock, writes[0]):
            raise
    else:
        if not result.succeeded:
            raise Unavailable("the metadata changed at the same moment: send the request again")


async def _is_written(store: MetadataStore, clock: Clock, write: Put | Delete) -> bool:
    """Return whether a write that failed was written after all. Retries until the store answers, because nothing else
    may be changed before that is known."""
    while True:
        try:
            found = await store.get(write.key)
        except DanubeError as error:
            log.warning("metadata.in_doubt", key=write.key, error=error.message)
            await clock.sleep(DOUBT_S)
        else:
            value = found.value if found is not None else None
            return value == (write.value if isinstance(write, Put) else None)
