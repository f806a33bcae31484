"""The hash of a key is its CRC-32, however it is computed."""

from __future__ import annotations

import zlib
from array import array
from itertools import accumulate

from hypothesis import example, given
from hypothesis import strategies as st

from pydanube.codec.batch.hashes import SHORT, key_hashes


def hashes_of(keys: list[bytes]) -> list[int]:
    offsets = memoryview(array("i", accumulate(map(len, keys), initial=0))).cast("B")
    return key_hashes(memoryview(b"".join(keys)), offsets, 0, len(keys)).tolist()


@given(st.one_of(st.lists(st.binary(max_size=8)), st.lists(st.binary(max_size=SHORT + 2), min_size=30, max_size=60)))
@example([b""] * 50)
@example([b""] * 40 + [b"a"])
@example([b"a"] + [b""] * 40)
@example([bytes(length) for length in range(SHORT + 1)])
@example([b"\xff" * length for length in range(SHORT + 2)])
def test_many_hashes_at_once_are_the_same_as_one_by_one(keys: list[bytes]) -> None:
    assert hashes_of(keys) == [zlib.crc32(key) for key in keys]


def test_every_byte_at_every_place_counts() -> None:
    keys = [bytes(before) + bytes([byte]) + bytes(SHORT - before - 1) for before in range(SHORT) for byte in range(256)]
    assert hashes_of(keys) == [zlib.crc32(key) for key in keys]
