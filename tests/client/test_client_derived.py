"""Batches that the broker made of some rows of a larger one, and selections of rows, work like whole batches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydanube.client.consuming.acks import Acks
from pydanube.client.consuming.consumer import record_ack
from pydanube.client.consuming.messages import ReceivedBatch, rows_of
from pydanube.codec.batch import Batch, encode

BASE = 1_000


def stored(count: int) -> Batch:
    """Rows with the offsets BASE, BASE + 1, ..."""
    data = encode(
        [b"payload %d" % row for row in range(count)],
        keys=[f"key {row}" if row % 3 else None for row in range(count)],
        attributes=[{"row": str(row)} if row % 2 else {} for row in range(count)],
        publish_times=[10_000_000 + row for row in range(count)],
        producer_name="till",
    )
    batch = Batch.open(memoryview(data))
    batch.stamp(BASE, 20_000_000, 1)
    return Batch.open(batch.view, stamped=True)


def received(batch: Batch, rows: list[int], derived: bool, acks: Acks | None = None) -> ReceivedBatch:
    """A delivery of these rows: gathered by the broker, or the whole batch with a selection."""
    if derived:
        gathered = batch.select([row in rows for row in range(batch.count)])
        return ReceivedBatch(Batch.open(gathered.view, stamped=True), "/default/orders", 0, acks)
    ranges: list[tuple[int, int]] = []
    for row in rows:
        if ranges and ranges[-1][1] == row:
            ranges[-1] = (ranges[-1][0], row + 1)
        else:
            ranges.append((row, row + 1))
    return ReceivedBatch(batch, "/default/orders", 0, acks, rows_of(ranges, batch.count))


def expanded(ranges: list[tuple[int, int]]) -> list[int]:
    return [offset for start, end in ranges for offset in range(start, end)]


SELECTIONS = st.integers(1, 30).flatmap(
    lambda count: st.tuples(st.just(count), st.lists(st.integers(0, count - 1), min_size=1, unique=True).map(sorted))
)


@given(SELECTIONS, st.booleans())
def test_messages_acks_columns_and_parts_are_those_of_the_rows(selection: tuple[int, list[int]], derived: bool) -> None:
    count, rows = selection
    acks = Acks(lambda: None, lambda: None)
    delivery = received(stored(count), rows, derived, acks)
    wanted = [BASE + row for row in rows]
    assert [(one.offset, one.payload) for one in delivery] == [(BASE + row, b"payload %d" % row) for row in rows]
    assert [one.key for one in delivery] == [f"key {row}" if row % 3 else None for row in rows]
    assert [one.attributes for one in delivery] == [{"row": str(row)} if row % 2 else {} for row in rows]
    assert delivery.offsets.tolist() == wanted
    assert delivery.publish_times_us.tolist() == [10_000_000 + row for row in rows]
    assert expanded(delivery.offset_ranges()) == wanted
    for start in range(len(rows)):
        part = delivery.part(start, len(rows))
        assert [one.offset for one in part] == wanted[start:]
        assert expanded(part.offset_ranges()) == wanted[start:]
        assert part[0].payload == b"payload %d" % rows[start]
    record_ack(delivery)
    assert expanded(acks.take().ranges) == wanted


@pytest.mark.parametrize("derived", [True, False])
def test_arrow_has_the_rows_and_their_offsets(derived: bool) -> None:
    pytest.importorskip("pyarrow")
    delivery = received(stored(10), [2, 3, 7, 9], derived)
    table = delivery.to_arrow()
    assert table.column("offset").to_pylist() == [1_002, 1_003, 1_007, 1_009]
    assert table.column("payload").to_pylist() == [b"payload 2", b"payload 3", b"payload 7", b"payload 9"]
    assert table.column("key").to_pylist() == ["key 2", None, "key 7", None]
    part = delivery.part(1, 3).to_arrow()
    assert part.column("offset").to_pylist() == [1_003, 1_007]
    assert part.column("attributes").to_pylist() == [[("row", "3")], [("row", "7")]]


def test_redeliveries_and_reasons_go_with_their_rows() -> None:
    batch = stored(6).select([True, False, True, True, False, False])
    reasons = ["no stock", None, "ack timeout"]
    delivery = ReceivedBatch(batch, "/default/orders", 0, None, None, (2, 0, 1), reasons)
    assert [(one.offset, one.redeliveries, one.failure_reason) for one in delivery] == [
        (1_000, 2, "no stock"),
        (1_002, 0, None),
        (1_003, 1, "ack timeout"),
    ]
    part = delivery.part(1, 3)
    assert (list(part.redeliveries), list(part.failure_reasons)) == ([0, 1], [None, "ack timeout"])
    assert part[1].failure_reason == "ack timeout"
