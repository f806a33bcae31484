"""How values of the model look in JSON: the same in the answers of REST and with `--json`.

A dataclass, a named tuple or a struct is an object with the same fields; an enumeration is one of its words ("durable",
"key-shared"); a name, a position or another value that users write is that text; times are microseconds since 1970.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime
from enum import Enum
from functools import cache
from typing import Any, Final, Literal, NamedTuple, Union, get_args, get_origin

import msgspec

from .gaps import Gaps
from .names import TopicName
from .positions import Position
from .storage import StoragePlace
from .written import Written

NO_DEFAULT: Final = msgspec.NODEFAULT

_AS_TEXT: Final = (Enum, Position, TopicName, StoragePlace, Written)


class FieldForm(NamedTuple):
    name: str
    type: Any
    default: Any
    """NO_DEFAULT: the field is required. Of a default that is made by a factory, what the factory made."""


def has_fields(kind: Any) -> bool:
    """Return whether a type is a dataclass, a named tuple or a struct."""
    if not isinstance(kind, type):
        return False
    return is_dataclass(kind) or issubclass(kind, msgspec.Struct) or hasattr(kind, "_field_defaults")


def fields_of(kind: Any) -> list[FieldForm]:
    """Return the fields of a dataclass, a named tuple or a struct, with the types of the model."""
    hints = typing.get_type_hints(kind, include_extras=True)
    if is_dataclass(kind):
        own = ((one.name, _default(one.default, one.default_factory)) for one in fields(kind))
        return [FieldForm(name, hints[name], default) for name, default in own]
    if issubclass(kind, msgspec.Struct):
        return [
            FieldForm(one.encode_name, hints[one.name], _default(one.default, one.default_factory))
            for one in msgspec.structs.fields(kind)
        ]
    defaults = kind._field_defaults
    return [FieldForm(name, hints[name], defaults.get(name, NO_DEFAULT)) for name in kind._fields]


def attributes_of(kind: Any) -> dict[str, str]:
    """Return the name in JSON of each field, with the name of its attribute."""
    return {shown: name for name, shown in _names(kind) or ()}


def dump(value: Any) -> Any:
    """Return a value of the model as msgspec encodes it in its form."""
    kind: Any = type(value)
    if _is_plain(kind):
        return value
    if isinstance(value, _AS_TEXT):
        return str(value)
    if value is None or isinstance(value, (str, int, float, bytes, datetime, msgspec.Raw)):
        return value
    if isinstance(value, dict):
        return {str(key): dump(one) for key, one in value.items()}
    if isinstance(value, Gaps):
        return value.ranges
    names = _names(kind)
    if names is None:
        return [dump(one) for one in value] if isinstance(value, Iterable) else value
    found = ((shown, getattr(value, name)) for name, shown in names)
    return {shown: dump(one) for shown, one in found if one is not msgspec.UNSET}


def as_json(value: Any) -> Any:
    """Return a value of the model as objects, lists and plain values of JSON; what has no form there is text."""
    return msgspec.to_builtins(dump(value), enc_hook=str)


@cache
def _names(kind: Any) -> list[tuple[str, str]] | None:
    """Return the fields of a type, each with its name in JSON; None for a type without fields."""
    if not has_fields(kind):
        return None
    if issubclass(kind, msgspec.Struct):
        return [(one.name, one.encode_name) for one in msgspec.structs.fields(kind)]
    return [(one.name, one.name) for one in fields_of(kind)]


@cache
def _is_plain(kind: Any) -> bool:
    """Return whether msgspec encodes values of a dataclass in its form by itself, which is much faster."""
    if not is_dataclass(kind) or kind in _AS_TEXT:
        return False
    return all(_is_plain_type(one.type) for one in fields_of(kind))


def _is_plain_type(kind: Any) -> bool:
    if kind in (str, int, float, bool, bytes, type(None)) or get_origin(kind) is Literal:
        return True
    if get_origin(kind) in (list, tuple, dict, Union, types.UnionType):
        return all(one is Ellipsis or _is_plain_type(one) for one in get_args(kind))
    return _is_plain(kind)


def _default(value: Any, factory: Any) -> Any:
    if factory is not MISSING and factory is not msgspec.NODEFAULT:
        return factory()
    return NO_DEFAULT if value is MISSING else value
