"""`danube subscriptions`: create, list, describe, seek, delete."""

from __future__ import annotations

from typing import Any

import click

from pydanube.model.names import TopicName
from pydanube.model.positions import LATEST, Position
from pydanube.model.topics import SubscriptionDescription

from .options import (
    POSITION,
    SUBSCRIPTION,
    SUBSCRIPTION_TYPE,
    TOPIC,
    confirm,
    examples,
    json_option,
    url_option,
    yes_option,
)
from .output import emit_json, fields, table
from .session import with_client


@click.group(
    epilog=examples(
        """
danube subscriptions create /default/orders billing --from earliest
danube subscriptions list /default/orders
danube subscriptions describe /default/orders billing
danube subscriptions seek /default/orders billing --to 2026-01-31T12:00:00Z
danube subscriptions delete /default/orders billing --yes
"""
    )
)
def subscriptions() -> None:
    """Create, list, describe, move and delete subscriptions."""


@subscriptions.command(
    "create",
    epilog=examples(
        """
danube subscriptions create /default/orders billing
danube subscriptions create /default/orders audit --from earliest --type exclusive
"""
    ),
)
@click.argument("topic", type=TOPIC)
@click.argument("subscription", type=SUBSCRIPTION)
@click.option("--type", "type_", type=SUBSCRIPTION_TYPE, default="exclusive", show_default=True, help="How it shares.")
@click.option("--from", "start", type=POSITION, default=LATEST, show_default=True, help="Where it starts.")
@url_option
@json_option
def create(topic: TopicName, subscription: str, type_: str, start: Position, url: str, as_json: bool) -> None:
    """Create a subscription; what is published from now on waits for it.

    It starts at --from: earliest, latest, an offset such as 1000, or a time such as 2026-01-31T12:00:00Z.
    """
    with_client(url, lambda client: client.create_subscription(str(topic), subscription, type=type_, start=start))
    if as_json:
        emit_json({"topic": str(topic), "subscription": subscription, "created": True})
    else:
        click.echo(f"created {subscription} on {topic}")


@subscriptions.command("list", epilog=examples("danube subscriptions list /default/orders\ndanube subscriptions list"))
@click.argument("topic", type=TOPIC, required=False)
@url_option
@json_option
def list_(topic: TopicName | None, url: str, as_json: bool) -> None:
    """List the subscriptions of a topic, or of all topics."""
    from pydanube.client import Client

    async def work(client: Client) -> list[tuple[str, str]]:
        names = [str(topic)] if topic else await client.list_topics()
        return [(name, found) for name in names for found in await client.list_subscriptions(name)]

    found = with_client(url, work)
    if as_json:
        emit_json([{"topic": name, "subscription": subscription} for name, subscription in found])
    elif found:
        table(["topic", "subscription"], found)


@subscriptions.command("describe", epilog=examples("danube subscriptions describe /default/orders billing --json"))
@click.argument("topic", type=TOPIC)
@click.argument("subscription", type=SUBSCRIPTION)
@url_option
@json_option
def describe(topic: TopicName, subscription: str, url: str, as_json: bool) -> None:
    """Show where a subscription is, how far behind, and who holds it."""
    found = with_client(url, lambda client: client.describe_subscription(str(topic), subscription))
    if as_json:
        emit_json(_as_dict(found))
        return
    fields(
        [
            ("topic", found.topic),
            ("subscription", found.name),
            ("id", found.subscription_id),
            ("type", found.type),
            ("lag", sum(place.lag for place in found.partitions)),
        ]
    )
    click.echo()
    table(
        ["partition", "position", "lag", "acked ahead", "unacked", "consumer"],
        [(p.partition, p.position, p.lag, p.acked_ahead, p.unacked, p.consumer or "none") for p in found.partitions],
        right=["partition", "position", "lag", "acked ahead", "unacked"],
    )


def _as_dict(found: SubscriptionDescription) -> dict[str, Any]:
    return {
        "topic": found.topic,
        "subscription": found.name,
        "id": found.subscription_id,
        "type": str(found.type),
        "lag": sum(place.lag for place in found.partitions),
        "partitions": [
            {
                "partition": place.partition,
                "position": place.position,
                "lag": place.lag,
                "acked_ahead": place.acked_ahead,
                "unacked": place.unacked,
                "consumer": place.consumer,
            }
            for place in found.partitions
        ],
    }


@subscriptions.command(
    "seek",
    epilog=examples(
        """
danube subscriptions seek /default/orders billing --to earliest
danube subscriptions seek /default/orders billing --to 1000 --partition 2
danube subscriptions seek /default/orders billing --to 2026-01-31T12:00:00Z
"""
    ),
)
@click.argument("topic", type=TOPIC)
@click.argument("subscription", type=SUBSCRIPTION)
@click.option("--to", "position", type=POSITION, required=True, help="earliest, latest, an offset, or a time.")
@click.option("--partition", type=click.IntRange(min=0), help="Only this one.  [default: all]")
@url_option
@json_option
def seek(
    topic: TopicName, subscription: str, position: Position, partition: int | None, url: str, as_json: bool
) -> None:
    """Move a subscription, forward or back. What lies behind its new position counts as acked."""
    with_client(url, lambda client: client.seek(str(topic), subscription, position, partition=partition))
    if as_json:
        emit_json({"topic": str(topic), "subscription": subscription, "position": str(position)})
    else:
        click.echo(f"moved {subscription} on {topic} to {position}")


@subscriptions.command("delete", epilog=examples("danube subscriptions delete /default/orders billing --yes"))
@click.argument("topic", type=TOPIC)
@click.argument("subscription", type=SUBSCRIPTION)
@yes_option
@url_option
@json_option
def delete(topic: TopicName, subscription: str, yes: bool, url: str, as_json: bool) -> None:
    """Delete a subscription and its position. The messages stay."""
    confirm(f"Delete subscription {subscription} of {topic}?", yes)
    with_client(url, lambda client: client.delete_subscription(str(topic), subscription))
    if as_json:
        emit_json({"topic": str(topic), "subscription": subscription, "deleted": True})
    else:
        click.echo(f"deleted {subscription} of {topic}")
