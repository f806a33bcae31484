"""`danube brokers`: the brokers and their state."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from pydanube.cli.options import broker_options, examples
from pydanube.cli.output import emit_json, fields, shown_as_json, size, table, wants_json
from pydanube.cli.session import with_client
from pydanube.model.cluster import AWAY
from pydanube.model.errors import Invalid
from pydanube.model.leftovers import Leftover
from pydanube.model.positions import datetime_from_micros


@click.group(epilog=examples("danube brokers list\ndanube brokers describe --json"))
def brokers() -> None:
    """List and describe brokers, and what they have left over."""


def _describe(url: str) -> dict[str, Any]:
    found = with_client(url, lambda client: client.describe_broker())
    return {
        "node": found.node,
        "cluster": found.cluster,
        "url": url,
        "addresses": asdict(found.addresses),
        "version": found.version,
        "state": found.state,
        "topics": found.topics,
        "started_at": datetime_from_micros(found.started_at).isoformat(),
    }


def _list(url: str) -> list[dict[str, Any]]:
    """Return the living brokers. A broker of an earlier release, which cannot describe a cluster, is the only one."""
    try:
        found = with_client(url, lambda client: client.describe_cluster())
    except Invalid:
        return [_describe(url)]
    return [
        {
            "node": one.name,
            "cluster": found.cluster,
            "url": url if len(found.brokers) == 1 else f"danube://{one.addresses.native}",
            "addresses": asdict(one.addresses),
            "version": one.version,
            "state": one.state,
            "topics": found.topics,
            "session": one.incarnation,
            "zone": one.zone,
            "partitions": one.partitions,
            "messages_per_s": one.messages_per_s,
            "bytes_per_s": one.bytes_per_s,
            "started_at": datetime_from_micros(one.since).isoformat(),
        }
        for one in found.brokers
        if one.state != AWAY
    ]


@brokers.command("list", epilog=examples("danube brokers list --json"))
@broker_options
def list_(url: str) -> None:
    """List the living brokers of the cluster; a standalone broker is the only one.

    Any broker of the cluster can be asked. `danube cluster status` shows brokers that are away, too.
    """
    found = _list(url)
    if shown_as_json(found):
        return
    hidden = {"addresses", "session", "zone", "messages_per_s"}  # all of it would not fit a terminal
    shown = [name for name in found[0] if name not in hidden]
    table(shown, [[one[name] for name in shown] for one in found], right=["topics", "partitions", "bytes_per_s"])


@brokers.command(
    "describe", epilog=examples("danube brokers describe\ndanube brokers describe --url danube://10.0.0.7:6655")
)
@broker_options
def describe(url: str) -> None:
    """Show the broker behind --url."""
    found = _describe(url)
    if wants_json():
        emit_json(found)
    else:
        addresses = found.pop("addresses")
        rows = [*found.items(), *((f"{listener} address", where or "none") for listener, where in addresses.items())]
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
    if shown_as_json([asdict(one) | {"taken_at": _taken_at(one)} for one in found]):
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
