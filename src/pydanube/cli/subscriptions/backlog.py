"""`danube subscriptions seek|advance|skip|peek`: a subscription's position and its backlog."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from pydanube.cli import values
from pydanube.cli.connecting import with_client
from pydanube.cli.messages.display import pending, record, show_all
from pydanube.cli.options import (
    PLACE,
    POSITION,
    SUBSCRIPTION,
    TOPIC,
    broker_options,
    confirm,
    examples,
    yes_option,
)
from pydanube.cli.output import emit_json, plural, show, wants_json
from pydanube.cli.synonyms import Command
from pydanube.model.names import TopicName
from pydanube.model.positions import Position

if TYPE_CHECKING:
    from pydanube.client import Client

POSITIONS_SHOWN: Final = 8


@click.command(
    "seek",
    cls=values.TakesAgo,
    epilog=examples(
        """
danube subscriptions seek /default/orders billing earliest
danube subscriptions seek /default/orders billing 1000 --partition 2
danube subscriptions seek /default/orders billing 2026-01-31T12:00:00Z
danube subscriptions seek /default/orders billing -10m      what came in the last ten minutes comes again
"""
    ),
)
@click.argument("topic", type=TOPIC)
@click.argument("subscription", type=SUBSCRIPTION)
@click.argument("position", type=POSITION, required=False)
@click.option("--to", "to", type=POSITION, help="The same as POSITION.")
@click.option("--partition", type=click.IntRange(min=0), help="Only this one.  [default: all]")
@broker_options
def seek(
    topic: TopicName, subscription: str, position: Position | None, to: Position | None, partition: int | None, url: str
) -> None:
    """Move a subscription, forward or back. What lies below its new position counts as acked.

    POSITION is earliest, latest, an offset, a time such as 2026-01-31T12:00:00Z (UTC where it has no zone), or how long
    ago, such as -10m.
    """
    if (position is None) == (to is None):
        raise click.UsageError("say where to, once: earliest, latest, an offset, a time, or how long ago (-10m)")
    target = position or to
    assert target is not None
    now = with_client(url, lambda client: client.seek(str(topic), subscription, target, partition=partition))
    show({"positions": sorted(now.items())}, f"moved {subscription} on {topic} to {target} ({format_positions(now)})")


def format_positions(positions: dict[int, int]) -> str:
    """Format the positions by partition, at most POSITIONS_SHOWN of them."""
    shown = [f"partition {index}: offset {offset}" for index, offset in sorted(positions.items())[:POSITIONS_SHOWN]]
    return "; ".join(shown) + (f"; {len(positions) - len(shown)} more" if len(positions) > len(shown) else "")


@click.command(
    "advance",
    cls=Command,
    epilog=examples(
        """
danube subscriptions advance /default/orders engine --partition 0 --expected 1000 --to 2000
"""
    ),
)
@click.argument("topic", type=TOPIC)
@click.argument("subscription", type=SUBSCRIPTION)
@click.option("--partition", type=click.IntRange(min=0), default=0, show_default=True, help="Which one.")
@click.option("--expected", type=click.IntRange(min=0), required=True, help="The offset where it must stand now.")
@click.option("--to", "offset", type=click.IntRange(min=0), required=True, help="The offset where it will stand.")
@broker_options
def advance(topic: TopicName, subscription: str, partition: int, expected: int, offset: int, url: str) -> None:
    """Record the progress of an engine that reads on its own: compare and set.

    The subscription moves only if it stands at --expected and has no consumers; everything below --to is acked then. It
    counts for backlog and retention like any other.
    """
    with_client(url, lambda client: client.advance(str(topic), subscription, partition, offset, expected=expected))
    show(
        {"topic": str(topic), "subscription": subscription, "partition": partition, "position": offset},
        f"moved {subscription} on partition {partition} of {topic} from {expected} to {offset}",
    )


@click.command(
    "skip",
    cls=Command,
    epilog=examples(
        """
danube subscriptions skip /default/orders billing --offset 0:1742
danube subscriptions skip /default/orders billing --offset 0:1742 --offset 2:99
danube subscriptions skip /default/orders billing --all --yes   clears the backlog
"""
    ),
)
@click.argument("topic", type=TOPIC)
@click.argument("subscription", type=SUBSCRIPTION)
@click.option("--offset", "places", type=PLACE, multiple=True, help="A message to skip; may be repeated.")
@click.option("--all", "everything", is_flag=True, help="Clear the backlog: skip all there is.")
@yes_option
@broker_options
def skip(
    topic: TopicName, subscription: str, places: tuple[tuple[int, int], ...], everything: bool, yes: bool, url: str
) -> None:
    """Settle messages as if they had been consumed: one that blocks, some, or the whole backlog.

    Messages stay stored; 'danube subscriptions seek' brings them back. Those that were acked or skipped before do not
    count.
    """
    if bool(places) == everything:
        raise click.UsageError("say what to skip: --offset PARTITION:OFFSET, or --all")
    if everything:
        question = f"Skip everything that {subscription} of {topic} has not consumed?"
        confirm(question, yes, verb="clear a backlog", not_done="nothing was skipped")
    skipped = with_client(url, lambda client: _skip(client, str(topic), subscription, places))
    if wants_json():
        asked = "all" if everything else [f"{partition}:{offset}" for partition, offset in sorted(set(places))]
        emit_json({"topic": str(topic), "subscription": subscription, "asked": asked, "skipped": skipped})
        return
    before = len(set(places)) - skipped
    rest = f"; {before:,} {'was' if before == 1 else 'were'} acked or skipped before" if before and places else ""
    click.echo(f"skipped {plural(skipped, 'message')} of {subscription} on {topic}{rest}")


async def _skip(client: Client, topic: str, subscription: str, places: tuple[tuple[int, int], ...]) -> int:
    """Skip the messages at `places`, or the whole backlog if empty; return how many were not acked before."""
    if not places:
        return await client.clear_backlog(topic, subscription)
    by_partition: dict[int, list[int]] = {}
    for partition, offset in sorted(set(places)):
        by_partition.setdefault(partition, []).append(offset)
    return sum([await client.skip(topic, subscription, *one) for one in by_partition.items()])


@click.command(
    "peek",
    cls=Command,
    epilog=examples(
        """
danube subscriptions peek /default/orders billing
danube subscriptions peek /default/orders billing -n 100 --json | jq '.[].key'
danube subscriptions peek /default/orders billing --partition 2 -n 1
"""
    ),
)
@click.argument("topic", type=TOPIC)
@click.argument("subscription", type=SUBSCRIPTION)
@click.option(
    "-n", "--count", type=click.IntRange(min=1, max=10_000), default=10, show_default=True, help="How many at most."
)
@click.option("--partition", type=click.IntRange(min=0), help="Only of this one.  [default: all]")
@broker_options
def peek(topic: TopicName, subscription: str, count: int, partition: int | None, url: str) -> None:
    """Show the first messages that a subscription has not settled, without consuming them.

    Its consumers notice nothing. The state says what keeps a message: ready (its turn is to come), unacked (a consumer
    has it), waiting (it failed, and comes again), delayed (its producer chose a later time), held (key-shared: an
    earlier message of its key, or nobody to take it), blocked (it failed too often, and 'danube subscriptions skip'
    frees what is behind it), dying (it failed too often, and becomes a dead letter).
    """
    found = with_client(url, lambda client: client.peek(str(topic), subscription, count, partition=partition))
    show([record(message) | pending(message) for message in found], lambda: show_all(found))
