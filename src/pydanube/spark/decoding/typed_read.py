"""What the driver hands to tasks for decoding. Everything here is pickled with the reader."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from pydanube.client.tables.arrow_rows import ARROW_TYPES
from pydanube.client.tables.definitions import Definition, TopicForm, VersionKey
from pydanube.model.errors import Refused
from pydanube.spark.options import OnDecodeError

DECODE_ERROR: Final = "decode_error"
PAYLOAD: Final = "payload"
_FOR_DECODING: Final = ("topic", "partition", "offset", PAYLOAD, "schema_id", "schema_version")


@dataclass(frozen=True, slots=True)
class TypedRead:
    """How a query decodes: the version it reads with, and what was known when it started."""

    subject: str
    version: VersionKey
    reader: Definition
    known: Mapping[VersionKey, Definition]
    """The subject's versions when the query started, the newest of them if there are many."""
    topics: Mapping[str, TopicForm]
    """The topics that the query had when it started."""
    message_columns: tuple[str, ...]
    """The columns of messages that were asked for."""
    fields: Mapping[str, pa.DataType]
    """The columns of the schema."""
    columns: tuple[str, ...]
    """All columns of the query, in order."""
    on_error: OnDecodeError

    @property
    def raw_columns(self) -> tuple[str, ...]:
        """The columns of messages that decoding needs, and those that were asked for."""
        return tuple(dict.fromkeys((*self.message_columns, *_FOR_DECODING)))

    def arrow_schema(self) -> pa.Schema:
        return pa.schema([(name, self.column_type(name)) for name in self.columns])

    def column_type(self, name: str) -> pa.DataType:
        if name in self.message_columns:
            return ARROW_TYPES[name]
        if name in self.fields:
            return self.fields[name]
        return pa.string() if name == DECODE_ERROR else ARROW_TYPES[PAYLOAD]


def unbound_error(topics: Iterable[str]) -> Refused:
    return Refused(
        f"no schema is bound to {', '.join(topics)}: bind it (danube schemas bind), or name a subject by the option "
        f"subject"
    )
