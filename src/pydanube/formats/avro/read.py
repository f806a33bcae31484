"""Reads Avro data that was written with one schema as values of another, as the specification resolves them.

fastavro can do this too, but departs from the specification: a default comes as its JSON (a text for bytes, records
with their own defaults missing), the logical type is the writer's, an alias takes a field away from the field that has
its name, and an enum matches a record of its name. It reads what needs no resolution; this module reads the rest.

The payload is known to be valid for the writer, so nothing is checked but what depends on the reader.
"""

from __future__ import annotations

import copy
import datetime
import struct
import uuid
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from pydanube.model.errors import Invalid

from .check import read_long
from .types import (
    PROMOTIONS,
    Array,
    AvroType,
    EnumType,
    Field,
    Fixed,
    Logical,
    Map,
    Record,
    Union,
    choose_branch,
    default_datum,
    is_uuid,
    names_match,
    to_decimal,
    value_range,
)

Read = Callable[[bytes, int], tuple[Any, int]]
"""Reads the datum at a position; returns the value and the position behind it."""

_float = struct.Struct("<f")
_double = struct.Struct("<d")
_EPOCH: Final = datetime.datetime(1970, 1, 1)  # noqa: DTZ001 - local timestamps have no zone
_EPOCH_UTC: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_EPOCH_DAY: Final = datetime.date(1970, 1, 1)


def build_reader(reader: AvroType, writer: AvroType) -> Read:
    """Return what reads data of the writer as values of the reader. What cannot be resolved raises Invalid only when
    data is read that needs it: a branch of a union that does not occur does no harm."""
    return Resolution().build(reader, writer)


class Resolution:
    """Builds readers. Subclasses may change the form of the values."""

    def __init__(self) -> None:
        self._records: dict[tuple[str, str], Read] = {}

    def build(self, reader: AvroType, writer: AvroType) -> Read:
        if isinstance(writer, Union):
            return self._build_writer_union(reader, writer)
        if isinstance(reader, Union):
            branch = choose_branch(reader, writer)
            if branch is None:
                return _fail(f"{writer.title} is not in the {reader.title}")
            return self.build(branch, writer)
        match reader, writer:
            case Record(), Record() if names_match(reader, writer):
                return self._build_record(reader, writer)
            case EnumType(), EnumType() if names_match(reader, writer):
                return _build_enum(reader, writer)
            case Array(), Array():
                return _build_array(self.build(reader.items, writer.items))
            case Map(), Map():
                return self.build_map(self.build(reader.values, writer.values))
            case Fixed(), Fixed() if reader.size == writer.size and names_match(reader, writer):
                return self.build_primitive(reader, writer)
            case _ if reader.kind == writer.kind and type(reader) is AvroType:
                return self.build_primitive(reader, writer)
            case _ if reader.kind in PROMOTIONS.get(writer.kind, frozenset()):
                return self.build_primitive(reader, writer)
        return _fail(f"{writer.title} cannot be read as {reader.title}")

    def build_primitive(self, reader: AvroType, writer: AvroType) -> Read:
        return _build_primitive(reader, writer)

    def build_map(self, read_value: Read) -> Read:
        return _build_map(read_value)

    def default_of(self, field: Field) -> Any:
        return default_value(field)

    def _build_writer_union(self, reader: AvroType, writer: Union) -> Read:
        branches = [self.build(reader, one) for one in writer.branches]

        def read(data: bytes, pos: int) -> tuple[Any, int]:
            index, pos = read_long(data, pos)
            return branches[index](data, pos)

        return read

    def _build_record(self, reader: Record, writer: Record) -> Read:
        pair = (reader.name, writer.name)
        if pair in self._records:
            return self._records[pair]
        plan: _RecordPlan | None = None

        def read(data: bytes, pos: int) -> tuple[Any, int]:
            nonlocal plan
            if plan is None:  # made at first use: pairs of recursive types can form very long paths
                plan = self._plan_record(reader, writer)
            record = dict.fromkeys(plan.names)
            name = None
            try:
                for name, one in plan.steps:
                    value, pos = one(data, pos)
                    if name is not None:
                        record[name] = value
            except Invalid as error:
                raise error if name is None else Invalid(f"field {name}: {error.message}"[:300]) from None
            for name, value in plan.defaults:
                record[name] = copy.deepcopy(value)
            return record, pos

        self._records[pair] = read
        return read

    def _plan_record(self, reader: Record, writer: Record) -> _RecordPlan:
        sources = field_sources(reader, writer)
        plan = _RecordPlan([one.name for one in reader.fields], [], [])
        targets = {source.name: target for target, source in sources if source is not None}
        for source in writer.fields:
            target = targets.get(source.name)
            if target is None:
                plan.steps.append((None, self.build(source.type, source.type)))
            else:
                plan.steps.append((target.name, self.build(target.type, source.type)))
        for one, found in sources:
            if found is None and one.has_default:
                plan.defaults.append((one.name, self.default_of(one)))
            elif found is None:
                plan.steps.insert(0, (None, _fail(f"the field {one.name} of {reader.name} has no default")))
        return plan


class _RecordPlan(NamedTuple):
    """How a record is read: its fields in the order they are written, None for those that the reader does not have."""

    names: list[str]
    steps: list[tuple[str | None, Read]]
    defaults: list[tuple[str, Any]]


def field_sources(reader: Record, writer: Record) -> list[tuple[Field, Field | None]]:
    """Return each field of the reader with the field of the writer that it is read from: the one of its name, else the
    one that an alias names and that no other field takes by its name; None: the default."""
    written = {one.name: one for one in writer.fields}
    names = {one.name for one in reader.fields}
    sources: list[tuple[Field, Field | None]] = []
    for one in reader.fields:
        source = written.get(one.name)
        for alias in one.aliases:
            if source is None and alias not in names:
                source = written.pop(alias, None)
        sources.append((one, source))
    return sources


def _fail(reason: str) -> Read:
    def read(data: bytes, pos: int) -> tuple[Any, int]:
        raise Invalid(reason)

    return read


def _build_enum(reader: EnumType, writer: EnumType) -> Read:
    symbols = [one if one in reader.known else reader.default for one in writer.symbols]

    def read(data: bytes, pos: int) -> tuple[Any, int]:
        index, pos = read_long(data, pos)
        symbol = symbols[index]
        if symbol is None:
            raise Invalid(f"{writer.symbols[index]} is not a symbol of {reader.name}, which has no default")
        return symbol, pos

    return read


def _build_array(read_item: Read) -> Read:
    def read(data: bytes, pos: int) -> tuple[Any, int]:
        items: list[Any] = []
        while True:
            count, pos = read_long(data, pos)
            if count == 0:
                return items, pos
            if count < 0:
                _, pos = read_long(data, pos)
            for _ in range(abs(count)):
                item, pos = read_item(data, pos)
                items.append(item)

    return read


def _build_map(read_value: Read) -> Read:
    def read_entry(data: bytes, pos: int) -> tuple[Any, int]:
        key, pos = _read_string(data, pos)
        value, pos = read_value(data, pos)
        return (key, value), pos

    read_entries = _build_array(read_entry)

    def read(data: bytes, pos: int) -> tuple[Any, int]:
        entries, pos = read_entries(data, pos)
        return dict(entries), pos

    return read


def _build_primitive(reader: AvroType, writer: AvroType) -> Read:
    """Return what reads a primitive or fixed type of the writer, promoted to the reader's, with the reader's logical
    type."""
    read_raw = _fixed_reader(writer.size) if isinstance(writer, Fixed) else _RAW[writer.kind]
    convert = _conversion(reader, writer)
    if convert is None:
        return read_raw

    def read(data: bytes, pos: int) -> tuple[Any, int]:
        value, pos = read_raw(data, pos)
        return convert(value), pos

    return read


def _conversion(reader: AvroType, writer: AvroType) -> Callable[[Any], Any] | None:
    if reader.kind in {"float", "double"} and writer.kind in {"int", "long"}:
        return (lambda value: _float.unpack(_float.pack(value))[0]) if reader.kind == "float" else float
    if reader.kind == "bytes" and writer.kind == "string" and reader.logical is None:
        return str.encode
    if reader.kind == "string" and writer.kind == "bytes" and reader.logical is None:
        return _decode_text
    if reader.logical is None:
        return None
    return _logical_conversion(reader, reader.logical)


def _logical_conversion(reader: AvroType, logical: Logical) -> Callable[[Any], Any] | None:
    if logical.name == "decimal":
        return lambda value: _check_decimal(value, logical)
    if reader.kind == "string":
        return _to_uuid
    convert = _LOGICAL.get(logical.name)
    if convert is None or reader.kind == "fixed":
        return None
    low, high = value_range(reader)

    def check(value: int) -> Any:
        if not low <= value <= high:
            raise Invalid(f"{value} is out of range for {reader.title}")
        return convert(value)

    return check


def _check_decimal(value: Any, logical: Logical) -> Any:
    data = value if isinstance(value, bytes) else value.encode()
    if abs(int.from_bytes(data, "big", signed=True)) >= 10**logical.precision:
        raise Invalid(f"a decimal has more than {logical.precision} digits")
    return to_decimal(data, logical)


def _decode_text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise Invalid(f"the bytes are not UTF-8 text: {error.reason} at byte {error.start}") from None


def _to_uuid(value: Any) -> uuid.UUID:
    text = value if isinstance(value, str) else _decode_text(value)
    if not is_uuid(text):
        raise Invalid(f"{text[:40]!r} is not a UUID")
    return uuid.UUID(text)


def _to_time(micros: int) -> datetime.time:
    seconds, micros = divmod(micros, 1_000_000)
    return datetime.time(seconds // 3600, seconds // 60 % 60, seconds % 60, micros)


_LOGICAL: Final[dict[str, Callable[[int], Any]]] = {
    "date": lambda days: _EPOCH_DAY + datetime.timedelta(days=days),
    "time-millis": lambda millis: _to_time(millis * 1000),
    "time-micros": _to_time,
    "timestamp-millis": lambda millis: _EPOCH_UTC + datetime.timedelta(microseconds=millis * 1000),
    "timestamp-micros": lambda micros: _EPOCH_UTC + datetime.timedelta(microseconds=micros),
    "local-timestamp-millis": lambda millis: _EPOCH + datetime.timedelta(microseconds=millis * 1000),
    "local-timestamp-micros": lambda micros: _EPOCH + datetime.timedelta(microseconds=micros),
}


def default_value(field: Field) -> Any:
    """Return the default of a field that has one, as reading data of it would give it."""
    return _datum_value(*default_datum(field.type, field.default))


def _datum_value(avro_type: AvroType, raw: Any) -> Any:
    match raw:
        case list():
            return [_datum_value(*one) for one in raw]
        case dict():
            return {key: _datum_value(*one) for key, one in raw.items()}
    return raw if isinstance(avro_type, EnumType) else convert_raw(avro_type, raw)


def convert_raw(avro_type: AvroType, raw: Any) -> Any:
    """Return the value of a primitive or fixed type of its raw value, which is without logical types."""
    convert = _conversion(avro_type, avro_type)
    return raw if convert is None else convert(raw)


# ---- raw values --------------------------------------------------------------------------------------------------


def _read_null(data: bytes, pos: int) -> tuple[Any, int]:
    return None, pos


def _read_boolean(data: bytes, pos: int) -> tuple[Any, int]:
    return data[pos] == 1, pos + 1


def _read_float(data: bytes, pos: int) -> tuple[Any, int]:
    return _float.unpack_from(data, pos)[0], pos + 4


def _read_double(data: bytes, pos: int) -> tuple[Any, int]:
    return _double.unpack_from(data, pos)[0], pos + 8


def _read_bytes(data: bytes, pos: int) -> tuple[Any, int]:
    length, pos = read_long(data, pos)
    return data[pos : pos + length], pos + length


def _read_string(data: bytes, pos: int) -> tuple[Any, int]:
    length, pos = read_long(data, pos)
    return data[pos : pos + length].decode(), pos + length


def _fixed_reader(size: int) -> Read:
    return lambda data, pos: (data[pos : pos + size], pos + size)


_RAW: Final[dict[str, Read]] = {
    "null": _read_null,
    "boolean": _read_boolean,
    "int": read_long,
    "long": read_long,
    "float": _read_float,
    "double": _read_double,
    "bytes": _read_bytes,
    "string": _read_string,
}
