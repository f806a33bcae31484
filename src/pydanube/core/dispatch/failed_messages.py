"""The messages that consumers failed to process: how often, why, and when each is delivered again.

```
 failed() --> WAITING until due --> returned by release_due() --> delivered again --> acked() forgets it
         \\-> exhausted: DEAD_LETTERING (being copied to the dead letter topic) or BLOCKED (until an operator decides)
 give_up() --> exhausted, however seldom it failed
```

Invariants
    an offset is known here from its first failure until it is acknowledged
    a message that is DEAD_LETTERING or BLOCKED is not WAITING
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
"""Entries of messages that were acknowledged while they waited; beyond this number the heap is rebuilt without them."""


class FailureState(Enum):
    DELIVERABLE = auto()
    """To be delivered again, or in flight."""
    WAITING = auto()
    DEAD_LETTERING = auto()
    BLOCKED = auto()


@dataclass(slots=True)
class FailedMessage:
    """The failures of one message so far."""

    count: int = 0
    reason: str = ""
    """The reason of the last failure."""
    due_us: int = 0
    """While it is WAITING: when it is delivered again."""
    state: FailureState = FailureState.DELIVERABLE
    given_up: bool = False
    """Whether it is exhausted however often the policy allows redeliveries."""
    was_refused: bool = False
    """While it is WAITING: whether that is because it could not be dead-lettered."""


@dataclass(frozen=True, slots=True)
class Exhausted:
    """A message that failed as often as the policy allows, and what the policy does with it."""

    offset: int
    poison: Poison
    attempts: int
    reason: str


class Failures:
    """The failed messages of one subscription on one partition."""

    def __init__(self, policy: FailurePolicy) -> None:
        self.policy = policy
        self.waiting = 0
        self.dead_lettering = 0
        self.blocked = 0
        self._by_offset: dict[int, FailedMessage] = {}
        self._due: list[tuple[int, int]] = []
        """A heap of (when, offset); it may hold entries that are no longer valid."""

    def __len__(self) -> int:
        return len(self._by_offset)

    def __contains__(self, offset: int) -> bool:
        return offset in self._by_offset

    def at(self, offset: int) -> FailedMessage | None:
        return self._by_offset.get(offset)

    @property
    def not_deliverable(self) -> int:
        """The number of messages that wait, are being dead-lettered or are blocked."""
        return self.waiting + self.dead_lettering + self.blocked

    @property
    def next_due_us(self) -> int | None:
        while self._due and not self._is_waiting(*self._due[0]):
            heappop(self._due)
        return self._due[0][0] if self._due else None

    def failed(
        self, offset: int, now_us: int, delay_ms: int | None, reason: str, bounded: bool = False
    ) -> Exhausted | None:
        """Count one more failure of a message. Return it if it is exhausted now; otherwise it waits for `delay_ms`, or,
        if that is None, for as long as the policy says. `bounded`: see FailurePolicy.bounded_delay_ms."""
        failure = self._by_offset.setdefault(offset, FailedMessage())
        if failure.state is not FailureState.DELIVERABLE:
            return None
        failure.count += 1
        failure.reason = reason
        if self.policy.is_exhausted(failure.count):
            return self._exhaust(offset, failure)
        if delay_ms is None:
            delay_ms = self.policy.next_delay_ms(failure.count)
        elif bounded:
            delay_ms = self.policy.bounded_delay_ms(failure.count, delay_ms)
        self._wait(offset, failure, now_us + delay_ms * 1000)
        return None

    def give_up(self, offset: int, reason: str) -> Exhausted | None:
        """Count one more failure of a message, which exhausts it. Return it unless it waits or was exhausted."""
        failure = self._by_offset.setdefault(offset, FailedMessage())
        if failure.state is not FailureState.DELIVERABLE:
            return None
        failure.count += 1
        failure.reason = reason
        failure.given_up = True
        return self._exhaust(offset, failure)

    def check_exhausted(self, offsets: Iterable[int]) -> tuple[list[Exhausted], list[int]]:
        """Return which of these deliverable messages are exhausted under the current policy, and the other offsets."""
        exhausted: list[Exhausted] = []
        deliverable: list[int] = []
        for offset in offsets:
            failure = self._by_offset[offset]
            if failure.given_up or self.policy.is_exhausted(failure.count):
                exhausted.append(self._exhaust(offset, failure))
            else:
                deliverable.append(offset)
        return exhausted, deliverable

    def retry_dead_letter(self, offset: int, due_us: int) -> None:
        """Let a message wait until `due_us` because it could not be dead-lettered; it is exhausted again then."""
        failure = self._by_offset.get(offset)
        if failure is not None and failure.state is FailureState.DEAD_LETTERING:
            self.dead_lettering -= 1
            failure.was_refused = True
            self._wait(offset, failure, due_us)

    def hasten_dead_letters(self, now_us: int) -> None:
        """Let the messages that could not be dead-lettered wait no longer than until `now_us`."""
        for offset, failure in self._by_offset.items():
            if failure.was_refused and failure.due_us > now_us:
                self.waiting -= 1
                self._wait(offset, failure, now_us)

    def release_due(self, now_us: int, offsets_max: int) -> list[int]:
        """Return at most `offsets_max` offsets whose wait is over; they are deliverable from now on."""
        offsets: list[int] = []
        while self._due and self._due[0][0] <= now_us and len(offsets) < offsets_max:
            due_us, offset = heappop(self._due)
            if self._is_waiting(due_us, offset):
                failure = self._by_offset[offset]
                failure.state, failure.was_refused = FailureState.DELIVERABLE, False
                self.waiting -= 1
                offsets.append(offset)
        return offsets

    def release_blocked(self) -> list[int]:
        """Return the offsets of all blocked messages; they are deliverable from now on, also those that were given up:
        another consumer may be able to process them."""
        offsets = [offset for offset, one in self._by_offset.items() if one.state is FailureState.BLOCKED]
        for offset in offsets:
            failure = self._by_offset[offset]
            failure.state, failure.given_up = FailureState.DELIVERABLE, False
        self.blocked = 0
        return offsets

    def acked(self, ranges: Sequence[Range]) -> dict[int, FailedMessage]:
        """Forget the acknowledged `ranges` (ascending, without overlap) and return those messages that had failed."""
        known = self._by_offset
        if sum([end - start for start, end in ranges]) < len(known):
            gone = [offset for start, end in ranges for offset in range(start, end) if offset in known]
        else:
            starts = [start for start, _ in ranges]
            gone = [one for one in known if (index := bisect_right(starts, one)) and one < ranges[index - 1][1]]
        return {offset: self._forget(offset) for offset in gone}

    def clear(self) -> None:
        self._by_offset.clear()
        self._due.clear()
        self.waiting = self.dead_lettering = self.blocked = 0

    def _exhaust(self, offset: int, failure: FailedMessage) -> Exhausted:
        assert failure.state is FailureState.DELIVERABLE
        if self.policy.poison is Poison.BLOCK:
            failure.state = FailureState.BLOCKED
            self.blocked += 1
        else:
            failure.state = FailureState.DEAD_LETTERING
            self.dead_lettering += 1
        return Exhausted(offset, self.policy.poison, failure.count, failure.reason)

    def _wait(self, offset: int, failure: FailedMessage, due_us: int) -> None:
        failure.state, failure.due_us = FailureState.WAITING, due_us
        self.waiting += 1
        heappush(self._due, (due_us, offset))
        if len(self._due) > 2 * self.waiting + _STALE_MAX:
            self._due = [one for one in self._due if self._is_waiting(*one)]
            heapify(self._due)

    def _forget(self, offset: int) -> FailedMessage:
        failure = self._by_offset.pop(offset)
        self.waiting -= failure.state is FailureState.WAITING
        self.dead_lettering -= failure.state is FailureState.DEAD_LETTERING
        self.blocked -= failure.state is FailureState.BLOCKED
        return failure

    def _is_waiting(self, due_us: int, offset: int) -> bool:
        failure = self._by_offset.get(offset)
        return failure is not None and failure.state is FailureState.WAITING and failure.due_us == due_us
