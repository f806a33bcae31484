"""The columns of a message, as Spark types and as Arrow types. Spark requires that the two match exactly.

All columns are nullable, because Spark treats every column of a Python data source as nullable.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from pydanube.client.tables.arrow_rows import ARROW_TYPES
from pydanube.client.tables.read_types import COLUMNS
from pydanube.model.errors import Invalid
from pydanube.model.text import did_you_mean

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

SPARK_TYPES: Final = {
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "append_time": "timestamp",
    "publish_time": "timestamp",
    "key": "string",
    "payload": "binary",
    "attributes": "map<string,string>",
    "producer": "string",
    "schema_id": "bigint",
    "schema_version": "int",
}
assert tuple(ARROW_TYPES) == tuple(SPARK_TYPES) == COLUMNS


def spark_schema(columns: Iterable[str] = COLUMNS) -> StructType:
    from pyspark.sql.types import (
        BinaryType,
        DataType,
        IntegerType,
        LongType,
        MapType,
        StringType,
        StructField,
        StructType,
        TimestampType,
    )

    types: dict[str, DataType] = {
        "string": StringType(),
        "int": IntegerType(),
        "bigint": LongType(),
        "timestamp": TimestampType(),
        "binary": BinaryType(),
        "map<string,string>": MapType(StringType(), StringType()),
    }
    return StructType([StructField(name, types[SPARK_TYPES[name]]) for name in columns])


def chosen_columns(schema: StructType) -> tuple[str, ...]:
    """Return the column names of a schema given by the user. Raises Invalid for an unknown column or another type."""
    if not schema.fields:
        raise Invalid(f"the schema has no columns: leave it out, or choose of {', '.join(COLUMNS)}")
    for column in schema.fields:
        if column.name not in SPARK_TYPES:
            hint = did_you_mean(column.name, COLUMNS)
            raise Invalid(f"the schema has a column {column.name!r}, which no message has: {hint}")
        kind, expected = column.dataType.simpleString(), SPARK_TYPES[column.name]
        if kind != expected:
            raise Invalid(
                f"column {column.name!r} is {expected}, and the schema says {kind}: leave the schema out, and cast"
            )
    return tuple(column.name for column in schema.fields)
