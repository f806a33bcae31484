"""SQL over topics, as `danube sql` runs it: a query names topics as tables, in backticks.

    select o.key, u.name from `/default/orders` o join `/default/users` u on o.key = u.key

sqlglot parses the text in the dialect of Spark, before Spark starts. What it cannot parse is refused with line and
column; a query that it accepts and Spark does not is refused later, by Spark.

Each topic becomes a view. If it is bound to a subject, the view has the columns of its schema beside those of messages;
otherwise the columns of messages, with the payload as bytes. A query reads from the earliest message to the end that
the topics have when it is planned. Filters on topic, partition, offset, append time, publish time and key reach the
reader.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import sqlglot
from sqlglot import expressions as exp
from sqlglot.errors import ParseError, SqlglotError

from pydanube.client.blocking.client import BlockingClient
from pydanube.model.errors import Invalid, NotFound
from pydanube.model.names import TopicName
from pydanube.model.text import nearest, one_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPICS_MAX: Final = 100
_HINT: Final = "write a topic with its namespace in backticks, as `/default/orders`"
_OPENED: Final = re.compile(r"Missing (\S+) from \d+:(\d+)")
"""What sqlglot says of a quote that is not closed, with the characters of the query before it."""
_COMMENT: Final = re.compile(r"\s+|--[^\n]*|/\*.*?\*/", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Query:
    """The text of a query, and the topics that it reads."""

    text: str
    topics: tuple[str, ...]


def parse_query(text: str) -> Query:
    """Return the query. Raises Invalid with the place for bad syntax, a statement that does not only read, and a table
    that is no topic."""
    statements = _parse(text)
    if not statements:
        raise Invalid("the query is empty: write for example select * from `/default/orders`")
    if len(statements) > 1:
        raise Invalid(f"there are {len(statements)} statements, and one is run at a time: leave out what is behind ';'")
    (root,) = statements
    if not isinstance(root, exp.Query | exp.Describe):
        raise Invalid(f"{_first_word(text)} is not possible here: a query only reads; begin it with SELECT or WITH")
    return Query(text.strip().rstrip(";"), _topics(root))


def _parse(text: str) -> list[Any]:
    try:
        with _without_warnings():
            return [one for one in sqlglot.parse(text, dialect="spark") if one is not None]
    except ParseError as error:
        raise Invalid(_explain(error)) from None
    except RecursionError:
        raise Invalid("the query cannot be read: it is nested too deeply") from None
    except SqlglotError as error:
        if (opened := _OPENED.search(str(error.__cause__))) is not None:
            begin = int(opened[2])
            line, column = text.count("\n", 0, begin) + 1, begin - text.rfind("\n", 0, begin)
            raise Invalid(f"line {line}, column {column}: what begins here with {opened[1]} is not closed") from None
        raise Invalid("the query cannot be read: a text or a comment is not closed") from None


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Keep sqlglot from warning on stderr of statements that it does not know, which are refused here anyway."""
    logger = logging.getLogger("sqlglot")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def _first_word(text: str) -> str:
    """Return the word that a statement begins with, behind comments, in capitals."""
    begin = 0
    while (found := _COMMENT.match(text, begin)) is not None:
        begin = found.end()
    word = re.match(r"\w+", text[begin:])
    return word[0].upper() if word else "this"


def _explain(error: ParseError) -> str:
    """Return the first mistake with the line and the column where its word begins, both counted from 1."""
    if not error.errors:
        return f"the query cannot be read: {one_line(str(error))}"
    first = error.errors[0]
    word = str(first.get("highlight") or "")
    column = max(1, int(first.get("col") or 1) - max(0, len(word) - 1))
    reason = str(first.get("description") or "it is not SQL")
    if "but got <Token" in reason:
        reason = reason.partition(" but got <Token")[0]
    if "<class" in reason:
        reason = "something is missing here"
    if reason.startswith("Invalid expression"):
        reason = "this is not expected here"
    if word.startswith("/"):
        reason += f"; {_HINT}"
    near = f" at {word!r}" if word else ""
    return f"line {first.get('line') or 1}, column {column}{near}: {one_line(reason)}"


def _topics(root: Any) -> tuple[str, ...]:
    """Return the topics that are named as tables, in the order of the text."""
    defined = {one.alias_or_name.lower() for one in root.find_all(exp.CTE)}
    found: dict[str, None] = {}
    for table in root.find_all(exp.Table, bfs=False):
        if not isinstance(table.this, exp.Identifier):
            continue  # a function such as range(10)
        name = table.name
        if not table.db and name.lower() in defined:
            continue
        if table.db or not name.startswith("/"):
            raise Invalid(f"there is no table {_written(table)}: {_HINT}{_meant(table)}")
        try:
            found[str(TopicName.parse(name))] = None
        except Invalid as error:
            raise Invalid(f"`{name}`: {error.message}") from None
    _check_spelling(found)
    if len(found) > TOPICS_MAX:
        raise Invalid(f"the query names {len(found)} topics, and may name {TOPICS_MAX}")
    return tuple(found)


def _check_spelling(topics: Iterable[str]) -> None:
    """Raise Invalid for topics that Spark, to which upper and lower case are the same, would take for one table."""
    seen: dict[str, str] = {}
    for topic in topics:
        if (other := seen.setdefault(topic.lower(), topic)) != topic:
            told = "Spark cannot tell them apart in one query: write two queries"
            raise Invalid(f"`{other}` and `{topic}` differ only in upper and lower case: {told}")


def _written(table: Any) -> str:
    return ".".join(part for part in (table.catalog, table.db, table.name) if part)


def _meant(table: Any) -> str:
    """Return a question for a name that lacks the slashes only."""
    if table.catalog:
        return ""
    try:
        guess = TopicName.parse(f"/{table.db or 'default'}/{table.name}")
    except Invalid:
        return ""
    return f"; did you mean `{guess}`?"


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
