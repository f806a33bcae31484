"""Decodes Avro payloads to Arrow columns: a field of all payloads at once, with numpy.

`_Plan` builds a function for each pair of a reader's and a writer's type, which reads the values at the positions of a
`Walk` and returns them with the positions behind them. What such a function cannot do, it gives up on: a payload that
is not valid, a value that the reader's schema does not allow, an array that is much longer than those of other rows.
The rows that were given up on are then read one by one by `rows`, which decides: it finds a value or the reason.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from pydanube.formats.columns import Decoded
from pydanube.model.errors import Invalid

from .arrow import avro_arrow_type, value_branches
from .check import DatumCheck, Positions
from .primitives import ReadColumn, give_up_on, read_fixed, read_primitive
from .read import field_sources
from .rows import ArrowResolution, branch_name
from .types import (
    PROMOTIONS,
    Array,
    AvroType,
    EnumType,
    Fixed,
    Map,
    Record,
    Union,
    choose_branch,
    names_match,
)
from .walk import Walk

_FEW: Final = 24
"""So few rows with items left in an array are given up on: one by one they are faster."""


class AvroColumnDecoder:
    """Decodes payloads of one writer's type as one reader's type."""

    def __init__(self, reader: AvroType, writer: AvroType) -> None:
        self._type = avro_arrow_type(reader)
        self._read_columns = _Plan().build(reader, writer)
        self._check = DatumCheck(writer)
        self._read_row = ArrowResolution().build(reader, writer)

    def decode(self, payloads: pa.Array) -> Decoded:
        if not len(payloads):
            return Decoded(pa.array([], self._type), {})
        walk = Walk(payloads)
        rows = np.arange(len(payloads))
        values, ends = self._read_columns(walk, walk.starts, rows)
        left = np.flatnonzero(walk.given_up | (ends != walk.ends))
        return Decoded(values, {}) if not len(left) else self._read_rest(payloads, values, left)

    def _read_rest(self, payloads: pa.Array, values: pa.Array, left: Positions) -> Decoded:
        """Read the rows that the columns were given up on, one by one."""
        found: list[Any] = []
        errors: dict[int, str] = {}
        for row, payload in zip(left.tolist(), payloads.take(pa.array(left)).to_pylist(), strict=True):
            value = None
            fault = self._check.find_fault(payload)
            if fault is not None:
                errors[row] = f"the payload is not valid: {fault}"
            else:
                try:
                    value = self._read_row(payload, 0)[0]
                except Invalid as error:
                    errors[row] = error.message
            found.append(value)
        order = np.arange(len(values))
        order[left] = np.arange(len(values), len(values) + len(left))
        together = pa.concat_arrays([values, pa.array(found, self._type)])
        return Decoded(together.take(pa.array(order)), errors)


class _Plan:
    """Builds the functions that read columns. The reader's types do not contain themselves; the writer's may."""

    def __init__(self) -> None:
        self._types: dict[int, pa.DataType] = {}

    def _type_of(self, reader: AvroType) -> pa.DataType:
        """Return the Arrow type of a type, which is made once: a union with many branches is asked for as often."""
        found = self._types.get(id(reader))
        if found is None:
            found = self._types[id(reader)] = avro_arrow_type(reader)
        return found

    def build(self, reader: AvroType, writer: AvroType) -> ReadColumn:
        if isinstance(writer, Union):
            return self._writer_union(reader, writer)
        if isinstance(reader, Union):
            return self._reader_union(reader, writer)
        match reader, writer:
            case Record(), Record() if names_match(reader, writer):
                return self._record(reader, writer)
            case EnumType(), EnumType() if names_match(reader, writer):
                return _enum(reader, writer)
            case Array(), Array():
                return _array(self.build(reader.items, writer.items), self._type_of(reader))
            case Map(), Map():
                return _map(self.build(reader.values, writer.values), self._type_of(reader))
            case Fixed(), Fixed() if reader.size == writer.size and names_match(reader, writer):
                return read_fixed(reader, writer)
            case _ if reader.kind == writer.kind and type(reader) is AvroType:
                return read_primitive(reader, writer)
            case _ if reader.kind in PROMOTIONS.get(writer.kind, frozenset()):
                return read_primitive(reader, writer)
        return give_up_on(self._type_of(reader))

    def _record(self, reader: Record, writer: Record) -> ReadColumn:
        kind = self._type_of(reader)
        sources = field_sources(reader, writer)
        if any(found is None and not one.has_default for one, found in sources):
            return give_up_on(self._type_of(reader))
        targets = {found.name: (at, one) for at, (one, found) in enumerate(sources) if found is not None}
        steps: list[tuple[int | None, ReadColumn]] = []
        for source in writer.fields:
            at, target = targets.get(source.name, (None, None))
            if target is not None:
                steps.append((at, self.build(target.type, source.type)))
            elif _is_endless(source.type):
                return give_up_on(self._type_of(reader))
            else:
                steps.append((None, self.build(source.type, source.type)))
        resolution = ArrowResolution()
        defaults = [
            (at, pa.array([resolution.default_of(one)], kind.field(at).type))
            for at, (one, found) in enumerate(sources)
            if found is None
        ]

        def read(walk: Walk, pos: Positions, rows: Positions) -> tuple[pa.Array, Positions]:
            columns: list[Any] = [None] * len(sources)
            for at, one in steps:
                values, pos = one(walk, pos, rows)
                if at is not None:
                    columns[at] = values
            for at, value in defaults:
                columns[at] = value.take(pa.array(np.zeros(len(rows), np.int8)))
            return _struct(columns, kind, len(rows)), pos

        return read

    def _writer_union(self, reader: AvroType, writer: Union) -> ReadColumn:
        branches = [self.build(reader, one) for one in writer.branches]
        kind = self._type_of(reader)

        def read(walk: Walk, pos: Positions, rows: Positions) -> tuple[pa.Array, Positions]:
            indexes, pos = walk.read_longs(pos, rows)
            wrong = (indexes < 0) | (indexes >= len(branches))
            if wrong.any():
                walk.give_up(rows, wrong)
                indexes = np.where(wrong, 0, indexes)
            parts: list[pa.Array] = []
            order = np.empty(len(rows), np.int64)
            done = 0
            for index in np.unique(indexes).tolist():
                chosen = np.flatnonzero(indexes == index)
                if len(chosen) == len(rows):
                    read_all: ReadColumn = branches[index]
                    return read_all(walk, pos, rows)
                values, pos[chosen] = branches[index](walk, pos[chosen], rows[chosen])
                parts.append(values)
                order[chosen] = np.arange(done, done + len(chosen))
                done += len(chosen)
            return pa.concat_arrays(parts).take(pa.array(order)) if parts else pa.array([], kind), pos

        return read

    def _reader_union(self, reader: Union, writer: AvroType) -> ReadColumn:
        branch = choose_branch(reader, writer)
        if branch is None:
            return give_up_on(self._type_of(reader))
        kind = self._type_of(reader)
        if branch.kind == "null":
            return lambda walk, pos, rows: (pa.nulls(len(rows), kind), pos)
        read_branch = self.build(branch, writer)
        if len(value_branches(reader)) <= 1:
            return read_branch
        place = kind.get_field_index(branch_name(reader, branch))

        def read(walk: Walk, pos: Positions, rows: Positions) -> tuple[pa.Array, Positions]:
            values, pos = read_branch(walk, pos, rows)
            columns = [values if at == place else pa.nulls(len(rows), one.type) for at, one in enumerate(kind)]
            return _struct(columns, kind, len(rows)), pos

        return read


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


def _enum(reader: EnumType, writer: EnumType) -> ReadColumn:
    resolved = [one if one in reader.known else reader.default for one in writer.symbols]
    symbols = pa.array([*resolved, None], pa.string())
    unknown = np.array([one is None for one in symbols.to_pylist()], np.bool_)
    count = len(resolved)

    def read(walk: Walk, pos: Positions, rows: Positions) -> tuple[pa.Array, Positions]:
        indexes, pos = walk.read_longs(pos, rows)
        indexes = np.where((indexes < 0) | (indexes >= count), count, indexes)
        walk.give_up(rows, unknown[indexes])
        return symbols.take(pa.array(indexes)), pos

    return read


# -- arrays and maps ---------------------------------------------------------------------------------------------------


def _array(read_item: ReadColumn, kind: pa.DataType) -> ReadColumn:
    def read(walk: Walk, pos: Positions, rows: Positions) -> tuple[pa.Array, Positions]:
        items, offsets, _, pos = _read_blocks(read_item, kind.value_type, walk, pos, rows)
        return pa.ListArray.from_arrays(pa.array(offsets), items, type=kind), pos

    return read


def _map(read_value: ReadColumn, kind: pa.DataType) -> ReadColumn:
    entry = pa.struct([kind.key_field, kind.item_field])

    def read_entry(walk: Walk, pos: Positions, rows: Positions) -> tuple[pa.Array, Positions]:
        starts, pos = walk.read_slices(pos, rows)
        keys = walk.take_text(starts, pos, rows)
        values, pos = read_value(walk, pos, rows)
        return pa.StructArray.from_arrays([keys, values], fields=list(entry)), pos

    def read(walk: Walk, pos: Positions, rows: Positions) -> tuple[pa.Array, Positions]:
        entries, offsets, owners, pos = _read_blocks(read_entry, entry, walk, pos, rows)
        keys, values = entries.field(0), entries.field(1)
        codes = keys.dictionary_encode().indices.to_numpy(zero_copy_only=False).astype(np.int64)
        pairs = owners * (len(keys) + 1) + codes
        found, counts = np.unique(pairs, return_counts=True)
        if len(found) < len(pairs):  # the last of equal keys counts, which is seen row by row
            walk.give_up(rows[found[counts > 1] // (len(keys) + 1)])
        return pa.MapArray.from_arrays(pa.array(offsets), keys, values, kind), pos

    return read


def _read_blocks(
    read_item: ReadColumn, kind: pa.DataType, walk: Walk, pos: Positions, rows: Positions
) -> tuple[pa.Array, Any, Positions, Positions]:
    """Read the blocks of arrays or maps, one item of each row at a time.

    Returns all items in the order of rows, the offsets of each row's items, the row of each item, and the positions.
    """
    pos = pos.copy()
    parts: list[pa.Array] = []
    owners: list[Positions] = []
    waiting = np.arange(len(pos))  # the rows with another block
    while len(waiting):
        counts, inner = walk.read_longs(pos[waiting], rows[waiting])
        negative = np.flatnonzero(counts < 0)
        sized, sized_ends = waiting[negative], inner[:0]
        if len(negative):  # the size of the block is behind its count
            sizes, behind = walk.read_longs(inner[negative], rows[sized])
            inner[negative] = behind
            sized_ends = behind + sizes
            counts = np.abs(counts)
        wrong = (counts < 0) | (counts > walk.ends[rows[waiting]] - inner)  # every item has a byte
        if wrong.any():
            walk.give_up(rows[waiting], wrong)
            counts = np.where(wrong, 0, counts)
        pos[waiting] = inner
        waiting, counts = waiting[counts > 0], counts[counts > 0]
        active, done = waiting, 0
        while len(active):
            if done and len(active) < _FEW:
                walk.give_up(rows[active])
                waiting = waiting[counts <= done]
                break
            items, pos[active] = read_item(walk, pos[active], rows[active])
            parts.append(items)
            owners.append(active)
            done += 1
            active = waiting[counts > done]
        if len(sized):
            walk.give_up(rows[sized], pos[sized] != sized_ends)
    return _in_order(parts, owners, kind, pos)


def _in_order(
    parts: list[pa.Array], owners: list[Positions], kind: pa.DataType, pos: Positions
) -> tuple[pa.Array, Any, Positions, Positions]:
    offsets = np.zeros(len(pos) + 1, np.int32)
    if not parts:
        return pa.array([], kind), offsets, pos[:0], pos
    owner = np.concatenate(owners)
    np.cumsum(np.bincount(owner, minlength=len(pos)), out=offsets[1:])
    items = pa.concat_arrays(parts)
    if len(parts) > 1:
        order = np.argsort(owner, kind="stable")
        items, owner = items.take(pa.array(order)), owner[order]
    return items, offsets, owner, pos
