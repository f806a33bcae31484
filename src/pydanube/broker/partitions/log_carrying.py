"""Puts what only the log of this broker has of a partition into slices, so that another broker can go on with it.

```
 while it is served   upload, until little is left
 served no more       [uploaded end, end) and a snapshot of the state ─► slices ─► they count
 one transaction      sequences = [these slices], no log, no owner, who shall take it
 the next owner       makes segments of the batches, as of a `stored` partition, and drops the ledgers of this log
```

Until the transaction the record names the log, and the slices are nobody's. A partition whose batches or state cannot
be put is served by this broker again.

Invariants
    the record names slices only once all of them count
    it names them before the collector of slices can delete them, which nobody else needs
    nothing goes to the local log: its ledgers are those that the metadata lists
"""

from __future__ import annotations

import asyncio
from typing import Final, Literal, NamedTuple

from crc32c import crc32c

from pydanube.broker.registry.records import SequenceRecord
from pydanube.codec.batch import read_header
from pydanube.codec.batch.header import offsets_of
from pydanube.codec.slice import SliceRecord
from pydanube.codec.state import FORMAT, LedgerStart, StateSnapshot, encode
from pydanube.codec.wal import ByteBuffer, RecordKind
from pydanube.model.errors import Unavailable
from pydanube.model.limits import MIB
from pydanube.runtime.tasks import ignore
from pydanube.storage.slices import SliceWriter
from pydanube.storage.stream import LoggedStream

from .ownership import Ownership

READ_BYTES: Final = 4 * MIB
"""How much is read and put at a time."""

CARRIED_BYTES_MAX: Final = 64 * MIB
"""The most that is put while the partition is not served. What is published faster than it is uploaded stays."""

CARRY_S: Final = 10.0
"""How long the puts may take: much shorter than slices that no record names are kept (collecting.KEPT_S)."""


class Carried(NamedTuple):
    """What the record of a partition says when everything that only this broker's log had of it is in slices."""

    sequence: SequenceRecord
    ledgers: list[tuple[int, Literal["data", "state"]]]
    """The ids of the ledgers that the slices hold."""
    end: int
    """No offset from here on has been given out."""


class LogCarrier:
    """Puts one partition, which is not served any more."""

    def __init__(self, slices: SliceWriter, ownership: Ownership, name: str) -> None:
        """`slices`: of this broker, under its present session."""
        self._slices = slices
        self._ownership = ownership
        self._name = name

    async def carry(self, stream: LoggedStream, snapshot: StateSnapshot) -> Carried:
        """Put what is not uploaded, and the state; return what the record must say.

        Raises Unavailable if it takes too long, and what the log raises. Cancelled or failed: some slices may have been
        put, which the collector deletes.
        """
        try:
            async with asyncio.timeout(CARRY_S):
                return await self._carry(stream, snapshot)
        except TimeoutError:
            failure = self._slices.failure
            reason = f": {failure.message}" if failure is not None else ""
            raise Unavailable(f"{self._name} could not be put into the object store in {CARRY_S:g} s{reason}") from None

    async def _carry(self, stream: LoggedStream, snapshot: StateSnapshot) -> Carried:
        if (failure := self._slices.failure) is not None:
            raise Unavailable(f"slices cannot be put: {failure.message}; try again later")
        lowest = self._slices.counted_end  # what is on its way then may never be stored, and the sequence ends there
        ledgers: list[tuple[int, Literal["data", "state"]]] = []
        first = max(self._ownership.uploaded_end, stream.start_offset)
        if stream.gaps.messages(first, stream.end_offset):
            ledgers.append((await self._put_batches(stream, first), "data"))
        state_id = await self._ownership.take_ledger_id()
        self._append(RecordKind.STATE_SNAPSHOT, state_id, 0, encode(snapshot))
        ledgers.append((state_id, "state"))
        await self._slices.flush()
        sequence = SequenceRecord(self._slices.incarnation, lowest, self._slices.counted_end)
        return Carried(sequence, ledgers, stream.end_offset)

    async def _put_batches(self, stream: LoggedStream, first: int) -> int:
        """Put the batches from `first` on; return the id of their ledger."""
        ledger_id = await self._ownership.take_ledger_id()
        entry, offset = 1, first
        while stream.gaps.messages(offset, stream.end_offset):
            for view in await stream.read(offset, READ_BYTES):
                base, end = offsets_of(view)
                if base > offset:  # what is in slices has no gaps
                    raise Unavailable(f"{self._name} has a gap at offset {offset} that is not uploaded yet: try again")
                if entry == 1:
                    self._append(RecordKind.LEDGER_START, ledger_id, 0, encode(LedgerStart(FORMAT, base, [])))
                self._append(RecordKind.DATA, ledger_id, entry, view, read_header(view, stamped=True).body_crc)
                entry, offset = entry + 1, end
            await self._slices.flush()
        return ledger_id

    def _append(
        self, kind: RecordKind, ledger_id: int, entry: int, body: ByteBuffer, body_crc: int | None = None
    ) -> None:
        crc = crc32c(body) if body_crc is None else body_crc
        self._slices.append(SliceRecord(kind, ledger_id, entry, self._ownership.epoch, body, crc), ignore)
