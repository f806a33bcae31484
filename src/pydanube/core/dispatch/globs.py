"""Globs (`*`, `?`) over keys, in time that grows with the key's length and never with what it is made of.

A glob without `?` is literals between stars: each is looked for where the one before it ended. Those with `?` become an
automaton that follows many globs at once, a bit for each character of theirs:

```
 a?c*d    bits   0   1   2   3   4        bit n: the first n characters other than * were matched
                 --a-> -?-> -c-> -d->     a character shifts the bits that it fits to the left,
                                 *        a star keeps its bit where it is
```
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_BITS_MAX: Final = 2048
"""Of one automaton: a character costs as much as there are bits, and each different one keeps as many in memory."""


class Literals:
    """A glob without `?`."""

    __slots__ = ("_first", "_last", "_length", "_middle")

    def __init__(self, glob: str) -> None:
        first, *rest = glob.split("*")
        self._first = first
        self._last = rest.pop() if rest else None
        self._middle = [one for one in rest if one]
        self._length = len(glob) - glob.count("*")

    def matches(self, key: str) -> bool:
        if self._last is None:
            return key == self._first
        if len(key) < self._length or not key.startswith(self._first) or not key.endswith(self._last):
            return False
        place, end = len(self._first), len(key) - len(self._last)
        for literal in self._middle:
            found = key.find(literal, place, end)
            if found < 0:
                return False
            place = found + len(literal)
        return True


class Automaton:
    """Several globs, followed together."""

    __slots__ = ("_any", "_begin", "_by_character", "_end", "_for_good", "_stars")

    def __init__(self, globs: Sequence[str]) -> None:
        self._begin = self._end = self._stars = self._for_good = self._any = 0
        self._by_character: dict[str, int] = {}
        bit = 1
        for glob in globs:
            self._begin |= bit
            for character in glob:
                if character == "*":
                    self._stars |= bit
                    continue
                bit <<= 1
                if character == "?":
                    self._any |= bit
                else:
                    self._by_character[character] = self._by_character.get(character, 0) | bit
            self._end |= bit
            bit <<= 1
        self._for_good = self._end & self._stars
        for character in self._by_character:
            self._by_character[character] |= self._any

    def matches(self, key: str) -> bool:
        bits, stars, for_good = self._begin, self._stars, self._for_good
        fitting, otherwise = self._by_character.get, self._any
        for character in key:
            if bits & for_good:
                return True
            bits = (bits << 1 & fitting(character, otherwise)) | (bits & stars)
            if not bits:
                return False
        return bits & self._end != 0


def compiled(globs: Sequence[str]) -> list[Literals | Automaton]:
    """What matches a key that one of these matches."""
    matchers: list[Literals | Automaton] = [Literals(glob) for glob in globs if "?" not in glob]
    together: list[str] = []
    bits = 0
    for glob in globs:
        if "?" in glob:
            if together and bits + len(glob) + 1 > _BITS_MAX:
                matchers.append(Automaton(together))
                together, bits = [], 0
            together.append(glob)
            bits += len(glob) + 1
    if together:
        matchers.append(Automaton(together))
    return matchers
