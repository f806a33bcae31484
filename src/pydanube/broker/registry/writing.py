"""Writes of the broker to the metadata store, after which it is known whether they were made; and writes that expect a
record to be as a caller has read it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from pydanube.metadata.store import Compare, Delete, MetadataStore, Put
from pydanube.model.errors import Conflict, DanubeError, Unavailable
from pydanube.runtime.clock import Clock
from pydanube.runtime.telemetry import get_logger

from .records import unpack, version_of

log = get_logger(__name__)

DOUBT_S: Final = 1.0
"""How long to wait before a failed read of the metadata is tried again."""


class Expectation(Compare):
    """A comparison that the caller of the broker asked for: if it fails, `write_surely` raises Conflict."""


async def expect(
    store: MetadataStore,
    key: str,
    record: msgspec.Struct | None,
    expected: str,
    what: str,
    default: msgspec.Struct | None = None,
) -> list[Compare]:
    """Return the comparison of a transaction that may be made only while the record has the version `expected`; empty:
    whatever it is.

    `record` is what the broker has in memory, None if there is none; `default` is what a key stands for that does not
    exist. Raises Conflict if `record`, or what is stored, has another version.
    """
    if not expected:
        return []
    conflict = Conflict(f"{what} has changed since it had version {expected[:40]!r}: read it again")
    if record is None or version_of(record) != expected:
        raise conflict
    found = await store.get(key)
    stored = default if found is None else unpack(found.value, type(record))
    if stored is None or version_of(stored) != expected:
        raise conflict
    return [Expectation.mod_revision(key, 0 if found is None else found.mod_revision)]


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
        if not result.succeeded and any(isinstance(one, Expectation) for one in compares):
            raise Conflict("it has changed at the same moment: read it again")
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
