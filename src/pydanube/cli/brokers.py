"""`danube brokers`: the brokers and their state."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from pydanube.model.positions import datetime_from_micros

from .options import examples, json_option, url_option
from .output import emit_json, fields, table
from .session import with_client


@click.group(epilog=examples("danube brokers list\ndanube brokers describe --json"))
def brokers() -> None:
    """List and describe brokers."""


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


@brokers.command("list", epilog=examples("danube brokers list --json"))
@url_option
@json_option
def list_(url: str, as_json: bool) -> None:
    """List the brokers of the cluster; a standalone broker is the only one."""
    found = _describe(url)
    if as_json:
        emit_json([found])
    else:
        del found["addresses"]  # `describe` shows them; four columns more would not fit a terminal
        table(list(found), [list(found.values())], right=["topics"])


@brokers.command(
    "describe", epilog=examples("danube brokers describe\ndanube brokers describe --url danube://10.0.0.7:6655")
)
@url_option
@json_option
def describe(url: str, as_json: bool) -> None:
    """Show the broker behind --url."""
    found = _describe(url)
    if as_json:
        emit_json(found)
    else:
        addresses = found.pop("addresses")
        rows = [*found.items(), *((f"{listener} address", where or "none") for listener, where in addresses.items())]
        fields([(name.replace("_", " "), value) for name, value in rows])
