"""Makes a view of each topic that a query names, and runs the query.

A topic that is bound to a subject has the columns of its schema beside those of messages; another one has the columns
of messages, with the payload as bytes. A query reads from the earliest message to the end that the topics have when it
is planned. Filters on topic, partition, offset, append time, publish time and key reach the reader.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pydanube.client.blocking.client import BlockingClient
from pydanube.model.errors import NotFound
from pydanube.model.text import nearest

from .query import Query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class TopicTable:
    """A topic as a table: its options as a source. `subject` is empty if its payloads are not decoded."""

    topic: str
    subject: str
    messages: int
    """How many messages it has, about."""
    options: Mapping[str, str] = field(default_factory=dict)


def find_tables(
    client: BlockingClient, query: Query, *, raw: bool = False, options: Mapping[str, str] | None = None
) -> list[TopicTable]:
    """Look up the topics of a query. With `raw` they are not decoded.

    `options` are those of the source that hold for all topics. Raises NotFound with the name of a topic that does not
    exist.
    """
    given = dict(options or {})
    return [_find_table(client, topic, raw, given) for topic in query.topics]


def _find_table(client: BlockingClient, topic: str, raw: bool, given: dict[str, str]) -> TopicTable:
    try:
        described = client.describe_topic(topic)
    except NotFound:
        near = nearest(topic, client.list_topics())
        hint = f"did you mean `{near}`?" if near else "`danube topics list` shows those that there are"
        raise NotFound(f"topic {topic} does not exist: {hint}") from None
    messages = sum(one.end_offset - one.start_offset for one in described.partitions)
    binding = None if raw else client.schemas.binding(topic)
    options = {**given, "topic": topic}
    if binding is None:
        options.pop("onDecodeError", None)
        return TopicTable(topic, "", messages, options)
    return TopicTable(topic, binding.subject, messages, {**options, "decode": "schema"})


def run_query(spark: SparkSession, query: Query, tables: Sequence[TopicTable]) -> DataFrame:
    """Return the result of a query as a data frame. Raises what Spark raises; see `failures.explain`."""
    from pydanube.spark.datasource import DanubeDataSource

    spark.dataSource.register(DanubeDataSource)
    for one in tables:
        frame = spark.read.format("danube").options(**one.options).load()
        frame.createOrReplaceTempView(f"`{one.topic}`")
    return spark.sql(query.text)
