"""`danube topics`: create, grow, list, describe, unload, truncate, delete. Others: stats.py, policies.py."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, Literal, cast

import click

from pydanube.cli import values
from pydanube.cli.connecting import with_client
from pydanube.cli.options import (
    ACK_LEVEL,
    NAMESPACE,
    POSITION,
    TOPIC,
    broker_options,
    confirm,
    examples,
    expected_option,
    yes_option,
)
from pydanube.cli.output import emit_json, fail, fields, note, plural, show, shown_as_json, size, table, wants_json
from pydanube.cli.paging import PageOptions, page_options
from pydanube.cli.schemas.bindings import binding_text, find_binding
from pydanube.cli.standard_streams import is_terminal
from pydanube.cli.subscriptions.backlog import format_positions
from pydanube.cli.synonyms import Group
from pydanube.cli.topics.policies import checked_changes, set_option, topic_policies
from pydanube.cli.topics.stats import stats
from pydanube.model.cluster import AWAY, BrokerStatus
from pydanube.model.errors import DanubeError, Denied, Invalid
from pydanube.model.json_values import as_json
from pydanube.model.leftovers import Salvage
from pydanube.model.limits import PARTITIONS_MAX
from pydanube.model.names import TopicName
from pydanube.model.paging import TOPIC_NUMBERS, PageQuery
from pydanube.model.positions import Position
from pydanube.model.topics import AckLevelName, TopicDescription
from pydanube.operations.topics import MOVE_SECONDS

if TYPE_CHECKING:
    from pydanube.client import Client
    from pydanube.model.schemas import Binding
    from pydanube.model.statistics import TopicSummary

UNKNOWN: Final = "-"
"""Stands in a table for what the owner of a partition has not told."""


@click.group(
    cls=Group,
    epilog=examples(
        """
danube topics create /default/orders --partitions 3
danube topics list --namespace default
danube topics describe /default/orders --json
danube topics stats /default/orders
danube topics policies /default/orders --set ttl_s=1h
danube topics delete /default/orders --yes
"""
    ),
)
def topics() -> None:
    """Create, grow, list, describe, measure, unload, truncate and delete topics."""


topics.add_command(stats)
topics.add_command(topic_policies)


@topics.command(
    "create",
    epilog=examples(
        """
danube topics create /default/orders
danube topics create /default/clicks --partitions 8 --ack-level written
danube topics create /default/prices --non-reliable         never stored; who is not listening misses it
danube topics create /default/logs --set retention_s=2d --set message_bytes_max=64KiB
"""
    ),
)
@click.argument("topic", type=TOPIC)
@click.option(
    "--partitions", type=click.IntRange(min=0), default=0, show_default="non-partitioned", help="How many partitions."
)
@click.option(
    "--ack-level",
    type=ACK_LEVEL,
    help="What a publish ack promises.  [default: stored in a cluster, durable on a broker alone]",
)
@click.option(
    "--reliable/--non-reliable", default=True, help="Keep messages until they are acked.  [default: reliable]"
)
@click.option("--if-not-exists", is_flag=True, help="Do nothing if there is such a topic.")
@set_option
@broker_options
def create(
    topic: TopicName,
    partitions: int,
    ack_level: AckLevelName | None,
    reliable: bool,
    if_not_exists: bool,
    changes: tuple[tuple[str, int], ...],
    url: str,
) -> None:
    """Create a topic, with policies of its own if --set names some.

    \b
    The ack level says what a message survives once its publish is acked:
      stored    the loss of the broker with its disk: it is in the object store
      durable   a crash of the broker's machine: it is synced to its disk
      written   a crash of the broker's process: it is handed to the system
      memory    nothing: it is in the memory of the broker
    """
    from pydanube.model.errors import AlreadyExists
    from pydanube.model.topics import AckLevel, TopicConfig

    policies = checked_changes(changes)

    async def work(client: Client) -> bool:
        try:
            await client.create_topic(str(topic), partitions=partitions, reliable=reliable, ack_level=ack_level)
        except AlreadyExists:
            if not if_not_exists:
                raise
            there = (await client.describe_topic(str(topic))).config
            level = there.ack_level if ack_level is None else AckLevel.parse(ack_level)
            if there != TopicConfig(partitions, reliable, level):
                kind = f"{there.partitions} partitions" if there.partitions else "non-partitioned"
                how = f"reliable, {there.ack_level} acks" if there.reliable else "non-reliable"
                click.echo(f"danube: {topic} was created with other settings: {kind}, {how}", err=True)
            if policies:
                note(f"{topic} keeps its policies: 'danube topics policies {topic}' shows and changes them")
            return False
        if policies:
            try:
                await client.set_policies(str(topic), expected="", **policies)
            except DanubeError as error:
                error.message = f"{topic} was created, but without its policies: {error.message}"
                raise
        return True

    created = with_client(url, work)
    show({"topic": str(topic), "created": created}, f"{'created' if created else 'exists'} {topic}")


@topics.command("grow", epilog=examples("danube topics grow /default/clicks 16"))
@click.argument("topic", type=TOPIC)
@click.argument("partitions", type=click.IntRange(min=1, max=PARTITIONS_MAX))
@expected_option
@broker_options
def grow(topic: TopicName, partitions: int, expected: str, url: str) -> None:
    """Give a partitioned topic more partitions, PARTITIONS in all.

    This breaks the order per key across the change: a key's partition follows from their number, so that new messages
    of a key may go to another partition while its older ones still wait in the one before. Where that matters, let the
    consumers finish first. A topic never shrinks.
    """
    with_client(url, lambda client: client.grow_topic(str(topic), partitions, expected=expected))
    show({"topic": str(topic), "partitions": partitions}, f"{topic} has {partitions} partitions")


@topics.command("unload", epilog=examples("danube topics unload /default/orders"))
@click.argument("topic", type=TOPIC)
@broker_options
def unload(topic: TopicName, url: str) -> None:
    """Close a topic at its broker; it is opened again when it is used next.

    What was published and acked is synced first. Connected producers and consumers continue by themselves; messages
    that were delivered and not acked come again.
    """
    with_client(url, lambda client: client.unload_topic(str(topic)))
    show({"topic": str(topic), "unloaded": True}, f"unloaded {topic}")


@topics.command("set-ack-level", epilog=examples("danube topics set-ack-level /default/orders stored"))
@click.argument("topic", type=TOPIC)
@click.argument("ack_level", type=click.Choice(["durable", "stored"]))
@broker_options
def set_ack_level(topic: TopicName, ack_level: Literal["durable", "stored"], url: str) -> None:
    """Change the ack level of a topic between durable and stored.

    What is published from then on is acked under the new level. A topic that becomes stored is uploaded first, so that
    any broker can take it over. Connected producers and consumers continue by themselves; messages that were delivered
    and not acked come again.
    """

    async def change(client: Client) -> list[int]:
        await client.set_ack_level(str(topic), ack_level)
        described = await client.describe_topic(str(topic))
        return [one.index for one in described.partitions if not one.owner]

    waiting = with_client(url, change)
    if shown_as_json({"topic": str(topic), "ack_level": ack_level, "waiting": waiting}):
        return
    click.echo(f"{topic} has the ack level {ack_level}")
    if waiting:
        listed = ", ".join(map(str, waiting))
        note(f"partitions that wait for their broker change when it is back: {listed}")


@topics.command(
    "takeover",
    epilog=examples(
        """
danube topics takeover /default/orders                      says what would be lost at most, and does nothing
danube topics takeover /default/orders --partition 3 --accept-loss
"""
    ),
)
@click.argument("topic", type=TOPIC)
@click.option("--partition", type=click.IntRange(min=0), help="Only this one.  [default: all that wait for a broker]")
@click.option("--accept-loss", is_flag=True, help="Give up what the lost broker has not uploaded.")
@broker_options
def takeover(topic: TopicName, partition: int | None, accept_loss: bool, url: str) -> None:
    """Take partitions over from a broker that is lost.

    Partitions of durable and written topics wait for their broker, because only its disk has what was not uploaded.
    This gives that up: another broker goes on, with offsets behind all that may have been given out. If the lost broker
    returns, what it has is kept: see `danube brokers leftovers` and `danube topics salvage`.
    """
    lost = with_client(
        url, lambda client: client.take_over_topic(str(topic), partition=partition, accept_loss=accept_loss)
    )
    if shown_as_json(lost):
        return
    for one in lost:
        gone = "nothing is lost" if one.is_empty else f"offsets {one.start} to {one.end - 1} are given up"
        click.echo(f"partition {one.partition} of {topic} was taken over from broker {one.broker}: {gone}")


@topics.command(
    "move",
    epilog=examples(
        """
danube topics move /default/orders --to broker-2
danube topics move /default/orders --partition 3 --to broker-2
"""
    ),
)
@click.argument("topic", type=TOPIC)
@click.option("--partition", type=click.IntRange(min=0), default=0, show_default=True, help="The partition.")
@click.option("--to", metavar="BROKER", required=True, help="The broker that takes it: see `danube brokers list`.")
@broker_options
def move(topic: TopicName, partition: int, to: str, url: str) -> None:
    """Move a partition to another broker, under load.

    Its owner accepts nothing more, answers what it has accepted, and gives the partition away; clients follow by
    themselves. A publish waits a moment. Partitions of `stored` and non-reliable topics move at once, those of `memory`
    topics when everything in them is acked. Those of `durable` and `written` topics are uploaded first, while they are
    served; if the command is interrupted, that goes on.
    """
    moved = with_client(
        url, lambda client: client.move_topic(str(topic), to, partition=partition), answer_seconds=MOVE_SECONDS
    )
    show(moved, f"partition {partition} of {topic} moved from broker {moved.source} to broker {moved.target}")


@topics.command(
    "salvage",
    epilog=examples(
        """
danube topics salvage /default/orders --to /default/salvaged                    all of its partitions
danube topics salvage /default/orders --partition 3 --to /default/salvaged
danube topics salvage --all --to /default/salvaged --drop
"""
    ),
)
@click.argument("topic", type=TOPIC, required=False)
@click.option("--all", "is_all", is_flag=True, help="Of all topics.")
@click.option("--partition", type=click.IntRange(min=0), help="Only this one.  [default: all that have leftovers]")
@click.option("--to", type=TOPIC, required=True, help="The topic that the messages are published to; it must exist.")
@click.option("--broker", default="", help="Only the leftovers of this broker.")
@click.option("--drop", is_flag=True, help="Drop the leftovers when they are published.")
@broker_options
def salvage(
    topic: TopicName | None, is_all: bool, partition: int | None, to: TopicName, broker: str, drop: bool, url: str
) -> None:
    """Publish leftovers of a topic, or of all topics, to another topic.

    Each message says where it was, in the attributes x-original-topic, x-original-partition and x-original-offset.
    Repeating this publishes nothing twice. What fails is named at the end and sets exit code 1; the rest is published.
    See `danube brokers leftovers`.
    """
    from pydanube.cli.progress_line import Bar

    if is_all != (topic is None):
        raise click.UsageError("name a TOPIC, or give --all")
    if is_all and partition is not None:
        raise click.UsageError("--partition is of one TOPIC")

    async def work(client: Client) -> list[Salvage]:
        if topic is not None and partition is not None:
            published = await client.salvage_topic(str(topic), partition, str(to), broker=broker, drop=drop)
            return [Salvage(str(topic), partition, broker, published)]
        done: list[Salvage] = []
        with Bar("partitions") as bar:

            def progress(one: Salvage, total: int) -> None:
                done.append(one)
                bar(len(done), total)

            found = await client.topics.salvage_all(
                str(to), topic=str(topic or ""), broker=broker, drop=drop, progress=progress
            )
        if not found and topic is not None:  # the broker says why
            await client.salvage_topic(str(topic), 0, str(to), broker=broker, drop=drop)
        return found

    _print_salvaged(with_client(url, work), to, drop)


def _print_salvaged(found: list[Salvage], to: TopicName, drop: bool) -> None:
    published, failed = sum(one.published for one in found), [one for one in found if one.failure]
    if wants_json():
        emit_json({"to": str(to), "published": published, "dropped": drop and not failed, "partitions": found})
    else:
        for one in found:
            if one.published and len(found) > 1:
                click.echo(f"{plural(one.published, 'message')} of {one.topic} partition {one.partition}")
        told = f"published {plural(published, 'message')} to {to}" if published else f"nothing new to publish to {to}"
        click.echo(told + (", and dropped the leftovers" if drop and len(failed) < len(found) else ""))
    for one in failed:
        note(f"{one.topic} partition {one.partition} of broker {one.broker}: {one.failure}")
    if failed:
        fail(f"{len(failed)} of {plural(len(found), 'partition')} not salvaged completely: see above, then repeat it")


@topics.command(
    "truncate",
    cls=values.TakesAgo,
    epilog=examples(
        """
danube topics truncate /default/orders --before 1000
danube topics truncate /default/clicks --before 1000 --partition 2 --yes
danube topics truncate /default/clicks --before 2026-01-31T12:00:00Z
danube topics truncate /default/clicks --before latest --yes        deletes all there is
"""
    ),
)
@click.argument("topic", type=TOPIC)
@click.option("--before", type=POSITION, required=True, help="Where what is kept begins.")
@click.option("--partition", type=click.IntRange(min=0), help="Only this one.  [default: all]")
@yes_option
@broker_options
def truncate(topic: TopicName, before: Position, partition: int | None, yes: bool, url: str) -> None:
    """Delete everything before an offset, a time or the end of a topic, also what subscriptions have not consumed.

    Offsets are not used again. Subscriptions that stand before that position move up to it. This cannot be undone.
    """
    where = f"partition {partition} of {topic}" if partition is not None else topic
    question = f"Delete everything before {before} in {where}, also what subscriptions have not consumed?"
    confirm(question, yes, not_done="nothing was deleted")
    starts = with_client(url, lambda client: client.truncate_topic(str(topic), before, partition=partition))
    show({"positions": sorted(starts.items())}, f"truncated {topic} ({format_positions(starts)})")


@topics.command(
    "list",
    epilog=examples(
        """
danube topics list
danube topics list --namespace default --json
danube topics list --filter '/shop/*' --sort backlog --limit 20
"""
    ),
)
@click.option("--namespace", "-n", type=NAMESPACE, help="Only of this namespace.")
@page_options(TOPIC_NUMBERS)
@broker_options
def list_(namespace: str | None, page: PageOptions, url: str) -> None:
    """List topics by name; on a terminal with their partitions, ack level and size.

    With --limit one page is printed, and on stderr what to add for the next one. With --json a page is an object with
    "topics" and "next", otherwise all names are one list.
    """

    for_people = is_terminal(sys.stdout) and not wants_json()

    async def work(client: Client) -> tuple[list[str] | list[TopicSummary], str]:
        if not page and not for_people:
            return await client.list_topics(namespace), ""
        return await page.collect(lambda query: _topic_page(client, namespace, query))

    found, following = with_client(url, work)
    summaries = [one for one in found if not isinstance(one, str)]
    if not for_people:
        page.show("topics", [one.topic for one in summaries] or cast(list[str], found), following)
        return
    table(
        ["topic", "partitions", "ack level", "messages", "size", "subscriptions"],
        [
            (
                one.topic,
                one.partitions or "-",
                one.ack_level if one.reliable else "non-reliable",
                f"{one.messages:,}",
                size(one.stored_bytes),
                one.subscription_count,
            )
            for one in summaries
        ],
        right=["partitions", "messages", "size", "subscriptions"],
    )
    page.note_following(following)


async def _topic_page(client: Client, namespace: str | None, query: PageQuery) -> tuple[list[TopicSummary], str]:
    found = await client.topic_page(
        namespace, filter=query.filter, sort=query.sort, limit=query.limit, after=query.after
    )
    return found.topics, found.next


@topics.command(
    "describe", epilog=examples("danube topics describe /default/orders\ndanube topics describe /default/orders --json")
)
@click.argument("topic", type=TOPIC)
@broker_options
def describe(topic: TopicName, url: str) -> None:
    """Show a topic's partitions, offsets, size and subscriptions, and the schema that it carries."""

    async def work(client: Client) -> tuple[TopicDescription, list[BrokerStatus], Binding | None]:
        found = await client.describe_topic(str(topic))
        return found, await _brokers(client), await find_binding(client, str(topic))

    found, brokers, binding = with_client(url, work)
    names = {one.addresses.native: one.name for one in brokers if one.addresses.native}
    is_cluster = any(one.incarnation or one.state == AWAY for one in brokers)
    level = found.config.ack_level
    told = {
        "messages": sum(one.messages for one in found.partitions),
        "owners": [names.get(one.owner, "") for one in found.partitions],
        "survives": level.survives,
        "when_broker_is_lost": level.when_broker_is_lost,
        "schema": binding,
    }
    if shown_as_json(as_json(found) | told):
        return
    fields(
        [
            ("topic", found.name),
            ("id", found.topic_id),
            ("partitions", found.config.partitions or "non-partitioned"),
            ("reliable", "yes" if found.config.reliable else "no"),
            ("ack level", level if found.config.reliable else "none: nothing is stored"),
            ("survives", level.survives),
            *([("broker lost", level.when_broker_is_lost)] if is_cluster else []),
            ("subscriptions", ", ".join(found.subscriptions) or "none"),
            ("schema", "none" if binding is None else binding_text(binding)),
        ]
    )
    click.echo()
    table(
        ["partition", "owner", "address", "epoch", "first offset", "end offset", "messages", "in the log", "health"],
        [
            (
                p.index,
                names.get(p.owner, UNKNOWN),
                p.owner or UNKNOWN,
                p.epoch,
                *(
                    (p.start_offset, p.end_offset, p.messages, size(p.stored_bytes))
                    if p.is_known
                    else (UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN)
                ),
                p.health,
            )
            for p in found.partitions
        ],
        right=["partition", "epoch", "first offset", "end offset", "messages", "in the log"],
    )


async def _brokers(client: Client) -> list[BrokerStatus]:
    """Return the brokers of the cluster, or the one that is alone; none if the client is not told."""
    try:
        described = await client.describe_cluster()
    except (Invalid, Denied):  # a broker of an earlier release, or one that tells this user no more
        return []
    return described.brokers


@topics.command(
    "delete", epilog=examples("danube topics delete /default/orders\ndanube topics delete /default/orders --yes")
)
@click.argument("topic", type=TOPIC)
@yes_option
@expected_option
@broker_options
def delete(topic: TopicName, yes: bool, expected: str, url: str) -> None:
    """Delete a topic with its messages and subscriptions."""
    confirm(f"Delete {topic} with all its messages and subscriptions?", yes)
    with_client(url, lambda client: client.delete_topic(str(topic), expected=expected))
    show({"topic": str(topic), "deleted": True}, f"deleted {topic}")
