"""A message that a subscription has not settled, and what keeps it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from .topics import SubscriptionType

PendingState = Literal["ready", "unacked", "waiting", "delayed", "held", "blocked", "dying"]
"""
ready       nothing keeps it but its turn: it was not read yet, or is to be delivered again
unacked     a consumer has it
waiting     it failed, and comes again `until_us`
delayed     its producer asked for a later time
held        key-shared: its consumer has no room, or a message of its key comes first, or nobody accepts its key
blocked     it failed too often and stops its subscription (on key-shared: its key) until somebody decides
dying       it failed too often and is on its way to the dead letter topic
"""


@dataclass(frozen=True, slots=True)
class PendingMessage:
    """What is known of one message, at one moment."""

    offset: int
    state: PendingState = "ready"
    redeliveries: int = 0
    """How often it failed."""
    reason: str = ""
    """Of its last failure."""
    until_us: int = 0
    """Until when it waits, in microseconds since 1970; 0 where no time is known."""
    consumer: str = ""
    """Who has it, where it is unacked."""


class Pending(NamedTuple):
    """Messages of a subscription, in order, and when it was so, in microseconds since 1970."""

    type: SubscriptionType
    messages: list[PendingMessage]
    now_us: int
