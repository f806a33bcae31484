"""How much may be in flight to consumers that are slower than the ack timeout.

Clients of the gRPC API take messages long before they process them. If they have more than they can acknowledge within
the ack timeout, messages time out that the consumer still has, are sent again behind the others, and time out again:
most of what the consumer gets then are repetitions, and messages end as exhausted without ever having failed. So when a
message is acknowledged that had timed out, no more is delivered than was acknowledged within half the ack timeout.
Every further ack raises that limit a little, so that it ends when consumers are faster again.

Consumers that acknowledge nothing, or lose single messages, have no such acks and are not limited.
"""

from __future__ import annotations

from typing import Final

LIMIT_MIN: Final = 4
"""A few messages are always in flight, so that one that is lost does not stop the others until it times out."""

LIMIT_MAX: Final = 10_000
"""A limit that has grown beyond this is lifted."""

_ACKS_PER_GROWTH: Final = 8


class AckPace:
    """Counts acks and ack timeouts of one subscription on one partition."""

    __slots__ = ("_acked", "_may_lower", "_since_us", "_until_timeout", "limit")

    def __init__(self) -> None:
        self.limit = 0.0
        """How many messages may be in flight; 0: no limit."""
        self._acked = 0
        self._since_us = 0
        self._until_timeout = 0
        """How many messages were acknowledged during an ack timeout, when it was last measured."""
        self._may_lower = False

    def start(self, now_us: int) -> None:
        """Count acks from now on: messages are in flight, and none were before."""
        self._since_us, self._acked = now_us, 0

    def timed_out(self, now_us: int, timeout_us: int) -> None:
        """Take note that messages timed out. Counts once per ack timeout."""
        if (elapsed_us := now_us - self._since_us) >= timeout_us:
            self._until_timeout = self._acked * timeout_us // elapsed_us
            self._may_lower = True
            self.start(now_us)

    def acked(self, messages: int, late: bool) -> None:
        """Take note of acks; `late`: a message among them had timed out."""
        self._acked += messages
        if late and self._may_lower:
            self._may_lower = False
            self.limit = max(LIMIT_MIN, self._until_timeout / 2)
        elif self.limit:
            self.limit += messages / _ACKS_PER_GROWTH
            if self.limit > LIMIT_MAX:
                self.limit = 0.0

    def clear(self) -> None:
        """Lift the limit: what was in flight does not count any more."""
        self.limit, self._may_lower = 0.0, False
