"""Checks Avro payloads: whether the bytes are exactly one datum of a type.

`read` judges single payloads. Many payloads are walked by columns: a field of all of them at once with numpy, five to
ten times faster. What a walk finds wrong, or cannot tell, is judged payload by payload.

A walk has a position in each payload, which only moves forward, and goes on when a payload is not valid: it notes the
rows that it gives up on, and what it reads of them has no meaning. Positions behind the end of the data do no harm,
because reads are clipped to the zeros that follow it. A row is good if the walk did not give up on it and its position
ends exactly at the end of its payload. `columns` makes Arrow columns of what a walk has read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from .read import OUT_OF_BYTES, TOO_DEEP, BadDatum, Check, Read, entry_reader, read_payload
from .types import (
    NESTING_MAX,
    Array,
    AvroType,
    EnumType,
    Fixed,
    Map,
    Named,
    Record,
    Union,
    fits_precision,
    value_range,
)

Positions = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Raw = Any
"""What was read of a type: numbers; starts and ends of bytes, text and fixed types; the parts of a record; of unions,
arrays and maps a list of parts, each with the places in the column that it belongs to."""
WalkColumn = Callable[["Walk", Positions, Positions, int], tuple[Raw, Positions]]
"""Reads the values at positions of rows, at a depth; returns them, and the positions behind them. Rows never descend.
Raises BadDatum if values are nested too deep."""

_FEW: Final = 24
"""So few values are read faster one by one."""


class DatumCheck:
    """Checks payloads of one type."""

    def __init__(self, root: AvroType) -> None:
        self._read = Check().build(root, root)
        self._walk = Walkers().build(root, keep=False)

    def find_invalid(self, payloads: Sequence[bytes | memoryview]) -> tuple[int, str] | None:
        """Return the first payload that is not valid with the reason, or None."""
        suspects = self.find_suspects(payloads) if len(payloads) >= _FEW else range(len(payloads))
        for row in suspects:
            try:
                read_payload(self._read, bytes(payloads[row]))
            except BadDatum as error:
                return row, error.describe()
        return None

    def find_fault(self, payload: bytes) -> str | None:
        """Return what is wrong with a payload, or None."""
        try:
            read_payload(self._read, payload)
        except BadDatum as error:
            return error.describe()
        return None

    def find_suspects(self, payloads: Sequence[bytes | memoryview]) -> list[int]:
        """Return the payloads that are not valid or are too deep to be walked, by columns."""
        bounds = np.fromiter(accumulate(map(len, payloads), initial=0), np.int64, len(payloads) + 1)
        walk = Walk(payloads, bounds)
        walk.run(self._walk)
        return [] if walk.is_whole else np.flatnonzero(walk.given_up).tolist()


_PADDING: Final = bytes(64)
_STOP_BITS: Final = np.uint64(0x8080808080808080)
_NUMBER_BITS: Final = np.uint64(0x7F7F7F7F7F7F7F7F)
_GROUPS: Final = tuple(
    (np.uint64(low), np.uint64(high), np.uint64(shift))
    for low, high, shift in (
        (0x007F007F007F007F, 0x7F007F007F007F00, 1),
        (0x00003FFF00003FFF, 0x3FFF00003FFF0000, 2),
        (0x000000000FFFFFFF, 0x0FFFFFFF00000000, 4),
    )
)
_ONE: Final = np.uint64(1)
_SMALL_NUMBERS: Final = np.array([(one >> 1) ^ -(one & 1) for one in range(128)], np.int64)
"""The zigzag numbers of one byte."""

UUID_PLACES: Final = np.arange(36)
_UUID_PATTERN: Final = np.array([2 if place in {8, 13, 18, 23} else 1 for place in range(36)], np.uint8)
_UUID_KINDS: Final = np.array(
    [1 if chr(one) in "0123456789abcdefABCDEF" else 2 if chr(one) == "-" else 0 for one in range(256)], np.uint8
)
"""What a byte may be in a UUID: a digit, a dash, or nothing."""


class Walk:
    """The bytes of many payloads, and what was found out about them. `rows` of a call says which payload each position
    is in."""

    def __init__(self, parts: Sequence[bytes | memoryview], bounds: Positions) -> None:
        """`parts` have the payloads, one behind the other; payload r is [bounds[r], bounds[r + 1]) of them."""
        self.data: bytes = b"".join([*parts, _PADDING])
        self._bytes = np.frombuffer(self.data, np.uint8)
        shape, kind = (len(self.data) - 7,), np.dtype("<u8")
        self._words: npt.NDArray[np.uint64] = np.ndarray(shape, kind, self.data, strides=(1,))
        self.size = len(self.data) - len(_PADDING)
        self.starts: Positions = bounds[:-1]
        self.ends: Positions = bounds[1:]
        self.longest = int((self.ends - self.starts).max(initial=0))
        self.given_up: Mask = np.zeros(len(self.starts), np.bool_)
        """The rows that are not valid, or that have no value in a column."""
        self.is_whole = False
        """Whether all rows are valid."""
        self.skipped: Mask = np.zeros(len(self.starts), np.bool_)
        """The rows of which a part was read one by one and not kept."""
        self._texts: list[tuple[Positions, Positions, Positions]] = []

    def run(self, walk_column: WalkColumn) -> Raw:
        """Walk all payloads; return what was read, or None if values are nested too deep."""
        try:
            raw, ends = walk_column(self, self.starts, np.arange(len(self.starts)), 0)
        except BadDatum:
            self.given_up[:] = True
            return None
        self.given_up |= ends != self.ends
        self._check_texts()
        self.is_whole = not self.given_up.any()
        return raw

    def give_up(self, rows: Positions, where: Mask) -> None:
        """Note that a row with a value at which `where` is true is not valid, or has no value in a column."""
        self.given_up[rows[where]] = True

    def read_longs(self, pos: Positions, rows: Positions) -> tuple[Positions, Positions]:
        """Return the zigzag varints at the positions, and the positions behind them."""
        first = self.bytes_at(pos)
        if np.bitwise_or.reduce(first) < 128:
            return _SMALL_NUMBERS.take(first), pos + 1
        words = self.words_at(pos)
        lengths, keep = _varint_lengths(words)
        numbers = words & keep & _NUMBER_BITS
        for low, high, shift in _GROUPS:
            numbers = (numbers & low) | ((numbers & high) >> shift)
        if not lengths.all():
            self._read_last_bytes(pos, rows, lengths, numbers)
        return (numbers >> _ONE).astype(np.int64) ^ -(numbers & _ONE).astype(np.int64), pos + lengths

    def bytes_at(self, pos: Positions) -> npt.NDArray[np.uint8]:
        try:
            return self._bytes[pos]
        except IndexError:
            return self._bytes[np.minimum(pos, self.size)]

    def words_at(self, pos: Positions) -> npt.NDArray[np.uint64]:
        """Return the eight bytes at each of the positions."""
        try:
            return self._words[pos]
        except IndexError:
            return self._words[np.minimum(pos, self.size)]

    def skip_longs(self, pos: Positions, rows: Positions) -> Positions:
        lengths, _ = _varint_lengths(self.words_at(pos))
        if not lengths.all():
            self._read_last_bytes(pos, rows, lengths, np.zeros(len(pos), np.uint64))
        return pos + lengths

    def _read_last_bytes(
        self, pos: Positions, rows: Positions, lengths: Positions, numbers: npt.NDArray[np.uint64]
    ) -> None:
        """Complete the lengths and numbers of the varints that are longer than a word."""
        long = np.flatnonzero(lengths == 0)
        ninth = self.bytes_at(pos[long] + 8).astype(np.uint64)
        more = ninth > 127
        tenth = np.where(more, self.bytes_at(pos[long] + 9), 0).astype(np.uint64)
        self.give_up(rows[long], tenth > 1)
        lengths[long] = np.where(more, 10, 9)
        numbers[long] |= (ninth & np.uint64(0x7F)) << np.uint64(56) | (tenth & _ONE) << np.uint64(63)

    def read_slices(self, pos: Positions, rows: Positions) -> tuple[Positions, Positions]:
        """Read a length at each position; return where the bytes after it begin and end."""
        first = self.bytes_at(pos)
        bits = int(np.bitwise_or.reduce(first))
        if bits < 128 and not bits & 1:  # all of them short, none negative
            starts = pos + 1
            return starts, starts + (first >> 1)
        lengths, starts = self.read_longs(pos, rows)
        if lengths.min() < 0 or lengths.max() > self.longest:
            wrong = (lengths < 0) | (lengths > self.longest)
            self.give_up(rows, wrong)
            lengths = np.where(wrong, 0, lengths)
        return starts, starts + lengths

    def skip_one_by_one(
        self, read: Read, pos: Positions, rows: Positions, depth: int, counts: Positions | None = None
    ) -> Positions:
        """Return the positions behind a few values, or behind as many as `counts` says in each row; they are not
        kept."""
        self.skipped[rows] = True
        ends = pos.copy()
        for at, row in enumerate(rows.tolist()):
            start = int(self.starts[row])
            payload = self.data[start : int(self.ends[row])]
            end = int(pos[at]) - start
            try:
                for _ in range(1 if counts is None else int(counts[at])):
                    _, end = read(payload, end, depth)
            except (BadDatum, *OUT_OF_BYTES):
                self.given_up[row] = True
            ends[at] = start + end
        return ends

    def add_texts(self, starts: Positions, ends: Positions, rows: Positions) -> None:
        self._texts.append((starts, ends, rows))

    def _check_texts(self) -> None:
        """Give up on the rows with a text that is not UTF-8: most are ASCII, which is seen from where the other bytes
        are."""
        if not self._texts:
            return
        others = np.flatnonzero(self._bytes > 127)
        starts, ends = (np.concatenate([one[part] for one in self._texts]) for part in range(2))
        suspects = np.flatnonzero(others.searchsorted(starts) != others.searchsorted(ends))
        if not len(suspects):
            return
        rows = np.concatenate([one for _, _, one in self._texts])
        suspects = suspects[~self.given_up[rows[suspects]]]
        texts = [
            self.data[start:end] for start, end in zip(starts[suspects].tolist(), ends[suspects].tolist(), strict=True)
        ]
        # Every text ends before a newline and begins after one, so none completes another.
        if not is_text(b"\n".join(texts)):
            self.give_up(rows[suspects], np.array([not is_text(one) for one in texts], np.bool_))


def is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _varint_lengths(words: npt.NDArray[np.uint64]) -> tuple[Positions, npt.NDArray[np.uint64]]:
    """Return how many bytes the varints have, 0 for more than eight, and the bits of the words that belong to them."""
    stops = ~words & _STOP_BITS
    last = stops & (~stops + _ONE)
    _, exponents = np.frexp(last.astype(np.float64))
    return (exponents >> 3).astype(np.int64), last | (last - _ONE)


class Walkers:
    """Builds the functions that walk types; one for each named type, so that types may be recursive."""

    def __init__(self) -> None:
        self._rows = Check()
        self._named: dict[tuple[str, bool], WalkColumn] = {}
        self._open: set[str] = set()

    def build(self, avro_type: AvroType, *, keep: bool) -> WalkColumn:
        """Return the function that walks a type. With `keep` it returns what it has read, but nothing of a type inside
        itself; text is not decoded."""
        if isinstance(avro_type, Named):
            keep = keep and avro_type.name not in self._open
            known = self._named.get((avro_type.name, keep))
            if known is not None:
                return known
        match avro_type:
            case Record():
                return self._record(avro_type, keep)
            case EnumType():
                return _numbers(0, len(avro_type.symbols) - 1)
            case Fixed():
                walk_fixed = _fixed(avro_type.size)
                return _decimals(avro_type, walk_fixed) if avro_type.is_decimal else walk_fixed
            case Array():
                read_item = self._rows.build(avro_type.items, avro_type.items)
                return self._blocks(avro_type, self.build(avro_type.items, keep=keep), read_item)
            case Map():
                read_item = entry_reader(self._rows.build(avro_type.values, avro_type.values))
                entry = _entry(_texts(keep), self.build(avro_type.values, keep=keep))
                return self._blocks(avro_type, entry, read_item)
            case Union():
                return self._union(avro_type, keep)
        if avro_type.kind == "int" or (avro_type.kind == "long" and avro_type.logical is not None):
            return _numbers(*value_range(avro_type))
        if avro_type.kind == "long":
            return _read_longs if keep else _skip_longs
        if avro_type.kind == "string":
            return _texts(keep) if avro_type.logical is None else _read_uuids
        return _decimals(avro_type, _read_slices) if avro_type.is_decimal else _PRIMITIVES[avro_type.kind]

    def _record(self, record: Record, keep: bool) -> WalkColumn:
        walkers: list[WalkColumn] = []

        def walk_record(walk: Walk, pos: Positions, rows: Positions, depth: int) -> tuple[Raw, Positions]:
            if depth > NESTING_MAX:
                raise BadDatum(TOO_DEEP)
            raws = []
            for one in walkers:
                raw, pos = one(walk, pos, rows, depth + 1)
                raws.append(raw)
            return (raws if keep else None), pos

        self._named[record.name, keep] = walk_record
        self._open.add(record.name)
        walkers += [self.build(one.type, keep=keep) for one in record.fields]
        self._open.discard(record.name)
        return walk_record

    def _union(self, union: Union, keep: bool) -> WalkColumn:
        branches = [(self.build(one, keep=keep), self._rows.build(one, one)) for one in union.branches]
        count = len(branches)

        def walk_union(walk: Walk, pos: Positions, rows: Positions, depth: int) -> tuple[Raw, Positions]:
            if depth > NESTING_MAX:
                raise BadDatum(TOO_DEEP)
            indexes, pos = walk.read_longs(pos, rows)
            if len(pos) and (indexes.min() < 0 or indexes.max() >= count or pos.max() > walk.size):
                wrong = (indexes < 0) | (indexes >= count) | (pos > walk.size)
                walk.give_up(rows, wrong)
                indexes = np.where(wrong, -1, indexes)
            parts: list[tuple[int, Positions, Raw]] = []
            for index in range(count) if count <= 4 else np.unique(indexes[indexes >= 0]).tolist():
                chosen = np.flatnonzero(indexes == index)
                walk_branch, read = branches[index]
                if keep or len(chosen) >= _FEW:
                    raw, pos[chosen] = walk_branch(walk, pos[chosen], rows[chosen], depth + 1)
                    parts.append((index, chosen, raw))
                else:
                    pos[chosen] = walk.skip_one_by_one(read, pos[chosen], rows[chosen], depth + 1)
            return parts, pos

        return walk_union

    def _blocks(self, avro_type: AvroType, walk_item: WalkColumn, read_item: Read) -> WalkColumn:
        """Return what walks the blocks of arrays or maps, one item of each row at a time."""
        read_all = self._rows.build(avro_type, avro_type)

        def walk_blocks(walk: Walk, pos: Positions, rows: Positions, depth: int) -> tuple[Raw, Positions]:
            if depth > NESTING_MAX:
                raise BadDatum(TOO_DEEP)
            pos = pos.copy()
            parts: list[tuple[Positions, Raw]] = []
            waiting = np.arange(len(pos))  # the rows with another block
            while len(waiting) >= _FEW:
                counts, inner = walk.read_longs(pos[waiting], rows[waiting])
                sized = sized_ends = waiting[:0]
                if counts.min() < 0:  # the size of the block is behind its count
                    negative = np.flatnonzero(counts < 0)
                    sized = waiting[negative]
                    sizes, inner[negative] = walk.read_longs(inner[negative], rows[sized])
                    sized_ends = inner[negative] + sizes
                    counts = np.abs(counts)
                if counts.min() < 0 or counts.max() > _FEW:  # every item has a byte; a few too many do no harm
                    wrong = (counts < 0) | (counts > walk.ends[rows[waiting]] - inner)
                    walk.give_up(rows[waiting], wrong)
                    counts = np.where(wrong, 0, counts)
                pos[waiting] = inner
                waiting, counts = waiting[counts > 0], counts[counts > 0]
                active, done = waiting, 0
                while len(active) >= _FEW:
                    raw, pos[active] = walk_item(walk, pos[active], rows[active], depth + 1)
                    parts.append((active, raw))
                    done += 1
                    active = waiting[counts > done]
                if len(active):
                    rest = counts[counts > done] - done
                    pos[active] = walk.skip_one_by_one(read_item, pos[active], rows[active], depth + 1, rest)
                if len(sized):
                    walk.give_up(rows[sized], pos[sized] != sized_ends)
            if len(waiting):
                pos[waiting] = walk.skip_one_by_one(read_all, pos[waiting], rows[waiting], depth)
            return parts, pos

        return walk_blocks


def _entry(walk_key: WalkColumn, walk_value: WalkColumn) -> WalkColumn:
    def walk_entry(walk: Walk, pos: Positions, rows: Positions, depth: int) -> tuple[Raw, Positions]:
        keys, pos = walk_key(walk, pos, rows, depth)
        values, pos = walk_value(walk, pos, rows, depth)
        return (keys, values), pos

    return walk_entry


def _numbers(low: int, high: int) -> WalkColumn:
    def walk_numbers(walk: Walk, pos: Positions, rows: Positions, depth: int) -> tuple[Raw, Positions]:
        numbers, pos = walk.read_longs(pos, rows)
        if len(numbers) and (numbers.min() < low or numbers.max() > high):
            wrong = (numbers < low) | (numbers > high)
            walk.give_up(rows, wrong)
            numbers = np.where(wrong, 0, numbers)
        return numbers, pos

    return walk_numbers


def _read_longs(walk: Walk, pos: Positions, rows: Positions, depth: int) -> tuple[Raw, Positions]:
    return walk.read_longs(pos, rows)


def _skip_longs(walk: Walk, pos: Positions, rows: Positions, depth: int) -> tuple[Raw, Positions]:
    return None, walk.skip_longs(pos, rows)


def _read_booleans(walk: Walk, pos: Positions, rows: Positions, depth: int) -> tuple[Raw, Positions]:
    values = walk.bytes_at(pos)
    if np.bitwise_or.reduce(values) > 1:
        walk.give_up(rows, values > 1)
    return values, pos + 1


def _fixed(size: int) -> WalkColumn:
    def walk_fixed(walk: Walk, pos: Positions, rows: Positions, depth: int) -> tuple[Raw, Positions]:
        ends = pos + size
        return (pos, ends), ends

    return walk_fixed


def _read_slices(walk: Walk, pos: Positions, rows: Positions, depth: int) -> tuple[Raw, Positions]:
    slices = walk.read_slices(pos, rows)
    return slices, slices[1]


def _texts(keep: bool) -> WalkColumn:
    def walk_texts(walk: Walk, pos: Positions, rows: Positions, depth: int) -> tuple[Raw, Positions]:
        starts, ends = walk.read_slices(pos, rows)
        walk.add_texts(starts, ends, rows)
        return None, ends

    return _read_slices if keep else walk_texts


def _read_uuids(walk: Walk, pos: Positions, rows: Positions, depth: int) -> tuple[Raw, Positions]:
    starts, ends = walk.read_slices(pos, rows)
    kinds = _UUID_KINDS.take(walk.bytes_at(starts[:, None] + UUID_PLACES))
    short, different = ends - starts != 36, kinds != _UUID_PATTERN
    if short.any() or different.any():
        walk.give_up(rows, short | different.any(axis=1))
    return (starts, ends), ends


def _decimals(avro_type: AvroType, walk_slices: WalkColumn) -> WalkColumn:
    """Return what walks decimals: numbers so short that they always fit are only skipped."""
    assert avro_type.logical is not None
    bits = avro_type.logical.precision * 3321928094 // 10**9  # log2(10), rounded down
    always_fits = (bits + 1) // 8  # one bit is the sign

    def walk_decimals(walk: Walk, pos: Positions, rows: Positions, depth: int) -> tuple[Raw, Positions]:
        (starts, ends), pos = walk_slices(walk, pos, rows, depth)
        lengths = ends - starts
        if len(lengths) and lengths.max() > always_fits:
            for at in np.flatnonzero((lengths > always_fits) & (ends <= walk.ends[rows])).tolist():
                if not fits_precision(avro_type, walk.data[starts[at] : ends[at]]):
                    walk.given_up[rows[at]] = True
        return (starts, ends), pos

    return walk_decimals


_PRIMITIVES: Final[dict[str, WalkColumn]] = {
    "null": lambda walk, pos, rows, depth: (None, pos),
    "boolean": _read_booleans,
    "float": _fixed(4),
    "double": _fixed(8),
    "bytes": _read_slices,
}
