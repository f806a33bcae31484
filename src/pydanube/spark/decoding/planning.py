"""The driver's part of typed reading: which version a query reads with, and its columns.

Spark calls `schema()` and `reader()` of the data source in two processes. The version is chosen in the first, newest or
by the option `schemaVersion`, and written into the metadata of the columns, which Spark hands to the second. So both
have the same one, also if another version is registered in between. A schema that the user gives has no such metadata;
then the version is chosen again, and the columns are compared.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructField, StructType

from pydanube.client.blocking.areas import BlockingSchemas
from pydanube.client.tables.definitions import Definition, TopicForm, VersionKey
from pydanube.formats.columns import column_fields
from pydanube.model.errors import DanubeError, Invalid, NotFound, Refused
from pydanube.model.schemas import Binding, SchemaVersion
from pydanube.spark.message_types import spark_schema
from pydanube.spark.options import ReadOptions
from pydanube.spark.reading.broker_queries import BrokerQueries

from .typed_read import DECODE_ERROR, PAYLOAD, TypedRead, unbound_error

METADATA: Final = "danube"
"""The key in the metadata of decoded columns: {"subject": "orders", "version": 3}."""

KNOWN_VERSIONS_MAX: Final = 50
"""How many versions of the subject, the newest first, tasks get with the reader. They look up others."""


def typed_schema(options: ReadOptions) -> StructType:
    """Return the columns of a query with the option `decode`, as Spark has them. Asks the broker."""
    with BrokerQueries(options.servers, options.timeout_s, options.credentials) as queries:
        bindings = _bindings(options, queries)
        found = _find_version(options, queries.blocking.schemas, bindings)
        reader = _definition(queries.blocking.schemas, found)
    return _spark_schema(options, found, _fields(options, found, reader))


def plan_decoding(options: ReadOptions, schema: StructType) -> ReadOptions:
    """Return the options of a reader with what its tasks need to decode, for the columns of `schema`.

    Raises Invalid for a column that the schema's version does not have, or has with another type.
    """
    with BrokerQueries(options.servers, options.timeout_s, options.credentials) as queries:
        registry = queries.blocking.schemas
        bindings = _bindings(options, queries)
        found = _find_version(options, registry, bindings, _chosen_before(schema, _subject(options, bindings)))
        reader = _definition(registry, found)
        fields = _fields(options, found, reader)
        _check_columns(schema, _spark_schema(options, found, fields), found)
        names = tuple(schema.names)
        typed = TypedRead(
            subject=found.subject,
            version=(found.schema_id, found.version),
            reader=reader,
            known=_known_versions(registry, found, reader),
            topics={topic: TopicForm.of(binding) for topic, binding in bindings.items()},
            message_columns=tuple(one for one in options.columns if one in names),
            fields={one.name: one.type for one in fields},
            columns=names,
            on_error=options.on_decode_error,
        )
    return replace(options, columns=typed.message_columns, typed=typed)


# -- the version -------------------------------------------------------------------------------------------------------


def _bindings(options: ReadOptions, queries: BrokerQueries) -> dict[str, Binding | None]:
    topics = dict.fromkeys((*options.topics, *queries.list_matching(options.patterns)))
    if not topics and not options.subject:
        raise NotFound(
            f"no topic matches {options.topic}, so that there is no schema to decode with: name its subject by the "
            f"option subject"
        )
    return {topic: queries.blocking.schemas.binding(topic) for topic in topics}


def _subject(options: ReadOptions, bindings: dict[str, Binding | None]) -> str:
    """Return the subject of all topics. Raises Refused with the names if there is none, or more than one."""
    if options.subject:
        return options.subject
    if unbound := [topic for topic, binding in bindings.items() if binding is None]:
        raise unbound_error(unbound)
    subjects = {binding.subject: topic for topic, binding in bindings.items() if binding is not None}
    if len(subjects) > 1:
        listed = ", ".join(f"{topic} to {subject!r}" for subject, topic in subjects.items())
        raise Refused(
            f"the topics are bound to different subjects ({listed}), and one query has one schema: read them with a "
            f"query each, or name the subject to read all of them with by the option subject"
        )
    return next(iter(subjects))


def _chosen_before(schema: StructType, subject: str) -> int | None:
    """Return the version that `typed_schema` wrote into the columns; None: the user made the schema."""
    for column in schema.fields:
        chosen: Any = (column.metadata or {}).get(METADATA)
        if isinstance(chosen, dict) and chosen.get("subject") == subject and isinstance(chosen.get("version"), int):
            return int(chosen["version"])
    return None


def _find_version(
    options: ReadOptions, registry: BlockingSchemas, bindings: dict[str, Binding | None], chosen: int | None = None
) -> SchemaVersion:
    """Return the version to read with: that of the option, that which was chosen before, that which all topics are
    pinned to, or the newest."""
    subject = _subject(options, bindings)
    if options.schema_version:
        return registry.get(subject, options.schema_version)
    if chosen is not None:
        return registry.get(subject, chosen, deleted=True)
    pinned = {one.pinned_version if one is not None and one.subject == subject else 0 for one in bindings.values()}
    return registry.get(subject, (pinned.pop() if len(pinned) == 1 else 0) or "latest")  # no topics: latest


def _definition(registry: BlockingSchemas, found: SchemaVersion) -> Definition:
    references = registry.references_of(found.definition)
    return Definition(found.definition, tuple(sorted(references.items())))


def _known_versions(
    registry: BlockingSchemas, reader: SchemaVersion, definition: Definition
) -> dict[VersionKey, Definition]:
    known = {(reader.schema_id, reader.version): definition}
    for number in sorted(registry.versions(reader.subject, deleted=True), reverse=True)[:KNOWN_VERSIONS_MAX]:
        if (reader.schema_id, number) not in known:
            with suppress(DanubeError):  # a task that meets this version says what is wrong
                found = registry.get(reader.subject, number, deleted=True)
                known[found.schema_id, found.version] = _definition(registry, found)
    return known


# -- the columns -------------------------------------------------------------------------------------------------------


def _fields(options: ReadOptions, found: SchemaVersion, reader: Definition) -> list[pa.Field]:
    """Return the columns of the schema. Raises Invalid if one has the name of a message column of the query."""
    try:
        fields = column_fields(reader.parse())
    except Invalid as error:
        raise Invalid(f"{_title(found)} cannot be decoded to columns: {error.message}") from None
    taken = {one.lower() for one in options.columns}
    for one in fields:
        if one.name.lower() in taken:
            chosen = ",".join(name for name in options.columns if name != one.name.lower())
            raise Invalid(
                f"{_title(found)} has a field {one.name!r}, which is the name of a column of messages too: leave that "
                f"one out, with the option columns={chosen!r}"
            )
        if options.on_decode_error == "null" and one.name.lower() in (DECODE_ERROR, PAYLOAD):
            raise Invalid(
                f"{_title(found)} has a field {one.name!r}, which is the name of a column of onDecodeError=null too: "
                f"use onDecodeError=fail"
            )
    return fields


def _spark_schema(options: ReadOptions, found: SchemaVersion, fields: list[pa.Field]) -> StructType:
    columns = list(spark_schema(options.columns).fields)
    metadata = {METADATA: {"subject": found.subject, "version": found.version}}
    columns += [StructField(one.name, from_arrow_type(one.type), True, metadata) for one in fields]
    if options.on_decode_error == "null":
        if PAYLOAD not in options.columns:
            columns += spark_schema([PAYLOAD]).fields
        columns.append(StructField(DECODE_ERROR, from_arrow_type(pa.string())))
    return StructType(columns)


def _check_columns(schema: StructType, made: StructType, found: SchemaVersion) -> None:
    """Raise Invalid if a column that is asked for does not exist, or has another type."""
    if not schema.fields:
        raise Invalid("the schema has no columns: leave it out")
    types = {one.name: one.dataType.simpleString() for one in made.fields}
    for column in schema.fields:
        if column.name not in types:
            known = ", ".join(types)
            raise Invalid(f"the schema has a column {column.name!r}, and a query with {_title(found)} has {known}")
        if column.dataType.simpleString() != types[column.name]:
            raise Invalid(
                f"column {column.name!r} is {types[column.name]} with {_title(found)}, and the schema says "
                f"{column.dataType.simpleString()}: leave the schema out and cast, or choose the version by the option "
                f"schemaVersion"
            )


def _title(found: SchemaVersion) -> str:
    return f"version {found.version} of subject {found.subject!r}"
