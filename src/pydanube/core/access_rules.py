"""Decides by roles and bindings what a principal may do.

```
 binding:  user:alice  has the role  producer  on  /default/orders-*
 role:     producer    is            produce, describe
```

Invariants
    what no binding allows is denied
    the bindings of a principal and of its groups add up; none takes away what another gives
    a binding of an unknown role gives nothing
    every action on a resource includes describing it, and describing the topic of a subscription: callers that may use
    a topic can look it up
    brokers of the cluster and super users may do everything
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pydanube.model.errors import Denied, Invalid
from pydanube.model.security import CLUSTER, SUBJECT_PREFIX, Binding, ResourcePattern, Role

from .access import Action, Principal

ALL_ACTIONS: Final = sum(one.bit for one in Action)

BUILT_IN_ROLES: Final[Mapping[str, tuple[Action, ...]]] = {
    "admin": tuple(Action),
    "namespace-admin": tuple(Action),
    "producer": (Action.PRODUCE, Action.DESCRIBE),
    "consumer": (Action.CONSUME, Action.READ, Action.DESCRIBE),
    "reader": (Action.READ, Action.DESCRIBE),
    "monitor": (Action.DESCRIBE,),
}

_ANY: Final = "*"
_SUBSCRIPTION_DEPTH: Final = 3

_DECIDED_MAX: Final = 100_000
"""Decisions that are kept; then they are made anew. One takes about 200 bytes."""


def parse_actions(words: Iterable[str]) -> tuple[Action, ...]:
    """Return the actions with these names; raise Invalid, naming all that there are, for an unknown one."""
    known = {one.value: one for one in Action}
    wanted = list(dict.fromkeys(words))
    if unknown := [word for word in wanted if word not in known]:
        raise Invalid(f"{unknown[0]!r} is no action: use {', '.join(known)}")
    return tuple(known[word] for word in wanted)


def built_in_roles() -> list[Role]:
    return [Role(name, tuple(map(str, actions)), built_in=True) for name, actions in BUILT_IN_ROLES.items()]


def actions_of(bits: int) -> list[Action]:
    """Return the actions of a set that is given as bits."""
    return [one for one in Action if one.bit & bits]


class Grant(NamedTuple):
    """The binding, and its role, by which something is allowed."""

    binding: Binding
    role: str


class _Rule:
    """One binding. Its regular expressions are made when they are first needed, and then kept."""

    __slots__ = ("_expression", "_topic_expression", "binding")

    def __init__(self, binding: Binding) -> None:
        self.binding = binding
        self._expression: re.Pattern[str] | None = None
        self._topic_expression: re.Pattern[str] | None = None

    def covers(self, resource: str) -> bool:
        if self._expression is None:
            self._expression = re.compile(self.binding.resource.expression(), re.DOTALL)
        return self._expression.fullmatch(resource) is not None

    def is_below(self, topic: str) -> bool:
        """Return whether the binding is for subscriptions of this topic."""
        if self._topic_expression is None:
            self._topic_expression = re.compile(self.binding.resource.topic_expression())
        return self._topic_expression.fullmatch(topic) is not None


@dataclass(slots=True)
class _Grants:
    """What one subject may do: actions as bits, by resource where that is written out, by rule otherwise."""

    exact: dict[str, int] = field(default_factory=dict)
    wildcards: dict[str, list[tuple[_Rule, int]]] = field(default_factory=dict)
    """By the first name of the pattern, so that the rules of other namespaces are not compared; `*`: it has wildcards
    itself."""
    subscriptions: dict[str, list[_Rule]] = field(default_factory=dict)
    """The rules for subscriptions, by the first name: the subject may describe their topics."""

    def add(self, rule: _Rule, actions: int) -> None:
        pattern = rule.binding.resource
        first = _first_name(pattern.text)
        if pattern.has_wildcard:
            self.wildcards.setdefault(first, []).append((rule, actions))
        else:
            self.exact[pattern.text] = self.exact.get(pattern.text, 0) | actions
        if pattern.depth == _SUBSCRIPTION_DEPTH:
            self.subscriptions.setdefault(first, []).append(rule)

    def on(self, resource: str, covering: Collection[str]) -> int:
        """Return the actions on a resource; `covering`: itself and everything it is below."""
        allowed = 0
        for one in covering:
            allowed |= self.exact.get(one, 0)
        for first in (_first_name(resource), _ANY):
            for rule, actions in self.wildcards.get(first, ()):
                if actions & ~allowed and rule.covers(resource):
                    allowed |= actions
            if not allowed and any(rule.is_below(resource) for rule in self.subscriptions.get(first, ())):
                allowed = Action.DESCRIBE.bit
        return allowed


def _first_name(text: str) -> str:
    """Return the namespace of a resource or pattern, `schema:` for subjects; `*` if it has wildcards."""
    if not text.startswith("/"):
        return SUBJECT_PREFIX
    name = text[1:].partition("/")[0]
    return _ANY if "*" in name or "?" in name else name


class AccessRules:
    """The authorizer of a broker with authentication. Holds all roles and bindings in memory."""

    def __init__(self, super_users: Collection[str] = ()) -> None:
        """`super_users`: principals, as `type:name`, that may do everything."""
        self._super_users = frozenset(super_users)
        self._roles: dict[str, int] = {
            name: sum(one.bit for one in actions) for name, actions in BUILT_IN_ROLES.items()
        }
        self._bindings: dict[str, _Rule] = {}
        self._of_subject: dict[str, dict[str, _Rule]] = {}
        """The bindings of each subject, by their ids."""
        self._grants: dict[str, _Grants] = {}
        """By subject; made of the roles and bindings when it is first needed after a change."""
        self._decided: dict[tuple[Principal, str], int] = {}
        self.on_changed: Callable[[], None] = lambda: None
        """Called after every change, when the new rules are in force."""

    def set_role(self, name: str, actions: Iterable[Action] | None) -> None:
        """Take over a role that was made or changed; None: it is gone."""
        assert name not in BUILT_IN_ROLES, name
        if actions is None:
            self._roles.pop(name, None)
        else:
            self._roles[name] = sum(one.bit for one in set(actions))
        self._grants.clear()
        self._changed()

    def set_binding(self, binding_id: str, binding: Binding | None) -> None:
        """Take over a binding that was made; None: it is gone."""
        former = self._bindings.pop(binding_id, None)
        if former is not None:
            del self._of_subject[str(former.binding.subject)][binding_id]
            self._grants.pop(str(former.binding.subject), None)
        if binding is not None:
            subject = str(binding.subject)
            rule = self._bindings[binding_id] = _Rule(binding)
            self._of_subject.setdefault(subject, {})[binding_id] = rule
            self._grants.pop(subject, None)
        self._changed()

    def allowed(self, principal: Principal, resource: str) -> int:
        """Return the actions that the principal may do to the resource, as bits."""
        key = (principal, resource)
        decided = self._decided.get(key)
        if decided is None:
            if len(self._decided) >= _DECIDED_MAX:
                self._decided.clear()
            decided = self._decided[key] = self._decide(principal, resource)
        return decided

    def allows(self, principal: Principal, action: Action, resource: str) -> bool:
        return bool(self.allowed(principal, resource) & action.bit)

    def check(self, principal: Principal, action: Action, resource: str) -> None:
        if not self.allowed(principal, resource) & action.bit:
            raise Denied(f"{principal.id} may not {action} {_in_words(resource)}: ask for a role that may")

    def is_super_user(self, principal: Principal) -> bool:
        """Return whether the principal may do everything without any binding."""
        return principal.is_broker or principal.id in self._super_users

    def role_actions(self, name: str) -> int | None:
        """Return the actions of a role, as bits; None if there is no such role."""
        return self._roles.get(name)

    def bindings_of(self, principal: Principal) -> list[Binding]:
        """Return the bindings of the principal and of its groups."""
        return [one.binding for subject in principal.subjects() for one in self._of_subject.get(subject, {}).values()]

    def allowed_on(self, principal: Principal, pattern: ResourcePattern) -> int:
        """Return the actions, as bits, that the principal may do to everything that a pattern covers. What several
        bindings only cover together does not count."""
        if not pattern.has_wildcard:
            return self.allowed(principal, pattern.text)
        if self.is_super_user(principal):
            return ALL_ACTIONS
        allowed = 0
        for one in self.bindings_of(principal):
            if one.resource.covers(pattern):
                for role in one.roles:
                    allowed |= self._actions_with_describe(role)
        return allowed

    def explain(self, principal: Principal, action: Action, pattern: ResourcePattern) -> Grant | None:
        """Return a binding that allows the action on all that the pattern covers; None if none does. Super users need
        none."""
        for one in self.bindings_of(principal):
            if one.resource.covers(pattern):
                for role in one.roles:
                    if self._actions_with_describe(role) & action.bit:
                        return Grant(one, role)
        if action is Action.DESCRIBE and not pattern.has_wildcard:
            return self._explain_topic(principal, pattern.text)
        return None

    def _explain_topic(self, principal: Principal, topic: str) -> Grant | None:
        """Return a binding for subscriptions of the topic, which includes describing the topic."""
        for one in self.bindings_of(principal):
            if one.resource.depth == _SUBSCRIPTION_DEPTH and _Rule(one).is_below(topic):
                for role in one.roles:
                    if self._roles.get(role):
                        return Grant(one, role)
        return None

    def _actions_with_describe(self, role: str) -> int:
        actions = self._roles.get(role, 0)
        return actions | Action.DESCRIBE.bit if actions else 0

    def _changed(self) -> None:
        self._decided.clear()
        self.on_changed()

    def _decide(self, principal: Principal, resource: str) -> int:
        if self.is_super_user(principal):
            return ALL_ACTIONS
        covering = _covering(resource)
        allowed = 0
        for subject in principal.subjects():
            if subject in self._of_subject:
                allowed |= self._grants_of(subject).on(resource, covering)
        return allowed

    def _grants_of(self, subject: str) -> _Grants:
        found = self._grants.get(subject)
        if found is None:
            found = self._grants[subject] = _Grants()
            for rule in self._of_subject[subject].values():
                actions = 0
                for role in rule.binding.roles:
                    actions |= self._roles.get(role, 0)
                if actions:
                    found.add(rule, actions | Action.DESCRIBE.bit)
        return found


def _covering(resource: str) -> list[str]:
    """Return the resource, and those that it is below, the cluster first."""
    covering = [CLUSTER]
    if resource == CLUSTER:
        return covering
    if not resource.startswith("/"):
        return [*covering, resource]
    end = resource.find("/", 1)
    while end > 0:
        covering.append(resource[:end])
        end = resource.find("/", end + 1)
    covering.append(resource)
    return covering


def _in_words(resource: str) -> str:
    return "the cluster" if resource == CLUSTER else resource
