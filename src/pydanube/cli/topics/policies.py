"""`danube topics policies` and `danube namespaces policies`: show and change limits and lifetimes at runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from pydanube.cli.connecting import with_client
from pydanube.cli.options import (
    NAMESPACE,
    POLICY,
    POLICY_NAME,
    TOPIC,
    broker_options,
    examples,
    expected_option,
)
from pydanube.cli.output import emit_json, note, size, span, table, wants_json
from pydanube.cli.synonyms import Command
from pydanube.model.errors import Invalid
from pydanube.model.json_values import as_json
from pydanube.model.names import TopicName
from pydanube.model.policies import FIELDS, BacklogAction, Policies

if TYPE_CHECKING:
    from pydanube.client import Client
    from pydanube.model.policies import PolicyReport

set_option = click.option(
    "--set", "changes", type=POLICY, multiple=True, metavar="NAME=VALUE", help="Set a policy; may be repeated."
)
unset_option = click.option(
    "--unset", "unset", type=POLICY_NAME, multiple=True, metavar="NAME", help="Inherit a policy again; may be repeated."
)


@click.command(
    "policies",
    cls=Command,
    epilog=examples(
        """
danube topics policies /default/orders
danube topics policies /default/orders --set retention_s=7d --set retention_bytes=10GiB
danube topics policies /default/orders --set backlog_messages_max=1000000 --set backlog_action=evict
danube topics policies /default/orders --set publish_messages_per_s=5000 --unset ttl_s
"""
    ),
)
@click.argument("topic", type=TOPIC)
@set_option
@unset_option
@expected_option
@broker_options
def topic_policies(
    topic: TopicName, changes: tuple[tuple[str, int], ...], unset: tuple[str, ...], expected: str, url: str
) -> None:
    """Show a topic's policies, or change some of them.

    What is not set here is inherited from the namespace. Changes apply at once to what is running. Sizes and durations
    may have units: 10GiB, 30m, 7d. 0 means no limit, or never, but for retention: there -1 means for ever, and 0 that
    nothing is kept once every subscription has acked it; where there is no subscription, nothing at all.
    """
    _show_or_change("topic", str(topic), changes, unset, expected, url)


@click.command(
    "policies",
    cls=Command,
    epilog=examples(
        """
danube namespaces policies shop
danube namespaces policies shop --set ttl_s=1h --set producers_max=100
danube namespaces policies shop --unset ttl_s --json
"""
    ),
)
@click.argument("namespace", type=NAMESPACE)
@set_option
@unset_option
@expected_option
@broker_options
def namespace_policies(
    namespace: str, changes: tuple[tuple[str, int], ...], unset: tuple[str, ...], expected: str, url: str
) -> None:
    """Show a namespace's policies, or change some of them.

    They count for every topic in it that does not set its own. What is not set here is inherited from the broker.
    Values as for 'danube topics policies'.
    """
    _show_or_change("namespace", namespace, changes, unset, expected, url)


def _show_or_change(
    kind: str, target: str, changes: tuple[tuple[str, int], ...], unset: tuple[str, ...], expected: str, url: str
) -> None:
    wanted = checked_changes(changes, unset)

    async def work(client: Client) -> tuple[PolicyReport, Policies, list[str]]:
        report = await (client.set_policies(target, expected=expected, **wanted) if wanted else client.policies(target))
        namespace = (await client.policies(TopicName.parse(target).namespace)).own if kind == "topic" else Policies()
        return report, namespace, await _warnings(client, kind, target, wanted)

    report, namespace, warnings = with_client(url, work)
    own, effective = report.own, report.effective
    for warning in warnings:
        note(warning)
    sources = {name: _source(kind, own, namespace, name) for name in FIELDS}
    if wants_json():
        emit_json(as_json(report) | {"from": sources})
        return
    rows = [(name, shown(name, getattr(effective, name)), _SOURCES[sources[name]]) for name in FIELDS]
    table(["policy", "value", "from"], rows)


def checked_changes(changes: tuple[tuple[str, int], ...], unset: tuple[str, ...] = ()) -> dict[str, int | None]:
    """Return the policies that --set and --unset change, by name. Raises UsageError for impossible values."""
    wanted: dict[str, int | None] = dict(changes)
    for name in unset:
        if name in wanted:
            raise click.UsageError(f"--set and --unset of {name} exclude each other")
        wanted[name] = None
    try:
        Policies().changed(wanted)
    except Invalid as error:
        raise click.UsageError(error.message) from None
    return wanted


def _source(kind: str, own: Policies, namespace: Policies, name: str) -> str:
    """Return which level sets the policy: topic, namespace or broker."""
    if getattr(own, name) is not None:
        return kind
    return "namespace" if getattr(namespace, name) is not None else "broker"


_SOURCES: Final = {"topic": "the topic", "namespace": "the namespace", "broker": "the broker"}


async def _warnings(client: Client, kind: str, target: str, wanted: dict[str, int | None]) -> list[str]:
    """Return warnings about values with an effect that users may not expect."""
    nothing_kept = any(wanted.get(name) == 0 for name in ("retention_s", "retention_bytes"))
    if kind == "namespace":
        return ["topics without a subscription keep nothing now: messages go as they come"] * nothing_kept
    if not nothing_kept or (await client.describe_topic(target)).subscriptions:
        return []
    return [f"{target} has no subscription and keeps nothing now: messages go as they come"]


def shown(name: str, value: int | None) -> str:
    """Format the value of a policy."""
    if value is None:
        return "not set"
    if name == "backlog_action":
        return str(BacklogAction(value))
    if value == -1:
        return "for ever" if name == "retention_s" else "no limit"
    if name == "retention_bytes" and value == 0:
        return "nothing once consumed"
    if value == 0:
        return _NONE.get(name, "no limit")
    if name.endswith("_bytes_per_s"):
        return f"{size(value)}/s"
    if name.endswith("_per_s"):
        return f"{value:,}/s"
    if name.endswith("_s"):
        return span(value)
    return size(value) if "bytes" in name else f"{value:,}"


_NONE = {
    "ttl_s": "never",
    "inactive_topic_s": "never",
    "inactive_subscription_s": "never",
    "retention_s": "nothing once consumed",
    "message_bytes_max": "the broker's",
    "deduplication_s": "the broker's",
    "segment_bytes": "the broker's",
    "segment_age_s": "the broker's",
}
