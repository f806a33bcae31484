"""The parts of the unread memory that the fetches of one connection hold, the answers to its requests, and what was
delivered to its consumers.

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
        if taken_bytes := self._unread_bytes - min(self._unread_bytes, self._connection.held_bytes):
            self._unread_bytes -= taken_bytes
            self.give_back(taken_bytes)

    def close(self) -> None:
        """Return the memory of everything sent: the connection is closed. Reads that run return their own."""
        self.give_back(self._unread_bytes)
        self._unread_bytes = 0
        self.memory.parts.discard(self)


class DeliveryShare(UnreadPart):
    """What was delivered to the consumers of one connection and the client has not received: everything that waits
    there beyond the answers."""

    def __init__(self, memory: UnreadMemory, connection: FramedConnection, *answers: AnswerShare) -> None:
        super().__init__(memory)
        self._connection = connection
        self._answers = answers

    def refresh(self) -> None:
        """Count what waits now. Called when something was delivered that the kernel did not take whole, and in every
        round; it is no part that others ask, because there may be thousands."""
        answered_bytes = sum(one.bytes for one in self._answers)
        self.set(max(0, self._connection.held_bytes - answered_bytes))

    def may_take(self, size_bytes: int) -> bool:
        self.refresh()
        return super().may_take(size_bytes)
