"""The roles, bindings and API keys of the cluster: in memory on every broker, changed by comparing in the metadata.

Invariants
    what is in memory was stored; a change is in force on this broker when the call that made it returns
    the rules know a role or binding exactly while it is stored
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import msgspec

from pydanube.core.access import Action
from pydanube.core.access_rules import AccessRules
from pydanube.metadata.following import Follower, KeyMirror
from pydanube.metadata.packing import unpack, version_of
from pydanube.metadata.store import Compare, Delete, MetadataStore, Put
from pydanube.metadata.writing import Outrun, try_again, write_surely
from pydanube.model.errors import AlreadyExists, Conflict, NotFound
from pydanube.model.security import Binding
from pydanube.runtime.clock import Clock

from .records import BINDINGS, FIRST_KEY, KEYS, ROLES, BindingRecord, KeyRecord, RoleRecord


class SecurityStore:
    """What the metadata says about access."""

    def __init__(self, store: MetadataStore, clock: Clock, rules: AccessRules) -> None:
        """`rules` is kept in agreement with the roles and bindings that are stored."""
        self._store = store
        self._clock = clock
        self._rules = rules
        self.roles: dict[str, RoleRecord] = {}
        self.bindings: dict[str, Binding] = {}
        self.keys: dict[str, KeyRecord] = {}
        self.on_key_ended: Callable[[str], None] = lambda _key_id: None
        """Called with the id of an API key that was revoked or changed."""
        self._role_mirror = KeyMirror(ROLES, self._take_role)
        self._binding_mirror = KeyMirror(BINDINGS, self._take_binding)
        self._key_mirror = KeyMirror(KEYS, self._take_key)

    def follow(self, follower: Follower) -> None:
        """Learn by the follower what other brokers change."""
        for mirror in self._mirrors():
            mirror.follow(follower)

    async def load(self) -> None:
        """Read everything. Raises what the store raises, and Corrupt for a record that cannot be read."""
        for mirror in self._mirrors():
            await mirror.load(self._store)

    def _mirrors(self) -> Sequence[KeyMirror]:
        return self._role_mirror, self._binding_mirror, self._key_mirror

    # -- changes; each is durable and in force here on return. Cancelled: it may be done -------------------------------

    async def find_role(self, name: str) -> RoleRecord | None:
        """Return a role; None: there is none. In a cluster the store is asked before that is said, here and below."""
        await self._role_mirror.ask(self._store, ROLES + name)
        return self.roles.get(name)

    async def find_binding(self, binding_id: str) -> Binding | None:
        await self._binding_mirror.ask(self._store, BINDINGS + binding_id)
        return self.bindings.get(binding_id)

    async def find_key(self, key_id: str) -> KeyRecord | None:
        await self._key_mirror.ask(self._store, KEYS + key_id)
        return self.keys.get(key_id)

    async def create_role(self, name: str, record: RoleRecord) -> None:
        await self._create(self._role_mirror, ROLES + name, record, f"role {name!r}")

    async def change_role(self, name: str, record: RoleRecord, expected: str = "") -> None:
        """`expected`: the version that the role must have, or Conflict is raised; empty: any."""
        check = partial(_check_version, expected, f"role {name!r}")
        await self._change(self._role_mirror, ROLES + name, record, f"role {name!r}", check)

    async def delete_role(self, name: str, expected: str = "") -> None:
        check = partial(_check_version, expected, f"role {name!r}")
        await self._delete(self._role_mirror, ROLES + name, f"role {name!r}", check)

    async def create_binding(self, binding_id: str, record: BindingRecord) -> None:
        await self._create(self._binding_mirror, BINDINGS + binding_id, record, f"binding {binding_id!r}")

    async def delete_binding(self, binding_id: str) -> None:
        await self._delete(self._binding_mirror, BINDINGS + binding_id, f"binding {binding_id!r}")

    async def create_key(self, key_id: str, record: KeyRecord) -> None:
        await self._create(self._key_mirror, KEYS + key_id, record, f"API key {key_id!r}")

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
        value = msgspec.msgpack.encode(record)
        writes = [Put(KEYS + key_id, value), Put(FIRST_KEY, key_id.encode())]
        try:
            revision = await write_surely(self._store, self._clock, [Compare.missing(FIRST_KEY)], writes)
        except Outrun:
            return False
        await self._key_mirror.learn_written(self._store, KEYS + key_id, value, revision)
        return True

    async def delete_key(self, key_id: str) -> None:
        """Revoke an API key: nothing is accepted with it any more, and the sessions that it opened are ended."""
        await self._delete(self._key_mirror, KEYS + key_id, f"API key {key_id!r}")

    async def _create(self, mirror: KeyMirror, key: str, record: msgspec.Struct, what: str) -> None:
        value = msgspec.msgpack.encode(record)
        try:
            revision = await write_surely(self._store, self._clock, [Compare.missing(key)], [Put(key, value)])
        except Outrun:
            await mirror.refresh(self._store, key)
            raise AlreadyExists(f"{what} exists") from None
        await mirror.learn_written(self._store, key, value, revision)

    async def _change(
        self, mirror: KeyMirror, key: str, record: msgspec.Struct, what: str, check: Callable[[bytes], None]
    ) -> None:
        value = msgspec.msgpack.encode(record)

        async def attempt() -> None:
            found = await mirror.refresh(self._store, key)
            if found is None:
                raise NotFound(f"there is no {what}")
            check(found.value)
            compare = Compare.mod_revision(key, found.mod_revision)
            revision = await write_surely(self._store, self._clock, [compare], [Put(key, value)])
            await mirror.learn_written(self._store, key, value, revision)

        await try_again(attempt)

    async def _delete(
        self, mirror: KeyMirror, key: str, what: str, check: Callable[[bytes], None] = lambda _stored: None
    ) -> None:
        async def attempt() -> None:
            found = await mirror.refresh(self._store, key)
            if found is None:
                raise NotFound(f"there is no {what}")
            check(found.value)
            compare = Compare.mod_revision(key, found.mod_revision)
            revision = await write_surely(self._store, self._clock, [compare], [Delete(key)])
            await mirror.learn_written(self._store, key, None, revision)

        await try_again(attempt)

    # -- what the mirrors take over ------------------------------------------------------------------------------------

    def _take_role(self, key: str, value: bytes | None) -> None:
        name = key.removeprefix(ROLES)
        if value is None:
            self.roles.pop(name, None)
            self._rules.set_role(name, None)
            return
        record = self.roles[name] = unpack(value, RoleRecord)
        known = [one for one in Action if one.value in record.actions]  # a later release may know more actions
        self._rules.set_role(name, known)

    def _take_binding(self, key: str, value: bytes | None) -> None:
        binding_id = key.removeprefix(BINDINGS)
        binding = None if value is None else unpack(value, BindingRecord).binding(binding_id)
        if binding is None:
            self.bindings.pop(binding_id, None)
        else:
            self.bindings[binding_id] = binding
        self._rules.set_binding(binding_id, binding)

    def _take_key(self, key: str, value: bytes | None) -> None:
        key_id = key.removeprefix(KEYS)
        former = self.keys.pop(key_id, None)
        if value is not None:
            self.keys[key_id] = unpack(value, KeyRecord)
        if former is not None and former != self.keys.get(key_id):
            self.on_key_ended(key_id)


def _check_version(expected: str, what: str, stored: bytes) -> None:
    """Raise Conflict if the role that is stored has another version than the caller expects."""
    if expected and version_of(unpack(stored, RoleRecord)) != expected:
        raise Conflict(f"{what} has changed since it had version {expected[:40]!r}: read it again")
