"""The messages of a subscription's backlog, and why each of them is not acknowledged yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .messages import StoredMessage

PendingState = Literal["ready", "unacked", "waiting", "delayed", "held", "blocked", "dying"]
"""
ready       it can be delivered: it was not read yet, or is to be redelivered
unacked     a consumer has it
waiting     it failed, and is redelivered at `until_us`
delayed     its producer asked for a later delivery
held        key-shared: its consumer has no credit, or an earlier message of its key is not acked, or no consumer
            accepts its key
blocked     it failed too often and blocks its subscription (key-shared: its key) until an operator decides
dying       it failed too often and is being published to the dead letter topic
"""


@dataclass(frozen=True, slots=True)
class PendingMessage:
    """The state of one message, at one moment."""

    offset: int
    state: PendingState = "ready"
    redeliveries: int = 0
    """How often the message failed."""
    reason: str = ""
    """The reason of its last failure."""
    until_us: int = 0
    """When its delay ends, in microseconds since 1970; 0 if there is none."""
    consumer: str = ""
    """The consumer that has it, if it is unacked."""


@dataclass(frozen=True, slots=True)
class BacklogMessage:
    """A message that a subscription has not acked, with its contents."""

    message: StoredMessage
    pending: PendingMessage
