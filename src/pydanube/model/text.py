"""Reads values from text, the same way wherever the text comes from: settings, options, policies, the command line.

    flag         true, yes, on, 1; false, no, off, 0
    size         4096, 64KiB, 64k (the same), 64KB (64 000); in bytes
    duration     30, 1.5s, 500ms, 10m, 2h, 7d, 1w, 10 minutes; a number without a unit is seconds

A kind says in words which values are allowed. Its `read` raises ValueError for all others; the function `read` turns
that into Invalid, which names the place of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from enum import IntEnum
from math import inf
from typing import Final, Protocol, Self, TypeVar

from .errors import Invalid

_TRUE: Final = ("true", "yes", "on", "1")
_FALSE: Final = ("false", "no", "off", "0")
_NUMBER: Final = re.compile(r"[0-9]{1,19}")
_SIZE: Final = re.compile(r"([0-9]{1,18}) *([a-zA-Z]*)")
_DURATION: Final = re.compile(r"([0-9.+][0-9_.]{0,40}(?:e[+-]?[0-9]{1,2})?)\s*([a-z]*)", re.IGNORECASE | re.ASCII)

_SIZES: Final = {"": 1, "b": 1} | {
    f"{letter}{ending}": base**power
    for power, letter in enumerate("kmgt", 1)
    for ending, base in (("", 1024), ("ib", 1024), ("b", 1000))
}
_SECONDS: Final = {
    unit: Decimal(seconds)
    for seconds, units in (
        ("0.001", "ms millisecond milliseconds"),
        ("1", "s second seconds"),
        ("60", "m min minute minutes"),
        ("3600", "h hour hours"),
        ("86400", "d day days"),
        ("604800", "w week weeks"),
    )
    for unit in units.split()
}

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")


class Kind(Protocol[T_co]):
    @property
    def allowed(self) -> str:
        """The allowed values, in words."""
        ...

    def read(self, value: object) -> T_co:
        """Return the value that text or an unchecked value stands for, or that was read before. Raises ValueError."""
        ...


def read(kind: Kind[T], text: object, what: str) -> T:
    """Return the value of this kind. Raises Invalid, which says what the text is and which values are allowed."""
    try:
        return kind.read(text)
    except ValueError:
        raise Invalid(f"{what} is {text!r}: use {kind.allowed}") from None


@dataclass(frozen=True, slots=True)
class Flag:
    allowed: str = "true or false"

    def read(self, value: object) -> bool:
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.strip().lower() in _TRUE + _FALSE:
            return value.strip().lower() in _TRUE
        raise ValueError

    def show(self, value: bool) -> str:
        return "true" if value else "false"


@dataclass(frozen=True, slots=True)
class Number:
    minimum: int
    maximum: int

    @property
    def allowed(self) -> str:
        return f"a whole number from {self.minimum} to {self.maximum}"

    def read(self, value: object) -> int:
        if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not self.minimum <= value <= self.maximum:
            raise ValueError
        return value

    def show(self, value: int) -> str:
        return str(value)


@dataclass(frozen=True, slots=True)
class Size:
    """Bytes: a number, or a number and a unit."""

    minimum: int
    maximum: int

    @property
    def allowed(self) -> str:
        return f'a size from {self.show(self.minimum)} to {self.show(self.maximum)}, such as 4096 or "64MiB"'

    def read(self, value: object) -> int:
        if isinstance(value, str):
            match = _SIZE.fullmatch(value.strip())
            if match is None or match[2].lower() not in _SIZES:
                raise ValueError
            value = int(match[1]) * _SIZES[match[2].lower()]
        if isinstance(value, bool) or not isinstance(value, int) or not self.minimum <= value <= self.maximum:
            raise ValueError
        return value

    def show(self, value: int) -> str:
        for unit, size in (("TiB", 1024**4), ("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024)):
            if value and value % size == 0:
                return f"{value // size}{unit}"
        return str(value)


@dataclass(frozen=True, slots=True)
class Duration:
    """Seconds. `needs_unit`: a number alone is refused, where it might mean something else."""

    minimum: float = 0
    maximum: float = inf
    needs_unit: bool = False

    @property
    def allowed(self) -> str:
        limits = f", from {self.minimum:g} to {self.maximum:g} seconds" if self.maximum < inf else ""
        return f"a time such as 30s, 15m or 1h{limits}"

    def read(self, value: object) -> float:
        found = float(seconds(value, needs_unit=self.needs_unit)) if isinstance(value, str) else -1
        if not self.minimum <= found <= self.maximum:
            raise ValueError
        return found


@dataclass(frozen=True, slots=True)
class Choice:
    choices: tuple[str, ...]

    @property
    def allowed(self) -> str:
        return f"one of {', '.join(self.choices)}"

    def read(self, value: object) -> str:
        if not isinstance(value, str) or value.strip().lower() not in self.choices:
            raise ValueError
        return value.strip().lower()

    def show(self, value: str) -> str:
        return value


class Word(IntEnum):
    """A choice that has a number where it is stored or sent, and that users write as a word."""

    @classmethod
    def parse(cls, text: str) -> Self:
        try:
            return cls[text.upper().replace("-", "_")]
        except (KeyError, AttributeError):
            *others, last = map(str, cls)
            what = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", cls.__name__).lower()
            raise Invalid(f"{what} {text!r} is unknown: use {', '.join(others)} or {last}") from None

    def __str__(self) -> str:
        return self.name.lower().replace("_", "-")


def seconds(text: str, *, needs_unit: bool = False) -> Decimal:
    """Return the seconds of a duration exactly: 0.14h is 504. Raises ValueError."""
    matched = _DURATION.fullmatch(text.strip())
    if matched is None or (needs_unit and not matched[2]):
        raise ValueError
    try:
        return Decimal(matched[1]) * _SECONDS[matched[2].lower() or "s"]
    except (InvalidOperation, KeyError):
        raise ValueError from None


def nearest(name: str, known: Iterable[str], likeness: float = 0.6) -> str:
    """Return the known name that a misspelt one probably means; empty: none is that much like it."""
    from difflib import get_close_matches  # imported only when a name is misspelt

    spelling = {one.lower(): one for one in known}
    near = get_close_matches(name.lower(), spelling, 1, likeness)
    return spelling[near[0]] if near else ""


def did_you_mean(name: str, known: Iterable[str], listing: str = "known are", *, otherwise: str = "") -> str:
    """Return "did you mean ...?" for a misspelt name; else `otherwise`, or without that the list of the known names,
    which begins with `listing`."""
    known = list(known)
    if meant := nearest(name, known):
        return f"did you mean {meant!r}?"
    return otherwise or (f"{listing} {', '.join(known)}" if known else "there are none")


def one_line(reason: object, characters: int = 300) -> str:
    """Return the text of an error in one line of bounded length."""
    text = " ".join(str(reason)[: 4 * characters].split())
    return text if len(text) <= characters else f"{text[: characters - 3]}..."
