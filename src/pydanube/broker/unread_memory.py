"""Limits the memory of what was read for clients and not received by them yet: answers to fetches, what is delivered to
consumers, what streams of events send. All listeners share it.

Bytes are taken before they are read from the log, or before they are handed to a listener, and are given back when the
client has received them or is gone. What finds no free memory waits: a fetch in one queue, for WAIT_S, a consumer until
there is some. Only a client that holds nothing at all may go past the limit, with SMALL_BYTES, so that clients that do
not read cannot starve those with small messages. With authentication a principal may hold as much as is still free for
all, so that it cannot take everything either. A client that receives nothing for STALLED_S while others wait loses what
is held for it: its listener gives messages back that are not being sent, or disconnects it.

Invariants
    used_bytes is the sum of what all parts hold
    used_bytes stays within the limit, or is one read, plus SMALL_BYTES for each client that holds nothing else
    what is read beyond that is at most SHORT_READS_MAX batches, which are dropped if there is no memory for them
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from pydanube.core.access import Principal
from pydanube.model.errors import Unavailable
from pydanube.model.limits import BATCH_BYTES_MAX, KIB, MIB
from pydanube.runtime.budget import fits_share
from pydanube.runtime.process import return_free_memory
from pydanube.runtime.waits import Signal

SMALL_BYTES: Final = 64 * KIB
"""What a client that holds nothing may be given while no memory is free."""

STALLED_S: Final = 5.0
"""A client may receive nothing for this long while others wait for memory; a large message has longer."""

SLOW_BYTES_PER_S: Final = MIB
"""How fast a client receives at least what is held for it, beyond STALLED_S, while others wait for memory."""

SHORT_READS_MAX: Final = 4
"""A read that got less memory than it wanted may find a batch that is larger: only so many run at the same time."""

WAIT_S: Final = 2.0
"""How long a read waits for memory before it is refused."""

CHECK_INTERVAL_S: Final = 0.05
"""While a read waits, all parts are asked this often what their clients have received."""

RETURNED_BYTES: Final = 32 * MIB
"""When clients have returned this much while others waited, it may lie free in pieces that nothing else fits into."""

_SLACK_BYTES: Final = 4 * BATCH_BYTES_MAX
"""With more free memory than this, nothing that is delivered at once is refused."""


class PrincipalBytes:
    """What all parts of one principal hold."""

    __slots__ = ("__weakref__", "used_bytes")

    def __init__(self) -> None:
        self.used_bytes = 0


class _Waiter(NamedTuple):
    part: UnreadPart
    size_bytes: int
    go_on: Callable[[], None]


class UnreadMemory:
    """The memory that what all clients have not received shares."""

    def __init__(self, limit_bytes: int, is_shared: Callable[[], bool]) -> None:
        """`is_shared` returns whether principals are known, so that each has its share."""
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.queue = asyncio.Lock()
        """Held by the first waiting read; the others wait for this lock, in order."""
        self.parts: set[UnreadPart] = set()
        """Those that hold something and are asked what their clients have received."""
        self.watched: set[UnreadPart] = set()
        """Those whose clients lose what is held for them when they receive nothing."""
        self._is_shared = is_shared
        self._principals: WeakValueDictionary[str, PrincipalBytes] = WeakValueDictionary()
        self._freed = Signal()
        self._waiting: dict[object, _Waiter] = {}
        self._short_reads = asyncio.Semaphore(SHORT_READS_MAX)
        self._wake_planned = False
        self._returned_bytes = 0
        self._was_awaited = False
        """Both since memory was last given back to the system."""

    @property
    def is_tight(self) -> bool:
        """Whether a delivery may have to wait: with this False, nobody needs to ask."""
        return 2 * self.used_bytes + _SLACK_BYTES > self.limit_bytes

    @property
    def is_awaited(self) -> bool:
        """Whether anybody waits for memory."""
        return self.queue.locked() or bool(self._waiting)

    def part(self, principal: Principal | None = None, weight: int = 1) -> UnreadPart:
        """Return what counts the bytes of one client of this principal. A byte that is read takes `weight` bytes there,
        with the copies that are made of it."""
        return UnreadPart(self, self.bytes_of(principal) if principal is not None else None, weight)

    def bytes_of(self, principal: Principal) -> PrincipalBytes | None:
        """Return what the principal holds; None: principals are not told apart. Brokers ask for many principals."""
        if not self._is_shared() or principal.is_broker:
            return None
        found = self._principals.get(principal.id)
        if found is None:
            found = self._principals[principal.id] = PrincipalBytes()
        return found

    def add(self, change_bytes: int) -> None:
        self.used_bytes += change_bytes
        assert self.used_bytes >= 0
        if change_bytes < 0:
            self._returned_bytes -= change_bytes
            if self._returned_bytes >= RETURNED_BYTES and self.is_awaited:  # at once: others read into new memory
                self._returned_bytes = 0
                asyncio.get_running_loop().run_in_executor(None, return_free_memory)
            self._freed.wake()
            if self._waiting and not self._wake_planned:
                self._wake_planned = True
                asyncio.get_running_loop().call_soon(self._wake)

    async def wait(self) -> None:
        """Wait until memory was returned, but at most CHECK_INTERVAL_S."""
        await self._freed.wait(CHECK_INTERVAL_S)

    def fits(self, wanted_bytes: int, owner: PrincipalBytes | None = None) -> bool:
        """Return whether `wanted_bytes` are free. If not, first ask every part what its client has received."""
        if not self._is_free(wanted_bytes, owner):
            self.refresh()
        return self._is_free(wanted_bytes, owner)

    def _is_free(self, wanted_bytes: int, owner: PrincipalBytes | None) -> bool:
        if not self.used_bytes:
            return True  # one at a time, whatever its size
        free = self.limit_bytes - self.used_bytes
        return wanted_bytes <= free and (owner is None or fits_share(owner.used_bytes, wanted_bytes, free))

    def refresh(self) -> None:
        for part in self.parts:
            part.refresh()

    def check(self, now: float) -> bool:
        """Look what clients have received, so that those that wait go on, and take back what stalled clients hold.
        Called in every round of the native listener, at `now`. Return whether much was returned in times of want, so
        that free memory should be given back to the system."""
        if self.is_awaited:
            self._was_awaited = True
            self.refresh()
        for part in list(self.watched):
            part.check(now)
        if self._returned_bytes < RETURNED_BYTES:
            return False
        was_awaited, self._was_awaited, self._returned_bytes = self._was_awaited, self.is_awaited, 0
        return was_awaited

    @asynccontextmanager
    async def turn(self, is_short: bool) -> AsyncIterator[None]:
        """Surrounds a read. `is_short`: it got less memory than it wanted, and waits for its turn."""
        async with self._short_reads if is_short else nullcontext():
            yield

    @asynccontextmanager
    async def reading(self, principal: Principal, wanted_bytes: int, weight: int = 1) -> AsyncIterator[int]:
        """Reserve memory for what is read while the block runs, and return for how many bytes: `wanted_bytes`, or less
        while that is not free. Raises Unavailable if none is."""
        part = self.part(principal, weight)
        granted_bytes = await part.reserve(wanted_bytes)
        try:
            yield granted_bytes
        finally:
            part.close()

    def call_when_free(self, key: object, part: UnreadPart, size_bytes: int, go_on: Callable[[], None]) -> None:
        """Call `go_on` once the part may take this much; a call for the same `key` replaces the one before."""
        self._waiting[key] = _Waiter(part, size_bytes, go_on)

    def note_want(self) -> None:
        """Note that something was refused because no memory is free, which is want as waiting is."""
        self._was_awaited = True

    def forget(self, key: object) -> None:
        self._waiting.pop(key, None)

    def _wake(self) -> None:
        """Let those go on for whom there is memory now, in the order in which they came."""
        self._wake_planned = False
        for key, waiter in list(self._waiting.items()):
            if waiter.part.may_take(waiter.size_bytes):
                self._waiting.pop(key, None)
                waiter.go_on()
            elif self.used_bytes >= self.limit_bytes:
                break


class UnreadPart:
    """What one client, or one consumer of it, holds. Sizes are those of what is read."""

    def __init__(self, memory: UnreadMemory, owner: PrincipalBytes | None = None, weight: int = 1) -> None:
        self.memory = memory
        self.owner = owner
        self.bytes = 0
        self._weight = weight
        self._give_up: Callable[[], None] | None = None
        self._has_moved = True
        self._moved_at = 0.0

    def watch(self, give_up: Callable[[], None]) -> None:
        """Call `give_up` when the client has received nothing for too long while others wait for memory."""
        self._give_up = give_up
        self.memory.watched.add(self)

    def moved(self) -> None:
        """Note that the client has received something."""
        self._has_moved = True

    def check(self, now: float) -> None:
        """Take back what is held if the client receives nothing and others wait. `now` is on the monotonic clock."""
        if self._has_moved or not self.bytes or not self.memory.is_awaited:
            self._has_moved, self._moved_at = False, now
        elif now - self._moved_at > STALLED_S + self.bytes / SLOW_BYTES_PER_S:
            self._moved_at = now
            assert self._give_up is not None
            self._give_up()

    def may_take(self, size_bytes: int) -> bool:
        """Return whether this much may be taken now."""
        return (self.bytes + size_bytes) * self._weight <= SMALL_BYTES or self._fits(size_bytes)

    def check_may_take(self, size_bytes: int) -> None:
        """Raise Unavailable if this much may not be taken now."""
        if not self.may_take(size_bytes):
            raise self._none_free()

    def _fits(self, size_bytes: int) -> bool:
        return self.memory.fits(size_bytes * self._weight, self.owner)

    def take(self, size_bytes: int) -> None:
        """Take memory, whether there is enough of it or not."""
        self.bytes += size_bytes
        self.memory.add(size_bytes * self._weight)
        if self.owner is not None:
            self.owner.used_bytes += size_bytes * self._weight

    def give_back(self, size_bytes: int) -> None:
        self.moved()
        self.take(-size_bytes)
        assert self.bytes >= 0

    def set(self, size_bytes: int) -> None:
        """Hold this much from now on."""
        self.take(size_bytes - self.bytes)

    def close(self) -> None:
        """Give everything back: the client is gone."""
        self.set(0)
        self.memory.parts.discard(self)
        self.memory.watched.discard(self)

    def refresh(self) -> None:
        """Give back what the client has received; for parts that can tell."""

    async def reserve(self, wanted_bytes: int, least_bytes: int = SMALL_BYTES) -> int:
        """Take memory for a read and return how much: `wanted_bytes`, or less while that is not free, but what needs
        `least_bytes` fits.

        Raises Unavailable when there was none for WAIT_S. Cancelled: nothing is taken.
        """
        self.refresh()
        is_first_in_line = not self.bytes or not self.memory.queue.locked()
        if is_first_in_line and (granted := self._granted(wanted_bytes, least_bytes)):
            return granted
        try:
            async with asyncio.timeout(WAIT_S), self.memory.queue:
                while not (granted := self._granted(wanted_bytes, least_bytes)):
                    await self.memory.wait()
                return granted
        except TimeoutError:
            if granted := self._granted(wanted_bytes, least_bytes):  # what it held itself was received meanwhile
                return granted
            raise self._none_free() from None

    async def reserve_when_free(self, wanted_bytes: int, least_bytes: int = SMALL_BYTES) -> int:
        """Take memory as `reserve` does, however long that takes: for reads of which nobody is told that they wait."""
        while True:
            with suppress(Unavailable):
                return await self.reserve(wanted_bytes, least_bytes)

    def _none_free(self) -> Unavailable:
        self.memory.note_want()
        return Unavailable(
            f"clients have not taken {self.memory.used_bytes} bytes they asked for: read what was sent, then try again"
        )

    def _granted(self, wanted_bytes: int, least_bytes: int) -> int:
        granted = max(wanted_bytes, least_bytes) if least_bytes > SMALL_BYTES else wanted_bytes
        if not self._fits(granted):
            is_small = least_bytes <= SMALL_BYTES
            granted = min(granted, SMALL_BYTES // self._weight if is_small else least_bytes)
            if self.bytes if is_small else not self._fits(granted):
                return 0
        self.take(granted)
        return granted

    def extend(self, size_bytes: int) -> bool:
        """Take more for a read that turned out to be larger; return False, without effect, if that is not free."""
        if not self._fits(size_bytes):
            return False
        self.take(size_bytes)
        return True
