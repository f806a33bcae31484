"""The log's core against a model too simple to be wrong, in any order of events (hypothesis prints what failed)."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from pydanube.codec.batch import encode, read_header
from pydanube.core.appends import Append, Stored
from pydanube.core.log import PartitionLog
from pydanube.core.producer_table import ProducerTable
from pydanube.model.errors import Refused, StaleEpoch, Unavailable

HEADERS = {
    count: read_header(encode([b"x"] * count, publish_times=1, producer_id=1, first_sequence=0))
    for count in range(1, 5)
}


def header(count: int, producer: int, epoch: int, sequence: int, base: int = 0):
    return replace(
        HEADERS[count], producer_id=producer, producer_epoch=epoch, first_sequence=sequence, base_offset=base
    )


class LogMachine(RuleBasedStateMachine):
    """Producers publish, retry, skip, fence each other; the disk confirms, fails, or the owner restarts.

    Model: the list of (producer, epoch, sequence) that is stored, one per offset; never twice, never with a hole.
    """

    producers = st.integers(1, 3)

    def __init__(self) -> None:
        super().__init__()
        self.log = PartitionLog(0, ProducerTable(100))
        self.stored: list[tuple[int, int, int]] = []
        self.waiting: list[tuple[Append, list[tuple[int, int, int]], object]] = []
        self.epochs = dict.fromkeys((1, 2, 3), 0)
        self.sent: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self.headers: list[object] = []

    def _next(self, producer: int) -> int:
        key = (producer, self.epochs[producer])
        return sum(count for _, count in self.sent.get(key, []))

    @rule(producer=producers, count=st.integers(1, 4))
    def publish(self, producer, count):
        epoch, sequence = self.epochs[producer], self._next(producer)
        one = header(count, producer, epoch, sequence)
        assert self.log.find_duplicate(one) is None
        append = self.log.append(one, 1)
        self.sent.setdefault((producer, epoch), []).append((sequence, count))
        self.waiting.append((append, [(producer, epoch, sequence + n) for n in range(count)], one))

    @rule(producer=producers, pick=st.integers(0, 100))
    def retry(self, producer, pick):
        batches = self.sent.get((producer, self.epochs[producer]), [])
        if batches:
            sequence, count = batches[pick % len(batches)]
            seen = self.log.find_duplicate(header(count, producer, self.epochs[producer], sequence))
            place = (producer, self.epochs[producer], sequence)
            if isinstance(seen, Stored):
                assert self.stored[seen.base_offset] == place
            else:
                assert any(seen is append for append, _, _ in self.waiting)
                assert place not in self.stored

    @rule(producer=producers)
    def leave_a_gap(self, producer):
        known = (producer, self.epochs[producer]) in self.sent
        with pytest.raises(Unavailable if known else (Refused, Unavailable)):
            self.log.find_duplicate(header(1, producer, self.epochs[producer], self._next(producer) + 1))

    @rule(producer=producers)
    def fence(self, producer):
        if (producer, self.epochs[producer]) in self.sent:
            former = self.epochs[producer]
            self.epochs[producer] += 1
            self.publish(producer, 1)
            with pytest.raises(StaleEpoch):
                self.log.find_duplicate(header(1, producer, former, 0))

    @precondition(lambda self: self.waiting)
    @rule()
    def confirm(self):
        append, places, one = self.waiting.pop(0)
        assert append.base_offset == len(self.stored)
        self.log.confirm(append)
        self.stored += places
        one.base_offset = append.base_offset
        self.headers.append(one)

    @rule()
    def disk_fails(self):
        dropped = self.log.roll_back()
        assert dropped == [append for append, _, _ in self.waiting]
        self._forget_waiting()

    @rule(snapshot_at=st.integers(0, 100))
    def restart(self, snapshot_at):
        """A new owner knows what is stored and nothing else: from some snapshot, and the batches after it."""
        cut = snapshot_at % (len(self.headers) + 1)
        before = ProducerTable(100)
        for one in self.headers[:cut]:
            before.replay(one)
        table = ProducerTable(100)
        table.restore(before.entries())
        for one in self.headers[cut:]:
            table.replay(one)
        self.log = PartitionLog(len(self.stored), table)
        self._forget_waiting()

    def _forget_waiting(self) -> None:
        """Producers send what was lost again, in order: for the model it was never sent."""
        lost = [places[0] for _, places, _ in self.waiting]
        self.waiting.clear()
        for producer, epoch, sequence in lost:
            self.sent[producer, epoch] = [pair for pair in self.sent[producer, epoch] if pair[0] != sequence]
            if not self.sent[producer, epoch]:
                del self.sent[producer, epoch]
        for producer in self.epochs:
            stored = [epoch for one, epoch, _ in self.stored if one == producer]
            if (producer, self.epochs[producer]) not in self.sent and self.epochs[producer]:
                # The producer with the newest epoch opens again, with a higher one.
                self.epochs[producer] = max([self.epochs[producer], *stored]) + 1

    @invariant()
    def nothing_is_stored_twice_and_the_end_is_where_it_must_be(self):
        assert len(set(self.stored)) == len(self.stored) == self.log.visible_end
        assert self.log.next_offset == self.log.visible_end + sum(len(places) for _, places, _ in self.waiting)


TestLogMachine = LogMachine.TestCase
TestLogMachine.settings = settings(stateful_step_count=40)
