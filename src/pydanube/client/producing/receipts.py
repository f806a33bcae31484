"""The receipts of a producer: partition and offset of its messages."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, overload

import msgspec

RUNS_SHOWN: Final = 3
"""How many runs of offsets the repr of receipts shows."""


class Receipt(NamedTuple):
    """Where one message is stored. `duplicate`: an earlier attempt had stored it already, this one stored nothing."""

    topic: str
    partition: int
    offset: int
    duplicate: bool = False


class Placed(msgspec.Struct, frozen=True, gc=False):
    """Where consecutive messages are stored: offsets [start, start + count) of one partition, in sending order."""

    partition: int
    start: int
    count: int
    duplicate: bool


class Receipts(Sequence[Receipt]):
    """The receipts of one `send_many`, in the order of its payloads. Each is made when it is read.

    `rows` has the payload indices of each run, for messages with keys on a topic of several partitions. Without it, the
    runs hold the payloads in order.
    """

    def __init__(self, topic: str, runs: Sequence[Placed], rows: Sequence[Sequence[int]] | None = None) -> None:
        self.topic = topic
        self.runs = tuple(runs)
        """Runs of consecutive offsets."""
        self._starts: list[int] = []
        self._count = 0
        for run in self.runs:
            self._starts.append(self._count)
            self._count += run.count
        self._order = None if rows is None else self._inverse(rows)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Receipt: ...
    @overload
    def __getitem__(self, index: slice) -> list[Receipt]: ...
    def __getitem__(self, index: int | slice) -> Receipt | list[Receipt]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(self._count))]
        if not -self._count <= index < self._count:
            raise IndexError(f"receipt {index} of {self._count}")
        place = index % self._count
        if self._order is not None:
            place = self._order[place]
        run_index = bisect_right(self._starts, place) - 1
        run = self.runs[run_index]
        return Receipt(self.topic, run.partition, run.start + place - self._starts[run_index], run.duplicate)

    def __iter__(self) -> Iterator[Receipt]:
        return (self[index] for index in range(self._count))

    def __repr__(self) -> str:
        runs = [f"partition {run.partition} [{run.start}, {run.start + run.count})" for run in self.runs[:RUNS_SHOWN]]
        if len(self.runs) > RUNS_SHOWN:
            runs.append(f"and {len(self.runs) - RUNS_SHOWN} more runs")
        return f"Receipts(topic={self.topic!r}, count={self._count}, {', '.join(runs) or 'empty'})"

    def _inverse(self, rows: Sequence[Sequence[int]]) -> list[int]:
        """Return, for each payload index, its place in the concatenation of all runs."""
        order = [0] * self._count
        place = 0
        for run_rows in rows:
            for row in run_rows:
                order[row] = place
                place += 1
        assert place == self._count
        return order
