"""Decodes Avro payloads to Arrow columns: a field of all payloads at once, with numpy.

The payloads are walked as `check` does it, by the writer's type; then `_Makers` makes the columns of the reader's type
of what the walk has read. What has no column that way is given up on: a payload that is not valid, a value that the
reader's schema does not allow, an array that is much longer than those of other rows. The rows that were given up on
are then read one by one, which decides: there is a value or the reason why not.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pydanube.formats.columns import Decoded
from pydanube.model.errors import Invalid

from .arrow import DECIMAL_DIGITS_MAX, avro_arrow_type, branch_names, value_branches
from .check import UUID_PLACES, Positions, Raw, Walk, Walkers, is_text
from .read import BadDatum, Read, Resolution, convert_raw, field_sources, read_payload
from .types import (
    Array,
    AvroType,
    EnumType,
    Field,
    Fixed,
    Map,
    Record,
    Union,
    choose_branch,
    default_datum,
    matches,
    value_range,
)

Make = Callable[[Walk, Raw, Positions], pa.Array]
"""Makes a column of the reader's Arrow type of what a walk has read of rows."""


class AvroColumnDecoder:
    """Decodes payloads of one writer's type as one reader's type."""

    def __init__(self, reader: AvroType, writer: AvroType) -> None:
        self._type = avro_arrow_type(reader)
        self._walk = Walkers().build(writer, keep=True)
        self._make = _Makers().build(reader, writer)
        self._read_row = _ArrowResolution().build(reader, writer)

    def decode(self, payloads: pa.Array) -> Decoded:
        count = len(payloads)
        if not count:
            return Decoded(pa.array([], self._type), {})
        _, offsets_buffer, data = payloads.buffers()
        offsets = np.frombuffer(offsets_buffer, np.int32, count + 1, payloads.offset * 4).astype(np.int64)
        parts = [memoryview(data)[offsets[0] : offsets[-1]]] if data is not None else []
        walk = Walk(parts, offsets - offsets[0])
        raw = walk.run(self._walk)
        if raw is None and walk.given_up.all():
            values = pa.nulls(count, self._type)
        else:
            values = self._make(walk, raw, np.arange(count))
        left = np.flatnonzero(walk.given_up | walk.skipped)
        return Decoded(values, {}) if not len(left) else self._read_rest(payloads, values, left)

    def _read_rest(self, payloads: pa.Array, values: pa.Array, left: Positions) -> Decoded:
        """Read the rows that the columns were given up on, one by one."""
        found: list[Any] = []
        errors: dict[int, str] = {}
        for row, payload in zip(left.tolist(), payloads.take(pa.array(left)).to_pylist(), strict=True):
            value = None
            try:
                value = read_payload(self._read_row, payload)
            except BadDatum as error:
                errors[row] = f"the payload is not valid: {error.describe()}"
            except Invalid as error:
                errors[row] = error.message
            found.append(value)
        order = np.arange(len(values))
        order[left] = np.arange(len(values), len(values) + len(left))
        together = pa.concat_arrays([values, pa.array(found, self._type)])
        return Decoded(together.take(pa.array(order)), errors)


# -- by column ---------------------------------------------------------------------------------------------------------


class _Makers:
    """Builds the functions that make columns. The reader's types do not contain themselves; the writer's may."""

    def __init__(self) -> None:
        self._types: dict[int, pa.DataType] = {}

    def _type_of(self, reader: AvroType) -> pa.DataType:
        """Return the Arrow type of a type, which is made once: a union with many branches is asked for as often."""
        found = self._types.get(id(reader))
        if found is None:
            found = self._types[id(reader)] = avro_arrow_type(reader)
        return found

    def build(self, reader: AvroType, writer: AvroType) -> Make:
        if isinstance(writer, Union):
            return self._writer_union(reader, writer)
        if isinstance(reader, Union):
            return self._reader_union(reader, writer)
        kind = self._type_of(reader)
        match reader, writer:
            case Array(), Array():
                return _array(self.build(reader.items, writer.items), kind)
            case Map(), Map():
                return _map(self.build(reader.values, writer.values), kind)
            case _ if not matches(reader, writer):
                return _give_up_on(kind)
            case Record(), Record():
                return self._record(reader, writer)
            case EnumType(), EnumType():
                return _enum(reader, writer)
        return _primitive(reader, writer, kind)

    def _record(self, reader: Record, writer: Record) -> Make:
        kind = self._type_of(reader)
        sources = field_sources(reader, writer)
        if any(found is None and not one.has_default for one, found in sources):
            return _give_up_on(kind)
        targets = {found.name: (at, one) for at, (one, found) in enumerate(sources) if found is not None}
        steps: list[tuple[int | None, Make]] = []
        for source in writer.fields:
            at, target = targets.get(source.name, (None, None))
            if target is None and _is_endless(source.type):
                return _give_up_on(kind)
            steps.append((at, self.build(source.type if target is None else target.type, source.type)))
        resolution = _ArrowResolution()
        defaults = [
            (at, pa.array([resolution.default_of(one)], kind.field(at).type))
            for at, (one, found) in enumerate(sources)
            if found is None
        ]

        def make(walk: Walk, raw: Raw, rows: Positions) -> pa.Array:
            if raw is None:  # of a type inside itself
                return _give_up_on(kind)(walk, raw, rows)
            columns: list[Any] = [None] * len(sources)
            for (at, one), part in zip(steps, raw, strict=True):
                values = one(walk, part, rows)
                if at is not None:
                    columns[at] = values
            for at, value in defaults:
                columns[at] = value.take(pa.array(np.zeros(len(rows), np.int8)))
            return _struct(columns, kind, len(rows))

        return make

    def _writer_union(self, reader: AvroType, writer: Union) -> Make:
        branches = [self.build(reader, one) for one in writer.branches]
        kind = self._type_of(reader)

        def make(walk: Walk, raw: Raw, rows: Positions) -> pa.Array:
            parts = []
            places = []
            for index, chosen, part in raw:
                if len(chosen) == len(rows):
                    only: pa.Array = branches[index](walk, part, rows)
                    return only
                if len(chosen):
                    parts.append(branches[index](walk, part, rows[chosen]))
                    places.append(chosen)
            order = np.zeros(len(rows), np.int64)  # rows without a branch were given up on
            place = np.concatenate(places) if places else order[:0]
            order[place] = np.arange(len(place))
            return pa.concat_arrays(parts).take(pa.array(order)) if parts else pa.nulls(len(rows), kind)

        return make

    def _reader_union(self, reader: Union, writer: AvroType) -> Make:
        kind = self._type_of(reader)
        branch = choose_branch(reader, writer)
        if branch is None:
            return _give_up_on(kind)
        if branch.kind == "null":
            return lambda walk, raw, rows: pa.nulls(len(rows), kind)
        make_branch = self.build(branch, writer)
        if len(value_branches(reader)) <= 1:
            return make_branch
        place = kind.get_field_index(_branch_name(reader, branch))

        def make(walk: Walk, raw: Raw, rows: Positions) -> pa.Array:
            values = make_branch(walk, raw, rows)
            columns = [values if at == place else pa.nulls(len(rows), one.type) for at, one in enumerate(kind)]
            return _struct(columns, kind, len(rows))

        return make


def _give_up_on(kind: pa.DataType) -> Make:
    """Return what leaves all rows to be read one by one."""

    def make(walk: Walk, raw: Raw, rows: Positions) -> pa.Array:
        walk.given_up[rows] = True
        return pa.nulls(len(rows), kind)

    return make


def _is_endless(avro_type: AvroType) -> bool:
    """Say whether a type contains itself, so that it has no columns."""
    try:
        avro_arrow_type(avro_type)
    except Invalid:
        return True
    return False


def _struct(columns: list[pa.Array], kind: pa.DataType, count: int) -> pa.Array:
    if not columns:
        return pa.array([{}] * count, kind)
    return pa.StructArray.from_arrays(columns, fields=list(kind))


def _enum(reader: EnumType, writer: EnumType) -> Make:
    resolved = [one if one in reader.known else reader.default for one in writer.symbols]
    symbols = pa.array([*resolved, None], pa.string())
    unknown = np.array([one is None for one in symbols.to_pylist()], np.bool_)

    def make(walk: Walk, raw: Raw, rows: Positions) -> pa.Array:
        if unknown[:-1].any():
            walk.give_up(rows, unknown[raw])
        return symbols.take(pa.array(raw))

    return make


def _array(make_items: Make, kind: pa.DataType) -> Make:
    def make(walk: Walk, raw: Raw, rows: Positions) -> pa.Array:
        items, offsets, _ = _in_order(make_items, kind.value_type, walk, raw, rows)
        return pa.ListArray.from_arrays(pa.array(offsets), items, type=kind)

    return make


def _map(make_values: Make, kind: pa.DataType) -> Make:
    entry = pa.struct([kind.key_field, kind.item_field])

    def make_entries(walk: Walk, raw: Raw, rows: Positions) -> pa.Array:
        keys, values = raw
        columns = [_take_text(walk, keys, rows), make_values(walk, values, rows)]
        return pa.StructArray.from_arrays(columns, fields=list(entry))

    def make(walk: Walk, raw: Raw, rows: Positions) -> pa.Array:
        entries, offsets, owners = _in_order(make_entries, entry, walk, raw, rows)
        keys, values = entries.field(0), entries.field(1)
        codes = keys.dictionary_encode().indices.to_numpy(zero_copy_only=False).astype(np.int64)
        pairs = owners * (len(keys) + 1) + codes
        found, counts = np.unique(pairs, return_counts=True)
        if len(found) < len(pairs):  # the last of equal keys counts, which is seen row by row
            walk.given_up[rows[found[counts > 1] // (len(keys) + 1)]] = True
        return pa.MapArray.from_arrays(pa.array(offsets), keys, values, kind)

    return make


def _in_order(
    make_items: Make, kind: pa.DataType, walk: Walk, parts: list[tuple[Positions, Raw]], rows: Positions
) -> tuple[pa.Array, Any, Positions]:
    """Return the items of arrays or maps in the order of rows, the offsets of each row's items, and each item's row."""
    offsets = np.zeros(len(rows) + 1, np.int32)
    if not parts:
        return pa.array([], kind), offsets, rows[:0]
    owner = np.concatenate([owners for owners, _ in parts])
    np.cumsum(np.bincount(owner, minlength=len(rows)), out=offsets[1:])
    items = pa.concat_arrays([make_items(walk, raw, rows[owners]) for owners, raw in parts])
    if len(parts) > 1:
        order = np.argsort(owner, kind="stable")
        items, owner = items.take(pa.array(order)), owner[order]
    return items, offsets, owner


# -- values ------------------------------------------------------------------------------------------------------------


def _primitive(reader: AvroType, writer: AvroType, kind: pa.DataType) -> Make:
    """Return what makes a column of a primitive or fixed type, promoted to the reader's, with its logical type."""
    match writer.kind:
        case "null":
            return lambda walk, raw, rows: pa.nulls(len(rows))
        case "boolean":
            return lambda walk, raw, rows: pa.array(raw == 1)
        case "int" | "long":
            return _numbers(reader, writer, kind)
        case "float" | "double":
            return _fractions(writer.kind, kind)
    if reader.logical is None or (isinstance(reader, Fixed) and reader.logical.name == "duration"):
        if reader.kind == "string" or writer.kind == "string":
            return lambda walk, raw, rows: _take_text(walk, raw, rows).cast(kind)
        return lambda walk, raw, rows: _take_bytes(walk, *_safe(walk, raw, rows), kind)
    if isinstance(reader, Fixed) and not reader.is_decimal:
        return _uuids_of_bytes
    if not reader.logical.same(writer.logical) or (reader.is_decimal and reader.logical.precision > DECIMAL_DIGITS_MAX):
        return _give_up_on(kind)
    return _decimals(kind) if reader.is_decimal else _uuids


def _safe(walk: Walk, raw: Raw, rows: Positions) -> tuple[Positions, Positions]:
    """Return starts and ends that are inside the payloads and ascend: those of rows that were given up on are empty."""
    starts, ends = raw
    if walk.is_whole:
        return starts, ends
    wrong = np.flatnonzero(walk.given_up[rows])
    starts, ends = starts.copy(), ends.copy()
    starts[wrong] = ends[wrong] = walk.starts[rows[wrong]]
    return starts, ends


def _take_bytes(walk: Walk, starts: Positions, ends: Positions, kind: pa.DataType) -> pa.Array:
    """Return slices of the data, which ascend, as a binary or string array. Whether text is UTF-8 is not checked.

    Slices and the gaps between them are one array over the whole data, of which Arrow takes every second value.
    """
    count = len(starts)
    if not count:
        return pa.array([], kind)
    offsets = np.empty(2 * count, np.int32)
    offsets[0::2] = starts
    offsets[1::2] = ends
    both = pa.Array.from_buffers(kind, 2 * count - 1, [None, pa.py_buffer(offsets), pa.py_buffer(walk.data)])
    return both.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32)))


def _take_text(walk: Walk, raw: Raw, rows: Positions) -> pa.Array:
    """Return slices of the data as a string array. Rows with text that is not UTF-8 are given up on."""
    starts, ends = _safe(walk, raw, rows)
    texts = _take_bytes(walk, starts, ends, pa.string())
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        wrong = np.array([not is_text(one) for one in texts.cast(pa.binary()).to_pylist()], np.bool_)
        walk.give_up(rows, wrong)
        return _take_bytes(walk, starts, np.where(wrong, starts, ends), pa.string())
    return texts


def _numbers(reader: AvroType, writer: AvroType, kind: pa.DataType) -> Make:
    low, high = value_range(reader) if reader.kind in {"int", "long"} else value_range(writer)
    factor = 1000 if reader.logical is not None and reader.logical.name.endswith("timestamp-millis") else 1
    narrow = np.int32 if pa.types.is_int32(kind) or pa.types.is_date32(kind) else np.int64

    def make(walk: Walk, numbers: Raw, rows: Positions) -> pa.Array:
        if len(numbers) and (numbers.min() < low or numbers.max() > high):
            wrong = (numbers < low) | (numbers > high)
            walk.give_up(rows, wrong)
            numbers = np.where(wrong, 0, numbers)
        if reader.kind in {"float", "double"}:
            return pa.array(numbers.astype(np.float64)).cast(kind, safe=False)
        return _from_numpy((numbers * factor).astype(narrow), kind)

    return make


def _from_numpy(values: Any, kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _fractions(written: str, kind: pa.DataType) -> Make:
    def make(walk: Walk, raw: Raw, rows: Positions) -> pa.Array:
        words = walk.words_at(_safe(walk, raw, rows)[0])
        if written == "double":
            return _from_numpy(words, kind)
        single = words.astype(np.uint32).view(np.float32)
        if pa.types.is_float32(kind):
            return _from_numpy(single, kind)
        with np.errstate(invalid="ignore"):  # some forms of NaN
            return pa.array(single.astype(np.float64))

    return make


def _uuids(walk: Walk, raw: Raw, rows: Positions) -> pa.Array:
    return pc.ascii_lower(_take_bytes(walk, *_safe(walk, raw, rows), pa.string()))


_HEX: Final = np.frombuffer(b"0123456789abcdef", np.uint8)
_DASHES: Final = np.array([8, 13, 18, 23])
_DIGITS: Final = np.setdiff1d(UUID_PLACES, _DASHES)


def _uuids_of_bytes(walk: Walk, raw: Raw, rows: Positions) -> pa.Array:
    """Return fixed values of 16 bytes as the texts of UUIDs."""
    starts, _ = _safe(walk, raw, rows)
    data = walk.bytes_at(starts[:, None] + np.arange(16))
    texts = np.empty((len(data), 36), np.uint8)
    texts[:, _DASHES] = ord("-")
    texts[:, _DIGITS[0::2]] = _HEX.take(data >> 4)
    texts[:, _DIGITS[1::2]] = _HEX.take(data & 15)
    offsets = np.arange(0, 36 * len(data) + 1, 36, dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), len(data), [None, pa.py_buffer(offsets), pa.py_buffer(texts)])


_WIDTH: Final = np.arange(16)


def _decimals(kind: pa.DataType) -> Make:
    """Return what makes decimals, big-endian numbers of any length, of the 16 bytes of a decimal128."""

    def make(walk: Walk, raw: Raw, rows: Positions) -> pa.Array:
        starts, ends = _safe(walk, raw, rows)
        lengths = ends - starts
        negative = (walk.bytes_at(starts) > 127) & (lengths > 0)
        sign = np.where(negative, 255, 0).astype(np.uint8)[:, None]
        data = walk.bytes_at(np.maximum(ends[:, None] - 1 - _WIDTH, 0))
        numbers = np.where(lengths[:, None] > _WIDTH, data, sign)
        return _from_numpy(np.ascontiguousarray(numbers), kind).slice(0, len(rows))

    return make


# -- by row ------------------------------------------------------------------------------------------------------------


class _ArrowResolution(Resolution):
    """Builds functions that read single payloads as values that `pyarrow.array` takes for `avro_arrow_type`.

    The values are those of `AvroSchema.decode`, in another form: unions of several types are dictionaries with the name
    of the branch, maps are lists of pairs, UUIDs and very long decimals are text, times of day are numbers.
    """

    def build(self, reader: AvroType, writer: AvroType) -> Read:
        if isinstance(reader, Union) and not isinstance(writer, Union) and len(value_branches(reader)) > 1:
            branch = choose_branch(reader, writer)
            if branch is not None and branch.kind != "null":
                return _named(_branch_name(reader, branch), super().build(branch, writer))
        return super().build(reader, writer)

    def build_primitive(self, reader: AvroType, writer: AvroType) -> Read:
        read = super().build_primitive(reader, writer)
        if reader.logical is None:
            return read

        def read_logical(data: bytes, pos: int, depth: int) -> tuple[Any, int]:
            value, pos = read(data, pos, depth)
            return _arrow_scalar(reader, value), pos

        return read_logical

    def build_map(self, read_value: Read) -> Read:
        read = super().build_map(read_value)

        def read_pairs(data: bytes, pos: int, depth: int) -> tuple[Any, int]:
            value, pos = read(data, pos, depth)
            return list(value.items()), pos

        return read_pairs

    def default_of(self, field: Field) -> Any:
        return _arrow_datum(field.type, *default_datum(field.type, field.default))


def _branch_name(union: Union, branch: AvroType) -> str:
    """Return the name of the struct's field for a branch that is not null."""
    found = next(name for name, one in zip(branch_names(union), union.branches, strict=True) if one is branch)
    assert found is not None
    return found


def _named(name: str, read: Read) -> Read:
    def read_named(data: bytes, pos: int, depth: int) -> tuple[Any, int]:
        value, pos = read(data, pos, depth)
        return {name: value}, pos

    return read_named


def _arrow_scalar(reader: AvroType, value: Any) -> Any:
    """Return a value of a type with a logical type, as Arrow takes it."""
    assert reader.logical is not None
    match value:
        case datetime.time():
            micros = ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond
            return micros // 1000 if reader.kind == "int" else micros
        case UUID():
            return str(value)
        case bytes() if reader.logical.name == "uuid":
            return str(UUID(bytes=value))
        case Decimal() if reader.logical.precision > DECIMAL_DIGITS_MAX:
            return f"{value:f}"
    return value


def _arrow_datum(declared: AvroType, avro_type: AvroType, raw: Any) -> Any:
    """Return a default as Arrow takes it; `avro_type` is the branch of `declared` if that is a union."""
    match avro_type:
        case Record():
            types = {one.name: one.type for one in avro_type.fields}
            value: Any = {key: _arrow_datum(types[key], *one) for key, one in raw.items()}
        case Map():
            value = [(key, _arrow_datum(avro_type.values, *one)) for key, one in raw.items()]
        case Array():
            value = [_arrow_datum(avro_type.items, *one) for one in raw]
        case EnumType():
            value = raw
        case _:
            value = convert_raw(avro_type, raw)
            if avro_type.logical is not None:
                value = _arrow_scalar(avro_type, value)
    if isinstance(declared, Union) and len(value_branches(declared)) > 1 and avro_type.kind != "null":
        return {_branch_name(declared, avro_type): value}
    return value
