"""Names, parsed once where they enter the process. A value of one of these types holds valid text.

A topic is ``/namespace/topic``. Danube clients address partition k of it as the topic ``/namespace/topic-part-k``;
that suffix is therefore reserved, and `TopicAddress` reads it. Names are always compared whole, never by prefix.
Namespaces, topics and subscriptions follow one rule: ASCII letters, digits, ``_`` and ``-``, with single dots between
them, as in ``orders.v1``. No name begins or ends with a dot or is ``..``, so every name is safe as a part of a path.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Self

from .errors import Invalid
from .limits import NAME_CHARACTERS_MAX
from .written import Written, written

_WORD: Final = re.compile(r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*")
_PARTITION_SUFFIX: Final = re.compile(r"-part-(0|[1-9][0-9]*)\Z")
_INDEX_DIGITS_MAX: Final = 9
DEFAULT_NAMESPACE: Final = "default"


def _word(text: str, what: str) -> str:
    if not isinstance(text, str) or len(text) > NAME_CHARACTERS_MAX or not _WORD.fullmatch(text):
        raise Invalid(
            f"{what} {text!r} is not a name: use 1 to {NAME_CHARACTERS_MAX} ASCII letters, digits, '_' and '-', "
            "and single dots between them"
        )
    return text


def parse_namespace(text: str) -> str:
    return _word(text, "namespace")


def parse_subscription(text: str) -> str:
    return _word(text, "subscription")


@written
class TopicName(Written):
    """The full name of a topic, ``/namespace/topic``; always valid."""

    namespace: str
    topic: str

    @classmethod
    def parse(cls, text: str) -> Self:
        parts = text.split("/") if isinstance(text, str) else []
        if len(parts) != 3 or parts[0]:
            raise Invalid(
                f"topic {text!r} is not a full name: write it as /namespace/topic, for example /default/orders"
            )
        return cls(_word(parts[1], "namespace"), _word(parts[2], "topic"))

    @property
    def names_partition(self) -> bool:
        """Whether the name ends like that of a partition of another topic; no topic may be created with such a name."""
        return _PARTITION_SUFFIX.search(self.topic) is not None

    def partition(self, index: int) -> str:
        """Return the name that Danube clients use for partition `index` of this topic."""
        return f"/{self.namespace}/{self.topic}-part-{index}"

    def __str__(self) -> str:
        return f"/{self.namespace}/{self.topic}"


@dataclass(frozen=True, slots=True)
class TopicAddress:
    """The name by which a Danube client addresses a topic: a topic's own name, or ``/namespace/topic-part-k``.

    Which of the two a name that ends in ``-part-k`` is, only the broker knows: earlier releases took topics with such
    names.
    """

    text: str
    topic: TopicName | None
    """The topic that has this name itself; None if the name is too long for a topic."""
    base: TopicName | None = None
    """The topic of which this name addresses a partition; None: the name has no such suffix."""
    partition: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        suffix = _PARTITION_SUFFIX.search(text) if isinstance(text, str) else None
        if suffix is None or text[: suffix.start()].endswith("/"):
            return cls(text, TopicName.parse(text))
        base = TopicName.parse(text[: suffix.start()])
        if len(suffix[1]) > _INDEX_DIGITS_MAX:
            raise Invalid(f"topic {text[:NAME_CHARACTERS_MAX]!r}: no topic has so many partitions")
        own = text.rpartition("/")[2]
        topic = TopicName(base.namespace, own) if len(own) <= NAME_CHARACTERS_MAX else None
        return cls(text, topic, base, int(suffix[1]))

    def __str__(self) -> str:
        return self.text
