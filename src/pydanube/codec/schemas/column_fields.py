"""Compares the columns that are given with the fields of a schema, before anything is encoded.

Errors name the column by its path, and types by their names in SQL, because columns come from Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NoReturn

import pyarrow as pa
from pyarrow import types

from pydanube.model.errors import Invalid
from pydanube.model.text import did_you_mean

_NAMES: Final = {
    pa.null(): "void",
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.date32(): "date",
    pa.large_string(): "string",
    pa.large_binary(): "binary",
}


def type_name(given: pa.DataType) -> str:
    """Return the name of an Arrow type in SQL."""
    if types.is_list(given):
        return f"array<{type_name(given.value_type)}>"
    if types.is_map(given):
        return f"map<{type_name(given.key_type)},{type_name(given.item_type)}>"
    if types.is_struct(given):
        return f"struct<{','.join(f'{one.name}:{type_name(one.type)}' for one in given)}>"
    if types.is_timestamp(given):
        return "timestamp" if given.tz else "timestamp_ntz"
    if types.is_decimal(given):
        return f"decimal({given.precision},{given.scale})"
    return _NAMES.get(given, str(given))


def wrong_type(path: str, given: pa.DataType, wanted: str) -> Invalid:
    return Invalid(f"column {path or 'value'!r} is {type_name(given)}, and must be {wanted}")


def match_fields(path: str, given: pa.DataType, known: Sequence[str], what: str) -> dict[str, pa.Field]:
    """Return the given fields by name. Raises Invalid for one that `what`, the record of the schema, does not have."""
    if not types.is_struct(given):
        raise wrong_type(path, given, f"a struct, for {what}")
    fields: dict[str, pa.Field] = {}
    for one in given:
        name = step(path, one.name)
        if one.name in fields:
            raise Invalid(f"column {name!r} is there more than once: select one of them")
        if one.name not in known:
            hint = did_you_mean(one.name, known, otherwise=f"it has {', '.join(known) or 'no field'}")
            raise Invalid(f"column {name!r} is no field of {what}: {hint}")
        fields[one.name] = one
    return fields


def refuse_missing(path: str, why: str) -> NoReturn:
    raise Invalid(f"column {path!r} is missing: {why}")


def step(path: str, name: str) -> str:
    """Return the path of a field inside `path`; empty is the whole value."""
    return f"{path}.{name}" if path else name


def is_text(given: pa.DataType) -> bool:
    return bool(types.is_string(given) or types.is_large_string(given))


def is_bytes(given: pa.DataType) -> bool:
    return bool(types.is_binary(given) or types.is_large_binary(given))


def is_whole(given: pa.DataType, bits: int = 64) -> bool:
    """Say whether a type has whole numbers with a sign, of at most `bits`."""
    return bool(types.is_signed_integer(given)) and given.bit_width <= bits


def is_real(given: pa.DataType, bits: int = 64) -> bool:
    """Say whether numbers of a type are exact in a float of `bits`: shorter floats, and integers of half the bits."""
    if types.is_floating(given):
        return bool(given.bit_width <= bits)
    return is_whole(given, bits // 2)
