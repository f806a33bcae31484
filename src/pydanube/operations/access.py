"""Roles, bindings, API keys and quotas: who may do what, and the questions who one is and what one may do.

Without authentication brokers refuse those on roles, bindings and keys.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from pydanube.model.limits import BINDING_ROLES_MAX, COMMENT_CHARACTERS_MAX, GROUPS_MAX, NAME_CHARACTERS_MAX
from pydanube.model.quotas import LIMIT_MAX, Quota, QuotaSubject, QuotaUsage
from pydanube.model.security import (
    AccessAnswer,
    Action,
    ApiKey,
    Binding,
    BoundSubject,
    CallerIdentity,
    NewApiKey,
    ResourcePattern,
    Role,
)

from .operation import Done, Operation, Rest, on_cluster

_Subject = Annotated[str, Meta(examples=["user:alice", "group:ops"], extra_json_schema={"maxLength": 272})]
_Resource = Annotated[
    str, Meta(examples=["/default/orders-*"], extra_json_schema={"maxLength": 3 * (NAME_CHARACTERS_MAX + 1)})
]
_RuleName = Annotated[str, Meta(extra_json_schema={"maxLength": NAME_CHARACTERS_MAX})]
_Action = Annotated[str, Meta(extra_json_schema={"enum": [str(one) for one in Action]})]
_GroupNames = Annotated[list[str], Meta(extra_json_schema={"maxItems": GROUPS_MAX})]
_After = Annotated[str, Meta(max_length=2_000)]
_Limit = Annotated[int, Meta(extra_json_schema={"minimum": 1, "maximum": 500})]
_Quantity = Annotated[int, Meta(ge=0, le=LIMIT_MAX)]

_rest = partial(Rest, tag="access")
_VERSION: Final = "9f2c63a1b04de875"
_LOADER: Final = Role("loader", ("produce", "create"), version=_VERSION)
_BINDING: Final = Binding(
    "b-orders", BoundSubject("service_account", "loader"), ("producer",), ResourcePattern("/default/orders-*")
)
_KEY: Final = ApiKey(
    "5d3f1c0e7a0b",
    BoundSubject("service_account", "loader"),
    ("etl",),
    1_790_000_000_000_000,
    1_800_000_000_000_000,
    "nightly load",
)
_QUOTA: Final = Quota(
    QuotaSubject("user", "alice"),
    connections_max=20,
    publish_bytes_per_s=10_000_000,
    version=_VERSION,
    used=QuotaUsage(connections=2, publish_bytes_per_s=731_204.5),
)


# -- questions ---------------------------------------------------------------------------------------------------------


class WhoAmI(Operation[CallerIdentity], tag="access.whoami"):
    """Tell who the caller is.

    How that was established, until when it is believed, and which bindings it has.
    """

    rest = _rest(
        "GET",
        "/access/whoami",
        answer=CallerIdentity("service_account:loader", ("etl",), "api-key", bindings=(_BINDING,)),
    )


class AskAccess(Operation[AccessAnswer], tag="access.can"):
    """Tell whether the caller may do something, and why.

    Asking for another principal needs `administer` on the cluster.
    """

    rest = _rest(
        "GET",
        "/access/can",
        names={"group": "groups"},
        answer=AccessAnswer(
            True,
            "service_account:loader",
            "produce",
            "/default/orders-eu",
            "binding 'b-orders' gives service_account:loader the role 'producer' on /default/orders-*",
            "b-orders",
            "producer",
        ),
    )
    action: _Action
    """What is to be done."""
    resource: _Resource
    """To what; with wildcards: to all that it covers."""
    principal: _Subject = ""
    """Who is to do it; empty: the caller."""
    groups: list[Annotated[str, Meta(extra_json_schema={"maxLength": 255})]] = msgspec.field(default_factory=list)
    """The groups that the principal is in."""


# -- roles -------------------------------------------------------------------------------------------------------------


class RolesListed(msgspec.Struct):
    """Roles, the built-in ones first."""

    roles: list[Role]


class ListRoles(Operation[RolesListed], tag="access.roles"):
    """List roles.

    The built-in ones first. Refused by a broker without authentication.
    """

    needs = on_cluster(Action.ADMINISTER)
    rest = _rest(
        "GET",
        "/access/roles",
        answer=RolesListed([Role("monitor", ("describe",), built_in=True), _LOADER]),
        errors=(409,),
    )


class GetRole(Operation[Role], tag="access.role"):
    """Get a role.

    Refused by a broker without authentication.
    """

    needs = on_cluster(Action.ADMINISTER)
    rest = _rest("GET", "/access/roles/{role}", names={"role": "name"}, answer=_LOADER, errors=(409,), has_etag=True)
    name: str


class CreateRole(Operation[Role], tag="access.role_create"):
    """Make a role of actions.

    Refused by a broker without authentication.
    """

    needs = on_cluster(Action.ADMINISTER)
    is_repeatable = False
    rest = _rest(
        "PUT",
        "/access/roles/{role}",
        names={"role": "name"},
        example={"actions": ["produce", "create"]},
        answer=_LOADER,
        status=201,
        location="/access/roles/{0.name}",
        has_etag=True,
    )
    name: str
    actions: list[_Action]


class ChangeRole(Operation[Role], tag="access.role_change"):
    """Replace the actions of a role.

    In force at once for everybody who has it. Refused by a broker without authentication.
    """

    needs = on_cluster(Action.ADMINISTER)
    rest = _rest(
        "PATCH",
        "/access/roles/{role}",
        names={"role": "name"},
        example={"actions": ["produce"]},
        answer=_LOADER,
        has_etag=True,
    )
    name: str
    actions: list[_Action]
    expected: str = ""


class DeleteRole(Operation[Done], tag="access.role_delete"):
    """Delete a role.

    Refused while a binding has it, and by a broker without authentication.
    """

    needs = on_cluster(Action.ADMINISTER)
    is_repeatable = False
    rest = _rest("DELETE", "/access/roles/{role}", names={"role": "name"})
    name: str
    expected: str = ""


# -- bindings ----------------------------------------------------------------------------------------------------------


class BindingsListed(msgspec.Struct, omit_defaults=True):
    """One page of bindings, in order of their ids. `next`: the `after` of the next page; empty: there is none."""

    bindings: list[Binding]
    next: str = ""


class ListAccessBindings(Operation[BindingsListed], tag="access.bindings"):
    """List bindings.

    Those that the caller may delete, and its own, in order of their ids. Refused by a broker without authentication.
    """

    rest = _rest("GET", "/access/bindings", name="listBindings", answer=BindingsListed([_BINDING]), errors=(409,))
    subject: _Subject = ""
    """Only those of this subject."""
    resource: _Resource = ""
    """Only those with exactly this resource."""
    after: _After = ""
    """`next` of the page before; empty: the first page."""
    limit: _Limit = 100
    """The most entries of one page."""


class GetAccessBinding(Operation[Binding], tag="access.binding"):
    """Get a binding.

    Refused by a broker without authentication.
    """

    rest = _rest(
        "GET",
        "/access/bindings/{binding}",
        name="getBinding",
        names={"binding": "id"},
        answer=_BINDING,
        errors=(409,),
    )
    id: str


class CreateAccessBinding(Operation[Binding], tag="access.bind"):
    """Give roles to a subject.

    Needs `administer` on all that the binding covers, and every action that the roles have there. Refused by a broker
    without authentication.
    """

    is_repeatable = False
    rest = _rest(
        "POST",
        "/access/bindings",
        name="createBinding",
        example={"subject": "service_account:loader", "roles": ["producer"], "resource": "/default/orders-*"},
        answer=_BINDING,
        status=201,
        location="/access/bindings/{0.id}",
    )
    subject: _Subject
    """Who gets the roles: `type:name`, with the type `user`, `service_account` or `group`."""
    roles: Annotated[list[_RuleName], Meta(extra_json_schema={"minItems": 1, "maxItems": BINDING_ROLES_MAX})]
    resource: _Resource
    """`/`, `/namespace`, `/namespace/topic`, `/namespace/topic/subscription` or `schema:subject`; it covers everything
    below, and names may contain `*` and `?`."""
    id: _RuleName = ""
    """Empty: the broker makes one."""


class DeleteAccessBinding(Operation[Done], tag="access.unbind"):
    """Take away what a binding gives.

    Refused by a broker without authentication.
    """

    is_repeatable = False
    rest = _rest("DELETE", "/access/bindings/{binding}", name="deleteBinding", names={"binding": "id"})
    id: str


# -- API keys ----------------------------------------------------------------------------------------------------------


class KeysListed(msgspec.Struct, omit_defaults=True):
    """One page of API keys, in order of their ids. `next` as in BindingsListed."""

    keys: list[ApiKey]
    next: str = ""


class ListApiKeys(Operation[KeysListed], tag="access.keys"):
    """List API keys.

    Those of all, or the caller's own if it does not administer the cluster; in order of their ids. Refused by a broker
    without authentication.
    """

    rest = _rest("GET", "/access/keys", answer=KeysListed([_KEY]), errors=(409,))
    principal: _Subject = ""
    """Only those of this principal."""
    after: _After = ""
    """`next` of the page before; empty: the first page."""
    limit: _Limit = 100
    """The most entries of one page."""


class CreateApiKey(Operation[NewApiKey], tag="access.key_create"):
    """Make an API key.

    The answer has its secret, which is shown this once. Refused by a broker without authentication.
    """

    is_repeatable = False
    rest = _rest(
        "POST",
        "/access/keys",
        example={"principal": "service_account:loader", "groups": ["etl"], "comment": "nightly load"},
        answer=NewApiKey(_KEY, "dnb_5d3f1c0e7a0b_SECRET"),
        status=201,
    )
    principal: _Subject = ""
    """The principal that the key is for, `type:name`; empty: the caller."""
    groups: _GroupNames = msgspec.field(default_factory=list)
    """The groups that a caller with this key is in."""
    expires_at: int = 0
    """When it ends, in microseconds since 1970; 0: never."""
    comment: Annotated[str, Meta(extra_json_schema={"maxLength": COMMENT_CHARACTERS_MAX})] = ""


class RevokeApiKey(Operation[Done], tag="access.key_revoke"):
    """Revoke an API key.

    At once; sessions that it opened end. Refused by a broker without authentication.
    """

    is_repeatable = False
    rest = _rest("DELETE", "/access/keys/{key}", names={"key": "id"})
    id: str


# -- quotas ------------------------------------------------------------------------------------------------------------


class QuotasListed(msgspec.Struct, omit_defaults=True):
    """One page of quotas, in order of their subjects. `next` as in BindingsListed."""

    quotas: list[Quota]
    next: str = ""


class QuotaChanges(msgspec.Struct):
    """Limits that are to be changed; 0: none. Those that are absent stay as they are."""

    connections_max: _Quantity | msgspec.UnsetType = msgspec.UNSET
    """Connections of a principal to one broker; namespaces have no such limit."""
    requests_per_s: _Quantity | msgspec.UnsetType = msgspec.UNSET
    publish_bytes_per_s: _Quantity | msgspec.UnsetType = msgspec.UNSET
    fetch_bytes_per_s: _Quantity | msgspec.UnsetType = msgspec.UNSET
    """Bytes of fetches, and of deliveries to consumers."""
    stored_bytes_max: _Quantity | msgspec.UnsetType = msgspec.UNSET
    """Bytes stored of the topics of the namespace, or of those that the principal created."""


class ListQuotas(Operation[QuotasListed], tag="access.quotas"):
    """List quotas.

    Those that the caller may see, in order of their subjects, each with what is used of it now.
    """

    rest = _rest("GET", "/access/quotas", answer=QuotasListed([_QUOTA]))
    after: _After = ""
    """`next` of the page before; empty: the first page."""
    limit: _Limit = 100
    """The most entries of one page."""


class GetQuota(Operation[Quota], tag="access.quota"):
    """Get a quota.

    Its limits, and what is used of it now at the broker that answers. There is none if the subject has none of its own.
    """

    rest = _rest("GET", "/access/quotas/{quota}", names={"quota": "subject"}, answer=_QUOTA, has_etag=True)
    subject: QuotaSubject


class SetQuota(Operation[Quota], tag="access.quota_set"):
    """Change limits of a quota.

    A quota that does not exist is made. In force at once, also for those that wait.
    """

    rest = _rest(
        "PATCH",
        "/access/quotas/{quota}",
        names={"quota": "subject"},
        body=("changes", QuotaChanges),
        example={"publish_bytes_per_s": 10_000_000, "connections_max": 20},
        answer=_QUOTA,
        has_etag=True,
    )
    subject: QuotaSubject
    changes: dict[str, int]
    expected: str = ""


class DeleteQuota(Operation[Done], tag="access.quota_delete"):
    """Delete a quota.

    Those that wait for its rates go on at once.
    """

    is_repeatable = False
    rest = _rest("DELETE", "/access/quotas/{quota}", names={"quota": "subject"})
    subject: QuotaSubject
    expected: str = ""


AccessOperation = (
    WhoAmI
    | AskAccess
    | ListRoles
    | GetRole
    | CreateRole
    | ChangeRole
    | DeleteRole
    | ListAccessBindings
    | GetAccessBinding
    | CreateAccessBinding
    | DeleteAccessBinding
    | ListApiKeys
    | CreateApiKey
    | RevokeApiKey
    | ListQuotas
    | GetQuota
    | SetQuota
    | DeleteQuota
)
