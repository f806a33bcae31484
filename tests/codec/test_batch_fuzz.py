"""No byte string makes the decoder do anything but return a batch or raise Corrupt.

Random bytes hardly get past the first checksum, so most of the work is done by good batches with a few bytes changed
and the checksums made right again. What `open` then lets through must be safe to use in every way a batch can be used.
"""

from __future__ import annotations

import struct

import pytest
from batch_samples import loaded, seal
from hypothesis import example, given
from hypothesis import strategies as st

from pydanube.codec.batch import HEADER_BYTES, Batch, Codec, read_header, stamp
from pydanube.model.errors import Corrupt

BASES = [
    bytes(batch)
    for count in (1, 5, 40)
    for batch in (
        loaded(count),
        loaded(count, Codec.LZ4),
        loaded(count, Codec.ZSTD),
        Batch.open(loaded(count)).slice(count // 2, count).view,
    )
]
NUMBERS = st.one_of(
    st.integers(-2, 70),
    st.sampled_from([2**31 - 1, -(2**31), 2_000_000_000, 100_000, 2**24, 32 * 2**20]),
    st.integers(-(2**31), 2**31 - 1),
)


def use(data: bytes | bytearray) -> bool:
    """True when `data` is a batch, which is then used in all ways there are."""
    try:
        batch = Batch.open(data)
    except Corrupt:
        return False
    assert len(batch.payloads) == len(batch.keys) == len(batch.attributes) == len(batch.offsets) == batch.count
    for message in batch.messages():
        assert isinstance(message.payload, bytes)
        assert message.offset >= 0
        assert message.key is None or message.key.encode() is not None
        assert message.publish_time is not None
        assert message.append_time is not None
        assert message.deliver_at is None or message.deliver_at.year > 1969
    table = batch.to_arrow()
    table.validate(full=True)
    assert table["payload"].to_pylist() == batch.payloads
    assert table["key"].to_pylist() == batch.keys
    chosen = bytearray(batch.select([row % 2 == 0 for row in range(batch.count)]).view)
    stamp(chosen, 0, 1, 1)  # a selection of rows is stamped, and hashes of stamped batches are not checked
    part = Batch.open(chosen, stamped=True)
    assert part.payloads == batch.payloads[::2]
    assert part.attributes == batch.attributes[::2]
    return True


@pytest.mark.parametrize("base", range(len(BASES)))
def test_the_batches_to_start_from_are_good(base: int) -> None:
    assert use(BASES[base])


@given(st.binary(max_size=400))
@example(b"")
@example(b"DBAT\x01")
def test_random_bytes(data: bytes) -> None:
    assert not use(data)
    with pytest.raises(Corrupt):
        read_header(data)


@given(st.binary(min_size=92, max_size=92), st.binary(max_size=300))
def test_random_fields_behind_a_good_beginning(fields: bytes, body: bytes) -> None:
    use(seal(bytearray(b"DBAT\x01" + fields[:91] + bytes(8) + bytes(24) + body)))


@given(
    st.sampled_from(BASES),
    st.lists(st.tuples(st.integers(4, 2**20), NUMBERS), min_size=1, max_size=4),
)
def test_good_batches_with_numbers_changed(base: bytes, changes: list[tuple[int, int]]) -> None:
    data = bytearray(base)
    for where, number in changes:
        # Columns are aligned: whole numbers are changed, header fields as well as offsets, times and hashes.
        position = where % (len(data) // 4) * 4
        if position not in (0, 96, 100) and not 104 <= position < HEADER_BYTES:
            struct.pack_into("<i", data, position, number)
    use(seal(data))


@given(
    st.sampled_from(BASES),
    st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 255)), min_size=1, max_size=6),
)
def test_good_batches_with_bytes_changed(base: bytes, changes: list[tuple[int, int]]) -> None:
    data = bytearray(base)
    for where, byte in changes:
        position = 5 + where % (len(data) - 5)
        if not 104 <= position < HEADER_BYTES:
            data[position] = byte
    use(seal(data))


@given(st.sampled_from(BASES), st.integers(0, 2**20), st.binary(max_size=64))
def test_good_batches_cut_or_stretched(base: bytes, where: int, added: bytes) -> None:
    body_end = HEADER_BYTES + where % (len(base) - HEADER_BYTES + 1)
    data = bytearray(base[:body_end]) + added
    use(data)
    length = len(data) - HEADER_BYTES
    if data[5] == Codec.NONE:
        struct.pack_into("<II", data, 20, length, length)
    else:
        struct.pack_into("<I", data, 20, length)
    use(seal(data))
