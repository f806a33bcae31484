"""Several stored batches that follow each other, as one."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from batch_samples import NOW, Sample, assert_holds, forge, loaded, samples
from hypothesis import given
from hypothesis import strategies as st

from pydanube.codec.batch import Batch, Codec, encode
from pydanube.codec.batch.gather import gather_rows
from pydanube.codec.batch.join import can_follow, joined
from pydanube.model.errors import Corrupt


def stored(encoded: bytearray, base: int, append_time: int = NOW, epoch: int = 4) -> Batch:
    batch = Batch.open(encoded)
    batch.stamp(base, append_time, epoch)
    return batch


def parts_of(sample: Sample, cuts: list[int]) -> list[Sample]:
    bounds = [0, *sorted(set(cuts)), len(sample.payloads)]
    return [sample.rows(list(range(start, end))) for start, end in pairwise(bounds)]


@given(samples(codecs=(Codec.NONE,)), st.data())
def test_batches_joined_hold_the_rows_of_all_at_their_offsets_and_times(sample: Sample, data: st.DataObject) -> None:
    count = len(sample.payloads)
    cuts = data.draw(st.lists(st.integers(1, max(1, count - 1)), max_size=4)) if count > 1 else []
    batches: list[Batch] = []
    times: list[int] = []
    for part in parts_of(sample, cuts):
        batches.append(stored(part.encode(), 500 + len(times), NOW + len(times)))
        times += [NOW + len(times)] * len(part.payloads)
    stretch = [batches[0]]
    for batch in batches[1:]:
        if not can_follow(stretch[-1], batch):  # one of them has no key, say
            break
        stretch.append(batch)
    rows = sum(batch.count for batch in stretch)
    whole = Batch.open(joined(stretch).view, stamped=True)
    assert_holds(whole, sample.rows(list(range(rows))))
    assert whole.offsets.tolist() == list(range(500, 500 + rows))
    assert whole.append_times.tolist() == times[:rows]
    chosen = data.draw(st.lists(st.integers(0, rows - 1), min_size=1, unique=True).map(sorted))
    part = Batch.open(gather_rows(whole, whole.offset_deltas[chosen].astype("int64")), stamped=True)
    assert_holds(part, sample.rows(chosen))
    assert part.offsets.tolist() == [500 + row for row in chosen]
    assert part.append_times.tolist() == [times[row] for row in chosen]
    assert [message.append_time.timestamp() for message in part.messages()] == [times[row] / 1e6 for row in chosen]


def test_batches_joined_say_where_they_come_from() -> None:
    first, second = stored(loaded(5), 10, NOW), stored(loaded(5), 15, NOW + 1)
    header = joined([first, second]).header
    assert header.derived
    assert not header.publishable
    assert (header.base_offset, header.append_time, header.owner_epoch) == (10, NOW, 4)
    assert (header.count, header.span, header.end_offset) == (10, 10, 20)
    assert (header.producer_id, header.producer_epoch, header.schema_id, header.schema_version) == (7, 2, 3, 1)
    assert header.first_sequence == -1, "the second one does not go on where the first one ends"


def test_sequences_that_go_on_are_kept() -> None:
    batches = [stored(encode([b"a"] * 3, publish_times=1, first_sequence=7 + 3 * n), 3 * n) for n in range(3)]
    assert joined(batches).header.first_sequence == 7


SAMPLE = Sample(
    [b"a", b"b"],
    ["k", "l"],
    [{}, {}],
    [NOW, NOW],
    [0, 0],
    {"producer_name": "p", "producer_id": 1, "producer_epoch": 1, "schema_id": 1, "schema_version": 1},
)


@pytest.mark.parametrize(
    "change",
    [
        {"keys": ["k", None]},
        {"attributes": [{}, {"a": "b"}]},
        {"deliver_at": [0, NOW]},
        *({"rest": SAMPLE.rest | {name: 2}} for name in ("producer_id", "producer_epoch", "schema_id")),
        {"rest": SAMPLE.rest | {"schema_version": 2}},
        {"rest": SAMPLE.rest | {"producer_name": "q"}},
        {"rest": SAMPLE.rest | {"codec": Codec.ZSTD}, "payloads": [b"a" * 1000, b"b" * 1000]},
    ],
)
def test_batches_that_differ_in_more_than_their_rows_are_not_joined(change: dict[str, object]) -> None:
    first, other = stored(SAMPLE.encode(), 0), stored(replace(SAMPLE, **change).encode(), 2)
    assert can_follow(first, stored(SAMPLE.encode(), 2))
    assert not can_follow(first, other)


@pytest.mark.parametrize(("base", "time", "epoch"), [(3, NOW, 4), (0, NOW, 4), (2, NOW - 1, 4), (2, NOW, 5)])
def test_batches_that_are_no_neighbours_are_not_joined(base: int, time: int, epoch: int) -> None:
    assert not can_follow(stored(SAMPLE.encode(), 0), stored(SAMPLE.encode(), base, time, epoch))


@pytest.mark.parametrize("times", [(-1, NOW, NOW, NOW), (NOW, NOW - 1, NOW, NOW), (NOW, NOW, NOW, 2**62)])
def test_append_times_that_fall_or_cannot_be_are_refused(times: tuple[int, ...]) -> None:
    whole = joined([stored(SAMPLE.encode(), 0), stored(SAMPLE.encode(), 2)])
    with pytest.raises(Corrupt, match="append times"):
        Batch.open(forge(whole.view, whole.place.append_times, "4q", *times), stamped=True)
