"""Decodes JSON payloads to Arrow columns.

msgspec decodes each payload to an object with exactly the properties that are columns, and checks their types on the
way; other properties are skipped. The attributes of all objects then become columns.

Where the schema says integer, 1.0 is one too, as JSON Schema has it. msgspec does not take it for one, so a payload
that fails is decoded once more with a type that allows fractions. Numbers outside 64 bits do not fit a column and fail.
"""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from itertools import chain
from operator import attrgetter
from typing import Annotated, Any, Final

import msgspec
import pyarrow as pa

from pydanube.formats.columns import Decoded, decode_one_by_one, list_array, make_columns, map_array, struct_array
from pydanube.model.text import one_line

from .arrow import Kind, Shape

_LONG_RANGE: Final = (-(2**63), 2**63 - 1)
_Long = Annotated[int, msgspec.Meta(ge=_LONG_RANGE[0], le=_LONG_RANGE[1])]
_NULL: Final = b"null"
_SCALARS: Final[dict[Kind, Any]] = {
    Kind.BOOLEAN: bool,
    Kind.NUMBER: float,
    Kind.STRING: str,
    Kind.TIMESTAMP: datetime,
    Kind.DATE: date,
    Kind.DECIMAL: Decimal,
}


class JsonColumnDecoder:
    """Decodes payloads as values of one shape."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._decode = msgspec.json.Decoder(_python_type(shape, _Long)).decode
        self._decode_fractions = msgspec.json.Decoder(_python_type(shape, int | float)).decode
        self._column = _Columns().build(shape)

    def decode(self, payloads: pa.Array) -> Decoded:
        texts = payloads.to_pylist()
        errors: dict[int, str] = {}
        try:
            payloads.view(pa.string()).validate(full=True)
            values: list[Any] = list(map(self._decode, texts))
        except Exception:
            values = decode_one_by_one(texts, self._decode_again, errors, _explain)
        return make_columns(values, self._column, errors, _explain)

    def _decode_again(self, payload: bytes) -> Any:
        """Decode a payload by itself, with all checks."""
        payload.decode()
        try:
            return self._decode(payload)
        except msgspec.ValidationError:
            return _whole_numbers(self._shape, self._decode_fractions(payload), "$")


def _explain(error: Exception) -> str:
    match error:
        case UnicodeDecodeError():
            return f"the payload is not UTF-8: {error.reason} at byte {error.start}"
        case RecursionError():
            return "the payload is nested too deeply"
        case msgspec.ValidationError():
            return str(error)
        case msgspec.DecodeError():
            return f"the payload is not JSON: {error}"
    return one_line(error)


def _python_type(shape: Shape, whole_number: Any) -> Any:
    """Return the type that msgspec decodes values of a shape to; null is allowed everywhere."""
    match shape.kind:
        case Kind.TEXT:
            return msgspec.Raw
        case Kind.INTEGER:
            return whole_number | None
        case Kind.ARRAY:
            assert shape.items is not None
            return list[_python_type(shape.items, whole_number)] | None  # type: ignore[misc]
        case Kind.MAP:
            assert shape.items is not None
            return dict[str, _python_type(shape.items, whole_number)] | None  # type: ignore[misc]
        case Kind.OBJECT:
            fields = [
                (_attribute(at), _python_type(one, whole_number), None)
                for at, one in enumerate(shape.properties.values())
            ]
            names = {_attribute(at): name for at, name in enumerate(shape.properties)}
            return msgspec.defstruct("object", fields, rename=names, gc=False) | None
    return _SCALARS[shape.kind] | None


def _attribute(at: int) -> str:
    """Return the name of the attribute for the property at a position: names of properties can be anything."""
    return f"p{at}"


def _whole_numbers(shape: Shape, value: Any, path: str) -> Any:
    """Return a value with the fractions that are whole numbers as integers. Raises ValidationError with the path."""
    if value is None:
        return None
    match shape.kind:
        case Kind.INTEGER:
            if isinstance(value, float) and not value.is_integer():
                raise msgspec.ValidationError(f"Expected `int`, got `float` - at `{path}`")
            number = int(value)
            if not _LONG_RANGE[0] <= number <= _LONG_RANGE[1]:
                raise msgspec.ValidationError(f"Expected `int` of 64 bits, got a longer one - at `{path}`")
            return number
        case Kind.ARRAY:
            assert shape.items is not None
            return [_whole_numbers(shape.items, one, f"{path}[]") for one in value]
        case Kind.MAP:
            assert shape.items is not None
            return {key: _whole_numbers(shape.items, one, f"{path}[...]") for key, one in value.items()}
        case Kind.OBJECT:
            for at, (name, one) in enumerate(shape.properties.items()):
                attribute = _attribute(at)
                setattr(value, attribute, _whole_numbers(one, getattr(value, attribute), f"{path}.{name}"))
    return value


class _Absent:
    """Stands for an object that is null: all its attributes are None."""

    def __getattr__(self, name: str) -> None:
        return None


_ABSENT: Final = _Absent()


class _Columns:
    """Builds the functions that make columns of decoded values."""

    def build(self, shape: Shape) -> Any:
        kind = shape.arrow
        match shape.kind:
            case Kind.TEXT:
                return _texts
            case Kind.ARRAY:
                assert shape.items is not None
                return self._array(kind, self.build(shape.items))
            case Kind.MAP:
                assert shape.items is not None
                return self._map(kind, self.build(shape.items))
            case Kind.OBJECT:
                return self._object(kind, [self.build(one) for one in shape.properties.values()])
        return lambda values: pa.array(values, kind)

    def _array(self, kind: pa.DataType, make_items: Any) -> Any:
        def make(values: list[Any]) -> pa.Array:
            return list_array(kind, values, make_items(list(chain.from_iterable(one or () for one in values))))

        return make

    def _map(self, kind: pa.DataType, make_items: Any) -> Any:
        def make(values: list[Any]) -> pa.Array:
            present = [one for one in values if one]
            keys = pa.array(list(chain.from_iterable(present)), pa.string())
            items = make_items(list(chain.from_iterable(one.values() for one in present)))
            return map_array(kind, values, keys, items)

        return make

    def _object(self, kind: pa.DataType, columns: list[Any]) -> Any:
        parts = [(attrgetter(_attribute(at)), one) for at, one in enumerate(columns)]

        def make(values: list[Any]) -> pa.Array:
            missing = [one is None for one in values]
            if any(missing):
                values = [_ABSENT if one is None else one for one in values]
            return struct_array(kind, [column(list(map(get, values))) for get, column in parts], missing)

        return make


def _texts(values: list[Any]) -> pa.Array:
    texts = [None if one is None else bytes(one) for one in values]
    return pa.array([None if one == _NULL else one for one in texts], pa.string())
