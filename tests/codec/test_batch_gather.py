"""Some rows of a batch, as a batch of their own."""

from __future__ import annotations

import numpy as np
import pytest
from batch_samples import NOW, Sample, assert_holds, loaded, samples
from hypothesis import given
from hypothesis import strategies as st

from pydanube.codec.batch import Batch, Codec, encode
from pydanube.codec.batch.gather import gather_parts, gather_rows
from pydanube.model.errors import Invalid
from pydanube.model.limits import BATCH_BYTES_MAX, MIB


def stamped(encoded: bytearray) -> Batch:
    batch = Batch.open(encoded)
    batch.stamp(500, NOW + 1, 4)
    return batch


@given(samples(), st.data())
def test_a_range_holds_its_rows_at_their_offsets(sample: Sample, data: st.DataObject) -> None:
    source = stamped(sample.encode())
    start = data.draw(st.integers(0, source.count - 1))
    end = data.draw(st.integers(start + 1, source.count))
    part = Batch.open(source.slice(start, end).view, stamped=True)
    assert_holds(part, sample.rows(list(range(start, end))))
    assert part.offsets.tolist() == list(range(500 + start, 500 + end))


@given(samples(), st.data())
def test_a_mask_holds_its_rows_at_their_offsets(sample: Sample, data: st.DataObject) -> None:
    source = stamped(sample.encode())
    mask = data.draw(st.lists(st.booleans(), min_size=source.count, max_size=source.count).filter(any))
    rows = [row for row, chosen in enumerate(mask) if chosen]
    part = Batch.open(source.select(mask).view, stamped=True)
    assert_holds(part, sample.rows(rows))
    assert part.offsets.tolist() == [500 + row for row in rows]
    assert [message.offset for message in part.messages()] == [500 + row for row in rows]


@pytest.mark.parametrize("codec", list(Codec))
def test_a_part_says_where_it_comes_from(codec: Codec) -> None:
    source = stamped(loaded(60, codec))
    part = source.slice(10, 20).header
    assert part.derived
    assert not part.publishable
    assert (part.base_offset, part.append_time, part.owner_epoch) == (500, NOW + 1, 4)
    assert (part.count, part.span, part.end_offset) == (10, 60, 560)
    assert (part.producer_id, part.producer_epoch, part.first_sequence) == (7, 2, 100)
    assert (part.schema_id, part.schema_version) == (3, 1)
    assert (part.publish_time_min, part.publish_time_max, part.deliver_at_max) == (NOW + 10, NOW + 19, 0)
    assert part.codec is Codec.NONE


@given(samples(), st.data())
def test_a_part_of_a_part_keeps_the_first_offsets(sample: Sample, data: st.DataObject) -> None:
    source = stamped(sample.encode())
    mask = data.draw(st.lists(st.booleans(), min_size=source.count, max_size=source.count).filter(any))
    rows = [row for row, chosen in enumerate(mask) if chosen]
    part = source.select(np.array(mask))
    half = Batch.open(part.slice(0, (len(rows) + 1) // 2).view, stamped=True)
    rows = rows[: (len(rows) + 1) // 2]
    assert half.offsets.tolist() == [500 + row for row in rows]
    assert_holds(half, sample.rows(rows))


@given(samples(), st.data())
def test_parts_cut_out_together_are_those_cut_out_one_by_one(sample: Sample, data: st.DataObject) -> None:
    source = stamped(sample.encode())
    owners = np.array(data.draw(st.lists(st.integers(0, 3), min_size=source.count, max_size=source.count)))
    parts = [rows for rows in (np.flatnonzero(owners == one) for one in range(4)) if len(rows)]
    together = gather_parts(source, parts)
    assert together == [gather_rows(source, rows) for rows in parts]
    for part, rows in zip(together, parts, strict=True):
        opened = Batch.open(part, stamped=True)
        assert_holds(opened, sample.rows(rows.tolist()))
        assert opened.offsets.tolist() == (500 + rows).tolist()


def test_a_part_of_an_unstamped_batch_is_unstamped() -> None:
    part = Batch.open(loaded()).slice(1, 3)
    assert bytes(part.view[104:128]) == bytes(24)
    assert Batch.open(part.view).offsets.tolist() == [1, 2]


def test_every_row_of_the_largest_batch_can_be_sent_as_a_part() -> None:
    offsets, deltas = 72, 64  # of 16 rows, padded; the deltas are only held in reserve
    last = BATCH_BYTES_MAX - 128 - offsets - deltas - 15 * 2 * MIB
    payloads = [bytes(2 * MIB)] * 15
    full = stamped(encode([*payloads, bytes(last)], publish_times=NOW))
    assert full.header.batch_bytes == BATCH_BYTES_MAX - deltas
    part = Batch.open(full.slice(0, 16).view, stamped=True)
    assert part.header.batch_bytes == BATCH_BYTES_MAX
    with pytest.raises(Invalid, match=f"over the limit of {BATCH_BYTES_MAX}"):
        encode([*payloads, bytes(last + 1)], publish_times=NOW)


@pytest.mark.parametrize(("start", "end"), [(0, 0), (2, 1), (-1, 2), (0, 6)])
def test_a_range_outside_the_batch_is_refused(start: int, end: int) -> None:
    with pytest.raises(Invalid, match=f"rows {start}..{end} are not a part of a batch of 5"):
        Batch.open(loaded(5)).slice(start, end)


@pytest.mark.parametrize("rows", [[], [-1, 2], [0, 5]])
def test_rows_outside_the_batch_are_refused(rows: list[int]) -> None:
    with pytest.raises(Invalid, match="rows are not a part of a batch of 5"):
        gather_rows(Batch.open(loaded(5)), np.array(rows, np.int64))


@pytest.mark.parametrize(
    "payloads", [[b"x" * 9] * 60, [b"x" * n for n in range(60)], [b""] * 60], ids=["one", "many", "no"]
)
def test_rows_of_one_length_of_many_and_of_none_are_cut_out_alike(payloads: list[bytes]) -> None:
    source = stamped(
        encode([payload[:-1] + bytes([n]) if payload else b"" for n, payload in enumerate(payloads)], publish_times=NOW)
    )
    rows = [3, 4, 5, 17, 58, 59]
    part = Batch.open(gather_rows(source, np.array(rows)), stamped=True)
    assert part.payloads == [source.payloads[row] for row in rows]


def test_a_mask_that_does_not_fit_is_refused() -> None:
    batch = Batch.open(loaded(5))
    with pytest.raises(Invalid, match="mask of 4 rows does not fit a batch of 5"):
        batch.select([True] * 4)
    with pytest.raises(Invalid, match="mask selects no row"):
        batch.select([False] * 5)
