"""The brokers of a simulated cluster, its metadata store and its object store, in one process and in virtual time.

The brokers are real: registry, membership, placement, partitions, log, slices, uploads, staged writes. Their disks are
in memory, and what lies between them and the stores delays, loses and repeats.
"""

from __future__ import annotations

import asyncio
import random
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, Self, TypeVar

import msgspec
from broker_harness import SETTINGS, TIERING
from two_brokers import _Caller
from virtual_time import SimulatedProcess, VirtualClock, outside

from pydanube.broker import Broker, BrokerParts
from pydanube.broker.cluster.cluster_membership import ClusterMembership
from pydanube.broker.cluster.loads import Loads
from pydanube.broker.cluster.owners import ClusterOwners
from pydanube.broker.cluster.parts import ClusterParts
from pydanube.broker.registry.registry import Registry
from pydanube.codec.native import requests as wire
from pydanube.core.access import AllowAll
from pydanube.gateway.native.requests import perform
from pydanube.metadata.embedded import EmbeddedStore
from pydanube.metadata.store import Event, KeyValue
from pydanube.model.addresses import BrokerAddresses
from pydanube.model.cluster import BrokerSession
from pydanube.model.errors import DanubeError, NotOwner, Unavailable
from pydanube.model.levels import THIS_RELEASE
from pydanube.model.messages import Published
from pydanube.model.names import TopicName
from pydanube.model.replies import InboxAddress, ReplyHead
from pydanube.model.settings.sections import LogSettings
from pydanube.runtime.objects.memory import MemoryStore
from pydanube.runtime.objects.object_store import Buffer, Capabilities, ObjectInfo
from pydanube.runtime.retry import JITTER
from pydanube.runtime.tasks import Tasks
from pydanube.storage.wal import LogWriter, MetadataStamp, NodeIdentity
from simdisk import SimDisk

T = TypeVar("T")
AnswerT = TypeVar("AnswerT", bound=msgspec.Struct)

NAMES: Final = ("a", "b", "c")
SESSION_S: Final = 3
ANSWER_S: Final = 8.0
"""How long a client waits for an answer."""
PATIENCE_S: Final = 300.0
"""How long the healed cluster may need until everything is served, in virtual time."""
DRAIN_S: Final = 10.0
"""How long a broker that stops in order may release its partitions."""


@dataclass
class LineFaults:
    """How the ways to the stores are at the moment; the same for all brokers, but for those that are cut off."""

    chance: random.Random
    objects_delay_s: float = 0.01
    objects_lost: float = 0.0
    """How likely a request to the object store is lost, and how likely its answer."""
    objects_away: bool = False
    metadata_delay_s: float = 0.002
    metadata_lost: float = 0.0
    """How likely a request to the metadata store is lost, and how likely its answer."""
    cut_off: set[str] = field(default_factory=set)
    """Brokers that do not reach the metadata store."""
    objects_cut_off: set[str] = field(default_factory=set)
    """Brokers that do not reach the object store."""

    def heal(self) -> None:
        self.objects_delay_s, self.objects_lost, self.objects_away = 0.01, 0.0, False
        self.metadata_lost = 0.0
        self.cut_off.clear()
        self.objects_cut_off.clear()


class ObjectsLine:
    """The way of one broker to the object store. What was sent arrives, whatever happens to the sender meanwhile."""

    def __init__(self, store: MemoryStore, line_faults: LineFaults, name: str) -> None:
        self._store = store
        self._line_faults = line_faults
        self._name = name

    @property
    def _is_away(self) -> bool:
        return self._line_faults.objects_away or self._name in self._line_faults.objects_cut_off

    @property
    def url(self) -> str:
        return self._store.url

    @property
    def capabilities(self) -> Capabilities:
        return self._store.capabilities

    async def _send(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        served = outside(self._serve(work))
        served.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(served)

    async def _serve(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        line_faults, chance = self._line_faults, self._line_faults.chance
        await asyncio.sleep(chance.expovariate(1 / line_faults.objects_delay_s))
        if self._is_away or chance.random() < line_faults.objects_lost:
            await asyncio.sleep(chance.choice([0.0, 2.0]))
            raise Unavailable("the request was lost")
        answer = await work()
        await asyncio.sleep(chance.expovariate(1 / line_faults.objects_delay_s))
        if self._is_away or chance.random() < line_faults.objects_lost:
            await asyncio.sleep(chance.choice([0.0, 2.0]))
            raise Unavailable("the answer was lost")
        return answer

    async def put(
        self, key: str, data: Buffer | Sequence[Buffer], *, create: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        pieces = [bytes(one) for one in ([data] if isinstance(data, bytes | bytearray | memoryview) else data)]
        return await self._send(lambda: self._store.put(key, pieces, create=create, if_match=if_match))

    async def get(self, key: str, start: int = 0, end: int | None = None) -> memoryview:
        return await self._send(lambda: self._store.get(key, start, end))

    async def head(self, key: str) -> ObjectInfo:
        return await self._send(lambda: self._store.head(key))

    async def list(self, prefix: str = "", after: str = "") -> AsyncIterator[ObjectInfo]:
        async def page() -> list[ObjectInfo]:
            return [info async for info in self._store.list(prefix, after)]

        for info in await self._send(page):
            yield info

    async def delete(self, keys: Sequence[str]) -> None:
        await self._send(lambda: self._store.delete(list(keys)))

    async def close(self) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None: ...


class MetadataLine:
    """The way of one broker to the metadata store."""

    failure: DanubeError | None = None

    def __init__(self, store: EmbeddedStore, line_faults: LineFaults, name: str) -> None:
        self._store = store
        self._line_faults = line_faults
        self._name = name

    @property
    def _is_cut(self) -> bool:
        return self._name in self._line_faults.cut_off

    def _is_lost(self) -> bool:
        return self._is_cut or self._line_faults.chance.random() < self._line_faults.metadata_lost

    def __getattr__(self, name: str) -> Any:
        called = getattr(self._store, name)

        async def call(*given: Any, **options: Any) -> Any:
            served = outside(self._serve(lambda: called(*given, **options)))
            served.add_done_callback(lambda done: done.cancelled() or done.exception())
            return await asyncio.shield(served)

        return call

    async def _serve(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        chance = self._line_faults.chance
        await asyncio.sleep(chance.expovariate(1 / self._line_faults.metadata_delay_s))
        if self._is_lost():
            await asyncio.sleep(chance.choice([0.0, 1.0]))
            raise Unavailable("the metadata store does not answer")
        answer = await work()
        await asyncio.sleep(chance.expovariate(1 / self._line_faults.metadata_delay_s))
        if self._is_lost():
            await asyncio.sleep(chance.choice([0.0, 1.0]))
            raise Unavailable("the answer of the metadata store was lost")
        return answer

    async def watch(self, prefix: str, from_revision: int) -> AsyncIterator[Event]:
        async for event in self._store.watch(prefix, from_revision):
            await asyncio.sleep(self._line_faults.metadata_delay_s)
            if self._is_cut:
                raise Unavailable("the watch broke")
            yield event

    async def list(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> list[KeyValue]:
        found: list[KeyValue] = await self.__getattr__("list")(prefix, start_after=start_after, limit=limit)
        return found


class SimulatedBroker:
    """One broker over all its lives: its name, its disk, and the process that runs now."""

    def __init__(self, world: SimulatedCluster, name: str) -> None:
        self._world = world
        self.name = name
        self.disk = SimDisk(random.Random(world.chance.random()))
        self.process = SimulatedProcess(name)
        self.process.kill()
        self.broker: Broker | None = None
        self._closing = AsyncExitStack()

    @property
    def address(self) -> str:
        return f"{self.name}.test:7080"

    @property
    def is_down(self) -> bool:
        return self.process.is_dead

    def start(self) -> None:
        """Start a process."""
        assert self.is_down
        self.process = SimulatedProcess(self.name)
        self.broker, process = None, self.process
        opening = process.spawn(self._open(Tasks(self._crashed)))
        opening.add_done_callback(lambda done: self._opened(process, done))

    def _opened(self, process: SimulatedProcess, done: asyncio.Task[None]) -> None:
        error = done.exception() if not done.cancelled() else None
        if error is None or process.is_dead:
            return
        if not isinstance(error, Unavailable):
            self._world.complaints.append(f"broker {self.name} did not start: {error!r}")
            traceback.print_exception(error)
        self._ended()

    def _ended(self) -> None:
        """The process has ended by itself; at the end of a run it is started again, as a supervisor does."""
        self.kill()
        if self._world.is_healed:
            self.start()

    def _crashed(self, task: asyncio.Task[Any], error: BaseException) -> None:
        self._world.complaints.append(f"task {task.get_name()!r} of broker {self.name} crashed: {error!r}")
        traceback.print_exception(error)

    def kill(self, *, power: bool = False) -> None:
        """End the process, and with `power` the machine: what was not synced is lost."""
        self.process.kill()
        if power:
            self.disk.power_cut()
        self.disk.crash()

    def stop(self) -> None:
        """Let the process end in order, as SIGTERM does; whatever happens to it meanwhile."""
        process, stopping = self.process, self.process.spawn(self._stop())
        stopping.add_done_callback(lambda done: self._stopped(process, done))

    async def _stop(self) -> None:
        assert self.broker is not None
        await self.broker.leave(DRAIN_S)
        self.broker.drain()
        await self._closing.aclose()

    def _stopped(self, process: SimulatedProcess, done: asyncio.Task[None]) -> None:
        if process.is_dead:
            return
        if (error := done.exception()) is not None and not isinstance(error, DanubeError):
            self._world.complaints.append(f"broker {self.name} did not stop in order: {error!r}")
            traceback.print_exception(error)
        self._ended()

    async def _open(self, tasks: Tasks) -> None:
        world, clock = self._world, VirtualClock()
        store: Any = MetadataLine(world.metadata, world.line_faults, self.name)
        identity = NodeIdentity("cluster", self.name, f"log-{self.name}")
        registry = Registry(store, clock)
        await registry.load()
        known = await registry.known_ledgers(lambda log: (log or "log-a") == identity.incarnation)
        writer = await LogWriter.open(
            self.disk,
            Path("/data/wal"),
            identity,
            LogSettings(file_bytes=1 << 16, group_bytes_max=1 << 16),
            clock,
            is_needed=known.needed.__contains__,
            check=lambda recovered: known.check(store, recovered, Path("metadata")),
            metadata=MetadataStamp((await store.identity()).store_id, await store.revision()),
        )
        writer.forget(set(writer.recovered.ledgers) - known.needed)
        self._closing = AsyncExitStack()
        self._closing.push_async_callback(writer.close)
        self._closing.push_async_callback(tasks.close)
        follower = registry.follower
        addresses = BrokerAddresses(self.address)
        session = BrokerSession(self.name, 0, addresses, log=identity.incarnation, level=THIS_RELEASE.newest)
        membership = ClusterMembership(store, follower, clock, tasks, lambda: session, "log-a", SESSION_S)
        cluster = ClusterParts(membership, ClusterOwners(membership, follower), SimulatedPeers(world), Loads(follower))
        storage = replace(TIERING, segment_age_s=world.segment_age_s, segment_bytes=4096)
        parts = BrokerParts(
            store,
            registry,
            writer,
            AllowAll(),
            clock,
            tasks,
            lambda: addresses,
            ObjectsLine(world.objects, world.line_faults, self.name),
            cluster=cluster,
        )
        broker = Broker(parts, replace(SETTINGS, storage=storage))
        self._closing.push_async_callback(membership.leave)
        self._closing.push_async_callback(broker.close)
        await broker.start()
        assert broker._tiers is not None
        tasks.spawn(broker._tiers.run(), "object storage")
        await membership.join()
        broker.joined()
        self.broker = broker


class Connection(NamedTuple):
    """A connection to one life of a broker."""

    name: str
    process: SimulatedProcess
    broker: Broker


class SimulatedPeers:
    """How one broker asks another: nobody answers while that is down or paused."""

    def __init__(self, world: SimulatedCluster) -> None:
        self._world = world

    async def request(self, broker: str, request: wire.Request, answer: type[AnswerT]) -> AnswerT:
        decoded = wire.decode_request(memoryview(wire.encode(request)))
        other = self._world.connect(self._world.brokers[broker])

        async def performed(there: Broker) -> bytes:
            with there.freshness.checked():
                return await perform(_Caller(there), decoded)  # type: ignore[arg-type]

        found = await self._world.ask(other, performed)
        return wire.decode(memoryview(found), answer)

    async def publish(self, broker: str, topic: TopicName, partition: int, batch: memoryview) -> Published:
        raise AssertionError("no letter and no stage is published here")

    def reply(self, inbox: InboxAddress, head: ReplyHead, payload: bytes) -> None:
        raise AssertionError("no request is made here")


class GivenUp(Exception):
    """Nobody wants any more what was asked for."""


class SimulatedCluster:
    """The brokers, the stores, and everything that clients saw."""

    def __init__(self, seed: int, metadata: EmbeddedStore) -> None:
        self.chance = random.Random(seed)
        JITTER.seed(seed)
        self.metadata = metadata
        self.line_faults = LineFaults(random.Random(self.chance.random()))
        self.segment_age_s = self.chance.choice([1, 5, 600])
        self.objects = MemoryStore(clock=VirtualClock())
        self.brokers = {name: SimulatedBroker(self, name) for name in NAMES}
        self.complaints: list[str] = []
        self.publishing: list[asyncio.Task[None]] = []
        """The producers; they end soon after the run is over."""
        self.is_healed = False
        """Nothing breaks any more."""
        self.is_over = False
        """Nothing more is published, and nothing more is changed."""
        self.is_drained = False
        """Nothing more is consumed."""
        self.story: list[str] = []
        """What happened, for whoever looks for the reason."""

    def tell(self, what: str) -> None:
        self.story.append(f"{asyncio.get_running_loop().time() - 1000:8.2f} {what}")

    def connect(self, broker: SimulatedBroker) -> Connection:
        if broker.is_down or broker.broker is None:
            raise Unavailable(f"no connection to broker {broker.name}")
        return Connection(broker.name, broker.process, broker.broker)

    async def ask(
        self, at: Connection, work: Callable[[Broker], Coroutine[Any, Any, T]], seconds: float = ANSWER_S
    ) -> T:
        """Have a broker do something, as a request over a connection: nobody answers when it is down or paused."""
        process = at.process
        if process.is_dead:
            raise Unavailable(f"the connection to broker {at.name} broke")
        asked = process.spawn(work(at.broker))
        asked.add_done_callback(lambda done: done.cancelled() or done.exception())
        deadline = asyncio.get_running_loop().time() + seconds
        while not asked.done():
            left = deadline - asyncio.get_running_loop().time()
            if process.is_dead or left <= 0:
                raise Unavailable(f"no answer of broker {at.name}")
            await asyncio.wait([asked], timeout=min(left, 0.25))
        return asked.result()

    async def at_owner(
        self, work: Callable[[Broker], Coroutine[Any, Any, T]], is_given_up: Callable[[], bool] = lambda: False
    ) -> tuple[Connection, T]:
        """Ask one broker after the other, following what they say of the owner, until one does it. Raises GivenUp once
        `is_given_up` says that nobody wants it any more."""
        target = self.chance.choice(list(self.brokers.values()))
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        last: DanubeError | None = None
        while asyncio.get_running_loop().time() < deadline:
            if is_given_up():
                raise GivenUp
            try:
                at = self.connect(target)
                return at, await self.ask(at, work)
            except NotOwner as error:
                last = error
                target = next(
                    (one for one in self.brokers.values() if one.address == error.owner),
                    self.chance.choice(list(self.brokers.values())),
                )
            except Unavailable as error:
                last = error
                target = self.chance.choice(list(self.brokers.values()))
            await asyncio.sleep(self.chance.uniform(0.01, 0.3))
        raise AssertionError(f"nobody answers for {PATIENCE_S} s; the last was: {last!r}")
