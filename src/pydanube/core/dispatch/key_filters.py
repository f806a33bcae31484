"""Key filters of a key-shared consumer: globs (`*`, `?`), of which a key must match one.

The time to match a key grows with its length and never with what it consists of. A glob without `?` is a list of
literals between stars: each literal is searched from where the one before it ended. Globs with `?` become an automaton
that matches many globs at once, with one bit for each of their characters:

```
 a?c*d    bits   0   1   2   3   4        bit n: the first n characters other than * were matched
                 --a-> -?-> -c-> -d->     a character shifts the bits that it fits to the left,
                                 *        a star keeps its bit where it is
```
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pydanube.model.errors import Invalid

KEY_FILTERS_MAX: Final = 100
KEY_FILTER_CHARACTERS_MAX: Final = 200

_BITS_MAX: Final = 2048
"""The size of one automaton: matching a character costs time in proportion to the bits, and every different character
of its globs takes as many bits of memory."""


class KeyFilter:
    """The key filters of one consumer. Without any glob it accepts every key."""

    __slots__ = ("_matchers", "globs")

    def __init__(self, globs: Sequence[str]) -> None:
        self.check(globs)
        self.globs = list(globs)
        self._matchers = compile_globs(self.globs)

    @staticmethod
    def check(globs: Sequence[str]) -> None:
        """Raise Invalid if there are too many globs, or one is empty or too long."""
        if len(globs) > KEY_FILTERS_MAX or any(not 0 < len(one) <= KEY_FILTER_CHARACTERS_MAX for one in globs):
            raise Invalid(
                f"a consumer has at most {KEY_FILTERS_MAX} key filters of 1 to {KEY_FILTER_CHARACTERS_MAX} characters"
            )

    def accepts(self, key: str) -> bool:
        return not self._matchers or any(one.matches(key) for one in self._matchers)

    @property
    def accepts_all(self) -> bool:
        return not self._matchers


class LiteralGlob:
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
        start, end = len(self._first), len(key) - len(self._last)
        for literal in self._middle:
            found = key.find(literal, start, end)
            if found < 0:
                return False
            start = found + len(literal)
        return True


class GlobAutomaton:
    """Several globs, matched together."""

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


def compile_globs(globs: Sequence[str]) -> list[LiteralGlob | GlobAutomaton]:
    """Return matchers: a key matches one of the globs if and only if it matches one of these."""
    matchers: list[LiteralGlob | GlobAutomaton] = [LiteralGlob(glob) for glob in globs if "?" not in glob]
    together: list[str] = []
    bits = 0
    for glob in globs:
        if "?" in glob:
            if together and bits + len(glob) + 1 > _BITS_MAX:
                matchers.append(GlobAutomaton(together))
                together, bits = [], 0
            together.append(glob)
            bits += len(glob) + 1
    if together:
        matchers.append(GlobAutomaton(together))
    return matchers
