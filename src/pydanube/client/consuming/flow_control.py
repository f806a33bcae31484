"""How much the broker may push for one partition before the user has taken what came before.

Invariants
    granted and not yet delivered + delivered and not yet taken <= target, in messages and in bytes (but for one batch)
    credit is given back in steps of half the target, so that it costs few frames
"""

from __future__ import annotations


class FlowControl:
    """Counts one session's credit."""

    __slots__ = ("_bytes", "_bytes_target", "_messages", "_messages_target")

    def __init__(self, messages: int, size: int) -> None:
        self._messages = 0
        self._bytes = 0
        self.aim(messages, size)

    def aim(self, messages: int, size: int) -> None:
        """From now on this much may be ahead."""
        assert messages > 0 and size > 0
        self._messages_target = messages
        self._bytes_target = size

    def restart(self) -> None:
        """A new session: nothing is granted, nothing is here."""
        self._messages = self._bytes = 0

    def taken(self, messages: int, size: int) -> None:
        """The user took so much of what was delivered."""
        self._messages -= messages
        self._bytes -= size

    def grant(self) -> tuple[int, int] | None:
        """Credit to give now, counted as given; None while less than half of the target is missing."""
        messages = self._messages_target - self._messages
        size = self._bytes_target - self._bytes
        if 2 * messages < self._messages_target and 2 * size < self._bytes_target:
            return None
        self._messages += max(messages, 0)
        self._bytes += max(size, 0)
        return max(messages, 0), max(size, 0)
