"""Slices as bytes: what is written is read, and nothing that was changed is taken for it."""

from __future__ import annotations

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from pydanube.codec.slice import (
    SliceKind,
    SliceRecord,
    decode_slice,
    decode_slice_header,
    encode_marker,
    encode_slice,
    parse_slice_key,
    slice_key,
)
from pydanube.codec.wal import RecordKind
from pydanube.model.errors import Corrupt, Refused

GOLDEN_HEADER = (
    "44534c4301000000050000000000000009000000000000004d00000000000000"
    "01000000000000008000000000000000c74b674800000000000000004b6936dc"
)
"""Slice 9 of incarnation 5, by writer 77, with one record of 128 bytes."""

bodies = st.lists(st.binary(max_size=300), min_size=1, max_size=5)


def control(body: bytes, ledger_id: int = 7, entry_id: int = 0) -> SliceRecord:
    return SliceRecord(RecordKind.STATE_DELTA, ledger_id, entry_id, 3, body, crc32c(body))


def encoded(records: list[SliceRecord], incarnation: int = 5, number: int = 9) -> bytes:
    return b"".join(bytes(one) for one in encode_slice(incarnation, number, 77, records))


@given(bodies)
def test_records_come_back_as_they_were(contents: list[bytes]) -> None:
    records = [control(body, entry_id=entry) for entry, body in enumerate(contents)]
    found = [one._replace(body=bytes(one.body)) for one in decode_slice(encoded(records), 5, 9)]
    assert found == records


@given(bodies, st.data())
def test_a_flipped_bit_is_noticed(contents: list[bytes], data: st.DataObject) -> None:
    whole = bytearray(encoded([control(body, entry_id=entry) for entry, body in enumerate(contents)]))
    position = data.draw(st.integers(0, len(whole) - 1))
    bit = data.draw(st.integers(0, 7))
    records = [one._replace(body=bytes(one.body)) for one in decode_slice(bytes(whole), 5, 9)]
    whole[position] ^= 1 << bit
    try:
        found = [one._replace(body=bytes(one.body)) for one in decode_slice(bytes(whole), 5, 9)]
    except (Corrupt, Refused):
        return
    assert found == records, "only padding may change unnoticed"


@given(bodies, st.data())
def test_a_cut_or_lengthened_slice_is_noticed(contents: list[bytes], data: st.DataObject) -> None:
    whole = encoded([control(body, entry_id=entry) for entry, body in enumerate(contents)])
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(Corrupt):
        list(decode_slice(whole[:cut], 5, 9))
    with pytest.raises(Corrupt):
        list(decode_slice(whole + bytes(64), 5, 9))


def test_the_slice_of_another_number_or_incarnation_is_refused() -> None:
    whole = encoded([control(b"x")])
    for incarnation, number in ((5, 8), (6, 9)):
        with pytest.raises(Corrupt, match="holds slice 9 of incarnation 5"):
            decode_slice_header(whole, incarnation, number)


def test_a_marker_is_told_from_a_slice() -> None:
    assert decode_slice_header(encode_marker(5, 9, 12), 5, 9)[:4] == (SliceKind.MARKER, 5, 9, 12)
    assert decode_slice_header(encoded([control(b"x")]), 5, 9).kind == SliceKind.SLICE
    with pytest.raises(Corrupt):
        list(decode_slice(encode_marker(5, 9, 12), 5, 9))


def test_keys_sort_as_their_numbers() -> None:
    assert slice_key(1, 9) < slice_key(1, 10) < slice_key(1, 2**40) < slice_key(2, 0)
    assert parse_slice_key(slice_key(3, 2**40)) == (3, 2**40)
    for other in ("slices/", "slices/readme.txt", slice_key(3, 4) + ".tmp", slice_key(3, 4).upper(), "slices/3/4"):
        assert parse_slice_key(other) is None


def test_golden_bytes() -> None:
    whole = encoded([control(b"abc")])
    assert whole[:64].hex() == GOLDEN_HEADER
    assert len(whole) == 64 + 128
