"""Values before they are written as Avro: fields that are left out get their defaults, and errors name the place."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator
from typing import Any, Final

from pydanube.model.errors import Invalid

from .read import default_value
from .types import Array, AvroType, Map, Record, Union

_PARTS_MAX: Final = 10_000
"""How many parts of a value are looked at for the one that does not fit."""


def fill_defaults(avro_type: AvroType, value: Any) -> Any:
    """Return a value in which fields of records that are left out have their defaults.

    In a union of several records and maps, nothing is filled in: it is not known which of them is meant.
    """
    match avro_type:
        case Record() if isinstance(value, dict):
            filled = dict(value)
            for one in avro_type.fields:
                if one.name in value:
                    filled[one.name] = fill_defaults(one.type, value[one.name])
                elif one.has_default:
                    filled[one.name] = default_value(one)
            return filled
        case Array() if isinstance(value, list):
            return [fill_defaults(avro_type.items, one) for one in value]
        case Map() if isinstance(value, dict):
            return {key: fill_defaults(avro_type.values, one) for key, one in value.items()}
        case Union() if (branch := _only_branch(avro_type, value)) is not None:
            return fill_defaults(branch, value)
    return value


def find_misfit(root: AvroType, value: Any, write: Callable[[AvroType, Any], None]) -> str | None:
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
