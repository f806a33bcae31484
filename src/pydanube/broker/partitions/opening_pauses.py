"""Decides when a partition that could not be opened is tried again.

Each try takes an epoch, which is a write to the metadata, and clients ask all the time.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from pydanube.broker.cluster.owners import Key
from pydanube.model.errors import DanubeError
from pydanube.runtime.clock import Clock
from pydanube.runtime.retry import RetryBackoff

FIRST_S: Final = 0.2
LONGEST_S: Final = 15.0
"""The first and the longest pause: a store that is there again is used soon, and a damaged partition costs its cluster
next to nothing."""


@dataclass
class _Failing:
    error: DanubeError
    until: float = 0.0
    backoff: RetryBackoff = field(default_factory=partial(RetryBackoff, FIRST_S, LONGEST_S))


class OpeningPauses:
    """The partitions of one broker that could not be opened."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failing: dict[Key, _Failing] = {}

    def check(self, key: Key) -> None:
        """Raise the error of the last try while it is too early for another one."""
        failing = self._failing.get(key)
        if failing is not None and self._clock.monotonic() < failing.until:
            raise copy(failing.error)

    def failed(self, key: Key, error: DanubeError) -> None:
        """Take note that a try failed which took an epoch."""
        failing = self._failing.setdefault(key, _Failing(error))
        failing.error, failing.until = error, self._clock.monotonic() + failing.backoff.next()

    def end(self, key: Key) -> None:
        """Take note that a partition is open, or another broker's."""
        self._failing.pop(key, None)

    def end_topic(self, topic_id: int) -> None:
        """Let the partitions of a topic be tried at once."""
        self._failing = {key: failing for key, failing in self._failing.items() if key[0] != topic_id}

    def end_all(self) -> None:
        """Let everything be tried at once."""
        self._failing.clear()
