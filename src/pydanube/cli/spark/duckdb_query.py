"""Runs the query of `danube sql` in DuckDB, in this process.

The topics of a query are read into memory (`client.read`) and queried there. DuckDB writes names in double quotes;
names in backticks, as Spark has them, are taken too. `offset`, a reserved word of DuckDB, may be written as it is.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pydanube.model.errors import Invalid, NotFound
from pydanube.model.names import TopicName
from pydanube.model.text import nearest

if TYPE_CHECKING:
    import pyarrow

    from pydanube.client import Client, TopicRows
    from pydanube.client.tables.read_types import OnDecodeError

_PART: Final = re.compile(
    r"""(?P<kept> '(?:[^']|'')*' | --[^\n]* | /\*.*?\*/ )
    | `(?P<backticks>(?:[^`]|``)*)`
    | "(?P<quoted>(?:[^"]|"")*)"
    | (?P<offset> \boffset\b (?!\s*[\d(?$:]) )""",
    re.DOTALL | re.VERBOSE | re.IGNORECASE,
)
"""Texts and comments; names in backticks or quotes; and `offset` unless a number follows, as in `limit 3 offset 6`."""

_LINE: Final = re.compile(r"^LINE (\d+):", re.MULTILINE)


class TopicQuery(NamedTuple):
    """The text of a query as DuckDB takes it, and the topics that it names."""

    text: str
    topics: tuple[str, ...]


def parse_query(text: str) -> TopicQuery:
    """Return the query. Raises Invalid for bad syntax, and for a statement that does not only read."""
    import duckdb

    topics: dict[str, None] = {}

    def rewrite(part: re.Match[str]) -> str:
        if part["kept"] is not None:
            return part[0]
        if part["offset"] is not None:
            return f'"{part["offset"]}"'
        name = part["quoted"].replace('""', '"') if part["backticks"] is None else part["backticks"].replace("``", "`")
        if name.startswith("/"):
            topics[_topic(name)] = None
        return '"' + name.replace('"', '""') + '"'

    rewritten = _PART.sub(rewrite, text)
    try:
        statements = duckdb.extract_statements(rewritten)
    except duckdb.Error as error:
        raise Invalid(explain(error)) from None
    if not statements:
        raise Invalid("the query is empty: write for example select * from `/default/orders`")
    if len(statements) > 1:
        raise Invalid(f"there are {len(statements)} statements, and one is run at a time: leave out what is behind ';'")
    if (kind := statements[0].type) != duckdb.StatementType.SELECT:
        raise Invalid(f"{kind.name} is not possible here: a query only reads; begin it with SELECT or WITH")
    if len({one.lower() for one in topics}) < len(topics):
        raise Invalid("two topics differ only in upper and lower case, and DuckDB ignores case: write two queries")
    return TopicQuery(rewritten, tuple(topics))


def _topic(name: str) -> str:
    try:
        return str(TopicName.parse(name))
    except Invalid as error:
        raise Invalid(f"`{name}`: {error.message}") from None


async def read_topics(client: Client, query: TopicQuery, *, raw: bool, errors: OnDecodeError) -> dict[str, TopicRows]:
    """Read the topics of a query. Raises NotFound with a similar name for a topic that does not exist."""
    found = {}
    for topic in query.topics:
        try:
            found[topic] = await client.read(topic, decode=not raw, errors=errors)
        except NotFound:
            near = nearest(topic, await client.topics.list())
            hint = f"did you mean `{near}`?" if near else "`danube topics list` shows those that there are"
            raise NotFound(f"topic {topic} does not exist: {hint}") from None
    return found


def run_query(query: TopicQuery, topics: dict[str, TopicRows], most: int) -> pyarrow.Table:
    """Return the rows: one more than `most` if there are more; 0: all of them. Raises Invalid with DuckDB's reason."""
    import duckdb

    with duckdb.connect(config={"enable_external_access": "false"}) as connection:
        connection.execute("set TimeZone = 'UTC'")
        for topic, rows in topics.items():
            connection.register(topic, rows.to_arrow())
        try:
            relation: Any = connection.sql(query.text)
            return (relation.limit(most + 1) if most else relation).to_arrow_table()
        except duckdb.Error as error:
            raise Invalid(explain(error)) from None


def explain(error: Exception) -> str:
    """Return the reason of an error of DuckDB as one line, with the line of the query where it is known."""
    text = str(error)
    place = _LINE.search(text)
    told = text[: place.start()] if place else text
    reason = " ".join(told.partition(" Error: ")[2].split()) or " ".join(told.split())
    if 'syntax error at or near "/"' in reason:
        reason += "; write a topic with its namespace in backticks, as `/default/orders`"
    return (f"line {place[1]}: " if place else "") + reason[:500]
