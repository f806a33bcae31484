"""`danube auth`: roles, bindings, API keys and quotas, who one is, and what one may do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Final

import click

from pydanube.cli.connecting import with_client
from pydanube.cli.options import (
    BYTES,
    DURATION,
    MOMENT,
    Parsed,
    broker_options,
    confirm,
    examples,
    expected_option,
    yes_option,
)
from pydanube.cli.output import fields, note, number, show, shown_as_json, size, table
from pydanube.cli.root import EXIT_FAILED
from pydanube.cli.synonyms import Group
from pydanube.core.access import Action
from pydanube.model.positions import datetime_from_micros
from pydanube.model.quotas import QuotaSubject
from pydanube.model.security import BoundSubject, ResourcePattern, parse_binding_id, parse_key_id, parse_role_name

if TYPE_CHECKING:
    from pydanube.model.quotas import Quota, QuotaLimits
    from pydanube.model.security import Binding, Role

ACTION: Final = click.Choice([str(one) for one in Action])
ROLE: Final = Parsed("role", parse_role_name)
BINDING: Final = Parsed("binding", parse_binding_id)
KEY: Final = Parsed("key", parse_key_id)
SUBJECT: Final = Parsed("type:name", lambda text: str(BoundSubject.parse(text)))
QUOTA_SUBJECT: Final = Parsed("subject", lambda text: str(QuotaSubject.parse(text)))
RESOURCE: Final = Parsed("resource", lambda text: str(ResourcePattern.parse(text)))


@click.group(
    cls=Group,
    epilog=examples(
        """
danube auth whoami
danube auth can produce /default/orders
danube auth bindings create service_account:loader '/default/orders-*' --role producer
danube auth keys create service_account:loader --expires 90d
danube auth roles list
danube auth quotas set /shop --publish-bytes-per-s 10MB
"""
    ),
)
def auth() -> None:
    """Manage roles, bindings, API keys and quotas, and ask what one may do.

    \b
    A role is a set of actions: produce, consume, read, describe, create, delete, administer.
    A binding gives roles to a subject, on a resource and everything below it.
    A subject is user:NAME, service_account:NAME or group:NAME.
    A resource is / (the cluster), /NAMESPACE, /NAMESPACE/TOPIC, /NAMESPACE/TOPIC/SUBSCRIPTION or schema:SUBJECT;
    in names, * stands for any characters and ? for one.

    The bindings of a principal and of its groups add up; what none allows is denied. A broker without authentication
    (auth.enabled) refuses these commands, but for whoami, can and quotas.
    """


# -- questions ---------------------------------------------------------------------------------------------------------


@auth.command("whoami", epilog=examples("danube auth whoami\ndanube auth whoami --json"))
@broker_options
def whoami(url: str) -> None:
    """Show who you are for the broker, until when, and your bindings."""
    found = with_client(url, lambda client: client.access.whoami())
    if shown_as_json(found):
        return
    rights = "everything: a super user" if found.is_super_user else "what its bindings allow"
    fields(
        [
            ("principal", found.principal),
            ("groups", ", ".join(found.groups) or "none"),
            ("proven by", found.method),
            ("expires", _time(found.expires_at)),
            ("may do", rights if found.authentication else "everything: this broker has no authentication"),
        ]
    )
    if found.bindings:
        _binding_table(list(found.bindings))


@auth.command(
    "can",
    epilog=examples(
        """
danube auth can produce /default/orders
danube auth can consume /default/orders/billing --principal service_account:loader
danube auth can administer / && echo 'I am an administrator'
"""
    ),
)
@click.argument("action", type=ACTION)
@click.argument("resource", type=RESOURCE)
@click.option(
    "--principal", type=SUBJECT, help="Ask for somebody else; that needs the action administer on the cluster."
)
@click.option("--group", "groups", multiple=True, help="A group that --principal is in; may be repeated.")
@broker_options
@click.pass_context
def can(
    context: click.Context, action: str, resource: str, principal: str | None, groups: tuple[str, ...], url: str
) -> None:
    """Tell whether you, or --principal, may do ACTION to RESOURCE, and which binding says so.

    The exit code is 0 if it is allowed and 1 if it is not. A RESOURCE with wildcards asks for all that it covers.
    """
    if groups and principal is None:
        raise click.UsageError("--group says which groups --principal is in: add --principal")
    found = with_client(
        url, lambda client: client.access.can(action, resource, principal=principal or "", groups=groups)
    )
    show(found, f"{'yes' if found.allowed else 'no'}: {found.reason}")
    if not found.allowed:
        context.exit(EXIT_FAILED)


# -- roles -------------------------------------------------------------------------------------------------------------


@auth.group(
    "roles",
    epilog=examples(
        """
danube auth roles list
danube auth roles create loader produce create
danube auth roles change loader produce
danube auth roles delete loader --yes
"""
    ),
)
def roles() -> None:
    """List, show, create, change and delete roles.

    A role is a set of actions. The built-in roles (admin, namespace-admin, producer, consumer, reader, monitor) never
    change. All of it needs the action administer on the cluster.
    """


@roles.command("list", epilog=examples("danube auth roles list --json"))
@broker_options
def list_roles(url: str) -> None:
    """List roles, the built-in ones first."""
    found = with_client(url, lambda client: client.access.roles())
    if shown_as_json(found):
        return
    table(
        ["role", "actions", "built in"],
        [(one.name, ", ".join(one.actions), "yes" if one.built_in else "no") for one in found],
    )


@roles.command("show", epilog=examples("danube auth roles show producer --json"))
@click.argument("role", type=ROLE)
@broker_options
def show_role(role: str, url: str) -> None:
    """Show the actions of a role."""
    _show_role(with_client(url, lambda client: client.access.role(role)))


@roles.command("create", epilog=examples("danube auth roles create loader produce create"))
@click.argument("role", type=ROLE)
@click.argument("actions", type=ACTION, nargs=-1, required=True)
@broker_options
def create_role(role: str, actions: tuple[str, ...], url: str) -> None:
    """Create a role of actions that you may do to the cluster yourself."""
    made = with_client(url, lambda client: client.access.create_role(role, actions))
    show(made, f"created {role}: {', '.join(made.actions)}")


@roles.command("change", epilog=examples("danube auth roles change loader produce"))
@click.argument("role", type=ROLE)
@click.argument("actions", type=ACTION, nargs=-1, required=True)
@expected_option
@broker_options
def change_role(role: str, actions: tuple[str, ...], expected: str, url: str) -> None:
    """Replace the actions of a role. It is in force at once for everybody who has the role."""
    changed = with_client(url, lambda client: client.access.change_role(role, actions, expected=expected))
    show(changed, f"changed {role}: {', '.join(changed.actions)}")


@roles.command("delete", epilog=examples("danube auth roles delete loader --yes"))
@click.argument("role", type=ROLE)
@yes_option
@expected_option
@broker_options
def delete_role(role: str, yes: bool, expected: str, url: str) -> None:
    """Delete a role that no binding has."""
    confirm(f"Delete role {role}?", yes)
    with_client(url, lambda client: client.access.delete_role(role, expected=expected))
    show({"role": role, "deleted": True}, f"deleted {role}")


# -- bindings ----------------------------------------------------------------------------------------------------------


@auth.group(
    "bindings",
    epilog=examples(
        """
danube auth bindings list --subject group:ops
danube auth bindings create user:alice /shop --role namespace-admin
danube auth bindings create service_account:loader '/shop/orders-*' --role producer --id loader-orders
danube auth bindings delete loader-orders --yes
"""
    ),
)
def bindings() -> None:
    """List, show, create and delete bindings, which give roles to subjects.

    A binding needs the action administer on all that it covers, and nobody can give what they may not do there
    themselves: who is namespace-admin of a namespace manages the bindings in it.
    """


@bindings.command("list", epilog=examples("danube auth bindings list --resource /shop --json"))
@click.option("--subject", type=SUBJECT, help="Only those of this subject, for example group:ops.")
@click.option("--resource", type=RESOURCE, help="Only those whose resource is written so.")
@broker_options
def list_bindings(subject: str | None, resource: str | None, url: str) -> None:
    """List the bindings that you may delete, and your own, by their ids."""
    found = with_client(url, lambda client: client.access.bindings(subject=subject or "", resource=resource or ""))
    show(found, lambda: _binding_table(found))


@bindings.command("show", epilog=examples("danube auth bindings show loader-orders"))
@click.argument("binding", type=BINDING)
@broker_options
def show_binding(binding: str, url: str) -> None:
    """Show a binding."""
    found = with_client(url, lambda client: client.access.binding(binding))
    if shown_as_json(found):
        return
    fields(
        [
            ("binding", found.id),
            ("subject", found.subject),
            ("roles", ", ".join(found.roles)),
            ("resource", found.resource),
        ]
    )


@bindings.command(
    "create",
    epilog=examples(
        """
danube auth bindings create user:alice /shop --role namespace-admin
danube auth bindings create group:analysts '/shop/*' --role reader --role monitor
danube auth bindings create service_account:billing /shop/orders/billing --role consumer --id billing
"""
    ),
)
@click.argument("subject", type=SUBJECT)
@click.argument("resource", type=RESOURCE)
@click.option("--role", "roles", type=ROLE, multiple=True, required=True, help="A role to give; may be repeated.")
@click.option(
    "--id",
    "binding_id",
    type=BINDING,
    help="The id of the binding; of those who administer only a namespace: NAMESPACE.WORD.  [default: one is made]",
)
@broker_options
def create_binding(subject: str, resource: str, roles: tuple[str, ...], binding_id: str | None, url: str) -> None:
    """Give roles to SUBJECT on RESOURCE and everything below it."""
    made = with_client(
        url, lambda client: client.access.create_binding(subject, roles, resource, binding_id=binding_id or "")
    )
    text = f"created {made.id}: {made.subject} has {', '.join(made.roles)} on {made.resource}"
    show(made, text)


@bindings.command("delete", epilog=examples("danube auth bindings delete loader-orders --yes"))
@click.argument("binding", type=BINDING)
@yes_option
@broker_options
def delete_binding(binding: str, yes: bool, url: str) -> None:
    """Delete a binding: what it gave is taken away at once, also from producers and consumers that are open."""
    confirm(f"Delete binding {binding}?", yes)
    with_client(url, lambda client: client.access.delete_binding(binding))
    show({"binding": binding, "deleted": True}, f"deleted {binding}")


# -- API keys ----------------------------------------------------------------------------------------------------------


@auth.group(
    "keys",
    epilog=examples(
        """
danube auth keys create service_account:loader --expires 90d --comment 'nightly load'
danube auth keys list
danube auth keys revoke 5d3f1c0e7a0b --yes
"""
    ),
)
def keys() -> None:
    """List, create and revoke API keys.

    Everybody lists, creates and revokes keys of their own. Those of others need the action administer on the cluster.
    """


@keys.command("list", epilog=examples("danube auth keys list --principal service_account:loader --json"))
@click.option("--principal", type=SUBJECT, help="Only those of this principal.")
@broker_options
def list_keys(principal: str | None, url: str) -> None:
    """List API keys by their ids, without their secrets: all, or your own if you may not see all."""
    found = with_client(url, lambda client: client.access.keys(principal=principal or ""))
    if shown_as_json(found):
        return
    table(
        ["key", "principal", "groups", "created", "expires", "comment"],
        [
            (one.id, one.principal, ", ".join(one.groups), _time(one.created_at), _end(one.expires_at), one.comment)
            for one in found
        ],
        cut=["comment"],
    )


@keys.command(
    "create",
    epilog=examples(
        """
danube auth keys create
danube auth keys create service_account:loader --group etl --expires 90d
DANUBE_API_KEY=$(danube auth keys create service_account:loader 2>/dev/null)
"""
    ),
)
@click.argument("principal", type=SUBJECT, required=False)
@click.option("--group", "groups", multiple=True, help="A group that callers with the key are in; may be repeated.")
@click.option(
    "--expires", type=DURATION, metavar="S", help="After how long it ends, for example 90d.  [default: never]"
)
@click.option("--expires-at", type=MOMENT, metavar="TIME", help="When it ends, for example 2027-01-31T12:00:00Z.")
@click.option("--comment", default="", help="What it is for. Everybody who may list the key can read it.")
@broker_options
def create_key(
    principal: str | None,
    groups: tuple[str, ...],
    expires: float | None,
    expires_at: datetime | None,
    comment: str,
    url: str,
) -> None:
    """Create an API key for PRINCIPAL, by default for yourself.

    The key is printed on stdout, alone, and never shown again; what else there is to say goes to stderr.
    """
    if expires is not None and expires_at is not None:
        raise click.UsageError("--expires and --expires-at say the same: give one of them")
    made = with_client(
        url,
        lambda client: client.access.create_key(
            principal or "", groups=groups, expires_in=expires, expires_at=expires_at, comment=comment
        ),
    )
    if shown_as_json(made):
        return
    note(f"created key {made.key.id} of {made.key.principal}, which ends: {_time(made.key.expires_at)}")
    note("keep what follows in a safe place: it is not shown again")
    click.echo(made.secret)


@keys.command("revoke", epilog=examples("danube auth keys revoke 5d3f1c0e7a0b --yes"))
@click.argument("key", type=KEY)
@yes_option
@broker_options
def revoke_key(key: str, yes: bool, url: str) -> None:
    """Revoke an API key, by its id: nothing is accepted with it any more, and connections that it opened end."""
    confirm(f"Revoke key {key}? Whoever uses it loses the connection.", yes, verb="revoke", not_done="not revoked")
    with_client(url, lambda client: client.access.revoke_key(key))
    show({"key": key, "revoked": True}, f"revoked {key}")


# -- quotas ------------------------------------------------------------------------------------------------------------


@auth.group(
    "quotas",
    epilog=examples(
        """
danube auth quotas set user:alice --connections-max 20 --publish-bytes-per-s 10MB
danube auth quotas set 'service_account:*' --requests-per-s 100
danube auth quotas set /shop --stored-bytes-max 500GB
danube auth quotas list
danube auth quotas delete user:alice --yes
"""
    ),
)
def quotas() -> None:
    """Limit what principals and namespaces may use, and see what they use.

    \b
    A subject is user:NAME or service_account:NAME, with * as the name for all others of the type, or /NAMESPACE.
    Past a rate callers wait, and then get Full; others are not slowed. Rates and connections are those of each broker.

    Changes need the action administer on the cluster. Everybody sees the quota of their own, and those of namespaces
    that they may describe.
    """


@quotas.command(
    "set",
    epilog=examples(
        """
danube auth quotas set user:alice --publish-bytes-per-s 10MB --fetch-bytes-per-s 50MB
danube auth quotas set /shop --stored-bytes-max 500GB --requests-per-s 1000
danube auth quotas set user:alice --fetch-bytes-per-s 0
"""
    ),
)
@click.argument("subject", type=QUOTA_SUBJECT)
@click.option("--connections-max", type=int, metavar="N", help="Connections of a principal to one broker.")
@click.option("--requests-per-s", type=int, metavar="N", help="Requests per second.")
@click.option("--publish-bytes-per-s", type=BYTES, metavar="SIZE", help="Bytes published per second.")
@click.option(
    "--fetch-bytes-per-s", type=BYTES, metavar="SIZE", help="Bytes fetched, and delivered to consumers, per second."
)
@click.option(
    "--stored-bytes-max",
    type=BYTES,
    metavar="SIZE",
    help="Bytes stored of the topics of a namespace, or of those that a principal created.",
)
@expected_option
@broker_options
def set_quota(subject: str, expected: str, url: str, **limits: int | None) -> None:
    """Set limits of SUBJECT; 0 is no limit. Limits that are not named stay as they are. It is in force at once."""
    chosen = {name: value for name, value in limits.items() if value is not None}
    if not chosen:
        raise click.UsageError("no limit is named: add one, for example --publish-bytes-per-s 10MB")
    changed = with_client(url, lambda client: client.access.set_quota(subject, expected=expected, **chosen))
    show(changed, f"set the quota of {subject}: {_limits_text(changed.limits)}")


@quotas.command("list", epilog=examples("danube auth quotas list --json"))
@broker_options
def list_quotas(url: str) -> None:
    """List the quotas that you may see, as LIMIT (USED NOW); rates and connections are those of one broker."""
    found = with_client(url, lambda client: client.access.quotas())
    if shown_as_json(found):
        return
    table(
        ["subject", "connections", "requests/s", "publish/s", "fetch/s", "stored"],
        [(one.subject, *(text for _, text in _quota_texts(one))) for one in found],
    )


@quotas.command("get", epilog=examples("danube auth quotas get user:alice --json"))
@click.argument("subject", type=QUOTA_SUBJECT)
@broker_options
def get_quota(subject: str, url: str) -> None:
    """Show the quota of SUBJECT, as LIMIT (USED NOW)."""
    found = with_client(url, lambda client: client.access.quota(subject))
    show(found, lambda: fields([("subject", found.subject), *_quota_texts(found)]))


@quotas.command("delete", epilog=examples("danube auth quotas delete user:alice --yes"))
@click.argument("subject", type=QUOTA_SUBJECT)
@yes_option
@expected_option
@broker_options
def delete_quota(subject: str, yes: bool, expected: str, url: str) -> None:
    """Delete the quota of SUBJECT. Callers that wait for its rates go on at once."""
    confirm(f"Delete the quota of {subject}?", yes)
    with_client(url, lambda client: client.access.delete_quota(subject, expected=expected))
    show({"subject": subject, "deleted": True}, f"deleted the quota of {subject}")


# -- output ------------------------------------------------------------------------------------------------------------


def _show_role(role: Role) -> None:
    if shown_as_json(role):
        return
    fields([("role", role.name), ("actions", ", ".join(role.actions)), ("built in", "yes" if role.built_in else "no")])


def _binding_table(found: list[Binding]) -> None:
    table(
        ["binding", "subject", "roles", "resource"],
        [(one.id, one.subject, ", ".join(one.roles), one.resource) for one in found],
    )


def _quota_texts(quota: Quota) -> list[tuple[str, str]]:
    """Return each limit by its name for people, with what is used of it."""
    limits, used = quota.limits, quota.used

    def text(limit: int, now: float, shown: Callable[[float], str]) -> str:
        return f"{shown(limit) if limit else 'no limit'} ({shown(now)})"

    return [
        ("connections", text(limits.connections_max, used.connections, number)),
        ("requests/s", text(limits.requests_per_s, used.requests_per_s, number)),
        ("publish/s", text(limits.publish_bytes_per_s, used.publish_bytes_per_s, size)),
        ("fetch/s", text(limits.fetch_bytes_per_s, used.fetch_bytes_per_s, size)),
        ("stored", text(limits.stored_bytes_max, used.stored_bytes, size)),
    ]


def _limits_text(limits: QuotaLimits) -> str:
    set_ones = [f"{name}={value}" for name, value in asdict(limits).items() if value]
    return ", ".join(set_ones) or "no limits"


def _end(micros: int) -> str:
    """Return when a key ends, and whether that is over."""
    from pydanube.runtime.clock import SystemClock

    is_over = 0 < micros <= SystemClock().now_us()
    return f"{_time(micros)} (expired)" if is_over else _time(micros)


def _time(micros: int) -> str:
    """Return a moment as a date in UTC; 0 stands for never."""
    return datetime_from_micros(micros).isoformat(timespec="seconds") if micros else "never"
