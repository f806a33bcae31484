"""Avro's types: the tree that the text of a definition is parsed to, and the rules of names, defaults and matching.

The parser follows the specification and refuses what it does not allow, with the place. Names are full names once they
are parsed. What comes from outside is bounded here, so that everything that walks the tree may recurse:

    no path from the root to a type, each named type entered once, is longer than NESTING_MAX
    all defaults together have at most DEFAULT_VALUES_MAX values, with those of records in them filled in
    the items of an array take at least one byte each
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

import msgspec

from pydanube.formats.all_formats import shown
from pydanube.model.errors import Invalid
from pydanube.model.schemas import SchemaDefinition

NESTING_MAX: Final = 100
"""How deep the types of a schema, and the values of a recursive type, may be nested. The C code of fastavro recurses
without a check of its own, and some threads have small stacks."""

REFERENCE_DEPTH_MAX: Final = 16
DEFAULT_VALUES_MAX: Final = 100_000
PRECISION_MAX: Final = 10_000
FIXED_SIZE_MAX: Final = 2**31 - 1

PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_COMPLEX: Final = frozenset({"record", "error", "enum", "fixed", "array", "map"})
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FULL_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")

INT_RANGE: Final = (-(2**31), 2**31 - 1)
LONG_RANGE: Final = (-(2**63), 2**63 - 1)

_DAY_MILLIS: Final = 86_400_000
_DATES: Final = (-719_162, 2_932_896)  # years 1 to 9999: what Python's datetime and Spark's columns have
_TIMESTAMP_MILLIS: Final = (_DATES[0] * _DAY_MILLIS, (_DATES[1] + 1) * _DAY_MILLIS - 1)
_TIMESTAMP_MICROS: Final = (_TIMESTAMP_MILLIS[0] * 1000, (_TIMESTAMP_MILLIS[1] + 1) * 1000 - 1)

LOGICAL_RANGES: Final[Mapping[tuple[str, str], tuple[int, int]]] = {
    ("int", "date"): _DATES,
    ("int", "time-millis"): (0, _DAY_MILLIS - 1),
    ("long", "time-micros"): (0, _DAY_MILLIS * 1000 - 1),
    ("long", "timestamp-millis"): _TIMESTAMP_MILLIS,
    ("long", "timestamp-micros"): _TIMESTAMP_MICROS,
    ("long", "timestamp-nanos"): LONG_RANGE,
    ("long", "local-timestamp-millis"): _TIMESTAMP_MILLIS,
    ("long", "local-timestamp-micros"): _TIMESTAMP_MICROS,
    ("long", "local-timestamp-nanos"): LONG_RANGE,
}
"""The logical types of whole numbers, and the numbers that stand for a date or a time."""


@dataclass(slots=True, eq=False)
class Logical:
    """A logical type that is valid for the type it annotates."""

    name: str
    precision: int = 0
    scale: int = 0

    def same(self, other: Logical | None) -> bool:
        return other is not None and (self.name, self.precision, self.scale) == (
            other.name,
            other.precision,
            other.scale,
        )


@dataclass(slots=True, eq=False, kw_only=True)
class AvroType:
    """A type. Two of them are equal only if they are the same object: named types are shared, and may be recursive."""

    kind: str
    logical: Logical | None = None
    """None also where the annotation is unknown or not valid: it is ignored then, as the specification says."""
    annotation: dict[str, Any] = field(default_factory=dict)
    """The attributes `logicalType`, `precision` and `scale` as they are written."""
    height: int = 0
    """How many types are below it at most; types that are not complete yet count as one."""

    @property
    def is_decimal(self) -> bool:
        return self.logical is not None and self.logical.name == "decimal"

    @property
    def title(self) -> str:
        """The type as a message names it."""
        return f"{self.kind} {self.logical.name}" if self.logical else self.kind


@dataclass(slots=True, eq=False, kw_only=True)
class Named(AvroType):
    name: str
    aliases: tuple[str, ...] = ()

    @property
    def short_name(self) -> str:
        return self.name.rpartition(".")[2]

    @property
    def title(self) -> str:
        return f"{self.kind} {self.name}"


NO_DEFAULT: Final = object()


@dataclass(slots=True, eq=False)
class Field:
    name: str
    type: AvroType
    aliases: tuple[str, ...] = ()
    default: Any = NO_DEFAULT
    """The default as JSON has it."""

    @property
    def has_default(self) -> bool:
        return self.default is not NO_DEFAULT


@dataclass(slots=True, eq=False, kw_only=True)
class Record(Named):
    fields: list[Field] = field(default_factory=list)


@dataclass(slots=True, eq=False, kw_only=True)
class EnumType(Named):
    symbols: tuple[str, ...]
    default: str | None = None
    known: frozenset[str] = frozenset()
    """The symbols, to look one up: there can be very many."""

    def __post_init__(self) -> None:
        self.known = frozenset(self.symbols)


@dataclass(slots=True, eq=False, kw_only=True)
class Fixed(Named):
    size: int


@dataclass(slots=True, eq=False, kw_only=True)
class Array(AvroType):
    items: AvroType


@dataclass(slots=True, eq=False, kw_only=True)
class Map(AvroType):
    values: AvroType


@dataclass(slots=True, eq=False, kw_only=True)
class Union(AvroType):
    branches: list[AvroType]
    index: dict[tuple[str | int, ...], int] | None = None
    """Made by `choose_branch`."""

    @property
    def title(self) -> str:
        return f"union of {', '.join(one.title for one in self.branches[:8])}"


def parse_types(definition: SchemaDefinition, references: Mapping[str, SchemaDefinition]) -> AvroType:
    """Return the type that a definition describes. Raises Invalid with the place and the reason."""
    parser = _Parser(references)
    root = parser.parse_text(definition.text)
    parser.check_arrays()
    parser.check_defaults()
    return root


def children(avro_type: AvroType) -> Iterator[AvroType]:
    match avro_type:
        case Record():
            yield from (one.type for one in avro_type.fields)
        case Array():
            yield avro_type.items
        case Map():
            yield avro_type.values
        case Union():
            yield from avro_type.branches


class _Parser:
    """Parses one definition with its references: they share one table of names."""

    def __init__(self, references: Mapping[str, SchemaDefinition]) -> None:
        self._references = references
        self._names: dict[str, Named] = {}
        self._loading: list[str] = []
        self._defaults: list[tuple[str, Field]] = []
        self._arrays: list[tuple[str, Array]] = []

    def parse_text(self, text: str, where: str = "$") -> AvroType:
        try:
            value = msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            raise Invalid(f"{where}: the definition is not JSON: {error}") from None
        except RecursionError:
            raise Invalid(f"{where}: the definition is nested too deeply") from None
        return self._parse(value, "", where, 0)

    def check_arrays(self) -> None:
        for where, array in self._arrays:
            if _takes_no_bytes(array.items, set()):
                raise Invalid(f"{where}: the items of the array take no bytes, so that nothing limits their number")

    def check_defaults(self) -> None:
        """Check the defaults, once all types are complete."""
        counter = _ValueCounter()
        for where, one in self._defaults:
            try:
                _json_value(one.type, one.default, 0, counter)
            except Invalid as error:
                raise Invalid(f"{where}: the default is not valid: {error.message}") from None

    def _parse(self, value: Any, namespace: str, where: str, depth: int) -> AvroType:
        if depth > NESTING_MAX:
            raise Invalid(f"{where}: types are nested more than {NESTING_MAX} deep")
        match value:
            case str():
                return self._parse_name(value, namespace, where)
            case list():
                parsed: AvroType = self._parse_union(value, namespace, where, depth)
            case dict():
                parsed = self._parse_object(value, namespace, where, depth)
            case _:
                raise Invalid(f"{where}: a type is a name, an object or a list, not {shown(value)}")
        parsed.height = 1 + max((one.height for one in children(parsed)), default=0)
        if parsed.height > NESTING_MAX:
            raise Invalid(f"{where}: types are nested more than {NESTING_MAX} deep")
        return parsed

    def _parse_name(self, name: str, namespace: str, where: str) -> AvroType:
        if name in PRIMITIVES:
            return AvroType(kind=name)
        candidates = [name] if "." in name or not namespace else [f"{namespace}.{name}", name]
        for candidate in candidates:
            if candidate in self._names:
                return self._names[candidate]
        for candidate in candidates:
            if candidate in self._references:
                return self._load(candidate, where)
        raise Invalid(f"{where}: the type {shown(name)} is not defined here, and no reference has this name")

    def _load(self, name: str, where: str) -> AvroType:
        """Parse the definition of a reference, and return the type that it defines under its name."""
        if name in self._loading:
            raise Invalid(f"{where}: the references {' -> '.join([*self._loading, name])[:200]} form a circle")
        if len(self._loading) == REFERENCE_DEPTH_MAX:
            raise Invalid(f"{where}: references are nested more than {REFERENCE_DEPTH_MAX} deep")
        self._loading.append(name)
        self.parse_text(self._references[name].text, f"reference {name}")
        self._loading.pop()
        if name not in self._names:
            raise Invalid(f"{where}: the reference {name} defines no type of that name")
        return self._names[name]

    def _parse_union(self, value: list[Any], namespace: str, where: str, depth: int) -> Union:
        branches = []
        seen: set[str] = set()
        for position, one in enumerate(value):
            branch = self._parse(one, namespace, extend_path(where, f"[{position}]"), depth + 1)
            if isinstance(branch, Union):
                raise Invalid(f"{where}[{position}]: a union may not contain a union")
            key = branch.name if isinstance(branch, Named) else branch.kind
            if key in seen:
                raise Invalid(f"{where}[{position}]: the union has {key} twice")
            seen.add(key)
            branches.append(branch)
        return Union(kind="union", branches=branches)

    def _parse_object(self, value: dict[str, Any], namespace: str, where: str, depth: int) -> AvroType:
        kind = value.get("type")
        match kind:
            case "record" | "error":
                return self._parse_record(value, namespace, where, depth)
            case "enum":
                return self._parse_enum(value, namespace, where)
            case "fixed":
                return self._parse_fixed(value, namespace, where)
            case "array":
                items = self._parse(_required(value, "items", where), namespace, extend_path(where, "[]"), depth + 1)
                array = Array(kind="array", items=items)
                self._arrays.append((where, array))
                return array
            case "map":
                values = self._parse(_required(value, "values", where), namespace, extend_path(where, "{}"), depth + 1)
                return Map(kind="map", values=values)
            case str() if kind in PRIMITIVES:
                parsed = AvroType(kind=kind)
                _annotate(parsed, value, where)
                return parsed
            case None if "type" not in value:
                raise Invalid(f'{where}: an object without "type" is not a type')
            case _:  # {"type": {...}} and {"type": "name.of.a.Type"}
                return self._parse(kind, namespace, where, depth + 1)

    def _parse_record(self, value: dict[str, Any], namespace: str, where: str, depth: int) -> Record:
        name, aliases, inner = self._parse_names(value, namespace, where)
        record = Record(kind="record", name=name, aliases=aliases)
        self._names[name] = record
        where = name if where == "$" else where
        fields = _required(value, "fields", where)
        if not isinstance(fields, list):
            raise Invalid(f"{where}: the fields of {name} are not a list")
        seen: set[str] = set()
        for one in fields:
            if not isinstance(one, dict):
                raise Invalid(f"{where}: a field of {name} is not an object but {shown(one)}")
            field_name = one.get("name")
            if not isinstance(field_name, str) or not _NAME.fullmatch(field_name):
                raise Invalid(f"{where}: {shown(field_name)} is not a name of a field")
            if field_name in seen:
                raise Invalid(f"{where}: the field {shown(field_name)} is there twice")
            seen.add(field_name)
            at = extend_path(where, f".{field_name}")
            parsed = Field(
                field_name,
                self._parse(_required(one, "type", at), inner, at, depth + 1),
                _names(one.get("aliases"), _NAME, at),
                one.get("default", NO_DEFAULT),
            )
            if parsed.has_default:
                self._defaults.append((at, parsed))
            record.fields.append(parsed)
        return record

    def _parse_enum(self, value: dict[str, Any], namespace: str, where: str) -> EnumType:
        name, aliases, _ = self._parse_names(value, namespace, where)
        symbols = _names(_required(value, "symbols", where), _NAME, f"{where}: symbols of {name}")
        if len(set(symbols)) < len(symbols):
            twice, _ = Counter(symbols).most_common(1)[0]
            raise Invalid(f"{where}: the enum {name} has the symbol {shown(twice)} twice")
        default = value.get("default")
        if default is not None and default not in symbols:
            raise Invalid(f"{where}: the default {shown(default)} is not a symbol of the enum {name}")
        parsed = EnumType(kind="enum", name=name, aliases=aliases, symbols=symbols, default=default)
        self._names[name] = parsed
        return parsed

    def _parse_fixed(self, value: dict[str, Any], namespace: str, where: str) -> Fixed:
        name, aliases, _ = self._parse_names(value, namespace, where)
        size = _required(value, "size", where)
        if type(size) is not int or not 0 <= size <= FIXED_SIZE_MAX:
            raise Invalid(f"{where}: {shown(size)} is not the size of a fixed: use 0 to {FIXED_SIZE_MAX}")
        parsed = Fixed(kind="fixed", name=name, aliases=aliases, size=size)
        _annotate(parsed, value, where)
        self._names[name] = parsed
        return parsed

    def _parse_names(self, value: dict[str, Any], namespace: str, where: str) -> tuple[str, tuple[str, ...], str]:
        """Return the full name, the full names of the aliases, and the namespace for the types inside."""
        name = _required(value, "name", where)
        if not isinstance(name, str) or not _FULL_NAME.fullmatch(name):
            raise Invalid(f"{where}: {shown(name)} is not a name of a type")
        own = value.get("namespace", namespace)
        if own is None:
            own = ""
        if not isinstance(own, str) or (own and not _FULL_NAME.fullmatch(own)):
            raise Invalid(f"{where}: {shown(own)} is not a namespace")
        if "." in name:
            own = name.rpartition(".")[0]
        full = _qualify(name, own)
        if full in PRIMITIVES or full in _COMPLEX or full == "union":
            raise Invalid(f"{where}: {full} is the name of one of Avro's own types")
        if full in self._names:
            raise Invalid(f"{where}: the type {full} is defined twice")
        aliases = tuple(_qualify(one, own) for one in _names(value.get("aliases"), _FULL_NAME, where))
        return full, aliases, own


def _required(value: dict[str, Any], key: str, where: str) -> Any:
    if key not in value:
        raise Invalid(f'{where}: "{key}" is missing')
    return value[key]


def _names(value: Any, pattern: re.Pattern[str], where: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise Invalid(f"{where}: {shown(value)} is not a list of names")
    for one in value:
        if not isinstance(one, str) or not pattern.fullmatch(one):
            raise Invalid(f"{where}: {shown(one)} is not a name")
    return tuple(value)


def _qualify(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def extend_path(where: str, step: str) -> str:
    """Return the path of what is below `where`, without its beginning where it is long."""
    path = where + step
    return path if len(path) <= 200 else f"...{path[-190:]}"


def _annotate(avro_type: AvroType, value: dict[str, Any], where: str) -> None:
    """Note the logical type; one that is unknown or not valid for the type is kept as text only."""
    name = value.get("logicalType")
    if not isinstance(name, str):
        return
    avro_type.annotation = {key: value[key] for key in ("logicalType", "precision", "scale") if key in value}
    kind = avro_type.kind
    sized = isinstance(avro_type, Fixed) and (name, avro_type.size) in {("uuid", 16), ("duration", 12)}
    if sized or (kind, name) in LOGICAL_RANGES or (kind, name) == ("string", "uuid"):
        avro_type.logical = Logical(name)
    elif name == "decimal" and kind in {"bytes", "fixed"}:
        precision, scale = value.get("precision"), value.get("scale", 0)
        if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision or precision < 1:
            return
        if isinstance(avro_type, Fixed) and precision > _digits(avro_type.size):
            return
        if precision > PRECISION_MAX:
            raise Invalid(f"{where}: a decimal of more than {PRECISION_MAX} digits is not supported")
        avro_type.logical = Logical(name, precision, scale)


def _digits(size: int) -> int:
    """Return how many decimal digits always fit into a signed number of `size` bytes."""
    return math.floor(math.log10(2) * (8 * size - 1)) if size else 0


def _takes_no_bytes(avro_type: AvroType, entered: set[int]) -> bool:
    match avro_type:
        case Record():
            if id(avro_type) in entered:
                return False  # no finite value is without bytes
            entered.add(id(avro_type))
            return all(_takes_no_bytes(one.type, entered) for one in avro_type.fields)
        case Fixed():
            return avro_type.size == 0
        case _:
            return avro_type.kind == "null"


# ---- defaults ----------------------------------------------------------------------------------------------------


class _ValueCounter:
    """Counts the values of defaults: records in records with defaults can multiply without end."""

    def __init__(self) -> None:
        self._count = 0

    def add(self) -> None:
        self._count += 1
        if self._count > DEFAULT_VALUES_MAX:
            raise Invalid(f"the defaults have more than {DEFAULT_VALUES_MAX} values")


def default_datum(avro_type: AvroType, default: Any) -> tuple[AvroType, Any]:
    """Return a default as a datum: a pair of a type and its raw value, which is without logical types.

    Raw values are None, bool, int, float, bytes and str. A list, a dictionary (of a map or a record) has such pairs for
    its parts; a union gives the pair of the branch that was chosen, which is the first that the default fits.
    """
    return _json_value(avro_type, default, 0, _ValueCounter())


def _default_json(datum: tuple[AvroType, Any]) -> Any:
    """Return a default as JSON writes it, with the defaults of records in it filled in."""
    match datum[1]:
        case bytes() as data:
            return data.decode("latin-1")
        case list() as items:
            return [_default_json(one) for one in items]
        case dict() as parts:
            return {key: _default_json(one) for key, one in parts.items()}
        case value:
            return value


def _json_value(avro_type: AvroType, value: Any, depth: int, counter: _ValueCounter) -> tuple[AvroType, Any]:
    counter.add()
    if depth > NESTING_MAX:
        raise Invalid("it is nested too deeply, or contains itself")

    def below(inner: AvroType, part: Any) -> tuple[AvroType, Any]:
        return _json_value(inner, part, depth + 1, counter)

    match avro_type:
        case Union():
            for branch in avro_type.branches:
                counter.add()
                if _fits(branch, value):
                    try:
                        return below(branch, value)
                    except Invalid:
                        continue
            raise Invalid(f"{shown(value)} fits no type of the {avro_type.title}")
        case Record() if isinstance(value, dict):
            parts = {}
            for one in avro_type.fields:
                if one.name not in value and not one.has_default:
                    raise Invalid(f"{avro_type.name} has the field {one.name}, which has no value")
                parts[one.name] = below(one.type, value.get(one.name, one.default))
            return avro_type, parts
        case Array() if isinstance(value, list):
            return avro_type, [below(avro_type.items, one) for one in value]
        case Map() if isinstance(value, dict):
            return avro_type, {key: below(avro_type.values, one) for key, one in value.items()}
        case _ if _fits(avro_type, value):
            return avro_type, _primitive_value(avro_type, value)
    raise Invalid(f"{shown(value)} is not a value of {avro_type.title}")


def _fits(avro_type: AvroType, value: Any) -> bool:
    """Say whether a JSON value may be a value of a type, without looking inside."""
    match avro_type.kind:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "int" | "long":
            low, high = value_range(avro_type)
            return type(value) is int and low <= value <= high
        case "float" | "double":
            return type(value) in {int, float} and _is_finite(value)
        case "string":
            return isinstance(value, str) and (avro_type.logical is None or is_uuid(value))
        case "bytes" | "fixed":
            if not isinstance(value, str) or not all(ord(one) < 256 for one in value):
                return False
            if isinstance(avro_type, Fixed) and len(value) != avro_type.size:
                return False
            return fits_precision(avro_type, value.encode("latin-1"))
        case "enum":
            assert isinstance(avro_type, EnumType)
            return isinstance(value, str) and value in avro_type.known
        case "array":
            return isinstance(value, list)
        case _:
            return isinstance(value, dict)


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


def _primitive_value(avro_type: AvroType, value: Any) -> Any:
    if avro_type.kind in {"bytes", "fixed"}:
        return value.encode("latin-1")
    return float(value) if avro_type.kind in {"float", "double"} else value


# ---- values ------------------------------------------------------------------------------------------------------

_UUID: Final = re.compile(r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}")


def is_uuid(text: str) -> bool:
    return _UUID.fullmatch(text) is not None


def value_range(avro_type: AvroType) -> tuple[int, int]:
    """Return the least and the greatest number of an int or long, of its logical type where it has one."""
    if avro_type.logical is not None:
        return LOGICAL_RANGES[avro_type.kind, avro_type.logical.name]
    return INT_RANGE if avro_type.kind == "int" else LONG_RANGE


def fits_precision(avro_type: AvroType, data: bytes) -> bool:
    """Say whether the bytes of a decimal have no more digits than its precision; other bytes always fit."""
    if avro_type.logical is None or not avro_type.is_decimal:
        return True
    bound: int = 10**avro_type.logical.precision
    return abs(int.from_bytes(data, "big", signed=True)) < bound


def to_decimal(data: bytes, logical: Logical) -> Decimal:
    unscaled = int.from_bytes(data, "big", signed=True)
    return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -logical.scale))


# ---- matching ----------------------------------------------------------------------------------------------------

PROMOTIONS: Final[Mapping[str, frozenset[str]]] = {
    "int": frozenset({"long", "float", "double"}),
    "long": frozenset({"float", "double"}),
    "float": frozenset({"double"}),
    "string": frozenset({"bytes"}),
    "bytes": frozenset({"string"}),
}
"""What a primitive type of the writer may be read as."""


def names_match(reader: Named, writer: Named) -> bool:
    """Say whether the names of two named types of one kind match: without the namespace, or by an alias."""
    return reader.short_name == writer.short_name or writer.name in reader.aliases


def matches(reader: AvroType, writer: AvroType) -> bool:
    """Say whether two types match as the specification means it, which chooses the branch of a reader's union."""
    if isinstance(reader, Union) or isinstance(writer, Union):
        return True
    if isinstance(reader, Array) and isinstance(writer, Array):
        return matches(reader.items, writer.items)
    if isinstance(reader, Map) and isinstance(writer, Map):
        return matches(reader.values, writer.values)
    if isinstance(reader, Fixed) and isinstance(writer, Fixed):
        return reader.size == writer.size and names_match(reader, writer)
    if isinstance(reader, Named) and isinstance(writer, Named):
        return reader.kind == writer.kind and names_match(reader, writer)
    return reader.kind == writer.kind or reader.kind in PROMOTIONS.get(writer.kind, frozenset())


def choose_branch(reader: Union, writer: AvroType) -> AvroType | None:
    """Return the branch of the reader's union that a type of the writer is read with, or None.

    A branch of the same full name or the same kind comes first, as in Avro's Java library: otherwise a union of long
    and int would read every int as a long, and a union of two records with one short name could not read its own data.
    Then the first that matches is taken, as the specification says.
    """
    index = reader.index
    if index is None:
        index = reader.index = _index_branches(reader)
    if isinstance(writer, Named):
        candidates = [index.get(key) for key in _name_keys(writer, writer.name)]
    elif writer.kind in PRIMITIVES:
        same = index.get((writer.kind,))
        if same is not None:
            return reader.branches[same]
        candidates = [index.get((kind,)) for kind in PROMOTIONS.get(writer.kind, frozenset())]
    else:
        candidates = [index.get((writer.kind,))]
    found = [one for one in candidates if one is not None]
    if isinstance(writer, Named) and candidates[0] is not None:
        return reader.branches[candidates[0]]
    branch = reader.branches[min(found)] if found else None
    if branch is None or isinstance(branch, Named):
        return branch
    return branch if matches(branch, writer) else None


_Key = tuple[str | int, ...]


def _name_keys(named: Named, full_name: str) -> list[_Key]:
    """Return the keys under which branches that match a named type are found: its name, as an alias, the short name."""
    size = named.size if isinstance(named, Fixed) else 0
    return [
        (named.kind, "name", size, full_name),
        (named.kind, "alias", size, full_name),
        (named.kind, "short name", size, full_name.rpartition(".")[2]),
    ]


def _index_branches(union: Union) -> dict[_Key, int]:
    """Return the positions of the branches by what they match; the first of several. Unions can be very long."""
    index: dict[_Key, int] = {}
    for position, branch in enumerate(union.branches):
        if isinstance(branch, Named):
            name, _, short_name = _name_keys(branch, branch.name)
            keys = [name, short_name, *(_name_keys(branch, alias)[1] for alias in branch.aliases)]
        else:
            keys = [(branch.kind,)]
        for key in keys:
            index.setdefault(key, position)
    return index


# ---- text --------------------------------------------------------------------------------------------------------


def to_json(root: AvroType, write_type: Callable[[AvroType, dict[str, Any]], None] | None = None) -> Any:
    """Return the type as JSON has it: full names, every named type where it is used first, no doc, no order, no other
    attributes. `write_type` may change the object of a primitive or fixed type after it was made."""
    written: set[str] = set()

    def write(avro_type: AvroType) -> Any:
        if isinstance(avro_type, Named):
            if avro_type.name in written:
                return avro_type.name
            written.add(avro_type.name)
        value: dict[str, Any] = {"type": avro_type.kind}
        if isinstance(avro_type, Named):
            value["name"] = avro_type.name
            if avro_type.aliases:
                value["aliases"] = sorted(avro_type.aliases)
        match avro_type:
            case Union():
                return [write(one) for one in avro_type.branches]
            case Record():
                value["fields"] = [write_field(one) for one in avro_type.fields]
            case EnumType():
                value["symbols"] = list(avro_type.symbols)
                if avro_type.default is not None:
                    value["default"] = avro_type.default
            case Array():
                value["items"] = write(avro_type.items)
            case Map():
                value["values"] = write(avro_type.values)
            case _:
                if isinstance(avro_type, Fixed):
                    value["size"] = avro_type.size
                value |= avro_type.annotation
                if write_type is not None:
                    write_type(avro_type, value)
                if len(value) == 1:
                    return avro_type.kind
        return value

    def write_field(one: Field) -> dict[str, Any]:
        value: dict[str, Any] = {"name": one.name, "type": write(one.type)}
        if one.aliases:
            value["aliases"] = sorted(one.aliases)
        if one.has_default:
            value["default"] = _default_json(default_datum(one.type, one.default))
        return value

    return write(root)
