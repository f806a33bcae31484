"""The log as the event loop sees it: appends go in, and come back done; a thread in between writes and syncs.

The thread takes everything that waits, writes it in one go, syncs once, tells the loop once, and takes what has come in
meanwhile. Nothing here waits for the loop, and the loop never waits for the disk.

Invariants
    records reach the log in the order in which `append` was called
    `done` is called on the loop exactly once per append, in that order for appends of one level; levels below SYNC may
    be done before an earlier SYNC is
    an append whose `done` got an error abandons its ledger: `on_failed` names it, the cure seals it, and what comes
    after it goes to a new ledger
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final, TypeAlias, TypeVar

from pydanube.codec.batch import BatchHeader
from pydanube.codec.wal import ByteBuffer, Identity
from pydanube.model.errors import DanubeError, Unavailable
from pydanube.runtime.clock import Clock
from pydanube.runtime.disk import Disk, DiskLock
from pydanube.runtime.telemetry import get_logger

from .engine import Engine, Record
from .handles import Handles
from .layout import LOCK
from .reader import LogReader
from .recovery import Recovered, Recovery
from .release import releasable_files
from .settings import Level, WalSettings
from .sidecar import write_sidecar
from .table import LedgerSummary, WalFile, summarize

Done: TypeAlias = Callable[[DanubeError | None], None]
Append: TypeAlias = tuple[Record, int, Done]
Command: TypeAlias = Callable[[], None]
Mail: TypeAlias = Append | Command | None
"""An append, something for the log's thread to do between groups, or the end."""

T = TypeVar("T")
log: Final = get_logger("storage.wal")


class LogWriter:
    """One log directory, open. Everything but `open` is for the loop's thread."""

    def __init__(
        self, disk: Disk, engine: Engine, recovered: Recovered, settings: WalSettings, clock: Clock, lock: DiskLock
    ) -> None:
        self.recovered = recovered
        self.pending_bytes = 0
        self.read_only: DanubeError | None = engine.failure
        self.on_failed: Callable[[set[int]], None] | None = None
        self.on_cured: Callable[[], None] | None = None
        self.on_rotated: Callable[[int, set[int]], None] | None = None
        self._disk = disk
        self._engine = engine
        self._settings = settings
        self._clock = clock
        self._lock = lock
        self._loop = asyncio.get_running_loop()
        self._abandoned: set[int] = set()
        self._closing = False
        self._mail: SimpleQueue[Mail] = SimpleQueue()
        self._pool = ThreadPoolExecutor(settings.reader_threads, "danube-log-read")
        self._handles = Handles(disk, engine.directory, settings.open_files_max)
        self._reader = LogReader(disk, engine.directory, settings, engine.table, self._handles)
        self._ended = self._loop.create_future()
        self._thread = threading.Thread(target=_Committer(self).run, name="danube-log", daemon=True)

    @classmethod
    async def open(
        cls,
        disk: Disk,
        directory: Path,
        identity: Identity,
        settings: WalSettings,
        clock: Clock,
        *,
        must_exist: bool = False,
        is_needed: Callable[[int], bool] | None = None,
    ) -> LogWriter:
        """Recover the log and go on writing in a new file.

        `must_exist`: this log was there before, so an empty directory is an emptied disk. `is_needed`: whether a
        ledger's damage matters. Raises Corrupt or Refused, with the remedy; OSError when the disk cannot be read.
        Cancelled, recovery still runs to its end in its thread, and nothing stays open.
        """
        disk.make_directory(directory)
        lock = disk.lock(directory / LOCK)
        started = clock.monotonic()
        recovery = Recovery(disk, directory, identity, settings, is_needed, _Progress(clock))
        try:
            engine = await asyncio.to_thread(recovery.run, must_exist=must_exist)
        except BaseException:
            lock.release()
            raise
        recovered = recovery.recovered
        recovered.seconds = clock.monotonic() - started
        _log_recovered(recovered)
        writer = cls(disk, engine, recovered, settings, clock, lock)
        for file in engine.closed:
            writer._index(file)
        engine.closed.clear()
        writer._thread.start()
        return writer

    # -- writing ---------------------------------------------------------------------------------------------------

    def append(
        self,
        kind: int,
        ledger_id: int,
        entry_id: int,
        owner_epoch: int,
        body: ByteBuffer,
        body_crc: int,
        level: Level,
        done: Done,
    ) -> None:
        """Hand a record over. `body` must not change until `done` was called."""
        assert not self._closing
        assert self.read_only is not None or ledger_id not in self._abandoned, f"ledger {ledger_id} was abandoned"
        self.pending_bytes += len(body)
        self._mail.put(((kind, ledger_id, entry_id, owner_epoch, body, body_crc), level, done))

    def sync(self, done: Done) -> None:
        """`done` once everything appended so far is synced, or has failed."""
        self._mail.put(((0, 0, 0, 0, b"", 0), Level.SYNC, done))

    # -- reading ---------------------------------------------------------------------------------------------------

    async def read(
        self, ledger_id: int, offset: int, bytes_max: int, before_offset: int | None = None
    ) -> list[memoryview]:
        """Batches of a ledger from the first one that ends after `offset`: at least one if there is any, at most
        `bytes_max` otherwise, none that begins at or after `before_offset`. What has not reached its ack level may be
        among them: say with `before_offset` what may be seen."""
        self._refuse_damaged(ledger_id)
        written = self._engine.position
        return await self._run(lambda: self._reader.read(ledger_id, offset, bytes_max, written, before_offset))

    async def read_entries(self, ledger_id: int, from_entry: int = 0) -> list[tuple[int, int, bytes]]:
        """(entry, kind, body) of everything in a ledger that is not a batch."""
        self._refuse_damaged(ledger_id)
        return await self._run(lambda: self._reader.read_entries(ledger_id, from_entry))

    async def read_state(self, ledger_id: int) -> tuple[bytes | None, list[bytes]]:
        """The last snapshot of a state ledger, and the deltas after it."""
        self._refuse_damaged(ledger_id)
        return await self._run(lambda: self._reader.read_state(ledger_id))

    async def batch_headers(self, ledger_id: int, from_offset: int) -> list[BatchHeader]:
        """Headers of the batches that end after an offset."""
        self._refuse_damaged(ledger_id)
        written = self._engine.position
        return await self._run(lambda: self._reader.batch_headers(ledger_id, from_offset, written))

    async def find_time(self, ledger_id: int, time_us: int) -> int | None:
        """The first offset of the first batch whose append time is not before this one."""
        self._refuse_damaged(ledger_id)
        written = self._engine.position
        return await self._run(lambda: self._reader.find_time(ledger_id, time_us, written))

    def ledger(self, ledger_id: int) -> LedgerSummary | None:
        """What the log holds of a ledger now, also what is not synced yet."""
        ledger = self._engine.table.ledgers.get(ledger_id)
        return summarize(ledger_id, ledger) if ledger is not None else None

    def _refuse_damaged(self, ledger_id: int) -> None:
        error = self.recovered.damaged.get(ledger_id)
        if error is not None:
            raise error

    async def _run(self, work: Callable[[], T]) -> T:
        return await self._loop.run_in_executor(self._pool, work)

    # -- forgetting ------------------------------------------------------------------------------------------------

    def forget(self, ledger_ids: set[int]) -> None:
        """These ledgers are deleted: their records no longer keep files."""
        ids = set(ledger_ids)

        def forget() -> None:
            for ledger_id in ids:
                ledger = self._engine.table.ledgers.get(ledger_id)
                if ledger is not None:
                    ledger.forgotten = True

        self._mail.put(forget)

    def release(self, ledger_id: int, below_offset: int, state_ledger: int | None = None) -> None:
        """Batches of a ledger that end at or below this offset are not needed here any more. With `state_ledger`,
        files with this ledger's records stay until that ledger has a newer snapshot."""

        def release() -> None:
            ledger = self._engine.table.ledgers.get(ledger_id)
            if ledger is not None:
                ledger.released_below = max(ledger.released_below, below_offset)
                if state_ledger is not None:
                    ledger.state_ledger = state_ledger

        self._mail.put(release)

    async def trim(self) -> list[int]:
        """Give back the oldest files that hold nothing needed; their generations. OSError when the disk refuses.
        Cancelled, it happens all the same."""
        answer: asyncio.Future[list[int]] = self._loop.create_future()

        def trim() -> None:
            try:
                files = releasable_files(self._engine.table, self._engine.durable, self._handles.take_out)
                if files:
                    self._engine.release(files)
                self._post(_resolve, answer, [file.generation for file in files])
            except OSError as error:
                self._post(_reject, answer, error)

        self._mail.put(trim)
        return await answer

    async def close(self) -> None:
        """Everything handed in is written and synced, then the file is closed with its index. Cancelled, that happens
        all the same, in the background."""
        if not self._closing:
            self._closing = True
            self._mail.put(None)
        await asyncio.shield(self._ended)
        self._thread.join()
        self._pool.shutdown(wait=True)
        self._handles.close()
        self._lock.release()

    # -- called by the log's thread --------------------------------------------------------------------------------

    def _post(self, callback: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:  # the loop was closed under us: nobody is left to be told
            log.warning("wal.loop_gone")

    def _index(self, file: WalFile) -> None:
        """Write the index of a closed file, in the pool; then its rows need not stay in memory."""

        def write() -> None:
            try:
                write_sidecar(self._disk, self._engine.directory, file)
            except OSError as error:
                log.warning("wal.index_not_written", generation=file.generation, error=str(error))
                return
            for span in file.spans.values():
                span.index = None

        self._pool.submit(write)

    # -- on the loop, for the log's thread -------------------------------------------------------------------------

    def _finished(self, appends: list[Append], error: DanubeError | None) -> None:
        for record, _, done in appends:
            self.pending_bytes -= len(record[4])
            try:
                done(error)
            except Exception as failure:
                self._loop.call_exception_handler({"message": "a log callback failed", "exception": failure})

    def _failed(self, error: DanubeError, ledgers: set[int]) -> None:
        self.read_only = error
        ledgers = ledgers - self._abandoned
        self._abandoned |= ledgers
        if ledgers and self.on_failed is not None:
            self.on_failed(ledgers)

    def _cured(self) -> None:
        self.read_only = None
        if self.on_cured is not None:
            self.on_cured()

    def _rotated(self, generation: int, ledgers: set[int]) -> None:
        if self.on_rotated is not None:
            self.on_rotated(generation, ledgers)

    def _thread_ended(self, error: BaseException | None) -> None:
        if not self._ended.done():
            self._ended.set_result(None)


class _Committer:
    """The log's thread."""

    def __init__(self, writer: LogWriter) -> None:
        self._writer = writer
        self._engine = writer._engine
        self._settings = writer._settings
        self._clock = writer._clock
        self._mail = writer._mail
        self._kept: Mail = None
        self._has_kept = False
        self._sync_due: float | None = None
        self._cure_due = 0.0
        self._told: set[int] = set()

    def run(self) -> None:
        try:
            while self._step():
                pass
            self._end()
        except BaseException as error:
            log.exception("wal.stopped", error=repr(error))
            self._stop(error)
        finally:
            self._writer._post(self._writer._thread_ended, None)

    def _step(self) -> bool:
        """One group, one command, or one thing that was due. False at the end."""
        mail = self._next()
        if mail is False:
            self._do_what_is_due()
        elif mail is None:
            return False
        elif callable(mail):
            mail()
        else:
            self._commit(self._group(mail))  # type: ignore[arg-type]
        return True

    def _next(self) -> Mail | bool:
        """The next mail; False when something is due before any came."""
        if self._has_kept:
            self._has_kept = False
            return self._kept
        due = self._cure_due if self._engine.failure is not None else self._sync_due
        if due is None:
            return self._mail.get()
        wait = due - self._clock.monotonic()
        if wait <= 0:
            return False
        try:
            return self._mail.get(timeout=wait)
        except Empty:
            return False

    def _group(self, first: Append) -> list[Append]:
        """Everything that waits, up to the next command and the limit."""
        group = [first]
        size = len(first[0][4])
        limit, take = self._settings.group_bytes_max, self._mail.get_nowait
        for _ in range(self._mail.qsize()):
            mail = take()
            if mail is None or callable(mail) or size >= limit:
                self._kept, self._has_kept = mail, True
                break
            group.append(mail)
            size += len(mail[0][4])
        return group

    def _commit(self, group: list[Append]) -> None:
        engine, writer = self._engine, self._writer
        records = [append[0] for append in group if append[0][0]]
        early = [append for append in group if append[1] < Level.SYNC]
        waiting = group if not early else [append for append in group if append[1] == Level.SYNC]
        try:
            engine.write(records)
            if early:
                writer._post(writer._finished, early, None)
                early = []
            if waiting:
                engine.sync()
        except Unavailable as error:
            self._fail(error, sorted_in_order(group, early, waiting))
            return
        if waiting:
            writer._post(writer._finished, waiting, None)
        self._note_due(group)
        self._take_closed()

    def _note_due(self, group: list[Append]) -> None:
        """When the written must be synced, if nobody waits for it before."""
        if self._engine.durable == self._engine.position:
            self._sync_due = None
            return
        lazy = any(append[1] == Level.LAZY for append in group)
        delay = self._settings.lazy_sync_ms if lazy else self._settings.written_sync_ms
        due = self._clock.monotonic() + delay / 1000
        self._sync_due = due if self._sync_due is None else min(self._sync_due, due)

    def _do_what_is_due(self) -> None:
        if self._engine.failure is not None:
            self._cure()
            return
        self._sync_due = None
        try:
            self._engine.sync()
        except Unavailable as error:
            self._fail(error, [])

    def _fail(self, error: Unavailable, appends: list[Append]) -> None:
        """Tell everybody who waited, and whose ledgers are abandoned; then try to be cured now and then."""
        writer = self._writer
        if not self._told:
            log.error("wal.failed", error=error.message, ledgers=len(self._engine.abandoned))
            self._cure_due = self._clock.monotonic() + self._settings.cure_ms / 1000
        self._sync_due = None
        fresh = self._engine.abandoned - self._told
        self._told |= fresh | {0}
        writer._post(writer._failed, error, fresh)
        writer._post(writer._finished, appends, error)

    def _cure(self) -> None:
        writer = self._writer
        if self._engine.cure():
            self._told.clear()
            log.info("wal.cured", generation=self._engine.table.newest)
            writer._post(writer._cured)
        else:
            self._cure_due = self._clock.monotonic() + self._settings.cure_ms / 1000
        self._take_closed()

    def _take_closed(self) -> None:
        if self._engine.closed:
            for file in self._engine.closed:
                log.info("wal.rotated", generation=file.generation, ledgers=len(file.spans))
                self._writer._index(file)
                self._writer._post(self._writer._rotated, file.generation, set(file.spans))
            self._engine.closed.clear()

    def _end(self) -> None:
        try:
            if self._engine.failure is None:
                self._engine.close()
        except Unavailable as error:
            self._fail(error, [])
        for file in self._engine.closed:
            self._writer._index(file)
        self._engine.closed.clear()

    def _stop(self, error: BaseException) -> None:
        """A mistake of ours: nothing is written any more, and everybody is told."""
        failure = Unavailable(f"the log stopped: {error!r}; start the broker again")
        self._writer._post(self._writer._failed, failure, set(self._engine.abandoned))
        while not self._writer._closing or not self._mail.empty():
            mail = self._mail.get()
            if isinstance(mail, tuple):
                self._writer._post(self._writer._finished, [mail], failure)
            elif mail is None:
                return


def sorted_in_order(group: list[Append], early: list[Append], waiting: list[Append]) -> list[Append]:
    """Those of a group that were not told yet, in order."""
    return group if early else waiting


def _resolve(answer: asyncio.Future[list[int]], generations: list[int]) -> None:
    if not answer.done():
        answer.set_result(generations)


def _reject(answer: asyncio.Future[list[int]], error: OSError) -> None:
    if not answer.done():
        answer.set_exception(error)


class _Progress:
    """Says once a second how far recovery is."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._next = clock.monotonic() + 1.0

    def __call__(self, recovered: Recovered) -> None:
        if self._clock.monotonic() >= self._next:
            self._next = self._clock.monotonic() + 1.0
            log.info("wal.recovering", files=recovered.files, bytes=recovered.bytes_scanned)


def _log_recovered(recovered: Recovered) -> None:
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
