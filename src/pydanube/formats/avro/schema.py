"""The format avro: a definition is Avro's JSON, a payload is one datum in the binary encoding, without a container.

The canonical form is Avro's parsing canonical form (full names, no doc, no order, no other attributes) with what
changes the values that readers get: defaults, aliases and logical types. Types of references are written out in it.

Payloads are checked by `check`, read by `read` and written by fastavro. What `check` accepts, `decode` gives a value
for. Values are what fastavro has: dictionaries for records, and datetime, Decimal and UUID for logical types. `encode`
takes for a union of several records a dictionary that fits one of them, or the pair of the name and the dictionary.
Fields with defaults may be left out.
"""

from __future__ import annotations

import functools
import io
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import fastavro
import msgspec
from fastavro.types import Schema

from pydanube.formats.all_formats import AnyBytes, InvalidRow, ParsedSchema
from pydanube.model.errors import Invalid
from pydanube.model.schemas import SchemaDefinition, SchemaFormat
from pydanube.model.text import one_line

from .check import DatumCheck
from .read import BadDatum, Read, Resolution, default_value, read_payload
from .types import (
    NESTING_MAX,
    Array,
    AvroType,
    Map,
    Named,
    Record,
    Union,
    children,
    parse_types,
    to_json,
    value_range,
)

_RESOLVED_WRITERS_MAX: Final = 64
"""How many writers' schemas a reader keeps the resolution of."""

_PARTS_MAX: Final = 10_000
"""How many parts of a value are looked at for the one that does not fit."""

_ROOT: Final = "-"
"""No name in Avro, so that no type has it."""


def parse(definition: SchemaDefinition, references: Mapping[str, SchemaDefinition]) -> AvroSchema:
    """Parse a definition; the names of references are the full names of the types that they define."""
    for name, one in references.items():
        if one.format is not SchemaFormat.AVRO:
            raise Invalid(f"the reference {name} has the format {one.format} and not avro")
    try:
        return AvroSchema(definition, parse_types(definition, references))
    except Invalid as error:
        raise Invalid(error.message[:500]) from None  # names can be as long as the definition


class AvroSchema:
    """A parsed Avro schema. `root` is its type."""

    def __init__(self, definition: SchemaDefinition, root: AvroType) -> None:
        self._definition = definition
        self.root = root
        self._resolved: dict[bytes, Read] = {}

    @property
    def definition(self) -> SchemaDefinition:
        return self._definition

    @functools.cached_property
    def canonical(self) -> bytes:
        return msgspec.json.encode(to_json(self.root), order="deterministic")

    @functools.cached_property
    def _check(self) -> DatumCheck:
        return DatumCheck(self.root)

    @functools.cached_property
    def _fastavro(self) -> Schema:
        """The schema for fastavro, in a record with one field, which has the same bytes: a long list of types as the
        outermost schema takes it seconds."""
        field = {"name": _ROOT, "type": _fastavro_json(self.root)}
        return fastavro.parse_schema({"type": "record", "name": _ROOT, "fields": [field]})

    @functools.cached_property
    def _ambiguous(self) -> bool:
        return any(isinstance(one, Union) and _prefers_float(one) for one in _all_types(self.root))

    @functools.cached_property
    def _recursive(self) -> bool:
        return _is_recursive(self.root, set(), set())

    @functools.cached_property
    def _has_defaults(self) -> bool:
        return any(
            field.has_default for one in _all_types(self.root) if isinstance(one, Record) for field in one.fields
        )

    def check(self, payloads: Sequence[AnyBytes]) -> InvalidRow | None:
        found = self._check.find_invalid(payloads)
        return None if found is None else InvalidRow(*found)

    def decode(self, payload: AnyBytes, writer: ParsedSchema | None = None) -> Any:
        source = self if writer is None else writer
        if not isinstance(source, AvroSchema):
            raise Invalid(f"data of the format {source.definition.format} cannot be read with an Avro schema")
        try:
            return read_payload(self._resolve(source), bytes(payload))
        except BadDatum as error:
            raise Invalid(f"the payload is not valid: {error.describe()}") from None

    def _resolve(self, writer: AvroSchema) -> Read:
        read = self._resolved.get(writer.canonical)
        if read is None:
            if len(self._resolved) >= _RESOLVED_WRITERS_MAX:
                self._resolved.clear()
            read = self._resolved[writer.canonical] = Resolution().build(self.root, writer.root)
        return read

    def encode(self, value: Any) -> bytes:
        if self._recursive and _is_deeper(value, NESTING_MAX):
            raise Invalid(f"the value is nested more than {NESTING_MAX} deep, or contains itself")
        try:
            return self._write(value)
        except Invalid as error:
            if self._has_defaults:
                with suppress(Invalid):
                    return self._write(_complete(self.root, value))
            reason = self._find_misfit(value) or error.message
            raise Invalid(f"the value does not fit the schema: {reason[:250]}") from None

    def _write(self, value: Any) -> bytes:
        """Return a value as bytes. Raises Invalid with the reason if it does not fit or leaves out a field."""
        stream = io.BytesIO()
        try:
            if self._ambiguous:
                value = _complete(self.root, value)
            fastavro.schemaless_writer(stream, self._fastavro, {_ROOT: value}, strict=True)
        except Exception as error:  # whatever the value makes fastavro raise: its own errors, TypeError, OverflowError
            raise Invalid(one_line(f"{type(error).__name__}: {error}")) from None
        data = stream.getvalue()
        fault = self._check.find_fault(data)
        if fault is not None:
            raise Invalid(fault)
        return data

    def _find_misfit(self, value: Any) -> str | None:
        schemas: dict[int, AvroSchema] = {}

        def write(avro_type: AvroType, part: Any) -> None:
            if id(avro_type) not in schemas:
                schemas[id(avro_type)] = AvroSchema(self._definition, avro_type)
            schemas[id(avro_type)]._write(part)

        return _find_misfit(self.root, value, write)


def _fastavro_json(root: AvroType) -> Any:
    """Return the schema for fastavro: only with logical types that are valid and that it knows, no defaults (this
    package applies them), and no names without a namespace beside names with one, which it would resolve wrongly."""
    named = [one for one in _all_types(root) if isinstance(one, Named)]
    mixed = len({("." in one.name) for one in named}) > 1

    def rename(name: str) -> str:
        return f"_.{name}" if mixed and "." not in name else name

    own_names = {one.name for one in named}

    def walk(value: Any) -> Any:
        match value:
            case str():
                return rename(value) if value in own_names else value
            case list():
                return [walk(one) for one in value]
            case dict():
                return walk_object(value)
        return value

    def walk_object(value: dict[str, Any]) -> dict[str, Any]:
        made = dict(value)
        made.pop("aliases", None)
        if "fields" in value:
            made["fields"] = [{"name": one["name"], "type": walk(one["type"])} for one in value["fields"]]
        for key in ("items", "values"):
            if key in value:
                made[key] = walk(value[key])
        if "name" in value:
            made["name"] = rename(value["name"])
        return made

    def write_type(avro_type: AvroType, value: dict[str, Any]) -> None:
        for key in avro_type.annotation:
            value.pop(key, None)
        if avro_type.logical is not None:
            value["logicalType"] = avro_type.logical.name
            if avro_type.logical.name == "decimal":
                value |= {"precision": avro_type.logical.precision, "scale": avro_type.logical.scale}

    return walk(to_json(root, write_type))


def _all_types(root: AvroType) -> Iterator[AvroType]:
    """Yield every type of a schema; a named type once."""
    named: set[str] = set()
    waiting = [root]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Named):
            if one.name in named:
                continue
            named.add(one.name)
        yield one
        waiting += children(one)


def _prefers_float(union: Union) -> bool:
    """Say whether fastavro would write whole numbers as floating point, though the union has a type for them."""
    kinds = {one.kind for one in union.branches if one.logical is None}
    return not kinds.isdisjoint({"float", "double"}) and not kinds.isdisjoint({"int", "long"})


def _is_recursive(avro_type: AvroType, path: set[int], done: set[int]) -> bool:
    if id(avro_type) in path:
        return True
    if id(avro_type) in done:
        return False
    if isinstance(avro_type, Record):
        path.add(id(avro_type))
    found = any(_is_recursive(one, path, done) for one in children(avro_type))
    path.discard(id(avro_type))
    done.add(id(avro_type))
    return found


def _is_deeper(value: Any, depth_max: int) -> bool:
    """Say whether dictionaries, lists and tuples are nested deeper than `depth_max`, level by level."""
    level = [value]
    for _ in range(depth_max):
        level = [
            part
            for one in level
            if isinstance(one, dict | list | tuple)
            for part in (one.values() if isinstance(one, dict) else one)
            if isinstance(part, dict | list | tuple)
        ]
        if not level:
            return False
    return True


# -- values before they are written -----------------------------------------------------------------------------------


def _complete(avro_type: AvroType, value: Any) -> Any:
    """Return a value in which fields of records that are left out have their defaults, and whole numbers that fastavro
    would write as floating point are pairs of type and number, which it writes as they are.

    In a union of several records and maps nothing is done: it is not known which of them is meant.
    """
    match avro_type:
        case Record() if isinstance(value, dict):
            filled = dict(value)
            for one in avro_type.fields:
                if one.name in value:
                    filled[one.name] = _complete(one.type, value[one.name])
                elif one.has_default:
                    filled[one.name] = _complete(one.type, default_value(one))
            return filled
        case Array() if isinstance(value, list):
            return [_complete(avro_type.items, one) for one in value]
        case Map() if isinstance(value, dict):
            return {key: _complete(avro_type.values, one) for key, one in value.items()}
        case Union() if type(value) is int and _prefers_float(avro_type):
            for branch in avro_type.branches:
                low, high = value_range(branch) if branch.kind in {"int", "long"} else (0, -1)
                if branch.logical is None and low <= value <= high:
                    return branch.kind, value
        case Union() if (only := _only_branch(avro_type, value)) is not None:
            return _complete(only, value)
    return value


def _find_misfit(root: AvroType, value: Any, write: Callable[[AvroType, Any], None]) -> str | None:
    """Return the place of the first part of a value that does not fit its type, and the reason; None if none is found.

    `write` writes a part with its type, and raises Invalid.
    """
    for count, (path, avro_type, part) in enumerate(_parts("$", root, value)):
        if count >= _PARTS_MAX:
            break
        match avro_type:
            case Record() if isinstance(part, dict):
                if reason := _wrong_fields(avro_type, part):
                    return f"{path}: {reason}"
            case Array() if isinstance(part, list):
                pass
            case Map() if isinstance(part, dict):
                pass
            case Union() if _only_branch(avro_type, part) is not None:
                pass
            case _:
                try:
                    write(avro_type, part)
                except Invalid as error:
                    reason = f" ({error.message})" if avro_type.logical is not None else ""
                    return f"{path}: {reprlib.repr(part)} is not a value of {avro_type.title}{reason}"
    return None


def _parts(path: str, avro_type: AvroType, value: Any) -> Iterator[tuple[str, AvroType, Any]]:
    """Yield a value and all values inside it, each with its path and its type."""
    yield path, avro_type, value
    match avro_type:
        case Record() if isinstance(value, dict):
            for one in avro_type.fields:
                if one.name in value:
                    yield from _parts(f"{path}.{one.name}", one.type, value[one.name])
        case Array() if isinstance(value, list):
            for index, item in enumerate(value):
                yield from _parts(f"{path}[{index}]", avro_type.items, item)
        case Map() if isinstance(value, dict):
            for key, item in value.items():
                yield from _parts(f"{path}[{reprlib.repr(key)}]", avro_type.values, item)
        case Union() if (branch := _only_branch(avro_type, value)) is not None:
            yield from _parts(path, branch, value)


def _wrong_fields(record: Record, value: dict[Any, Any]) -> str | None:
    names = {one.name for one in record.fields}
    for key in value:
        if key not in names:
            return f"{record.title} has no field {reprlib.repr(key)}"
    for one in record.fields:
        if one.name not in value and not one.has_default:
            return f"the field '{one.name}' is missing, and has no default"
    return None


def _only_branch(union: Union, value: Any) -> AvroType | None:
    """Return the branch that a dictionary or a list must be of, if there is only one."""
    match value:
        case dict():
            branches: list[AvroType] = [one for one in union.branches if isinstance(one, Record | Map)]
        case list():
            branches = [one for one in union.branches if isinstance(one, Array)]
        case _:
            return None
    return branches[0] if len(branches) == 1 else None
