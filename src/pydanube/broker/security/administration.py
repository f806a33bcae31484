"""Administration of access: roles, bindings and API keys, and the questions who one is and what one may do.

```
 roles       need ADMINISTER on the cluster
 bindings    need ADMINISTER on what they cover: who administers a namespace gives and takes rights in it
 API keys    need ADMINISTER on the cluster, but everybody lists, makes and revokes keys of its own
```

Invariants
    nobody gives what they do not have: the actions of a role that is made or changed are the caller's on the cluster,
    those of the roles of a binding are the caller's on all that the binding covers, and a key for somebody else, or
    with groups that the caller is not in, can do no more to the cluster than the caller
    built-in roles are never changed
    the secret of a key is returned once, by the call that makes it
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from pydanube.broker.security.visibility import hide
from pydanube.core.access import BROKER, Action, Principal
from pydanube.core.access_rules import BUILT_IN_ROLES, actions_of, built_in_roles, parse_actions
from pydanube.core.identity import NOBODY, Identity
from pydanube.metadata.packing import version_of
from pydanube.model.errors import AlreadyExists, Denied, Full, Invalid, NotFound, Refused
from pydanube.model.limits import (
    API_KEYS_MAX,
    API_KEYS_PER_PRINCIPAL_MAX,
    BINDINGS_MAX,
    BINDINGS_PER_NAMESPACE_MAX,
    ROLES_MAX,
)
from pydanube.model.security import (
    CLUSTER,
    GROUP,
    AccessAnswer,
    Binding,
    BoundSubject,
    CallerIdentity,
    NewApiKey,
    ResourcePattern,
    Role,
    check_comment,
    check_groups,
    check_role_names,
    parse_binding_id,
    parse_key_id,
    parse_role_name,
)
from pydanube.operations.access import BindingsListed, KeysListed
from pydanube.runtime.budget import fits_share
from pydanube.runtime.clock import Clock
from pydanube.runtime.randomness import identity

from .api_keys import new_key
from .audit_operations import note_change, note_check, note_detail
from .records import BindingRecord, RoleRecord
from .security import SecurityParts
from .security_store import binding_users

PAGE_MAX: Final = 500
"""The most bindings or API keys of one page. A listener whose answers have a limit may cut it shorter."""

NAMESPACE_ADMIN: Final = "namespace-admin"
_BINDING_ID_CHARACTERS: Final = 16


class AccessAdministration:
    """Who may do what, as callers see and change it. A part of the facade."""

    def __init__(self, parts: SecurityParts | None, clock: Clock) -> None:
        """Without `parts` there is no authentication: only `whoami` and `can` have an answer."""
        self._parts = parts
        self._clock = clock

    # -- roles ---------------------------------------------------------------------------------------------------------

    def list_roles(self, principal: Principal) -> list[Role]:
        """Return all roles, the built-in ones first."""
        parts = self._administered(principal)
        return [*built_in_roles(), *(_role(name, parts.store.roles[name]) for name in sorted(parts.store.roles))]

    async def get_role(self, principal: Principal, name: str) -> Role:
        parts = self._administered(principal)
        note_detail(f"role {name}")
        for one in built_in_roles():
            if one.name == name:
                return one
        record = await parts.store.find_role(parse_role_name(name))
        if record is None:
            raise _no_role(name)
        return _role(name, record)

    async def create_role(self, principal: Principal, name: str, actions: Sequence[str]) -> Role:
        """Make a role of actions. Raises AlreadyExists, also for the name of a built-in role."""
        parts = self._administered(principal)
        note_detail(f"role {name}: {', '.join(actions)}")
        if name in BUILT_IN_ROLES:
            raise AlreadyExists(f"role {name!r} exists: it is built in, so choose another name")
        record = self._checked_role(parts, principal, name, actions)
        if len(parts.store.roles) >= ROLES_MAX:
            raise Full(f"there are {ROLES_MAX} roles, which is the most: delete one that no binding has")
        await parts.store.role_table.create(name, record)
        return _role(name, record)

    async def change_role(self, principal: Principal, name: str, actions: Sequence[str], expected: str = "") -> Role:
        """Replace the actions of a role, which is in force at once for everybody who has it.

        Raises Conflict if the role does not have the version `expected`; empty: any.
        """
        parts = self._administered(principal)
        note_detail(f"role {name}: {', '.join(actions)}")
        record = self._checked_role(parts, principal, name, actions)

        def change(former: RoleRecord) -> RoleRecord:
            return RoleRecord(record.actions, former.created_at)

        return _role(name, (await parts.store.role_table.change(name, change, expected)).record)

    async def delete_role(self, principal: Principal, name: str, expected: str = "") -> None:
        """Delete a role that no binding has. `expected` as in `change_role`."""
        parts = self._administered(principal)
        note_detail(f"role {name}")
        _check_not_built_in(name)
        parse_role_name(name)
        if users := [one.id for one in parts.store.bindings.values() if name in one.roles]:
            raise Refused(
                f"role {name!r} is in {len(users)} bindings, for example {min(users)!r}: delete them before the role"
            )
        await parts.store.role_table.delete(name, expected)

    def _checked_role(
        self, parts: SecurityParts, principal: Principal, name: str, actions: Sequence[str]
    ) -> RoleRecord:
        _check_not_built_in(name)
        parse_role_name(name)
        chosen = parse_actions(actions)
        if not chosen:
            raise Invalid(f"role {name!r} needs at least one action: use {', '.join(map(str, Action))}")
        lacking = sum(one.bit for one in chosen) & ~parts.rules.allowed(principal, BROKER)
        if lacking:
            raise Denied(
                f"{principal.id} may not {_words(lacking)} the cluster, so it cannot make a role that may: "
                f"ask somebody who has the role admin"
            )
        return RoleRecord([str(one) for one in chosen], self._clock.now_us())

    # -- bindings ------------------------------------------------------------------------------------------------------

    def list_bindings(
        self, principal: Principal, subject: str = "", resource: str = "", after: str = "", limit: int = PAGE_MAX
    ) -> BindingsListed:
        """Return a page of the bindings that the caller may delete, and of its own, in order of their ids.

        subject     only those of this subject, for example `group:ops`; empty: of all
        resource    only those whose pattern is written so, for example `/default`; empty: all
        """
        parts = self._secured()
        wanted = BoundSubject.parse(subject) if subject else None
        pattern = ResourcePattern.parse(resource) if resource else None
        found = [
            one
            for one in parts.store.bindings.values()
            if (wanted is None or one.subject == wanted)
            and (pattern is None or one.resource == pattern)
            and self._shows(parts, principal, one)
        ]
        found.sort(key=lambda one: one.id)
        page, more = _page([one.id for one in found], after, limit)
        return BindingsListed(found[page], more)

    async def get_binding(self, principal: Principal, binding_id: str) -> Binding:
        """Return a binding that the caller may delete, or that is its own."""
        parts = self._secured()
        found = await parts.store.find_binding(parse_binding_id(binding_id))
        if found is None or not self._shows(parts, principal, found):
            raise _no_binding(principal, binding_id, found)
        if str(found.subject) not in principal.subjects():
            _check_administers(parts, principal, found.resource)
            note_detail(_in_words(found))
        return found

    async def create_binding(
        self, principal: Principal, subject: str, roles: Sequence[str], resource: str, binding_id: str = ""
    ) -> Binding:
        """Give roles to a subject, for all that a pattern covers; without an id, one is made.

        Raises AlreadyExists if there is a binding of this id, and Denied if the caller does not administer all that the
        pattern covers, if the roles allow something there that the caller may not do, or if the id is not the caller's
        to choose: see `_check_id`.
        """
        parts = self._secured()
        chosen = tuple(dict.fromkeys(roles))
        check_role_names(chosen)
        who, where = BoundSubject.parse(subject), ResourcePattern.parse(resource)
        name = parse_binding_id(binding_id) if binding_id else identity()[:_BINDING_ID_CHARACTERS]
        _check_administers(parts, principal, where)
        note_detail(_in_words(made := Binding(name, who, chosen, where)))
        _check_may_give(parts, principal, chosen, where)
        if len(parts.store.bindings) >= BINDINGS_MAX:
            raise Full(f"there are {BINDINGS_MAX} bindings, which is the most: bind groups, or use wildcards")
        if not parts.rules.allows(principal, Action.ADMINISTER, BROKER):
            if binding_id:
                _check_id(parts, principal, where, binding_id)
            _check_share(parts, principal, where)
        record = BindingRecord(str(who), list(chosen), str(where), self._clock.now_us(), principal.id)
        await parts.store.binding_table.create(name, record)
        return made

    async def delete_binding(self, principal: Principal, binding_id: str) -> None:
        """Take away what a binding gives; it is in force at once."""
        parts = self._secured()
        found = await parts.store.find_binding(parse_binding_id(binding_id))
        if found is None or not self._shows(parts, principal, found):
            raise _no_binding(principal, binding_id, found)
        _check_administers(parts, principal, found.resource)
        note_detail(_in_words(found))
        await parts.store.binding_table.delete(binding_id)

    def _shows(self, parts: SecurityParts, principal: Principal, binding: Binding) -> bool:
        is_own = str(binding.subject) in principal.subjects()
        return is_own or bool(parts.rules.allowed_on(principal, binding.resource) & Action.ADMINISTER.bit)

    # -- API keys ------------------------------------------------------------------------------------------------------

    def list_keys(self, principal: Principal, of: str = "", after: str = "", limit: int = PAGE_MAX) -> KeysListed:
        """Return a page of the API keys of a principal, `type:name`; without one all, or the caller's own if it does
        not administer the cluster."""
        parts = self._secured()
        wanted = str(BoundSubject.parse(of)) if of else ""
        if wanted != principal.id and not parts.rules.allows(principal, Action.ADMINISTER, BROKER):
            if wanted:
                _check(parts, principal)
            wanted = principal.id
        ids = sorted(key_id for key_id, one in parts.store.keys.items() if not wanted or one.principal == wanted)
        page, more = _page(ids, after, limit)
        return KeysListed([parts.store.keys[key_id].api_key(key_id) for key_id in ids[page]], more)

    async def create_key(
        self, principal: Principal, of: str = "", groups: Sequence[str] = (), expires_at: int = 0, comment: str = ""
    ) -> NewApiKey:
        """Make an API key and return it with its secret, which is stored nowhere.

        of          whose key it is, `type:name`; empty: the caller's own
        groups      the groups that a caller with this key is in
        expires_at  when it ends, in microseconds since 1970; 0: never
        """
        parts = self._secured()
        who, chosen = BoundSubject.parse(of or principal.id), tuple(dict.fromkeys(groups))
        if who.type == GROUP:
            raise Invalid(f"{who} is a group, which has no keys: make one for a user or a service_account")
        check_groups(chosen)
        check_comment(comment)
        self._check_may_make_key(parts, principal, who, chosen)
        now = self._clock.now_us()
        if expires_at < 0 or 0 < expires_at <= now:
            raise Invalid("the key would have ended already: choose a time in the future, or none")
        self._check_keys_left(parts, str(who))
        made, record = new_key(who, now, groups=chosen, expires_at=expires_at, comment=comment)
        note_detail(f"API key {made.key.id} of {who}")
        await parts.store.key_table.create(made.key.id, record)
        return made

    async def revoke_key(self, principal: Principal, key_id: str) -> None:
        """Make an API key worthless at once, here and by the watch elsewhere; sessions that it opened end."""
        parts = self._secured()
        found = await parts.store.find_key(parse_key_id(key_id))
        if found is None or found.principal != principal.id:
            _check(parts, principal)
        else:
            note_change(Action.DELETE, BROKER, is_security=True)
        note_detail(f"API key {key_id}" if found is None else f"API key {key_id} of {found.principal}")
        if found is None:
            raise NotFound(f"there is no API key {key_id!r}")
        await parts.store.key_table.delete(key_id)

    def _check_may_make_key(
        self, parts: SecurityParts, principal: Principal, who: BoundSubject, groups: tuple[str, ...]
    ) -> None:
        note_detail(f"API key of {who}")
        if str(who) == principal.id and set(groups) <= set(principal.groups):
            note_change(Action.CREATE, BROKER, is_security=True)
            return
        _check(parts, principal)
        lacking = parts.rules.allowed(Principal(who.name, who.type, groups), BROKER)
        lacking &= ~parts.rules.allowed(principal, BROKER)
        if lacking:
            raise Denied(
                f"{principal.id} may not {_words(lacking)} the cluster, so it cannot make a key that may: "
                f"ask somebody who has the role admin"
            )

    def _check_keys_left(self, parts: SecurityParts, who: str) -> None:
        if len(parts.store.keys) >= API_KEYS_MAX:
            raise Full(f"there are {API_KEYS_MAX} API keys, which is the most: revoke those that nobody uses")
        if sum(one.principal == who for one in parts.store.keys.values()) >= API_KEYS_PER_PRINCIPAL_MAX:
            raise Full(f"{who} has {API_KEYS_PER_PRINCIPAL_MAX} API keys, which is the most: revoke one")

    # -- questions -----------------------------------------------------------------------------------------------------

    def whoami(self, principal: Principal, caller: Identity = NOBODY) -> CallerIdentity:
        """Return who the caller is, and its bindings. `caller`: how the listener has established that."""
        if self._parts is None:
            return CallerIdentity(principal.id, principal.groups, authentication=False)
        rules = self._parts.rules
        return CallerIdentity(
            principal.id,
            principal.groups,
            caller.method,
            caller.expires_at_us,
            rules.is_super_user(principal),
            tuple(sorted(rules.bindings_of(principal), key=lambda one: one.id)),
        )

    def can(
        self, principal: Principal, action: str, resource: str, for_principal: str = "", groups: Sequence[str] = ()
    ) -> AccessAnswer:
        """Return whether the caller, or `for_principal` as a member of `groups`, may do an action to a resource, or to
        all that a pattern covers, and why. Asking for others needs ADMINISTER on the cluster."""
        (wanted,), pattern = parse_actions([action]), ResourcePattern.parse(resource)
        who = self._asked_about(principal, for_principal, groups)
        answer = AccessAnswer(True, who.id, str(wanted), str(pattern), "")
        if self._parts is None:
            return _because(answer, "this broker has no authentication: everybody may do everything")
        if who != principal:
            note_check(Action.ADMINISTER, BROKER)
            self._parts.rules.check(principal, Action.ADMINISTER, BROKER)
        return _explained(self._parts, answer, who, wanted, pattern)

    def _asked_about(self, principal: Principal, for_principal: str, groups: Sequence[str]) -> Principal:
        check_groups(groups)
        if not for_principal:
            return Principal(principal.name, principal.type, (*principal.groups, *groups)) if groups else principal
        who = BoundSubject.parse(for_principal)
        if str(who) == principal.id and not groups:
            return principal
        return Principal(who.name, who.type, tuple(groups))

    # -- what all of them ask ------------------------------------------------------------------------------------------

    def _secured(self) -> SecurityParts:
        if self._parts is None:
            raise Refused(
                "this broker has no authentication, so roles, bindings and API keys would have no effect: "
                "set auth.enabled = true and start it again"
            )
        return self._parts

    def _administered(self, principal: Principal) -> SecurityParts:
        parts = self._secured()
        _check(parts, principal)
        return parts


def _role(name: str, record: RoleRecord) -> Role:
    return Role(name, tuple(record.actions), version=version_of(record))


def _no_role(name: str) -> NotFound:
    return NotFound(f"there is no role {name!r}: 'danube auth roles list' shows those that there are")


def _check_id(parts: SecurityParts, principal: Principal, where: ResourcePattern, binding_id: str) -> None:
    """Raise Denied unless somebody who does not administer the cluster may choose this id.

    Ids are one space for all tenants, and AlreadyExists tells that there is a binding. So an id of another namespace is
    refused, whether it is taken or not: `NAMESPACE.WORD` is for those who administer all of the namespace.
    """
    namespace, _, word = binding_id.rpartition(".")
    within = where.text == f"/{namespace}" or where.text.startswith(f"/{namespace}/")
    if within and word and parts.rules.allows(principal, Action.ADMINISTER, f"/{namespace}"):
        return
    raise Denied(
        f"{principal.id} may not choose the id {binding_id!r} for a binding on {where}: leave it out, or use the "
        f"namespace, a dot and a word without a dot, as in 'default.etl', if you administer that namespace"
    )


def _check_share(parts: SecurityParts, principal: Principal, where: ResourcePattern) -> None:
    """Raise Full if the namespace of the pattern has as many bindings as those who administer only that may make, or
    the principal as many of these as are left for others."""
    shared, own = binding_users(where, principal.id)
    counts, free = parts.store.binding_counts, BINDINGS_MAX - len(parts.store.bindings)
    left = min(BINDINGS_PER_NAMESPACE_MAX, free) - counts[shared]
    if left > 0 and fits_share(counts[own], 1, left):
        return
    what = "the schema registry" if where.is_subject else f"namespace {shared}"
    advice = "bind groups, use wildcards, or ask somebody who administers the cluster"
    if left <= 0:
        raise Full(
            f"{what} has {counts[shared]} bindings, which is the most that its administrators may make: {advice}"
        )
    raise Full(
        f"{principal.id} has made {counts[own]} bindings in {what}, and the {left} left are for others: {advice}"
    )


def _no_binding(principal: Principal, binding_id: str, hidden: Binding | None) -> NotFound:
    """Return the error for a binding that there is not, or that the caller may not see."""
    if hidden is not None:
        hide(principal, Action.ADMINISTER, str(hidden.resource))
    return NotFound(f"there is no binding {binding_id!r}")


def _check_not_built_in(name: str) -> None:
    if name in BUILT_IN_ROLES:
        raise Refused(f"role {name!r} is built in and never changes: make one of another name")


def _in_words(binding: Binding) -> str:
    return f"binding {binding.id}: {', '.join(binding.roles)} to {binding.subject} on {binding.resource}"


def _check(parts: SecurityParts, principal: Principal) -> None:
    """Raise Denied unless the principal may administer the cluster."""
    note_check(Action.ADMINISTER, BROKER)
    parts.rules.check(principal, Action.ADMINISTER, BROKER)
    note_change(Action.ADMINISTER, BROKER, is_security=True)


def _check_administers(parts: SecurityParts, principal: Principal, where: ResourcePattern) -> None:
    note_check(Action.ADMINISTER, str(where))
    if not parts.rules.allowed_on(principal, where) & Action.ADMINISTER.bit:
        covered = "the cluster" if where.text == CLUSTER else f"all of {where}"
        raise Denied(
            f"{principal.id} may not administer {covered}, which the binding is about: ask for a role that may"
        )
    note_change(Action.ADMINISTER, str(where), is_security=True)


def _check_may_give(parts: SecurityParts, principal: Principal, roles: Sequence[str], where: ResourcePattern) -> None:
    if NAMESPACE_ADMIN in roles and where.text == CLUSTER:
        raise Refused(f"{NAMESPACE_ADMIN!r} is for namespaces: bind it to /NAMESPACE, or bind 'admin' to /")
    given = 0
    for role in roles:
        actions = parts.rules.role_actions(role)
        if actions is None:
            raise _no_role(role)
        given |= actions
    if lacking := given & ~parts.rules.allowed_on(principal, where):
        raise Denied(
            f"{principal.id} may not {_words(lacking)} all of {where}, so it cannot give a role that may: "
            f"ask somebody who has more rights there"
        )


def _words(actions: int) -> str:
    return " or ".join(str(one) for one in actions_of(actions))


def _page(ids: Sequence[str], after: str, limit: int) -> tuple[slice, str]:
    """Return which of the sorted ids are on the page after `after`, and the `after` of the next page."""
    if not 0 < limit <= PAGE_MAX:
        raise Invalid(f"limit={limit} is out of range: use 1 to {PAGE_MAX}")
    start = bisect_right(ids, after) if after else 0
    end = start + limit
    return slice(start, end), ids[end - 1] if end < len(ids) else ""


def _because(answer: AccessAnswer, reason: str, binding: str = "", role: str = "") -> AccessAnswer:
    return AccessAnswer(answer.allowed, answer.principal, answer.action, answer.resource, reason, binding, role)


def _explained(
    parts: SecurityParts, asked: AccessAnswer, who: Principal, action: Action, pattern: ResourcePattern
) -> AccessAnswer:
    if parts.rules.is_super_user(who):
        return _because(asked, f"{who.id} is a super user, which may do everything")
    grant = parts.rules.explain(who, action, pattern)
    if grant is not None:
        binding, role = grant
        reason = f"binding {binding.id!r} gives {binding.subject} the role {role!r} on {binding.resource}"
        return _because(asked, reason, binding.id, role)
    of = f"{who.id} or its groups ({', '.join(who.groups)})" if who.groups else who.id
    refused = AccessAnswer(False, asked.principal, asked.action, asked.resource, "")
    return _because(refused, f"no binding of {of} gives a role with {action} on {pattern}")
