"""The columns that a data frame must have to be written, checked once before the query runs.

```
 payload       binary or string      always
 topic         string                unless the option 'topic' names one for all rows
 key           string                optional, null: no key
 attributes    map<string,string>    optional, null: none
 publish_time  timestamp             optional, null: the time of writing
 partition     int                   optional, null: as the option 'partitionBy' says
```

With the option `schema` there is no payload: `row_encoding` makes it of the other columns.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from pydanube.model.errors import Invalid
from pydanube.model.text import nearest

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

WRITTEN: Final[dict[str, tuple[str, ...]]] = {
    "payload": ("binary", "string"),
    "key": ("string",),
    "attributes": ("map<string,string>",),
    "publish_time": ("timestamp",),
    "topic": ("string",),
    "partition": ("int",),
}
"""The columns of a message, and the types they may have."""

_USUAL: Final = {
    "value": "payload",
    "headers": "attributes",
    "timestamp": "publish_time",
    "time": "publish_time",
    "body": "payload",
    "data": "payload",
}
"""Common names of such columns in other systems, for hints."""


MESSAGE_COLUMNS: Final = tuple(name for name in WRITTEN if name != "payload")
"""The columns of a message beside its payload; with the option `schema`, all other columns are fields of the schema."""


def check_written(schema: StructType, topic: str) -> None:
    """Raise Invalid unless a data frame of this schema can be written; `topic` is the option's value, or empty."""
    names = [column.name for column in schema.fields]
    if "payload" not in names and not any(_meant(name) == "payload" for name in names):
        raise Invalid(_without_payload(names))
    for column in schema.fields:
        if column.name not in WRITTEN:
            raise Invalid(_unknown(column.name, names))
    _check_columns(schema, WRITTEN, topic)


def check_typed(schema: StructType, topic: str) -> None:
    """Raise Invalid unless the message columns of a data frame can be written; the others are fields of a schema."""
    _check_columns(schema, MESSAGE_COLUMNS, topic)


def _check_columns(schema: StructType, known: Iterable[str], topic: str) -> None:
    names = schema.fieldNames()
    for column in schema.fields:
        if names.count(column.name) > 1:
            raise Invalid(f"column {column.name!r} is there more than once: select one of them")
        if column.name not in known:
            continue
        wanted, found = WRITTEN[column.name], _type_name(column.dataType)
        if found not in wanted:
            raise Invalid(f"column {column.name!r} is {found}, and must be {' or '.join(wanted)}: {_fix(column.name)}")
    if "topic" not in names and not topic:
        raise Invalid("no topic: set the option 'topic', or give every row its own in a column 'topic'")


def _type_name(kind: DataType) -> str:
    """Return Spark's name of the type; text with a collation or a maximum length is "string" too."""
    name = kind.simpleString()
    if name.startswith(("string collate", "char(", "varchar(")):
        return "string"
    return name


def _fix(name: str) -> str:
    if name == "payload":
        return "use to_json(struct(...)), or cast('string')"
    if name == "publish_time":
        return "cast it to timestamp, which is a moment in UTC"
    return f"use cast('{WRITTEN[name][0]}')"


def _without_payload(names: list[str]) -> str:
    kept = "".join(f"{name!r}, " for name in names if name in WRITTEN)
    packed = ", ".join(repr(name) for name in names if name not in WRITTEN) or "'*'"
    return (
        f"column 'payload' is missing (there are {', '.join(map(repr, names)) or 'none'}): a message needs one, for "
        f"example select({kept}to_json(struct({packed})).alias('payload'))"
    )


def _meant(name: str) -> str:
    """Return the column of a message that a column of another name probably is; empty: none."""
    return _USUAL.get(name.lower()) or nearest(name, WRITTEN, 0.75)


def _unknown(name: str, names: list[str]) -> str:
    told = f"column {name!r} is no part of a message"
    meant = _meant(name)
    if meant and meant not in names:
        return f"{told}: if it is the {meant}, rename it with withColumnRenamed({name!r}, {meant!r})"
    kept = ", ".join(repr(one) for one in WRITTEN if one in names)
    if "payload" not in names:
        return f"{told}: {_without_payload(names)}"
    return f"{told}, which is made of {', '.join(WRITTEN)}: drop it, or select({kept})"
