"""The `where` of a read: which rows are wanted, by comparisons of a column with a value.

```python
where=("key", "=", "user-1")                                                    # one condition
where=[("amount", ">", 100), ("country", "in", ["de", "fr"])]                   # all must hold
where=[[("amount", ">", 100)], [("country", "=", "de"), ("key", "!=", None)]]   # all of one of these lists
```

It is the form of `filters` in pandas and pyarrow. As in SQL, a comparison with a null does not hold.
`("key", "=", None)` asks for rows without a value, and `("key", "!=", None)` for those with one.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.compute as pc

from pydanube.model.errors import Invalid
from pydanube.model.text import did_you_mean

from .read_types import AnyWhere, Comparison

_COMPARISONS: Final[dict[str, tuple[Callable[[Any, Any], bool], Callable[..., Any]]]] = {
    "=": (operator.eq, pc.equal),
    "!=": (operator.ne, pc.not_equal),
    "<": (operator.lt, pc.less),
    "<=": (operator.le, pc.less_equal),
    ">": (operator.gt, pc.greater),
    ">=": (operator.ge, pc.greater_equal),
}
"""Each operator for values of Python and for arrays of Arrow."""

OPERATORS: Final = (*_COMPARISONS, "in", "not in")
_EXAMPLE: Final = '("amount", ">", 100)'


@dataclass(frozen=True, slots=True)
class Condition:
    """A comparison of one column with a value, whose form was checked."""

    column: str
    operator: str
    value: Any

    @classmethod
    def parse(cls, given: object) -> Condition:
        if not isinstance(given, tuple) or len(given) != 3 or not isinstance(given[0], str):
            raise Invalid(f"where has {given!r}: a condition is a column, an operator and a value, such as {_EXAMPLE}")
        column, named, value = given
        named = "=" if named == "==" else named
        if named not in OPERATORS:
            raise Invalid(f"where has the operator {named!r} for column {column!r}: use one of {', '.join(OPERATORS)}")
        if named in ("in", "not in"):
            if isinstance(value, str | bytes) or not isinstance(value, Sequence | set | frozenset) or None in value:
                raise Invalid(f"where compares column {column!r} by {named!r}: give a list of values, without None")
            value = tuple(value)
        elif value is None and named not in ("=", "!="):
            raise Invalid(f"where compares column {column!r} with None: only = and != can be")
        return cls(column, named, value)

    def holds(self, value: Any) -> bool:
        """Return whether the condition holds for a value, which is not None."""
        if self.operator in ("in", "not in"):
            return (value in self.value) == (self.operator == "in")
        if self.value is None:
            return self.operator == "!="
        return _COMPARISONS[self.operator][0](value, self.value)

    def mask(self, values: pa.Array) -> pa.Array:
        """Return for each value whether the condition holds: true, false, or null. Raises Invalid if the type of the
        column cannot be compared with the value."""
        try:
            return self._mask(values)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise Invalid(
                f"where compares column {self.column!r}, which is {values.type}, by {self.operator!r} with "
                f"{self.value!r}: {str(error).splitlines()[0]}"
            ) from None

    def _mask(self, values: pa.Array) -> pa.Array:
        if self.operator in ("in", "not in"):
            known = pc.is_in(values, value_set=pa.array(self.value).cast(values.type))
            return known if self.operator == "in" else pc.and_(pc.invert(known), pc.is_valid(values))
        if self.value is None:
            return pc.is_null(values) if self.operator == "=" else pc.is_valid(values)
        compare = _COMPARISONS[self.operator][1]
        exact = pa.types.is_integer(values.type) or pa.types.is_floating(values.type)
        return compare(values, pa.scalar(self.value) if exact else pa.scalar(self.value, values.type))


@dataclass(frozen=True, slots=True)
class Where:
    """Conditions on the rows of a read: those of one of the groups must all hold. No groups: all rows."""

    groups: tuple[tuple[Condition, ...], ...] = ()

    @classmethod
    def parse(cls, given: AnyWhere | None) -> Where:
        """Raises Invalid if it is not of the form that the module describes."""
        if given is None:
            return cls()
        if isinstance(given, tuple) and given and isinstance(given[0], str):
            return cls(((Condition.parse(given),),))
        if not isinstance(given, Sequence) or isinstance(given, str | bytes):
            raise Invalid(f"where is {given!r}: give conditions such as [{_EXAMPLE}]")
        if any(isinstance(one, list) for one in given):
            nested = cast("Sequence[Sequence[Comparison]]", given)
            return cls(tuple(tuple(map(Condition.parse, _group(one))) for one in nested))
        return cls((tuple(map(Condition.parse, given)),)) if given else cls()

    def __bool__(self) -> bool:
        return bool(self.groups)

    @property
    def columns(self) -> list[str]:
        """The columns that the conditions read."""
        return list(dict.fromkeys(one.column for group in self.groups for one in group))

    @property
    def always(self) -> tuple[Condition, ...]:
        """The conditions that every wanted row satisfies."""
        return self.groups[0] if len(self.groups) == 1 else ()

    def split(self, first: Callable[[str], bool]) -> tuple[Where, Where]:
        """Split into conditions on columns for which `first` is true, and the rest; a row is wanted if both hold."""
        if len(self.groups) != 1:
            return (self, Where()) if all(map(first, self.columns)) else (Where(), self)
        parts = [tuple(one for one in self.groups[0] if first(one.column) is which) for which in (True, False)]
        one, other = (Where((part,)) if part else Where() for part in parts)
        return one, other

    def renamed(self, names: Mapping[str, str]) -> Where:
        """Return the same conditions on columns with other names."""
        return Where(tuple(tuple(replace(one, column=names[one.column]) for one in group) for group in self.groups))

    def check(self, types: Mapping[str, pa.DataType]) -> None:
        """Raise Invalid for a column that is not in `types`, or cannot be compared with its value."""
        for one in (one for group in self.groups for one in group):
            if one.column not in types:
                raise Invalid(f"where names column {one.column!r}: {did_you_mean(one.column, tuple(types))}")
            one.mask(pa.array([], types[one.column]))

    def apply(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the wanted rows."""
        if not self.groups:
            return rows
        return rows.filter(reduce(pc.or_kleene, (_all_hold(group, rows) for group in self.groups)))


def _group(given: object) -> Sequence[object]:
    if not isinstance(given, list) or not given:
        raise Invalid(f"where has {given!r} among lists of conditions: give a list such as [{_EXAMPLE}]")
    return given


def _all_hold(group: Sequence[Condition], rows: pa.RecordBatch) -> pa.Array:
    return reduce(pc.and_kleene, (one.mask(rows.column(one.column)) for one in group))
