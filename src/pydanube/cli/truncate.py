"""`danube topics truncate`: deletes everything before a position."""

from __future__ import annotations

import click

from pydanube.model.names import TopicName
from pydanube.model.positions import Position

from . import values
from .backlog import format_positions
from .options import POSITION, TOPIC, confirm, examples, json_option, url_option, yes_option
from .output import emit_json
from .session import with_client


@click.command(
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
@url_option
@json_option
def truncate(topic: TopicName, before: Position, partition: int | None, yes: bool, url: str, as_json: bool) -> None:
    """Delete everything before an offset, a time or the end of a topic, also what subscriptions have not consumed.

    Offsets are not used again. Subscriptions that stand before that position move up to it. This cannot be undone.
    """
    where = f"partition {partition} of {topic}" if partition is not None else topic
    question = f"Delete everything before {before} in {where}, also what subscriptions have not consumed?"
    confirm(question, yes, not_done="nothing was deleted")
    starts = with_client(url, lambda client: client.truncate_topic(str(topic), before, partition=partition))
    if as_json:
        emit_json({"topic": str(topic), "starts": {str(index): start for index, start in sorted(starts.items())}})
    else:
        click.echo(f"truncated {topic} ({format_positions(starts)})")
