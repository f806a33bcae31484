"""Several brokers' memories of one metadata store, in one process: each has its own follower, which a test can hold."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

from pydanube.broker.registry import records
from pydanube.broker.registry.records import NamespaceRecord, TopicRecord
from pydanube.broker.registry.registry import Registry
from pydanube.metadata.embedded import EmbeddedStore
from pydanube.metadata.packing import unpack, version_of
from pydanube.metadata.store import Event, KeyValue, MetadataStore, Put, list_all
from pydanube.model.errors import DanubeError, Unavailable
from pydanube.model.failure import NATIVE
from pydanube.model.names import TopicName
from pydanube.model.topics import SubscriptionType, TopicConfig
from pydanube.runtime.clock import SystemClock


class HeldStore:
    """One broker's view of a real store. A test can hold its watch, cut it, and act right after a list was read."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._cuts = 0
        self.watches: list[int] = []
        """The revisions from which it was watched."""
        self.after_list: Callable[[str], Awaitable[None]] | None = None

    @property
    def view(self) -> MetadataStore:
        return cast(MetadataStore, self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def hold(self) -> None:
        """Show no more events until `release`."""
        self._flowing.clear()

    def release(self) -> None:
        self._flowing.set()

    def cut(self) -> None:
        """Let the watch fail with its next event, as if the store were away."""
        self._cuts += 1

    async def watch(self, prefix: str, from_revision: int) -> AsyncIterator[Event]:
        self.watches.append(from_revision)
        async for event in self._store.watch(prefix, from_revision):
            await self._flowing.wait()
            if self._cuts:
                self._cuts -= 1
                raise Unavailable("the store is away")
            yield event

    async def list(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> list[KeyValue]:
        found = await self._store.list(prefix, start_after=start_after, limit=limit)
        if self.after_list is not None:
            await self.after_list(prefix)
        return found


class Member:
    """A registry with a follower, on a store that others use too."""

    def __init__(self, store: MetadataStore) -> None:
        self.store = HeldStore(store)
        self._real = store
        self.registry = Registry(self.store.view, SystemClock())
        self.follower = self.registry.follower
        self._running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.registry.load()
        self.run()

    def run(self) -> None:
        self._running = asyncio.get_running_loop().create_task(self.follower.run())

    async def close(self) -> None:
        self.store.release()
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])

    async def catch_up(self) -> None:
        """Wait until everything that is in the store now was applied."""
        written = await self._real.transact([], [Put("/caught-up", b"")])
        async with asyncio.timeout(60):
            await self.follower.reached(written.revision)


@asynccontextmanager
async def open_members(
    directory: Path, count: int, open_store: Callable[[], Awaitable[MetadataStore]] | None = None
) -> AsyncIterator[list[Member]]:
    """Open the registries of so many brokers on one store, which is embedded, or what `open_store` returns."""
    embedded = partial(EmbeddedStore.open, directory / "metadata.db", SystemClock())
    store = await (open_store or embedded)()
    members = [Member(store) for _ in range(count)]
    try:
        for member in members:
            await member.start()
        for member in members:
            await member.catch_up()
        yield members
    finally:
        for member in members:
            await member.close()
        await store.close()


async def check_equal(members: list[Member]) -> None:
    """Check that the memory of every broker is what the store has."""
    store = members[0].store
    namespaces = {one.key: one.value async for one in list_all(store.view, records.NAMESPACES)}
    topics = {records.topic_of_key(one.key): one async for one in list_all(store.view, records.TOPICS)}
    subscriptions = {one.key: one async for one in list_all(store.view, records.SUBSCRIPTIONS)}
    for member in members:
        await member.catch_up()
        registry = member.registry
        assert registry.namespaces() == sorted(key.removeprefix(records.NAMESPACES) for key in namespaces)
        for key, value in namespaces.items():
            assert registry.namespace(key.removeprefix(records.NAMESPACES)) == unpack(value, NamespaceRecord)
        assert registry.topics() == sorted(topics)
        for name, entry in topics.items():
            assert registry.topic(name) == unpack(entry.value, TopicRecord)
            assert registry._topic_table.keys.revisions[entry.key] == entry.mod_revision
        held = {
            records.subscription_key(topic_id, name): version_of(record)
            for topic_id, its in registry._subscriptions.items()
            for name, record in its.items()
        }
        assert held == {
            key: version_of(unpack(one.value, records.SubscriptionRecord)) for key, one in subscriptions.items()
        }
        assert not member.follower._removed or max(member.follower._removed.values()) >= member.follower.revision


async def _act(chance: random.Random, member: Member) -> None:
    """Do one random operation; that it is refused is no failure."""
    registry = member.registry
    namespace = chance.choice(["default", "shop"])
    topic = TopicName(namespace, chance.choice(["a", "b"]))
    name = chance.choice(["s", "t"])
    match chance.randrange(12):
        case 0:
            await registry.create_namespace(namespace)
        case 1:
            await registry.delete_namespace(namespace)
        case 2 | 3 | 4:
            await registry.create_topic(topic, TopicConfig(1))
        case 5:
            record = await registry.delete_topic(topic)
            await registry.clean_up(record.topic_id)
        case 6:
            await registry.set_topic_policies(topic, {"producers_max": chance.randrange(1, 9)})
        case 7:
            await registry.ensure_partitions(topic, chance.randrange(1, 9))
        case 8:
            topic_id = registry.topic(topic).topic_id
            await registry.create_subscription(
                topic, topic_id, name, SubscriptionType.SHARED, [0], NATIVE, chance.choice([0, 1, 2])
            )
        case 9:
            await registry.change_subscription(topic, name, unacked_max=chance.randrange(9))
        case 10:
            await registry.delete_subscription(topic, name)
        case 11:
            await registry.set_namespace_policies(namespace, {"producers_max": chance.randrange(1, 9)})


async def act_at_random(seed: int, members: list[Member], rounds: int) -> None:
    """Do random operations, many at once, while some followers are held and events are compacted."""
    chance = random.Random(seed)
    for _ in range(rounds):
        for member in members:
            if chance.random() < 0.3:
                member.store.hold()
            else:
                member.store.release()
        calls = [_act(chance, chance.choice(members)) for _ in range(12)]
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            assert outcome is None or isinstance(outcome, DanubeError), f"seed {seed}: {outcome!r}"
        if chance.random() < 0.2:
            await members[0].store.compact(await members[0].store.revision())
    for member in members:
        member.store.release()
