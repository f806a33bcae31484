"""Payloads as JSON text, and back: what people type and read on a command line.

    json        the payload itself
    avro        records and maps are objects; a union is its value, or {"type": value} as in Avro's JSON encoding; bytes
                and fixed are text with one character per byte; dates and times are written as in ISO 8601, decimals
                and UUIDs as text; NaN and the infinities are "NaN", "Infinity", "-Infinity"
    protobuf    protobuf's JSON mapping, with the field names of the definition
    number      the payload itself
    string, bytes   the payload is not JSON but the text or the bytes as they are

When Avro is written, a field with a default may be left out, and dates, times and decimals may be plain numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Final, cast
from uuid import UUID

import msgspec

from pydanube.model.errors import Invalid
from pydanube.model.schemas import SchemaFormat

from .all_formats import AnyBytes, ParsedSchema

if TYPE_CHECKING:
    from pydanube.formats.avro.schema import AvroSchema
    from pydanube.formats.avro.types import AvroType, Record, Union
    from pydanube.formats.protobuf.schema import ParsedProtobuf

_TEXTS: Final = frozenset({SchemaFormat.STRING, SchemaFormat.BYTES})
_NOT_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def encode_json(schema: ParsedSchema, text: bytes, *, framed: bool = False) -> bytes:
    """Return the payload of a value that is written as JSON. Raises Invalid with the place and the reason.

    With `framed` it is what follows the first five bytes of Confluent's framing.
    """
    kind = schema.definition.format
    if kind not in (SchemaFormat.AVRO, SchemaFormat.PROTOBUF):
        schema.decode(text)
        return text
    try:
        value = msgspec.json.decode(text)
        if kind is SchemaFormat.AVRO:
            return schema.encode(_from_json(cast("AvroSchema", schema).root, value, "$"))
        if not isinstance(value, dict):
            raise Invalid(f"$: a message is a JSON object, not {_shown(value)}")
        return cast("ParsedProtobuf", schema).encode_framed(value) if framed else schema.encode(value)
    except UnicodeDecodeError as error:
        raise Invalid(f"not JSON: it is not UTF-8 ({error.reason})") from None
    except msgspec.DecodeError as error:
        raise Invalid(f"not JSON: {error}") from None
    except RecursionError:
        raise Invalid("the value is nested too deep") from None


def decode_json(schema: ParsedSchema, payload: AnyBytes, *, framed: bool = False) -> bytes | None:
    """Return the value of a payload as JSON text on one line; None if the payload is text or bytes as it is.

    Raises Invalid if the schema does not allow the payload.
    """
    kind = schema.definition.format
    try:
        if kind is SchemaFormat.PROTOBUF:
            messages = cast("ParsedProtobuf", schema)
            message = messages.decode_framed(payload) if framed else messages.decode(payload)
            return msgspec.json.encode(messages.to_json(message))
        value = schema.decode(payload)
        if kind is SchemaFormat.AVRO:
            return msgspec.json.encode(_to_json(value))
    except RecursionError:
        raise Invalid("the value is nested too deep") from None
    return None if kind in _TEXTS else msgspec.json.format(bytes(payload), indent=-1)


# -- Avro --------------------------------------------------------------------------------------------------------------


def _to_json(value: Any) -> Any:
    match value:
        case dict():
            return {key: _to_json(one) for key, one in value.items()}
        case list() | tuple():
            return [_to_json(one) for one in value]
        case bytes():
            return value.decode("latin-1")
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case Decimal() | UUID():
            return str(value)
    return value


def _from_json(avro_type: AvroType, value: Any, path: str) -> Any:
    """Return the value that `AvroSchema.encode` takes. Raises Invalid with the path."""
    from pydanube.formats.avro.types import Array, EnumType, Map, Record, Union

    match avro_type:
        case Union():
            return _branch(avro_type, value, path)
        case Record():
            return _record(avro_type, _expect(dict, "an object", value, path), path)
        case Map():
            pairs = _expect(dict, "an object", value, path).items()
            return {key: _from_json(avro_type.values, one, f"{path}.{key}") for key, one in pairs}
        case Array():
            items = _expect(list, "an array", value, path)
            return [_from_json(avro_type.items, one, f"{path}[{index}]") for index, one in enumerate(items)]
        case EnumType() if _expect(str, "a text", value, path) not in avro_type.known:
            known = ", ".join(avro_type.symbols[:20])
            raise Invalid(f"{path}: {_shown(value)} is no symbol of {avro_type.title}: {known}")
    return _scalar(avro_type, value, path)


def _record(record: Record, value: dict[str, Any], path: str) -> dict[str, Any]:
    known = {one.name for one in record.fields}
    if unknown := [key for key in value if key not in known]:
        raise Invalid(f"{path}: {record.title} has no field {_shown(unknown[0])}")
    made = {}
    for one in record.fields:
        if one.name not in value and not one.has_default:
            raise Invalid(f"{path}: the field {one.name!r} is missing, and has no default")
        made[one.name] = _from_json(one.type, value.get(one.name, one.default), f"{path}.{one.name}")
    return made


def _branch(union: Union, value: Any, path: str) -> Any:
    from pydanube.formats.avro.types import Named, Record

    if isinstance(value, dict) and len(value) == 1:
        [(name, inner)] = value.items()
        for one in union.branches:
            names = (one.name, one.short_name) if isinstance(one, Named) else (one.kind,)
            if name in names:
                made = _from_json(one, inner, f"{path}.{name}")
                return (one.name, made) if isinstance(one, Record) else made
    failures = []
    for one in union.branches:
        try:
            return _from_json(one, value, path)
        except Invalid as error:
            if one.kind != "null":
                failures.append(error)
    if len(failures) == 1:
        raise failures[0]
    raise Invalid(f"{path}: {_shown(value)} fits no branch of the {union.title}")


def _scalar(avro_type: AvroType, value: Any, path: str) -> Any:
    from pydanube.formats.avro.types import value_range

    logical = avro_type.logical.name if avro_type.logical is not None else ""
    match avro_type.kind:
        case "null" if value is not None:
            raise Invalid(f"{path}: null is expected, not {_shown(value)}")
        case "boolean":
            return _expect(bool, "true or false", value, path)
        case "int" | "long":
            if logical in _MOMENTS and isinstance(value, str):
                return _parse(_MOMENTS[logical], logical, value, path)
            low, high = value_range(avro_type)
            number = _expect(int, "a whole number", value, path)
            if not low <= number <= high:
                raise Invalid(f"{path}: {_shown(value)} is not between {low} and {high}, as {avro_type.title} is")
            return number
        case "float" | "double":
            if isinstance(value, str) and value in _NOT_FINITE:
                return _NOT_FINITE[value]
            return float(_expect((int, float), "a number", value, path))
        case "bytes" | "fixed":
            return _bytes(avro_type, logical, value, path)
        case "string":
            text = _expect(str, "a text", value, path)
            return _parse(UUID, "UUID", text, path) if logical == "uuid" else text
    return value


def _bytes(avro_type: AvroType, logical: str, value: Any, path: str) -> Any:
    if logical == "decimal":
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise Invalid(f'{path}: a decimal such as "12.34" is expected, not {_shown(value)}')
        return _parse(Decimal, "decimal", str(value), path)
    text = _expect(str, "a text with one character per byte", value, path)
    if logical == "uuid":
        return _parse(UUID, "UUID", text, path)
    try:
        data = text.encode("latin-1")
    except UnicodeEncodeError as error:
        reason = f"{text[error.start]!r} is no byte: bytes are written as \\u0000 to \\u00ff"
        raise Invalid(f"{path}: {reason}") from None
    size = getattr(avro_type, "size", len(data))
    if len(data) != size:
        raise Invalid(f"{path}: {avro_type.title} has {size} bytes, not {len(data)}")
    return data


_MOMENTS: Final[dict[str, Callable[[str], Any]]] = {
    "date": date.fromisoformat,
    "time-millis": time.fromisoformat,
    "time-micros": time.fromisoformat,
    "timestamp-millis": datetime.fromisoformat,
    "timestamp-micros": datetime.fromisoformat,
    "local-timestamp-millis": datetime.fromisoformat,
    "local-timestamp-micros": datetime.fromisoformat,
}


def _parse(parse: Callable[[str], Any], what: str, text: str, path: str) -> Any:
    try:
        return parse(text)
    except (ValueError, InvalidOperation):
        raise Invalid(f"{path}: {_shown(text)} is no {what}") from None


def _expect(kind: Any, what: str, value: Any, path: str) -> Any:
    """Return the value if it is of a Python type; a truth value counts as a number nowhere."""
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise Invalid(f"{path}: {what} is expected, not {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else f"{text[:57]}..."
