"""`danube cluster`: the brokers, what each of them does, and what waits for brokers that are away."""

from __future__ import annotations

import click

from pydanube.cli.connecting import with_client
from pydanube.cli.options import broker_options, examples
from pydanube.cli.output import note, plural, shown_as_json, size, table
from pydanube.cli.synonyms import Group
from pydanube.model.cluster import AWAY, BrokerStatus, ClusterDescription, UpgradeDescription
from pydanube.model.json_values import as_json
from pydanube.model.positions import datetime_from_micros


@click.group(cls=Group, epilog=examples("danube cluster status\ndanube cluster status --json"))
def cluster() -> None:
    """Show the cluster, its brokers and their load, and finish its upgrade."""


@cluster.command(
    "status", epilog=examples("danube cluster status\ndanube cluster status --url danube://10.0.0.7:6655 --json")
)
@broker_options
def status(url: str) -> None:
    """Show every broker of the cluster, from any one of them.

    A broker that lives has a session with a number of its own; the coordinator (*) does what only one broker should do,
    such as placing partitions. PARTITIONS are those that a broker owns or is about to take, and the rates are what is
    published to it, told by the broker at most every 10 seconds.

    A broker that is `away` has no session. The partitions that are counted there are in its log, and are served again
    when it is started again, with its data directory. A standalone broker is the only one of its cluster.
    """
    found = with_client(url, lambda client: client.describe_cluster())
    if shown_as_json(found):
        return
    table(
        ["broker", "state", "session", "since", "address", "zone", "version", "partitions", "messages/s", "bytes/s"],
        [_row(one, found.coordinator) for one in found.brokers],
        title=f"cluster {found.cluster}, {plural(found.topics, 'topic')}",
        right=["session", "partitions", "messages/s", "bytes/s"],
    )
    _print_troubles(found)


@cluster.command(
    "upgrade", epilog=examples("danube cluster upgrade\ndanube cluster upgrade --finish\ndanube cluster upgrade --json")
)
@click.option("--finish", is_flag=True, help="Raise the feature level to the highest that all living brokers know.")
@broker_options
def upgrade(finish: bool, url: str) -> None:
    """Show how far the upgrade to a newer release is, and finish it.

    The feature level says what brokers may write to the metadata. A newer release can know a higher LEVEL than the one
    in force: upgrade all brokers, one after the other, and then finish. Until then each broker can go back to the
    release before.

    After `--finish`, a release that does not know the new level does not start on this metadata any more. It is refused
    while an older broker is present. A broker that is away is not asked: upgrade it before it is started again.
    """
    found = with_client(url, lambda client: client.finish_upgrade() if finish else client.describe_upgrade())
    if shown_as_json(as_json(found) | {"behind": [one.name for one in found.behind]}):
        return
    table(
        ["broker", "version", "level"],
        [[one.name, one.version, one.level] for one in found.brokers],
        title=f"feature level {found.level}, can be raised to {found.highest}",
        right=["level"],
    )
    _print_upgrade(found)


def _print_upgrade(found: UpgradeDescription) -> None:
    """Print what is left to do."""
    for one in found.behind:
        note(f"broker {one.name} knows level {one.level} at most: upgrade it")
    if found.highest > found.level:
        note(f"level {found.highest} is put into force by `danube cluster upgrade --finish`")


def _row(one: BrokerStatus, coordinator: str) -> list[object]:
    return [
        f"{one.name} *" if one.name == coordinator else one.name,
        one.state.partition(": ")[0],
        one.incarnation or "",
        _time(one.since),
        one.addresses.native,
        one.zone,
        one.version,
        one.partitions,
        f"{one.messages_per_s:,.0f}" if one.state != AWAY else "",
        size(one.bytes_per_s) if one.state != AWAY else "",
    ]


def _print_troubles(found: ClusterDescription) -> None:
    """Print what is not served, and what helps."""
    for one in found.brokers:
        if ": " in one.state:
            note(f"broker {one.name}: {one.state}")
        if one.state == AWAY and one.partitions:
            waiting = f"{plural(one.partitions, 'partition')} {'waits' if one.partitions == 1 else 'wait'}"
            note(
                f"{waiting} for broker {one.name}: start it again, with its data directory; if it is lost, see "
                f"`danube topics takeover`"
            )
    if found.unplaced:
        have = "has" if found.unplaced == 1 else "have"
        note(f"{plural(found.unplaced, 'partition')} {have} no broker: each gets one when it is used")


def _time(time_us: int) -> str:
    return datetime_from_micros(time_us).isoformat() if time_us else ""
