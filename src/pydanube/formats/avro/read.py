"""Reads Avro payloads one by one, and checks them on the way; resolves what was written with another schema.

Checked beyond what reading needs: the end of the payload is the end of the datum, text is UTF-8, booleans are 0 or 1,
an int has 32 bits, a varint has at most 10 bytes, the size that a block says is its size, a decimal has no more digits
than its precision, dates and times are in range, a UUID is one. Values of recursive types are nested NESTING_MAX deep
at most.

Resolution follows the specification. fastavro departs from it: a default comes as its JSON (a text for bytes, records
with their own defaults missing), the logical type is the writer's, an alias takes a field away from the field that has
its name, and an enum matches a record of its name.
"""

from __future__ import annotations

import copy
import datetime
import struct
import uuid
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from pydanube.model.errors import Invalid

from .types import (
    NESTING_MAX,
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
    fits_precision,
    is_uuid,
    matches,
    to_decimal,
    value_range,
)

Read = Callable[[bytes, int, int], tuple[Any, int]]
"""Reads the datum at a position, at a depth; returns the value and the position behind it. Raises BadDatum, IndexError
or struct.error if the bytes are not a datum of the writer's type, and Invalid if the reader's has no value for it."""

_float = struct.Struct("<f")
_double = struct.Struct("<d")
_EPOCH: Final = datetime.datetime(1970, 1, 1)  # noqa: DTZ001 - local timestamps have no zone
_EPOCH_UTC: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_EPOCH_DAY: Final = datetime.date(1970, 1, 1)


class BadDatum(Exception):
    """The bytes are not a datum of the type. `path` is where, innermost first."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.path: list[str] = []

    def describe(self) -> str:
        where = "".join(reversed(self.path)).lstrip(".")
        return f"{where[:150]}: {self}" if where else str(self)


TOO_DEEP: Final = f"values are nested more than {NESTING_MAX} deep"
OUT_OF_BYTES: Final = (IndexError, struct.error)
"""What reading behind the end of the data raises."""


def read_payload(read: Read, payload: bytes) -> Any:
    """Return the value of a payload, which is exactly one datum. Raises BadDatum if it is not, and Invalid."""
    try:
        value, end = read(payload, 0, 0)
    except OUT_OF_BYTES:
        end = len(payload) + 1
    if end > len(payload):
        raise BadDatum(f"it ends too early, after {len(payload)} bytes")
    if end < len(payload):
        raise BadDatum(f"{len(payload) - end} bytes follow the datum, which ends at byte {end}")
    return value


class Resolution:
    """Builds functions that read data of a writer's type as values of a reader's. What cannot be resolved raises
    Invalid only when data is read that needs it: a branch of a union that does not occur does no harm.

    Subclasses may change the form of the values.
    """

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
            case Array(), Array():
                return _build_blocks(self.build(reader.items, writer.items), "[]")
            case Map(), Map():
                return self.build_map(self.build(reader.values, writer.values))
            case _ if not matches(reader, writer):
                return _fail(f"{writer.title} cannot be read as {reader.title}")
            case Record(), Record():
                return self._build_record(reader, writer)
            case EnumType(), EnumType():
                return _build_enum(reader, writer)
        return self.build_primitive(reader, writer)

    def build_primitive(self, reader: AvroType, writer: AvroType) -> Read:
        """Return what reads a primitive or fixed type of the writer, promoted to the reader's, with the reader's
        logical type."""
        read_raw = raw_reader(writer)
        convert = _conversion(reader, writer)
        if convert is None:
            return read_raw

        def read(data: bytes, pos: int, depth: int) -> tuple[Any, int]:
            value, pos = read_raw(data, pos, depth)
            return convert(value), pos

        return read

    def build_map(self, read_value: Read) -> Read:
        read_entries = _build_blocks(entry_reader(read_value), "{}")

        def read(data: bytes, pos: int, depth: int) -> tuple[Any, int]:
            entries, pos = read_entries(data, pos, depth)
            return dict(entries), pos

        return read

    def default_of(self, field: Field) -> Any:
        return default_value(field)

    def _build_writer_union(self, reader: AvroType, writer: Union) -> Read:
        branches = [self.build(reader, one) for one in writer.branches]
        count = len(branches)

        def read(data: bytes, pos: int, depth: int) -> tuple[Any, int]:
            index, pos = _read_long(data, pos, depth)
            if not 0 <= index < count:
                raise BadDatum(f"{index} is not the number of a branch of the union, which has {count}")
            if depth > NESTING_MAX:
                raise BadDatum(TOO_DEEP)
            return branches[index](data, pos, depth + 1)

        return read

    def _build_record(self, reader: Record, writer: Record) -> Read:
        pair = (reader.name, writer.name)
        if pair in self._records:
            return self._records[pair]
        plan: _RecordPlan | None = None

        def read(data: bytes, pos: int, depth: int) -> tuple[Any, int]:
            nonlocal plan
            if plan is None:  # made at first use: pairs of recursive types can form very long paths
                plan = self._plan_record(reader, writer)
            if depth > NESTING_MAX:
                raise BadDatum(TOO_DEEP)
            record = dict.fromkeys(plan.names)
            name, target = "", None
            try:
                for name, target, one in plan.steps:  # noqa: B007 - the handler needs the last
                    value, pos = one(data, pos, depth + 1)
                    if target is not None:
                        record[target] = value
            except BadDatum as error:
                error.path.append(f".{name}")
                raise
            except Invalid as error:
                raise error if target is None else Invalid(f"field {target}: {error.message}"[:300]) from None
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
                plan.steps.append((source.name, None, self.build(source.type, source.type)))
            else:
                plan.steps.append((source.name, target.name, self.build(target.type, source.type)))
        for one, found in sources:
            if found is None and one.has_default:
                plan.defaults.append((one.name, self.default_of(one)))
            elif found is None:
                plan.steps.append(("", None, _fail(f"the field {one.name} of {reader.name} has no default")))
        return plan


class Check(Resolution):
    """Builds functions that read data of a type only to check it. The values have no meaning."""

    def build_primitive(self, reader: AvroType, writer: AvroType) -> Read:
        if writer.kind == "long" and writer.logical is None:
            return _skip_long
        size = writer.size if isinstance(writer, Fixed) else {"float": 4, "double": 8}.get(writer.kind)
        if size is None or writer.is_decimal:
            return raw_reader(writer)
        return lambda data, pos, depth: (None, pos + size)

    def _build_record(self, reader: Record, writer: Record) -> Read:
        pair = (reader.name, writer.name)
        if pair in self._records:
            return self._records[pair]
        fields: list[tuple[str, Read]] = []

        def check(data: bytes, pos: int, depth: int) -> tuple[Any, int]:
            if depth > NESTING_MAX:
                raise BadDatum(TOO_DEEP)
            name = ""
            try:
                for name, one in fields:  # noqa: B007 - the handler needs the last
                    _, pos = one(data, pos, depth + 1)
            except BadDatum as error:
                error.path.append(f".{name}")
                raise
            return None, pos

        self._records[pair] = check
        fields += [(one.name, self.build(one.type, one.type)) for one in writer.fields]
        return check


class _RecordPlan(NamedTuple):
    """How a record is read: its fields in the order they are written, with their names in the writer and in the reader;
    None for those that the reader does not have."""

    names: list[str]
    steps: list[tuple[str, str | None, Read]]
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
    def read(data: bytes, pos: int, depth: int) -> tuple[Any, int]:
        raise Invalid(reason)

    return read


def _build_enum(reader: EnumType, writer: EnumType) -> Read:
    symbols = [one if one in reader.known else reader.default for one in writer.symbols]
    count = len(symbols)

    def read(data: bytes, pos: int, depth: int) -> tuple[Any, int]:
        index, pos = _read_long(data, pos, depth)
        if not 0 <= index < count:
            raise BadDatum(f"{index} is not the number of a symbol of {writer.name}, which has {count}")
        symbol = symbols[index]
        if symbol is None:
            raise Invalid(f"{writer.symbols[index]} is not a symbol of {reader.name}, which has no default")
        return symbol, pos

    return read


def entry_reader(read_value: Read) -> Read:
    """Return what reads an entry of a map, as a pair."""

    def read(data: bytes, pos: int, depth: int) -> tuple[Any, int]:
        key, pos = _read_string(data, pos, depth)
        value, pos = read_value(data, pos, depth)
        return (key, value), pos

    return read


def _build_blocks(read_item: Read, step: str) -> Read:
    def read(data: bytes, pos: int, depth: int) -> tuple[Any, int]:
        if depth > NESTING_MAX:
            raise BadDatum(TOO_DEEP)
        items: list[Any] = []
        try:
            while True:
                count, pos = _read_long(data, pos, depth)
                if count == 0:
                    return items, pos
                end = None
                if count < 0:
                    count = -count
                    size, pos = _read_length(data, pos)
                    end = pos + size
                if count > len(data) - pos:  # every item has a byte at least
                    raise BadDatum(f"{count} items are announced and {len(data) - pos} bytes are left")
                for _ in range(count):
                    item, pos = read_item(data, pos, depth + 1)
                    items.append(item)
                if end is not None and pos != end:
                    raise BadDatum(f"a block has {pos - end + size} bytes and says {size}")
        except BadDatum as error:
            error.path.append(step)
            raise

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


def raw_reader(writer: AvroType) -> Read:
    """Return what reads a primitive or fixed type as it is written, and checks that it has a meaning in its logical
    type."""
    kind = writer.kind
    if isinstance(writer, Fixed):
        read_size = _fixed_reader(writer.size)
        return _decimal_reader(writer, read_size) if writer.is_decimal else read_size
    if kind == "int" or (kind == "long" and writer.logical is not None):
        return _number_reader(writer)
    if kind == "bytes" and writer.is_decimal:
        return _decimal_reader(writer, _read_bytes)
    return _read_uuid if kind == "string" and writer.logical is not None else _RAW[kind]


def _read_long(data: bytes, pos: int, depth: int) -> tuple[int, int]:
    """Return a zigzag varint and the position behind it."""
    byte = data[pos]
    pos += 1
    if byte < 128:
        return (byte >> 1) ^ -(byte & 1), pos
    number = byte & 0x7F
    shift = 7
    while True:
        byte = data[pos]
        pos += 1
        number |= (byte & 0x7F) << shift
        if byte < 128:
            break
        shift += 7
        if shift > 63:
            raise BadDatum("a number has more than 10 bytes")
    if number >> 64:
        raise BadDatum("a number has more than 64 bits")
    return (number >> 1) ^ -(number & 1), pos


def _skip_long(data: bytes, pos: int, depth: int) -> tuple[Any, int]:
    return (None, pos + 1) if data[pos] < 128 else _read_long(data, pos, depth)


def _read_length(data: bytes, pos: int) -> tuple[int, int]:
    length = data[pos]
    if length < 128 and not length & 1:
        length, pos = length >> 1, pos + 1
    else:
        length, pos = _read_long(data, pos, 0)
    if length < 0:
        raise BadDatum(f"a length is negative: {length}")
    if pos + length > len(data):
        raise BadDatum(f"{length} bytes are announced and {len(data) - pos} are left")
    return length, pos


def _number_reader(writer: AvroType) -> Read:
    low, high = value_range(writer)

    def read(data: bytes, pos: int, depth: int) -> tuple[Any, int]:
        number, pos = _read_long(data, pos, depth)
        if not low <= number <= high:
            raise BadDatum(f"{number} is out of range for {writer.title}, which has {low} to {high}")
        return number, pos

    return read


def _read_null(data: bytes, pos: int, depth: int) -> tuple[Any, int]:
    return None, pos


def _read_boolean(data: bytes, pos: int, depth: int) -> tuple[Any, int]:
    if data[pos] > 1:
        raise BadDatum(f"{data[pos]} is not a boolean")
    return data[pos] == 1, pos + 1


def _read_float(data: bytes, pos: int, depth: int) -> tuple[Any, int]:
    return _float.unpack_from(data, pos)[0], pos + 4


def _read_double(data: bytes, pos: int, depth: int) -> tuple[Any, int]:
    return _double.unpack_from(data, pos)[0], pos + 8


def _read_bytes(data: bytes, pos: int, depth: int) -> tuple[Any, int]:
    length, pos = _read_length(data, pos)
    return data[pos : pos + length], pos + length


def _read_string(data: bytes, pos: int, depth: int) -> tuple[Any, int]:
    length, pos = _read_length(data, pos)
    try:
        return data[pos : pos + length].decode(), pos + length
    except UnicodeDecodeError as error:
        raise BadDatum(f"a text is not UTF-8: {error.reason} at byte {error.start}") from None


def _read_uuid(data: bytes, pos: int, depth: int) -> tuple[Any, int]:
    text, pos = _read_string(data, pos, depth)
    if not is_uuid(text):
        raise BadDatum(f"{text[:40]!r} is not a UUID")
    return text, pos


def _fixed_reader(size: int) -> Read:
    def read(data: bytes, pos: int, depth: int) -> tuple[Any, int]:
        end = pos + size
        if end > len(data):
            raise IndexError
        return data[pos:end], end

    return read


def _decimal_reader(writer: AvroType, read_raw: Read) -> Read:
    def read(data: bytes, pos: int, depth: int) -> tuple[Any, int]:
        value, pos = read_raw(data, pos, depth)
        if not fits_precision(writer, value):
            assert writer.logical is not None
            raise BadDatum(f"a decimal has more than {writer.logical.precision} digits")
        return value, pos

    return read


_RAW: Final[dict[str, Read]] = {
    "null": _read_null,
    "boolean": _read_boolean,
    "long": _read_long,
    "float": _read_float,
    "double": _read_double,
    "bytes": _read_bytes,
    "string": _read_string,
}
