"""Where reading starts and ends, as users write it in options: words, offsets, counts back from the end, times.

    earliest, latest                        the ends of each partition
    1000                                    that offset, in every partition
    -1000                                   1000 messages before the end of each partition
    {"/default/orders": {"0": 17, "1": "latest"}, "/default/returns": "earliest"}
                                            each topic, or each partition; others have the default
    2026-01-31T12:00:00Z, 1769860800000     append time; UTC if it has no zone, a number is milliseconds
    -10 minutes                             ten minutes ago
    {"/default/orders": {"0": 1769860800000}}
                                            times of each topic, or each partition; others have the default

In JSON of offsets the numbers -1 and -2 are the latest and the earliest offset, as in Kafka, and other negative numbers
are refused. As text, negative numbers count back.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal, Self

from pydanube.model.errors import Invalid
from pydanube.model.limits import PARTITIONS_MAX
from pydanube.model.names import TopicName
from pydanube.model.positions import OFFSET_END, Position
from pydanube.model.text import Duration

_AGO: Final = Duration(maximum=1_000 * 366 * 86_400, needs_unit=True)
OFFSETS_FORM: Final = (
    'use earliest, latest, an offset, a count back from the end such as -1000, or JSON such as {"/default/orders": '
    '{"0": 17, "1": "latest"}}'
)
TIME_FORM: Final = "use a time such as 2026-01-31T12:00:00Z, milliseconds since 1970, or so long ago: -10 minutes"

TIMES_FORM: Final = 'use JSON such as {"/default/orders": {"0": 1769860800000, "1": "2026-01-31T12:00:00Z"}}'


@dataclass(frozen=True, slots=True)
class Bound:
    """A position in a partition that is not resolved to an offset yet."""

    kind: Literal["earliest", "latest", "offset", "back", "time", "ago"]
    value: int = 0
    """An offset, a number of messages, or microseconds."""

    def __str__(self) -> str:
        match self.kind:
            case "offset":
                return str(self.value)
            case "back":
                return f"-{self.value}"
            case "time":
                return str(Position("time", self.value))
            case "ago":
                return f"{self.value / 1_000_000:g} s ago"
        return self.kind

    @classmethod
    def of_offset(cls, text: object, option: str) -> Self:
        match text:
            case "earliest":
                return cls("earliest")
            case "latest":
                return cls("latest")
            case int() if not isinstance(text, bool) and 0 <= text < OFFSET_END:
                return cls("offset", text)
            case int() if text == -1:
                return cls("latest")
            case int() if text == -2:
                return cls("earliest")
            case int() if not isinstance(text, bool) and text < 0:
                raise Invalid(
                    f"option {option} has the number {text} in its JSON: use an offset, -1 (latest), -2 (earliest), or "
                    f'the text "{text}" for so many messages before the end'
                )
            case str() if text.isascii() and text.removeprefix("-").isdecimal() and len(text) < 20:
                number = int(text)
                return cls("back", -number) if text.startswith("-") else cls("offset", number)
        raise Invalid(f"option {option} says {text!r}, which is no offset: {OFFSETS_FORM}")

    @classmethod
    def of_time(cls, said: object, option: str) -> Self:
        """Parse a time: text, or a whole number of milliseconds."""
        if isinstance(said, bool) or not isinstance(said, str | int):
            raise Invalid(f"option {option} says {said!r}, which is no time: {TIME_FORM}")
        text = str(said).strip()
        try:
            if text.startswith("-"):
                return cls("ago", round(_AGO.read(text[1:]) * 1_000_000))
            if text.isascii() and text.isdecimal():
                return cls("time", Position.parse(Position("time", int(text) * 1_000)).value)
            return cls("time", Position.parse(datetime.fromisoformat(text)).value)
        except (ValueError, Invalid):
            raise Invalid(f"option {option} says {text!r}, which is no time: {TIME_FORM}") from None


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bound of every partition: its own, that of its topic, or the default."""

    option: str
    """The name of the option that was given."""
    default: Bound
    of_topics: Mapping[str, Bound] = field(default_factory=dict)
    of_partitions: Mapping[str, Mapping[int, Bound]] = field(default_factory=dict)

    @property
    def topics(self) -> list[str]:
        """The topics that the option names."""
        return sorted({*self.of_topics, *self.of_partitions})

    def bound_of(self, topic: str, partition: int) -> Bound:
        own = self.of_partitions.get(topic, {}).get(partition)
        return own or self.of_topics.get(topic) or self.default

    @classmethod
    def of_offsets(cls, text: str, option: str, default: Bound) -> Self:
        """Parse an offsets option; `default` applies to partitions that its JSON does not name."""
        text = text.strip()
        if not text.startswith("{"):
            return cls(option, Bound.of_offset(text, option))
        return cls._of_json(text, option, default, Bound.of_offset, OFFSETS_FORM)

    @classmethod
    def of_times(cls, text: str, option: str) -> Self:
        return cls(option, Bound.of_time(text, option))

    @classmethod
    def of_times_by_partition(cls, text: str, option: str, default: Bound) -> Self:
        """Parse JSON of times; `default` applies to partitions that it does not name."""
        return cls._of_json(text, option, default, Bound.of_time, TIMES_FORM)

    @classmethod
    def _of_json(cls, text: str, option: str, default: Bound, parse: Callable[[object, str], Bound], form: str) -> Self:
        named = parse_json(text, option, form)
        of_topics: dict[str, Bound] = {}
        of_partitions: dict[str, dict[int, Bound]] = {}
        for topic, said in named.items():
            name = str(TopicName.parse(topic))
            if isinstance(said, dict):
                of_partitions[name] = {
                    _partition(number, name, option): parse(one, option) for number, one in said.items()
                }
            else:
                of_topics[name] = parse(said, option)
        return cls(option, default, of_topics, of_partitions)


def parse_json(text: str, option: str, form: str) -> dict[str, object]:
    """Parse a JSON object, which names no topic or partition twice. Raises Invalid with `form`, its documented form."""
    if not text.strip().startswith("{"):
        raise Invalid(f"option {option} says {text!r}, which is no JSON: {form}")
    try:
        found: dict[str, object] = json.loads(text, object_pairs_hook=_without_repetition)
    except (ValueError, RecursionError) as error:
        raise Invalid(f"option {option} begins like JSON and cannot be read ({error}): {form}") from None
    return found


def _without_repetition(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name!r} is there twice")
        found[name] = value
    return found


def _partition(text: str, topic: str, option: str) -> int:
    if text.isascii() and text.isdecimal() and len(text) < 9 and int(text) < PARTITIONS_MAX:
        return int(text)
    raise Invalid(f"option {option} names partition {text!r} of {topic}: partitions are numbers, counted from 0")
