"""Reads the parts of many Avro payloads at once with numpy: numbers, lengths, slices of bytes.

A walk has a position in each payload, which only moves forward. Unlike `check`, which stops at the first payload
that is not valid, a walk goes on: it notes the rows that it gives up on, and what it reads of them has no meaning.
Positions behind the end of a payload do no harm, because the data is followed by zeros and reads are clipped to them.
A row is good if the walk did not give up on it and its position ends exactly at the end of its payload.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .check import GROUPS, NUMBER_BITS, SMALL_NUMBERS, Positions, unzigzag, varint_lengths

_PADDING: Final = 64

Longs = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class Walk:
    """The bytes of many payloads. `rows` of a call says which payload each position is in; rows never descend."""

    def __init__(self, payloads: pa.Array) -> None:
        count = len(payloads)
        _, offsets_buffer, data_buffer = payloads.buffers()
        offsets = np.frombuffer(offsets_buffer, np.int32, count + 1, payloads.offset * 4).astype(np.int64)
        first, last = int(offsets[0]), int(offsets[-1])
        self.size = last - first
        self.bytes = np.zeros(self.size + _PADDING, np.uint8)
        if self.size:
            self.bytes[: self.size] = np.frombuffer(data_buffer, np.uint8, self.size, first)
        self.words: npt.NDArray[np.uint64] = np.ndarray(
            (len(self.bytes) - 7,), np.dtype("<u8"), self.bytes.data, strides=(1,)
        )
        """The eight bytes at every position."""
        self.buffer = pa.py_buffer(self.bytes)
        self.starts: Positions = offsets[:-1] - first
        self.ends: Positions = offsets[1:] - first
        self.given_up: Mask = np.zeros(count, np.bool_)

    def give_up(self, rows: Positions, where: Mask | None = None) -> None:
        """Note that a row with a value at which `where` is true cannot be read here."""
        self.given_up[rows if where is None else rows[where]] = True

    def clip(self, pos: Positions) -> Positions:
        return np.minimum(pos, self.size)

    def read_longs(self, pos: Positions, rows: Positions) -> tuple[Longs, Positions]:
        """Return the zigzag varints at the positions, and the positions behind them."""
        pos = self.clip(pos)
        first = self.bytes.take(pos)
        if np.bitwise_or.reduce(first, initial=0) < 128:
            return SMALL_NUMBERS.take(first), pos + 1
        words = self.words[pos]
        lengths, keep = varint_lengths(words)
        numbers = words & keep & NUMBER_BITS
        for low, high, shift in GROUPS:
            numbers = (numbers & low) | ((numbers & high) >> shift)
        if not lengths.all():
            self._read_last_bytes(pos, rows, lengths, numbers)
        return unzigzag(numbers), pos + lengths

    def _read_last_bytes(
        self, pos: Positions, rows: Positions, lengths: Positions, numbers: npt.NDArray[np.uint64]
    ) -> None:
        """Complete the lengths and numbers of the varints that are longer than a word."""
        long = np.flatnonzero(lengths == 0)
        ninth = self.bytes.take(pos[long] + 8).astype(np.uint64)
        more = ninth > 127
        tenth = np.where(more, self.bytes.take(pos[long] + 9), 0).astype(np.uint64)
        self.give_up(rows[long], tenth > 1)
        lengths[long] = np.where(more, 10, 9)
        numbers[long] |= (ninth & np.uint64(0x7F)) << np.uint64(56) | (tenth & np.uint64(1)) << np.uint64(63)

    def read_slices(self, pos: Positions, rows: Positions) -> tuple[Positions, Positions]:
        """Return where the bytes begin and end whose length is at the positions. Both are inside the payload."""
        lengths, starts = self.read_longs(pos, rows)
        return self.bound_slices(starts, lengths, rows)

    def bound_slices(self, starts: Positions, lengths: Longs, rows: Positions) -> tuple[Positions, Positions]:
        limits = self.ends[rows]
        wrong = (lengths < 0) | (lengths > limits - starts)
        if wrong.any():
            self.give_up(rows, wrong)
            starts = np.minimum(starts, limits)
            return starts, np.where(wrong, starts, starts + lengths)
        return starts, starts + lengths

    def take_bytes(self, starts: Positions, ends: Positions, kind: pa.DataType) -> pa.Array:
        """Return slices of the data, which ascend, as a binary or string array. Whether text is UTF-8 is not checked.

        Slices and the gaps between them are one array over the whole data, of which Arrow takes every second value.
        """
        count = len(starts)
        if not count:
            return pa.array([], kind)
        offsets = np.empty(2 * count, np.int32)
        offsets[0::2] = starts
        offsets[1::2] = ends
        both = pa.Array.from_buffers(kind, 2 * count - 1, [None, pa.py_buffer(offsets), self.buffer])
        return both.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32)))

    def take_text(self, starts: Positions, ends: Positions, rows: Positions) -> pa.Array:
        """Return slices of the data as a string array. The walk gives up on rows with text that is not UTF-8."""
        texts = self.take_bytes(starts, ends, pa.string())
        try:
            texts.validate(full=True)
        except pa.ArrowInvalid:
            wrong = np.array([not _is_text(one) for one in texts.cast(pa.binary()).to_pylist()], np.bool_)
            self.give_up(rows, wrong)
            return self.take_bytes(starts, np.where(wrong, starts, ends), pa.string())
        return texts


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
