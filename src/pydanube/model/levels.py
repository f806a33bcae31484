"""The feature levels of the metadata, and which of them this release reads and writes.

The level in force is one number in the metadata. Everything that brokers write into it can be read by every release
that knows the level. A change that an older broker would read wrongly, or only half of, gets a level of its own, and is
written only once that level is in force: see `metadata.levels`, and docs/adr/0017.

To add a level: raise `newest` of THIS_RELEASE, say in MEANINGS what may be written from then on, and ask
`registry.level.has(N)`, or `require(N, ...)`, at the place that writes it. Reading has no condition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

FIRST: Final = 1
"""The level of metadata that names none, and of brokers that say nothing about levels."""

MEANINGS: Final[Mapping[int, str]] = {
    1: "what releases before feature levels wrote",
    2: "a staged query under its name and its principal, with a namespace in which nobody else has the name",
    3: "that a broker is drained, in its record: brokers of earlier levels would give it partitions",
}
"""By level: what may be written from this level on."""

STAGED_NAMESPACES: Final = 2
DRAINED_BROKERS: Final = 3


@dataclass(frozen=True, slots=True)
class Levels:
    """The levels of metadata that a release works with."""

    oldest: int
    """It needs this level at least: what releases of lower levels wrote, it no longer reads or writes."""
    newest: int
    """It knows no higher level."""

    def __post_init__(self) -> None:
        assert FIRST <= self.oldest <= self.newest, "the oldest level comes first"


THIS_RELEASE: Final = Levels(oldest=1, newest=3)

assert set(MEANINGS) == set(range(FIRST, THIS_RELEASE.newest + 1)), "each level says what it means"
