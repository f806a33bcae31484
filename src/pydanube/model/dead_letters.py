"""Dead letters: what their attributes mean, and how they are sent back to the topics they came from (redrive).

A dead letter is an ordinary message of a dead letter topic, with the attributes in LETTER_ATTRIBUTES. Whoever may
publish to the topic can write the same attributes, so they decide nothing by themselves: what a broker wrote has the
producer id LETTER_PRODUCER, which no client can publish with. The subscription `danube-redrive` (REDRIVE) of the dead
letter topic has acked the letters that were redriven or dropped. All redrives share it, and no consumer attaches to it.

Rules of a redrive
    a letter goes back to the topic that it names only if a broker wrote it; others go where the caller says, or remain
    a letter is acked only after its original topic has the message, at that topic's ack level
    a redrive that is interrupted may send a letter twice; none is lost
    a letter that cannot be sent back (CANNOT_GO_BACK: its topic is deleted, it is too large) remains, and so does a
    message that is not a dead letter; the others are sent back nevertheless
    if the topic has no dead letter, the subscription is not created
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from .errors import Invalid, NotFound

REDRIVE: Final = "danube-redrive"
"""The subscription that has acked the letters that were redriven or dropped."""

LETTER_PRODUCER: Final = (1 << 64) - 1
"""The producer id of batches with dead letters. It is neither that of a producer nor of a staged query, whose number it
would be is never reached. Their sequence is negative, as in all batches that are not deduplicated."""

REDRIVEN: Final = "x-redriven"
"""The attribute of a redriven message: how often it was redriven."""

LETTER_ATTRIBUTES: Final = frozenset(
    {
        "x-original-topic",
        "x-original-subscription",
        "x-original-partition",
        "x-original-topic-offset",
        "x-original-producer-id",
        "x-original-broker-addr",
        "x-poison-policy",
        "x-delivery-attempt",
        "x-failure-reason",
        "x-dead-letter-id",
        "x-attributes-dropped",
    }
)
"""The attributes that the broker adds to a dead letter; all others are those of the original message."""

NO_LETTER: Final = "it is no dead letter: it does not say which topic it came from (x-original-topic)"
NOT_BY_A_BROKER: Final = (
    "its x-original-topic was not written by a broker, or by one of an earlier release: name the topic that it is to "
    "be sent to (--to)"
)
REDRIVEN_BEFORE: Final = "it was redriven or dropped before"

CANNOT_GO_BACK: Final = (NotFound, Invalid)
"""Failures that the next redrive would have again; others may succeed later."""

LETTERS_AT_ONCE: Final = 500
"""The most letters that are sent before they are acked, and that an interruption may therefore repeat."""

DIGITS_MAX: Final = 18
"""Attributes with longer numbers are ignored: any producer may write attributes."""

Place = tuple[int, int]
"""Partition and offset in the dead letter topic."""


@dataclass(frozen=True, slots=True)
class LetterHistory:
    """What the attributes of a message of a dead letter topic say about its history."""

    attributes: Mapping[str, str]

    @property
    def is_letter(self) -> bool:
        """Whether this is a dead letter, and not a message that a producer published to the topic."""
        return bool(self.original_topic)

    @property
    def id(self) -> str:
        """The id of the dead-lettered message. If a crash made the broker write it twice, both have the same id."""
        return self._text("x-dead-letter-id")

    @property
    def original_topic(self) -> str:
        """The topic the message came from; empty if the message was not written by a broker."""
        return self._text("x-original-topic")

    @property
    def original_subscription(self) -> str:
        return self._text("x-original-subscription")

    @property
    def original_partition(self) -> int | None:
        """The partition the message came from: its attribute, or part of its id if an older broker wrote it."""
        partition = self._number("x-original-partition")
        if partition is not None:
            return partition
        return _number(self.id.removeprefix(f"{self.original_topic}/").partition("/")[0])

    @property
    def original_offset(self) -> int | None:
        return self._number("x-original-topic-offset")

    @property
    def attempts(self) -> int | None:
        """How often the message was delivered before it was dead-lettered."""
        return self._number("x-delivery-attempt")

    @property
    def reason(self) -> str:
        """The reason of the last failure."""
        return self._text("x-failure-reason")

    @property
    def redriven(self) -> int:
        """How often the message had been redriven before."""
        return self._number(REDRIVEN) or 0

    @property
    def original_attributes(self) -> dict[str, str]:
        """The attributes that the producer of the original message set."""
        return {name: value for name, value in self.attributes.items() if name not in LETTER_ATTRIBUTES}

    @property
    def redriven_attributes(self) -> dict[str, str]:
        """The attributes of the message that is sent back."""
        return self.original_attributes | {REDRIVEN: str(self.redriven + 1)}

    def _text(self, name: str) -> str:
        return self.attributes.get(name, "")

    def _number(self, name: str) -> int | None:
        return _number(self._text(name))


class RedriveStep(msgspec.Struct, omit_defaults=True):
    """The result of one step of a redrive, in one partition of the dead letter topic."""

    done: int = 0
    """Letters sent back, or dropped."""
    stayed: list[tuple[int, str]] = []
    """Offset and reason of each letter that could not be sent back."""
    next_offset: int = -1
    """Where the next step begins; -1: the selection is done."""
    remaining: int = 0
    """How many messages of the partition are neither redriven nor dropped."""


def parse_place(text: str | Place) -> Place:
    """Parse PARTITION:OFFSET, given as text or as two numbers. Raises Invalid."""
    parts = text.split(":") if isinstance(text, str) else list(text)
    if len(parts) == 1:
        parts = ["0", *parts]
    try:
        partition, offset = (int(part) for part in parts)
    except (TypeError, ValueError):
        partition = offset = -1
    if partition < 0 or offset < 0:
        raise Invalid(f"{text!r} is not the place of a letter: write PARTITION:OFFSET, for example 0:17")
    return partition, offset


def _number(text: str) -> int | None:
    return int(text) if len(text) <= DIGITS_MAX and text.isascii() and text.isdecimal() else None
