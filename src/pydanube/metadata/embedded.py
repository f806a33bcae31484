"""The metadata store of a single broker: one SQLite file and its journal, one thread, any number of callers.

    callers (event loop)          thread "danube-metadata"             event loop
    --------------------          ------------------------             ----------
    get, list, transact, ... -->  takes all that wait                  history grows, watchers wake,
                                  BEGIN, each in turn, COMMIT,
                                  one record of the journal  ------->  then every caller gets its answer
                                  (two syncs for all of them)

Reads share the commit of the writes before them and are answered after it: no caller sees what might still be lost.

Invariants
    requests take effect in the order in which they were made
    events reach the history in revision order, before the transaction's own caller is answered
    a lease that is not kept alive for its time to live ends, measured by the given clock; after a restart every lease
    gets its full time again, since it could not be kept alive in between
    when `close` has returned the thread has ended, and the file is closed

The history of recent changes holds the events of every revision in (compacted, revision], and of none before. It
never holds more than the given revisions and bytes: the oldest go first, except that the newest always stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self, TypeVar

from pydanube.model.errors import Corrupt, DanubeError, Full, Invalid, NotFound, Unavailable
from pydanube.runtime.clock import Clock
from pydanube.runtime.closing import Closing
from pydanube.runtime.disk import Disk, OsDisk
from pydanube.runtime.tasks import Tasks
from pydanube.runtime.telemetry import get_logger
from pydanube.runtime.waits import Signal

from .database import Database
from .store import (
    Compacted,
    Compare,
    Delete,
    Event,
    GrantedLease,
    KeyValue,
    Put,
    StoreIdentity,
    Succession,
    TransactionResult,
    check_transaction,
    check_ttl,
    key_bytes,
    prefix_bytes,
)
from .store_thread import Group, GroupOutcome, StoreRequest, StoreWorker

HISTORY_REVISIONS_MAX: Final = 10_000
HISTORY_BYTES_MAX: Final = 16 * 1024 * 1024
"""A watcher that is further behind than this has to list again, which is cheaper than reading all it missed."""


class EventHistory:
    """Holds the events after `compacted`, up to and including `revision`. Used on the event loop only."""

    def __init__(self, revision: int, revisions_max: int, bytes_max: int) -> None:
        self._revision = revision
        self._revisions_max = revisions_max
        self._bytes_max = bytes_max
        self._changes: deque[tuple[list[Event], int]] = deque()
        self._bytes = 0
        self._changed = Signal()
        self._closed = False

    @property
    def revision(self) -> int:
        return self._revision

    @property
    def compacted(self) -> int:
        """The last revision whose events are no longer held."""
        return self._revision - len(self._changes)

    def append(self, revision: int, events: list[Event]) -> None:
        assert revision == self._revision + 1, "revisions leave no gap"
        size = sum(len(event.key) + len(event.current.value if event.current else b"") for event in events)
        self._changes.append((events, size))
        self._revision = revision
        self._bytes += size
        while len(self._changes) > self._revisions_max or (self._bytes > self._bytes_max and len(self._changes) > 1):
            self._drop_oldest()
        self._changed.wake()

    def compact(self, revision: int) -> None:
        while self.compacted < min(revision, self._revision):
            self._drop_oldest()
        self._changed.wake()

    def restart(self, revision: int) -> None:
        """Continue at `revision` without the events that led to it; all events before it are dropped."""
        self.compact(self._revision)
        self._revision = revision
        self._changed.wake()

    def close(self) -> None:
        """End every watch, also those that begin later, with Unavailable."""
        self._closed = True
        self._changed.wake()

    async def watch(self, prefix: str, from_revision: int) -> AsyncIterator[Event]:
        """Implements `MetadataStore.watch`. When cancelled or closed early, nothing is left behind."""
        prefix_bytes(prefix)
        if from_revision < 0:
            raise Invalid(f"watch from revision {from_revision}: revisions start at 1")
        wanted = max(1, from_revision)
        while True:
            while wanted <= self._revision:
                for event in self._events_at(wanted):
                    if event.key.startswith(prefix):
                        yield event
                wanted += 1
            if self._closed:
                raise Unavailable("the metadata store has been closed")
            await self._changed.wait()

    def _events_at(self, revision: int) -> list[Event]:
        if revision <= self.compacted:
            raise Compacted(f"revision {revision} has been compacted away (up to {self.compacted}): list again")
        events, _ = self._changes[revision - self.compacted - 1]
        return events

    def _drop_oldest(self) -> None:
        _, size = self._changes.popleft()
        self._bytes -= size


log = get_logger(__name__)

T = TypeVar("T")

GROUP_REQUESTS_MAX: Final = 256
"""How many requests share one commit: enough to hide the sync, few enough that the first does not wait long."""

WAITING_MAX: Final = 10_000
"""How many requests may wait for an answer; more are refused with Full instead of being buffered."""

LEASES_MAX: Final = 10_000
EXPIRE_AGAIN_SECONDS: Final = 1.0
"""A lease that could not be ended (the disk is full) is tried again after this time."""

PROBE_SECONDS: Final = 1.0
"""How often a write is tried while writes fail."""


@dataclass(slots=True)
class _Lease:
    ttl_seconds: float
    deadline: float
    expiry: asyncio.Task[None] | None = None


class EmbeddedStore(Closing):
    """A `MetadataStore` in one SQLite file. Created by `open`, used on one event loop."""

    def __init__(
        self, path: Path, clock: Clock, disk: Disk, history_revisions_max: int, history_bytes_max: int
    ) -> None:
        self._path = path
        self._disk = disk
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._requests: queue.SimpleQueue[StoreRequest | None] = queue.SimpleQueue()
        self._waiting = 0
        self._history = EventHistory(0, history_revisions_max, history_bytes_max)
        self._leases: dict[int, _Lease] = {}
        self._tasks = Tasks()
        self._closing = False
        self._failure: DanubeError | None = None
        self._probing = False
        self._thread = threading.Thread(target=self._serve, name="danube-metadata", daemon=True)
        self._ended: asyncio.Future[Exception | None] = self._loop.create_future()

    @classmethod
    async def open(
        cls,
        path: Path,
        clock: Clock,
        *,
        disk: Disk | None = None,
        history_revisions_max: int = HISTORY_REVISIONS_MAX,
        history_bytes_max: int = HISTORY_BYTES_MAX,
    ) -> Self:
        """Open or create the database and its journal, check both, and repair one from the other where needed.

        Raises Unavailable (in use, unreadable), Corrupt (neither copy is whole), or Refused (no pydanube database, or
        of a newer release). The journal is written to `disk`; SQLite always writes to the real one.

        When cancelled, nothing stays open.
        """
        store = cls(path, clock, disk or OsDisk(), history_revisions_max, history_bytes_max)
        store._thread.start()
        try:
            revision, leases = await store._submit(lambda database: (database.revision, database.leases()))
        except BaseException:
            await store.close()
            raise
        store._history.restart(revision)
        for lease, ttl_ms in leases:
            store._start_lease(lease, ttl_ms)
        log.info("metadata.opened", path=str(path), revision=revision, leases=len(leases))
        return store

    @property
    def revision_seen(self) -> int:
        return self._history.revision

    def refuse(self, why: DanubeError) -> None:
        """Never called: the file cannot be exchanged while this process has it open and locked."""
        raise AssertionError(why.message)

    async def refused(self) -> DanubeError:
        never: asyncio.Future[DanubeError] = asyncio.get_running_loop().create_future()
        return await never

    async def close(self) -> None:
        """Answer the requests that wait, end the thread, close the file.

        May be called again. When cancelled, closing continues in the background: call `close` again to wait for it.
        """
        if not self._closing:
            self._closing = True
            self._requests.put(None)
        try:
            await self._tasks.close()
        finally:
            failure = await asyncio.shield(self._ended)
            self._thread.join()
            self._history.close()
        if failure is not None:
            raise failure

    async def get(self, key: str) -> KeyValue | None:
        key_bytes(key)
        return await self._submit(lambda database: database.get(key))

    async def list(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> list[KeyValue]:
        prefix_bytes(prefix)
        prefix_bytes(start_after)
        if limit < 1:
            raise Invalid(f"list with limit={limit}: ask for at least one key")
        return await self._submit(lambda database: database.scan(prefix, start_after, limit))

    async def transact(self, compares: Sequence[Compare], writes: Sequence[Put | Delete]) -> TransactionResult:
        """See `MetadataStore.transact`. When cancelled, all of it may happen or nothing."""
        compares, writes = tuple(compares), tuple(writes)
        check_transaction(compares, writes)
        for write in writes:
            if isinstance(write, Put) and write.lease:
                self._require_lease(write.lease)
        return await self._submit(lambda database: database.transact(compares, writes), writes=bool(writes))

    def watch(self, prefix: str, from_revision: int) -> AsyncIterator[Event]:
        """Implements `MetadataStore.watch`. Raises Unavailable when the store is closed, and Compacted for revisions
        before the last restart."""
        return self._history.watch(prefix, from_revision)

    async def grant_lease(self, ttl_ms: int) -> GrantedLease:
        """See `MetadataStore.grant_lease`. When cancelled, a lease that the caller does not know may have been granted;
        it ends after its time to live."""
        check_ttl(ttl_ms)
        if len(self._leases) >= LEASES_MAX:
            raise Full(f"{LEASES_MAX} leases are held already")
        lease = await self._submit(
            lambda database: database.grant(ttl_ms),
            then=lambda lease: self._start_lease(lease, ttl_ms),
            writes=True,
        )
        return GrantedLease(lease, ttl_ms)

    async def keep_alive(self, lease: int) -> int:
        living = self._require_lease(lease)
        living.deadline = self._clock.monotonic() + living.ttl_seconds
        return round(living.ttl_seconds * 1000)

    async def revoke(self, lease: int) -> None:
        """See `MetadataStore.revoke`. When cancelled, the lease may have ended or not; if not, it ends after its time
        to live."""
        self._require_lease(lease)
        await self._submit(lambda database: database.revoke(lease), then=lambda _: self._stop_lease(lease), writes=True)

    async def compact(self, revision: int) -> None:
        if revision > self._history.revision:
            raise Invalid(f"cannot compact up to revision {revision}: the store is at {self._history.revision}")
        self._history.compact(revision)

    async def revision(self) -> int:
        self._require_open()
        return self._history.revision

    async def identity(self) -> StoreIdentity:
        return await self._submit(lambda database: database.identity())

    async def record_succession(self, former: Succession) -> None:
        """See `MetadataStore.record_succession`. When cancelled, it may happen or not."""
        await self._submit(lambda database: database.record_succession(former), writes=True)

    @property
    def failure(self) -> DanubeError | None:
        return self._failure

    def _require_open(self) -> None:
        if self._closing:
            raise Unavailable("the metadata store has been closed")

    async def _submit(
        self, run: Callable[[Database], T], then: Callable[[T], None] | None = None, *, writes: bool = False
    ) -> T:
        """Have the thread call `run` and return its answer. `then` is called with the answer on the loop, even if the
        caller was cancelled meanwhile."""
        self._require_open()
        if self._waiting >= WAITING_MAX:
            raise Full(f"{WAITING_MAX} metadata requests are waiting already: wait for some of them first")
        request = StoreRequest(run, self._loop.create_future(), then, writes)
        self._waiting += 1
        self._requests.put(request)
        answer: T = await request.answer
        return answer

    def _require_lease(self, lease: int) -> _Lease:
        self._require_open()
        living = self._leases.get(lease)
        if living is None or living.deadline <= self._clock.monotonic():
            raise NotFound(f"lease {lease} has ended, or never was")
        return living

    def _start_lease(self, lease: int, ttl_ms: int) -> None:
        if self._closing:
            return
        seconds = ttl_ms / 1000
        living = self._leases[lease] = _Lease(seconds, self._clock.monotonic() + seconds)
        living.expiry = self._tasks.spawn(self._expire(lease, living), f"metadata-lease-{lease}")

    def _stop_lease(self, lease: int) -> None:
        living = self._leases.pop(lease, None)
        if living is not None and living.expiry is not None:
            living.expiry.cancel()

    async def _expire(self, lease: int, living: _Lease) -> None:
        """End the lease when its time is over. When cancelled, the lease stays, and gets its full time at the next
        open."""
        while (remaining := living.deadline - self._clock.monotonic()) > 0:
            await self._clock.sleep(remaining)
        outlived = False
        while True:
            try:
                await self._submit(lambda database: database.revoke(lease), writes=True)
                log.info("lease.expired", lease=lease)
                break
            except NotFound:
                break
            except DanubeError as refused:
                if not outlived:
                    log.warning("lease.outlived", lease=lease, reason=refused.message)
                outlived = True
                await self._clock.sleep(EXPIRE_AGAIN_SECONDS)
        self._leases.pop(lease, None)

    def _finish_group(self, outcome: GroupOutcome) -> None:
        """Add the changes of a group to the history, then answer its requests. Called on the loop."""
        for revision, events in outcome.changes:
            if revision != self._history.revision + 1:  # a commit that was reported as failed has happened
                self._history.restart(revision - 1)
            self._history.append(revision, events)
        if outcome.revision != self._history.revision:
            self._history.restart(outcome.revision)
        self._note_failure(outcome)
        self._waiting -= len(outcome.answers)
        for request, answer in outcome.answers:
            failed = isinstance(answer, BaseException)
            if request.then is not None and not failed:
                request.then(answer)
            if request.answer.done():
                continue
            if failed:
                request.answer.set_exception(answer)
            else:
                request.answer.set_result(answer)

    def _note_failure(self, outcome: GroupOutcome) -> None:
        """Remember why a write failed, until one succeeds."""
        failures = [
            answer
            for request, answer in outcome.answers
            if request.writes and isinstance(answer, Unavailable | Corrupt)
        ]
        if failures:
            self._failure = failures[-1]
            if not self._probing and not self._closing:
                self._probing = True
                self._tasks.spawn(self._probe(), "metadata-probe")
        elif outcome.committed:
            self._failure = None

    async def _probe(self) -> None:
        """After a failed write, try a write now and then until one succeeds and `failure` is None again."""
        try:
            while self._failure is not None:
                await self._clock.sleep(PROBE_SECONDS)
                with contextlib.suppress(DanubeError):
                    await self._submit(lambda database: database.probe(), writes=True)
        finally:
            self._probing = False

    def _serve(self) -> None:
        """Execute groups of requests until `close`. This is the main function of the thread."""
        worker = StoreWorker(self._path, self._disk)
        while (group := self._take_group()) is not None:
            if not self._call_on_loop(self._finish_group, worker.execute(group)):
                break
            worker.maintain()
        self._call_on_loop(self._ended.set_result, worker.close())

    def _take_group(self) -> Group | None:
        """Wait for a request and take all others that wait. Return None at the end."""
        first = self._requests.get()
        if first is None:
            return None
        group: Group = [first]
        while len(group) < GROUP_REQUESTS_MAX:
            try:
                request = self._requests.get_nowait()
            except queue.Empty:
                break
            if request is None:
                self._requests.put(None)
                break
            group.append(request)
        return group

    def _call_on_loop(self, callback: Callable[[T], None], argument: T) -> bool:
        """Schedule the callback on the loop; return False if the loop was closed before the store."""
        try:
            self._loop.call_soon_threadsafe(callback, argument)
        except RuntimeError:
            return False
        return True
