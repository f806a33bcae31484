"""The log of one partition, as transcripts: what goes in, what comes out."""

import pytest

from pydanube.codec.batch import encode, read_header
from pydanube.core.appends import Append, Stored
from pydanube.core.log import PartitionLog
from pydanube.core.producer_table import ProducerTable
from pydanube.model.errors import Invalid, Refused, StaleEpoch, Unavailable
from pydanube.model.limits import PRODUCER_BATCHES_IN_FLIGHT_MAX


def header(count: int = 1, producer: int = 0, epoch: int = 0, sequence: int = -1, base: int = 0):
    batch = encode([b"x"] * count, publish_times=1, producer_id=producer, producer_epoch=epoch, first_sequence=sequence)
    found = read_header(batch)
    found.base_offset = base
    return found


def fresh(remembered_max: int = 100) -> PartitionLog:
    return PartitionLog(0, ProducerTable(remembered_max))


def publish(log: PartitionLog, *, confirm: bool = True, **batch) -> Append | Stored:
    one = header(**batch)
    seen = log.find_duplicate(one)
    if seen is not None:
        return seen
    append = log.append(one, now_us=1000)
    if confirm:
        log.confirm(append)
    return append


def test_offsets_are_dense_and_visible_only_when_confirmed():
    log = fresh()
    first, second = publish(log, count=2, confirm=False), publish(log, count=3, confirm=False)
    assert (first.base_offset, second.base_offset, log.next_offset, log.visible_end) == (0, 2, 5, 0)
    log.confirm(first)
    assert log.visible_end == 2
    log.confirm(second)
    assert log.visible_end == 5


def test_append_times_never_decrease():
    log = fresh()
    assert log.append(header(), 50).append_time == 50
    assert log.append(header(), 40).append_time == 50
    assert log.append(header(), 60).append_time == 60


def test_rolling_back_leaves_no_trace():
    log = fresh()
    publish(log, count=2, producer=7, sequence=0)
    lost = publish(log, count=2, producer=7, sequence=2, confirm=False)
    assert log.roll_back() == [lost]
    assert (log.next_offset, log.visible_end) == (2, 2)
    retried = publish(log, count=2, producer=7, sequence=2)
    assert isinstance(retried, Append)
    assert retried.base_offset == 2


def test_a_retry_is_answered_with_the_offset_it_got_the_first_time():
    log = fresh()
    publish(log, count=2, producer=7, sequence=0)
    publish(log, count=5)
    publish(log, count=3, producer=7, sequence=2)
    assert publish(log, count=2, producer=7, sequence=0) == Stored(0)
    assert publish(log, count=3, producer=7, sequence=2) == Stored(7)
    assert log.visible_end == 10


def test_a_retry_of_a_batch_in_flight_waits_with_it():
    log = fresh()
    in_flight = publish(log, count=2, producer=7, sequence=0, confirm=False)
    assert publish(log, count=2, producer=7, sequence=0) is in_flight


def test_a_batch_is_refused_until_the_missing_batches_before_it_arrived():
    log = fresh()
    publish(log, count=2, producer=7, sequence=0)
    with pytest.raises(Unavailable, match="sequence 4 where 2 comes next"):
        publish(log, producer=7, sequence=4)
    publish(log, count=2, producer=7, sequence=2)
    assert isinstance(publish(log, producer=7, sequence=4), Append)


def test_a_producer_that_is_not_remembered_cannot_continue_its_sequence():
    with pytest.raises(Refused, match="not remembered"):
        publish(fresh(), producer=7, sequence=10)


def test_a_higher_epoch_starts_over_and_fences_the_lower_one():
    log = fresh()
    publish(log, count=2, producer=7, epoch=1, sequence=0)
    assert isinstance(publish(log, producer=7, epoch=2, sequence=0), Append)
    with pytest.raises(StaleEpoch):
        publish(log, producer=7, epoch=1, sequence=2)


def test_a_retry_in_other_batches_is_refused():
    log = fresh()
    publish(log, count=4, producer=7, sequence=0)
    publish(log, count=4)
    publish(log, count=4, producer=7, sequence=4)
    with pytest.raises(Invalid, match="same bytes"):
        publish(log, count=4, producer=7, sequence=2)


def test_as_many_batches_as_may_be_in_flight_can_be_retried():
    log = fresh()
    offsets = []
    for sequence in range(PRODUCER_BATCHES_IN_FLIGHT_MAX * 2):
        offsets.append(publish(log, producer=7, sequence=sequence).base_offset)
        publish(log, count=3)
    for sequence in range(PRODUCER_BATCHES_IN_FLIGHT_MAX, PRODUCER_BATCHES_IN_FLIGHT_MAX * 2):
        assert publish(log, producer=7, sequence=sequence) == Stored(offsets[sequence])


def test_the_longest_idle_producer_is_forgotten_first():
    log = fresh(remembered_max=2)
    publish(log, producer=1, sequence=0)
    publish(log, producer=2, sequence=0)
    publish(log, producer=1, sequence=1)
    publish(log, producer=3, sequence=0)
    assert publish(log, producer=1, sequence=0) == Stored(0)
    with pytest.raises(Refused):
        publish(log, producer=2, sequence=1)


def test_idle_producers_are_forgotten_by_age():
    log = fresh()
    publish(log, producer=1, sequence=0)
    log.producers.forget_idle(not_before_us=1001)
    assert len(log.producers) == 0


def test_the_table_is_restored_from_its_entries_and_the_batches_after_them():
    log = fresh()
    publish(log, count=2, producer=7, sequence=0)
    entries = log.producers.entries()
    publish(log, count=5)
    publish(log, count=3, producer=7, sequence=2)
    table = ProducerTable(100)
    table.restore(entries)
    table.replay(header(count=5, base=2))
    table.replay(header(count=3, producer=7, sequence=2, base=7))
    again = PartitionLog(10, table)
    assert publish(again, count=2, producer=7, sequence=0) == Stored(0)
    assert publish(again, count=3, producer=7, sequence=2) == Stored(7)
    assert isinstance(publish(again, producer=7, sequence=5), Append)


def test_replaying_what_the_entries_hold_already_changes_nothing():
    log = fresh()
    publish(log, count=2, producer=7, sequence=0)
    table = ProducerTable(100)
    table.restore(log.producers.entries())
    table.replay(header(count=2, producer=7, sequence=0, base=0))
    assert table.entries() == log.producers.entries()


def test_the_entry_of_a_pinned_producer_has_its_new_epoch_before_anything_of_it_is_stored():
    log = fresh()
    log.producers.pin(7)
    publish(log, count=2, producer=7, epoch=1, sequence=0)
    publish(log, producer=7, epoch=2, sequence=0, confirm=False)
    in_flight = log.producers.entries()
    log.roll_back()
    for entries in (in_flight, log.producers.entries()):
        table = ProducerTable(100, pinned={7})
        table.restore(entries)
        assert table.progress_of(7) == (2, 0)
