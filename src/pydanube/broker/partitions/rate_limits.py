"""Rate limits, as token buckets that allow debt.

Tokens are added evenly, and at most BURST_S worth of them are saved up. A batch may go whenever the balance is not
negative, whatever its size; its whole size is taken off, and may leave the bucket in debt. The next batch then waits
until the debt is paid. So over any period the rate is exceeded by at most one burst and one batch.
"""

from __future__ import annotations

from typing import Final

from pydanube.model.policies import Policies

BURST_S: Final = 0.1
"""How many seconds worth of tokens are saved up; enough for what arrives together in one turn of the event loop."""

PORTION_S: Final = 0.02
"""How many seconds worth a used-up rate allows at a time; smaller portions would cost more than they smooth."""


class Bucket:
    """The bucket of one rate. The caller passes the time, which never goes back."""

    __slots__ = ("_balance", "_since", "per_s")

    def __init__(self, per_s: int, now: float) -> None:
        assert per_s > 0
        self.per_s = per_s
        self._balance = per_s * BURST_S
        self._since = now

    def wait_s(self, now: float) -> float:
        """Return how long the next batch has to wait; 0 if it may go now."""
        self._refill(now)
        return max(0.0, -self._balance / self.per_s)

    def allowance(self, now: float) -> int:
        """Return how much may go now, for a caller that can choose the size."""
        self._refill(now)
        return max(1, int(self._balance), int(self.per_s * PORTION_S))

    def take(self, amount: int, now: float) -> None:
        """Take off what has gone."""
        self._refill(now)
        self._balance -= amount

    def _refill(self, now: float) -> None:
        self._balance = min(self.per_s * BURST_S, self._balance + (now - self._since) * self.per_s)
        self._since = now


class Rate:
    """A limit of messages and bytes per second together; the stricter of the two applies."""

    __slots__ = ("_bytes", "_messages")

    def __init__(self, messages_per_s: int, bytes_per_s: int, now: float) -> None:
        """0 is no limit."""
        self._messages = Bucket(messages_per_s, now) if messages_per_s else None
        self._bytes = Bucket(bytes_per_s, now) if bytes_per_s else None

    @classmethod
    def of(cls, messages_per_s: int, bytes_per_s: int, now: float) -> Rate | None:
        """Return the limit, or None if neither is limited, so that the fast path has only that to check."""
        return cls(messages_per_s, bytes_per_s, now) if messages_per_s or bytes_per_s else None

    def wait_s(self, now: float) -> float:
        messages = self._messages.wait_s(now) if self._messages is not None else 0.0
        size = self._bytes.wait_s(now) if self._bytes is not None else 0.0
        return max(messages, size)

    def allowance(self, now: float) -> tuple[int | None, int | None]:
        """Return how many messages and how many bytes may go now; None is any number."""
        messages = self._messages.allowance(now) if self._messages is not None else None
        return messages, self._bytes.allowance(now) if self._bytes is not None else None

    def take(self, messages: int, size_bytes: int, now: float) -> None:
        if self._messages is not None:
            self._messages.take(messages, now)
        if self._bytes is not None:
            self._bytes.take(size_bytes, now)


def publish_rate(policies: Policies) -> tuple[int, int]:
    """Return the publish rate of each partition, in messages and bytes per second."""
    return policies.publish_messages_per_s or 0, policies.publish_bytes_per_s or 0


def dispatch_rate(policies: Policies) -> tuple[int, int]:
    """Return the dispatch rate of each subscription of a partition, in messages and bytes per second."""
    return policies.dispatch_messages_per_s or 0, policies.dispatch_bytes_per_s or 0
