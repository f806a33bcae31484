"""The log's bytes: golden records, and checksums that miss nothing."""

from __future__ import annotations

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from wal_simulation import IDENTITY, make_batch

from pydanube.codec.wal import (
    HEADERS,
    HEADERS_BYTES,
    HEADERS_RESIDUE,
    RECORD_HEADER_BYTES,
    RECORD_HEADER_RESIDUE,
    MetadataStamp,
    RecordHeader,
    RecordKind,
    batch_is_intact,
    body_is_intact,
    checked_line,
    decode_file_body,
    decode_header,
    decode_manifest,
    encode_file_body,
    encode_header,
    encode_manifest,
    encode_record,
    record_bytes,
    with_checksum,
)
from pydanube.model.errors import Corrupt, Refused
from pydanube.model.limits import RECORD_BODY_BYTES_MAX

U32 = st.integers(0, 2**32 - 1)
I64 = st.integers(0, 2**63 - 1)
KINDS = st.sampled_from(list(RecordKind))


def test_a_record_has_the_bytes_that_the_documentation_draws() -> None:
    record = encode_record(RecordKind.STATE_DELTA, 7, 0x1000, 42, 3, 0x0FC0, b"state")
    assert record.hex() == (
        "44524543"  # magic
        "01040000"  # version, kind, flags
        "0700000000000000"  # generation
        "0010000000000000"  # position
        "2a00000000000000"  # ledger
        "0300000000000000"  # entry
        "c00f000000000000"  # durable
        "00000000"  # owner epoch
        "05000000"  # body length
        "df68db66"  # CRC of the body
        "1ff47bf9"  # CRC of all of this
        "7374617465" + "00" * 59
    )


def test_a_seal_has_no_body() -> None:
    record = encode_record(RecordKind.SEAL, 8, 0x2000, 42, -1, 0x2000)
    assert len(record) == 64
    header = decode_header(record)
    assert header is not None
    assert (header.kind, header.ledger_id, header.entry_id, header.body_length) == (RecordKind.SEAL, 42, -1, 0)


def test_the_first_record_of_a_file_says_whose_it_is() -> None:
    body = encode_file_body(IDENTITY, 0x3000)
    assert body.hex() == (
        "84a7636c7573746572a664616e756265a46e6f6465a862726f6b65722d31ab696e6361726e6174696f6ed920"
        + (b"5f" * 16).hex()
        + "a462617365cd3000"
    )
    assert decode_file_body(body).identity == IDENTITY
    assert decode_file_body(body).base == 0x3000
    assert decode_file_body(body).metadata is None
    with pytest.raises(Corrupt):
        decode_file_body(b"\x80")


def test_the_first_record_of_a_file_names_the_metadata_that_the_log_depends_on() -> None:
    body = encode_file_body(IDENTITY, 0x3000, MetadataStamp("a1" * 16, 300))
    assert body.hex() == (
        "86a7636c7573746572a664616e756265a46e6f6465a862726f6b65722d31ab696e6361726e6174696f6ed920"
        + (b"5f" * 16).hex()
        + "a462617365cd3000"
        + "a873746f72655f6964d920"
        + (b"a1" * 16).hex()
        + "a87265766973696f6ecd012c"
    )
    assert decode_file_body(body).metadata == MetadataStamp("a1" * 16, 300)


def test_the_manifest_is_a_line_for_people_and_its_checksum() -> None:
    text = encode_manifest(IDENTITY, 3, 9)
    assert text == (
        b'{"format":1,"oldest":3,"newest":9,"cluster":"danube","node":"broker-1","incarnation":"'
        + b"5f" * 16
        + b'"}\n1523a001\n'
    )
    manifest = decode_manifest(text)
    assert (manifest.oldest, manifest.newest, manifest.identity) == (3, 9, IDENTITY)
    with pytest.raises(Refused, match="log format 2 is unknown"):
        decode_manifest(with_checksum(b'{"format":2}'))
    for broken in (b"", b"\n", text[:-1], text[1:], with_checksum(b"[]"), with_checksum(b'{"format":1}')):
        with pytest.raises(Corrupt):
            decode_manifest(broken)


@given(st.binary().filter(lambda line: b"\n" not in line))
def test_a_checked_line_comes_back(line: bytes) -> None:
    assert checked_line(with_checksum(line)) == line


@given(KINDS, I64, I64, I64, st.integers(-1, 2**63 - 1), I64, U32, st.integers(0, RECORD_BODY_BYTES_MAX), U32)
def test_a_header_comes_back(
    kind: int, generation: int, position: int, ledger: int, entry: int, durable: int, epoch: int, length: int, crc: int
) -> None:
    encoded = encode_header(kind, generation, position, ledger, entry, durable, epoch, length, crc)
    expected = RecordHeader(kind, 0, generation, position, ledger, entry, durable, epoch, length, crc)
    assert decode_header(encoded) == expected
    assert decode_header(b"x" * 64 + encoded, 64) == expected
    assert decode_header(encoded, expected=(generation, position)) == expected
    assert decode_header(encoded, expected=(generation + 1, position)) is None
    assert decode_header(encoded, expected=(generation, position + 64)) is None
    assert crc32c(encoded) == RECORD_HEADER_RESIDUE


@given(st.integers(0, 64 * 8 - 1))
def test_no_flipped_bit_leaves_a_header(bit: int) -> None:
    encoded = bytearray(encode_header(RecordKind.DATA, 1, 64, 1, 1, 0, 1, 100, 5))
    encoded[bit // 8] ^= 1 << bit % 8
    assert decode_header(encoded) is None
    assert crc32c(encoded) != RECORD_HEADER_RESIDUE


@given(st.binary(max_size=200))
def test_no_bytes_make_the_decoder_do_anything_else(content: bytes) -> None:
    assert decode_header(content) is None


def test_a_length_beyond_every_limit_is_no_header() -> None:
    assert decode_header(encode_header(2, 1, 0, 1, 0, 0, 1, RECORD_BODY_BYTES_MAX + 1, 0)) is None


@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 1000])
def test_records_are_padded_to_the_next_boundary(length: int) -> None:
    assert record_bytes(length) == len(encode_record(RecordKind.STATE_DELTA, 1, 0, 1, 0, 0, bytes(length)))
    assert record_bytes(length) % 64 == 0


# -- batches -----------------------------------------------------------------------------------------------------------


def data_record() -> bytes:
    body, crc = make_batch(b"payload", 17)
    return encode_header(RecordKind.DATA, 3, 640, 9, 2, 64, 1, len(body), crc) + body


def test_one_pass_checks_a_record_header_and_a_batch_header() -> None:
    record = data_record()
    assert crc32c(record[:HEADERS_BYTES]) == HEADERS_RESIDUE
    fields = HEADERS.unpack_from(record)
    body, crc = make_batch(b"payload", 17)
    assert fields[4:8] == (3, 640, 9, 2)
    assert fields[10:12] == (len(body), crc)
    assert fields[13:17] == (1, crc, 17, 1_700_000_000_000_017)


@given(st.integers(0, HEADERS_BYTES * 8 - 1))
def test_the_one_pass_finds_every_flipped_bit(bit: int) -> None:
    record = bytearray(data_record())
    record[bit // 8] ^= 1 << bit % 8
    assert crc32c(record[:HEADERS_BYTES]) != HEADERS_RESIDUE


@given(st.lists(st.integers(0, HEADERS_BYTES - 1), min_size=2, max_size=6, unique=True), st.integers(1, 255))
def test_the_one_pass_finds_several_wrong_bytes(places: list[int], mask: int) -> None:
    record = bytearray(data_record())
    for place in places:
        record[place] ^= mask
    assert crc32c(record[:HEADERS_BYTES]) != HEADERS_RESIDUE


@given(st.integers(0, 10_000))
def test_no_flipped_bit_leaves_a_batch_intact(number: int) -> None:
    body, crc = make_batch(b"payload", 17)
    assert batch_is_intact(memoryview(body), crc)
    broken = bytearray(body)
    bit = number % (len(body) * 8)
    broken[bit // 8] ^= 1 << bit % 8
    assert not batch_is_intact(memoryview(broken), crc)
    assert not batch_is_intact(memoryview(body), crc ^ 1)
    assert not batch_is_intact(memoryview(body[:127]), crc)


def test_other_bodies_are_covered_whole() -> None:
    assert body_is_intact(RecordKind.STATE_DELTA, memoryview(b"abc"), crc32c(b"abc"))
    assert not body_is_intact(RecordKind.STATE_DELTA, memoryview(b"abd"), crc32c(b"abc"))


def test_a_record_header_is_one_cache_line() -> None:
    assert RECORD_HEADER_BYTES == 64
