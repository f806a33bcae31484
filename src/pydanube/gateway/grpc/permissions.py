"""Danube's words for rights, and ours: permissions and actions, scopes and resources.

```
 permission          actions                             scope           resource_name            resource
 Lookup              describe                            cluster                                  /
 Produce             produce                             namespace       /shop, shop              /shop
 Consume             consume, read                       topic           /shop/orders             /shop/orders
 ManageTopic         create, delete                      subscription    /shop/orders/billing     /shop/orders/billing
 ManageSchema        create, delete                      schema          orders-value             schema:orders-value
 ManageNamespace     create, delete, administer
 ManageBroker        administer
 ManageCluster       administer
```

The last two scopes are ours: Danube has no such bindings. An action of a role that no permission stands for is shown by
our word, and our words are accepted too, so that a role comes back as it was given. `Replicate` stands for nothing that
this broker does, and is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from pydanube.core.access import Action
from pydanube.core.access_rules import parse_actions
from pydanube.model.errors import Invalid
from pydanube.model.security import CLUSTER, SUBJECT_PREFIX, ResourcePattern

PERMISSIONS: Final[dict[str, tuple[Action, ...]]] = {
    "Lookup": (Action.DESCRIBE,),
    "Produce": (Action.PRODUCE,),
    "Consume": (Action.CONSUME, Action.READ),
    "ManageTopic": (Action.CREATE, Action.DELETE),
    "ManageSchema": (Action.CREATE, Action.DELETE),
    "ManageNamespace": (Action.CREATE, Action.DELETE, Action.ADMINISTER),
    "ManageBroker": (Action.ADMINISTER,),
    "ManageCluster": (Action.ADMINISTER,),
}

_SCOPES: Final = ("cluster", "namespace", "topic", "subscription")
"""By the number of names that the resource has."""
_SCHEMA: Final = "schema"


class Scope(NamedTuple):
    """What a binding covers, in Danube's words."""

    scope: str
    resource_name: str


def actions_of(permissions: Iterable[str]) -> list[str]:
    """Return the actions that permissions, or our own words, stand for. Raises Invalid for an unknown one."""
    found: dict[str, None] = {}
    for one in permissions:
        if one not in PERMISSIONS and one not in {str(action) for action in Action}:
            known = ", ".join(PERMISSIONS)
            raise Invalid(f"permission {one!r} means nothing here: use {known}, or {', '.join(map(str, Action))}")
        actions = PERMISSIONS[one] if one in PERMISSIONS else parse_actions([one])
        found.update(dict.fromkeys(map(str, actions)))
    return list(found)


def permissions_of(actions: Iterable[str]) -> list[str]:
    """Return every permission that a role with these actions has, and the actions that none of them stands for."""
    has = set(actions)
    found = [name for name, needed in PERMISSIONS.items() if {str(one) for one in needed} <= has]
    told = {str(one) for name in found for one in PERMISSIONS[name]}
    return [*found, *sorted(has - told)]


def resource_of(scope: str, resource_name: str) -> str:
    """Return the resource that a binding of this scope covers. Raises Invalid if the name is none of that scope."""
    if scope == _SCHEMA:
        return str(ResourcePattern.parse(f"{SUBJECT_PREFIX}{resource_name}"))
    if scope not in _SCOPES:
        raise Invalid(f"scope {scope!r} means nothing here: use {', '.join(_SCOPES)} or {_SCHEMA}")
    if scope == "cluster":
        if resource_name not in ("", CLUSTER):
            raise Invalid(f"the scope 'cluster' has no resource_name, and not {resource_name!r}")
        return CLUSTER
    text = resource_name if resource_name.startswith("/") else f"/{resource_name}"
    pattern = ResourcePattern.parse(text)
    if pattern.text == CLUSTER or _SCOPES[pattern.depth] != scope:
        example = "/NAMESPACE" + "/TOPIC" * (scope != "namespace") + "/SUBSCRIPTION" * (scope == "subscription")
        raise Invalid(f"{resource_name!r} names no {scope}: write {example}")
    return str(pattern)


def scope_of(resource: ResourcePattern) -> Scope:
    """Return what a binding covers in Danube's words."""
    if resource.is_subject:
        return Scope(_SCHEMA, resource.text.removeprefix(SUBJECT_PREFIX))
    return Scope(_SCOPES[resource.depth], "" if resource.text == CLUSTER else resource.text)
