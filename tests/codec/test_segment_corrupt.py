"""Damaged and forged segments: Corrupt under the object's name, never another error and never a wrong batch."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from batch_samples import NOW, forge, loaded
from hypothesis import example, given
from hypothesis import strategies as st
from segment_samples import SectionSample, built, footer_of, one, plain, read_whole, sealed, stored

from pydanube.codec.batch import Batch, Codec, stamp
from pydanube.codec.segment import Trailer, check_header, decode_footer, read_trailer, split
from pydanube.model.errors import Corrupt
from pydanube.model.ledgers import ProducerEntry

NAME = "segments/a/b.seg"


def sample(count: int = 6) -> bytes:
    """Two sections, several blocks, every kind of column."""
    full = loaded(3, Codec.LZ4)
    stamp(full, 40, NOW, 3)
    producers = [ProducerEntry(7, 2, 103, NOW, [(100, 40, 3)])]
    return built(
        [SectionSample((7, 0, 31, 3), plain(count, rows=2)), SectionSample((8, 1, 32, 3), [full], producers)], 400
    )


def parts(content: bytes) -> list[Any]:
    """The footer, as it is written."""
    trailer = read_trailer(content[-64:], len(content))
    return list(msgspec.msgpack.decode(content[trailer.footer_start : trailer.footer_end]))


def read_in_blocks(content: bytes) -> list[bytes]:
    """As a reader does it, who does not look at the whole object."""
    view = memoryview(content)
    return [
        bytes(batch)
        for section in footer_of(content, NAME).sections
        for block in section.blocks()
        for batch in section.split(view[block.start : block.end], block.start, NAME)
    ]


# -- any bytes --------------------------------------------------------------------------------------------------------


@given(content=st.binary(max_size=300))
@example(content=b"")
def test_any_bytes_are_corrupt_under_their_name(content: bytes) -> None:
    with pytest.raises(Corrupt, match=NAME):
        check_header(content, NAME)
    with pytest.raises(Corrupt, match=NAME):
        read_trailer(content, len(content), NAME)
    if content:
        with pytest.raises(Corrupt, match=NAME):
            split(memoryview(content), 0, None, NAME)


@given(footer=st.one_of(st.binary(min_size=1, max_size=200), st.recursive(
    st.one_of(st.integers(-(2**63), 2**64 - 1), st.text(max_size=3), st.none(), st.floats(), st.binary(max_size=3)),
    lambda inner: st.lists(inner, max_size=20), max_leaves=40,
).map(lambda value: msgspec.msgpack.encode([1, "w", 0, value]))))  # fmt: skip
@example(footer=b"\xdd\xff\xff\xff\xff")
@example(footer=b"\x94\x01\xa0\x00\xdd\xff\xff\xff\xff\xdc\xff\xff")
@example(footer=b"\x91" * 100_000)
def test_any_footer_with_a_right_checksum_is_corrupt(footer: bytes) -> None:
    with pytest.raises(Corrupt, match="object"):
        footer_of(sealed(one(plain(1)), footer))


@given(data=st.data())
def test_any_number_in_a_footer_is_read_or_refused(data: st.DataObject) -> None:
    """With right checksums: what is then read has batches in their places, or the rest does not fit."""
    content = sample()
    footer = parts(content)
    section = data.draw(st.sampled_from(footer[3]))
    column = data.draw(st.integers(0, len(section) - 1))
    section[column] = data.draw(
        st.one_of(st.integers(-(2**63), 2**64 - 1), st.integers(-70, 2000), st.lists(st.integers(0, 5), max_size=3))
    )
    forged = sealed(content, msgspec.msgpack.encode(footer))
    try:
        found = read_in_blocks(forged)
    except Corrupt:
        return
    assert found == read_in_blocks(content)


# -- bit flips --------------------------------------------------------------------------------------------------------


def test_a_flipped_bit_is_found_wherever_it_is() -> None:
    """Every bit of a small object: checked whole, all of them are found, but for those between footer and trailer."""
    content = bytearray(sample(2))
    good = bytes(content)
    trailer = read_trailer(good[-64:], len(good))
    unchecked = range(trailer.footer_end, len(good) - 64)
    for place in range(len(content)):
        for bit in (1, 16, 128):
            content[place] ^= bit
            if place in unchecked:
                assert read_in_blocks(bytes(content)) == read_in_blocks(good)
            else:
                with pytest.raises(Corrupt, match="object"):
                    read_whole(content)
            content[place] ^= bit


def test_a_reader_of_blocks_never_gets_a_wrong_batch() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    good = sample()
    expected = read_in_blocks(good)
    for _ in range(2000):
        content = bytearray(good)
        for _ in range(chance.randint(1, 4)):
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        try:
            found = read_in_blocks(bytes(content))
        except Corrupt:
            continue
        assert found == expected, "only what nobody reads was hit"


@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 128, 500])
def test_an_object_that_was_cut_short_or_grew_is_named(length: int) -> None:
    good = sample()
    for content in (good[:length], good[:-length] if length else b"", good + bytes(length or 1)):
        with pytest.raises(Corrupt, match=NAME):
            footer_of(content, NAME)


# -- what the error says ----------------------------------------------------------------------------------------------


def test_a_later_version_and_unknown_flags_are_refused_by_name() -> None:
    content = sample()
    for at, value, told in ((32, 2, "segment version 2 is unknown"), (34, 1, "flags 0x0001 are unknown")):
        end = bytearray(content[-64:])
        end[at] = value
        with pytest.raises(Corrupt, match=told):
            read_trailer(with_checksum(end), len(content), NAME)
    for at, value, told in ((4, 2, "segment version 2 is unknown"), (6, 1, "flags 0x0001"), (20, 1, "unused bytes")):
        head = bytearray(content[:64])
        head[at] = value
        with pytest.raises(Corrupt, match=told):
            check_header(with_checksum(head), NAME)


def with_checksum(end: bytearray) -> bytes:
    from crc32c import crc32c

    end[60:] = crc32c(bytes(end[:60])).to_bytes(4, "little")
    return bytes(end)


def test_a_later_format_of_the_footer_is_refused_by_name() -> None:
    with pytest.raises(Corrupt, match="footer format 2 is unknown"):
        footer_of(sealed(sample(), msgspec.msgpack.encode([2, {"other": "shape"}])))


def test_fields_that_a_later_release_appends_are_left_alone() -> None:
    content = sample()
    footer = parts(content)
    footer.append("more")
    for section in footer[3]:
        section.append([1, 2])
    grown = sealed(content, msgspec.msgpack.encode(footer))
    assert footer_of(grown) == footer_of(content)
    assert read_in_blocks(grown) == read_in_blocks(content)


LIES = {
    "overlap": (6, 128), "offsets": (5, 0), "bytes": (8, 10_000), "counts": (9, 1), "append times": (10, -1),
    "publish times": (12, 2**62), "schemas": (14, []), "ids": (1, -1), "index": (16, [[0, NOW, 128]]),
    "index is empty": (16, []), "index falls": (16, [[0, NOW, 64], [0, NOW, 384]]),
    "index leaves": (16, [[0, NOW, 64], [4, NOW, 1 << 20]]), "end": (7, 1 << 40),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_a_footer_that_contradicts_itself_is_refused(lie: str) -> None:
    column, value = LIES[lie]
    content = sample()
    footer = parts(content)
    footer[3][0][column] = value
    with pytest.raises(Corrupt, match=r"object: section 0"):
        footer_of(sealed(content, msgspec.msgpack.encode(footer)))


def test_a_section_too_few_or_too_many_is_refused() -> None:
    content = sample()
    footer = parts(content)
    with pytest.raises(Corrupt, match="footer has 1 sections and the trailer 2"):
        footer_of(sealed(content, msgspec.msgpack.encode([*footer[:3], footer[3][:1]])))
    fewer = Trailer(64, 10, 0, 1, 256, NAME)
    with pytest.raises(Corrupt, match=f"{NAME}: footer of 10 bytes comes in 3"):
        decode_footer(b"abc", fewer)


# -- blocks -----------------------------------------------------------------------------------------------------------


def block_of(*batches: bytearray) -> memoryview:
    return memoryview(b"".join(bytes(batch) + bytes(-len(batch) % 64) for batch in batches))


def test_batches_that_do_not_follow_each_other_are_refused() -> None:
    first, second, third = (stored([b"x", b"y"], offset) for offset in (10, 12, 14))
    assert split(block_of(first, second), 10, 14, NAME) == [first, second]
    with pytest.raises(Corrupt, match=f"{NAME}: batch of offset 12 at byte 1192: a batch of offset 14 is in its place"):
        split(block_of(first, third), 10, 16, NAME, 1000)
    with pytest.raises(Corrupt, match=r"batch of offset 12 .* a batch of offset 10"):
        split(block_of(first, first), 10, 14, NAME)
    with pytest.raises(Corrupt, match=r"batch of offset 9 .* a batch of offset 10"):
        split(block_of(first), 9, None, NAME)
    with pytest.raises(Corrupt, match="end at offset 12 and should at 14"):
        split(block_of(first), 10, 14, NAME)
    with pytest.raises(Corrupt, match="end at offset 14 and should at 12"):
        split(block_of(first, second), 10, 12, NAME)


def test_what_is_cut_short_is_told() -> None:
    batch = stored([bytes(520)], 10)
    block = block_of(batch)
    for length in (1, 64, 127):
        with pytest.raises(Corrupt, match=f"header is cut short at {length} bytes"):
            split(block[:length], 10, None, NAME)
    with pytest.raises(Corrupt, match="is cut short at 600"):
        split(block[:600], 10, None, NAME)
    with pytest.raises(Corrupt, match="inside the room of a batch"):
        split(block[: len(batch)], 10, 11, NAME)


def test_batches_that_are_never_stored_are_refused() -> None:
    whole = Batch.trust(stored([b"a", b"b"], 10))
    derived = bytearray(whole.select([True, False]).view)
    with pytest.raises(Corrupt, match="a copy of some rows, which is never stored"):
        split(block_of(derived), 10, None, NAME)
    future = forge(stored([b"a"], 10), 4, "B", 9)
    with pytest.raises(Corrupt, match="batch format version 9 is unknown"):
        split(block_of(future), 10, None, NAME)
    unstamped = stored([b"a"], 10)
    unstamped[104:] = bytes(24) + unstamped[128:]
    with pytest.raises(Corrupt, match="stamp"):
        split(block_of(unstamped), 0, None, NAME)


def test_less_than_was_asked_for_is_refused() -> None:
    """As a store answers whose object is shorter than its catalog entry says."""
    content = memoryview(sample())
    section = footer_of(bytes(content)).sections[0]
    first, second, *_ = section.blocks()
    for end in (first.start, first.start + 64, first.end - 64, second.end - 1):
        with pytest.raises(Corrupt, match=f"{NAME}: read {end - first.start} bytes at 64"):
            section.split(content[first.start : end], first.start, NAME)
    assert len(section.split(content[first.start : second.end], first.start, NAME)) >= 2
