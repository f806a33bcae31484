"""The table of `danube topics stats` without a topic: one line for each, from what the broker has in memory."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from pydanube.model.paging import PageQuery
from pydanube.model.statistics import TopicSummary

from .output import emit_json, number, size, span, table
from .paging import PageOptions
from .session import with_client

if TYPE_CHECKING:
    from pydanube.client import Client


def summaries(page: PageOptions, url: str, as_json: bool) -> None:
    """Print the summaries of the topics that were chosen."""

    async def work(client: Client) -> tuple[list[TopicSummary], str]:
        async def ask(query: PageQuery) -> tuple[list[TopicSummary], str]:
            found = await client.topic_page(filter=query.filter, sort=query.sort, limit=query.limit, after=query.after)
            return found.topics, found.next

        return await page.collect(ask)

    found, following = with_client(url, work)
    if as_json:
        topics = [asdict(one) for one in found]
        emit_json(topics if page.limit is None else {"topics": topics, "next": following})
        return
    columns = [
        "topic",
        "open",
        "producers",
        "msg/s",
        "bytes/s",
        "published",
        "stored",
        "subscriptions",
        "backlog",
        "oldest",
    ]
    table(columns, map(_row, found), right=columns[1:], cut=["topic"])
    page.note_following(following)


def _row(one: TopicSummary) -> tuple[object, ...]:
    return (
        one.topic,
        f"{one.open_partitions}/{max(1, one.partitions)}",
        one.producers,
        number(one.messages_per_s),
        size(one.bytes_per_s),
        f"{one.published:,}",
        size(one.stored_bytes),
        one.subscription_count,
        f"{one.backlog:,}",
        span(one.backlog_s) if one.backlog else "",
    )
