"""Rows of stored batches as Spark gets them: every value, without unnecessary copies."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydanube.client.tables import arrow_rows as rows
from pydanube.client.tables.arrow_rows import RowForm, RowSlice, arrow_schema
from pydanube.client.tables.read_types import COLUMNS
from pydanube.codec.batch import Batch, Codec, encode

TOPIC = "/default/orders"
APPENDED = 1_700_000_000_000_000


def stored(base_offset: int, payloads: list[bytes], appended: int = APPENDED, **columns: object) -> Batch:
    """Return a batch as the log stores it."""
    columns.setdefault("publish_times", 1_600_000_000_000_000)
    batch = Batch.open(encode(payloads, **columns))  # type: ignore[arg-type]
    batch.stamp(base_offset, appended, 1)
    return Batch.open(batch.view, stamped=True)


def whole(batch: Batch) -> RowSlice:
    return RowSlice(batch, 0, batch.count)


def form(columns: tuple[str, ...] = COLUMNS) -> RowForm:
    return RowForm(arrow_schema(columns), TOPIC, 3)


def moment(micros: int) -> datetime:
    return datetime.fromtimestamp(micros // 1_000_000, UTC).replace(microsecond=micros % 1_000_000)


def expected(pieces: list[RowSlice]) -> list[dict[str, object]]:
    """Return the expected rows, computed one by one from the batch."""
    return [
        {
            "topic": TOPIC,
            "partition": 3,
            "offset": batch.offset_at(row),
            "append_time": moment(batch.append_time),
            "publish_time": moment(batch.publish_time_at(row)),
            "key": batch.keys[row],
            "payload": batch.payloads[row],
            "attributes": list(batch.attributes[row].items()),
            "producer": batch.producer_name,
            "schema_id": batch.header.schema_id,
            "schema_version": batch.header.schema_version,
        }
        for batch, start, end in pieces
        for row in range(start, end)
    ]


@st.composite
def some_pieces(draw: st.DrawFn) -> list[RowSlice]:
    pieces: list[RowSlice] = []
    offset = draw(st.integers(0, 2**40))
    for number in range(draw(st.integers(1, 5))):
        payloads = draw(st.lists(st.binary(max_size=20), min_size=1, max_size=30))
        count = len(payloads)
        columns: dict[str, object] = {"codec": draw(st.sampled_from(list(Codec)))}
        if draw(st.booleans()):
            key = st.none() | st.text(max_size=8)
            columns["keys"] = draw(st.lists(key, min_size=count, max_size=count))
        if draw(st.booleans()):
            attributes = st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3)
            columns["attributes"] = draw(st.lists(attributes, min_size=count, max_size=count))
        if draw(st.booleans()):
            times = st.integers(0, 2 * 10**15)
            columns["publish_times"] = draw(st.lists(times, min_size=count, max_size=count))
        columns["producer_name"] = draw(st.sampled_from(["", "shop", "lager-ü"]))
        columns["schema_id"], columns["schema_version"] = draw(st.sampled_from([(0, 0), (7, 2), (2**62, 1)]))
        batch = stored(offset, payloads, APPENDED + number, **columns)
        start = draw(st.integers(0, count - 1))
        pieces.append(RowSlice(batch, start, draw(st.integers(start + 1, count))))
        offset = batch.end_offset + draw(st.sampled_from([0, 0, 5]))
    return pieces


@given(some_pieces())
def test_every_value_of_every_row_is_there(pieces: list[RowSlice]) -> None:
    made = form().make_batch(pieces)
    made.validate(full=True)
    assert made.schema == arrow_schema()
    assert made.to_pylist() == expected(pieces)


@given(some_pieces(), st.sets(st.sampled_from(COLUMNS), min_size=1).map(sorted).map(tuple))
def test_only_the_chosen_columns_are_made_in_their_order(pieces: list[RowSlice], columns: tuple[str, ...]) -> None:
    made = form(columns).make_batch(pieces)
    assert made.schema == arrow_schema(columns)
    assert made.to_pylist() == [{name: row[name] for name in columns} for row in expected(pieces)]


def test_rows_left_out_of_a_batch_keep_their_offsets() -> None:
    thinned = stored(100, [b"a", b"b", b"c", b"d"]).slice(1, 4)
    assert form().make_batch([whole(thinned)]).column("offset").to_pylist() == [101, 102, 103]


def test_small_batches_become_one_record_batch_of_ten_thousand_rows() -> None:
    batches = [stored(number * 500, [b"x" * 100] * 500) for number in range(50)]
    made = list(form().batches(map(whole, batches)))
    assert [one.num_rows for one in made] == [10_000, 10_000, 5_000]
    assert pa.Table.from_batches(made).column("offset").to_pylist() == list(range(25_000))


def test_large_messages_make_record_batches_of_about_two_mebibytes() -> None:
    batches = [stored(number * 10, [b"x" * 50_000] * 10) for number in range(10)]
    made = list(form().batches(map(whole, batches)))
    assert [one.num_rows for one in made] == [40, 40, 20]


def test_packed_batches_are_counted_by_what_they_hold() -> None:
    batches = [stored(number * 10, [b"x" * 50_000] * 10, codec=Codec.ZSTD) for number in range(10)]
    assert [one.num_rows for one in form().batches(map(whole, batches))] == [40, 40, 20]


def test_a_batch_that_is_large_enough_alone_lends_its_payloads() -> None:
    batch = stored(0, [b"x" * 1000] * 3000)
    (made,) = form().batches([whole(batch)])
    payloads = made.column("payload").buffers()[2]
    assert payloads.address == pa.py_buffer(batch.data).address


def test_nothing_comes_of_nothing() -> None:
    assert list(form().batches([])) == []


def test_columns_of_one_value_are_made_once_and_not_kept_for_ever() -> None:
    batch = whole(stored(0, [b"x"] * 10))
    first, second = (form().make_batch([batch]).column("topic").buffers()[2].address for _ in range(2))
    assert first == second
    for number in range(3 * rows.CACHED_ARRAYS_MAX):
        RowForm(arrow_schema(), f"/default/{number}", 0).make_batch([batch])
    assert len(rows._cache) <= rows.CACHED_ARRAYS_MAX


@pytest.mark.parametrize("count", [1, rows.ROWS_AIM, 3 * rows.ROWS_AIM])
def test_record_batches_of_any_length_have_their_constants(count: int) -> None:
    made = form().make_batch([whole(stored(0, [b"x"] * count, producer_name=f"of-{count}"))])
    assert made.num_rows == count
    assert set(made.column("producer").to_pylist()) == {f"of-{count}"}
    assert set(made.column("topic").to_pylist()) == {TOPIC}
    assert made.column("attributes").to_pylist() == [[]] * count
