"""Bytes that are not a good batch are refused as Corrupt, by name, before anything in them is relied on.

The forged batches here have correct checksums: that is what a hostile producer sends.
"""

from __future__ import annotations

import struct
import tracemalloc
import zlib

import lz4.block
import pytest
import zstandard
from batch_samples import NOW, forge, loaded, seal
from crc32c import crc32c

from pydanube.codec.batch import HEADER_BYTES, Batch, Codec, encode, read_header, stamp
from pydanube.codec.batch.header import OFFSET_MAX, TIME_MAX, TIME_MIN
from pydanube.model.errors import Corrupt
from pydanube.model.limits import BATCH_BYTES_MAX, BATCH_MESSAGES_MAX, MESSAGE_BYTES_MAX

PLAIN = bytes(encode([b"hello", b"", b"danube"], publish_times=NOW))
LOADED = bytes(loaded())
PLACE = Batch.open(LOADED).place
DATA_START = PLACE.end


def test_the_good_ones_are_good() -> None:
    assert Batch.open(PLAIN).payloads == [b"hello", b"", b"danube"]
    assert Batch.open(LOADED).count == 5


@pytest.mark.parametrize("length", [0, 1, 4, 127])
def test_a_header_cut_short_is_refused(length: int) -> None:
    with pytest.raises(Corrupt, match=f"cut short at {length} bytes"):
        read_header(PLAIN[:length])


@pytest.mark.parametrize("change", [-1, 1, 64])
def test_a_batch_has_exactly_its_own_length(change: int) -> None:
    wrong = PLAIN[:change] if change < 0 else PLAIN + bytes(change)
    with pytest.raises(Corrupt, match=f"batch of {len(PLAIN)} bytes comes in {len(PLAIN) + change}"):
        Batch.open(wrong)


def test_every_flipped_bit_is_noticed() -> None:
    stamped = bytearray(LOADED)
    stamp(stamped, 10, NOW, 1)
    for position in range(len(stamped)):
        for bit in range(8):
            stamped[position] ^= 1 << bit
            with pytest.raises(Corrupt):
                Batch.open(stamped, stamped=True)
            stamped[position] ^= 1 << bit
    assert Batch.open(stamped, stamped=True).base_offset == 10


@pytest.mark.parametrize(
    ("position", "layout", "value", "reason"),
    [
        (0, "I", 0, "does not begin with b'DBAT'"),
        (4, "B", 2, "format version 2 is unknown"),
        (5, "B", 3, "codec 3 is unknown"),
        (6, "H", 2, "flag 1 is unknown"),
        (6, "H", 0x8001, "flag 15 is unknown"),
        (8, "I", 1 << 6, "append time column, and it is not derived"),
        (8, "I", 1 << 31 | 1 << 7, "column 7, 31 is unknown"),
        (8, "I", 2, "key validity column without keys"),
        (12, "I", 0, "batch of 0 messages"),
        (12, "I", BATCH_MESSAGES_MAX + 1, f"outside 1..{BATCH_MESSAGES_MAX}"),
        (12, "I", 2**32 - 1, "outside 1"),
        (16, "I", 2, "batch of 3 messages cannot span 2 offsets"),
        (16, "I", 4, "no offset column"),
        (6, "H", 1, "no offset column"),
        (20, "I", 2**32 - 1, "is over"),
        (20, "I", 48, "cannot hold"),
        (24, "I", 2**32 - 1, "is over"),
        (24, "I", 48, "cannot hold"),
        (28, "I", 1, "1 attribute entries and no attribute column"),
        (40, "q", -2, "first sequence -2"),
        (40, "q", OFFSET_MAX - 2, "first sequence"),
        (52, "I", 2**31, "version 2147483648 is out of range"),
        (56, "Q", 2**63, "schema 9223372036854775808"),
        (64, "q", TIME_MIN - 1, "publish times"),
        (64, "q", NOW + 1, "publish times"),
        (64, "q", NOW - 1, "publish times"),
        (72, "q", TIME_MAX + 1, "publish times"),
        (80, "q", 1, "latest deliver-at 1"),
        (80, "q", -1, "latest deliver-at -1"),
        (88, "H", 256, "producer name of 256 bytes"),
        (88, "H", 255, "cannot hold"),
        (90, "H", 1, "bytes 90 to 96"),
        (92, "I", 1, "bytes 90 to 96"),
    ],
)
def test_a_field_that_cannot_be_is_refused_by_name(position: int, layout: str, value: int, reason: str) -> None:
    with pytest.raises(Corrupt, match=reason):
        read_header(forge(PLAIN, position, layout, value)[:HEADER_BYTES])


@pytest.mark.parametrize(
    ("position", "layout", "value", "reason"),
    [
        (28, "I", 2**32 - 1, "cannot hold"),
        (64, "q", TIME_MIN - 1, "publish times"),
        (64, "q", NOW + 5, "publish times"),
        (72, "q", TIME_MAX + 1, "publish times"),
        (80, "q", TIME_MAX + 1, "latest deliver-at"),
    ],
)
def test_a_field_is_refused_although_its_column_is_there(position: int, layout: str, value: int, reason: str) -> None:
    with pytest.raises(Corrupt, match=reason):
        read_header(forge(LOADED, position, layout, value)[:HEADER_BYTES])


@pytest.mark.parametrize(("position", "name"), [(20, "stored"), (24, "plain")])
def test_a_compressed_body_is_larger_than_its_columns(position: int, name: str) -> None:
    packed = loaded(60, Codec.LZ4)
    fixed = Batch.open(packed).place.end - HEADER_BYTES
    assert read_header(forge(packed, position, "I", fixed + 1)[:HEADER_BYTES])
    with pytest.raises(Corrupt, match=f"cannot hold {fixed} of columns and data"):
        read_header(forge(packed, position, "I", fixed)[:HEADER_BYTES])


def test_a_batch_must_leave_room_for_its_offset_column() -> None:
    body = BATCH_BYTES_MAX - HEADER_BYTES
    forged = forge(forge(PLAIN, 20, "I", body), 24, "I", body)
    with pytest.raises(Corrupt, match=f"is over {body - 16}"):
        read_header(forged)
    forged = forge(forge(PLAIN, 20, "I", body - 16), 24, "I", body - 16)
    assert read_header(forged).batch_bytes == BATCH_BYTES_MAX - 16


@pytest.mark.parametrize(
    ("offsets", "reason"),
    [
        ((0, 2_000_000_000, 5, 11), "offsets of the batch do not start at 0 or fall"),
        ((0, 5, 2_000_000_000, 2_000_000_000), "is over the limit"),
        ((1, 5, 5, 11), "do not start at 0"),
        ((0, 5, 4, 11), "do not start at 0 or fall"),
        ((0, -1, 5, 11), "do not start at 0 or fall"),
        ((-1, 0, 5, 11), "do not start at 0"),
        ((0, 5, 5, 17), "account for 24 bytes of data, and it has 16"),
        ((0, 5, 5, 8), "account for 8 bytes of data, and it has 16"),
        ((0, 0, 0, -1), "fall"),
    ],
)
def test_offsets_that_point_elsewhere_are_refused(offsets: tuple[int, ...], reason: str) -> None:
    with pytest.raises(Corrupt, match=reason):
        Batch.open(forge(PLAIN, 128, "4i", *offsets))


@pytest.mark.parametrize(
    ("offsets", "reason"),
    [
        ((1, 5), "do not start at 0"),
        ((-1, 5), "do not start at 0"),
        ((0, -1), "do not start at 0 or fall"),
        ((0, -(2**31)), "do not start at 0 or fall"),
        ((0, 0), "account for 0 bytes of data, and it has 8"),
        ((0, 9), "account for 16 bytes of data, and it has 8"),
        ((0, 2_000_000_000), "is over the limit"),
    ],
)
def test_a_lone_row_is_refused_for_the_same_reasons(offsets: tuple[int, int], reason: str) -> None:
    with pytest.raises(Corrupt, match=reason):
        Batch.open(forge(encode([b"hello"], publish_times=NOW), 128, "2i", *offsets))


def test_a_lone_payload_over_the_limit_is_refused() -> None:
    good = encode([bytes(MESSAGE_BYTES_MAX - 8), bytes(16)], publish_times=NOW)
    lone = forge(forge(good, 12, "2I", 1, 1), 128, "2i", 0, MESSAGE_BYTES_MAX)
    header = read_header(lone)  # one row has shorter columns: what they leave goes to the data
    too_long = forge(lone, 128, "2i", 0, header.plain_length - 8)
    with pytest.raises(Corrupt, match=f"payload of {header.plain_length - 8} in the batch is over the limit"):
        Batch.open(too_long)


@pytest.mark.parametrize("row", [0, 1, 50, 99, 100])
def test_offsets_of_long_columns_are_checked_too(row: int) -> None:
    good = encode([b"ab"] * 100, publish_times=NOW)
    for wrong in (-1, 2_000_000_000, 2 * row - 3 if row else 1):
        with pytest.raises(Corrupt):
            Batch.open(forge(good, 128 + 4 * row, "i", wrong))


def test_a_payload_over_the_limit_is_refused() -> None:
    good = encode([bytes(MESSAGE_BYTES_MAX), bytes(8)], publish_times=NOW)
    with pytest.raises(Corrupt, match=f"payload of {MESSAGE_BYTES_MAX + 8} in the batch is over the limit"):
        Batch.open(forge(good, 128, "3i", 0, 0, MESSAGE_BYTES_MAX + 8))


@pytest.mark.parametrize("column", ["payload_offsets", "key_offsets", "attribute_lists", "attribute_keys"])
@pytest.mark.parametrize("value", [-1, 1, 2_000_000_000])
def test_every_offset_column_starts_at_0(column: str, value: int) -> None:
    with pytest.raises(Corrupt, match="do not start at 0 or fall"):
        Batch.open(forge(LOADED, getattr(PLACE, column), "i", value))


@pytest.mark.parametrize("column", ["payload_offsets", "key_offsets", "attribute_keys", "attribute_values"])
def test_the_columns_together_account_for_all_data(column: str) -> None:
    last = getattr(PLACE, column) + 4 * (4 if column.startswith("attribute") else 5)
    end = struct.unpack_from("<i", LOADED, last)[0]
    for wrong in (end + 8, end + 64):
        with pytest.raises(Corrupt, match="account for"):
            Batch.open(forge(LOADED, last, "i", wrong))


def test_attributes_listed_and_attributes_there_are_the_same() -> None:
    with pytest.raises(Corrupt, match="batch lists 3 attributes and holds 4"):
        Batch.open(forge(LOADED, PLACE.attribute_lists + 16, "2i", 3, 3))


def test_attributes_per_message_have_a_limit() -> None:
    good = encode([b"", b""], attributes=[{str(n): "" for n in range(1_000)}, {"x": ""}], publish_times=NOW)
    with pytest.raises(Corrupt, match="attribute list of 1001 in the batch is over the limit of 1000"):
        Batch.open(forge(good, Batch.open(good).place.attribute_lists, "3i", 0, 1_001, 1_001))


def test_a_row_without_a_key_has_no_key_bytes() -> None:
    with pytest.raises(Corrupt, match="a row without a key has key bytes"):
        Batch.open(forge(LOADED, PLACE.key_validity, "B", 0b11010))


@pytest.mark.parametrize(("row", "value"), [(0, 0), (2, 1), (4, 2**32 - 1)])
def test_a_wrong_key_hash_of_a_published_batch_is_refused(row: int, value: int) -> None:
    forged = forge(LOADED, PLACE.key_hashes + 4 * row, "I", value)
    with pytest.raises(Corrupt, match="key hashes of the batch are not the CRC-32 of its keys"):
        Batch.open(forged)
    stamp(forged, 0, NOW, 1)
    assert Batch.open(forged, stamped=True).count == 5  # a stamped batch was checked when it was published


@pytest.mark.parametrize("length", [1, 64, 65])
@pytest.mark.parametrize("count", [1, 7, 8, 9, 15, 16, 17, 100, 1000])
def test_hashes_of_a_published_batch_that_are_computed_in_another_way_are_refused(length: int, count: int) -> None:
    keys = [f"{row:03d}"[-length:].rjust(length, "k") for row in range(count)]
    forged = bytearray(encode([b""] * count, keys=keys, publish_times=NOW))
    hashes = Batch.open(forged).place.key_hashes
    struct.pack_into(f"<{count}I", forged, hashes, *[crc32c(key.encode()) for key in keys])
    with pytest.raises(Corrupt, match="key hashes"):
        Batch.open(seal(forged))


@pytest.mark.parametrize("count", [100, 1000])
def test_some_hashes_are_checked_wherever_they_are_in_a_batch(count: int) -> None:
    good = encode([b""] * count, keys=["k"] * count, publish_times=NOW)
    hashes = Batch.open(good).place.key_hashes
    for first in range(0, count, count // 8):
        forged = bytearray(good)
        for row in range(first, min(count, first + count // 8)):
            struct.pack_into("<I", forged, hashes + 4 * row, 1)
        with pytest.raises(Corrupt, match="key hashes"):
            Batch.open(seal(forged))


@pytest.mark.parametrize("bad", [b"\xff", b"\xc3(", b"\xed\xa0\x80", b"\xc0\x80", b"\xf8\x88\x80\x80\x80"])
@pytest.mark.parametrize("column", ["keys_start", "attribute_keys_start", "attribute_values_start"])
def test_text_that_is_not_utf8_is_refused(bad: bytes, column: str) -> None:
    forged = bytearray(loaded(9))
    start = Batch.open(forged).place.end + getattr(Batch.open(forged).sections, column)
    forged[start : start + len(bad)] = bad
    with pytest.raises(Corrupt, match="is not UTF-8"):
        Batch.open(seal(forged))


def test_a_producer_name_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(Corrupt, match="producer name in the batch is not UTF-8"):
        Batch.open(forge(LOADED, PLACE.producer_name, "B", 0xFF))


@pytest.mark.parametrize("count", [2, 60])
def test_a_value_that_begins_inside_a_character_is_refused(count: int) -> None:
    good = encode([b""] * count, keys=["ü"] * count, publish_times=NOW)
    place = Batch.open(good).place
    forged = bytearray(good)
    struct.pack_into("<i", forged, place.key_offsets + 4, 1)
    struct.pack_into("<2I", forged, place.key_hashes, zlib.crc32(b"\xc3"), zlib.crc32(b"\xbc\xc3\xbc"))
    with pytest.raises(Corrupt, match="key in the batch begins inside a character"):
        Batch.open(seal(forged))


@pytest.mark.parametrize("position", [64, 72])
def test_publish_times_reach_the_bounds_in_the_header(position: int) -> None:
    for change in (-1, 1):
        bound = struct.unpack_from("<q", LOADED, position)[0] + change
        with pytest.raises(Corrupt, match="publish times of the batch"):
            Batch.open(forge(LOADED, position, "q", bound))


@pytest.mark.parametrize("value", [-1, NOW + 60_000_001, 2**62])
def test_deliver_at_times_stay_within_the_header(value: int) -> None:
    with pytest.raises(Corrupt, match="deliver-at times of the batch"):
        Batch.open(forge(LOADED, PLACE.deliver_at, "q", value))


@pytest.mark.parametrize("deltas", [(1, 1), (2, 1), (0, 5), (4, 2**32 - 1)])
def test_offset_deltas_rise_and_stay_below_the_span(deltas: tuple[int, int]) -> None:
    part = Batch.open(LOADED).slice(1, 3)
    with pytest.raises(Corrupt, match="offset deltas of the batch do not rise or leave its span of 5"):
        Batch.open(forge(bytes(part.view), part.place.offset_deltas, "2I", *deltas))


# -- the stamp --------------------------------------------------------------------------------------------------------


def test_a_batch_said_to_be_stamped_must_be() -> None:
    with pytest.raises(Corrupt, match=r"stamp .* does not match its checksum"):
        Batch.open(PLAIN, stamped=True)
    with pytest.raises(Corrupt, match=r"stamp .* does not match its checksum"):
        read_header(PLAIN, stamped=True)


def test_a_damaged_stamp_is_refused_even_where_none_is_asked_for() -> None:
    damaged = bytearray(PLAIN)
    damaged[104] = 1
    with pytest.raises(Corrupt, match=r"stamp .* does not match its checksum"):
        Batch.open(damaged)
    assert read_header(damaged).base_offset == 1  # reading a header alone does not look at it


def test_an_impossible_stamp_is_refused() -> None:
    stamped = bytearray(PLAIN)
    stamp(stamped, OFFSET_MAX - 3, NOW, 1)
    assert Batch.open(stamped, stamped=True).end_offset == OFFSET_MAX
    for base_offset, append_time in ((OFFSET_MAX - 2, NOW), (-1, NOW), (0, -1), (0, TIME_MAX + 1)):
        fields = struct.pack("<qqI", base_offset, append_time, 1)
        stamped[104:HEADER_BYTES] = fields + struct.pack("<I", crc32c(fields))
        with pytest.raises(Corrupt, match=r"stamp .* is impossible"):
            Batch.open(stamped, stamped=True)


# -- compression, and memory ------------------------------------------------------------------------------------------


def repacked(codec: Codec, packed: bytes, plain_length: int | None = None) -> bytearray:
    """LOADED with other compressed data behind its columns."""
    forged = bytearray(LOADED[:DATA_START]) + packed
    struct.pack_into("<B", forged, 5, codec)
    struct.pack_into("<I", forged, 20, len(forged) - HEADER_BYTES)
    if plain_length is not None:
        struct.pack_into("<I", forged, 24, plain_length + DATA_START - HEADER_BYTES)
    return seal(forged)


DATA = LOADED[DATA_START:]


def zstd_without_a_size(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=False).compress(data)


def zstd_with_a_window(window_log: int, data: bytes) -> bytes:
    """A frame without a size, whose reader is told to keep so much of what it has unpacked."""
    packer = zstandard.ZstdCompressor(
        compression_params=zstandard.ZstdCompressionParameters(window_log=window_log, write_content_size=False)
    ).compressobj()
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize(
    ("codec", "packed"),
    [
        (Codec.LZ4, lz4.block.compress(DATA, store_size=False)),
        (Codec.ZSTD, zstandard.compress(DATA)),
        (Codec.ZSTD, zstd_without_a_size(DATA)),
    ],
)
def test_foreign_compressed_data_is_read(codec: Codec, packed: bytes) -> None:
    assert Batch.open(repacked(codec, packed)).payloads == Batch.open(LOADED).payloads


@pytest.mark.parametrize(
    ("codec", "packed", "reason"),
    [
        (Codec.LZ4, lz4.block.compress(DATA[:-8], store_size=False), "unpacks to"),
        (Codec.LZ4, lz4.block.compress(DATA + bytes(8), store_size=False), "cannot be unpacked"),
        (Codec.LZ4, b"\xff" * 40, "cannot be unpacked"),
        (Codec.ZSTD, zstandard.compress(DATA[:-8]), "claims"),
        (Codec.ZSTD, zstandard.compress(DATA + bytes(8)), "claims"),
        (Codec.ZSTD, zstd_without_a_size(DATA[:-8]), "unpacks to"),
        (Codec.ZSTD, zstd_without_a_size(DATA + bytes(8)), "cannot be unpacked"),
        (Codec.ZSTD, zstandard.compress(DATA)[:-1], "cannot be unpacked"),
        (Codec.ZSTD, zstandard.compress(DATA) + b"x", "cannot be unpacked"),
        (Codec.ZSTD, b"\xff" * 40, "cannot be unpacked"),
        (Codec.ZSTD, b"\x50\x2a\x4d\x18\x04\x00\x00\x00skip", "claims|unpacked"),
        (Codec.ZSTD, zstd_with_a_window(27, DATA), "cannot be unpacked"),
    ],
)
def test_compressed_data_of_another_length_is_refused(codec: Codec, packed: bytes, reason: str) -> None:
    with pytest.raises(Corrupt, match=reason):
        Batch.open(repacked(codec, packed))


def test_compressed_nothing_is_refused() -> None:
    with pytest.raises(Corrupt, match="cannot hold"):
        Batch.open(repacked(Codec.LZ4, b"\x00", plain_length=0))


@pytest.mark.parametrize(
    "forged",
    [
        pytest.param(forge(PLAIN, 20, "II", 2**32 - 1, 2**32 - 1), id="lengths"),
        pytest.param(forge(PLAIN, 12, "II", 100_000, 100_000), id="count"),
        pytest.param(forge(LOADED, 28, "I", 2**32 - 1), id="attributes"),
        pytest.param(repacked(Codec.ZSTD, zstandard.compress(bytes(2**28))), id="zstd that names its size"),
        pytest.param(repacked(Codec.ZSTD, zstd_without_a_size(bytes(2**28))), id="zstd that does not"),
        pytest.param(repacked(Codec.LZ4, lz4.block.compress(bytes(2**24), store_size=False)), id="lz4"),
        pytest.param(repacked(Codec.ZSTD, b"x", plain_length=2**31), id="plain length"),
        pytest.param(bytes.fromhex("28b52ffde0") + b"\xff" * 200, id="no batch at all"),
    ],
)
def test_claims_of_great_size_take_no_memory(forged: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(Corrupt):
            Batch.open(forged)
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()
