"""Arrow rows are packed into batches of their partitions: each once, complete, and in order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydanube.client.producing.partitioning import Partitioner
from pydanube.codec.batch import Batch, Codec
from pydanube.model.errors import Invalid
from pydanube.model.limits import MESSAGE_BYTES_MAX, MIB

pa = pytest.importorskip("pyarrow")

from pydanube.spark.writing.row_packing import ROUND_BYTES, TOPICS_MAX, Packer, Packing  # noqa: E402

NOW = 1_700_000_000_000_000
TIME = pa.timestamp("us", tz="UTC")
PARTITIONS = {"/default/one": 1, "/default/three": 3, "/default/many": 40}
MAP = pa.map_(pa.string(), pa.string())
TYPES = {
    "payload": pa.binary(),
    "key": pa.string(),
    "attributes": MAP,
    "publish_time": TIME,
    "topic": pa.string(),
    "partition": pa.int32(),
}

Row = dict[str, Any]
Message = tuple[bytes, str | None, tuple[tuple[str, str], ...], int]


def arrow(rows: list[Row], types: dict[str, Any] | None = None) -> Any:
    schema = pa.schema([(name, kind) for name, kind in (types or TYPES).items() if not rows or name in rows[0]])
    return pa.RecordBatch.from_pylist(rows, schema)


def packer(
    topic: str = "", partitions_of: Callable[[str], int] = PARTITIONS.__getitem__, first_turn: int = 0, **how: Any
) -> Packer:
    return Packer(Packing(topic=topic, **how), partitions_of, lambda: NOW, first_turn)


def message(row: Row) -> Message:
    attributes = tuple(row.get("attributes") or ())
    time = row.get("publish_time")
    return row["payload"], row.get("key"), attributes, NOW if time is None else time


def unpacked(packed: Iterator[Any]) -> dict[tuple[str, int], list[Message]]:
    """Decode the batches, as a broker would, and return the messages by partition."""
    found = defaultdict(list)
    for topic, partition, data in packed:
        batch = Batch.open(data)
        attributes = [tuple(row.items()) for row in batch.attributes]
        found[topic, partition] += list(
            zip(batch.payloads, batch.keys, attributes, batch.publish_times.tolist(), strict=True)
        )
    return dict(found)


texts = st.text(max_size=6)
rows_of_any_kind = st.lists(
    st.fixed_dictionaries(
        {
            "payload": st.binary(max_size=40),
            "key": st.none() | texts,
            "attributes": st.none() | st.dictionaries(texts, texts, max_size=3).map(lambda each: list(each.items())),
            "publish_time": st.none() | st.integers(0, 2 * NOW),
            "topic": st.sampled_from(sorted(PARTITIONS)),
        }
    ),
    max_size=120,
)


@given(rows_of_any_kind, st.lists(st.integers(0, 120), max_size=5), st.sampled_from([1, 7, 10_000]))
def test_every_row_goes_once_and_in_order_to_the_partition_of_its_key(
    rows: list[Row], cuts: list[int], batch_messages: int
) -> None:
    whole = arrow(rows)
    edges = sorted({0, *(min(cut, len(rows)) for cut in cuts), len(rows)})
    slices = [whole.slice(start, end - start) for start, end in pairwise(edges)]
    found = unpacked(packer(batch_messages=batch_messages).packed(slices))

    for topic, count in PARTITIONS.items():
        partitioner = Partitioner(count)
        mine = [row for row in rows if row["topic"] == topic]
        keyed: dict[int, list[Message]] = defaultdict(list)
        for row in mine:
            if row["key"] is not None:
                keyed[partitioner.of_key(row["key"])].append(message(row))
        got = {partition: found.get((topic, partition), []) for partition in range(count)}
        assert {at: [one for one in each if one[1] is not None] for at, each in got.items() if each} == {
            at: keyed.get(at, []) for at, each in got.items() if each
        }
        everything = [one for each in got.values() for one in each]
        assert sorted(everything, key=repr) == sorted(map(message, mine), key=repr)


def test_rows_without_a_key_take_turns_by_batches_and_tasks_begin_at_different_ones() -> None:
    rows = [{"payload": b"%d" % number} for number in range(40)]
    topic = "/default/three"
    halves = [arrow(rows[:15]), arrow(rows[15:])]
    found = unpacked(packer(topic, first_turn=1, batch_messages=10).packed(halves))
    taken = [[int(payload) for payload, *_ in found[topic, partition]] for partition in (1, 2, 0)]
    assert taken == [[*range(10), *range(30, 40)], list(range(10, 20)), list(range(20, 30))]


def test_round_robin_does_not_look_at_keys() -> None:
    rows = [{"payload": b"", "key": "the same"} for _ in range(30)]
    found = unpacked(packer("/default/three", partition_by="round-robin", batch_messages=10).packed([arrow(rows)]))
    assert {partition: len(each) for (_, partition), each in found.items()} == {0: 10, 1: 10, 2: 10}


def test_one_partition_can_be_chosen_for_all_rows() -> None:
    rows = arrow([{"payload": b"", "key": str(number)} for number in range(30)])
    assert list(unpacked(packer("/default/three", partition_by=2).packed([rows]))) == [("/default/three", 2)]
    with pytest.raises(Invalid, match="partitionBy=3: the topic has 3 partitions, counted from 0"):
        list(packer("/default/three", partition_by=3).packed([rows]))


def test_batches_stay_within_their_bytes_and_messages() -> None:
    rows = [{"payload": bytes(number % 7 * 300)} for number in range(2000)] + [{"payload": b"x"}] * 1000
    batches = [
        Batch.open(packed.batch)
        for packed in packer("/default/one", batch_bytes=50_000, batch_messages=100).packed([arrow(rows)])
    ]
    assert max(batch.count for batch in batches) == 100
    assert max(sum(map(len, batch.payloads)) for batch in batches) <= 50_000 + 1800
    assert [payload for batch in batches for payload in batch.payloads] == [row["payload"] for row in rows]


def test_a_row_larger_than_a_batch_has_one_of_its_own() -> None:
    rows = [{"payload": bytes(size)} for size in (1, 10 * MIB, 9 * MIB, 10 * MIB, 1)]
    sizes = [Batch.open(packed.batch).count for packed in packer("/default/one").packed([arrow(rows)])]
    assert sizes == [1, 1, 1, 1, 1]


def test_rounds_end_before_they_are_too_large() -> None:
    block = arrow([{"payload": bytes(MIB), "key": str(number)} for number in range(5)])
    taken = 0

    def blocks() -> Iterator[Any]:
        nonlocal taken
        for _ in range(8):
            taken += 1
            yield block

    packed = packer("/default/three").packed(blocks())
    next(packed)
    assert taken == ROUND_BYTES // block.nbytes + 1
    assert sum(Batch.open(one.batch).count for one in packed) == 39


def test_text_is_a_payload_and_large_columns_are_as_good_as_small_ones() -> None:
    rows = [{"payload": "grün", "key": "k"}, {"payload": "", "key": None}]
    for types in (
        {"payload": pa.string(), "key": pa.string()},
        {"payload": pa.large_string(), "key": pa.large_string()},
        {"payload": pa.large_binary(), "key": pa.large_string()},
    ):
        found = unpacked(packer("/default/one").packed([arrow(rows, types)]))
        assert found["/default/one", 0] == [("grün".encode(), "k", (), NOW), (b"", None, (), NOW)]


def test_bytes_behind_a_null_are_left_out() -> None:
    """Arrow allows any bytes in a null row."""
    keys = pa.Array.from_buffers(
        pa.string(), 3, [pa.py_buffer(b"\x05"), pa.array([0, 1, 3, 4], pa.int32()).buffers()[1], pa.py_buffer(b"axxb")]
    )
    pairs = pa.array([("a", "1"), ("x", "2"), ("b", "3")], pa.struct([MAP.key_field, MAP.item_field]))
    lists = pa.array([0, 1, 2, 3], pa.int32()).buffers()[1]
    maps = pa.Array.from_buffers(MAP, 3, [pa.py_buffer(b"\x05"), lists], children=[pairs])
    rows = pa.RecordBatch.from_arrays([pa.array([b"1", b"2", b"3"]), keys, maps], ["payload", "key", "attributes"])
    found = unpacked(packer("/default/one").packed([rows]))
    assert found["/default/one", 0] == [
        (b"1", "a", (("a", "1"),), NOW),
        (b"2", None, (), NOW),
        (b"3", "b", (("b", "3"),), NOW),
    ]


def test_the_producer_and_the_codec_are_those_that_were_asked_for() -> None:
    rows = arrow([{"payload": b"abc" * 100}] * 100)
    (packed,) = packer("/default/one", producer="spark", codec=Codec.ZSTD).packed([rows])
    batch = Batch.open(packed.batch)
    assert (batch.producer_name, batch.header.codec, batch.header.first_sequence) == ("spark", Codec.ZSTD, -1)


def test_the_option_topic_counts_more_than_the_column() -> None:
    rows = arrow([{"payload": b"", "topic": "/default/three"}, {"payload": b"", "topic": None}])
    assert list(unpacked(packer("/default/one").packed([rows]))) == [("/default/one", 0)]


GOOD: Row = {"payload": b"", "topic": "/default/one", "key": None, "attributes": None}


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({"payload": None}, "column payload is null in 1 of 3 rows: leave those rows out .* or .* coalesce"),
        ({"topic": None}, "column topic is null in 1 of 3 rows: .* or name one topic for all with the option 'topic'"),
        ({"topic": "orders"}, "column topic: .*orders"),
        ({"attributes": [("a", None)]}, "column attributes has a null value: use map_filter"),
        ({"payload": bytes(MESSAGE_BYTES_MAX + 1)}, f"payload of .* bytes is over the limit of {MESSAGE_BYTES_MAX}"),
    ],
)
def test_rows_that_are_no_messages_are_refused_with_their_column_and_the_fix(bad: Row, reason: str) -> None:
    with pytest.raises(Invalid, match=reason):
        list(packer().packed([arrow([GOOD, GOOD, GOOD | bad])]))


def test_keys_that_are_not_text_are_refused() -> None:
    keys = pa.array([b"\xff"]).view(pa.string())
    rows = pa.RecordBatch.from_arrays([pa.array([b""]), keys], ["payload", "key"])
    with pytest.raises(Invalid, match=r"key .* is not UTF-8"):
        list(packer("/default/one").packed([rows]))


def test_a_column_of_too_many_topics_is_refused() -> None:
    rows = arrow([{"payload": b"", "topic": f"/default/t{number}"} for number in range(TOPICS_MAX + 1)])
    with pytest.raises(Invalid, match=f"column topic names more than {TOPICS_MAX} topics in one task"):
        list(packer(partitions_of=lambda _: 1).packed([rows]))


def test_a_topic_is_asked_for_its_partitions_once() -> None:
    asked: list[str] = []

    def partitions_of(topic: str) -> int:
        asked.append(topic)
        return 3

    rows = arrow([{"payload": b"", "topic": "/default/a"}, {"payload": b"", "topic": "/default/b"}])
    list(packer(partitions_of=partitions_of).packed([rows, rows]))
    assert asked == ["/default/a", "/default/b"]


def test_no_rows_make_no_batches() -> None:
    assert list(packer().packed([])) == []
    assert list(packer().packed([arrow([])])) == []


@pytest.mark.parametrize("by", ["key", "round-robin"])
def test_rows_go_to_the_partition_they_name_and_the_others_as_before(by: str) -> None:
    rows = [
        {"payload": b"%d" % one, "key": f"k{one % 5}", "topic": "/default/three", "partition": named}
        for one, named in enumerate([0, 2, None, 1, 2, None, 2, 0, None, 1])
    ]
    found = unpacked(packer(partition_by=by).packed(iter([arrow(rows)])))
    without = [{name: value for name, value in row.items() if name != "partition"} for row in rows]
    unnamed = unpacked(packer(partition_by=by).packed(iter([arrow(without)])))
    for partition in range(3):
        payloads = [one[0] for one in found.get(("/default/three", partition), [])]
        named = [row["payload"] for row in rows if row["partition"] == partition]
        assert [one for one in payloads if one in named] == named, "in order"
        if by == "key":
            free = {row["payload"] for row in rows if row["partition"] is None}
            of_key = [one[0] for one in unnamed.get(("/default/three", partition), []) if one[0] in free]
            assert [one for one in payloads if one not in named] == of_key
    assert sum(len(each) for each in found.values()) == len(rows)


@pytest.mark.parametrize(
    ("named", "told"), [(3, "/default/three has partitions 0 to 2"), (-1, "column partition is -1")]
)
def test_a_partition_that_does_not_exist_is_refused(named: int, told: str) -> None:
    rows = [
        {"payload": b"x", "topic": "/default/many", "partition": 3},
        {"payload": b"x", "topic": "/default/three", "partition": named},
    ]
    with pytest.raises(Invalid, match=told):
        list(packer().packed(iter([arrow(rows)])))


def test_rows_that_name_partitions_need_a_partitioned_topic() -> None:
    rows = [{"payload": b"x", "topic": "/default/one", "partition": 1}]
    told = "column partition is 1, and /default/one has one partition only: create a topic with more"
    with pytest.raises(Invalid, match=told):
        list(packer().packed(iter([arrow(rows)])))
