"""The backlog quota of one partition: how large the backlog of its subscriptions may be, and what happens beyond.

The quota is checked before every batch is appended, so a backlog exceeds it by less than a batch. Messages are counted
exactly; bytes are estimated by core.sizes.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydanube.broker.subscriptions.subscription import LiveSubscription
from pydanube.core.dispatch.cursor import Cursor
from pydanube.core.sizes import Sizes
from pydanube.model.errors import Full
from pydanube.model.gaps import Gaps
from pydanube.model.policies import BacklogAction, Policies
from pydanube.storage.stream import LoggedStream, PartitionStream
from pydanube.storage.wal import LogWriter


class BacklogQuota:
    """Limits the unacked messages and bytes of each subscription of one partition; 0 is no limit."""

    __slots__ = (
        "_action",
        "_bytes_max",
        "_messages_max",
        "_partition",
        "_sizes",
        "_stream",
        "_subscriptions",
        "is_set",
    )

    def __init__(
        self, partition: str, stream: PartitionStream, sizes: Sizes, subscriptions: Mapping[str, LiveSubscription]
    ) -> None:
        self._partition = partition
        self._stream = stream
        self._sizes = sizes
        self._subscriptions = subscriptions
        self._messages_max = 0
        self._bytes_max = 0
        self._action = BacklogAction.REFUSE
        self.is_set = False
        """Whether there is any limit."""

    def set(self, policies: Policies) -> None:
        """Apply these effective policies from now on."""
        assert policies.backlog_messages_max is not None and policies.backlog_bytes_max is not None
        assert policies.backlog_action is not None
        self._messages_max = policies.backlog_messages_max
        self._bytes_max = policies.backlog_bytes_max
        self._action = policies.backlog_action
        self.is_set = bool(self._messages_max or self._bytes_max)

    def refusal(self, next_offset: int) -> Full | None:
        """Return why the batch that would begin at `next_offset` is refused, or None. With the action EVICT nothing is
        refused: the oldest messages are evicted instead."""
        if self._action is BacklogAction.EVICT:
            self.evict(next_offset)
            return None
        for name, one in self._subscriptions.items():
            # Messages acked ahead only make the backlog smaller, so they are counted only if it is too large without.
            if (
                self._messages_max
                and next_offset - one.cursor.position >= self._messages_max
                and (messages := self._messages(one, next_offset)) >= self._messages_max
            ):
                return self._full(name, f"{messages} messages", "backlog_messages_max", self._messages_max)
            if self._bytes_max and (size := self._bytes(one, next_offset)) >= self._bytes_max:
                return self._full(name, f"about {size} bytes", "backlog_bytes_max", self._bytes_max)
        return None

    def evict(self, end: int) -> None:
        """Ack the oldest messages of every subscription whose backlog exceeds the quota, until it does not."""
        if self._action is not BacklogAction.EVICT:
            return
        for one in list(self._subscriptions.values()):
            if self._messages_max and end - one.cursor.position > self._messages_max:
                self._evict_messages(one, self._messages(one, end) - self._messages_max)
            if self._bytes_max and self._bytes(one, end) > self._bytes_max:
                kept_from = self._sizes.start_of_last(self._bytes_max, end)
                one.evict_below(kept_from)

    def _evict_messages(self, one: LiveSubscription, surplus: int) -> None:
        """Ack the `surplus` oldest messages that are not acked yet, and the acked ones between them."""
        if surplus > 0:
            unsettled = one.backlog_ranges(0, surplus)
            if unsettled:
                one.evict_below(unsettled[-1][1])

    def _messages(self, one: LiveSubscription, end: int) -> int:
        cursor = one.cursor  # offsets that hold no message count as acked in it
        return end - max(cursor.position, self._stream.start_offset) - cursor.acked_ahead

    def _bytes(self, one: LiveSubscription, end: int) -> int:
        return backlog_bytes(self._sizes, self._stream.gaps, one.cursor, end)

    def _full(self, subscription: str, has: str, policy: str, limit: int) -> Full:
        return Full(
            f"subscription {subscription!r} on {self._partition} has a backlog of {has}, and the policy {policy} is "
            f"{limit}: consume it, skip it (`danube subscriptions skip`), delete the subscription, or raise the policy"
        )


def backlog_bytes(sizes: Sizes, gaps: Gaps, cursor: Cursor, end: int) -> int:
    """Estimate the bytes up to `end` that are not acked, as if messages acked ahead were spread evenly over the rest.
    The cursor must have acked the offsets in `gaps`."""
    size, messages = sizes.between(cursor.position, end), gaps.messages(cursor.position, end)
    unacked = max(0, end - cursor.position - cursor.acked_ahead)
    return size * unacked // messages if messages > 0 else 0


def stored_sizes(stream: PartitionStream, writer: LogWriter) -> Sizes:
    """Return the sizes of what a stream holds, as the catalog and, after its end, the ledgers of the log report
    them."""
    if not isinstance(stream, LoggedStream):
        return Sizes(stream.end_offset)
    found = [(one.first, one.end, one.bytes) for one in stream.history.sizes] if stream.history is not None else []
    for one in [one for ledger_id in stream.ledger_ids if (one := writer.ledger(ledger_id)) is not None]:
        first = max(one.first_offset, found[-1][1] if found else 0)
        if first < one.end_offset:
            share = (one.end_offset - first) / (one.end_offset - one.first_offset)
            found.append((first, one.end_offset, round(one.bytes * share)))
    sizes = Sizes(found[0][0] if found else stream.end_offset)
    for first, end, size in found:
        messages, left = stream.gaps.messages(first, end), size
        for start, stop in stream.gaps.existing(first, end):  # one entry of a long history may span a gap
            part = left if stop == end else size * (stop - start) // messages
            sizes.add(start, stop, part)
            left -= part
    return sizes
