"""The interface of the metadata store: ordered keys, revisions, transactions, watches, leases.

Keys are text, ordered by their UTF-8 bytes. A prefix is compared byte by byte and knows nothing of paths: the prefix
`/topics/default/orders` also finds `/topics/default/orders-dlq`. To find only what is below, pass the trailing slash:
`/topics/default/orders/`.

Invariants (of every implementation; tests/metadata/conformance.py checks them)
    a transaction that changes something gets a higher revision than every one before it, and no revision is used
    twice; revisions are not dense, because others may write to the same store
    a transaction happens whole or not at all, and is durable when `transact` returns
    what a reader has seen is durable and is never rolled back
    a watch yields the events of all revisions from the requested one on, in order, each once, or raises Compacted

To follow a prefix: call `revision()`, then `list_all`, then `watch(prefix, revision + 1)`. A change between the first
two calls is seen twice, in the list and as an event; its `mod_revision` shows that it is the same change.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple, Protocol, Self

from pydanube.model.errors import DanubeError, Invalid
from pydanube.model.limits import (
    METADATA_OPERATIONS_MAX,
    METADATA_PAGE_BYTES_MAX,
    METADATA_TRANSACTION_BYTES_MAX,
    METADATA_VALUE_BYTES_MAX,
)

KEY_BYTES_MAX: Final = 4096
"""More than a key with the longest names of a namespace, a topic and a subscription needs."""

LEASE_MS_MAX: Final = 24 * 3600 * 1000
"""A lease proves that its holder is alive; one that is renewed less than once a day proves nothing."""

assert METADATA_VALUE_BYTES_MAX + 2 * KEY_BYTES_MAX <= METADATA_TRANSACTION_BYTES_MAX, "a guarded put of any value"


class Compacted(Exception):
    """The events from the requested revision on are no longer known: list again, and watch from there.

    This is no DanubeError, because only the watcher sees it; it never reaches a client.
    """


@dataclass(frozen=True, slots=True)
class KeyValue:
    """One key with its value, as it was written at `mod_revision`."""

    key: str
    value: bytes
    version: int
    """1 when created, then one more with every put; starts again at 1 after a delete."""
    create_revision: int
    mod_revision: int
    lease: int = 0
    """The lease that the key is bound to; 0: none."""


class CompareKind(Enum):
    VALUE = "value"
    VERSION = "version"
    MOD_REVISION = "mod_revision"


@dataclass(frozen=True, slots=True)
class Compare:
    """One condition of a transaction. A key that does not exist has version 0, mod_revision 0, and equals no value."""

    key: str
    kind: CompareKind
    expected: bytes | int

    @classmethod
    def value(cls, key: str, value: bytes) -> Self:
        return cls(key, CompareKind.VALUE, value)

    @classmethod
    def version(cls, key: str, version: int) -> Self:
        return cls(key, CompareKind.VERSION, version)

    @classmethod
    def mod_revision(cls, key: str, revision: int) -> Self:
        return cls(key, CompareKind.MOD_REVISION, revision)

    @classmethod
    def missing(cls, key: str) -> Self:
        return cls.version(key, 0)

    def holds(self, current: KeyValue | None) -> bool:
        """Return whether `current` (None: no such key) is as expected."""
        match self.kind:
            case CompareKind.VALUE:
                return current is not None and current.value == self.expected
            case CompareKind.VERSION:
                return (0 if current is None else current.version) == self.expected
            case CompareKind.MOD_REVISION:
                return (0 if current is None else current.mod_revision) == self.expected


@dataclass(frozen=True, slots=True)
class Put:
    """Create or replace a key. With a lease, the key is deleted when the lease ends, unless a later put has no
    lease."""

    key: str
    value: bytes
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a key. A missing key is no error and changes nothing: add a Compare if it matters."""

    key: str


@dataclass(frozen=True, slots=True)
class TransactionResult:
    succeeded: bool
    """All comparisons held, and all writes were made."""
    revision: int
    """The revision of this transaction if it changed something, else that of the store at that moment."""


class GrantedLease(NamedTuple):
    """A lease and the time to live that it really got, which may be longer than what was asked for."""

    lease: int
    ttl_ms: int


@dataclass(frozen=True, slots=True)
class Event:
    """One key changed at `revision`."""

    revision: int
    key: str
    current: KeyValue | None
    """The new entry; None: the key was deleted."""

    @property
    def deleted(self) -> bool:
        return self.current is None


@dataclass(frozen=True, slots=True)
class Succession:
    """A former store whose content this store began with, and the last revision of the former store it contains."""

    store_id: str
    revision: int


class Generation(NamedTuple):
    """Which life of an etcd answers. One that is made anew from a snapshot has another cluster id, or counts its
    terms anew; its revisions may have been raised, and then do not show that it is older."""

    cluster: str = ""
    """Hexadecimal digits; empty: the store has no generations."""
    term: int = 0

    def may_continue(self, seen: Generation) -> bool:
        """Return whether this can be the etcd that was seen, and no copy of it."""
        return not seen.cluster or (self.cluster == seen.cluster and self.term >= seen.term)


NO_GENERATION: Final = Generation()
"""The generation of a store that is not an etcd, or of an etcd that was never seen."""


@dataclass(frozen=True, slots=True)
class StoreIdentity:
    """Which store this is. Revisions of two stores can be compared only when their ids are equal.

    The id is random, made with the store, and kept when the store is repaired, because a repair loses no revision. A
    copy or a restore is another store: it has an id of its own, counts its revisions anew, and names in `succeeds` the
    store whose content it began with.
    """

    store_id: str
    """32 hexadecimal digits."""
    succeeds: tuple[Succession, ...] = ()
    generation: Generation = field(default=NO_GENERATION, compare=False)


class MetadataStore(Protocol):
    """Every method raises Unavailable while the store cannot be reached or written, and Invalid for invalid
    arguments."""

    async def get(self, key: str) -> KeyValue | None: ...

    async def list(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> list[KeyValue]:
        """Return the first keys that begin with `prefix` and come after `start_after`, in order.

        A page has at most `limit` keys and ends with the key that brings it to METADATA_PAGE_BYTES_MAX. It is a
        consistent snapshot.
        """
        ...

    async def transact(self, compares: Sequence[Compare], writes: Sequence[Put | Delete]) -> TransactionResult:
        """If all comparisons hold, make all writes, in one revision. No two writes may name the same key.

        Raises NotFound when a put names a lease that has ended. When cancelled or failed with Unavailable, all of it
        may have happened or nothing: with comparisons it can be sent again without harm.
        """
        ...

    def watch(self, prefix: str, from_revision: int) -> AsyncIterator[Event]:
        """Yield every change of keys with `prefix` at `from_revision` or later, as it happens; this never ends by
        itself.

        Raises Compacted when `from_revision`, or the revision up to which the caller has read, is no longer known. A
        watcher may still get events that were compacted after they had been sent to it. The events of one transaction
        follow each other; a caller that stops between them must resume with that revision.

        A watch survives the loss of a server or of a connection, without gap or repetition, and waits for as long as no
        server can be reached.
        """
        ...

    async def grant_lease(self, ttl_ms: int) -> GrantedLease:
        """Create a lease, which ends unless `keep_alive` is called within every time to live that is returned. Its id
        is never used again.

        A time that is shorter than the store supports is lengthened. The holder counts the time from the moment before
        it called: the store may have started it at any moment since then.
        """
        ...

    async def keep_alive(self, lease: int) -> int:
        """Restart the lease's time to live, and return it in milliseconds; it counts from the moment before the call.

        Raises NotFound when the lease has ended: its keys are deleted then.
        """
        ...

    async def revoke(self, lease: int) -> None:
        """End the lease now; its keys are deleted, in one revision. Raises NotFound when it has ended already."""
        ...

    async def compact(self, revision: int) -> None:
        """Drop the events up to and including `revision`; watches from there raise Compacted. Keys stay."""
        ...

    async def revision(self) -> int: ...

    async def identity(self) -> StoreIdentity:
        """Return the store's id and the stores it succeeds. The id never changes while the store exists."""
        ...

    async def record_succession(self, former: Succession) -> None:
        """Add `former` to what this store succeeds, durably; for copies and restores. Changes no key that is listed or
        watched."""
        ...

    @property
    def failure(self) -> DanubeError | None:
        """Why the last write failed; None when it succeeded or none was made yet."""
        ...

    @property
    def revision_seen(self) -> int:
        """The highest revision that this store is known to have had."""
        ...

    def refuse(self, why: DanubeError) -> None:
        """Do nothing any more: every later call raises `why`. For a store that was put back to an older copy."""
        ...

    async def refused(self) -> DanubeError:
        """Wait until the store does nothing any more, because it was put back to an older copy under its users; return
        why. A store to which that cannot happen never returns."""
        ...

    async def close(self) -> None: ...


async def list_all(store: MetadataStore, prefix: str, *, page: int = 1000) -> AsyncIterator[KeyValue]:
    """Yield all keys with `prefix`, page by page. Each page is a consistent snapshot, all pages together are not."""
    start_after = ""
    while True:
        entries = await store.list(prefix, start_after=start_after, limit=page)
        for entry in entries:
            yield entry
        if is_last_page(entries, page):
            return
        start_after = entries[-1].key


def is_last_page(entries: Sequence[KeyValue], limit: int) -> bool:
    """Return whether nothing can follow this page, which was listed with `limit`."""
    return len(entries) < limit and sum(map(entry_bytes, entries)) < METADATA_PAGE_BYTES_MAX


def entry_bytes(entry: KeyValue) -> int:
    """Return what an entry counts towards the size of a page."""
    return len(entry.key) + len(entry.value)


def operation_bytes(operation: Compare | Put | Delete) -> int:
    """Return what a comparison or a write counts towards the size of a transaction: its key and its value."""
    size = len(key_bytes(operation.key))
    if isinstance(operation, Put):
        return size + len(operation.value)
    if isinstance(operation, Compare) and isinstance(operation.expected, bytes):
        return size + len(operation.expected)
    return size


def fits_transaction(compares: Sequence[Compare], writes: Sequence[Put | Delete]) -> bool:
    """Return whether all of this may be one transaction."""
    size = sum(map(operation_bytes, (*compares, *writes)))
    return max(len(compares), len(writes)) <= METADATA_OPERATIONS_MAX and size <= METADATA_TRANSACTION_BYTES_MAX


def split_writes(
    writes: Iterable[Put | Delete], operations_max: int = METADATA_OPERATIONS_MAX, compares: Sequence[Compare] = ()
) -> Iterator[list[Put | Delete]]:
    """Yield the writes in order, as few transactions as the limits of operations and bytes allow, each with
    `compares`."""
    part: list[Put | Delete] = []
    compared_bytes = part_bytes = sum(map(operation_bytes, compares))
    for write in writes:
        size = operation_bytes(write)
        if part and (len(part) >= operations_max or part_bytes + size > METADATA_TRANSACTION_BYTES_MAX):
            yield part
            part, part_bytes = [], compared_bytes
        part.append(write)
        part_bytes += size
    if part:
        yield part


def key_bytes(key: str) -> bytes:
    """Return the key as it is ordered and stored. Raises Invalid if it cannot be a key."""
    encoded = prefix_bytes(key)
    if not encoded:
        raise Invalid("a metadata key must not be empty")
    return encoded


def prefix_bytes(prefix: str) -> bytes:
    """Like `key_bytes`, for a prefix or a `start_after`, which may be empty."""
    if not isinstance(prefix, str):
        raise Invalid(f"metadata key {prefix!r} is not text")
    try:
        encoded = prefix.encode()
    except UnicodeEncodeError:
        raise Invalid(f"metadata key {prefix!r} is not valid Unicode") from None
    if len(encoded) > KEY_BYTES_MAX:
        raise Invalid(f"metadata key {prefix[:40]!r}... has {len(encoded)} bytes: at most {KEY_BYTES_MAX} are allowed")
    return encoded


def check_transaction(compares: Sequence[Compare], writes: Sequence[Put | Delete]) -> None:
    """Raise Invalid for a transaction that no implementation would accept. Operations are counted as etcd does."""
    for what, count in (("comparisons", len(compares)), ("writes", len(writes))):
        if count > METADATA_OPERATIONS_MAX:
            raise Invalid(f"{count} {what} in one transaction: at most {METADATA_OPERATIONS_MAX} are allowed")
    size = 0
    for compare in compares:
        size += len(key_bytes(compare.key))
        wanted = bytes if compare.kind is CompareKind.VALUE else int
        if not isinstance(compare.expected, wanted):
            raise Invalid(f"comparison of {compare.key!r}: a {compare.kind.value} is {wanted.__name__}")
        if isinstance(compare.expected, bytes):
            size += len(compare.expected)
    seen: set[str] = set()
    for write in writes:
        size += len(key_bytes(write.key))
        if write.key in seen:
            raise Invalid(f"metadata key {write.key!r} is written twice in one transaction")
        seen.add(write.key)
        if isinstance(write, Put):
            _check_put(write)
            size += len(write.value)
    if size > METADATA_TRANSACTION_BYTES_MAX:
        raise Invalid(
            f"{size} bytes of keys and values in one transaction: at most {METADATA_TRANSACTION_BYTES_MAX} are allowed"
        )


def _check_put(put: Put) -> None:
    if not isinstance(put.value, bytes):
        raise Invalid(f"the value of metadata key {put.key!r} is {type(put.value).__name__}, not bytes")
    if len(put.value) > METADATA_VALUE_BYTES_MAX:
        raise Invalid(
            f"the value of metadata key {put.key!r} has {len(put.value)} bytes:"
            f" at most {METADATA_VALUE_BYTES_MAX} are allowed"
        )
    if not 0 <= put.lease < 2**63:
        raise Invalid(f"metadata key {put.key!r}: {put.lease} is not a lease")


def check_ttl(ttl_ms: int) -> None:
    if not 1 <= ttl_ms <= LEASE_MS_MAX:
        raise Invalid(f"a lease of {ttl_ms} ms: use 1 to {LEASE_MS_MAX}")
