"""Requests and replies: where a reply goes, and what a broker writes into a request.

A request is an ordinary message of a topic with the attributes in REQUEST_ATTRIBUTES. Any producer of the topic
can write the same attributes, so they alone do not make a message a request: what a broker wrote has the producer id
REQUEST_PRODUCER, which no client can publish with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

import msgspec

from .errors import Invalid

REQUEST_PRODUCER: Final = (1 << 64) - 2
"""The producer id of batches with requests; see `model.dead_letters.LETTER_PRODUCER`."""

REPLY_TO: Final = "x-reply-to"
"""The attribute with the address of the inbox that waits for the reply."""

EXPIRES: Final = "x-request-expires"
"""The attribute with the time until which the caller waits for the reply, in milliseconds since 1970."""

REQUEST_ATTRIBUTES: Final = frozenset({REPLY_TO, EXPIRES})
"""The attributes that a broker adds to a request. A caller cannot give them."""

TOKEN_BYTES: Final = 16
"""Random bytes in the address of an inbox."""

INBOX_CHARACTERS_MAX: Final = 1_000
"""The longest address of an inbox that is read."""

FAILURE_CHARACTERS_MAX: Final = 10_000
"""The longest text of an error that a reply carries; the rest is cut off."""


@dataclass(frozen=True, slots=True)
class InboxAddress:
    """Where the replies to one request go: ``broker.incarnation.token``. Nobody can guess a token."""

    broker: str
    incarnation: int
    token: str

    def __str__(self) -> str:
        return f"{self.broker}.{self.incarnation}.{self.token}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the address. Raises Invalid."""
        broker, _, rest = text[:INBOX_CHARACTERS_MAX].rpartition(".")
        broker, _, incarnation = broker.rpartition(".")
        if not (broker and rest and incarnation.isdecimal() and incarnation.isascii()):
            raise Invalid(f"{text[:100]!r} is no inbox: answer with the attribute {REPLY_TO} of a request")
        return cls(broker, int(incarnation), rest)


class ReplyHead(msgspec.Struct, omit_defaults=True, frozen=True):
    """What a reply has besides its payload."""

    failure: str | None = None
    """Why the request failed, in the words of the responder; None: it did not."""
    kind: str = ""
    """The kind of failure, such as the name of an exception."""
    attributes: dict[str, str] = {}
