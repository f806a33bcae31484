"""`danube schemas bind`, `unbind` and `binding`: which subject a topic carries, and how that is checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from pydanube.cli.connecting import with_client
from pydanube.cli.options import SUBJECT, TOPIC, broker_options, examples, expected_option
from pydanube.cli.output import fields, show, shown_as_json
from pydanube.cli.synonyms import Command
from pydanube.model.errors import Denied, Invalid, NotFound
from pydanube.model.names import TopicName
from pydanube.model.schemas import Binding, Framing, ValidationPolicy

if TYPE_CHECKING:
    from pydanube.client import Client

POLICIES: Final = click.Choice([str(one) for one in ValidationPolicy])
FRAMINGS: Final = click.Choice([str(one) for one in Framing])
VERSION_NUMBER: Final = click.IntRange(1, 2**31 - 1)


@click.command(
    cls=Command,
    epilog=examples(
        """
danube schemas bind /default/orders orders
danube schemas bind /default/orders orders --policy warn     count and log what does not fit
danube schemas bind /default/orders orders --version 3       only version 3
danube schemas bind /default/orders orders --min-version 2 --tombstones
danube schemas bind /default/orders orders --framing confluent
danube schemas bind /default/orders orders --no-validate-payloads
"""
    ),
)
@click.argument("topic", type=TOPIC)
@click.argument("subject", type=SUBJECT)
@click.option(
    "--policy",
    type=POLICIES,
    default="enforce",
    show_default=True,
    help="What happens to messages that do not fit: nothing is checked, they are counted and logged, or refused.",
)
@click.option(
    "--validate-payloads/--no-validate-payloads", default=True, help="Check payloads, not only ids.  [default: check]"
)
@click.option("--version", "pinned", type=VERSION_NUMBER, default=None, help="Only this version.  [default: all]")
@click.option("--min-version", "minimum", type=VERSION_NUMBER, default=None, help="Only this version and later ones.")
@click.option("--tombstones", is_flag=True, help="Take empty payloads, and do not check them.")
@click.option(
    "--framing",
    type=FRAMINGS,
    default="none",
    show_default=True,
    help="confluent: each payload begins with a zero byte and the global id, as Confluent's serializers write it.",
)
@expected_option
@broker_options
def bind(
    topic: TopicName,
    subject: str,
    policy: str,
    validate_payloads: bool,
    pinned: int | None,
    minimum: int | None,
    tombstones: bool,
    framing: str,
    expected: str,
    url: str,
) -> None:
    """Bind a topic to a subject, or change how its messages are checked.

    It applies to what is published from now on. A topic that is bound to another subject has to be unbound first.
    Binding it again sets all options anew. The first producer that names a schema binds a topic too, with the policy
    none.
    """
    if pinned and minimum:
        raise click.UsageError("--version and --min-version exclude each other")
    made = Binding(
        subject,
        ValidationPolicy.parse(policy),
        validate_payloads,
        pinned or 0,
        minimum or 0,
        tombstones,
        Framing.parse(framing),
    )
    with_client(
        url,
        lambda client: client.schemas.bind(
            str(topic),
            subject,
            policy=made.policy,
            validate_payloads=made.validate_payloads,
            pinned_version=made.pinned_version,
            minimum_version=made.minimum_version,
            tombstones=made.tombstones,
            framing=made.framing,
            expected=expected,
        ),
    )
    show({"topic": str(topic), "binding": made}, f"bound {topic} to {binding_text(made)}")


@click.command(cls=Command, epilog=examples("danube schemas unbind /default/orders"))
@click.argument("topic", type=TOPIC)
@expected_option
@broker_options
def unbind(topic: TopicName, expected: str, url: str) -> None:
    """Let a topic carry anything again. Messages keep the schemas that they were published with."""
    with_client(url, lambda client: client.schemas.unbind(str(topic), expected=expected))
    show({"topic": str(topic), "binding": None}, f"unbound {topic}")


@click.command(
    cls=Command,
    epilog=examples("danube schemas binding /default/orders\ndanube schemas binding /default/orders --json"),
)
@click.argument("topic", type=TOPIC)
@broker_options
def binding(topic: TopicName, url: str) -> None:
    """Show which subject a topic carries, and how that is checked."""
    found = with_client(url, lambda client: client.schemas.binding(str(topic)))
    if shown_as_json(found):
        return
    if found is None:
        click.echo(f"{topic} is not bound to a subject")
        return
    fields(
        [
            ("topic", topic),
            ("subject", found.subject),
            ("policy", found.policy),
            ("payloads", _payloads(found)),
            ("versions", _versions(found)),
            ("tombstones", "allowed" if found.tombstones else "refused"),
            ("framing", found.framing),
        ]
    )


def _payloads(found: Binding) -> str:
    if found.policy is ValidationPolicy.NONE:
        return "not checked"
    return "checked" if found.validate_payloads else "not checked, only schema ids and versions"


def binding_text(found: Binding) -> str:
    """Return a binding in one line, such as "orders (enforce, version 3, tombstones)"."""
    parts = [str(found.policy)]
    if not found.validate_payloads:
        parts.append("payloads not checked")
    if found.pinned_version or found.minimum_version:
        parts.append(_versions(found))
    if found.tombstones:
        parts.append("tombstones")
    if found.framing is not Framing.NONE:
        parts.append(f"framing {found.framing}")
    return f"{found.subject} ({', '.join(parts)})"


def _versions(found: Binding) -> str:
    if found.pinned_version:
        return f"version {found.pinned_version}"
    return f"version {found.minimum_version} and later" if found.minimum_version else "all"


async def find_binding(client: Client, topic: str) -> Binding | None:
    """Return the binding of a topic; None also if the topic does not exist or may not be described, and if the broker
    is older than the schema registry."""
    try:
        return await client.schemas.binding(topic)
    except (NotFound, Denied, Invalid):
        return None
