"""The metadata store of a cluster: etcd, which several brokers use at the same time.

Keys lie below the prefix of the store (see `place`). Revisions are etcd's own, which counts the changes of all its
users. Leases are etcd's, which counts them in whole seconds and gives none less than about two.

Invariants
    a read sees everything that was acknowledged before it began, whichever member answers (linearizable reads)
    every page of a listing is of one revision, also if it took several requests
    a transaction is sent once, or again only if it was certainly not executed
    when `close` has returned, no request is in progress and every connection is closed
    if a joined request is refused, each of its reads is sent alone: the refusal is about one of them, or about all
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from copy import copy
from typing import Any, Final, Self

import grpc
import msgspec

from pydanube.metadata.request_groups import Asked, Group, Joining
from pydanube.metadata.store import (
    Compare,
    CompareKind,
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
    entry_bytes,
    key_bytes,
    prefix_bytes,
)
from pydanube.model.errors import Corrupt, DanubeError, Full, Invalid, NotFound, Refused, Unavailable
from pydanube.model.limits import METADATA_PAGE_BYTES_MAX
from pydanube.runtime.clock import Clock
from pydanube.runtime.closing import Closing
from pydanube.runtime.descriptor_sets import ServiceMethod
from pydanube.runtime.randomness import identity
from pydanube.runtime.tasks import Tasks
from pydanube.runtime.telemetry import get_logger

from . import errors, rpc
from .client import PAUSE_SECONDS, EtcdClient, EtcdStream, MemberFailed, danube_error
from .errors import text_of
from .place import EtcdPlace
from .watching import Watches

log = get_logger(__name__)

FORMAT: Final = 1
"""The version of the layout below the prefix."""

PAGE_KEYS: Final = 1000
"""The most keys that one request of a listing asks for."""

PAGE_ATTEMPTS: Final = 10
"""How often a page is begun anew because its revision was compacted between two of its requests."""

WAITING_MAX: Final = 10_000
"""How many requests may wait for an answer; more are refused with Full."""

PROBE_SECONDS: Final = 1.0
"""How often a write is tried while writes fail."""


Page = list[KeyValue]


class StoreRecord(msgspec.Struct):
    """What `/PREFIX/store` holds, in JSON."""

    format: int
    store_id: str
    succeeds: list[tuple[str, int]] = []


class EtcdStore(Closing):
    """A `MetadataStore` in etcd. Created by `open`, used on one event loop."""

    def __init__(self, place: EtcdPlace, clock: Clock) -> None:
        self._place = place
        self._clock = clock
        self._client = EtcdClient(place, clock)
        self._watches = Watches(self._client, clock, self._to_event)
        self._keeper = LeaseKeeper(self._client, clock)
        self._tasks = Tasks()
        self._reads = JoinedReads(self._client)
        self._keys_asked = PAGE_KEYS // 4
        """How many keys the next listing asks for: about as many as a page has room for."""
        self._closing = False
        self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._failure: DanubeError | None = None
        self._probing = False
        self._is_created = False
        """Whether the store's record is known to be there."""

    @classmethod
    async def open(cls, place: EtcdPlace, clock: Clock, *, create: bool = True) -> Self:
        """Connect, and create the store's record if there is none. `create` False: the first write creates it.

        Raises Unavailable (no member can be used), Unauthenticated or Denied, or Refused (something else lies below the
        prefix, or it is of a newer release). When cancelled, nothing stays open.
        """
        store = cls(place, clock)
        try:
            store._is_created = await store._find_record()
            if create and not store._is_created:
                await store._create_record()
            revision = await store.revision()
        except BaseException:
            await store.close()
            raise
        log.info("metadata.opened", place=str(place), revision=revision)
        return store

    async def close(self) -> None:
        """Wait for requests in progress, end watches, close all connections. May be called again."""
        self._closing = True
        await self._tasks.close()
        await self._idle.wait()
        await self._reads.close()
        self._watches.close()
        self._keeper.close()
        await self._client.close()

    # -- keys ----------------------------------------------------------------------------------------------------------

    async def get(self, key: str) -> KeyValue | None:
        request = rpc.RangeRequest(key=self._stored(key_bytes(key)))
        try:
            reply = await self._read(request)
        except grpc.aio.AioRpcError as error:
            raise danube_error(self._place, error) from None
        return self._to_entry(reply.kvs[0]) if reply.kvs else None

    async def list(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> list[KeyValue]:
        start, end = self._range(prefix)
        if after := prefix_bytes(start_after):
            start = max(start, self._stored(after) + b"\0")
        if limit < 1:
            raise Invalid(f"list with limit={limit}: ask for at least one key")
        for _ in range(PAGE_ATTEMPTS):
            page = await self._page(start, end, limit) if start < end else []
            if page is not None:
                return page
        raise Unavailable(f"{self._place} is compacted all the time: no page of {prefix!r} could be read")

    async def _page(self, start: bytes, end: bytes, limit: int) -> Page | None:
        """Read a page; return None if its revision was compacted meanwhile."""
        page: Page = []
        page_bytes = revision = 0
        while True:
            asked = min(limit - len(page), self._keys_asked)
            request = rpc.RangeRequest(key=start, range_end=end, limit=asked, revision=revision)
            try:
                reply = await (self._read(request) if not revision else self._ask(rpc.RANGE, request, reads=True))
            except grpc.aio.AioRpcError as error:
                if errors.TOO_LARGE in text_of(error) and asked > 1:
                    self._keys_asked = asked // 2
                    continue
                if errors.COMPACTED in text_of(error):
                    return None
                raise danube_error(self._place, error) from None
            received = [self._to_entry(one) for one in reply.kvs]
            self._adapt(received)
            for entry in received:
                page.append(entry)
                page_bytes += entry_bytes(entry)
                if page_bytes >= METADATA_PAGE_BYTES_MAX:
                    return page
            if not reply.more or len(page) == limit:
                return page
            start, revision = reply.kvs[-1].key + b"\0", reply.header.revision

    def _adapt(self, received: Sequence[KeyValue]) -> None:
        """Ask for as many keys the next time as make about one page."""
        if received:
            average = max(1, sum(map(entry_bytes, received)) // len(received))
            self._keys_asked = min(PAGE_KEYS, METADATA_PAGE_BYTES_MAX // average + 1)

    async def transact(self, compares: Sequence[Compare], writes: Sequence[Put | Delete]) -> TransactionResult:
        """See `MetadataStore.transact`. When cancelled, all of it may happen or nothing."""
        check_transaction(compares, writes)
        request = rpc.TxnRequest(
            compare=[self._compare(one) for one in compares], success=[self._operation(one) for one in writes]
        )
        leases = sorted({write.lease for write in writes if isinstance(write, Put) and write.lease})
        with self._noting_failure(bool(writes)):
            if writes and not self._is_created:
                await self._create_record()
            try:
                reply = await self._ask(rpc.TXN, request, reads=not writes)
            except grpc.aio.AioRpcError as error:
                if errors.LEASE_NOT_FOUND in text_of(error):
                    raise _no_lease(*leases) from None
                raise danube_error(self._place, error) from None
        return TransactionResult(reply.succeeded, reply.header.revision)

    def watch(self, prefix: str, from_revision: int) -> AsyncIterator[Event]:
        """Implements `MetadataStore.watch`. Raises Unavailable when the store is closed."""
        start, end = self._range(prefix)
        if from_revision < 0:
            raise Invalid(f"watch from revision {from_revision}: revisions start at 1")
        return self._watches.watch(start, end, from_revision)

    # -- leases --------------------------------------------------------------------------------------------------------

    async def grant_lease(self, ttl_ms: int) -> GrantedLease:
        """See `MetadataStore.grant_lease`. When cancelled, a lease that the caller does not know may have been granted;
        it ends after its time to live."""
        check_ttl(ttl_ms)
        with self._noting_failure(writes=True):
            if not self._is_created:
                await self._create_record()
            reply = await self._call(rpc.LEASE_GRANT, rpc.LeaseGrantRequest(TTL=-(-ttl_ms // 1000)))
        return GrantedLease(reply.ID, reply.TTL * 1000)

    async def keep_alive(self, lease: int) -> int:
        with self._in_progress():
            return await self._keeper.keep_alive(lease) * 1000

    async def revoke(self, lease: int) -> None:
        """See `MetadataStore.revoke`. When cancelled, the lease may have ended or not; if not, it ends after its time
        to live."""
        try:
            await self._ask(rpc.LEASE_REVOKE, rpc.LeaseRevokeRequest(ID=lease))
        except grpc.aio.AioRpcError as error:
            if errors.LEASE_NOT_FOUND in text_of(error):
                raise _no_lease(lease) from None
            raise danube_error(self._place, error) from None

    # -- revisions -----------------------------------------------------------------------------------------------------

    async def compact(self, revision: int) -> None:
        """See `MetadataStore.compact`. This compacts the history of all users of this etcd."""
        try:
            await self._ask(rpc.COMPACT, rpc.CompactionRequest(revision=revision), reads=True)
        except grpc.aio.AioRpcError as error:
            if errors.COMPACTED in text_of(error):
                return
            if errors.FUTURE_REVISION in text_of(error):
                raise Invalid(f"cannot compact up to revision {revision}: the store is not there yet") from None
            raise danube_error(self._place, error) from None

    async def revision(self) -> int:
        reply = await self._call(rpc.RANGE, rpc.RangeRequest(key=self._place.store_key, count_only=True), reads=True)
        return int(reply.header.revision)

    # -- identity ------------------------------------------------------------------------------------------------------

    async def identity(self) -> StoreIdentity:
        record, _ = await self._load()
        if record is None:
            raise Corrupt(f"{self._place} has lost {self._place.store_key.decode()}: put back a copy of the etcd")
        succeeds = tuple(Succession(*former) for former in record.succeeds)
        return StoreIdentity(record.store_id, succeeds, self._client.generation)

    async def record_succession(self, former: Succession) -> None:
        """See `MetadataStore.record_succession`. When cancelled, it may happen or not."""
        while True:
            record, revision = await self._load()
            if record is None:
                raise Corrupt(f"{self._place} has lost {self._place.store_key.decode()}: put back a copy of the etcd")
            record.succeeds.append((former.store_id, former.revision))
            if await self._write_record(record, revision):
                return

    async def _create_record(self) -> None:
        """Write the store's record unless it is there. Of several brokers that do so together, one succeeds."""
        while not self._is_created:
            if not await self._find_record():
                await self._write_record(StoreRecord(FORMAT, identity()), 0)
            self._is_created = await self._find_record()

    async def _find_record(self) -> bool:
        """Return whether the store's record is there. Raises Refused if it is not, and something else is."""
        if (await self._load())[0] is not None:
            return True
        stranger = await self._find_stranger()
        if not stranger:
            return False
        if (await self._load())[0] is not None:  # another broker has created the store, and written its first keys
            return True
        raise Refused(
            f"{self._place}: below this prefix there are keys that belong to something else, such as {stranger}: "
            f"choose another prefix"
        )

    async def _load(self) -> tuple[StoreRecord | None, int]:
        """Return the store's record and the revision at which it was written; (None, 0) if there is none."""
        reply = await self._call(rpc.RANGE, rpc.RangeRequest(key=self._place.store_key), reads=True)
        if not reply.kvs:
            return None, 0
        try:
            record = msgspec.json.decode(reply.kvs[0].value, type=StoreRecord)
        except msgspec.MsgspecError as error:
            raise Refused(
                f"{self._place}: {self._place.store_key.decode()} is not what pydanube writes there ({error}): "
                f"choose another prefix"
            ) from None
        if record.format > FORMAT:
            raise Refused(
                f"{self._place} has format {record.format}, and this release knows formats up to {FORMAT}: it was "
                f"written by a newer release; run that one or a later one"
            )
        return record, reply.kvs[0].mod_revision

    async def _find_stranger(self) -> str:
        """Return a key below the prefix that is not the store's record; empty if there is none."""
        start = f"/{self._place.prefix}/".encode()
        request = rpc.RangeRequest(key=start, range_end=_after(start), limit=1, keys_only=True)
        reply = await self._call(rpc.RANGE, request, reads=True)
        found: bytes = reply.kvs[0].key if reply.kvs else self._place.store_key
        return "" if found == self._place.store_key else found.decode(errors="replace")

    async def _write_record(self, record: StoreRecord, revision: int) -> bool:
        """Write the store's record; return False if it is not as it was at `revision`."""
        key = self._place.store_key
        compare = rpc.CompareMessage(key=key, target=rpc.CompareMessage.MOD, mod_revision=revision)
        put = rpc.RequestOp(request_put=rpc.PutRequest(key=key, value=msgspec.json.encode(record)))
        return bool((await self._call(rpc.TXN, rpc.TxnRequest(compare=[compare], success=[put]))).succeeded)

    # -- failures ------------------------------------------------------------------------------------------------------

    @property
    def failure(self) -> DanubeError | None:
        return self._client.refusal or self._failure

    @property
    def revision_seen(self) -> int:
        return self._client.revision_seen

    def refuse(self, why: DanubeError) -> None:
        self._client.refuse(why)

    async def refused(self) -> DanubeError:
        return await self._client.refused()

    @contextlib.contextmanager
    def _noting_failure(self, writes: bool) -> Iterator[None]:
        """Remember why a write failed, until one succeeds."""
        try:
            yield
        except Unavailable as failed:
            if writes and not self._closing:
                self._failure = failed
                if not self._probing:
                    self._probing = True
                    self._tasks.spawn(self._probe(), "metadata-probe")
            raise
        if writes:
            self._failure = None

    async def _probe(self) -> None:
        """After a failed write, try one now and then until one succeeds. To grant a lease is a write that changes no
        revision, and that an etcd without space refuses too."""
        try:
            while self._failure is not None and self._client.refusal is None:
                await self._clock.sleep(PROBE_SECONDS)
                with contextlib.suppress(DanubeError):
                    await self.grant_lease(1)
        finally:
            self._probing = False

    # -- requests ------------------------------------------------------------------------------------------------------

    async def _call(self, method: ServiceMethod, request: Any, *, reads: bool = False) -> Any:
        try:
            return await self._ask(method, request, reads=reads)
        except grpc.aio.AioRpcError as error:
            raise danube_error(self._place, error) from None

    async def _ask(self, method: ServiceMethod, request: Any, *, reads: bool = False) -> Any:
        """Like `_call`, but raises the final answers of etcd as they are."""
        with self._in_progress():
            return await self._client.call(method, request, reads=reads)

    async def _read(self, request: Any) -> Any:
        """Send a RangeRequest for the newest revision, perhaps with others. Raises the final answers of etcd as they
        are."""
        with self._in_progress():
            return await self._reads.read(request)

    @contextlib.contextmanager
    def _in_progress(self) -> Iterator[None]:
        if self._closing:
            raise Unavailable("the metadata store has been closed")
        if self._running >= WAITING_MAX:
            raise Full(f"{WAITING_MAX} metadata requests are waiting already: wait for some of them first")
        self._running += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()

    # -- forms ---------------------------------------------------------------------------------------------------------

    def _stored(self, key: bytes) -> bytes:
        return self._place.keys_prefix + key

    def _range(self, prefix: str) -> tuple[bytes, bytes]:
        """Return the range of etcd's keys that begin with `prefix`."""
        start = self._stored(prefix_bytes(prefix))
        return start, _after(start)

    def _to_entry(self, found: Any) -> KeyValue:
        key = found.key[len(self._place.keys_prefix) :].decode()
        return KeyValue(key, found.value, found.version, found.create_revision, found.mod_revision, found.lease)

    def _to_event(self, message: Any) -> Event:
        entry = self._to_entry(message.kv)
        return Event(entry.mod_revision, entry.key, None if message.type == rpc.EventMessage.DELETE else entry)

    def _compare(self, compare: Compare) -> Any:
        key = self._stored(key_bytes(compare.key))
        match compare.kind:
            case CompareKind.VALUE:
                return rpc.CompareMessage(key=key, target=rpc.CompareMessage.VALUE, value=compare.expected)
            case CompareKind.VERSION:
                return rpc.CompareMessage(key=key, target=rpc.CompareMessage.VERSION, version=compare.expected)
            case CompareKind.MOD_REVISION:
                return rpc.CompareMessage(key=key, target=rpc.CompareMessage.MOD, mod_revision=compare.expected)

    def _operation(self, write: Put | Delete) -> Any:
        key = self._stored(key_bytes(write.key))
        if isinstance(write, Put):
            return rpc.RequestOp(request_put=rpc.PutRequest(key=key, value=write.value, lease=write.lease))
        return rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=key))


def _no_lease(*leases: int) -> NotFound:
    named = ", ".join(map(str, leases))
    return NotFound(f"lease {named} has ended, or never was")


def _after(prefix: bytes) -> bytes:
    """Return the first byte string after all that begin with `prefix`. UTF-8 has no 0xFF, so the last byte can grow."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


ANSWER_SECONDS: Final = 3.0
"""How long a member may take to answer; then another one is asked."""


class LeaseKeeper:
    """Sends one keep-alive at a time: etcd answers them in order, and a broker has few leases."""

    def __init__(self, client: EtcdClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._stream: EtcdStream | None = None
        self._lock = asyncio.Lock()

    def close(self) -> None:
        if self._stream is not None:
            self._stream.cancel()

    async def keep_alive(self, lease: int) -> int:
        """Restart the lease's time and return it in seconds. Raises NotFound when the lease has ended.

        It is asked again, at other members too, until an answer comes or the time of a request is over: to do it twice
        does no harm. When cancelled, it may have happened.
        """
        why = ""
        try:
            async with asyncio.timeout(self._client.place.timeout_s), self._lock:
                while True:
                    try:
                        return await self._attempt(lease)
                    except MemberFailed as lost:
                        why = str(lost)
                        await self._clock.sleep(PAUSE_SECONDS)
        except TimeoutError:
            raise Unavailable(
                f"{self._client.place}: lease {lease} could not be kept alive: {why or 'no answer'}"
            ) from None

    async def _attempt(self, lease: int) -> int:
        stream, self._stream = self._stream, None  # an attempt that is cancelled leaves no stream behind
        try:
            if stream is None:
                stream = await self._client.open_stream(rpc.LEASE_KEEP_ALIVE)
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    await stream.send(rpc.LeaseKeepAliveRequest(ID=lease))
                    reply = await stream.receive()
            except TimeoutError:
                raise stream.fail("no answer to a keep-alive") from None
        except BaseException:
            if stream is not None:
                stream.cancel()
            raise
        self._stream = stream
        if lease != reply.ID:
            raise stream.fail(f"an answer for lease {reply.ID} instead of {lease}")
        if reply.TTL <= 0:
            raise NotFound(f"lease {lease} has ended, or never was")
        return int(reply.TTL)


JOINED_MAX: Final = 12
"""Reads in one request. Each returns about a page at most, and all of them must fit into one reply."""


class _Read(Asked[Any]):
    def __init__(self, request: Any) -> None:
        super().__init__()
        self.request = request


class _Reads(Group[_Read]):
    def __init__(self, client: EtcdClient) -> None:
        super().__init__()
        self._client = client

    def add(self, asked: _Read) -> bool:
        if len(self.members) == JOINED_MAX:
            return False
        self.members.append(asked)
        return True

    async def send(self) -> None:
        if len(self.members) == 1 or not await self._is_read():
            await asyncio.gather(*map(self._send_alone, self.members))

    async def _is_read(self) -> bool:
        request = rpc.TxnRequest(success=[rpc.RequestOp(request_range=one.request) for one in self.members])
        try:
            reply = await self._client.call(rpc.TXN, request, reads=True)
        except grpc.aio.AioRpcError:
            return False
        except DanubeError as error:
            for one in self.members:
                one.fail(copy(error))
            return True
        for one, response in zip(self.members, reply.responses, strict=True):
            response.response_range.header.CopyFrom(reply.header)
            one.succeed(response.response_range)
        return True

    async def _send_alone(self, asked: _Read) -> None:
        if asked.answer.done():
            return
        try:
            asked.succeed(await self._client.call(rpc.RANGE, asked.request, reads=True))
        except (grpc.aio.AioRpcError, DanubeError) as error:
            asked.fail(error)


class JoinedReads:
    """The reads of one store that are on their way."""

    def __init__(self, client: EtcdClient) -> None:
        self._tasks = Tasks()
        self._joining = Joining(self._tasks, lambda: _Reads(client))

    async def read(self, request: Any) -> Any:
        """Send a RangeRequest for the newest revision and return the reply. Raises as `EtcdClient.call` does."""
        asked = _Read(request)
        self._joining.ask(asked)
        return await asked.answer

    async def close(self) -> None:
        """Give up the requests that are under way; their callers have stopped waiting."""
        await self._tasks.close()
