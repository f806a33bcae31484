"""`danube brokers`: the brokers and their state."""

from __future__ import annotations

import click

from pydanube.cli.connecting import with_client
from pydanube.cli.options import broker_options, examples
from pydanube.cli.output import fields, plural, shown_as_json, size, table
from pydanube.cli.synonyms import Group
from pydanube.model.cluster import AWAY
from pydanube.model.json_values import as_json
from pydanube.model.leftovers import Leftover
from pydanube.model.positions import datetime_from_micros


@click.group(cls=Group, epilog=examples("danube brokers list\ndanube brokers describe --json"))
def brokers() -> None:
    """List and describe brokers, and what they have left over."""


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
