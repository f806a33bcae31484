"""Finds the broker that owns a partition, and keeps the connections of one client.

Addresses come from three places: the list the user gave, the answers to lookups, and NotOwner errors. If the advertised
address of an owner cannot be reached (behind a port forward, for example), the listed addresses are tried. A user may
list HTTP listeners instead; the list is then what one of them says, and it is asked again when none of it is reachable.

The answer to a lookup also names all living brokers of the cluster. They are tried after the listed ones, so that a
client which was given one address goes on when that broker is gone. A broker that answered as the owner of a partition
and was replaced (`owner_epochs`) is avoided for a while: what it says about owners may be old too.

A broker that is late, of which nothing was heard for a keep-alive interval, is busy or gone. Another one is asked now
and then who owns its partitions; only if it names another owner is the connection given up. What any broker can answer
is asked there too.

Invariants
    the learned addresses are those of the newest lookup, at most LEARNED_MAX
    there is one connection per address, and one lookup per topic at a time, however many callers ask for it
    a cached route is only a hint: after NotOwner, NotFound or a failure to connect the topic is looked up again
    while a broker is late, at most one question about it is under way
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from copy import copy
from functools import partial
from math import inf
from random import Random
from typing import Final, TypeVar

import msgspec

from pydanube.codec.native import requests
from pydanube.model.errors import DanubeError, Full, Invalid, NotFound, NotOwner, Refused, Unavailable
from pydanube.model.names import TopicName
from pydanube.operations import topics
from pydanube.runtime.clock import Clock
from pydanube.runtime.retry import RetryBackoff
from pydanube.runtime.tasks import Tasks
from pydanube.runtime.telemetry import get_logger
from pydanube.runtime.tls import NO_FILES, ClientTls, client_context

from .connection import HANDSHAKE_SECONDS, REQUEST_SECONDS, Connection, KeepAlive
from .credentials import NO_CREDENTIALS, ClientCredentials, keep_authenticated
from .foreign_peer import ForeignPeer
from .observing import ClientMetrics
from .owner_epochs import OwnerEpochs
from .servers import BrokerAddress, Servers

log = get_logger(__name__)

UNREACHABLE_SECONDS: Final = 15.0
"""How long an advertised address that could not be reached is not tried again, unless another broker says meanwhile
that it is the owner: it may have been restarted."""

CLOSE_INTERVAL_SECONDS: Final = 1.25
"""While something is being closed, brokers of which nothing was heard are pinged after each interval of this length."""

CLOSE_SILENT_TICKS: Final = 4
CLOSE_SILENT_SECONDS: Final = CLOSE_SILENT_TICKS * CLOSE_INTERVAL_SECONDS
"""Closing gives up when no broker was heard for this time: the brokers are gone, or cannot be reached."""

OTHERS_TRIED: Final = 3
"""Learned brokers for which a handshake leaves time."""

HOPS_MAX: Final = 4
"""NotOwner answers that are followed at once. Later ones wait first, because the brokers disagree about the owner."""

LEARNED_MAX: Final = 100
"""Learned addresses: a client needs some broker that lives, not all of them."""

AVOIDED_SECONDS: Final = 5.0
"""How long a broker that answered for a partition it no longer owns is asked only if no other one can be reached. It
learns of its replacement within the time of a session."""

TOPICS_ASKED_MAX: Final = 8
"""Topics of a late broker that one question is about, chosen at random: if it was replaced, it has lost them all."""

ROUTES_MAX: Final = 10_000
"""Cached routes. When the cache is full all of them are dropped, which costs one lookup each."""

StructT = TypeVar("StructT", bound=msgspec.Struct)
T = TypeVar("T")


def worth_retrying(error: DanubeError) -> bool:
    """Return whether the same request may succeed when it is sent again later or to another broker."""
    return isinstance(error, Unavailable | NotOwner | Full)


def close_limit_reason(timeout: float | None) -> str:
    """Return why `Brokers.close_limit` ended its block."""
    if timeout is None:
        return f"no broker was heard for {CLOSE_SILENT_SECONDS:g} s"
    return f"the {timeout:g} s that close() was given have passed"


def _cancel(task: asyncio.Task[None], _lost: DanubeError) -> None:
    task.cancel()


class Brokers:
    """The connections of one client, and its cache of partition owners."""

    def __init__(
        self,
        servers: Servers,
        clock: Clock,
        random: Random,
        timeout: float,
        credentials: ClientCredentials = NO_CREDENTIALS,
        tls: ClientTls = NO_FILES,
    ) -> None:
        """`tls` says which certificates count, if `servers` says that connections are encrypted. Raises Invalid."""
        assert servers.native or servers.http
        self._tls = client_context(tls) if servers.is_encrypted else None
        self.addresses = servers.native
        """The native addresses that are listed; empty until HTTP listeners are asked for them."""
        self._learned: list[BrokerAddress] = []
        """Other brokers of the cluster, as the newest lookup named them."""
        self._avoided: dict[BrokerAddress, float] = {}
        """Brokers that answered with a lower epoch than was seen, and until when they are avoided."""
        self.epochs = OwnerEpochs()
        self.metrics = ClientMetrics()
        self._http_servers = servers.http
        self._discovery: asyncio.Task[list[BrokerAddress]] | None = None
        self.clock = clock
        self.random = random
        self.timeout = timeout
        """Seconds after which a request that keeps failing raises Unavailable."""
        self.credentials = credentials
        self.cluster = ""
        """The identity of the cluster, from the WELCOME of the latest connection."""
        self._outages: dict[BrokerAddress, bool] = {}
        """Addresses whose connection was lost and not opened again, and whether a failure to do so was logged."""
        self._greeted = False
        """Whether any broker has ever greeted this client."""
        self._tasks = Tasks(on_crash=lambda _task, _error: None)  # callers that await a task get its error
        self._servers_count = len(servers.native + servers.http)
        self._connections: dict[BrokerAddress, Connection] = {}
        self._connecting: dict[BrokerAddress, asyncio.Task[Connection]] = {}
        self._lookups: dict[tuple[str, bool], asyncio.Task[topics.Route]] = {}
        self._unreachable: dict[BrokerAddress, float] = {}
        self._owned: dict[tuple[str, int], Connection] = {}
        """By topic and partition: the connection at which its owner was used last."""
        self._questions: dict[Connection, asyncio.Task[None]] = {}
        """What is being asked about late brokers."""
        self._routes: dict[str, topics.Route] = {}
        self._learned_at: dict[str, float] = {}
        self._closed = False

    @property
    def _handshake_seconds(self) -> float:
        """How long a broker has to answer: one that does not leaves time to try the others."""
        return min(HANDSHAKE_SECONDS, self.timeout / (self._servers_count + min(len(self._learned), OTHERS_TRIED) + 1))

    @property
    def servers(self) -> str:
        """The listed HTTP addresses, or else all known native addresses, as a URL."""
        is_encrypted = self._tls is not None
        if self._http_servers:
            return str(Servers([], self._http_servers, is_encrypted))
        return str(Servers(self.known_addresses, [], is_encrypted))

    @property
    def known_addresses(self) -> list[BrokerAddress]:
        """The listed addresses, then the learned ones."""
        return [*self.addresses, *self._learned]

    async def close(self) -> None:
        """Close every connection. No task of this client runs afterwards."""
        self._closed = True
        await self._tasks.close()
        connections, self._connections = list(self._connections.values()), {}
        await asyncio.gather(*(connection.close() for connection in connections))

    @asynccontextmanager
    async def close_limit(self, timeout: float | None) -> AsyncIterator[None]:
        """Raise TimeoutError in the block after `timeout` seconds; with None, when no broker is heard for a while."""
        async with asyncio.timeout(timeout) as limit:
            if timeout is not None:
                yield
                return
            loop = asyncio.get_running_loop()

            def silent(ticks: int) -> None:
                if ticks < CLOSE_SILENT_TICKS:
                    self._ping()
                else:
                    limit.reschedule(loop.time())

            watch = KeepAlive(CLOSE_INTERVAL_SECONDS, self._last_received, silent)
            try:
                yield
            finally:
                watch.stop()

    def _last_received(self) -> float:
        return max((one.last_received for one in self._connections.values()), default=0.0)

    def _ping(self) -> None:
        for connection in self._connections.values():
            connection.ping()

    # -- connections -------------------------------------------------------------------------------------------------

    async def connect_to(self, address: BrokerAddress) -> Connection:
        """Return the connection to one address, which is opened if need be. Cancelled, other callers still get it."""
        if self._closed:
            raise Unavailable("this client is closed")
        known = self._connections.get(address)
        if known is not None and known.usable:
            return known
        connecting = self._connecting.get(address)
        if connecting is None:
            connecting = self._tasks.spawn(self._connect(address), f"connect {address}")
            self._connecting[address] = connecting
            connecting.add_done_callback(lambda _: self._connecting.pop(address, None))
        return await self._wait_shared(connecting)

    async def _wait_shared(self, task: asyncio.Task[T]) -> T:
        """Wait for a task that several callers wait for and return its result. Cancelled, the others still get it."""
        waiter = asyncio.current_task()
        assert waiter is not None
        cancelled_before = waiter.cancelling()
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled() and waiter.cancelling() == cancelled_before:  # the task was cancelled, not this caller
                raise Unavailable("this client is closed") from None
            raise

    async def _connect(self, address: BrokerAddress) -> Connection:
        try:
            connection = await self._open_connection(address)
        except DanubeError as error:
            self._log_unreachable(address, error)
            self._unreachable[address] = self.clock.monotonic() + UNREACHABLE_SECONDS
            raise
        self._unreachable.pop(address, None)
        event = "broker.connected" if self._outages.pop(address, None) is None else "broker.reconnected"
        log.info(event, address=str(address), broker=connection.welcome.broker, cluster=connection.welcome.cluster)
        self._greeted = True
        self.cluster = connection.welcome.cluster
        self.epochs.use_cluster(self.cluster)
        self._connections[address] = connection
        self.metrics.connections_opened += 1
        connection.on_lost(self, lambda _: self._lost(address, connection))
        connection.on_late = partial(self._late, connection)
        if self.credentials.can_change and connection.welcome.credentials_ms > 0:
            keeping = keep_authenticated(connection, self.credentials, self.clock)
            renewal = self._tasks.spawn(keeping, f"authenticate to {address}")
            connection.on_lost(renewal, partial(_cancel, renewal))
        return connection

    async def _open_connection(self, address: BrokerAddress) -> Connection:
        """Open a connection. Raises Invalid if the address was never that of a broker, as far as this client knows.

        A client that was connected before keeps trying: another program may hold the port while the broker restarts.
        """
        token = await self.credentials.token()
        try:
            return await Connection.open(address, self.clock, self._handshake_seconds, token, self._tls)
        except ForeignPeer as peer:
            raise (Unavailable(str(peer)) if self._greeted else Invalid(str(peer))) from None

    def _lost(self, address: BrokerAddress, connection: Connection) -> None:
        self._owned = {key: one for key, one in self._owned.items() if one is not connection}
        if self._connections.get(address) is connection:
            del self._connections[address]
            if not self._closed and connection.lost is not None:
                self._outages[address] = False
                self.metrics.connections_lost += 1
                log.info("broker.connection_lost", address=str(address), error=connection.lost.message)

    def _log_unreachable(self, address: BrokerAddress, error: DanubeError) -> None:
        """Log the first failure of an outage as a warning; a caller that connects for the first time gets the error.
        Later failures are for debugging."""
        logged = self._outages.get(address)
        if logged is False:
            self._outages[address] = True
            log.warning("broker.unreachable", address=str(address), error=error.message, retried=worth_retrying(error))
        elif logged is None and not self._greeted and address not in self._unreachable:
            log.info("broker.unreachable", address=str(address), error=error.message)
        else:
            log.debug("broker.unreachable", address=str(address), error=error.message)

    async def connect_any(self) -> Connection:
        """Return a connection to any broker: an open one, or one to the first listed or learned one that answers.

        Raises Unavailable, or Invalid if every address is wrong.
        """
        addresses = self.known_addresses
        for address in addresses:
            known = self._connections.get(address)
            if known is not None and known.usable and not known.is_late and not self._is_avoided(address):
                return known
        failures: list[DanubeError] = []
        if addresses and (connection := await self._try_addresses(addresses, failures)) is not None:
            return connection
        if self._http_servers:
            found = [one for one in await self._discover() if not failures or one not in addresses]
            self.addresses = found or self.addresses
            if found and (connection := await self._try_addresses(found, failures)) is not None:
                return connection
        told = "; ".join(one.message for one in failures)
        if all(isinstance(one, Invalid) for one in failures):
            raise Invalid(told)
        raise Unavailable(f"no broker can be reached: {told}")

    async def _try_addresses(self, addresses: list[BrokerAddress], failures: list[DanubeError]) -> Connection | None:
        """Return a connection to the first broker that answers; None: none did, and `failures` has the reasons."""

        def unlikely(address: BrokerAddress) -> tuple[bool, bool, bool]:
            return self._is_avoided(address), self._is_unreachable(address), self._is_late(address)

        for address in sorted(addresses, key=unlikely):
            try:
                return await self.connect_to(address)
            except (Unavailable, Invalid) as error:
                failures.append(error)
        return None

    def _is_unreachable(self, address: BrokerAddress) -> bool:
        return self._unreachable.get(address, 0.0) > self.clock.monotonic()

    def _is_late(self, address: BrokerAddress) -> bool:
        known = self._connections.get(address)
        return known is not None and known.is_late

    def avoid(self, address: BrokerAddress) -> None:
        """Ask this broker only if no other can be reached: it answered for a partition that it no longer owns."""
        if len(self._avoided) >= LEARNED_MAX:
            self._avoided.clear()
        self._avoided[address] = self.clock.monotonic() + AVOIDED_SECONDS

    def _is_avoided(self, address: BrokerAddress) -> bool:
        return self._avoided.get(address, 0.0) > self.clock.monotonic()

    def check_epoch(self, topic: str, partition: int, epoch: int, connection: Connection) -> None:
        """Raise NotOwner if the owner that answered with this epoch was replaced, as far as this client knows."""
        seen = self.epochs.of(topic, partition)
        if not seen.accepts(epoch):
            self.avoid(connection.address)
            raise seen.refusal(epoch, connection.address)

    async def _discover(self) -> list[BrokerAddress]:
        """Ask the HTTP listeners for the native addresses; callers at the same time share one answer."""
        if self._closed:
            raise Unavailable("this client is closed")
        if self._discovery is None or self._discovery.done():
            from .discovery import find_brokers  # imports an HTTP client: only where it is used

            asking = find_brokers(self._http_servers, self._handshake_seconds, self.credentials, self._tls)
            self._discovery = self._tasks.spawn(asking, "find brokers")
        return await self._wait_shared(self._discovery)

    async def owner(self, topic: str, partition: int) -> Connection:
        """Return a connection to the owner of a partition, according to the cached or looked-up route.

        One attempt; raises Unavailable or NotFound.
        """
        route = await self.route(topic)
        if partition >= len(route.partitions):  # the topic may have been recreated with more partitions
            self.moved(topic)
            route = await self.route(topic)
        if not 0 <= partition < len(route.partitions):
            raise NotFound(f"{topic} has no partition {partition}: it has {len(route.partitions)}, counted from 0")
        owner = route.partitions[partition].owner
        if not owner:  # no broker owns it now: any of them says why, and the next attempt looks it up again
            self.moved(topic)
            return await self.connect_any()
        address = BrokerAddress.parse(owner)
        if not self._is_unreachable(address):
            try:
                connection = await self.connect_to(address)
                self._use_owner(topic, partition, connection)
                return connection
            except Unavailable:
                self.moved(topic)
                if self.known_addresses == [address]:
                    raise
        return await self.connect_any()

    def _use_owner(self, topic: str, partition: int, connection: Connection) -> None:
        if connection.lost is None:
            self._owned.pop((topic, partition), None)
            while len(self._owned) >= ROUTES_MAX:
                del self._owned[next(iter(self._owned))]
            self._owned[topic, partition] = connection

    # -- late brokers ------------------------------------------------------------------------------------------------

    def _late(self, connection: Connection) -> None:
        """Ask another broker about one of which nothing is heard, unless that is being asked."""
        if not self._closed and connection not in self._questions:
            asking = self._tasks.spawn(self._ask_about(connection), f"ask about {connection.address}")
            self._questions[connection] = asking
            asking.add_done_callback(lambda _: self._questions.pop(connection, None))

    async def _ask_about(self, late: Connection) -> None:
        """Ask another broker for the owners of what this one owned, and give its connection up if it was replaced. A
        question that fails is asked again while the broker is late."""
        try:
            other = await self._connect_other()
            if other is None or not late.is_late:
                return
            late.ask_elsewhere(Unavailable(f"broker at {late.address} is silent: another one is asked"))
            for topic, partitions in self._topics_of(late).items():
                with suppress(Refused):  # of a topic that is gone nothing can be learned
                    route = await self._ask_route(other, topic, create=False, timeout=self._handshake_seconds)
                    owners = {one.index: BrokerAddress.parse(one.owner) for one in route.partitions if one.owner}
                    moved = [one for one in partitions if owners.get(one, late.address) != late.address]
                    if moved and late.is_late:
                        self._replaced(late, topic, moved[0])
                        return
        except DanubeError as error:
            log.debug("broker.not_asked_about", address=str(late.address), error=error.message)

    async def _connect_other(self) -> Connection | None:
        """Return a connection to a broker that is not late; None if none is known. One attempt."""
        for address in self.known_addresses:
            if not self._is_unreachable(address) and not self._is_late(address):
                with suppress(Unavailable, Invalid):
                    return await self.connect_to(address)
        return None

    def _topics_of(self, connection: Connection) -> dict[str, list[int]]:
        """Return some of the topics whose partitions are used at this connection, with these partitions."""
        found: dict[str, list[int]] = {}
        for (topic, partition), one in self._owned.items():
            if one is connection:
                found.setdefault(topic, []).append(partition)
        chosen = self.random.sample(sorted(found), min(len(found), TOPICS_ASKED_MAX))
        return {topic: found[topic] for topic in chosen}

    def _replaced(self, late: Connection, topic: str, partition: int) -> None:
        """Give up the connection to a broker whose partitions have another owner by now."""
        self._unreachable[late.address] = self.clock.monotonic() + UNREACHABLE_SECONDS
        for used in {topic for (topic, _), one in self._owned.items() if one is late}:
            self.moved(used)
        late.give_up(
            Unavailable(f"broker at {late.address} is silent, and another one owns partition {partition} of {topic}")
        )

    # -- routes ------------------------------------------------------------------------------------------------------

    async def route(self, topic: str, create: bool = False, age_max: float = inf) -> topics.Route:
        """Return the partition owners of a topic, from the cache (at most `age_max` seconds old) or by one lookup."""
        known = self._routes.get(topic)
        if known is not None and (age_max == inf or self.clock.monotonic() - self._learned_at[topic] < age_max):
            return known
        if self._closed:
            raise Unavailable("this client is closed")
        lookup = self._lookups.get((topic, create))
        if lookup is None or lookup.done():
            lookup = self._tasks.spawn(self._look_up(topic, create), f"look up {topic}")
            self._lookups[topic, create] = lookup
        return await self._wait_shared(lookup)

    async def _look_up(self, topic: str, create: bool) -> topics.Route:
        mine = asyncio.current_task()
        try:
            return await self._request_route(topic, create)
        finally:
            if self._lookups.get((topic, create)) is mine:
                del self._lookups[topic, create]

    async def _request_route(self, topic: str, create: bool) -> topics.Route:
        return self._learn(topic, await self._ask_route(await self.connect_any(), topic, create))

    async def _ask_route(
        self, connection: Connection, topic: str, create: bool, timeout: float = REQUEST_SECONDS
    ) -> topics.Route:
        """Look a topic up at this broker. The owner is empty where it names one that was replaced."""
        lookup = topics.Lookup(topic=TopicName.parse(topic), create=create)
        route = await connection.request(lookup, topics.Route, timeout=timeout, elsewhere=True)
        if not route.partitions:
            raise Unavailable(f"the lookup of {topic} named no partition")
        self._learn_brokers(route)
        self.epochs.use_topic(topic, route.topic_id)
        for one in route.partitions:
            if not self.epochs.of(topic, one.index).accepts(one.epoch):
                self.avoid(connection.address)
                one.owner = ""  # it was replaced: this broker does not know by whom
        return route

    def _learn_brokers(self, route: topics.Route) -> None:
        """Take over the other brokers of the cluster that a lookup named; one of an earlier release names none."""
        if route.brokers:
            native = [BrokerAddress.parse(one.native) for one in route.brokers if one.native]
            others = [one for one in dict.fromkeys(native) if one not in self.addresses]
            self._learned = others[:LEARNED_MAX]

    def _learn(self, topic: str, route: topics.Route) -> topics.Route:
        if len(self._routes) >= ROUTES_MAX:
            self._routes.clear()
            self._learned_at.clear()
        self._routes[topic] = route
        self._learned_at[topic] = self.clock.monotonic()
        return route

    def moved(self, topic: str, partition: int = -1, owner: str = "") -> None:
        """Forget the cached route of a topic; with `owner`, only replace the owner of one partition in it."""
        for create in (False, True):  # the answer to a lookup under way may be outdated
            self._lookups.pop((topic, create), None)
        route = self._routes.pop(topic, None)
        if owner and self._is_avoided(BrokerAddress.parse(owner)):
            return  # that one was replaced: look the owner up instead
        if owner:
            self._unreachable.pop(BrokerAddress.parse(owner), None)
        if route is not None and owner and 0 <= partition < len(route.partitions):
            route.partitions[partition].owner = owner
            self._routes[topic] = route

    # -- trying again ------------------------------------------------------------------------------------------------

    async def retrying(
        self, attempt: Callable[[], Awaitable[T]], topic: str = "", partition: int = -1, timeout: float | None = None
    ) -> T:
        """Call `attempt` until it succeeds, fails for good, or the timeout has passed; return its result.

        topic, partition    the cached route that a NotOwner or NotFound updates
        timeout             in seconds; None: that of the client

        Cancelled, it stops trying.
        """
        timeout = self.timeout if timeout is None else timeout
        deadline = self.clock.monotonic() + timeout
        backoff = RetryBackoff.within(timeout)
        hops = 0
        last: DanubeError = Unavailable("no answer from the broker")
        while True:
            try:
                async with asyncio.timeout(deadline - self.clock.monotonic()):
                    return await attempt()
            except TimeoutError:
                raise _timeout_error(timeout, last) from None
            except DanubeError as error:
                last = error
                if isinstance(error, NotFound):
                    self.moved(topic)
                if not worth_retrying(error) or self._closed:
                    raise
                if isinstance(error, NotOwner):
                    self.moved(topic, partition, error.owner)
                    hops += 1
                    if error.owner and hops <= HOPS_MAX:
                        continue
                wait = backoff.next()
                if self.clock.monotonic() + wait >= deadline:
                    raise _timeout_error(timeout, error) from error
                await self.clock.sleep(wait)

    async def reach(self, seconds: float) -> None:
        """Connect to any broker; `seconds` limit that, and so each handshake, instead of the timeout of requests."""
        usual, self.timeout = self.timeout, seconds
        try:
            await self.retrying(self.connect_any)
        finally:
            self.timeout = usual

    async def call(self, request: requests.Request, answer: type[StructT], repeatable: bool = True) -> StructT:
        """Send a request to any broker and return its answer.

        repeatable  False: it is sent once; if the connection ends before the answer, this raises Unavailable
        """
        if repeatable:
            return await self.retrying(lambda: self._call_once(request, answer))
        deadline = self.clock.monotonic() + self.timeout
        connection = await self.retrying(self.connect_any)
        for _ in range(HOPS_MAX):
            left = max(0.0, deadline - self.clock.monotonic())
            try:
                return await connection.request(request, answer, timeout=left)
            except NotOwner as error:  # refused, so nothing was done: the broker that is named may do it
                if not error.owner:
                    raise
                connection = await self.connect_to(BrokerAddress.parse(error.owner))
        raise Unavailable("the brokers disagree about the owner: try again")

    async def _call_once(self, request: requests.Request, answer: type[StructT]) -> StructT:
        connection = await self.connect_any()
        try:
            return await connection.request(request, answer, elsewhere=True)
        except NotOwner as error:
            if not error.owner:
                raise
            return await (await self.connect_to(BrokerAddress.parse(error.owner))).request(request, answer)


def _timeout_error(timeout: float, error: DanubeError) -> DanubeError:
    if isinstance(error, Full):
        return copy(error)
    return Unavailable(f"gave up after {timeout:g} s: {error.message}")
