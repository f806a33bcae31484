"""Stages: the bytes they had, back as they were, and Corrupt under their name where they are not."""

from __future__ import annotations

import random
import struct
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from batch_samples import NOW, loaded
from crc32c import crc32c
from hypothesis import example, given
from hypothesis import strategies as st
from stage_samples import NAME, TOPICS, built, index_of, read_whole

from pydanube.codec import stage
from pydanube.codec.batch import Batch, Codec, encode, encode_rows_from, read_header, with_producer
from pydanube.codec.stage import StageSection
from pydanube.model.errors import Corrupt, Invalid

GOLDEN = bytes.fromhex(
    "44535447 01 00 0000 e8431e18240a0600"  # magic, version, zero, flags, created at
    "0002000000000000 3e000000 6b6f9207 02000000"  # 512 bytes in all, index of 62, its checksum, 2 sections
    + "00" * 24
    + "db659613"  # checksum of the header
    "93 01 92 92 12 af2f64656661756c742f6f7264657273 92 13 b02f64656661756c742f6c657474657273"  # format, topics
    "92 96 00 00 cc80 cd0140 01 02"  # topic 18, partition 0, bytes 128 to 320, one batch, two messages
    "96 01 04 cd0140 cd0200 01 01 0000"  # topic 19, partition 4, bytes 320 to 512; and zeros to 64
    "44424154 01 00 0000 00000000 02000000 02000000 20000000 20000000 00000000"
    "0000000000000000 ffffffffffffffff 00000000 00000000 0000000000000000"  # no sequence
    "00401e18240a0600 00401e18240a0600 0000000000000000 0000 000000000000 85ff3090 387cd06c"
    + "00" * 24  # no stamp
    + "00000000 05000000 0b000000 00000000 68656c6c6f 64616e756265 0000000000" + "00" * 32 +
    "44424154 01 00 0000 00000000 01000000 01000000 10000000 10000000 00000000"
    "0000000000000000 ffffffffffffffff 00000000 01000000 0300000000000000"
    "01401e18240a0600 01401e18240a0600 0000000000000000 0000 000000000000 9b5e3e49 023a03ee"
    + "00" * 24
    + "00000000 05000000 616761696e 000000" + "00" * 48
)  # fmt: skip


def batches() -> list[bytearray]:
    first = encode([b"hello", b"danube"], publish_times=NOW)
    second = encode([b"again"], publish_times=NOW + 1, schema_id=3, schema_version=1)
    return [first, second]


def sample() -> bytes:
    """Two topics, several batches, every kind of column."""
    rows = [encode([b"%d" % n, b"x" * n], publish_times=NOW) for n in range(5)]
    return built([(0, 0, rows, 10), (1, 0, [loaded(3, Codec.LZ4), loaded(2, Codec.NONE)], 5), (0, 7, rows[:1], 2)])


def test_a_stage_has_the_bytes_it_had() -> None:
    first, second = batches()
    assert built([(0, 0, [first], 2), (1, 4, [second], 1)], NOW + 1000).hex() == GOLDEN.hex()


def test_a_stage_is_read_as_it_was() -> None:
    first, second = batches()
    assert index_of(GOLDEN).topics == TOPICS
    assert read_whole(GOLDEN) == [(18, 0, [bytes(first)]), (19, 4, [bytes(second)])]


@given(
    st.dictionaries(
        st.tuples(st.integers(0, 1), st.integers(0, 9_999)),
        st.lists(st.lists(st.binary(max_size=300), min_size=1, max_size=20), min_size=1, max_size=5),
        min_size=1,
        max_size=8,
    )
)
def test_whatever_is_staged_comes_back_in_order(parts: dict[tuple[int, int], list[list[bytes]]]) -> None:
    encoded = {key: [encode(rows, publish_times=NOW) for rows in lists] for key, lists in parts.items()}
    content = built([(*key, ones, sum(map(len, parts[key]))) for key, ones in encoded.items()])
    assert len(content) % 64 == 0
    found = read_whole(content)
    assert [(TOPICS[topic][0], partition) for topic, partition in encoded] == [one[:2] for one in found]
    assert [[bytes(one) for one in ones] for ones in encoded.values()] == [one[2] for one in found]


@pytest.mark.parametrize("sections", [1, 2, 3, 30, 300, 4_000])
def test_an_index_of_any_length_says_where_its_sections_are(sections: int) -> None:
    batch = encode([b"1"], publish_times=NOW)
    content = built([(0, partition, [batch], 1) for partition in range(sections)])
    assert len(read_whole(content)) == sections


# -- any bytes --------------------------------------------------------------------------------------------------------


@given(content=st.binary(max_size=300))
@example(content=b"")
@example(content=GOLDEN[:64])
@example(content=GOLDEN[:-64])
def test_any_bytes_are_corrupt_under_their_name(content: bytes) -> None:
    with pytest.raises(Corrupt, match=NAME):
        read_whole(content)


def test_no_flipped_bit_passes_for_something_else() -> None:
    content, whole = sample(), read_whole(sample())
    chance = random.Random(5)
    places = [*range(64 * 8), *(chance.randrange(len(content) * 8) for _ in range(2_000))]
    for place in places:
        damaged = bytearray(content)
        damaged[place // 8] ^= 1 << place % 8
        with suppress(Corrupt):
            found = read_whole(bytes(damaged))
            changed = [a for old, new in zip(whole, found, strict=True) for a in zip(old[2], new[2], strict=True)]
            # The stamp is not a stage's business, nor are the zeros behind a batch.
            assert all(old[:104] == new[:104] and old[128:] == new[128:] for old, new in changed), place


@pytest.mark.parametrize("length", [*range(0, 700, 7)])
def test_a_stage_that_was_cut_short_is_corrupt(length: int) -> None:
    with pytest.raises(Corrupt, match=NAME):
        read_whole(sample()[:length])


# -- forged indexes ----------------------------------------------------------------------------------------------------


def forged(change: dict[int, Any], **fields: int) -> bytes:
    """The golden stage, whose second section is changed so, with checksums that are right."""
    index = msgspec.msgpack.decode(GOLDEN[64:126])
    for place, value in change.items():
        index[2][1][place] = value
    return sealed(index, **fields)


def sealed(index: Any, size: int | None = None, sections: int = 2) -> bytes:
    encoded = msgspec.msgpack.encode(index)
    room = bytes(-(64 + len(encoded)) % 64)
    whole = 64 + len(encoded) + len(room) + len(GOLDEN) - 128
    header = struct.pack(
        "<4sBBHqQIII24s", b"DSTG", 1, 0, 0, 1, size or whole, len(encoded), crc32c(encoded), sections, bytes(24)
    )
    return header + struct.pack("<I", crc32c(header)) + encoded + room + GOLDEN[128:]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({0: 2}, "unknown, or had one already"),
        ({0: -1}, "unknown, or had one already"),
        ({0: 0, 1: 0}, "unknown, or had one already"),
        ({1: -1}, "unknown, or had one already"),
        ({2: 384}, "not behind 320"),
        ({2: 0}, "not behind 320"),
        ({3: 576}, "not behind 320"),
        ({3: 2**62}, "not behind"),
        ({3: 511}, "not behind 320"),
        ({3: 448}, "cannot hold 1 batches"),
        ({3: 320}, "cannot hold 1 batches"),
        ({4: 0}, "cannot hold 0 batches"),
        ({4: 2, 5: 2}, "cannot hold 2 batches"),
        ({5: 0}, "cannot hold 1 batches of 0"),
        ({5: 7}, "hold 1 batches of 1 messages, not 1 of 7"),
        ({5: "x"}, "index cannot be read"),
    ],
)
def test_an_index_that_contradicts_itself_or_its_batches_is_corrupt(change: dict[int, Any], says: str) -> None:
    with pytest.raises(Corrupt, match=says):
        read_whole(forged(change))


@pytest.mark.parametrize(
    "index", [[], [2, [], []], [1], [1, [[0, "/a/b"]], [[0, 0, 128, 512, 1, 1]]], {"a": 1}, 7, [1, [], []]]
)
def test_an_index_that_is_none_is_corrupt(index: Any) -> None:
    with pytest.raises(Corrupt, match=NAME):
        read_whole(sealed(index, sections=1))


@pytest.mark.parametrize("size", [1, 64, 128, 448, 576, 2**40, 2**63])
def test_a_size_that_is_not_the_objects_is_corrupt(size: int) -> None:
    with pytest.raises(Corrupt, match=NAME):
        read_whole(forged({}, size=size))


def test_a_number_of_sections_that_is_not_the_indexs_is_corrupt() -> None:
    with pytest.raises(Corrupt, match="2 sections and the header 3"):
        read_whole(forged({}, sections=3))


def test_sections_without_room_for_their_batches_are_corrupt() -> None:
    section = StageSection(0, 0, 128, 320, 1, 2)
    with pytest.raises(Corrupt, match="cut short"):
        stage.split(memoryview(GOLDEN)[128:270], section, NAME)


# -- signatures ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4, Codec.ZSTD])
def test_a_batch_that_is_signed_anew_has_the_same_rows_and_right_checksums(codec: Codec) -> None:
    before = loaded(50, codec)
    after = with_producer(before, 1 << 63 | 7, 42, 1_000)
    batch, former = Batch.open(after), Batch.open(before)
    header = batch.header
    assert (header.producer_id, header.producer_epoch, header.first_sequence) == (1 << 63 | 7, 42, 1_000)
    assert after[128:] == before[128:]
    assert batch.payloads == former.payloads and batch.keys == former.keys and batch.attributes == former.attributes
    unsigned = {"producer_id", "producer_epoch", "first_sequence"}
    assert all(
        getattr(header, name) == getattr(former.header, name)
        for name in header.__struct_fields__
        if name not in unsigned
    )


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.integers(-1, 2**62))
def test_any_signature_is_read_as_it_was_written(producer_id: int, epoch: int, sequence: int) -> None:
    header = read_header(with_producer(batches()[0], producer_id, epoch, sequence))
    assert (header.producer_id, header.producer_epoch, header.first_sequence) == (producer_id, epoch, sequence)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4, Codec.ZSTD])
@pytest.mark.parametrize("row", [0, 1, 33, 49])
def test_the_rest_of_a_batch_is_a_batch_to_publish_with_the_rows_from_there_on(codec: Codec, row: int) -> None:
    former = Batch.open(loaded(50, codec))
    rest = Batch.open(encode_rows_from(former, row))
    assert rest.header.publishable and rest.header.first_sequence == -1 and rest.count == rest.span == 50 - row
    assert rest.payloads == former.payloads[row:]
    assert rest.keys == former.keys[row:] and rest.attributes == former.attributes[row:]
    assert rest.publish_times.tolist() == former.publish_times[row:].tolist()
    before, after = former.deliver_at, rest.deliver_at
    assert (after is None) == (before is None)
    assert before is None or after is None or after.tolist() == before[row:].tolist()
    for name in ("producer_name_length", "schema_id", "schema_version"):
        assert getattr(rest.header, name) == getattr(former.header, name)
    assert rest.producer_name == former.producer_name


def test_the_rest_of_a_batch_of_payloads_alone_has_no_other_columns() -> None:
    rest = Batch.open(encode_rows_from(Batch.open(batches()[0]), 1))
    assert rest.payloads == [b"danube"] and not rest.header.columns


@pytest.mark.parametrize("row", [-1, 2, 3])
def test_a_batch_has_no_rest_outside_its_rows(row: int) -> None:
    with pytest.raises(Invalid, match="not a part"):
        encode_rows_from(Batch.open(batches()[0]), row)
