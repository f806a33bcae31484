"""Failure policies: their command line options, and `danube subscriptions failure-policy`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import click

from pydanube.cli import values
from pydanube.cli.connecting import with_client
from pydanube.cli.options import (
    DURATION,
    SUBSCRIPTION,
    TOPIC,
    Parsed,
    broker_options,
    examples,
    expected_option,
)
from pydanube.cli.output import emit_json, fields, note, span, wants_json
from pydanube.cli.synonyms import Command
from pydanube.model.errors import Invalid
from pydanube.model.failure import NATIVE, Backoff, FailurePolicy, Poison
from pydanube.model.json_values import as_json
from pydanube.model.names import TopicName
from pydanube.model.topics import SubscriptionDescription

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


def failure_options(command: CommandT) -> CommandT:
    """Add the options of a failure policy to a command; their values are the fields of `PolicyChanges`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


_OPTIONS: Final = (
    click.option(
        "--max-redeliveries",
        "redeliveries",
        type=Parsed("n", values.redeliveries),
        metavar="N",
        help="How often a message comes again before it counts as poison; or 'unlimited'.",
    ),
    click.option("--ack-timeout", type=DURATION, metavar="S", help="A message not acked in time fails; 0: never."),
    click.option("--delay", type=DURATION, metavar="S", help="How long a failed message waits."),
    click.option("--max-delay", type=DURATION, metavar="S", help="How long at most."),
    click.option(
        "--backoff", type=click.Choice(["fixed", "exponential"]), help="Whether the delay doubles with each failure."
    ),
    click.option(
        "--poison",
        type=click.Choice(["block", "drop", "dead-letter"]),
        help="What happens to a message after its last try.",
    ),
    click.option(
        "--dead-letter-topic", type=TOPIC, metavar="TOPIC", help="Where poison goes; implies --poison dead-letter."
    ),
)


@dataclass(frozen=True, slots=True)
class PolicyChanges:
    """Changes to a failure policy from the command line; None: not given."""

    redeliveries: int | None
    ack_timeout: float | None
    delay: float | None
    max_delay: float | None
    backoff: str | None
    poison: str | None
    dead_letter_topic: TopicName | None

    @property
    def given(self) -> bool:
        return self != PolicyChanges(None, None, None, None, None, None, None)

    def apply_to(self, policy: FailurePolicy) -> FailurePolicy:
        """Return the policy with these changes. Raises Invalid if they contradict each other."""
        changes: dict[str, Any] = {}
        if self.redeliveries is not None:
            changes["redeliveries_max"] = None if self.redeliveries == values.UNLIMITED else self.redeliveries
        if self.ack_timeout is not None:
            changes["ack_timeout_ms"] = round(self.ack_timeout * 1000)
        if self.delay is not None:
            changes["delay_ms"] = round(self.delay * 1000)
            changes["delay_max_ms"] = max(changes["delay_ms"], policy.delay_max_ms)
        if self.max_delay is not None:
            changes["delay_max_ms"] = round(self.max_delay * 1000)
        if self.backoff is not None:
            changes["backoff"] = Backoff.parse(self.backoff)
        if self.dead_letter_topic is not None:
            changes |= {"dead_letter_topic": str(self.dead_letter_topic), "poison": Poison.DEAD_LETTER}
        if self.poison is not None:
            changes["poison"] = Poison.parse(self.poison)
        changed = replace(policy, **changes)
        unlimited = changed.redeliveries_max is None and changes.keys() & {"poison", "redeliveries_max"}
        if unlimited and ("poison" in changes or changed.poison is not Poison.BLOCK):
            note(f"{changed.poison} happens after the last try, and tries are unlimited: set --max-redeliveries")
        return changed

    def new_policy(self) -> FailurePolicy | None:
        """Return the policy of a new subscription; None: no option was given. Contradictions are a usage error."""
        if not self.given:
            return None
        try:
            return self.apply_to(NATIVE)
        except Invalid as error:
            raise click.UsageError(error.message) from None


@click.command(
    "failure-policy",
    cls=Command,
    epilog=examples(
        """
danube subscriptions failure-policy /default/orders billing
danube subscriptions failure-policy /default/orders billing --max-redeliveries 5 --delay 2 --backoff exponential
danube subscriptions failure-policy /default/orders billing --dead-letter-topic /default/orders-dlq
danube subscriptions failure-policy /default/orders billing --ack-timeout 30s
danube subscriptions failure-policy /default/orders billing --max-redeliveries unlimited
"""
    ),
)
@click.argument("topic", type=TOPIC)
@click.argument("subscription", type=SUBSCRIPTION)
@failure_options
@expected_option
@broker_options
def failure_policy(topic: TopicName, subscription: str, expected: str, url: str, **given: Any) -> None:
    """Show what happens to messages that fail, or change it.

    Only what is given changes, at once and for what is running too. A message fails when its consumer gives it back
    (nack) or does not ack it in time; a consumer that goes away costs it nothing. It comes again after a delay. After
    the last try it is poison: it blocks its subscription (key-shared: its key), is dropped, or is published to the dead
    letter topic. Durations are seconds, or have a unit: 500ms, 30s, 10m. If the subscription is changed elsewhere
    at the same moment, the command fails and changes nothing.
    """
    from pydanube.client import Client

    changes = PolicyChanges(**given)

    async def work(client: Client) -> SubscriptionDescription:
        found = await client.describe_subscription(str(topic), subscription)
        if not changes.given:
            return found
        policy = changes.apply_to(found.failure_policy)
        await client.set_failure_policy(str(topic), subscription, policy, expected=expected or found.version)
        return await client.describe_subscription(str(topic), subscription)

    found = with_client(url, work)
    policy = found.failure_policy
    if wants_json():
        told = {"topic": str(topic), "subscription": subscription, "version": found.version}
        emit_json(told | as_json(policy))
    else:
        fields(as_fields(policy))


def as_fields(policy: FailurePolicy) -> list[tuple[str, object]]:
    limit = policy.redeliveries_max
    growth = f", doubling up to {span(policy.delay_max_ms / 1000)}" if policy.backoff is Backoff.EXPONENTIAL else ""
    poison = str(policy.poison)
    if policy.poison is Poison.DEAD_LETTER:
        poison = f"dead-letter to {policy.dead_letter_topic}"
    return [
        ("redeliveries", "unlimited" if limit is None else f"at most {limit}"),
        ("ack timeout", span(policy.ack_timeout_ms / 1000) if policy.ack_timeout_ms else "none"),
        ("delay", f"{span(policy.delay_ms / 1000)}{growth}"),
        ("after the last try", "never reached" if limit is None else poison),
    ]
