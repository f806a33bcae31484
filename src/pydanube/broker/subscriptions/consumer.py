"""A consumer attached to a subscription of one partition, as the listeners use it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pydanube.broker.partitions.state_ledger import Done
from pydanube.core.access import Principal
from pydanube.core.dispatch.members import Member
from pydanube.core.dispatch.ranges import RangeArray
from pydanube.model.errors import DanubeError
from pydanube.model.failure import ACK_TIMEOUT

if TYPE_CHECKING:
    from .subscription import LiveSubscription

RangeTable = np.ndarray[Any, np.dtype[np.int64]]


class Sink(Protocol):
    """Where the deliveries of one consumer go; implemented by the listeners."""

    def deliver(
        self,
        batch: memoryview,
        epoch: int,
        ranges: list[tuple[int, int]],
        redeliveries: Sequence[int],
        reasons: Sequence[str | None],
    ) -> None:
        """Deliver the rows of the batch that are in `ranges`; empty: all rows."""

    def deliver_whole(self, batches: Sequence[memoryview], epoch: int) -> None:
        """Deliver all rows of these consecutive batches; none of them has failed before."""

    def changed(self, ack_timeout_ms: int, generation: int) -> None:
        """Report that the subscription's ack timeout or its seek generation changed; the following deliveries are of
        this generation."""

    def closed(self, error: DanubeError) -> None:
        """Report that the broker detached the consumer."""


class Consumer:
    """One consumer attached to a subscription of one partition."""

    def __init__(self, subscription: LiveSubscription, member: Member, created: bool, owner_epoch: int) -> None:
        """`created`: whether the subscription was created for this consumer."""
        self._subscription = subscription
        self._member = member
        self.subscription_id = subscription.subscription_id
        self.type = subscription.type
        self.position = subscription.cursor.position
        self.ack_timeout_ms = subscription.ack_timeout_ms
        self.created = created
        self.owner_epoch = owner_epoch
        self._generation_attached = subscription.generation

    @property
    def generation(self) -> int:
        """The seek generation of what is delivered now."""
        return self._subscription.generation

    def credit(self, messages: int, size_bytes: int) -> None:
        """Add credit: the consumer can receive this much more."""
        self._member.messages += messages
        self._member.bytes += size_bytes
        self._subscription.credited(self._member)

    def top_up(self, messages: int, size_bytes: int) -> None:
        """Raise the credit to this much where it is lower; for listeners that keep messages for their clients."""
        self._member.messages = max(self._member.messages, messages)
        self._member.bytes = max(self._member.bytes, size_bytes)
        self._subscription.credited(self._member)

    def pause(self) -> None:
        """Deliver nothing until `resume`, because the connection to the consumer is full."""
        self._member.paused = True
        self._subscription.pump()  # what was read goes to the other consumers; without others it is dropped

    def resume(self) -> None:
        self._member.paused = False
        self._subscription.credited(self._member)

    def ack(
        self,
        ranges: Sequence[tuple[int, int]] | RangeTable,
        cumulative: bool,
        done: Done | None = None,
        generation: int | None = None,
    ) -> None:
        """Acknowledge these offsets; `done` is called once that is synced. Late and repeated acks are no error. Many
        ranges may be given as an array with two columns.

        `generation` is the seek generation of the deliveries: if the subscription was sought since, the ack is ignored.
        None comes from clients of earlier releases: if the subscription was sought since the consumer attached, only
        messages in flight to it now are acknowledged.
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
        bounded: bool = False,
    ) -> None:
        """Report that these messages could not be processed. Late and repeated nacks are no error; for `generation` see
        `ack`.

        They are redelivered after `delay_ms` or, if that is None, after the delay of the failure policy. `bounded`: the
        delay is at least that of the policy, and at most the policy's maximum, as in the Danube gRPC API.
        """
        reason = ACK_TIMEOUT if timeout else reason
        self._subscription.nack(self._member, ranges, delay_ms, reason, generation, bounded)

    def reject(self, ranges: Sequence[tuple[int, int]], reason: str, generation: int | None = None) -> None:
        """Report that trying these messages again is of no use: the failure policy does with them at once what it does
        after the last try. For `generation` see `ack`."""
        self._subscription.reject(self._member, ranges, reason, generation)

    def give_up(self, ranges: Sequence[tuple[int, int]], reason: str, generation: int | None = None) -> None:
        """Report that these messages can never be processed by this consumer: each that is in flight to it counts as
        failed once more and is exhausted at once, so that the failure policy drops it, blocks or dead-letters it with
        this reason. May be called by `Sink.deliver`. For `generation` see `ack`."""
        self._subscription.give_up(self._member, ranges, reason, generation)

    def give_back(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Give messages back that the listener keeps and has not sent: they are delivered again, and count as no
        failure."""
        self._subscription.give_back(self._member, ranges)

    def sent(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Count the ack timeouts of these messages, which the listener kept waiting, from now on. For consumers that
        attached with `ack_timeouts`."""
        self._subscription.restart_timeouts(ranges)

    def renew(self, principal: Principal) -> None:
        """Go on with newer credentials of the principal that attached the consumer."""
        self._subscription.renew(self._member, principal)

    def close(self) -> None:
        """Detach. What was delivered and not acked goes to the next consumer."""
        self._subscription.detach(self._member)


def close_calls(consumers: Iterable[Consumer]) -> list[Callable[[], None]]:
    """Return functions that close these consumers, one for each subscription: consumers of the same subscription are
    detached together, so that messages in flight to one of them do not go to another of them."""
    members: dict[LiveSubscription, list[Member]] = {}
    for one in consumers:
        members.setdefault(one._subscription, []).append(one._member)
    return [partial(subscription.detach, *gone) for subscription, gone in members.items()]
