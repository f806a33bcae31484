"""`danube brokers`: the brokers and their state."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import click

from pydanube.cli.connecting import with_client
from pydanube.cli.options import broker_options, examples
from pydanube.cli.output import fail, fields, note, plural, show, shown_as_json, size, table
from pydanube.cli.synonyms import Group
from pydanube.model.cluster import AWAY, DrainState
from pydanube.model.json_values import as_json
from pydanube.model.leftovers import Leftover
from pydanube.model.positions import datetime_from_micros

if TYPE_CHECKING:
    from pydanube.client import Client


@click.group(cls=Group, epilog=examples("danube brokers list\ndanube brokers describe --json"))
def brokers() -> None:
    """List brokers, drain and remove them, and see what they have left over."""


@brokers.command("list", epilog=examples("danube brokers list --json"))
@broker_options
def list_(url: str) -> None:
    """List the living brokers of the cluster; a standalone broker is the only one.

    Any broker of the cluster can be asked. `danube cluster status` shows brokers that are away, too.
    """
    about = with_client(url, lambda client: client.describe_cluster())
    found = [one for one in about.brokers if one.state != AWAY]
    if shown_as_json(found):
        return
    table(
        ["broker", "address", "version", "state", "partitions", "bytes/s", "started"],
        [
            (
                one.name,
                one.addresses.native,
                one.version,
                one.state,
                one.partitions,
                size(one.bytes_per_s),
                datetime_from_micros(one.since).isoformat(timespec="seconds"),
            )
            for one in found
        ],
        title=f"cluster {about.cluster}, {plural(about.topics, 'topic')}",
        right=["partitions", "bytes/s"],
    )


@brokers.command(
    "describe", epilog=examples("danube brokers describe\ndanube brokers describe --url danube://10.0.0.7:6655")
)
@broker_options
def describe(url: str) -> None:
    """Show the broker behind --url."""
    found = with_client(url, lambda client: client.describe_broker())
    if shown_as_json(found):
        return
    told = as_json(found) | {"started_at": datetime_from_micros(found.started_at).isoformat()}
    addresses = told.pop("addresses")
    rows = [*told.items(), *((f"{listener} address", where or "none") for listener, where in addresses.items())]
    fields([(name.replace("_", " "), value) for name, value in rows])


ASKED_EVERY_S: Final = 0.5
"""How often `drain --wait` asks how far the broker is."""


@brokers.command("drain", epilog=examples("danube brokers drain broker-2 --wait\ndanube brokers drain broker-2 --json"))
@click.argument("broker", metavar="NAME")
@click.option("--wait", is_flag=True, help="Wait until the broker has no partition left.")
@broker_options
def drain(broker: str, wait: bool, url: str) -> None:
    """Have a broker give its partitions to the others, under load.

    The broker goes on serving what it still has, and is given nothing new until `danube brokers resume`, also after a
    restart. Repeat the command to see how far it is; with --wait it can be interrupted, and the broker goes on.

    Ends with exit code 1 if --wait was given and what is left cannot be given away now: it says why. The broker tries
    again by itself.
    """
    from pydanube.cli.progress_line import Bar

    async def follow(client: Client) -> DrainState:
        state = await client.drain_broker(broker)
        total = state.partitions
        with Bar(f"draining {broker}") as bar:
            while wait and state.partitions > state.stuck:
                bar(total - state.partitions, total)
                await asyncio.sleep(ASKED_EVERY_S)
                state = await client.drain_broker(broker)
        return state

    state = with_client(url, follow)
    if not shown_as_json(state):
        left = f"{plural(state.partitions, 'partition')} left" if state.partitions else "no partitions left"
        click.echo(f"broker {broker} is drained: {left}")
    for one in state.examples:
        note(f"partition {one.partition} of {one.topic}: {one.reason}")
    if wait and state.partitions:
        fail(f"{plural(state.stuck, 'partition')} of broker {broker} cannot be moved now; the broker tries again")


@brokers.command("resume", epilog=examples("danube brokers resume broker-2"))
@click.argument("broker", metavar="NAME")
@broker_options
def resume(broker: str, url: str) -> None:
    """Let a broker that is drained take partitions again.

    What it gave away stays where it is.
    """
    with_client(url, lambda client: client.resume_broker(broker))
    show({"broker": broker, "resumed": True}, f"broker {broker} takes partitions")


@brokers.command("remove", epilog=examples("danube brokers remove broker-2"))
@click.argument("broker", metavar="NAME")
@broker_options
def remove(broker: str, url: str) -> None:
    """Forget a broker that is away for good, with what is left over of its log.

    Drain it and stop it first. Refused while it lives, and while partitions wait for it. Its data directory cannot be
    used any more: a broker of the same name starts with an empty one.
    """
    with_client(url, lambda client: client.remove_broker(broker))
    show({"broker": broker, "removed": True}, f"broker {broker} is removed")


@brokers.command("leftovers", epilog=examples("danube brokers leftovers\ndanube brokers leftovers --broker broker-2"))
@click.option("--broker", default="", help="Only of this broker.")
@broker_options
def leftovers(broker: str, url: str) -> None:
    """List what brokers still have of partitions that others took over.

    A broker that was away for too long keeps what it had not uploaded. `danube topics salvage` publishes it to another
    topic, and drops it. Of a broker that is away, the offsets are those that were given up.
    """
    found = with_client(url, lambda client: client.leftovers(broker))
    if shown_as_json(found):
        return
    if not found:
        click.echo("no leftovers")
        return
    table(
        ["topic", "partition", "broker", "first offset", "end offset", "stored", "taken over", "state"],
        [
            (
                one.topic,
                one.partition,
                one.broker,
                one.start_offset,
                one.end_offset,
                size(one.bytes) if one.state == "ok" else "-",
                _taken_at(one),
                one.state,
            )
            for one in found
        ],
        right=["partition", "first offset", "end offset", "stored"],
    )


def _taken_at(one: Leftover) -> str:
    return datetime_from_micros(one.taken_at).isoformat(timespec="seconds")
