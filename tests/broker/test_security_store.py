"""Roles, bindings and API keys in the metadata: in force here at once, on others by the watch, and after a restart."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pydanube.broker.security.records import BindingRecord, KeyRecord, RoleRecord
from pydanube.broker.security.security_store import SecurityStore
from pydanube.core.access import Action, Principal
from pydanube.core.access_rules import AccessRules
from pydanube.metadata.embedded import EmbeddedStore
from pydanube.metadata.following import Follower
from pydanube.metadata.store import MetadataStore
from pydanube.model.errors import AlreadyExists, NotFound
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.tasks import Tasks

ALICE = Principal("alice")
ORDERS = "/default/orders"
BINDING = BindingRecord("user:alice", ["loader"], "/default")
KEY = KeyRecord("user:alice", b"hash")


@asynccontextmanager
async def metadata(directory: Path) -> AsyncIterator[MetadataStore]:
    store = await EmbeddedStore.open(directory / "metadata.db", SystemClock())
    try:
        yield store
    finally:
        await store.close()


async def opened(store: MetadataStore) -> tuple[SecurityStore, AccessRules]:
    rules = AccessRules()
    access = SecurityStore(store, SystemClock(), rules)
    await access.load()
    return access, rules


async def test_what_was_stored_is_in_force_after_a_restart(tmp_path: Path) -> None:
    async with metadata(tmp_path) as store:
        access, rules = await opened(store)
        await access.role_table.create("loader", RoleRecord(["produce", "an action of a later release"]))
        await access.binding_table.create("b1", BINDING)
        await access.key_table.create("k1", KEY)
        assert rules.allows(ALICE, Action.PRODUCE, ORDERS)
    async with metadata(tmp_path) as store:
        access, rules = await opened(store)
        assert rules.allows(ALICE, Action.PRODUCE, ORDERS)
        assert not rules.allows(ALICE, Action.CONSUME, ORDERS)
        assert list(access.keys) == ["k1"] and access.keys["k1"] == KEY
        await access.role_table.delete("loader")
        await access.key_table.delete("k1")
        assert not rules.allows(ALICE, Action.PRODUCE, ORDERS)
    async with metadata(tmp_path) as store:
        access, rules = await opened(store)
        assert not access.roles and not access.keys and list(access.bindings) == ["b1"]
        assert not rules.allows(ALICE, Action.PRODUCE, ORDERS)


async def test_what_exists_is_not_made_twice_and_what_does_not_is_not_changed(tmp_path: Path) -> None:
    async with metadata(tmp_path) as store:
        access, _ = await opened(store)
        await access.role_table.create("loader", RoleRecord(["produce"]))
        with pytest.raises(AlreadyExists, match="role 'loader' exists"):
            await access.role_table.create("loader", RoleRecord(["read"]))
        with pytest.raises(NotFound, match="there is no role 'reader2'"):
            await access.role_table.change("reader2", lambda _: RoleRecord(["read"]))
        with pytest.raises(NotFound, match="there is no binding 'b1'"):
            await access.binding_table.delete("b1")


async def test_other_brokers_follow_every_change(tmp_path: Path) -> None:
    async with metadata(tmp_path) as store:
        first, _ = await opened(store)
        follower, rules, ended = Follower(store, SystemClock()), AccessRules(), []
        second = SecurityStore(store, SystemClock(), rules)
        second.on_key_ended = ended.append
        second.follow(follower)
        await follower.start()
        await second.load()
        tasks = Tasks()
        tasks.spawn(follower.run(), "following")
        await first.role_table.create("loader", RoleRecord(["read"]))
        await first.binding_table.create("b1", BINDING)
        await first.key_table.create("k1", KEY)
        await first.role_table.change("loader", lambda _: RoleRecord(["produce"]))
        await follower.reached(await store.revision())
        assert rules.allows(ALICE, Action.PRODUCE, ORDERS) and not rules.allows(ALICE, Action.READ, ORDERS)
        assert list(second.keys) == ["k1"] and not ended
        await first.binding_table.delete("b1")
        await first.key_table.delete("k1")
        await follower.reached(await store.revision())
        assert not rules.allows(ALICE, Action.PRODUCE, ORDERS)
        assert ended == ["k1"] and not second.keys
        await tasks.close()
