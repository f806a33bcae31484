"""Limits the memory of fetch answers that the broker is reading or that clients have not received yet. All connections
of a listener share it.

A fetch reserves the bytes it may read before it reads them. It returns what it did not need when the read is over, and
the rest when the client has received the answer or is disconnected. Fetches that find no free memory wait in one queue
for WAIT_S and are then refused. Only a connection that holds nothing at all may go past the limit, with a small answer:
so clients that do not read cannot starve it.

Invariants
    used_bytes is the sum of what all shares have reserved, and sent to clients that have not received it yet
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
"""What a connection that holds nothing may read while no memory is free."""

WAIT_S: Final = 2.0
"""How long a fetch waits for memory before it is refused."""

CHECK_INTERVAL_S: Final = 0.05
"""While a fetch waits, all connections are asked this often what their clients have received."""


class AnswerMemory:
    """The memory that the fetches of all connections share."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.queue = asyncio.Lock()
        """Held by the first waiting fetch; the others wait for this lock, in order."""
        self.shares: set[AnswerShare] = set()
        self._freed = asyncio.Event()

    def add(self, change_bytes: int) -> None:
        self.used_bytes += change_bytes
        assert self.used_bytes >= 0
        if change_bytes < 0:
            self._freed.set()

    async def wait(self) -> None:
        """Wait until memory was returned, but at most CHECK_INTERVAL_S."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CHECK_INTERVAL_S):
                await self._freed.wait()
        self._freed.clear()

    def fits(self, wanted_bytes: int) -> bool:
        """Return whether `wanted_bytes` are free. If not, first ask every connection what its client has received."""
        if self.used_bytes + wanted_bytes > self.limit_bytes:
            self.refresh()
        return self.used_bytes + wanted_bytes <= self.limit_bytes

    def refresh(self) -> None:
        for share in self.shares:
            share.refresh()


class AnswerShare:
    """The part of the memory that the fetches of one connection hold."""

    def __init__(self, memory: AnswerMemory, connection: FramedConnection) -> None:
        self._memory = memory
        self._connection = connection
        self._reserved_bytes = 0
        self._unread_bytes = 0
        """Sent, and not received by the client at the last `refresh`."""

    @property
    def bytes(self) -> int:
        return self._reserved_bytes + self._unread_bytes

    async def reserve(self, wanted_bytes: int) -> int:
        """Reserve memory and return how many bytes may be read: `wanted_bytes`, or fewer.

        Raises Unavailable when no memory was free for WAIT_S. Cancelled: nothing is reserved.
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
            if granted_bytes := self._take(
                wanted_bytes
            ):  # the client has received this connection's own answers meanwhile
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
        """Replace a reservation by what was sent to the client, which may be more than was reserved."""
        if self._connection.is_closing:
            sent_bytes = 0
        self._reserved_bytes -= reserved_bytes
        self._unread_bytes += sent_bytes
        self._memory.add(sent_bytes - reserved_bytes)
        self.refresh()

    def refresh(self) -> None:
        """Return the memory of what the client has received meanwhile."""
        if taken_bytes := self._unread_bytes - min(self._unread_bytes, self._connection.queued_bytes):
            self._unread_bytes -= taken_bytes
            self._memory.add(-taken_bytes)

    def close(self) -> None:
        """Return the memory of everything sent: the connection is closed."""
        self._memory.add(-self._unread_bytes)
        self._unread_bytes = 0
        self._memory.shares.discard(self)
