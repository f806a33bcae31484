"""`danube topics stats`: rates of a topic, and rates and backlogs of its subscriptions; or a table of all topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pydanube.cli.connecting import with_client
from pydanube.cli.options import TOPIC, broker_options, examples
from pydanube.cli.output import emit_json, fields, number, plural, shown_as_json, size, span, table, wants_json
from pydanube.cli.paging import PageOptions, page_options
from pydanube.cli.synonyms import Command
from pydanube.cli.topics.totals import TopicTotals, sum_topic
from pydanube.model.json_values import as_json
from pydanube.model.names import TopicName
from pydanube.model.paging import TOPIC_NUMBERS, PageQuery
from pydanube.model.statistics import PartitionStatistics, SubscriptionStatistics, TopicSummary

if TYPE_CHECKING:
    from pydanube.client import Client


@click.command(
    "stats",
    cls=Command,
    epilog=examples(
        """
danube topics stats /default/orders
danube topics stats /default/orders -v                      each consumer and each partition
danube topics stats /default/orders --json | jq '.total.subscriptions[] | {name, backlog}'
danube topics stats --sort backlog --limit 20               a table of topics; opens none of them
"""
    ),
)
@click.argument("topic", type=TOPIC, required=False)
@page_options(TOPIC_NUMBERS)
@click.option("-v", "--verbose", is_flag=True, help="Show consumers and partitions too, and what is 0.")
@broker_options
def stats(topic: TopicName | None, page: PageOptions, verbose: bool, url: str) -> None:
    """Show a topic's rates, and the backlog of its subscriptions; without TOPIC, a table of all topics.

    Rates are averages over the last seconds; totals count since the broker opened the topic. Bytes are those of
    batches, with all they carry. What is 0 of the details shows with -v. 'danube top' shows the
    same live, for many topics.

    The table of all topics shows what the broker has in memory: numbers of partitions that are open. It takes --filter,
    --sort, --limit and --after.
    """
    if topic is None:
        summaries(page, url)
        return
    if page:
        raise click.UsageError("--filter, --sort, --reverse, --limit and --after are for a table: leave out the topic")
    figures = sum_topic(with_client(url, lambda client: client.topic_statistics(str(topic))))
    if shown_as_json(as_json(figures) | {"messages": figures.messages}):
        return
    fields(_topic(figures))
    for subscription in figures.subscriptions:
        click.echo()
        click.secho(f"subscription {subscription.name}", bold=True)
        fields(_subscription(subscription, verbose))
        if verbose and subscription.consumers:
            click.echo()
            consumers(subscription)
    if verbose:
        _partitions(figures)


def _topic(figures: TopicTotals) -> list[tuple[str, object]]:
    total, count = figures.total, len(figures.partitions)
    kind = "reliable" if figures.reliable else "non-reliable"
    told: list[tuple[str, object]] = [
        ("topic", f"{figures.topic} ({kind}, {plural(count, 'partition')})"),
        ("producers", total.producers),
        ("publish rate", _rate(total)),
        ("published", f"{plural(total.published, 'message')}, {size(total.published_bytes)}"),
    ]
    if figures.reliable:
        told.append(("stored", f"{plural(figures.messages, 'message')}, {size(total.stored_bytes)}"))
    else:
        told.append(("unheard", f"{total.unheard:,} (published while nobody listened)"))
    if total.throttled_s:
        told.append(("throttled", f"{span(total.throttled_s)} of waiting for the publish rate"))
    if total.schema_warnings:
        told.append(("schema warnings", f"{total.schema_warnings:,} (batches stored although they do not fit)"))
    if total.health != "ok":
        told.append(("health", total.health))
    return told


def _subscription(one: SubscriptionStatistics, verbose: bool) -> list[tuple[str, object]]:
    """Return the fields of a subscription; details that are 0 only if `verbose`."""
    waiting = {"unacked": one.unacked, "waiting to come again": one.waiting, "delayed": one.delayed}
    stuck = {"held": one.held, "unmatched": one.unmatched, "blocked": one.blocked}
    gone = {
        "dropped": one.dropped,
        "dead-lettered": one.dead_lettered,
        "expired": one.expired,
        "evicted": one.evicted,
    }
    keys = f" ({plural(one.blocked_keys, 'key')})" if one.blocked_keys else ""
    told: list[tuple[str, object]] = [
        ("type", f"{one.type}, {plural(len(one.consumers), 'consumer')}"),
        ("dispatch rate", f"{_rate(one)}; {number(one.acks_per_s)} acks/s"),
        ("backlog", backlog(one)),
        ("of these", _counted(waiting, verbose)),
        ("not possible now", _counted(stuck, verbose) + keys),
        ("delivered", f"{one.delivered:,}, {one.redelivered:,} of them again; {one.acked:,} acked"),
        ("given up", _counted(gone, verbose)),
    ]
    return [(name, value) for name, value in told if value]


def _counted(figures: dict[str, int], verbose: bool) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in figures.items() if count or verbose)


def backlog(one: SubscriptionStatistics) -> str:
    """Format the backlog in messages, bytes and seconds."""
    if not one.backlog:
        return "0 messages"
    return f"{plural(one.backlog, 'message')}, about {size(one.backlog_bytes)}, oldest {span(one.backlog_s)}"


def consumers(subscription: SubscriptionStatistics) -> None:
    """Print a table of the attached consumers."""
    filtered = any(one.key_filters for one in subscription.consumers)
    columns = ["consumer", "state", "priority", "msg/s", "delivered", "again", "unacked", "room"]
    table(
        columns + ["key filters"] * filtered,
        [
            (
                one.name,
                "active" if one.active else "standby",
                one.priority,
                number(one.messages_per_s),
                f"{one.delivered:,}",
                f"{one.redelivered:,}",
                f"{one.unacked:,}",
                f"{one.credit:,}",
                *[" ".join(one.key_filters) or "every key"] * filtered,
            )
            for one in subscription.consumers
        ],
        right=columns[2:],
    )


def _partitions(figures: TopicTotals) -> None:
    click.echo()
    names = [one.name for one in figures.subscriptions]
    columns = ["partition", "offsets", "producers", "msg/s", "bytes/s", "stored"]
    table(
        [*columns, *(f"backlog of {name}" for name in names), "health"],
        [
            (
                one.index,
                f"{one.start_offset} to {one.end_offset}",
                one.producers,
                number(one.messages_per_s),
                size(one.bytes_per_s),
                size(one.stored_bytes),
                *(_backlog_of(one, name) for name in names),
                one.health,
            )
            for one in figures.partitions
        ],
        right=[*columns, *(f"backlog of {name}" for name in names)],
    )


def _backlog_of(partition: PartitionStatistics, name: str) -> str:
    found = next((one for one in partition.subscriptions if one.name == name), None)
    return f"{found.backlog:,}" if found else ""


def _rate(one: PartitionStatistics | SubscriptionStatistics) -> str:
    return f"{number(one.messages_per_s)} msg/s, {size(one.bytes_per_s)}/s"


def summaries(page: PageOptions, url: str) -> None:
    """Print the summaries of the topics that were chosen."""

    async def work(client: Client) -> tuple[list[TopicSummary], str]:
        async def ask(query: PageQuery) -> tuple[list[TopicSummary], str]:
            found = await client.topic_page(filter=query.filter, sort=query.sort, limit=query.limit, after=query.after)
            return found.topics, found.next

        return await page.collect(ask)

    found, following = with_client(url, work)
    if wants_json():
        emit_json(found if page.limit is None else {"topics": found, "next": following})
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
