"""Memory for fetch answers that are being read or were not taken yet, shared by all connections of a listener.

A fetch reserves the bytes it may read before it reads them. What it did not need is given back when it was read, the
rest when the client has taken it or is gone. Fetches that find the memory used up wait in one queue, for a while, and
are then refused. Only a connection that has nothing at all is let in past the limit, with a small answer: clients that
do not read cannot starve it.

Invariants
    used_bytes is what all shares together have reserved and sent
    used_bytes stays within the limit, plus one answer of FIRST_BYTES (or of one batch) for each connection
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from pydanube.model.errors import Unavailable
from pydanube.model.limits import KIB
from pydanube.runtime.network import FramedConnection

FIRST_BYTES: Final = 64 * KIB
"""What a connection that has nothing may read while the memory is used up."""

WAIT_S: Final = 2.0
"""How long a fetch waits for memory before it is refused."""

LOOK_AGAIN_S: Final = 0.05
"""While somebody waits, all connections are asked this often what their clients have taken."""


class AnswerMemory:
    """What the fetches of all connections may hold together."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.queue = asyncio.Lock()
        """Held by the fetch whose turn it is while it waits for memory; the others wait for the lock, in order."""
        self.shares: set[AnswerShare] = set()
        self._freed = asyncio.Event()

    def add(self, change_bytes: int) -> None:
        self.used_bytes += change_bytes
        assert self.used_bytes >= 0
        if change_bytes < 0:
            self._freed.set()

    async def wait(self) -> None:
        """Return when some was given back, or may have been."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_AGAIN_S):
                await self._freed.wait()
        self._freed.clear()

    def fits(self, wanted_bytes: int) -> bool:
        """Whether so much is free; if it does not seem so, every connection is asked what its client has taken."""
        if self.used_bytes + wanted_bytes > self.limit_bytes:
            self.refresh()
        return self.used_bytes + wanted_bytes <= self.limit_bytes

    def refresh(self) -> None:
        for share in self.shares:
            share.refresh()


class AnswerShare:
    """What the fetches of one connection hold."""

    def __init__(self, memory: AnswerMemory, connection: FramedConnection) -> None:
        self._memory = memory
        self._connection = connection
        self._reserved_bytes = 0
        self._unread_bytes = 0
        """Sent, and not taken when it was last looked at."""

    @property
    def bytes(self) -> int:
        return self._reserved_bytes + self._unread_bytes

    async def reserve(self, wanted_bytes: int) -> int:
        """Reserve and return how many bytes may be read: all that are wanted, or fewer.

        Raises Unavailable when there is no room for WAIT_S. Cancelled: nothing is reserved.
        """
        self.refresh()
        is_first_in_line = not self.bytes or not self._memory.queue.locked()
        if is_first_in_line and (granted_bytes := self._take(wanted_bytes)):
            return granted_bytes
        try:
            async with asyncio.timeout(WAIT_S), self._memory.queue:
                while not (granted_bytes := self._take(wanted_bytes)):
                    await self._memory.wait()
                return granted_bytes
        except TimeoutError:
            if granted_bytes := self._take(wanted_bytes):  # what it had itself was taken meanwhile
                return granted_bytes
            unread = self._memory.used_bytes
            raise Unavailable(
                f"clients have not taken {unread} bytes they asked for: read what was sent, then try again"
            ) from None

    def _take(self, wanted_bytes: int) -> int:
        memory = self._memory
        if not memory.fits(wanted_bytes):
            if self.bytes:
                return 0
            wanted_bytes = min(wanted_bytes, FIRST_BYTES)
        self._reserved_bytes += wanted_bytes
        memory.add(wanted_bytes)
        memory.shares.add(self)
        return wanted_bytes

    def give_back(self, reserved_bytes: int, sent_bytes: int) -> None:
        """The reading is over, and so much was handed to the connection, which may be more than was reserved."""
        if self._connection.is_closing:
            sent_bytes = 0
        self._reserved_bytes -= reserved_bytes
        self._unread_bytes += sent_bytes
        self._memory.add(sent_bytes - reserved_bytes)
        self.refresh()

    def refresh(self) -> None:
        """Give back what the client has taken meanwhile."""
        if taken_bytes := self._unread_bytes - min(self._unread_bytes, self._connection.queued_bytes):
            self._unread_bytes -= taken_bytes
            self._memory.add(-taken_bytes)

    def close(self) -> None:
        """The connection is gone, and what it had been sent with it."""
        self._memory.add(-self._unread_bytes)
        self._unread_bytes = 0
        self._memory.shares.discard(self)
