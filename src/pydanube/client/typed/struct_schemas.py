"""The JSON Schema of msgspec structs and dataclasses, with the format of their times."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import inspect


def struct_schema(kind: Any) -> dict[str, Any]:
    """Return msgspec's schema of a type, where a `datetime` has the format `date-time`.

    msgspec leaves the format out, because a `datetime` may have no time zone. Columns would be strings then.
    """
    document = msgspec.json.schema(kind)
    described = inspect.type_info(kind)
    _mark_times(described, document)
    definitions = document.get("$defs", {}).values()
    for struct in _structs(described, set()):
        for definition in definitions:
            properties = definition.get("properties", {})
            if definition.get("title") == struct.cls.__name__ and properties.keys() >= {
                one.encode_name for one in struct.fields
            }:
                for field in struct.fields:
                    _mark_times(field.type, properties[field.encode_name])
    return document


def _mark_times(kind: Any, schema: dict[str, Any]) -> None:
    """Add the format to what stands for a `datetime`, outside of other structs."""
    for option in schema.get("anyOf", [schema]):
        for one in _alternatives(kind):
            if isinstance(one, inspect.DateTimeType) and option.get("type") == "string":
                option["format"] = "date-time"
            elif hasattr(one, "item_type") and isinstance(items := option.get("items"), dict):
                _mark_times(one.item_type, items)
            elif hasattr(one, "value_type") and isinstance(values := option.get("additionalProperties"), dict):
                _mark_times(one.value_type, values)


def _structs(kind: Any, seen: set[type]) -> Iterator[Any]:
    """Yield what msgspec knows of each class with fields that a type refers to."""
    for one in _alternatives(kind):
        if hasattr(one, "fields") and one.cls not in seen:
            seen.add(one.cls)
            yield one
            for field in one.fields:
                yield from _structs(field.type, seen)
        for inner in ("item_type", "value_type"):
            if hasattr(one, inner):
                yield from _structs(getattr(one, inner), seen)


def _alternatives(kind: Any) -> Iterator[Any]:
    """Yield the types of a union, or the type itself, without what is said about them."""
    if isinstance(kind, inspect.Metadata):
        yield from _alternatives(kind.type)
    elif isinstance(kind, inspect.UnionType):
        for one in kind.types:
            yield from _alternatives(one)
    else:
        yield kind
