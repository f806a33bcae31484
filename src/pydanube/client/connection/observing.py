"""What a client tells about itself: events of partitions, for hooks of the user, and counters.

A partition that a producer or consumer uses goes through these states, and each change is one event:

```
 ──assigned──► assigned ──active──► active            consumers only: the first messages arrived
                  │                   │
                  ├── disconnected ◄──┤               the connection ended; it is assigned again by itself
                  └──── revoked ◄─────┘               the broker or the client ended it
```
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from inspect import iscoroutinefunction
from typing import Literal, TypeAlias

from pydanube.model.errors import DanubeError, Invalid
from pydanube.runtime.telemetry import get_logger

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PartitionEvent:
    """A change in the use of one partition by one producer or consumer."""

    kind: Literal["assigned", "active", "disconnected", "revoked"]
    topic: str
    partition: int
    broker: str
    """The address of the broker that owns, or owned, the partition."""
    reason: str = ""
    """Why it is disconnected or revoked; empty if this client ended it."""


PartitionHook: TypeAlias = Callable[[PartitionEvent], object]
"""A function that is called on the client's event loop with each event, and must not wait."""


def checked_hook(hook: PartitionHook | None) -> PartitionHook | None:
    """Return the hook. Raises Invalid for what cannot be called, or is a coroutine function."""
    if hook is not None and (not callable(hook) or iscoroutinefunction(hook)):
        raise Invalid(f"on_partition is {hook!r}: give a plain function of one PartitionEvent")
    return hook


@dataclass(slots=True)
class ClientMetrics:
    """Counters of one client since it was made. `client.metrics()` returns a copy."""

    connections_opened: int = 0
    connections_lost: int = 0
    partitions: int = 0
    """Partitions that its producers and consumers are assigned at present; not a counter."""
    partitions_lost: int = 0
    """How often a partition was disconnected, or revoked by a broker."""
    batches_published: int = 0
    messages_published: int = 0
    """Messages that a broker has acked at the topic's ack level."""
    bytes_published: int = 0
    """Of payloads, keys and attributes, and some bytes for each message, as the producer's queue counts them."""
    messages_failed: int = 0
    """Messages whose publish failed for good."""
    batches_received: int = 0
    messages_received: int = 0
    """Messages that consumers and readers received, prefetched ones included."""
    bytes_received: int = 0
    """Of stored batches."""
    messages_redelivered: int = 0
    """Messages received again after a nack or an ack timeout."""
    messages_nacked: int = 0
    """Nacks and rejects that were sent."""

    def add(self, other: ClientMetrics) -> None:
        """Add the numbers of another client."""
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))


class PartitionWatch:
    """Reports the changes of one partition to the hook and to the counters."""

    def __init__(self, metrics: ClientMetrics, hook: PartitionHook | None, topic: str, partition: int) -> None:
        self._metrics = metrics
        self._hook = hook
        self._topic = topic
        self._partition = partition
        self._broker = ""
        self._state: Literal["none", "assigned", "active", "disconnected"] = "none"

    def assigned(self, broker: object) -> None:
        if self._state in ("none", "disconnected"):
            self._metrics.partitions += 1
        self._state, self._broker = "assigned", str(broker)
        self._tell("assigned")

    def delivered(self) -> None:
        """Called for each batch; the first since the partition was assigned makes it active."""
        if self._state == "assigned":
            self._state = "active"
            self._tell("active")

    def disconnected(self, error: DanubeError) -> None:
        if self._state in ("assigned", "active"):
            self._metrics.partitions -= 1
            self._metrics.partitions_lost += 1
            self._state = "disconnected"
            self._tell("disconnected", error.message)

    def revoked(self, error: DanubeError | None = None) -> None:
        """Called when the session ends in any way; without `error`, this client ended it."""
        if self._state == "none":
            return
        if self._state != "disconnected":
            self._metrics.partitions -= 1
            self._metrics.partitions_lost += error is not None
        self._state = "none"
        self._tell("revoked", "" if error is None else error.message)

    def _tell(self, kind: Literal["assigned", "active", "disconnected", "revoked"], reason: str = "") -> None:
        """Call the hook; an exception that it raises is logged and changes nothing."""
        if self._hook is None:
            return
        try:
            self._hook(PartitionEvent(kind, self._topic, self._partition, self._broker, reason))
        except Exception as error:
            log.warning(
                "client.hook_failed", topic=self._topic, partition=self._partition, event_kind=kind, error=repr(error)
            )
