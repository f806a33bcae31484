"""Counters for ids that are never used twice: of topics, subscriptions, ledgers, producers.

A counter is one key, `/counters/NAME`, whose value is the last number given out, as decimal text.
"""

from __future__ import annotations

from typing import Final

from pydanube.model.errors import Corrupt, Invalid, Unavailable

from .store import Compare, MetadataStore, Put

_ATTEMPTS_MAX: Final = 1_000
"""A failed comparison means that another caller took ids meanwhile; this many in a row mean that something is wrong."""

_NUMBER_MAX: Final = 2**63 - 1
"""Ids are stored in 64 bits."""


def counter_key(name: str) -> str:
    return f"/counters/{name}"


async def take_ids(store: MetadataStore, name: str, count: int) -> range:
    """Take `count` ids of the counter `name`. No id is ever given out twice; the first one is 1.

    When cancelled or failed, ids may have been taken that are then never used: a gap does no harm.
    """
    if count < 1:
        raise Invalid(f"{count} ids of {name!r}: take at least one")
    key = counter_key(name)
    for _ in range(_ATTEMPTS_MAX):
        entry = await store.get(key)
        last = 0 if entry is None else _parse(key, entry.value)
        if last + count > _NUMBER_MAX:
            raise Corrupt(f"metadata key {key} stands at {last}: there are no {count} numbers left")
        unchanged = Compare.mod_revision(key, 0 if entry is None else entry.mod_revision)
        if (await store.transact([unchanged], [Put(key, b"%d" % (last + count))])).succeeded:
            return range(last + 1, last + count + 1)
    raise Unavailable(f"no ids of {name!r}: others were faster {_ATTEMPTS_MAX} times in a row")


async def last_id(store: MetadataStore, name: str) -> int:
    """Return the highest id that may have been given out; 0 when none was."""
    entry = await store.get(counter_key(name))
    return 0 if entry is None else _parse(entry.key, entry.value)


def _parse(key: str, value: bytes) -> int:
    if not value.isdigit() or len(value) > 19:
        raise Corrupt(f"metadata key {key} should hold a number and holds {value[:40]!r}")
    return int(value)
