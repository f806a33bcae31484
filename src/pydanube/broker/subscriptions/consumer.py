"""A consumer's hold on a subscription of one partition, and the door's end of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pydanube.broker.partitions.state_ledger import Done
from pydanube.core.dispatch.members import Member
from pydanube.core.dispatch.ranges import RangeArray
from pydanube.model.errors import DanubeError
from pydanube.model.failure import ACK_TIMEOUT

if TYPE_CHECKING:
    from .subscription import LiveSubscription

RangeTable = np.ndarray[Any, np.dtype[np.int64]]


class Sink(Protocol):
    """Where deliveries go: a door's end of one consumer."""

    def deliver(
        self,
        batch: memoryview,
        epoch: int,
        ranges: list[tuple[int, int]],
        redeliveries: Sequence[int],
        reasons: Sequence[str | None],
    ) -> None:
        """`ranges` are rows of the batch, none meaning all of them."""

    def deliver_whole(self, batches: Sequence[memoryview], epoch: int) -> None:
        """All rows of these, one batch after the other; none of them has failed before."""

    def changed(self, ack_timeout_ms: int, generation: int) -> None:
        """The subscription's ack timeout, or its seek generation, is another one from now on: deliveries that follow
        are of this generation."""

    def closed(self, error: DanubeError) -> None:
        """The broker took the subscription away."""


class Consumer:
    """One consumer's hold on a subscription of one partition."""

    def __init__(self, subscription: LiveSubscription, member: Member, created: bool, owner_epoch: int) -> None:
        self._subscription = subscription
        self._member = member
        self.subscription_id = subscription.subscription_id
        self.type = subscription.type
        self.position = subscription.core.cursor.position
        self.ack_timeout_ms = subscription.core.failures.policy.ack_timeout_ms
        self.created = created
        self.owner_epoch = owner_epoch
        self._generation_attached = subscription.generation

    @property
    def generation(self) -> int:
        """The seek generation of what is delivered now."""
        return self._subscription.generation

    def credit(self, messages: int, size_bytes: int) -> None:
        """The consumer has room for this much more."""
        self._member.messages += messages
        self._member.bytes += size_bytes
        self._subscription.refresh(self._member)

    def pause(self) -> None:
        """The way to the consumer is full: deliver nothing until `resume`."""
        self._member.paused = True
        self._subscription.pump()  # what is read goes to the others; when there are none, nothing is kept

    def resume(self) -> None:
        self._member.paused = False
        self._subscription.refresh(self._member)

    def ack(
        self,
        ranges: Sequence[tuple[int, int]] | RangeTable,
        cumulative: bool,
        done: Done | None = None,
        generation: int | None = None,
    ) -> None:
        """Settle these offsets; `done` is called once that is synced. Late and repeated acks are no error. Many ranges
        may come as a table of two columns.

        `generation` is the seek generation under which the messages were delivered: when the subscription was sought
        since, the ack is ignored. None, from clients of earlier releases: it counts for what this consumer holds now
        if the subscription was sought since it attached.
        """
        if isinstance(ranges, np.ndarray):
            ranges = RangeArray(ranges[:, 0], ranges[:, 1])
        self._subscription.ack(self._member, ranges, cumulative, done, generation, self._generation_attached)

    def nack(
        self,
        ranges: Sequence[tuple[int, int]],
        delay_ms: int | None = None,
        reason: str = "",
        timeout: bool = False,
        generation: int | None = None,
    ) -> None:
        """These were not managed. Late and repeated nacks are no error; `generation` is that of `ack`."""
        self._subscription.nack(self._member, ranges, delay_ms, ACK_TIMEOUT if timeout else reason, generation)

    def close(self) -> None:
        """Let go. What was delivered and not acked goes to the next consumer."""
        self._subscription.detach(self._member)


def close_calls(consumers: Iterable[Consumer]) -> list[Callable[[], None]]:
    """What lets go of these: those of one subscription together, so that nothing of theirs goes to another of them."""
    members: dict[LiveSubscription, list[Member]] = {}
    for one in consumers:
        members.setdefault(one._subscription, []).append(one._member)
    return [partial(subscription.detach, *gone) for subscription, gone in members.items()]
