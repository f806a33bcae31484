"""The log as the event loop sees it: callers hand in appends and are called back; a log thread writes and syncs.

While the log thread is idle, a single small record is written here, on the loop: the thread then only has to sync it.
Records that follow closely are written by the thread, many at once, and those of one turn of the loop wake it up once,
because each time it wakes up the two threads compete for the interpreter. The loop never syncs, and after a slow write
it leaves all writing to the thread for a while.

Invariants
    one of the two threads uses the engine at a time; `engine_guard` decides which
    records reach the log in the order in which `append` was called: a record is written on the loop only when all
    records before it are written
    `done` is called on the loop exactly once per append, in that order for appends of one level; levels below SYNC may
    be done before an earlier SYNC is, and before `append` returns
    below SYNC, a sync is requested within the time of the level, by timers of the loop
    an append whose `done` got an error abandons its ledger: listeners are told its id first, the ledger ends before
    the first append that failed (see `ledger`), it is sealed there once the disk works again, and later appends go to
    a new ledger
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, TypeVar

from pydanube.codec.batch import BatchHeader
from pydanube.codec.wal import ByteBuffer, MetadataStamp, NodeIdentity
from pydanube.model.errors import DanubeError, Unavailable
from pydanube.model.limits import RECORD_BODY_BYTES_MAX
from pydanube.model.settings.sections import LogSettings
from pydanube.runtime.clock import Clock
from pydanube.runtime.disk import Disk, DiskLock
from pydanube.runtime.tasks import ignore
from pydanube.runtime.telemetry import get_logger

from .committer import Committer, Done, DurabilityLevel, Mail, WalAppend
from .engine import Engine, WalRecord
from .engine_guard import EngineGuard
from .handles import Handles, Released
from .log_contents import LedgerSummary, WalFile, summarize
from .log_files import LOCK
from .log_reader import LogReader
from .metrics import LogMetrics
from .recovery import LogRecovery, RecoveredLog
from .release import releasable_files
from .sidecar import write_sidecar

T = TypeVar("T")
log: Final = get_logger("storage.wal")

READS_PER_THREAD: Final = 2
"""So many reads are under way for each thread that reads: one more waits until the caller of another has seen what was
read. A busy event loop would let results pile up, each a batch of up to 10 MiB."""

CLOSE_SECONDS: Final = 0.0001
"""For this long after a write on the loop, records go to the thread: more will follow, and it writes many at once."""

SLOW_WRITE_SECONDS: Final = 0.005
"""A write on the loop that takes longer probably waited for the disk, and blocked the whole loop."""

AFTER_SLOW_SECONDS: Final = 1.0
"""For this long after a slow write, only the thread writes."""


@dataclass(frozen=True, slots=True)
class LogListener:
    """Callbacks for what happens to the log as a whole. They are called on the event loop."""

    failed: Callable[[set[int]], None] = ignore
    """Called with the ledgers that a disk failure abandoned, before the `done` of their failed appends."""
    cured: Callable[[], None] = ignore
    """Called when the log takes records again after a disk failure."""
    rotated: Callable[[int, set[int]], None] = ignore
    """Called when a file was closed, with its generation and the ledgers in it."""
    released: Callable[[], None] = ignore
    """Called after a trim that released files."""


class LogWriter:
    """One open log directory. All methods are called on the event loop."""

    def __init__(
        self, disk: Disk, engine: Engine, recovered: RecoveredLog, settings: LogSettings, clock: Clock, lock: DiskLock
    ) -> None:
        self.identity = engine.identity
        """The node that the log belongs to."""
        self.recovered = recovered
        self.pending_bytes = 0
        self.metrics = LogMetrics()
        self.read_only: DanubeError | None = engine.failure
        self._listeners: list[LogListener] = []
        self._disk = disk
        self._engine = engine
        self._settings = settings
        self._lock = lock
        self._loop = asyncio.get_running_loop()
        self._monotonic = clock.monotonic
        self._thread_only_until = 0.0
        self._sync_timers: dict[int, asyncio.TimerHandle] = {}
        """By level: the timer of the next sync that no caller waits for."""
        self._of_this_turn: list[WalAppend] = []
        """Appends of this turn of the loop that are not in the thread's mail yet."""
        self._abandoned: set[int] = set()
        self._closing: asyncio.Future[None] | None = None
        self._guard = EngineGuard()
        self._mail: SimpleQueue[Mail] = SimpleQueue()
        self._pool = ThreadPoolExecutor(settings.reader_threads, "danube-log-read")
        self._reads = asyncio.Semaphore(READS_PER_THREAD * settings.reader_threads)
        self._handles = Handles(disk, engine.directory, settings.open_files_max)
        self._reader = LogReader(disk, engine.directory, settings, engine.table, self._handles)
        committer = Committer(engine, settings, clock, self._mail, self._guard, _LoopReports(self), self.metrics)
        self._thread = threading.Thread(target=committer.run, name="danube-log", daemon=True)

    @classmethod
    async def open(
        cls,
        disk: Disk,
        directory: Path,
        identity: NodeIdentity,
        settings: LogSettings,
        clock: Clock,
        *,
        must_exist: bool = False,
        is_needed: Callable[[int], bool] | None = None,
        check: Callable[[RecoveredLog], Awaitable[None]] | None = None,
        metadata: MetadataStamp | None = None,
    ) -> LogWriter:
        """Recover the log and continue in a new file.

        `must_exist`: the log existed before, so an empty directory means an emptied disk. `is_needed` says whether
        damage to a ledger matters. `check` is awaited after the log was read and before anything is written; an
        exception from it refuses the start. `metadata` is the metadata store that this log depends on.

        Raises Corrupt or Refused, with the remedy; OSError when the disk cannot be read. When cancelled, recovery still
        runs to its end in its thread, and nothing stays open.
        """
        disk.make_directory(directory)
        lock = disk.lock(directory / LOCK)
        started = clock.monotonic()
        recovery = LogRecovery(disk, directory, identity, settings, is_needed, _RecoveryProgress(clock), metadata)
        loop = asyncio.get_running_loop()
        running: asyncio.Future[Any] = loop.run_in_executor(None, lambda: recovery.read(must_exist=must_exist))
        try:
            await asyncio.shield(running)
            if check is not None:
                await check(recovery.recovered)
            running = loop.run_in_executor(None, recovery.begin)
            engine: Engine = await asyncio.shield(running)
        except asyncio.CancelledError:
            running.add_done_callback(lambda finished: _discard(finished, lock))
            raise
        except BaseException:
            lock.release()
            raise
        recovery.recovered.seconds = clock.monotonic() - started
        _log_recovered(recovery.recovered)
        writer = cls(disk, engine, recovery.recovered, settings, clock, lock)
        for file in engine.closed:
            writer._index(file)
        engine.closed.clear()
        writer._thread.start()
        return writer

    # -- the metadata ----------------------------------------------------------------------------------------------

    @property
    def metadata(self) -> MetadataStamp | None:
        """The metadata store and revision that the next file will name."""
        return self._engine.metadata

    def note_revision(self, revision: int) -> None:
        """Record that the metadata has durably reached this revision; the next file will name it."""
        known = self._engine.metadata
        if known is not None and revision > known.revision:
            self._engine.metadata = known._replace(revision=revision)

    # -- listeners -------------------------------------------------------------------------------------------------

    def subscribe(self, listener: LogListener) -> None:
        """Call this listener from now on. The broker's parts need the log, so they can only subscribe after it is open;
        until then the log has no ledgers to report."""
        self._listeners.append(listener)

    def unsubscribe(self, listener: LogListener) -> None:
        """Stop calling this listener. Unknown listeners are ignored."""
        self._listeners = [known for known in self._listeners if known is not listener]

    # -- writing ---------------------------------------------------------------------------------------------------

    def append(
        self,
        kind: int,
        ledger_id: int,
        entry_id: int,
        owner_epoch: int,
        body: ByteBuffer,
        body_crc: int,
        level: DurabilityLevel,
        done: Done,
    ) -> None:
        """Append one record. `body` must not change until `done` was called, which may be before this returns."""
        assert self._closing is None
        assert len(body) <= RECORD_BODY_BYTES_MAX, f"a body of {len(body)} bytes could not be read again"
        assert self.read_only is not None or ledger_id not in self._abandoned, f"ledger {ledger_id} was abandoned"
        record = WalRecord(kind, ledger_id, entry_id, owner_epoch, body, body_crc)
        is_written = self._may_write_on_loop(len(body)) and self._write_on_loop(record)
        if level < DurabilityLevel.SYNC:
            if level not in self._sync_timers:
                self._plan_sync(level)
            if is_written:
                self._call_done(done, None)
                return
        self.pending_bytes += len(body)
        if is_written:
            self._send(WalAppend(record, level, done, is_written=True))
        else:
            self._send_with_this_turn(WalAppend(record, level, done))

    def sync(self, done: Done) -> None:
        """Call `done` once everything appended so far is synced, or has failed."""
        self._send(WalAppend(None, DurabilityLevel.SYNC, done))

    def _send(self, mail: Mail) -> None:
        self._guard.count_put()
        self._end_turn()
        self._mail.put(mail)

    def _send_with_this_turn(self, append: WalAppend) -> None:
        self._guard.count_put()
        if not self._of_this_turn:
            self._loop.call_soon(self._end_turn)
        self._of_this_turn.append(append)

    def _end_turn(self) -> None:
        appends, self._of_this_turn = self._of_this_turn, []
        for append in appends:
            self._mail.put(append)

    def _may_write_on_loop(self, length: int) -> bool:
        return (
            length <= self._settings.loop_write_bytes_max
            and self._guard.loop_owns_engine
            and self._engine.fits_open_file(length)
            and self._monotonic() >= self._thread_only_until
        )

    def _write_on_loop(self, record: WalRecord) -> bool:
        """Write the record; return False when that failed. The engine then refuses everything, and the thread, which is
        sent this record next, handles the failure."""
        started = self._monotonic()
        try:
            self._engine.write([record])
        except Unavailable:
            return False
        except BaseException as error:  # a bug: let the thread stop the log
            self._send(partial(_raise, error))
            if not isinstance(error, Exception):
                raise
            return False
        ended = self._monotonic()
        self.metrics.written(1, ended - started)
        is_slow = ended - started > SLOW_WRITE_SECONDS
        self._thread_only_until = ended + (AFTER_SLOW_SECONDS if is_slow else CLOSE_SECONDS)
        return True

    def _plan_sync(self, level: DurabilityLevel) -> None:
        delay_ms = self._settings.lazy_sync_ms if level is DurabilityLevel.LAZY else self._settings.written_sync_ms
        self._sync_timers[level] = self._loop.call_later(delay_ms / 1000, self._sync_due, level)

    def _sync_due(self, level: DurabilityLevel) -> None:
        del self._sync_timers[level]
        if not (self._guard.loop_owns_engine and self._engine.durable == self._engine.position):
            self.sync(ignore)

    # -- reading ---------------------------------------------------------------------------------------------------

    async def read(
        self, ledger_id: int, offset: int, bytes_max: int, before_offset: int | None = None
    ) -> list[memoryview]:
        """Return batches of a ledger, beginning with the first one that ends after `offset`: at least one if there is
        any, otherwise at most `bytes_max`, and none that begins at or after `before_offset`. Batches that have not
        reached their ack level are included unless `before_offset` excludes them."""
        self._refuse_damaged(ledger_id)
        written = self._engine.position
        async with self._reads:  # until the caller goes on: it decides whether it keeps what was read
            return await self._run(lambda: self._reader.read(ledger_id, offset, bytes_max, written, before_offset))

    async def read_entries(self, ledger_id: int, from_entry: int = 0) -> list[tuple[int, int, bytes]]:
        """Return (entry, kind, body) of every record of a ledger that is not a batch."""
        self._refuse_damaged(ledger_id)
        return await self._run(lambda: self._reader.read_entries(ledger_id, from_entry))

    async def read_state(self, ledger_id: int) -> tuple[bytes | None, list[bytes]]:
        """Return the last snapshot of a state ledger and the deltas after it."""
        self._refuse_damaged(ledger_id)
        return await self._run(lambda: self._reader.read_state(ledger_id))

    async def batch_headers(self, ledger_id: int, from_offset: int) -> list[BatchHeader]:
        """Return the headers of the batches that end after `from_offset`."""
        self._refuse_damaged(ledger_id)
        written = self._engine.position
        return await self._run(lambda: self._reader.batch_headers(ledger_id, from_offset, written))

    async def find_time(self, ledger_id: int, time_us: int) -> int | None:
        """Return the first offset of the first batch appended at `time_us` or later; None if there is none."""
        self._refuse_damaged(ledger_id)
        written = self._engine.position
        return await self._run(lambda: self._reader.find_time(ledger_id, time_us, written))

    @property
    def newest_generation(self) -> int:
        """The generation of the newest log file."""
        return self._engine.table.newest

    def ledger(self, ledger_id: int) -> LedgerSummary | None:
        """Describe what can be read of a ledger now: also records that are not synced yet, but not those in files that
        are being released. None for an unknown ledger."""
        ledger = self._engine.table.ledgers.get(ledger_id)
        if ledger is None:
            return None
        spans = [span for span in ledger.spans if not self._handles.is_released(span.generation)]
        return summarize(ledger_id, spans, ledger.sealed)

    async def held(self, ledger_ids: Sequence[int]) -> set[int]:
        """Return those of the ledgers of which the next start would find records. Appends made before this call count,
        even when they are not written yet."""
        answer: asyncio.Future[set[int]] = self._loop.create_future()

        def find() -> None:
            ledgers, abandoned = self._engine.table.ledgers, self._engine.abandoned
            # Abandoned ledgers are not sealed yet: a start before that could find some of their records.
            held = {one for one in ledger_ids if one in abandoned or (one in ledgers and ledgers[one].spans)}
            self._post(_settle, answer, held, None)

        self._send(find)
        return await answer

    def _refuse_damaged(self, ledger_id: int) -> None:
        error = self.recovered.damaged.get(ledger_id)
        if error is not None:
            raise error

    async def _run(self, work: Callable[[], T]) -> T:
        return await self._loop.run_in_executor(self._pool, _read, work, self._engine.directory)

    # -- releasing -------------------------------------------------------------------------------------------------

    def forget(self, ledger_ids: set[int]) -> None:
        """Mark ledgers as deleted: their records no longer prevent the release of files."""
        ids = set(ledger_ids)

        def forget() -> None:
            for ledger_id in ids:
                ledger = self._engine.table.ledgers.get(ledger_id)
                if ledger is not None:
                    ledger.forgotten = True

        self._send(forget)

    def release(self, ledger_id: int, below_offset: int, state_ledger: int | None = None) -> None:
        """Mark the batches of a ledger that end at or below `below_offset` as no longer needed in the log. With
        `state_ledger`, files with records of this ledger stay until that state ledger has a newer snapshot."""

        def release() -> None:
            ledger = self._engine.table.ledgers.get(ledger_id)
            if ledger is not None:
                ledger.released_below = max(ledger.released_below, below_offset)
                if state_ledger is not None:
                    ledger.state_ledger = state_ledger

        self._send(release)

    @property
    def appended_bytes(self) -> int:
        """How many bytes were ever written to the log."""
        return self._engine.position

    @property
    def files(self) -> int:
        """How many files the log has."""
        return len(self._engine.table.files)

    @property
    def stored_bytes(self) -> int:
        """About how many bytes the log takes on disk."""
        table = self._engine.table
        oldest = table.files.get(table.oldest)
        return self._engine.position - oldest.base if oldest is not None else 0

    async def trim(self, keep_bytes: int = 0) -> list[int]:
        """Release the oldest files that hold nothing needed, except for the last `keep_bytes` of the log, and return
        their generations. Raises OSError when the disk refuses. When cancelled, it still happens."""
        answer: asyncio.Future[list[int]] = self._loop.create_future()

        def trim() -> None:
            try:
                engine = self._engine
                before = engine.position - keep_bytes
                files = releasable_files(engine.table, engine.durable, self._handles.take_out, engine.held_from, before)
                if files:
                    engine.release(files)
                    self._post(self._released)
                self._post(_settle, answer, [file.generation for file in files], None)
            except Exception as error:
                self._post(_settle, answer, [], error)

        self._send(trim)
        return await answer

    async def close(self) -> None:
        """Write and sync everything appended, then close the file and write its index. When cancelled, this still
        happens, in the background."""
        if self._closing is None:
            for timer in self._sync_timers.values():
                timer.cancel()
            self._send(None)
            self._closing = self._loop.run_in_executor(None, self._release_resources)
        await asyncio.shield(self._closing)

    def _release_resources(self) -> None:
        self._thread.join()
        self._pool.shutdown(wait=True)
        self._handles.close()
        self._lock.release()

    # -- called by the log thread ----------------------------------------------------------------------------------

    def _post(self, callback: Callable[..., None], *arguments: object) -> None:
        self._guard.count_posted()
        try:
            self._loop.call_soon_threadsafe(self._handle_post, callback, arguments)
        except RuntimeError:  # the loop was closed before the log
            log.warning("wal.loop_gone")

    def _index(self, file: WalFile) -> None:
        """Write the index of a closed file in the thread pool, then drop its rows from memory."""

        def write() -> None:
            try:
                write_sidecar(self._disk, self._engine.directory, file)
            except OSError as error:
                log.warning("wal.index_not_written", generation=file.generation, error=str(error))
                return
            for span in file.spans.values():
                span.index = None

        self._pool.submit(write)

    # -- called on the loop, with what the log thread posted -------------------------------------------------------

    def _handle_post(self, callback: Callable[..., None], arguments: tuple[object, ...]) -> None:
        try:
            callback(*arguments)
        finally:
            self._guard.count_handled()

    def _finished(self, appends: list[WalAppend], error: DanubeError | None) -> None:
        for append in appends:
            if append.record is not None:
                self.pending_bytes -= len(append.record.body)
            self._call_done(append.done, error)

    def _call_done(self, done: Done, error: DanubeError | None) -> None:
        try:
            done(error)
        except Exception as failure:
            self._loop.call_exception_handler({"message": "a log callback failed", "exception": failure})

    def _failed(self, error: DanubeError, ledgers: set[int]) -> None:
        self.read_only = error
        self._abandoned |= ledgers
        if ledgers:
            for listener in self._listeners:
                listener.failed(ledgers)

    def _cured(self) -> None:
        self.read_only = None
        for listener in self._listeners:
            listener.cured()

    def _rotated(self, generation: int, ledgers: set[int]) -> None:
        if self._closing is None:
            for listener in self._listeners:
                listener.rotated(generation, ledgers)

    def _released(self) -> None:
        if self._closing is None:
            for listener in self._listeners:
                listener.released()


class _LoopReports:
    """Posts the reports of the log thread to the event loop (a `CommitReports`)."""

    def __init__(self, writer: LogWriter) -> None:
        self._writer = writer

    def finished(self, appends: list[WalAppend], error: DanubeError | None) -> None:
        self._writer._post(self._writer._finished, appends, error)

    def failed(self, error: DanubeError, ledgers: set[int]) -> None:
        self._writer._post(self._writer._failed, error, ledgers)

    def cured(self) -> None:
        self._writer._post(self._writer._cured)

    def rotated(self, file: WalFile) -> None:
        self._writer._index(file)
        self._writer._post(self._writer._rotated, file.generation, set(file.spans))


def _read(work: Callable[[], T], directory: Path) -> T:
    """Call `work`, and again when a file was released meanwhile: the next try does not see that file any more."""
    while True:
        try:
            return work()
        except Released:
            continue
        except OSError as error:
            raise Unavailable(f"the log in {directory} cannot be read: {error}") from error


def _raise(error: BaseException) -> None:
    raise error


def _settle(answer: asyncio.Future[T], found: T, error: Exception | None) -> None:
    if answer.done():
        return
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(found)


def _discard(finished: asyncio.Future[Any], lock: DiskLock) -> None:
    """Close what a cancelled recovery opened."""
    if not finished.cancelled() and finished.exception() is None and isinstance(finished.result(), Engine):
        with contextlib.suppress(DanubeError):
            finished.result().close()
    lock.release()


class _RecoveryProgress:
    """Logs the progress of recovery once a second."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._next = clock.monotonic() + 1.0

    def __call__(self, recovered: RecoveredLog) -> None:
        if self._clock.monotonic() >= self._next:
            self._next = self._clock.monotonic() + 1.0
            log.info("wal.recovering", files=recovered.files, bytes=recovered.bytes_scanned)


def _log_recovered(recovered: RecoveredLog) -> None:
    log.info(
        "wal.recovered",
        files=recovered.files,
        scanned=recovered.files_scanned,
        records=recovered.records_scanned,
        bytes=recovered.bytes_scanned,
        torn_bytes=recovered.torn_bytes,
        ledgers=len(recovered.ledgers),
        seconds=round(recovered.seconds, 3),
    )
    for ledger_id, error in recovered.damaged.items():
        log.error("wal.damaged", ledger=ledger_id, error=error.message)
