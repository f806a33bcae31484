"""Policies of a namespace or a topic: limits and lifetimes that can be changed while the broker runs.

A policy that is not set (None) is inherited: a topic's from its namespace, a namespace's from the broker's settings or
from the defaults here.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Final

import msgspec

from .errors import Invalid
from .limits import KIB, MIB
from .text import Word

SEGMENT_BYTES_MIN: Final = 64 * KIB
SEGMENT_BYTES_MAX: Final = 512 * MIB
"""An object is built in memory, some stores need a second copy of it, and Redis accepts no larger value."""


class BacklogAction(Word):
    """What happens when a subscription's backlog passes its quota."""

    REFUSE = 0
    """Publishes are refused with Full until the backlog is smaller."""
    EVICT = 1
    """The oldest messages are settled for the subscriptions with the backlog, and counted."""

    @classmethod
    def of(cls, number: int) -> BacklogAction:
        try:
            return cls(number)
        except ValueError:
            raise Invalid(f"backlog action {number} is unknown: use 0 (refuse) or 1 (evict)") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """A value of None is inherited; 0 means no limit, or never, unless the field says otherwise."""

    producers_max: int | None = None
    """Connected producers of a topic."""
    consumers_max: int | None = None
    """Connected consumers of a topic, over all its subscriptions."""
    subscriptions_max: int | None = None
    message_bytes_max: int | None = None
    publish_messages_per_s: int | None = None
    publish_bytes_per_s: int | None = None
    """Of a partition, over all its producers. Past the rate, producers are throttled; no message is lost."""
    dispatch_messages_per_s: int | None = None
    dispatch_bytes_per_s: int | None = None
    """Of each subscription of a partition."""
    retention_s: int | None = None
    """How long messages stay readable that every subscription has acked (without subscriptions: all messages). -1: for
    ever."""
    retention_bytes: int | None = None
    """How many bytes of them stay in each partition. -1: no limit; 0: nothing is kept once it is acked."""
    ttl_s: int | None = None
    """An unacked message is settled automatically after this time, and counted as expired."""
    backlog_messages_max: int | None = None
    backlog_bytes_max: int | None = None
    """Of each subscription of a partition."""
    backlog_action: BacklogAction | None = None
    deduplication_s: int | None = None
    """How long the sequence of an inactive producer is kept, for deduplication."""
    inactive_topic_s: int | None = None
    """A topic without producers, consumers, subscriptions and traffic for this time is deleted."""
    inactive_subscription_s: int | None = None
    """A subscription without consumers and without acks for this time is deleted."""
    segment_bytes: int | None = None
    """A partition uploads its log when it has this many bytes. 0: the broker's own setting."""
    segment_age_s: int | None = None
    """A partition uploads what it has after this time. 0: the broker's own setting."""
    takeover_after_s: int | None = None
    """In a cluster, another broker takes a `durable` or `written` partition over when its own is away for this time,
    and what that one has not uploaded is given up. 0: never."""

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            least = -1 if one.name.startswith("retention_") else 0
            if value is not None and not least <= value < 2**53:
                raise Invalid(f"policy {one.name}={value} is out of range: use {least} to {2**53 - 1}")
        if self.segment_bytes and not SEGMENT_BYTES_MIN <= self.segment_bytes <= SEGMENT_BYTES_MAX:
            raise Invalid(
                f"policy segment_bytes={self.segment_bytes} is out of range: use {SEGMENT_BYTES_MIN} to "
                f"{SEGMENT_BYTES_MAX}, or 0 for the broker's own setting"
            )

    def over(self, base: Policies) -> Policies:
        """Return these policies, with the values of `base` where nothing is set."""
        return replace(base, **{one: value for one in FIELDS if (value := getattr(self, one)) is not None})

    def changed(self, changes: dict[str, int | None]) -> Policies:
        """Return a copy with `changes` applied; None means inherited again. Raises Invalid for an unknown policy."""
        for name in changes:
            if name not in FIELDS:
                raise Invalid(f"policy {name!r} is unknown: use one of {', '.join(FIELDS)}")
        changed = replace(self, **changes)  # type: ignore[arg-type]
        action = changed.backlog_action
        return changed if action is None else replace(changed, backlog_action=BacklogAction.of(action))


class PolicyReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """The policies that a namespace or topic sets itself, and the effective ones, with everything inherited."""

    own: Policies
    effective: Policies
    version: str = ""
    """The version of the topic or namespace, for `expected`; brokers of earlier releases send none."""


FIELDS: Final = tuple(one.name for one in fields(Policies))

STORED: Final = (
    "retention_s",
    "retention_bytes",
    "ttl_s",
    "backlog_messages_max",
    "backlog_bytes_max",
    "backlog_action",
    "segment_bytes",
    "segment_age_s",
    "takeover_after_s",
)
"""Policies about stored messages: they have no effect on a non-reliable topic."""

DEFAULTS: Final = Policies(
    producers_max=0,
    consumers_max=0,
    subscriptions_max=0,
    message_bytes_max=0,
    publish_messages_per_s=0,
    publish_bytes_per_s=0,
    dispatch_messages_per_s=0,
    dispatch_bytes_per_s=0,
    retention_s=7 * 24 * 3600,
    retention_bytes=-1,
    ttl_s=0,
    backlog_messages_max=0,
    backlog_bytes_max=0,
    backlog_action=BacklogAction.REFUSE,
    deduplication_s=0,
    inactive_topic_s=0,
    inactive_subscription_s=0,
    segment_bytes=0,
    segment_age_s=0,
    takeover_after_s=0,
)
"""The defaults. For `message_bytes_max`, `deduplication_s` and the segment policies, 0 means the broker's own
setting."""

assert all(getattr(DEFAULTS, name) is not None for name in FIELDS)
assert set(STORED) <= set(FIELDS)
