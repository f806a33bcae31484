"""`danube queries`: lists, describes and forgets the state of queries that write by stages."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from pydanube.cli.connecting import with_client
from pydanube.cli.options import Parsed, broker_options, confirm, examples, yes_option
from pydanube.cli.output import fields, plural, show, shown_as_json, table
from pydanube.cli.synonyms import Group
from pydanube.model.staging import check_query

if TYPE_CHECKING:
    from pydanube.client import Client
    from pydanube.model.staging import StagedQuery

QUERY = Parsed("query", lambda text: check_query("query", text))


@click.group(
    cls=Group,
    epilog=examples(
        """
danube queries list
danube queries describe 5d3f1c0e-7a0b-4a51-8b0a-2f6f3f1f7a11
danube queries forget 5d3f1c0e-7a0b-4a51-8b0a-2f6f3f1f7a11 --yes
"""
    ),
)
def queries() -> None:
    """List, describe and forget queries that write by stages, such as Spark streams.

    A query stages the batches it counts, and commits each of them once. What is remembered of it is which run of it
    counts, and the last batch that was committed: a batch that is committed again changes nothing.
    """


@queries.command("list", epilog=examples("danube queries list --json"))
@broker_options
def list_(url: str) -> None:
    """List queries by name, with their last batch and what is still to be published of it."""
    found = with_client(url, lambda client: client.staged_queries())
    if shown_as_json(found):
        return
    table(
        ["query", "last batch", "committed", "pending"],
        [(one.query, _batch(one), _time(one.last_commit_at), one.pending) for one in found],
        right=["last batch", "pending"],
    )


@queries.command("describe", epilog=examples("danube queries describe nightly-totals --json"))
@click.argument("query", type=QUERY)
@broker_options
def describe(query: str, url: str) -> None:
    """Show a query: its current run, its last batch, and what keeps partitions from getting it."""
    one = with_client(url, lambda client: _find(client, query))
    if shown_as_json(one):
        return
    pairs: list[tuple[str, object]] = [
        ("query", one.query),
        ("namespace", one.namespace or "not recorded"),
        ("owner", one.owner or "nobody"),
        ("run", one.run),
        ("last batch", _batch(one)),
        ("committed", _time(one.last_commit_at)),
        ("pending", f"{plural(one.pending, 'partition')}" if one.pending else "nothing: all of it is published"),
    ]
    if one.obstacle:
        pairs.append(("obstacle", one.obstacle))
    fields(pairs)


@queries.command("forget", epilog=examples("danube queries forget nightly-totals --yes"))
@click.argument("query", type=QUERY)
@click.option("--owner", default="", help="The principal that it belongs to, where several have one of this name.")
@yes_option
@broker_options
def forget(query: str, owner: str, yes: bool, url: str) -> None:
    """Forget a query, with what it staged, or committed and is not published yet.

    Its batch ids count as new afterwards: a commit of one of them publishes it again. A query that is not
    heard of for long (storage.staged_query_keep_s) is forgotten by itself.
    """
    confirm(
        f"Forget query {query}? Its batches could be published twice.", yes, verb="forget", not_done="not forgotten"
    )
    with_client(url, lambda client: client.forget_staged_query(query, owner=owner))
    show({"query": query, "forgotten": True}, f"forgot {query}")


async def _find(client: Client, query: str) -> StagedQuery:
    from pydanube.model.errors import NotFound, Refused

    found = [one for one in await client.staged_queries() if one.query == query]
    if not found:
        raise NotFound(f"query {query!r} is not known here: 'danube queries list' shows those that are")
    if len(found) > 1:
        raise Refused(f"{len(found)} queries have the name {query!r}: 'danube queries list --json' shows them")
    return found[0]


def _batch(one: StagedQuery) -> str:
    return str(one.last_batch_id) if one.last_batch_id >= 0 else "none yet"


def _time(micros: int) -> str:
    return datetime.fromtimestamp(micros / 1_000_000, UTC).isoformat(timespec="milliseconds") if micros else "never"
