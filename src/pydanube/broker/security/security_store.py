"""The roles, bindings and API keys of the cluster: in memory on every broker, changed by comparing in the metadata.

Invariants
    what is in memory was stored; a change is in force on this broker when the call that made it returns
    the rules know a role or binding exactly while it is stored
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from pydanube.core.access import Action
from pydanube.core.access_rules import AccessRules
from pydanube.metadata.following import Follower
from pydanube.metadata.record_table import named_table
from pydanube.metadata.store import Compare, MetadataStore, Put
from pydanube.metadata.writes import Outrun, write_surely
from pydanube.model.security import SUBJECT_PREFIX, Binding, ResourcePattern
from pydanube.runtime.clock import Clock

from .records import BINDINGS, FIRST_KEY, KEYS, ROLES, BindingRecord, KeyRecord, RoleRecord


class SecurityStore:
    """What the metadata says about access. Changes are made in the tables."""

    def __init__(self, store: MetadataStore, clock: Clock, rules: AccessRules) -> None:
        """`rules` is kept in agreement with the roles and bindings that are stored."""
        self._store = store
        self._clock = clock
        self._rules = rules
        self.roles: dict[str, RoleRecord] = {}
        self.bindings: dict[str, Binding] = {}
        self.binding_counts: Counter[str] = Counter()
        """By namespace (`schema:` for subjects), and by namespace and the principal that made them: `binding_users`."""
        self._binding_users: dict[str, tuple[str, str]] = {}
        self.keys: dict[str, KeyRecord] = {}
        self.on_key_ended: Callable[[str], None] = lambda _key_id: None
        """Called with the id of an API key that was revoked or changed."""

        self.role_table = named_table(store, clock, RoleRecord, ROLES, self._take_role, "role")
        self.binding_table = named_table(store, clock, BindingRecord, BINDINGS, self._take_binding, "binding")
        self.key_table = named_table(store, clock, KeyRecord, KEYS, self._take_key, "API key")
        """A key that is deleted is revoked: nothing is accepted with it any more, and its sessions are ended."""
        self._tables = self.role_table, self.binding_table, self.key_table

    def follow(self, follower: Follower) -> None:
        """Learn by the follower what other brokers change."""
        for table in self._tables:
            table.follow(follower)

    async def load(self) -> None:
        """Read everything. Raises what the store raises, and Corrupt for a record that cannot be read."""
        for table in self._tables:
            await table.load()

    async def find_role(self, name: str) -> RoleRecord | None:
        """Return a role; None: there is none. In a cluster the store is asked before that is said, here and below."""
        await self.role_table.ask(name)
        return self.roles.get(name)

    async def find_binding(self, binding_id: str) -> Binding | None:
        await self.binding_table.ask(binding_id)
        return self.bindings.get(binding_id)

    async def find_key(self, key_id: str) -> KeyRecord | None:
        await self.key_table.ask(key_id)
        return self.keys.get(key_id)

    async def needs_first_key(self) -> bool:
        """Return whether no API key was ever stored. If there are keys, that is noted for the time when there are none
        any more."""
        if await self._store.get(FIRST_KEY) is not None:
            return False
        if self.keys:
            with suppress(Outrun):
                await write_surely(self._store, self._clock, [Compare.missing(FIRST_KEY)], [Put(FIRST_KEY, b"")])
        return not self.keys

    async def create_first_key(self, key_id: str, record: KeyRecord) -> bool:
        """Store the first API key, and that there was one; return False if another broker has done so."""
        is_first, note = Compare.missing(FIRST_KEY), Put(FIRST_KEY, key_id.encode())
        try:
            await self.key_table.put(key_id, record, None, [is_first], [note])
        except Outrun:
            return False
        return True

    def _take_role(self, name: str, record: RoleRecord | None) -> None:
        if record is None:
            self.roles.pop(name, None)
            self._rules.set_role(name, None)
            return
        self.roles[name] = record
        known = [one for one in Action if one.value in record.actions]  # a later release may know more actions
        self._rules.set_role(name, known)

    def _take_binding(self, binding_id: str, record: BindingRecord | None) -> None:
        binding = None if record is None else record.binding(binding_id)
        for user in self._binding_users.pop(binding_id, ()):
            self.binding_counts[user] -= 1
            if not self.binding_counts[user]:
                del self.binding_counts[user]
        if record is None or binding is None:
            self.bindings.pop(binding_id, None)
        else:
            self.bindings[binding_id] = binding
            users = self._binding_users[binding_id] = binding_users(binding.resource, record.created_by)
            self.binding_counts.update(users)
        self._rules.set_binding(binding_id, binding)

    def _take_key(self, key_id: str, record: KeyRecord | None) -> None:
        former = self.keys.pop(key_id, None)
        if record is not None:
            self.keys[key_id] = record
        if former is not None and former != record:
            self.on_key_ended(key_id)


def binding_users(where: ResourcePattern, creator: str) -> tuple[str, str]:
    """Return whose share a binding takes that this principal makes: that of a namespace, or of all subjects, and that
    of the principal there."""
    if where.is_subject:
        shared = SUBJECT_PREFIX
    else:
        shared = where.text[: where.text.find("/", 1)] if where.depth > 1 else where.text
    return shared, f"{shared} {creator}"
