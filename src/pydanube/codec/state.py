"""Control entries of a partition's ledgers: state that must survive a trim, a restart or a change of the owner.

`broker.partitions.state_ledger` writes snapshots and deltas, and `broker.partitions.recovery` reads them.

They are MessagePack arrays, so that a later release can append fields and still read these. The first element is the
format version; a newer one is refused. Times are in microseconds, ranges are [start, end).

```
LedgerStart   [1, next offset, [producer, ...], store id, revision]      first entry of every data ledger; the last two
                                                                         name the metadata that lists it, if known
Snapshot      [1, next offset, [producer, ...], [cursor, ...],           first entry of every state ledger, and more
               [[subscription id, generation], ...]]                     those that were sought; earlier releases: none
Delta         [1, [change, ...]]                                         what happened since
producer      [id, epoch, next sequence, last append time, [[sequence, offset, count], ...]]
cursor        [subscription id, position, [[start, end], ...]]
change        [subscription id, kind, [[start, end], ...], generation]   kind 0 acked, 1 moved to start; 0: unknown
```
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Final, TypeVar

import msgspec
import numpy as np

from pydanube.model.errors import Corrupt
from pydanube.model.ledgers import CursorEntry, ProducerEntry

FORMAT: Final = 1


class ChangeKind(IntEnum):
    ACKED = 0
    MOVED = 1


class CursorChange(msgspec.Struct, array_like=True):
    subscription_id: int
    kind: ChangeKind
    ranges: list[tuple[int, int]]
    generation: int = 0
    """For MOVED: the seek generation that begins with it. 0 in entries of earlier releases."""


class PackedChange(msgspec.Struct, array_like=True):
    """A `CursorChange` for writing, with ranges encoded by `packed`; it is read back as a CursorChange."""

    subscription_id: int
    kind: ChangeKind
    ranges: msgspec.Raw


class LedgerStart(msgspec.Struct, array_like=True):
    format: int
    next_offset: int
    producers: list[ProducerEntry]
    store_id: str = ""
    revision: int = 0


class LedgerStamp(msgspec.Struct, array_like=True):
    """A LedgerStart of which only the metadata store and revision are decoded."""

    format: int
    next_offset: int
    producers: msgspec.Raw
    store_id: str = ""
    revision: int = 0


class StateSnapshot(msgspec.Struct, array_like=True):
    format: int
    next_offset: int
    producers: list[ProducerEntry]
    cursors: list[CursorEntry]
    generations: list[tuple[int, int]] = []
    """Subscription id and seek generation, for subscriptions whose generation is not 0."""


class Delta(msgspec.Struct, array_like=True):
    format: int
    changes: list[CursorChange]


ControlEntry = TypeVar("ControlEntry", LedgerStart, StateSnapshot, Delta)

_stamp_decoder: Final = msgspec.msgpack.Decoder(LedgerStamp)

OffsetArray = np.ndarray[Any, np.dtype[np.int64]]

_NARROW, _WIDE = (
    np.dtype([("pair", "u1"), ("start_kind", "u1"), ("start", width), ("end_kind", "u1"), ("end", width)])
    for width in (">u4", ">u8")
)
_KINDS: Final = {_NARROW: 0xCE, _WIDE: 0xCF}
"""The MessagePack type bytes of unsigned numbers of 32 and 64 bits."""

_encoder: Final = msgspec.msgpack.Encoder()


def encode(entry: LedgerStart | StateSnapshot | Delta) -> bytes:
    return _encoder.encode(entry)


def encode_delta(changes: Sequence[CursorChange | PackedChange]) -> bytes:
    return _encoder.encode((FORMAT, changes))


def packed(starts: OffsetArray, ends: OffsetArray) -> msgspec.Raw:
    """Encode many ranges as MessagePack without a Python loop: all numbers have the same width."""
    form = _NARROW if int(ends.max(initial=0)) < 2**32 else _WIDE
    ranges = np.empty(len(starts), form)
    ranges["pair"], ranges["start_kind"], ranges["end_kind"] = 0x92, _KINDS[form], _KINDS[form]
    ranges["start"], ranges["end"] = starts, ends
    return msgspec.Raw(b"\xdd" + len(ranges).to_bytes(4, "big") + ranges.tobytes())


def ledger_stamp(body: bytes | memoryview) -> tuple[str, int] | None:
    """Return the store id and the revision that a LedgerStart entry names; None when it names none, or cannot be read
    (decoding the whole entry reports that)."""
    try:
        found = _stamp_decoder.decode(body)
    except msgspec.MsgspecError:
        return None
    return (found.store_id, found.revision) if found.store_id else None


def decode(body: bytes | memoryview, kind: type[ControlEntry]) -> ControlEntry:
    try:
        entry = msgspec.msgpack.decode(body, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Corrupt(f"{kind.__name__} entry cannot be read: {error}") from None
    if entry.format != FORMAT:
        raise Corrupt(
            f"{kind.__name__} entry has format {entry.format}; this release reads {FORMAT}: use a newer release"
        )
    return entry
