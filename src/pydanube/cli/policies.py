"""`danube topics policies` and `danube namespaces policies`: limits and lifetimes, shown and changed while all runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from pydanube.model.errors import Invalid
from pydanube.model.names import TopicName
from pydanube.model.policies import FIELDS, BacklogAction, Policies

from .options import NAMESPACE, POLICY, POLICY_NAME, TOPIC, examples, json_option, url_option
from .output import emit_json, size, span, table
from .session import with_client

if TYPE_CHECKING:
    from pydanube.client import Client

set_option = click.option(
    "--set", "changes", type=POLICY, multiple=True, metavar="NAME=VALUE", help="Set a policy; may be repeated."
)
unset_option = click.option(
    "--unset", "unset", type=POLICY_NAME, multiple=True, metavar="NAME", help="Inherit a policy again; may be repeated."
)


@click.command(
    "policies",
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
@url_option
@json_option
def topic_policies(
    topic: TopicName, changes: tuple[tuple[str, int], ...], unset: tuple[str, ...], url: str, as_json: bool
) -> None:
    """Show a topic's policies, or change some of them.

    What is not set here is inherited from the namespace. Changes apply at once to what is running. 0 means no limit,
    or never; -1 means for ever (retention). Sizes and durations may have units: 10GiB, 30m, 7d.
    """
    _show_or_change("topic", str(topic), changes, unset, url, as_json)


@click.command(
    "policies",
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
@url_option
@json_option
def namespace_policies(
    namespace: str, changes: tuple[tuple[str, int], ...], unset: tuple[str, ...], url: str, as_json: bool
) -> None:
    """Show a namespace's policies, or change some of them.

    They count for every topic in it that does not set its own. What is not set here is inherited from the broker.
    Values as for 'danube topics policies'.
    """
    _show_or_change("namespace", namespace, changes, unset, url, as_json)


def _show_or_change(
    kind: str, target: str, changes: tuple[tuple[str, int], ...], unset: tuple[str, ...], url: str, as_json: bool
) -> None:
    wanted: dict[str, int | None] = dict(changes)
    for name in unset:
        if name in wanted:
            raise click.UsageError(f"--set and --unset of {name} exclude each other")
        wanted[name] = None
    try:
        Policies().changed(wanted)
    except Invalid as error:
        raise click.UsageError(error.message) from None

    async def work(client: Client) -> tuple[Policies, Policies]:
        report = await (client.set_policies(target, **wanted) if wanted else client.policies(target))
        return report.own, report.effective

    own, effective = with_client(url, work)
    if as_json:
        emit_json({kind: target, "own": as_dict(own), "effective": as_dict(effective)})
        return
    table(
        ["policy", "value", "from"],
        [
            (
                name,
                shown(name, getattr(effective, name)),
                f"this {kind}" if getattr(own, name) is not None else "inherited",
            )
            for name in FIELDS
        ],
    )


def as_dict(policies: Policies) -> dict[str, Any]:
    """Those that are set, as --set takes them."""
    told = {name: getattr(policies, name) for name in FIELDS}
    return {
        name: str(BacklogAction(value)) if name == "backlog_action" else value
        for name, value in told.items()
        if value is not None
    }


def shown(name: str, value: int | None) -> str:
    """A value for people."""
    if value is None:
        return "not set"
    if name == "backlog_action":
        return str(BacklogAction(value))
    if value == -1:
        return "for ever" if name == "retention_s" else "no limit"
    if name == "retention_bytes" and value == 0:
        return "nothing once consumed"
    if value == 0:
        return "the broker's" if name in ("message_bytes_max", "deduplication_s") else _NONE.get(name, "no limit")
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
}
