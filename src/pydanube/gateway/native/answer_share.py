"""The part of the unread memory that the fetches of one connection hold, or the answers to its requests.

A fetch reserves the bytes it may read before it reads them. It returns what it did not need when the read is over, and
the rest when the client has received the answer or is disconnected.
"""

from __future__ import annotations

from pydanube.broker import UnreadMemory, UnreadPart
from pydanube.runtime.network import FramedConnection


class AnswerShare(UnreadPart):
    """What fetches or requests of one connection reserve, and what they sent and the client has not received."""

    def __init__(self, memory: UnreadMemory, connection: FramedConnection) -> None:
        super().__init__(memory)
        self._connection = connection
        self._unread_bytes = 0
        """Sent, and not received by the client at the last `refresh`."""

    def answered(self, reserved_bytes: int, sent_bytes: int) -> None:
        """Replace a reservation by what was sent to the client."""
        if self._connection.is_closing:
            sent_bytes = 0
        self._unread_bytes += sent_bytes
        self.take(sent_bytes - reserved_bytes)
        if self._unread_bytes:
            self.memory.parts.add(self)
        self.refresh()

    def refresh(self) -> None:
        """Return the memory of what the client has received meanwhile."""
        if taken_bytes := self._unread_bytes - min(self._unread_bytes, self._connection.queued_bytes):
            self._unread_bytes -= taken_bytes
            self.give_back(taken_bytes)

    def close(self) -> None:
        """Return the memory of everything sent: the connection is closed. Reads that run return their own."""
        self.give_back(self._unread_bytes)
        self._unread_bytes = 0
        self.memory.parts.discard(self)
