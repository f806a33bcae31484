"""What goes into a segment comes out of it: the same batches, found by offset and by time."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from batch_samples import NOW, loaded
from hypothesis import given
from hypothesis import strategies as st
from segment_samples import (
    WRITER,
    SectionSample,
    built,
    footer_of,
    one,
    plain,
    read_whole,
    section_samples,
    stored,
)

from pydanube.codec.batch import Batch, Codec, stamp
from pydanube.codec.segment import (
    END_BYTES,
    SegmentBuilder,
    SegmentSection,
    check_header,
    decode_footer,
    read_trailer,
    split,
)
from pydanube.codec.segment.footer import BLOCK_BYTES
from pydanube.model.ledgers import ProducerEntry

BLOCKS = st.sampled_from([1, 200, 500, 5000, BLOCK_BYTES])


@given(sections=st.lists(section_samples(), min_size=1, max_size=4), block_bytes=BLOCKS)
def test_a_segment_gives_back_what_went_in(sections: list[SectionSample], block_bytes: int) -> None:
    content = built(sections, block_bytes)
    assert read_whole(content) == [section.batches for section in sections]
    footer = footer_of(content)
    assert (footer.writer, footer.created_at_us) == (WRITER, NOW)
    for found, sample in zip(footer.sections, sections, strict=True):
        batches = [Batch.trust(batch) for batch in sample.batches]
        headers = [batch.header for batch in batches]
        assert (found.topic_id, found.partition, found.ledger_id, found.owner_epoch) == sample.ids
        assert (found.first_offset, found.end_offset) == (batches[0].base_offset, batches[-1].end_offset)
        assert (found.batches, found.messages) == (len(batches), sum(map(len, batches)))
        assert (found.append_time_min, found.append_time_max) == (batches[0].append_time, batches[-1].append_time)
        assert found.publish_time_min == min(header.publish_time_min for header in headers)
        assert found.publish_time_max == max(header.publish_time_max for header in headers)
        assert found.schemas == sorted({(header.schema_id, header.schema_version) for header in headers})
        assert found.producers == sample.producers


@given(section=section_samples(), block_bytes=BLOCKS)
def test_blocks_split_one_by_one_as_they_do_together(section: SectionSample, block_bytes: int) -> None:
    content = memoryview(built([section], block_bytes))
    found = footer_of(bytes(content)).sections[0]
    batches: list[memoryview] = []
    for block in found.blocks():
        part = split(content[block.start : block.end], block.first_offset, block.end_offset)
        assert part == found.split(content[block.start : block.end], block.start)
        batches += part
    assert batches == section.batches
    assert all(batch.obj is content.obj for batch in batches), "nothing is copied"


@pytest.mark.parametrize("codec", list(Codec))
def test_batches_with_every_column_are_stored_as_they_are(codec: Codec) -> None:
    batch = loaded(80, codec)
    stamp(batch, 500, NOW, 3)
    [[found]] = read_whole(one([batch]))
    assert found == batch
    assert Batch.open(found, stamped=True).keys == Batch.trust(batch).keys


def test_a_batch_whose_rows_were_left_out_keeps_its_span() -> None:
    """A section has no gap where rows were compacted away: their batch still takes their offsets."""
    from pydanube.codec.batch.header import write_header

    whole = Batch.trust(stored([b"a", b"b", b"c"], 10))
    kept = bytearray(whole.select([True, False, True]).view)
    header = Batch.trust(kept).header
    header.flags = 0
    write_header(kept, header)
    stamp(kept, 10, NOW, 3)
    found = footer_of(content := one([kept, stored([b"d"], 13)])).sections[0]
    assert (found.first_offset, found.end_offset, found.messages) == (10, 14, 3)
    assert len(read_whole(content)[0]) == 2


# -- finding ----------------------------------------------------------------------------------------------------------


def naive(
    section: SegmentSection, batches: list[memoryview], wanted: Callable[[Batch], bool]
) -> tuple[int, Batch] | None:
    """The first batch that is wanted, and the byte at which it begins."""
    place = section.start
    for view in batches:
        batch = Batch.trust(view)
        if wanted(batch):
            return place, batch
        place += (len(view) + 63) // 64 * 64
    return None


@given(
    sizes=st.lists(st.integers(0, 900), min_size=1, max_size=25),
    gaps_us=st.lists(st.sampled_from([0, 0, 1, 7]), min_size=25, max_size=25),
    block_bytes=BLOCKS,
)
def test_offsets_and_times_are_found_as_by_looking_at_every_batch(
    sizes: list[int], gaps_us: list[int], block_bytes: int
) -> None:
    batches, append_time = [], NOW
    for number, size in enumerate(sizes):
        append_time += gaps_us[number]
        batches.append(stored([bytes(size), b""], 100 + 2 * number, append_time))
    content = one(batches, block_bytes)
    section = footer_of(content).sections[0]
    [views] = read_whole(content)
    for offset in range(section.first_offset, section.end_offset):
        found = naive(section, views, lambda batch, offset=offset: offset < batch.end_offset)
        assert found is not None
        [block] = section.blocks(offset, offset + 1)
        assert block.start <= found[0] < block.end
        assert [block] == [one for one in section.blocks() if one.first_offset <= offset < one.end_offset]
    for moment in range(NOW - 1, append_time + 2):
        start, end = section.block_at_time(moment)
        assert any(entry[2] == start for entry in section.index)
        found = naive(section, views, lambda batch, moment=moment: batch.append_time >= moment)
        if found is not None:
            assert start <= found[0] <= end, "in the block, or the first of the next"
        else:
            assert end == section.end


@given(first=st.integers(0, 60), length=st.integers(0, 60), block_bytes=BLOCKS)
def test_a_range_of_offsets_takes_just_the_blocks_it_touches(first: int, length: int, block_bytes: int) -> None:
    section = footer_of(one(plain(20, first_offset=10, rows=2), block_bytes)).sections[0]
    every = section.blocks()
    assert [block.start for block in every] == [entry[2] for entry in section.index]
    assert every[-1].end == section.end
    touched = [block for block in every if block.first_offset < first + length and first < block.end_offset]
    assert section.blocks(first, first + length) == (touched if length else [])


def test_a_block_begins_about_every_256_kib() -> None:
    section = footer_of(one(plain(120, size=10_000))).sections[0]
    lengths = [block.end - block.start for block in section.blocks()]
    assert len(lengths) == 5
    assert all(BLOCK_BYTES <= length < BLOCK_BYTES + 10_240 for length in lengths[:-1])


# -- the object -------------------------------------------------------------------------------------------------------


def test_the_footer_is_in_a_first_read_of_the_end() -> None:
    content = one(plain(2000, size=500))
    tail = content[-END_BYTES:]
    trailer = read_trailer(tail, len(content))
    footer = trailer.footer_in(tail)
    assert footer is not None
    assert decode_footer(footer, trailer) == footer_of(content)
    assert trailer.footer_in(content[-64:]) is None, "it has to be read"
    assert check_header(content) == NOW


def test_every_batch_begins_on_a_multiple_of_64() -> None:
    content = one([stored([bytes(n)], n) for n in range(130)])
    starts = [at for at in range(len(content)) if content.startswith(b"DBAT", at)]
    assert len(starts) == 130
    assert not any(start % 64 for start in starts)


def test_pieces_are_the_batches_themselves() -> None:
    batches = [memoryview(batch) for batch in plain(3)]
    builder = SegmentBuilder(WRITER, NOW)
    builder.begin(1, 2, 3, 4)
    for batch in batches:
        builder.add(batch)
    producers = [ProducerEntry(2**64 - 1, 1, 5, NOW, [(0, 0, 5)])]
    section = builder.end(producers)
    pieces, footer = builder.finish()
    assert [piece for piece in pieces if isinstance(piece, memoryview)] == batches
    assert all(any(piece is batch for piece in pieces) for batch in batches)
    assert footer.sections == [section]
    assert footer.start == section.end
    assert section.producers == producers


def test_the_size_is_known_while_it_grows() -> None:
    builder = SegmentBuilder(WRITER, NOW)
    estimates = []
    for number in range(20):
        builder.begin(number, 0, 1, 1)
        builder.add(memoryview(stored([bytes(1000)], 5)))
        builder.end([])
        estimates.append(builder.size)
    builder.finish()
    assert estimates == sorted(estimates)
    assert abs(builder.size - estimates[-1]) <= 128


@pytest.mark.parametrize(
    "offsets_and_times", [[(0, NOW), (2, NOW)], [(0, NOW), (0, NOW)], [(0, NOW), (1, NOW - 1)]], ids=str
)
def test_a_gap_a_repetition_and_time_that_goes_back_are_the_callers_mistakes(
    offsets_and_times: list[tuple[int, int]],
) -> None:
    with pytest.raises(AssertionError):
        one([stored([b"x"], offset, moment) for offset, moment in offsets_and_times])


def test_64_mib_are_built_and_split_at_the_speed_of_checksums() -> None:
    batches = [memoryview(batch) for batch in plain(1340, size=100, rows=480)]
    began = time.process_time()
    builder = SegmentBuilder(WRITER, NOW)
    builder.begin(1, 0, 1, 1)
    for batch in batches:
        builder.add(batch)
    builder.end([])
    pieces, footer = builder.finish()
    built_at = time.process_time()
    content = memoryview(b"".join(pieces))
    assert len(content) > 64 * 1024 * 1024
    joined_at = time.process_time()
    section = footer.sections[0]
    found = sum(len(section.split(content[block.start : block.end], block.start)) for block in section.blocks())
    split_at = time.process_time()
    assert found == len(batches)
    rates = [len(content) / seconds / 1e6 for seconds in (built_at - began, split_at - joined_at)]
    print(f"built at {rates[0]:.0f} MB/s, split at {rates[1]:.0f} MB/s")
    assert min(rates) > 100, "a fraction of what any machine does, and other load does not count"
