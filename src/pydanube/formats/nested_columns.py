"""Makes Arrow arrays of lists, maps and structs from columns of their parts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa

from .columns import Decoded


def struct_array(kind: pa.DataType, columns: Sequence[pa.Array], missing: Sequence[bool]) -> pa.Array:
    """Return a struct array of its fields' columns; null where `missing` is true."""
    if not columns:
        return pa.array([None if one else {} for one in missing], kind)
    mask = pa.array(missing, pa.bool_()) if any(missing) else None
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=mask)


def list_array(kind: pa.DataType, values: Sequence[Collection[Any] | None], items: pa.Array) -> pa.Array:
    """Return a list array; `items` has the items of all values, one behind the other. None is null."""
    return pa.ListArray.from_arrays(_offsets(values), items, type=kind)


def map_array(kind: pa.DataType, values: Sequence[Collection[Any] | None], keys: pa.Array, items: pa.Array) -> pa.Array:
    """Return a map array; `keys` and `items` have the entries of all values, one behind the other. None is null."""
    return pa.MapArray.from_arrays(_offsets(values), keys, items, kind)


def _offsets(values: Sequence[Collection[Any] | None]) -> pa.Array:
    """Return where the items of each value begin, with null for a value that is None."""
    ends = accumulate((0 if one is None else len(one) for one in values), initial=0)
    offsets = np.fromiter(ends, np.int32, len(values) + 1)
    missing = np.array([*(one is None for one in values), False], np.bool_)
    return pa.array(offsets, mask=missing if missing.any() else None)


def decode_one_by_one(
    payloads: Sequence[bytes], decode: Callable[[bytes], Any], errors: dict[int, str], explain: Callable[..., str]
) -> list[Any]:
    """Return the decoded value of each payload, None for one that fails; its reason goes to `errors`."""
    found: list[Any] = []
    for row, payload in enumerate(payloads):
        try:
            found.append(decode(payload))
        except Exception as error:  # whatever a library raises because of a payload
            found.append(None)
            errors[row] = explain(error)
    return found


def make_columns(
    values: list[Any], make: Callable[[list[Any]], pa.Array], errors: dict[int, str], explain: Callable[..., str]
) -> Decoded:
    """Return the column that `make` makes of the values; if it fails, find the rows that it fails for."""
    try:
        return Decoded(make(values), errors)
    except Exception:  # a value that does not fit the column
        parts = []
        for row, value in enumerate(values):
            try:
                parts.append(make([value]))
            except Exception as error:
                errors[row] = explain(error)
                parts.append(make([None]))
        return Decoded(pa.concat_arrays(parts), dict(sorted(errors.items())))
