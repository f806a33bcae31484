"""The state ledger of one partition: cursors and producers, as deltas and snapshots in the same log as the messages.

Acks are written at once and synced with the next group commit; a caller that wants to wait is called back after the
sync. The ledger is opened by the first change after a start and begins with a snapshot, so recovery reads one ledger.

Invariants
    every change is in the ledger, or in a snapshot that follows it, before the callback of its caller is called
    a ledger that the log gave up, or that lacks a record, is replaced by a new one, whose snapshot holds everything
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from typing import Final

from crc32c import crc32c

from pydanube.codec.state import CursorChange, PackedChange, StateSnapshot, encode, encode_delta
from pydanube.codec.wal import RecordKind
from pydanube.model.errors import DanubeError, Full, Unavailable
from pydanube.model.limits import RECORD_BODY_BYTES_MAX
from pydanube.runtime.tasks import Tasks, ignore
from pydanube.runtime.telemetry import get_logger
from pydanube.storage.wal import DurabilityLevel, LogWriter

from .ownership import Ownership
from .sliced_log import AppendLog, SlicedLog

Done = Callable[[DanubeError | None], None]
log = get_logger(__name__)

DELTAS_PER_SNAPSHOT: Final = 4096
"""How many deltas are written between two snapshots, and so how many a start reads at most for a partition."""


class StateLedger:
    """Writes one partition's state; `recovery` reads it."""

    def __init__(
        self,
        writer: LogWriter,
        ownership: Ownership,
        tasks: Tasks,
        take_snapshot: Callable[[], StateSnapshot],
        former: list[int],
        slices: SlicedLog | None = None,
    ) -> None:
        """`former` are the ledgers of earlier owners that the first snapshot replaces. `slices`: of a `stored`
        partition."""
        self._writer = writer
        self._log: AppendLog = writer if slices is None else slices
        self._is_sliced = slices is not None
        self._ownership = ownership
        self._tasks = tasks
        self._take_snapshot = take_snapshot
        self._former = former
        self._changes: list[CursorChange | PackedChange] = []
        self._waiters: list[Done] = []
        self._flush_scheduled = False
        self._opening = False
        self._deltas = 0
        self._next_entry = 0
        self._is_deleted = False
        self._closed: DanubeError | None = None
        self.ledger_id: int | None = None

    def change(self, change: CursorChange | PackedChange, done: Done | None = None) -> None:
        """Write a change of a cursor. `done`, if given, is called once the change is synced."""
        self._changes.append(change)
        if done is not None:
            self._waiters.append(done)
        self._schedule()

    @property
    def pending(self) -> bool:
        """Return whether a change, or a caller that waits for a sync, has not been handed to the log yet."""
        return bool(self._changes or self._waiters)

    def barrier(self, done: Done) -> None:
        """Call `done` once every change so far is synced."""
        self._waiters.append(done)
        self._schedule()

    def abandoned(self, ledger_ids: set[int]) -> None:
        """Stop using the ledger if it is among those that the log gave up; the next change opens a new one."""
        if self.ledger_id in ledger_ids:
            self._former.append(self.ledger_id)
            self.ledger_id = None

    def delete(self) -> None:
        """Write nothing from now on, because the topic is deleted, and call back all waiting callers. A record written
        after the ledger's tombstone was removed would belong to a ledger that the metadata does not know."""
        self._is_deleted = True
        self.flush()

    def close(self, error: DanubeError) -> None:
        """Write nothing from now on, because another ledger of the partition follows. Callers that wait, or that
        change something later, get `error`: the change would be lost."""
        self._closed = error
        self.delete()

    def snapshot(self, done: Done | None = None) -> None:
        """Write the whole state now, so that older records of this ledger are no longer needed. `done`, if given, is
        called once the snapshot is written, or with the reason why it is not."""
        if self.ledger_id is None or self._is_deleted:
            if done is not None:
                done(self._closed or Unavailable("there is no state ledger"))
            return
        self._deltas = 0
        body = encode(self._take_snapshot())
        try:
            _check_size(body)
        except Full as error:  # the ledger goes on: its first snapshot and the deltas hold everything
            log.warning("state.snapshot_too_large", ledger=self.ledger_id, bytes=len(body))
            if done is not None:
                done(error)
            return
        self._append(RecordKind.STATE_SNAPSHOT, body, DurabilityLevel.LAZY, done or ignore)

    def carry_forward(self) -> bool:
        """Replace the state ledgers of former owners by a new one, unless that is done. Returns whether there was
        work."""
        if self.ledger_id is not None or not self._former or self._opening:
            return False
        self.barrier(ignore)
        return True

    def flush(self) -> None:
        """Hand all changes to the log. Runs at the end of a loop iteration, so that changes of one turn share a
        record."""
        self._flush_scheduled = False
        if self._is_deleted:
            self._forget_changes()
            return
        if self.ledger_id is None:
            if (self._changes or self._waiters) and not self._opening:
                self._opening = True
                self._tasks.spawn(self._open(), "state ledger opening")
            return
        changes, self._changes = self._changes, []
        waiters, self._waiters = self._waiters, []
        if not changes:
            if waiters:
                self._log.sync(partial(self._answer, waiters))
            return
        self._deltas += 1
        level = DurabilityLevel.SYNC if waiters else DurabilityLevel.LAZY
        body = encode_delta(changes)
        self._append(RecordKind.STATE_DELTA, body, level, partial(self._answer, waiters))
        if self._deltas >= DELTAS_PER_SNAPSHOT:
            self.snapshot()

    def _schedule(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            asyncio.get_running_loop().call_soon(self.flush)

    async def _open(self) -> None:
        """Open a new state ledger. Cancelled: an unused ledger may stay in the metadata; the next start removes it."""
        try:
            _check_size(encode(self._take_snapshot()))  # checked first: otherwise every try would leave an empty ledger
            ledger_id, revision = await self._ownership.open_ledger("state")
            self._writer.note_revision(revision)
        except DanubeError as error:
            self._opening = False
            waiters, self._waiters = self._waiters, []
            _call_all(waiters, error)
            return
        if self._is_deleted:
            self._forget_changes()
            return
        former, self._former = self._former, []
        # Everything that changed until now is in the snapshot.
        self._changes.clear()
        waiters, self._waiters = self._waiters, []
        self.ledger_id, self._next_entry, self._deltas, self._opening = ledger_id, 0, 0, False

        def synced(error: DanubeError | None) -> None:
            self._answer(waiters, error)
            if error is None and former:
                # While the broker closes they stay listed: the next owner supersedes them again.
                with contextlib.suppress(Unavailable):
                    self._tasks.spawn(self._drop(former), "superseded state ledgers dropping")
            elif error is not None:
                self._former = former + self._former

        self._append(RecordKind.STATE_SNAPSHOT, encode(self._take_snapshot()), DurabilityLevel.SYNC, synced)

    def _answer(self, waiters: list[Done], error: DanubeError | None) -> None:
        """Call back the callers that waited for a sync. An owner whose session may be over must not say that it was
        done, except where slices that count have it: the next owner finds it there."""
        if error is None and waiters and not self._is_sliced and not self._ownership.holds():
            error = self._ownership.refusal()
        _call_all(waiters, error)

    def _forget_changes(self) -> None:
        self._changes.clear()
        waiters, self._waiters = self._waiters, []
        _call_all(waiters, self._closed)

    async def _drop(self, former: list[int]) -> None:
        """Drop replaced ledgers. Cancelled or refused: they stay listed, and the next owner replaces them again."""
        try:
            await self._ownership.replace_ledgers(former)
        except DanubeError as error:
            log.warning("state.ledgers_kept", ledgers=former, error=error.message)
        else:
            self._writer.forget(set(former))

    def _append(self, kind: RecordKind, body: bytes, level: DurabilityLevel, done: Done) -> None:
        assert self.ledger_id is not None
        try:
            _check_size(body)
        except Full as error:  # the records after it would be useless without it
            self._append_done(self.ledger_id, done, error)
            return
        entry, self._next_entry = self._next_entry, self._next_entry + 1
        appended = partial(self._append_done, self.ledger_id, done)
        self._log.append(kind, self.ledger_id, entry, self._ownership.epoch, body, crc32c(body), level, appended)

    def _append_done(self, ledger_id: int, done: Done, error: DanubeError | None) -> None:
        if error is not None:
            self.abandoned({ledger_id})
        done(error)


class NoState:
    """The state of a partition that keeps none: of a `memory` topic, whose messages end with the process too, or of a
    non-reliable one."""

    ledger_id: int | None = None
    pending = False

    def change(self, change: CursorChange | PackedChange, done: Done | None = None) -> None:
        if done is not None:
            done(None)

    def barrier(self, done: Done) -> None:
        done(None)

    def abandoned(self, ledger_ids: set[int]) -> None: ...

    def snapshot(self, done: Done | None = None) -> None:
        if done is not None:
            done(None)

    def delete(self) -> None: ...

    def close(self, error: DanubeError) -> None: ...

    def carry_forward(self) -> bool:
        return False

    def flush(self) -> None: ...


def _check_size(body: bytes) -> None:
    if len(body) > RECORD_BODY_BYTES_MAX:
        raise Full(f"the state of the partition has {len(body)} bytes, over the limit of {RECORD_BODY_BYTES_MAX}")


def _call_all(waiters: list[Done], error: DanubeError | None) -> None:
    for done in waiters:
        done(error)
