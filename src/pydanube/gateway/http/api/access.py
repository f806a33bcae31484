"""Operations on access: roles, bindings, API keys and quotas, and the questions who one is and what one may do."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from pydanube.codec.native import requests as wire
from pydanube.codec.native.conversions import (
    wire_binding,
    wire_caller,
    wire_decision,
    wire_key,
    wire_quota,
    wire_role,
)
from pydanube.core.access import Action
from pydanube.gateway.http.requests import identity_of
from pydanube.model.limits import (
    BINDING_ROLES_MAX,
    COMMENT_CHARACTERS_MAX,
    GROUPS_MAX,
    NAME_CHARACTERS_MAX,
)
from pydanube.model.quotas import LIMIT_MAX, LIMIT_NAMES

from .etags import expected_version, tagged
from .operations import BASE, Answer, ApiCall, Operation
from .paging import After

_ACCESS: Final = f"{BASE}/access"
_ROLE: Final = f"{_ACCESS}/roles/{{role}}"
_BINDING: Final = f"{_ACCESS}/bindings/{{binding}}"
_QUOTA: Final = f"{_ACCESS}/quotas/{{quota}}"
_TAG: Final = "access"
_NO_AUTHENTICATION: Final = "Refused by a broker without authentication."
_RESOURCE_CHARACTERS_MAX: Final = 3 * (NAME_CHARACTERS_MAX + 1)

SubjectText = Annotated[str, msgspec.Meta(max_length=272, examples=["user:alice", "group:ops"])]
ResourceText = Annotated[str, msgspec.Meta(max_length=_RESOURCE_CHARACTERS_MAX, examples=["/default/orders-*"])]
RuleName = Annotated[str, msgspec.Meta(max_length=NAME_CHARACTERS_MAX)]
GroupNames = Annotated[list[str], msgspec.Meta(max_length=GROUPS_MAX)]
LimitNumber = Annotated[int, msgspec.Meta(ge=0, le=LIMIT_MAX)]
PageLimit = Annotated[int, msgspec.Meta(ge=1, le=500)]


class RoleActions(msgspec.Struct):
    """What a role allows."""

    actions: list[Action]


class NewBinding(msgspec.Struct):
    """A binding that is to be made."""

    subject: SubjectText
    """Who gets the roles: `type:name`, with the type `user`, `service_account` or `group`."""
    roles: Annotated[list[RuleName], msgspec.Meta(min_length=1, max_length=BINDING_ROLES_MAX)]
    resource: ResourceText
    """`/`, `/namespace`, `/namespace/topic`, `/namespace/topic/subscription` or `schema:subject`; it covers everything
    below, and names may contain `*` and `?`."""
    id: RuleName = ""
    """Empty: the broker makes one."""


class NewKey(msgspec.Struct):
    """An API key that is to be made."""

    principal: SubjectText = ""
    """Whose key it is, `type:name`; empty: the caller's own."""
    groups: GroupNames = []
    """The groups that a caller with this key is in."""
    expires_at: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0
    """When it ends, in microseconds since 1970; 0: never."""
    comment: Annotated[str, msgspec.Meta(max_length=COMMENT_CHARACTERS_MAX)] = ""


class BindingQuery(msgspec.Struct):
    """Which bindings."""

    subject: SubjectText = ""
    """Only those of this subject."""
    resource: ResourceText = ""
    """Only those whose resource is written so."""
    limit: PageLimit = 100
    """The most entries of one page."""
    after: After = ""
    """`next` of the page before; empty: the first page."""


class KeyQuery(msgspec.Struct):
    """Which API keys."""

    principal: SubjectText = ""
    """Only those of this principal."""
    limit: PageLimit = 100
    """The most entries of one page."""
    after: After = ""
    """`next` of the page before; empty: the first page."""


class QuotaChanges(msgspec.Struct, omit_defaults=True):
    """Limits that are to be changed; 0: none. Those that are absent stay as they are."""

    connections_max: LimitNumber | msgspec.UnsetType = msgspec.UNSET
    """Connections of a principal to one broker; namespaces have no such limit."""
    requests_per_s: LimitNumber | msgspec.UnsetType = msgspec.UNSET
    publish_bytes_per_s: LimitNumber | msgspec.UnsetType = msgspec.UNSET
    fetch_bytes_per_s: LimitNumber | msgspec.UnsetType = msgspec.UNSET
    """Bytes of fetches, and of deliveries to consumers."""
    stored_bytes_max: LimitNumber | msgspec.UnsetType = msgspec.UNSET
    """Bytes stored of the topics of the namespace, or of those that the principal created."""


class QuotaQuery(msgspec.Struct):
    """Which quotas."""

    limit: PageLimit = 100
    """The most entries of one page."""
    after: After = ""
    """`next` of the page before; empty: the first page."""


class AccessQuery(msgspec.Struct):
    """The question whether somebody may do something."""

    action: Action
    """What is to be done."""
    resource: ResourceText
    """To what; with wildcards: to all that it covers."""
    principal: SubjectText = ""
    """Who is to do it; empty: the caller."""
    group: Annotated[str, msgspec.Meta(max_length=255)] = ""
    """A group that the principal is in."""


async def _list_roles(call: ApiCall) -> wire.RolesListed:
    return wire.RolesListed([wire_role(one) for one in call.broker.access.list_roles(call.principal)])


async def _get_role(call: ApiCall) -> Answer:
    found = await call.broker.access.get_role(call.principal, call.path["role"])
    return tagged(wire_role(found), found.version)


async def _create_role(call: ApiCall) -> Answer:
    name = call.path["role"]
    made = await call.broker.access.create_role(call.principal, name, [str(one) for one in call.body.actions])
    answer = tagged(wire_role(made), made.version)
    return answer._replace(headers={**answer.headers, "location": f"{_ACCESS}/roles/{name}"})


async def _change_role(call: ApiCall) -> Answer:
    name, actions = call.path["role"], [str(one) for one in call.body.actions]
    changed = await call.broker.access.change_role(call.principal, name, actions, expected_version(call))
    return tagged(wire_role(changed), changed.version)


async def _delete_role(call: ApiCall) -> None:
    await call.broker.access.delete_role(call.principal, call.path["role"], expected_version(call))


async def _list_bindings(call: ApiCall) -> wire.BindingsListed:
    asked: BindingQuery = call.query
    page = call.broker.access.list_bindings(call.principal, asked.subject, asked.resource, asked.after, asked.limit)
    return wire.BindingsListed([wire_binding(one) for one in page.bindings], page.next)


async def _get_binding(call: ApiCall) -> wire.AccessBinding:
    return wire_binding(await call.broker.access.get_binding(call.principal, call.path["binding"]))


async def _create_binding(call: ApiCall) -> Answer:
    given: NewBinding = call.body
    made = await call.broker.access.create_binding(call.principal, given.subject, given.roles, given.resource, given.id)
    return Answer(wire_binding(made), headers={"location": f"{_ACCESS}/bindings/{made.id}"})


async def _delete_binding(call: ApiCall) -> None:
    await call.broker.access.delete_binding(call.principal, call.path["binding"])


async def _list_keys(call: ApiCall) -> wire.KeysListed:
    asked: KeyQuery = call.query
    page = call.broker.access.list_keys(call.principal, asked.principal, asked.after, asked.limit)
    return wire.KeysListed([wire_key(one) for one in page.keys], page.next)


async def _create_key(call: ApiCall) -> wire.KeyCreated:
    given: NewKey = call.body
    made = await call.broker.access.create_key(
        call.principal, given.principal, given.groups, given.expires_at, given.comment
    )
    return wire.KeyCreated(wire_key(made.key), made.secret)


async def _revoke_key(call: ApiCall) -> None:
    await call.broker.access.revoke_key(call.principal, call.path["key"])


async def _list_quotas(call: ApiCall) -> wire.QuotasListed:
    asked: QuotaQuery = call.query
    page = call.broker.quotas.list(call.principal, asked.after, asked.limit)
    return wire.QuotasListed([wire_quota(one) for one in page.quotas], page.next)


async def _get_quota(call: ApiCall) -> Answer:
    found = await call.broker.quotas.get(call.principal, call.path["quota"])
    return tagged(wire_quota(found), found.version)


async def _set_quota(call: ApiCall) -> Answer:
    given: QuotaChanges = call.body
    changes = {name: value for name in LIMIT_NAMES if (value := getattr(given, name)) is not msgspec.UNSET}
    found = await call.broker.quotas.set(call.principal, call.path["quota"], changes, expected_version(call))
    return tagged(wire_quota(found), found.version)


async def _delete_quota(call: ApiCall) -> None:
    await call.broker.quotas.delete(call.principal, call.path["quota"], expected_version(call))


async def _whoami(call: ApiCall) -> wire.Caller:
    return wire_caller(call.broker.access.whoami(call.principal, identity_of(call.request)))


async def _can(call: ApiCall) -> wire.AccessDecision:
    asked: AccessQuery = call.query
    groups = [asked.group] if asked.group else []
    answer = call.broker.access.can(call.principal, str(asked.action), asked.resource, asked.principal, groups)
    return wire_decision(answer)


_LOADER: Final = wire.AccessRole("loader", ["produce", "create"], version="9f2c63a1b04de875")
_EXAMPLE: Final = wire.AccessBinding("b-orders", "service_account:loader", ["producer"], "/default/orders-*")
_KEY: Final = wire.AccessKey(
    "5d3f1c0e7a0b", "service_account:loader", ["etl"], 1_790_000_000_000_000, 1_800_000_000_000_000, "nightly load"
)

_ALICE: Final = wire.AccessQuota(
    "user:alice",
    connections_max=20,
    publish_bytes_per_s=10_000_000,
    version="9f2c63a1b04de875",
    used=wire.QuotaUse(connections=2, publish_bytes_per_s=731_204.5),
)

OPERATIONS: Final = (
    Operation(
        method="GET",
        path=f"{_ACCESS}/whoami",
        name="whoAmI",
        summary="Tell who the caller is",
        description="How that was established, until when it is believed, and which bindings it has.",
        tag=_TAG,
        handler=_whoami,
        reply=wire.Caller,
        reply_example=wire.Caller("service_account:loader", ["etl"], "api-key", bindings=[_EXAMPLE]),
        native=(wire.WhoAmI,),
    ),
    Operation(
        method="GET",
        path=f"{_ACCESS}/can",
        name="askAccess",
        summary="Tell whether the caller may do something, and why",
        description="Asking for another principal needs `administer` on the cluster.",
        tag=_TAG,
        handler=_can,
        query=AccessQuery,
        reply=wire.AccessDecision,
        reply_example=wire.AccessDecision(
            True,
            "service_account:loader",
            "produce",
            "/default/orders-eu",
            "binding 'b-orders' gives service_account:loader the role 'producer' on /default/orders-*",
            "b-orders",
            "producer",
        ),
        native=(wire.AskAccess,),
    ),
    Operation(
        method="GET",
        path=f"{_ACCESS}/roles",
        name="listRoles",
        summary="List roles",
        description=f"The built-in ones first. {_NO_AUTHENTICATION}",
        tag=_TAG,
        handler=_list_roles,
        reply=wire.RolesListed,
        reply_example=wire.RolesListed([wire.AccessRole("monitor", ["describe"], built_in=True), _LOADER]),
        errors=(409,),
        native=(wire.ListRoles,),
    ),
    Operation(
        method="GET",
        path=_ROLE,
        name="getRole",
        summary="Get a role",
        description=_NO_AUTHENTICATION,
        tag=_TAG,
        handler=_get_role,
        reply=wire.AccessRole,
        reply_example=_LOADER,
        errors=(409,),
        has_etag=True,
        native=(wire.GetRole,),
    ),
    Operation(
        method="PUT",
        path=_ROLE,
        name="createRole",
        summary="Make a role of actions",
        description=_NO_AUTHENTICATION,
        tag=_TAG,
        handler=_create_role,
        body=RoleActions,
        body_example={"actions": ["produce", "create"]},
        reply=wire.AccessRole,
        reply_example=_LOADER,
        status=201,
        has_etag=True,
        native=(wire.CreateRole,),
    ),
    Operation(
        method="PATCH",
        path=_ROLE,
        name="changeRole",
        summary="Replace the actions of a role",
        description=f"In force at once for everybody who has it. {_NO_AUTHENTICATION}",
        tag=_TAG,
        handler=_change_role,
        body=RoleActions,
        body_example={"actions": ["produce"]},
        reply=wire.AccessRole,
        reply_example=_LOADER,
        has_etag=True,
        takes_if_match=True,
        native=(wire.ChangeRole,),
    ),
    Operation(
        method="DELETE",
        path=_ROLE,
        name="deleteRole",
        summary="Delete a role",
        description=f"Refused while a binding has it. {_NO_AUTHENTICATION}",
        tag=_TAG,
        handler=_delete_role,
        takes_if_match=True,
        native=(wire.DeleteRole,),
    ),
    Operation(
        method="GET",
        path=f"{_ACCESS}/bindings",
        name="listBindings",
        summary="List bindings",
        description=f"Those that the caller may delete, and its own. {_NO_AUTHENTICATION}",
        tag=_TAG,
        handler=_list_bindings,
        query=BindingQuery,
        reply=wire.BindingsListed,
        reply_example=wire.BindingsListed([_EXAMPLE]),
        errors=(409,),
        native=(wire.ListAccessBindings,),
    ),
    Operation(
        method="POST",
        path=f"{_ACCESS}/bindings",
        name="createBinding",
        summary="Give roles to a subject",
        description="Needs `administer` on all that the binding covers, and every action that the roles have there. "
        + _NO_AUTHENTICATION,
        tag=_TAG,
        handler=_create_binding,
        body=NewBinding,
        body_example={"subject": "service_account:loader", "roles": ["producer"], "resource": "/default/orders-*"},
        reply=wire.AccessBinding,
        reply_example=_EXAMPLE,
        status=201,
        native=(wire.CreateAccessBinding,),
    ),
    Operation(
        method="GET",
        path=_BINDING,
        name="getBinding",
        summary="Get a binding",
        description=_NO_AUTHENTICATION,
        tag=_TAG,
        handler=_get_binding,
        reply=wire.AccessBinding,
        reply_example=_EXAMPLE,
        errors=(409,),
        native=(wire.GetAccessBinding,),
    ),
    Operation(
        method="DELETE",
        path=_BINDING,
        name="deleteBinding",
        summary="Take away what a binding gives",
        description=_NO_AUTHENTICATION,
        tag=_TAG,
        handler=_delete_binding,
        native=(wire.DeleteAccessBinding,),
    ),
    Operation(
        method="GET",
        path=f"{_ACCESS}/keys",
        name="listApiKeys",
        summary="List API keys",
        description=f"Those of all, or the caller's own if it does not administer the cluster. {_NO_AUTHENTICATION}",
        tag=_TAG,
        handler=_list_keys,
        query=KeyQuery,
        reply=wire.KeysListed,
        reply_example=wire.KeysListed([_KEY]),
        errors=(409,),
        native=(wire.ListApiKeys,),
    ),
    Operation(
        method="POST",
        path=f"{_ACCESS}/keys",
        name="createApiKey",
        summary="Make an API key",
        description=f"The answer has its secret, which is shown this once. {_NO_AUTHENTICATION}",
        tag=_TAG,
        handler=_create_key,
        body=NewKey,
        body_optional=True,
        body_example={"principal": "service_account:loader", "groups": ["etl"], "comment": "nightly load"},
        reply=wire.KeyCreated,
        reply_example=wire.KeyCreated(_KEY, "dnb_5d3f1c0e7a0b_SECRET"),
        status=201,
        native=(wire.CreateApiKey,),
    ),
    Operation(
        method="DELETE",
        path=f"{_ACCESS}/keys/{{key}}",
        name="revokeApiKey",
        summary="Revoke an API key",
        description=f"At once; sessions that it opened end. {_NO_AUTHENTICATION}",
        tag=_TAG,
        handler=_revoke_key,
        native=(wire.RevokeApiKey,),
    ),
    Operation(
        method="GET",
        path=f"{_ACCESS}/quotas",
        name="listQuotas",
        summary="List quotas",
        description="Those that the caller may see, each with what is used of it now.",
        tag=_TAG,
        handler=_list_quotas,
        query=QuotaQuery,
        reply=wire.QuotasListed,
        reply_example=wire.QuotasListed([_ALICE]),
        native=(wire.ListQuotas,),
    ),
    Operation(
        method="GET",
        path=_QUOTA,
        name="getQuota",
        summary="Get a quota",
        description="Its limits, and what is used of it now at the broker that answers.",
        tag=_TAG,
        handler=_get_quota,
        reply=wire.AccessQuota,
        reply_example=_ALICE,
        has_etag=True,
        native=(wire.GetQuota,),
    ),
    Operation(
        method="PATCH",
        path=_QUOTA,
        name="setQuota",
        summary="Change limits of a quota",
        description="A quota that does not exist is made. In force at once, also for those that wait.",
        tag=_TAG,
        handler=_set_quota,
        body=QuotaChanges,
        body_example={"publish_bytes_per_s": 10_000_000, "connections_max": 20},
        reply=wire.AccessQuota,
        reply_example=_ALICE,
        has_etag=True,
        takes_if_match=True,
        native=(wire.SetQuota,),
    ),
    Operation(
        method="DELETE",
        path=_QUOTA,
        name="deleteQuota",
        summary="Delete a quota",
        description="Those that wait for its rates go on at once.",
        tag=_TAG,
        handler=_delete_quota,
        takes_if_match=True,
        native=(wire.DeleteQuota,),
    ),
)
