"""The state ledger of one partition: what must outlive a trim or an owner, as deltas and snapshots in the same log.

Acks are written at once and synced with the next group commit; whoever asks to wait is told after the sync. The ledger
is opened by the first change after a start and begins with a snapshot, so recovery reads one ledger only.

Invariants
    every change is in the ledger, or in a snapshot that follows it, before anyone who waits for it is told
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
from pydanube.runtime.tasks import Tasks
from pydanube.runtime.telemetry import get_logger
from pydanube.storage.wal import DurabilityLevel, LogWriter

from .ownership import Ownership

Done = Callable[[DanubeError | None], None]
log = get_logger(__name__)

DELTAS_PER_SNAPSHOT: Final = 4096
"""A start reads at most this many deltas for a partition."""


class StateLedger:
    """Writes one partition's state; reading it back is `opening`'s business."""

    def __init__(
        self,
        writer: LogWriter,
        ownership: Ownership,
        tasks: Tasks,
        take_snapshot: Callable[[], StateSnapshot],
        former: list[int],
    ) -> None:
        """`former` are the state ledgers of earlier owners; the first snapshot supersedes them."""
        self._writer = writer
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
        self.ledger_id: int | None = None

    def change(self, change: CursorChange | PackedChange, done: Done | None = None) -> None:
        """Something moved. `done` is called once it is synced; without one nobody waits."""
        self._changes.append(change)
        if done is not None:
            self._waiters.append(done)
        self._schedule()

    @property
    def pending(self) -> bool:
        """Whether something has not been handed to the log yet."""
        return bool(self._changes or self._waiters)

    def barrier(self, done: Done) -> None:
        """Call `done` once every change so far is synced."""
        self._waiters.append(done)
        self._schedule()

    def abandoned(self, ledger_ids: set[int]) -> None:
        """The log gave these up."""
        if self.ledger_id in ledger_ids:
            self._former.append(self.ledger_id)
            self.ledger_id = None

    def delete(self) -> None:
        """The topic is deleted: from here on nothing is written, and nobody waits for what was changed. A record after
        the ledger's tombstone is gone would be one of a ledger that nobody knows."""
        self._is_deleted = True
        self.flush()

    def snapshot(self) -> None:
        """Write the whole state now, so that older records of this ledger are no longer needed."""
        if self.ledger_id is None or self._is_deleted:
            return
        self._deltas = 0
        body = encode(self._take_snapshot())
        if len(body) > RECORD_BODY_BYTES_MAX:  # the ledger goes on: its first one and the deltas say it all
            log.warning("state.snapshot_too_large", ledger=self.ledger_id, bytes=len(body))
            return
        self._append(RecordKind.STATE_SNAPSHOT, body, DurabilityLevel.LAZY, _nobody_waits)

    def carry_forward(self) -> bool:
        """Supersede what former owners left, where nothing has yet. False when there is nothing to do."""
        if self.ledger_id is not None or not self._former or self._opening:
            return False
        self.barrier(_nobody_waits)
        return True

    def flush(self) -> None:
        """Hand everything to the log; at the end of a loop iteration, so that what came together goes together."""
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
                self._writer.sync(partial(_tell, waiters))
            return
        self._deltas += 1
        level = DurabilityLevel.SYNC if waiters else DurabilityLevel.LAZY
        body = encode_delta(changes)
        self._append(RecordKind.STATE_DELTA, body, level, partial(_tell, waiters))
        if self._deltas >= DELTAS_PER_SNAPSHOT:
            self.snapshot()

    def _schedule(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            asyncio.get_running_loop().call_soon(self.flush)

    async def _open(self) -> None:
        """Cancelled: an unused ledger may stay in the metadata; the next start removes it."""
        try:
            _check_size(encode(self._take_snapshot()))  # or every try would leave a ledger that holds nothing
            ledger_id, revision = await self._ownership.open_ledger("state")
            self._writer.note_revision(revision)
        except DanubeError as error:
            self._opening = False
            waiters, self._waiters = self._waiters, []
            _tell(waiters, error)
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
            _tell(waiters, error)
            if error is None and former:
                # While the broker closes they stay listed: the next owner supersedes them again.
                with contextlib.suppress(Unavailable):
                    self._tasks.spawn(self._drop(former), "superseded state ledgers dropping")
            elif error is not None:
                self._former = former + self._former

        self._append(RecordKind.STATE_SNAPSHOT, encode(self._take_snapshot()), DurabilityLevel.SYNC, synced)

    def _forget_changes(self) -> None:
        self._changes.clear()
        waiters, self._waiters = self._waiters, []
        _tell(waiters, None)

    async def _drop(self, former: list[int]) -> None:
        """Cancelled or refused: they stay listed, and the next owner supersedes them again."""
        try:
            await self._ownership.drop_ledgers(former)
        except DanubeError as error:
            log.warning("state.ledgers_kept", ledgers=former, error=error.message)
        else:
            self._writer.forget(set(former))

    def _append(self, kind: RecordKind, body: bytes, level: DurabilityLevel, done: Done) -> None:
        assert self.ledger_id is not None
        try:
            _check_size(body)
        except Full as error:  # what follows would be worth nothing without it
            self._noted(self.ledger_id, done, error)
            return
        entry, self._next_entry = self._next_entry, self._next_entry + 1
        noted = partial(self._noted, self.ledger_id, done)
        self._writer.append(kind, self.ledger_id, entry, self._ownership.epoch, body, crc32c(body), level, noted)

    def _noted(self, ledger_id: int, done: Done, error: DanubeError | None) -> None:
        if error is not None:
            self.abandoned({ledger_id})
        done(error)


class NoState:
    """The state of a `memory` topic: gone with the process, like its messages."""

    ledger_id: int | None = None
    pending = False

    def change(self, change: CursorChange | PackedChange, done: Done | None = None) -> None:
        if done is not None:
            done(None)

    def barrier(self, done: Done) -> None:
        done(None)

    def abandoned(self, ledger_ids: set[int]) -> None: ...

    def snapshot(self) -> None: ...

    def delete(self) -> None: ...

    def carry_forward(self) -> bool:
        return False

    def flush(self) -> None: ...


def _check_size(body: bytes) -> None:
    if len(body) > RECORD_BODY_BYTES_MAX:
        raise Full(f"the state of the partition has {len(body)} bytes, over the limit of {RECORD_BODY_BYTES_MAX}")


def _nobody_waits(_: DanubeError | None) -> None: ...


def _tell(waiters: list[Done], error: DanubeError | None) -> None:
    for done in waiters:
        done(error)


def settle(future: asyncio.Future[None], error: DanubeError | None) -> None:
    """A `done` that completes a future, unless its waiter has gone."""
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
