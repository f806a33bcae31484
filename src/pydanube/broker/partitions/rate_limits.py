"""Rate limits of publishing and dispatching, of messages and bytes together."""

from __future__ import annotations

from pydanube.model.policies import Policies
from pydanube.runtime.rates import Bucket


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
