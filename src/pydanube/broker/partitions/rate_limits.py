"""Rates as token buckets with debt: whoever is early waits, nothing is ever too large, nothing is lost.

Tokens come in evenly, and at most BURST_S worth of them wait to be used. Whatever finds the bucket out of debt goes,
and is paid for in full, into debt if need be: the next one waits until the debt is paid. Over any stretch of time the
rate is therefore kept to within one burst and one batch.
"""

from __future__ import annotations

from typing import Final

from pydanube.model.policies import Policies

BURST_S: Final = 0.1
"""How much of a quiet time can be made up for; enough for what arrives together in one turn of the event loop."""


PORTION_S: Final = 0.02
"""What is dealt at a time by a rate that is used up; smaller portions would cost more than they smooth."""


class Bucket:
    """One rate. Time is passed in and never goes back."""

    __slots__ = ("_balance", "_since", "per_s")

    def __init__(self, per_s: int, now: float) -> None:
        assert per_s > 0
        self.per_s = per_s
        self._balance = per_s * BURST_S
        self._since = now

    def wait_s(self, now: float) -> float:
        """How long until something may go; 0 for now."""
        self._refill(now)
        return max(0.0, -self._balance / self.per_s)

    def allowance(self, now: float) -> int:
        """As much as may go now, for whoever can choose."""
        self._refill(now)
        return max(1, int(self._balance), int(self.per_s * PORTION_S))

    def take(self, amount: int, now: float) -> None:
        """Something went."""
        self._refill(now)
        self._balance -= amount

    def _refill(self, now: float) -> None:
        self._balance = min(self.per_s * BURST_S, self._balance + (now - self._since) * self.per_s)
        self._since = now


class Rate:
    """Messages and bytes per second together; the slower of the two counts."""

    __slots__ = ("_bytes", "_messages")

    def __init__(self, messages_per_s: int, bytes_per_s: int, now: float) -> None:
        """0: no limit of that kind."""
        self._messages = Bucket(messages_per_s, now) if messages_per_s else None
        self._bytes = Bucket(bytes_per_s, now) if bytes_per_s else None

    @classmethod
    def of(cls, messages_per_s: int, bytes_per_s: int, now: float) -> Rate | None:
        """None where nothing is limited, so that the fast path has one thing to look at."""
        return cls(messages_per_s, bytes_per_s, now) if messages_per_s or bytes_per_s else None

    def wait_s(self, now: float) -> float:
        messages = self._messages.wait_s(now) if self._messages is not None else 0.0
        size = self._bytes.wait_s(now) if self._bytes is not None else 0.0
        return max(messages, size)

    def allowance(self, now: float) -> tuple[int | None, int | None]:
        """How many messages and how many bytes may go now; None: any number."""
        messages = self._messages.allowance(now) if self._messages is not None else None
        return messages, self._bytes.allowance(now) if self._bytes is not None else None

    def take(self, messages: int, size_bytes: int, now: float) -> None:
        if self._messages is not None:
            self._messages.take(messages, now)
        if self._bytes is not None:
            self._bytes.take(size_bytes, now)


def publish_rate(policies: Policies) -> tuple[int, int]:
    """Messages and bytes per second of a partition."""
    return policies.publish_messages_per_s or 0, policies.publish_bytes_per_s or 0


def dispatch_rate(policies: Policies) -> tuple[int, int]:
    """Messages and bytes per second of each subscription of a partition."""
    return policies.dispatch_messages_per_s or 0, policies.dispatch_bytes_per_s or 0
