"""Writes of the broker to the metadata store, after which it is known whether they were made; and changes that are
tried again when another broker was faster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, TypeVar

from pydanube.model.errors import DanubeError, Unavailable
from pydanube.runtime.clock import Clock
from pydanube.runtime.retry import RetryBackoff, until_done
from pydanube.runtime.telemetry import get_logger

from .store import Compare, Delete, MetadataStore, Put

log = get_logger(__name__)

ATTEMPTS_MAX: Final = 20
"""How often a change is tried when others change the same record: each time one of them succeeds, so that more than a
few in a row mean that something writes without end."""

Result = TypeVar("Result")


class Outrun(Exception):
    """Another broker changed at the same moment what this change has read: read again, and try again.

    This is no DanubeError, because only `try_again` sees it; it never reaches a client.
    """


async def try_again(attempt: Callable[[], Awaitable[Result]]) -> Result:
    """Do a change that reads, compares and writes, again while others are faster. Cancelled: it may be done."""
    for _ in range(ATTEMPTS_MAX):
        try:
            return await attempt()
        except Outrun:
            continue
    raise Unavailable(f"others changed the metadata at the same moment, {ATTEMPTS_MAX} times: send the request again")


async def write_surely(
    store: MetadataStore, clock: Clock, compares: Sequence[Compare], writes: Sequence[Put | Delete]
) -> int:
    """Write to the store and return the revision; 0 if it is not known. Raises if nothing was written: Outrun if a
    comparison failed. Cancelled: the broker is closing."""
    try:
        result = await store.transact(compares, writes)
    except DanubeError:
        revision = await _find_written(store, clock, writes[0])
        if revision is None:
            raise
        return revision
    if not result.succeeded:
        raise Outrun
    return result.revision


async def _find_written(store: MetadataStore, clock: Clock, write: Put | Delete) -> int | None:
    """Return the revision of a write that failed and was written after all, 0 if it is not known; None if it was not
    written. Retries until the store answers, because nothing else may be changed before that is known."""
    found = await until_done(
        partial(store.get, write.key),
        RetryBackoff(),
        clock,
        lambda error: log.warning("metadata.in_doubt", key=write.key, error=error.message),
    )
    if found is None:
        return 0 if isinstance(write, Delete) else None
    return found.mod_revision if isinstance(write, Put) and write.value == found.value else None
