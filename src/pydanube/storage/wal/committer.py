"""The log thread: takes all mail that waits, writes it in one go, syncs once, informs the loop once, and repeats.

The thread never waits for the loop: what arrives during one sync shares the next. Only the owner of the engine uses it
(see `engine_guard`); everything else that concerns the engine is sent to this thread as mail. The thread wakes up for
mail and, while the disk fails, to try the disk again; for nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from queue import Empty, SimpleQueue
from typing import Final, Protocol, TypeAlias

import msgspec

from pydanube.model.errors import DanubeError, Unavailable
from pydanube.model.settings.sections import LogSettings
from pydanube.runtime.clock import Clock
from pydanube.runtime.telemetry import get_logger

from .engine import Engine, WalRecord
from .engine_guard import EngineGuard
from .log_contents import WalFile
from .metrics import LogMetrics

Done: TypeAlias = Callable[[DanubeError | None], None]
"""Called once an append is done, with the error if it failed."""


class DurabilityLevel(IntEnum):
    """When an append is done. Every record is synced in the end; the level says whether `done` waits for that."""

    WRITE = 0
    """Written to the page cache: survives the process, not the machine. Synced within `written_sync_ms`."""
    LAZY = 1
    """Written; synced by the next group commit, at the latest within `lazy_sync_ms`."""
    SYNC = 2
    """Synced."""


class WalAppend(msgspec.Struct, frozen=True):
    """One record on its way through the log thread, or only a request to sync what was appended before it."""

    record: WalRecord | None
    """None: nothing is to be written, only the sync is wanted."""
    level: int
    done: Done
    is_written: bool = False
    """The loop has written the record already; the log thread only syncs it."""

    @property
    def size(self) -> int:
        return len(self.record.body) if self.record is not None else 0


Command: TypeAlias = Callable[[], None]
"""A function that the log thread calls between two groups. It must not raise."""

Mail: TypeAlias = WalAppend | Command | None
"""None ends the thread."""

log: Final = get_logger("storage.wal")

MARK_SYNC_SECONDS: Final = 5.0
"""The durable mark is synced at most this often, and only while no mail waits."""


class CommitReports(Protocol):
    """Receives what happened. Every call is made in the log thread and must only pass the report on to the loop."""

    def finished(self, appends: list[WalAppend], error: DanubeError | None) -> None: ...

    def failed(self, error: DanubeError, ledgers: set[int]) -> None: ...

    def cured(self) -> None: ...

    def rotated(self, file: WalFile) -> None: ...


class Committer:
    def __init__(
        self,
        engine: Engine,
        settings: LogSettings,
        clock: Clock,
        mail: SimpleQueue[Mail],
        guard: EngineGuard,
        reports: CommitReports,
        metrics: LogMetrics,
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._clock = clock
        self._mail = mail
        self._guard = guard
        self._reports = reports
        self._metrics = metrics
        self._kept: list[Mail] = []
        """At most one item that was taken from the queue and not handled yet."""
        self._unreported: list[WalAppend] = []
        """The appends of the current group that were not reported as finished yet."""
        self._cure_due = clock.monotonic() + settings.cure_ms / 1000
        self._mark_due = clock.monotonic() + MARK_SYNC_SECONDS
        self._is_ending = False
        self._is_failing = engine.failure is not None
        self._abandoned: set[int] = set()
        """All ledgers abandoned in this run, sealed by now or not: nothing is written to them."""

    def run(self) -> None:
        """Handle mail until None arrives; all mail before it is done by then."""
        try:
            self._offer_engine()
            while self._step():
                self._offer_engine()
            self._is_ending = True
            self._end()
        except BaseException as error:
            log.exception("wal.stopped", error=repr(error))
            self._refuse_everything(Unavailable(f"the log stopped: {error!r}; start the broker again"))

    def _offer_engine(self) -> None:
        if self._is_failing:
            self._guard.withhold()
        else:
            self._guard.offer()

    def _step(self) -> bool:
        """Handle one group or one command, or try the failed disk again. Return False at the end."""
        if not self._wait_for_mail():
            self._cure()
            return True
        mail = self._kept.pop()
        if mail is None:
            return False
        if callable(mail):
            self._guard.count_done(1)
            mail()
        else:
            group = self._take_group(mail)
            self._guard.count_done(len(group))
            self._commit(group)
        return True

    def _wait_for_mail(self) -> bool:
        """Return True when there is mail, False when it is time to try the failed disk again."""
        if self._kept:
            return True
        try:
            if not self._is_failing:
                self._kept.append(self._mail.get())
            elif (seconds := self._cure_due - self._clock.monotonic()) > 0:
                self._kept.append(self._mail.get(timeout=seconds))
        except Empty:
            pass
        return bool(self._kept)

    def _take_group(self, first: WalAppend) -> list[WalAppend]:
        """Take all appends that wait, up to the size limit or to mail that is no append."""
        group = [first]
        size = first.size
        limit, take = self._settings.group_bytes_max, self._mail.get_nowait
        for _ in range(self._mail.qsize()):
            mail = take()
            if mail is None or callable(mail) or size >= limit:
                self._kept.append(mail)
                break
            group.append(mail)
            size += mail.size
        return group

    # -- committing ------------------------------------------------------------------------------------------------

    def _commit(self, group: list[WalAppend]) -> None:
        if self._abandoned:
            group = self._without_abandoned(group)
        records = [append.record for append in group if append.record is not None and not append.is_written]
        written = [append.record for append in group if append.record is not None and append.is_written]
        waiting = [append for append in group if append.level == DurabilityLevel.SYNC]
        self._unreported = group
        try:
            if records:
                started = self._clock.monotonic()
                self._engine.write(records, written)
                self._metrics.written(len(records), self._clock.monotonic() - started)
            if len(waiting) < len(group):
                self._unreported = waiting
                self._reports.finished([append for append in group if append.level < DurabilityLevel.SYNC], None)
            if waiting:
                started = self._clock.monotonic()
                self._engine.sync([append.record for append in waiting if append.record is not None])
                self._metrics.synced(self._clock.monotonic() - started)
        except Unavailable as error:
            self._fail(error)
            return
        if waiting:
            self._unreported = []
            self._reports.finished(waiting, None)
        self._report_closed_files()
        if not self._kept and self._mail.empty():
            self._fill_ahead(group)
            self._sync_mark()

    def _fill_ahead(self, group: list[WalAppend]) -> None:
        """Prepare the file for the next small groups, after a small group and when no mail waits."""
        if sum(append.size for append in group) < self._settings.fill_below_bytes:
            try:
                self._engine.fill_ahead()
            except Unavailable as error:
                self._fail(error)

    def _sync_mark(self) -> None:
        """Sync the durable mark once in a while, when no mail waits, so that it survives a power cut too."""
        now = self._clock.monotonic()
        if now >= self._mark_due:
            self._mark_due = now + MARK_SYNC_SECONDS
            self._engine.mark.sync()

    def _without_abandoned(self, group: list[WalAppend]) -> list[WalAppend]:
        """Fail the appends that were sent before their ledger was abandoned, even if the disk works again; return the
        others."""
        late = [append for append in group if self._is_abandoned(append)]
        if not late:
            return group
        error = self._engine.failure or Unavailable("the disk failed while this was on its way; send it again")
        self._reports.finished(late, error)
        return [append for append in group if not self._is_abandoned(append)]

    def _is_abandoned(self, append: WalAppend) -> bool:
        return append.record is not None and append.record.ledger_id in self._abandoned

    def _report_closed_files(self) -> None:
        for file in self._engine.closed:
            log.info("wal.rotated", generation=file.generation, ledgers=len(file.spans))
            self._reports.rotated(file)
        self._metrics.files_closed += len(self._engine.closed)
        self._engine.closed.clear()

    # -- failing ---------------------------------------------------------------------------------------------------

    def _fail(self, error: Unavailable) -> None:
        """Report which ledgers are abandoned, then fail the appends of the group. The disk is tried again later."""
        if not self._is_failing:
            log.error("wal.failed", error=error.message, ledgers=len(self._engine.abandoned))
            self._metrics.failures += 1
            self._is_failing = True
            self._cure_due = self._clock.monotonic() + self._settings.cure_ms / 1000
        fresh = self._engine.abandoned - self._abandoned
        self._abandoned |= fresh
        self._reports.failed(error, fresh)
        self._fail_unreported(error)

    def _fail_unreported(self, error: Unavailable) -> None:
        unreported, self._unreported = self._unreported, []
        self._reports.finished(unreported, error)

    def _cure(self) -> None:
        if self._engine.cure():
            self._is_failing = False
            log.info("wal.cured", generation=self._engine.table.newest)
            self._reports.cured()
            self._report_closed_files()
        else:
            self._cure_due = self._clock.monotonic() + self._settings.cure_ms / 1000
            failure = self._engine.failure
            assert failure is not None
            self._reports.failed(failure, set())

    # -- ending ----------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        try:
            if self._is_failing:
                self._engine.mark.close()
            else:
                self._engine.close()
        except Unavailable as error:
            self._fail(error)
        self._report_closed_files()

    def _refuse_everything(self, failure: Unavailable) -> None:
        """After a bug: write nothing any more, and fail every append."""
        self._guard.withhold()
        self._engine.failure = failure
        self._reports.failed(failure, set(self._engine.abandoned))
        self._fail_unreported(failure)
        while not self._is_ending:
            mail = self._kept.pop() if self._kept else self._mail.get()
            if mail is None:
                return
            if callable(mail):
                mail()
            else:
                self._reports.finished([mail], failure)
