"""`danube subscriptions`: create, list, describe, delete. See also backlog.py (positions) and failure.py (policies)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from pydanube.cli import values
from pydanube.cli.connecting import with_client
from pydanube.cli.options import (
    POSITION,
    SUBSCRIPTION,
    SUBSCRIPTION_TYPE,
    TOPIC,
    Parsed,
    broker_options,
    confirm,
    examples,
    expected_option,
    yes_option,
)
from pydanube.cli.output import emit_json, fields, show, shown_as_json, table, wants_json
from pydanube.cli.subscriptions import failure_policy as failure
from pydanube.cli.subscriptions.backlog import advance, peek, seek, skip
from pydanube.cli.synonyms import Group
from pydanube.cli.topics.stats import consumers
from pydanube.cli.topics.totals import sum_topic
from pydanube.model.errors import NotFound
from pydanube.model.json_values import as_json
from pydanube.model.names import TopicName
from pydanube.model.positions import LATEST, Position
from pydanube.model.statistics import SubscriptionStatistics
from pydanube.model.topics import SubscriptionDescription, SubscriptionTypeName

if TYPE_CHECKING:
    from pydanube.client import Client


@click.group(
    cls=Group,
    epilog=examples(
        """
danube subscriptions create /default/orders billing --from earliest
danube subscriptions list /default/orders
danube subscriptions describe /default/orders billing
danube subscriptions peek /default/orders billing
danube subscriptions seek /default/orders billing -10m
danube subscriptions failure-policy /default/orders billing --max-redeliveries 5 --dead-letter-topic /default/dead
danube subscriptions unacked-max /default/orders billing 1000
danube subscriptions delete /default/orders billing --yes
"""
    ),
)
def subscriptions() -> None:
    """Create, list, describe, move and delete subscriptions."""


for _command in (seek, advance, skip, peek, failure.failure_policy):
    subscriptions.add_command(_command)


@subscriptions.command(
    "create",
    epilog=examples(
        """
danube subscriptions create /default/orders billing
danube subscriptions create /default/orders audit --from earliest --type exclusive
danube subscriptions create /default/orders workers --type shared --max-redeliveries 5 --dead-letter-topic /default/dead
danube subscriptions create /default/orders mailers --type key-shared --ack-timeout 30s --delay 500ms --backoff fixed
"""
    ),
)
@click.argument("topic", type=TOPIC)
@click.argument("subscription", type=SUBSCRIPTION)
@click.option("--type", "type_", type=SUBSCRIPTION_TYPE, default="exclusive", show_default=True, help="How it shares.")
@click.option("--from", "start", type=POSITION, default=LATEST, show_default=True, help="Where it starts.")
@failure.failure_options
@broker_options
def create(
    topic: TopicName,
    subscription: str,
    type_: SubscriptionTypeName,
    start: Position,
    url: str,
    **given: Any,
) -> None:
    """Create a subscription; what is published from now on waits for it.

    It starts at --from: earliest, latest, an offset such as 1000, a time such as 2026-01-31T12:00:00Z, or how long ago,
    such as -10m. Messages that fail come again without limit, with a growing delay, unless told otherwise: see 'danube
    subscriptions failure-policy --help'.
    """
    policy = failure.PolicyChanges(**given).new_policy()
    with_client(
        url,
        lambda client: client.create_subscription(
            str(topic), subscription, type=type_, start=start, failure_policy=policy
        ),
    )
    show({"topic": str(topic), "subscription": subscription, "created": True}, f"created {subscription} on {topic}")


@subscriptions.command("list", epilog=examples("danube subscriptions list /default/orders\ndanube subscriptions list"))
@click.argument("topic", type=TOPIC, required=False)
@broker_options
def list_(topic: TopicName | None, url: str) -> None:
    """List the subscriptions of a topic, or of all topics, with how far each is behind."""

    async def work(client: Client) -> list[tuple[str, SubscriptionStatistics]]:
        names = [str(topic)] if topic else await client.list_topics()
        return [(name, one) for name in names for one in await _subscriptions(client, name, topic is not None)]

    found = with_client(url, work)
    if wants_json():
        emit_json(
            [
                {
                    "topic": name,
                    "subscription": one.name,
                    "type": one.type,
                    "backlog": one.backlog,
                    "consumers": len(one.consumers),
                }
                for name, one in found
            ]
        )
    elif found:
        table(
            ["topic", "subscription", "type", "backlog", "consumers"],
            [(name, one.name, one.type, f"{one.backlog:,}", len(one.consumers)) for name, one in found],
            right=["backlog", "consumers"],
        )


async def _subscriptions(client: Client, topic: str, wanted: bool) -> list[SubscriptionStatistics]:
    try:
        if await client.list_subscriptions(topic):
            return sum_topic(await client.topic_statistics(topic)).subscriptions
    except NotFound:
        if wanted:
            raise  # without a named topic, it was deleted since it was listed
    return []


@subscriptions.command("describe", epilog=examples("danube subscriptions describe /default/orders billing --json"))
@click.argument("topic", type=TOPIC)
@click.argument("subscription", type=SUBSCRIPTION)
@broker_options
def describe(topic: TopicName, subscription: str, url: str) -> None:
    """Show where a subscription is, how far behind, who consumes it, and what happens to messages that fail."""

    async def work(client: Client) -> tuple[SubscriptionDescription, SubscriptionStatistics | None]:
        described = await client.describe_subscription(str(topic), subscription)
        return described, sum_topic(await client.topic_statistics(str(topic))).subscription(subscription)

    found, figures = with_client(url, work)
    lag = sum(place.lag for place in found.partitions)
    if shown_as_json(as_json(found) | {"lag": lag, "consumers": [] if figures is None else figures.consumers}):
        return
    fields(
        [
            ("topic", found.topic),
            ("subscription", found.name),
            ("id", found.subscription_id),
            ("type", found.type),
            ("lag", lag),
            ("unacked messages", _limit_text(found.unacked_max)),
            *failure.as_fields(found.failure_policy),
        ]
    )
    click.echo()
    _places(found)
    if figures is not None and figures.consumers:
        click.echo()
        consumers(figures)


def _places(found: SubscriptionDescription) -> None:
    """Show a line for each partition; the health only if an owner does not answer."""
    columns = ["partition", "position", "lag", "acked ahead", "unacked", "consumer"]
    rows = [(p.partition, p.position, p.lag, p.acked_ahead, p.unacked, p.consumer or "none") for p in found.partitions]
    right = ["partition", "position", "lag", "acked ahead", "unacked"]
    if all(p.health == "ok" for p in found.partitions):
        table(columns, rows, right=right)
    else:
        told = [(*row, p.health) for row, p in zip(rows, found.partitions, strict=True)]
        table([*columns, "health"], told, right=right)


def _limit_text(unacked_max: int) -> str:
    return f"at most {unacked_max} per partition" if unacked_max else "unlimited"


@subscriptions.command(
    "unacked-max",
    epilog=examples(
        """
danube subscriptions unacked-max /default/orders billing
danube subscriptions unacked-max /default/orders billing 1000
danube subscriptions unacked-max /default/orders billing unlimited
"""
    ),
)
@click.argument("topic", type=TOPIC)
@click.argument("subscription", type=SUBSCRIPTION)
@click.argument("messages", type=Parsed("n", values.unacked_max), required=False)
@expected_option
@broker_options
def unacked_max(topic: TopicName, subscription: str, messages: int | None, expected: str, url: str) -> None:
    """Show how many messages may be delivered and not acked yet, or change it to MESSAGES.

    The limit is that of each partition, over all consumers of the subscription. It takes effect at once; 'unlimited'
    removes it.
    """

    async def work(client: Client) -> int:
        if messages is None:
            return (await client.describe_subscription(str(topic), subscription)).unacked_max
        await client.set_unacked_max(str(topic), subscription, messages, expected=expected)
        return messages

    limit = with_client(url, work)
    show({"topic": str(topic), "subscription": subscription, "unacked_max": limit}, _limit_text(limit))


@subscriptions.command("delete", epilog=examples("danube subscriptions delete /default/orders billing --yes"))
@click.argument("topic", type=TOPIC)
@click.argument("subscription", type=SUBSCRIPTION)
@yes_option
@expected_option
@broker_options
def delete(topic: TopicName, subscription: str, yes: bool, expected: str, url: str) -> None:
    """Delete a subscription and its position. The messages stay."""
    confirm(f"Delete subscription {subscription} of {topic}?", yes)
    with_client(url, lambda client: client.delete_subscription(str(topic), subscription, expected=expected))
    show({"topic": str(topic), "subscription": subscription, "deleted": True}, f"deleted {subscription} of {topic}")
