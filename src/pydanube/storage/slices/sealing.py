"""Seals the sequence of slices of an incarnation, and proves that a store can do what that needs.

The taker creates a marker under the first number that does not exist. If the create succeeds, the owner's own put of
that number fails, now or whenever it is made; and since slices count in order, nothing behind it ever counts. No clock
and no metadata is asked.

Invariants
    the search begins at the lowest number that a partition needs, never before: older slices may be deleted, and a
    marker in their place would end nothing
    a number is skipped only if it is known to exist and everything from the lowest number up to it, too
    markers are never deleted
    a slice that is known to have counted is never sealed away: where it is missing, the store has lost it
"""

from __future__ import annotations

import asyncio
from typing import Final

from pydanube.codec.slice import (
    HEADER_BYTES,
    SliceKind,
    decode_slice_header,
    encode_marker,
    parse_slice_key,
    sequence_prefix,
    slice_key,
)
from pydanube.model.errors import AlreadyExists, Corrupt, DanubeError, NotFound, Refused, Unavailable
from pydanube.runtime.objects import ObjectStore
from pydanube.runtime.randomness import identity
from pydanube.runtime.telemetry import get_logger

log = get_logger(__name__)

CHECK_PREFIX: Final = "slice-check/"
CREATED_AT_ONCE: Final = 4
"""How many create-only puts of one key race in the check. A store that looks first and then puts lets several win."""


async def seal(objects: ObjectStore, incarnation: int, lowest: int, sealed_by: int) -> int:
    """End the sequence, and return the number of its marker: the slices below it count, and no others ever will.

    `lowest` is the lowest number that is still needed. May be called by several brokers at once, and again: all get the
    same number. Raises Unavailable when the store does not answer, and Corrupt when a slice that counted is missing:
    then nothing is sealed. Cancelled: it is sealed or not.
    """
    number, counted = await _first_missing(objects, incarnation, lowest)
    while True:
        key = slice_key(incarnation, number)
        if number < counted:
            await _check_there(objects, incarnation, number)
            number += 1
            continue
        try:
            await objects.put(key, encode_marker(incarnation, number, sealed_by), create=True)
        except AlreadyExists:
            header = decode_slice_header(await objects.get(key, 0, HEADER_BYTES), incarnation, number)
            if header.kind == SliceKind.MARKER:
                return number
            number += 1
        else:
            log.info("slices.sealed", incarnation=incarnation, end=number, by=sealed_by)
            return number


async def _first_missing(objects: ObjectStore, incarnation: int, lowest: int) -> tuple[int, int]:
    """Return the first number from `lowest` on that a listing does not show, and a number below which all slices
    counted, as far as the last slice behind that one says it. A marker counts as missing."""
    prefix, number, last = sequence_prefix(incarnation), lowest, -1
    after = slice_key(incarnation, lowest - 1) if lowest else ""
    async for info in objects.list(prefix, after):
        named = parse_slice_key(info.key)
        if info.size <= HEADER_BYTES or named is None:
            continue
        last = named[1]
        if last == number:
            number += 1
    if last < number:
        return number, 0
    try:
        found = await objects.get(slice_key(incarnation, last), 0, HEADER_BYTES)
    except NotFound:  # it did not count, and was deleted meanwhile
        return number, 0
    return number, decode_slice_header(found, incarnation, last).counted


async def _check_there(objects: ObjectStore, incarnation: int, number: int) -> None:
    """Raise Corrupt unless there is a slice of this number, which counted. The listing did not show it: it may have
    been put meanwhile."""
    try:
        found = await objects.get(slice_key(incarnation, number), 0, HEADER_BYTES)
    except NotFound:
        raise missing_slice(objects, incarnation, number) from None
    if decode_slice_header(found, incarnation, number).kind == SliceKind.MARKER:
        raise missing_slice(objects, incarnation, number)


def missing_slice(objects: ObjectStore, incarnation: int, number: int) -> Corrupt:
    return Corrupt(
        f"the object {slice_key(incarnation, number)} (slice {number} of incarnation {incarnation}) is missing in "
        f"{objects.url}, and a partition needs it: put it back, or see `danube storage repair-slice`"
    )


async def probe_store(objects: ObjectStore) -> None:
    """Put an object and delete it. Raises what the store raises. Cancelled: it may be left."""
    key = f"{CHECK_PREFIX}{identity()}"
    await objects.put(key, b"probe", create=True)
    await objects.delete([key])


async def check_store(objects: ObjectStore) -> None:
    """Prove that the store has atomic create-only puts and shows completed puts at once. Raises Refused, naming the
    store, if it has not, and Unavailable if that cannot be told now."""
    key = f"{CHECK_PREFIX}{identity()}"
    bodies = [b"%d" % number for number in range(CREATED_AT_ONCE)]
    try:
        outcomes = await asyncio.gather(*(_create(objects, key, body) for body in bodies))
        failures = [one for one in outcomes if one is not None]
        if len(failures) < CREATED_AT_ONCE - 1:
            raise Refused(_unfit(objects, "several create-only puts of one key at the same time succeeded"))
        if len(failures) == CREATED_AT_ONCE:
            raise next((one for one in failures if not isinstance(one, AlreadyExists)), failures[0])
        later = await _create(objects, key, b"later")
        if later is None:
            raise Refused(_unfit(objects, "a second create-only put of one key succeeded"))
        if not isinstance(later, AlreadyExists):
            raise later
        try:
            found = bytes(await objects.get(key))
        except NotFound:
            raise Refused(_unfit(objects, "an object was not found right after it was put")) from None
        if found != bodies[outcomes.index(None)]:
            raise Refused(_unfit(objects, "a create-only put replaced an object"))
        if key not in [info.key async for info in objects.list(key)]:
            raise Refused(_unfit(objects, "an object was not listed right after it was put"))
    finally:
        await objects.delete([key])


async def _create(objects: ObjectStore, key: str, body: bytes) -> DanubeError | None:
    """Put an object create-only; return None if that was done, else the reason."""
    try:
        await objects.put(key, body, create=True)
    except (AlreadyExists, Unavailable) as error:  # S3 answers some of the puts that race with a conflict
        return error
    return None


def _unfit(objects: ObjectStore, reason: str) -> str:
    advice = "use another store, or the level `durable`"
    return f"{objects.url} cannot keep topics of the ack level `stored`: {reason}; {advice}"
