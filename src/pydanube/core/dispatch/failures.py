"""Messages that failed: how often, why, when they come again, and which of them are not to come again.

```
 failed() --> waiting until due --> given back by due() --> delivered again --> settled() forgets it
         \\-> exhausted: dying (a dead letter is on its way) or blocked (until somebody decides)
```

Invariants
    an offset is known here from its first failure until it is settled
    whatever is dying or blocked is not waiting
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from heapq import heapify, heappop, heappush
from typing import Final

from pydanube.model.failure import FailurePolicy, Poison

from .ranges import Range

_STALE_MAX: Final = 1024
"""Times of messages that were settled before; past it they are thrown out of the heap."""


class FailureState(Enum):
    OUT = auto()
    """To be delivered, or delivered."""
    WAITING = auto()
    DYING = auto()
    BLOCKED = auto()


@dataclass(slots=True)
class FailedMessage:
    """One message's history."""

    count: int = 0
    reason: str = ""
    due_us: int = 0
    state: FailureState = FailureState.OUT


@dataclass(frozen=True, slots=True)
class Exhausted:
    """A message that was tried as often as is allowed, and what is to become of it."""

    offset: int
    poison: Poison
    attempts: int
    reason: str


class Failures:
    """The failures of one subscription of one partition."""

    def __init__(self, policy: FailurePolicy) -> None:
        self.policy = policy
        self.waiting = 0
        self.dying = 0
        self.blocked = 0
        self._of: dict[int, FailedMessage] = {}
        self._due: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._of)

    def __contains__(self, offset: int) -> bool:
        return offset in self._of

    def offsets(self) -> Iterable[int]:
        return self._of.keys()

    def at(self, offset: int) -> FailedMessage | None:
        return self._of.get(offset)

    @property
    def next_due_us(self) -> int | None:
        while self._due and not self._is_waiting(*self._due[0]):
            heappop(self._due)
        return self._due[0][0] if self._due else None

    def failed(self, offset: int, now_us: int, delay_ms: int | None, reason: str) -> Exhausted | None:
        """It was not managed. Without a delay of its own it waits as long as the policy says."""
        failure = self._of.setdefault(offset, FailedMessage())
        if failure.state is not FailureState.OUT:
            return None
        failure.count += 1
        failure.reason = reason
        if self.policy.is_exhausted(failure.count):
            return self._exhaust(offset, failure)
        wait_ms = self.policy.next_delay_ms(failure.count) if delay_ms is None else delay_ms
        self._wait(offset, failure, now_us + wait_ms * 1000)
        return None

    def exhausted(self, offset: int, reason: str) -> Exhausted | None:
        """It cannot be delivered at all, whatever the number of tries."""
        failure = self._of.setdefault(offset, FailedMessage())
        failure.reason = reason
        return self._exhaust(offset, failure) if failure.state is FailureState.OUT else None

    def judged(self, offsets: Iterable[int]) -> tuple[list[Exhausted], list[int]]:
        """Of these, which are to come again no more under the policy of now, and which are."""
        exhausted: list[Exhausted] = []
        again: list[int] = []
        for offset in offsets:
            failure = self._of[offset]
            if not self.policy.is_exhausted(failure.count):
                again.append(offset)
            elif (one := self.exhausted(offset, failure.reason)) is not None:
                exhausted.append(one)
        return exhausted, again

    def try_again(self, offset: int, due_us: int) -> None:
        """What was to become of an exhausted message did not work: ask again then."""
        failure = self._of.get(offset)
        if failure is not None and failure.state is FailureState.DYING:
            self.dying -= 1
            self._wait(offset, failure, due_us)

    def due(self, now_us: int, offsets_max: int) -> list[int]:
        """Those whose wait is over, at most so many."""
        offsets: list[int] = []
        while self._due and self._due[0][0] <= now_us and len(offsets) < offsets_max:
            due_us, offset = heappop(self._due)
            if self._is_waiting(due_us, offset):
                self._of[offset].state = FailureState.OUT
                self.waiting -= 1
                offsets.append(offset)
        return offsets

    def settled(self, ranges: Sequence[Range]) -> list[int]:
        """These are done (ascending, none overlapping); the offsets among them that had failed."""
        known = self._of
        if sum([end - start for start, end in ranges]) < len(known):
            gone = [offset for start, end in ranges for offset in range(start, end) if offset in known]
        else:
            starts = [start for start, _ in ranges]
            gone = [one for one in known if (place := bisect_right(starts, one)) and one < ranges[place - 1][1]]
        for offset in gone:
            self._forget(offset)
        return gone

    def release_blocked(self) -> list[int]:
        """Somebody decided: the blocked are tried again, under the policy of now."""
        offsets = [offset for offset, failure in self._of.items() if failure.state is FailureState.BLOCKED]
        for offset in offsets:
            self._of[offset].state = FailureState.OUT
        self.blocked = 0
        return offsets

    def clear(self) -> None:
        self._of.clear()
        self._due.clear()
        self.waiting = self.dying = self.blocked = 0

    def _exhaust(self, offset: int, failure: FailedMessage) -> Exhausted:
        if self.policy.poison is Poison.BLOCK:
            failure.state = FailureState.BLOCKED
            self.blocked += 1
        else:
            failure.state = FailureState.DYING
            self.dying += 1
        return Exhausted(offset, self.policy.poison, failure.count, failure.reason)

    def _wait(self, offset: int, failure: FailedMessage, due_us: int) -> None:
        failure.state, failure.due_us = FailureState.WAITING, due_us
        self.waiting += 1
        heappush(self._due, (due_us, offset))
        if len(self._due) > 2 * self.waiting + _STALE_MAX:
            self._due = [one for one in self._due if self._is_waiting(*one)]
            heapify(self._due)

    def _forget(self, offset: int) -> None:
        failure = self._of.pop(offset)
        self.waiting -= failure.state is FailureState.WAITING
        self.dying -= failure.state is FailureState.DYING
        self.blocked -= failure.state is FailureState.BLOCKED

    def _is_waiting(self, due_us: int, offset: int) -> bool:
        failure = self._of.get(offset)
        return failure is not None and failure.state is FailureState.WAITING and failure.due_us == due_us
