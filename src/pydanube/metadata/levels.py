"""The feature level that is in force in a metadata store: one key, `/level`, whose value is a decimal number.

```
 a new store      the newest level that the first broker knows, in the transaction that writes /identity
 no key           level 1
 a broker joins   compares the value of /level, and puts it again, with its session
 raising          compares the revision of /level, so that it fails if a broker has joined meanwhile
```

Invariants
    the level never becomes lower
    a broker that does not know the level in force has no session, and does not serve
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pydanube.model.errors import Corrupt, Refused
from pydanube.model.levels import FIRST, THIS_RELEASE, Levels
from pydanube.runtime.telemetry import get_logger

from .following import Follower, KeyMirror
from .store import Compare, MetadataStore, Put

log = get_logger(__name__)

LEVEL_KEY: Final = "/level"

_DIGITS_MAX: Final = 9


def parse_level(value: bytes | None) -> int:
    """Return the level that the key holds; None: there is no key. Raises Corrupt."""
    if value is None:
        return FIRST
    if not value.isdigit() or len(value) > _DIGITS_MAX or int(value) < FIRST:
        raise Corrupt(
            f"metadata key {LEVEL_KEY} should hold a feature level and holds {value[:40]!r}: restore the metadata from "
            f"a backup"
        )
    return int(value)


def put_level(level: int) -> Put:
    return Put(LEVEL_KEY, b"%d" % level)


def check_level(level: int, levels: Levels) -> None:
    """Raise Refused, with the remedy, unless a release with these levels can use metadata of this one."""
    if level > levels.newest:
        raise Refused(
            f"the metadata has feature level {level}, and this release of pydanube knows level {levels.newest} at "
            f"most: a newer one is in use; install the release that the level was raised with, or a newer one"
        )
    if level < levels.oldest:
        raise Refused(
            f"the metadata has feature level {level}, and this release of pydanube needs level {levels.oldest} at "
            f"least: run the release before it on all brokers, and then `danube cluster upgrade --finish`"
        )


async def refuse_unknown_level(store: MetadataStore, levels: Levels = THIS_RELEASE) -> None:
    """Raise Refused unless a release with these levels can use the store. Writes nothing."""
    found = await store.get(LEVEL_KEY)
    check_level(parse_level(None if found is None else found.value), levels)


async def keep_level(store: MetadataStore, newest: int) -> tuple[Compare, Put]:
    """Return what a broker adds to the transaction that makes it a member: it fails if the level is another by then,
    and a transaction that raises the level fails after it. Raises Refused if the level is newer than `newest`."""
    found = await store.get(LEVEL_KEY)
    level = parse_level(None if found is None else found.value)
    check_level(level, Levels(FIRST, newest))
    is_same = Compare.missing(LEVEL_KEY) if found is None else Compare.value(LEVEL_KEY, found.value)
    return is_same, put_level(level)


class FeatureLevel:
    """The level in force, as a broker knows it. It never becomes lower while the broker runs."""

    def __init__(self, levels: Levels = THIS_RELEASE) -> None:
        self.levels = levels
        """What this broker knows."""
        self.in_force = FIRST
        self.keys = KeyMirror(LEVEL_KEY, self._take)
        self.on_outgrown: Callable[[], None] = lambda: None
        """Called when the level is newer than this broker knows, by the watch: it must stop."""

    def follow(self, follower: Follower) -> None:
        self.keys.follow(follower)

    def check(self) -> None:
        """Raise Refused if the level is one that this broker does not know."""
        check_level(self.in_force, self.levels)

    def has(self, level: int) -> bool:
        """Return whether what belongs to this level may be written."""
        return self.in_force >= level

    def require(self, level: int, what: str) -> None:
        """Raise Refused, naming `what` was asked for, unless what belongs to this level may be written."""
        if not self.has(level):
            raise Refused(
                f"{what} needs feature level {level}, and level {self.in_force} is in force: upgrade every broker, and "
                f"then run `danube cluster upgrade --finish`"
            )

    def _take(self, _key: str, value: bytes | None) -> None:
        self.in_force = max(self.in_force, parse_level(value))
        if self.in_force > self.levels.newest:
            log.error("level.unknown", level=self.in_force, known=self.levels.newest)
            self.on_outgrown()
