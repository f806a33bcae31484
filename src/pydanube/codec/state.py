"""Control entries of a partition's ledgers: what must outlive a trim, a restart or an owner.

MessagePack arrays, so that a later release can append fields and still read these. The first element of each is the
format version; a newer one is refused by name. Times are microseconds, ranges are [start, end).

```
LedgerStart   [1, next offset, [producer, ...]]                          first entry of every data ledger
Snapshot      [1, next offset, [producer, ...], [cursor, ...]]           first entry of every state ledger, and more
Delta         [1, [change, ...]]                                         what happened since
producer      [id, epoch, next sequence, last append time, [[sequence, offset, count], ...]]
cursor        [subscription id, position, [[start, end], ...]]
change        [subscription id, kind, [[start, end], ...]]               kind 0 acked, 1 moved to start
```
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, TypeVar

import msgspec

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


class LedgerStart(msgspec.Struct, array_like=True):
    format: int
    next_offset: int
    producers: list[ProducerEntry]


class Snapshot(msgspec.Struct, array_like=True):
    format: int
    next_offset: int
    producers: list[ProducerEntry]
    cursors: list[CursorEntry]


class Delta(msgspec.Struct, array_like=True):
    format: int
    changes: list[CursorChange]


ControlEntry = TypeVar("ControlEntry", LedgerStart, Snapshot, Delta)

_encoder: Final = msgspec.msgpack.Encoder()


def encode(entry: LedgerStart | Snapshot | Delta) -> bytes:
    return _encoder.encode(entry)


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
