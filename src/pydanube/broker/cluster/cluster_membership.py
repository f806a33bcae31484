"""The membership of a broker in a cluster: its session is kept alive, and the other brokers are followed by watch.

```
 join ─► incarnation, lease ─► session key, put once ─┬─► keep-alive every third of the time
                                                      │      NotFound, or the key was deleted ─► lost
 lost ─► all listeners are told ─► a new incarnation, lease and session ─► renewed
```

Invariants
    `holds` is true only while no other broker can see the session ended: the time of the lease is counted from before
    it was asked for, on a clock that also runs while the machine sleeps, less a margin
    a session that has ended is never created again; each has an incarnation of its own
    no session begins at a feature level that this broker does not know
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from pydanube.metadata.following import Follower, Handler
from pydanube.metadata.id_counters import take_ids
from pydanube.metadata.levels import keep_level
from pydanube.metadata.store import Compare, Event, KeyValue, MetadataStore, Put
from pydanube.model.cluster import BrokerSession
from pydanube.model.errors import Corrupt, DanubeError, NotFound, Refused, Unavailable
from pydanube.model.positions import utc_text
from pydanube.runtime.clock import Clock
from pydanube.runtime.retry import RetryBackoff
from pydanube.runtime.tasks import Tasks
from pydanube.runtime.telemetry import get_logger
from pydanube.runtime.waits import wait_at_most

from .membership import MembershipListener
from .node_records import (
    COORDINATOR,
    INCARNATION_COUNTER,
    NODES,
    SESSIONS,
    CoordinatorRecord,
    NodeRecord,
    changed,
    node_key,
    pack,
    session_key,
    unpack_coordinator,
    unpack_node,
    unpack_session,
)

log = get_logger(__name__)

CLOCK_TOLERANCE: Final = 0.1
"""The clock of a member of etcd may be this much faster than the clock of this broker."""

MARGIN_S: Final = 0.5
"""An answer may leave this long after it was checked that the session holds."""

RETRY_S: Final = 1.0
"""How long to wait at most before a session is renewed again after that failed."""

LEAVE_S: Final = 3.0
"""How long a broker that stops tries to end its session; else the session ends after its time."""

JOIN_ATTEMPTS: Final = 10
"""A joining transaction fails if the coordinator writes this broker's record meanwhile; it does that once."""

NEVER: Final = float("-inf")


def holds_until(asked: float, ttl_ms: int) -> float:
    """Return until when a lease surely lives, which was asked for at `asked` and granted for `ttl_ms`."""
    return asked + ttl_ms / 1000 * (1 - CLOCK_TOLERANCE) - MARGIN_S


@dataclass(frozen=True, slots=True)
class _Node:
    """The record of a broker as it was read."""

    record: NodeRecord
    entry: KeyValue


class ClusterMembership:
    """This broker as a member of a cluster. `join` takes the session, `leave` ends it."""

    is_alone = False

    def __init__(
        self,
        store: MetadataStore,
        follower: Follower,
        clock: Clock,
        tasks: Tasks,
        describe: Callable[[], BrokerSession],
        founder_log: str,
        session_s: int,
    ) -> None:
        """`describe` returns this broker as it registers itself, without an incarnation; complete once all listeners
        are open. `follower` is started by the caller, before `join`. `founder_log`: the log of the cluster's
        founder."""
        self._store = store
        self._follower = follower
        self._clock = clock
        self._boot_time = clock.boot_time
        self._tasks = tasks
        self._describe = describe
        self._name = describe().name
        self._log = describe().log
        self._founder_log = founder_log
        self._ttl_ms = session_s * 1000
        self._session: BrokerSession | None = None
        """The last session; None before the first."""
        self._revision = 0
        """The revision at which the session's key was put; 0 while there is no session."""
        self._lease = 0
        self._deadline = NEVER
        self._current_at = clock.boot_time()
        """When the metadata was last heard under a session that the watch has shown: memory is at least as new."""
        self._renew_at = 0.0
        self._tried: set[int] = set()
        """The incarnations under which this process has put a session, or may have, since it last had one."""
        self._not_taken = ""
        """Why no session could be taken, since there was the last one."""
        self._in_doubt = False
        """Whether a listing lacked the session's key, which may be because it is older than the key."""
        self._deleted_at = 0
        """The revision at which a session's key of this broker was last seen deleted."""
        self._others: dict[str, BrokerSession] = {}
        self._nodes: dict[str, _Node] = {}
        self._coordinator = 0
        """The incarnation of the coordinator; 0: there is none."""
        self._to_coordinate = asyncio.Event()
        self._is_woken = asyncio.Event()
        self._backoff = RetryBackoff()
        """The waits while no session can be taken."""
        self._running: list[asyncio.Task[None]] = []
        self._listeners: list[MembershipListener] = []
        follower.add(SESSIONS, Handler(self._apply_session, self._replace_sessions))
        follower.add(COORDINATOR, Handler(self._apply_coordinator, self._replace_coordinator))
        follower.add(NODES, Handler(self._apply_node, self._replace_nodes))

    # -- what the rest of the broker asks ------------------------------------------------------------------------------

    @property
    def session(self) -> BrokerSession:
        return self._session or self._describe()

    @property
    def identity(self) -> tuple[str, int]:
        session = self.session
        return session.name, session.incarnation

    @property
    def lease(self) -> int:
        """The lease of the session, for keys that shall end with it; 0 while there is no session."""
        return self._lease if self._revision else 0

    def holds(self) -> bool:
        return self._boot_time() < self._deadline

    def age_s(self) -> float:
        return 0.0 if self.holds() and self._is_followed else self._boot_time() - self._current_at

    @property
    def _is_followed(self) -> bool:
        """Whether the watch has come as far as the session: what was missed before it is in memory."""
        return bool(self._revision) and self._follower.seen >= self._revision

    def is_own_log(self, log: str) -> bool:
        return (log or self._founder_log) == self._log

    def is_founder_log(self, log: str) -> bool:
        return log == self._founder_log

    def sessions(self) -> list[BrokerSession]:
        own = {self._name: self._session} if self._session is not None and self._revision else {}
        return [one for _, one in sorted({**self._others, **own}.items())]

    def find(self, name: str) -> BrokerSession | None:
        if name == self._name:
            return self._session if self._revision else None
        return self._others.get(name)

    def alive(self) -> list[Compare]:
        """See `Membership.alive`. Raises Unavailable while there is no session: nothing may be taken then."""
        if not self._revision:
            raise Unavailable(f"broker {self._name!r} has no session in its cluster at the moment: try again")
        return [Compare.mod_revision(session_key(self._name), self._revision)]

    async def gone(self, name: str, incarnation: int) -> list[Compare] | None:
        key = session_key(name)
        found = await self._store.get(key)
        if found is None:
            return [Compare.missing(key)]
        if unpack_session(key, found.value).incarnation == incarnation:
            return None
        return [Compare.mod_revision(key, found.mod_revision)]

    def give_up(self, incarnation: int) -> None:
        """See `Membership.give_up`. The key is deleted before the next session is taken."""
        if self._session is not None and self._session.incarnation == incarnation:
            self._lose()

    def is_coordinator(self) -> bool:
        session = self._session
        return session is not None and self._coordinator == session.incarnation and self.holds()

    @property
    def coordinator_name(self) -> str:
        return next((one.name for one in self.sessions() if one.incarnation == self._coordinator), "")

    def away(self) -> list[str]:
        return sorted(name for name in self._nodes if self.find(name) is None)

    def away_since(self, name: str) -> int:
        node = self._nodes.get(name)
        return 0 if node is None or self.find(name) is not None else node.record.away_since

    def is_drained(self, name: str) -> bool:
        node = self._nodes.get(name)
        return node is not None and node.record.drained_since > 0

    def subscribe(self, listener: MembershipListener) -> None:
        self._listeners.append(listener)

    # -- the own session -----------------------------------------------------------------------------------------------

    async def join(self) -> None:
        """Take a session, and keep it until `leave`. The caller holds the lock of the data directory, so that a session
        of the same log is that of a process that has ended.

        Raises Refused if another broker of this name lives, or if this one does not know the feature level of the
        metadata. Cancelled or failed: a lease may be left, which ends by
        itself.
        """
        await self._take_session()
        self._tell_renewed()
        self._running = [
            self._tasks.spawn(self._keep(), "session"),
            self._tasks.spawn(self._coordinate(), "coordinator"),
        ]

    async def leave(self) -> None:
        """End the session, after the partitions are closed; others may take them from now on. Cancelled or failed: it
        ends after its time."""
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)
        self._running = []
        lease, self._lease, self._revision, self._deadline = self._lease, 0, 0, NEVER
        if lease:  # also after `give_up`, which leaves the key to the next session
            try:
                async with asyncio.timeout(LEAVE_S):
                    with suppress(NotFound):
                        await self._store.revoke(lease)
            except (TimeoutError, DanubeError) as error:
                log.warning("session.not_ended", broker=self._name, error=str(error) or "no answer")

    async def _take_session(self) -> None:
        await self._end_former()
        await keep_level(self._store, self._describe().level)  # before an incarnation is taken
        incarnation = (await take_ids(self._store, INCARNATION_COUNTER, 1))[0]
        asked = self._boot_time()
        granted = await self._store.grant_lease(self._ttl_ms)
        session = replace(self._describe(), incarnation=incarnation, started_at=self._clock.now_us())
        self._tried.add(incarnation)
        for _ in range(JOIN_ATTEMPTS):
            if (revision := await self._put_session(session, granted.lease)) is not None:
                break
            await self._end_former()
        else:
            raise Unavailable(f"broker {self._name!r} could not join: others were faster {JOIN_ATTEMPTS} times")
        self._follower.wrote(session_key(self._name), revision)
        self._session, self._revision, self._lease = session, revision, granted.lease
        self._tried, self._not_taken = {incarnation}, ""
        self._deadline, self._in_doubt = holds_until(asked, granted.ttl_ms), False
        self._plan(granted.ttl_ms)
        self._to_coordinate.set()
        log.info("session.taken", broker=self._name, incarnation=incarnation, seconds=granted.ttl_ms / 1000)
        if self._deleted_at > revision:
            self._lose()

    async def _end_former(self) -> None:
        """End a session of this broker that is still there. Raises Refused if it is that of another broker.

        A broker that starts may find a session of its log that another process took: that one has ended. A broker that
        runs finds none, unless another process uses a copy of its data directory: two that ended each other's sessions
        would go on for ever.
        """
        key = session_key(self._name)
        found = await self._store.get(key)
        if found is None:
            return
        former = unpack_session(key, found.value)
        if former.log != self._log or (self._session is not None and former.incarnation not in self._tried):
            raise namesake(former)
        with suppress(NotFound):
            await self._store.revoke(found.lease)
        log.info("session.ended", broker=self._name, incarnation=former.incarnation)

    async def _put_session(self, session: BrokerSession, lease: int) -> int | None:
        """Put the session's key, and note that this broker is no longer away. Return the revision; None if there is a
        session, or if the record of this broker or the feature level has changed meanwhile."""
        same_level, level = await keep_level(self._store, session.level)
        key, about = session_key(self._name), node_key(self._name)
        found = await self._store.get(about)
        if found is None:
            node = pack(NodeRecord(self._log))
        else:
            record = unpack_node(about, found.value)
            if record.log != self._log:
                raise other_log(self._name, record.log, self._log)
            node = changed(found.value, away_since=0)
        compares = [Compare.missing(key), Compare.mod_revision(about, found.mod_revision if found else 0), same_level]
        writes = [Put(key, pack(session), lease), Put(about, node), level]
        try:
            result = await self._store.transact(compares, writes)
        except NotFound:
            raise Unavailable(f"broker {self._name!r}: its lease ended before it had joined: try again") from None
        return result.revision if result.succeeded else None

    def _plan(self, ttl_ms: int) -> None:
        self._renew_at = self._clock.monotonic() + ttl_ms / 3000

    async def _keep(self) -> None:
        """Renew the session every third of its time, and take another when it has ended."""
        while True:
            await wait_at_most(self._is_woken, max(0.0, self._renew_at - self._clock.monotonic()), self._clock)
            self._is_woken.clear()
            if self._revision:
                await self._renew()
            if not self._revision:
                await self._take_again()

    async def _renew(self) -> None:
        asked, lease = self._boot_time(), self._lease
        self._plan(self._ttl_ms)
        try:
            if self._in_doubt:
                await self._check_key()
            ttl_ms = await self._store.keep_alive(lease)
        except NotFound:
            self._lose()
            return
        except DanubeError as error:
            log.warning("session.not_renewed", broker=self._name, error=error.message)
            self._renew_at = self._clock.monotonic() + min(RETRY_S, self._ttl_ms / 3000)
            return
        if self._revision:  # else it was lost meanwhile
            self._deadline = holds_until(asked, ttl_ms)
            self._current_at = asked if self._is_followed else self._current_at

    async def _check_key(self) -> None:
        """Raise NotFound if the session's key is gone."""
        found = await self._store.get(session_key(self._name))
        if found is None or found.mod_revision != self._revision:
            raise NotFound(f"the session of broker {self._name!r} has ended")
        self._in_doubt = False

    def _lose(self) -> None:
        """Tell all listeners that the session has ended, and take another as soon as possible."""
        session = self._session
        if session is None or not self._revision:
            return
        self._revision, self._deadline = 0, NEVER
        log.warning("session.lost", broker=self._name, incarnation=session.incarnation)
        for listener in self._listeners:
            listener.lost(session)
        self._is_woken.set()

    async def _take_again(self) -> None:
        try:
            await self._take_session()
        except DanubeError as error:
            if error.message != self._not_taken:  # logged once until it changes
                log.warning("session.not_taken", broker=self._name, error=error.message)
            self._not_taken = error.message
            self._renew_at = self._clock.monotonic() + self._backoff.next()
            return
        self._backoff.reset()
        self._tell_renewed()

    def _tell_renewed(self) -> None:
        session = self._session
        if session is not None and self._revision:  # else it was lost at once
            for listener in self._listeners:
                listener.renewed(session)

    # -- the coordinator -----------------------------------------------------------------------------------------------

    async def _coordinate(self) -> None:
        """Become the coordinator when there is none, and note which brokers are away."""
        backoff = RetryBackoff()
        while True:
            await self._to_coordinate.wait()
            self._to_coordinate.clear()
            try:
                await self._take_coordination()
                await self._note_absent()
                backoff.reset()
            except DanubeError as error:
                log.warning("coordinator.failed", broker=self._name, error=error.message)
                await self._clock.sleep(backoff.next())
                self._to_coordinate.set()

    async def _take_coordination(self) -> None:
        session = self._session
        if self._coordinator or session is None or not self._revision:
            return
        writes = [Put(COORDINATOR, pack(CoordinatorRecord(session.name, session.incarnation)), self._lease)]
        result = await self._store.transact([Compare.missing(COORDINATOR), *self.alive()], writes)
        if result.succeeded:
            if self._follower.wrote(COORDINATOR, result.revision):
                self._set_coordinator(session.incarnation)
            log.info("coordinator.taken", broker=self._name, incarnation=session.incarnation)

    async def _note_absent(self) -> None:
        """Write into the records of brokers that have no session since when that is known."""
        for name, node in list(self._nodes.items()):
            if not self.is_coordinator():
                return
            if name != self._name and name not in self._others and not node.record.away_since:
                compares = [
                    Compare.missing(session_key(name)),
                    Compare.mod_revision(node.entry.key, node.entry.mod_revision),
                ]
                value = changed(node.entry.value, away_since=self._clock.now_us())
                await self._store.transact(compares, [Put(node.entry.key, value)])

    # -- following -----------------------------------------------------------------------------------------------------

    def _apply_session(self, event: Event) -> None:
        name = event.key.removeprefix(SESSIONS)
        if name == self._name:
            if event.deleted:
                self._deleted_at = event.revision
                if event.revision > self._revision:
                    self._lose()
            return
        self._set_other(name, None if event.current is None else self._read_session(event.current))

    def _replace_sessions(self, entries: list[KeyValue]) -> None:
        found = {entry.key.removeprefix(SESSIONS): entry for entry in entries}
        own = found.pop(self._name, None)
        if self._revision and (own is None or own.mod_revision != self._revision):
            self._in_doubt = True
            self._is_woken.set()
        for name in [*self._others.keys() - found.keys(), *found]:
            self._set_other(name, self._read_session(found[name]) if name in found else None)

    def _read_session(self, entry: KeyValue) -> BrokerSession | None:
        try:
            return unpack_session(entry.key, entry.value)
        except Corrupt as error:
            log.error("session.unreadable", error=error.message)
            return None

    def _set_other(self, name: str, session: BrokerSession | None) -> None:
        former = self._others.pop(name, None)
        if session is not None:
            self._others[name] = session
        self._to_coordinate.set()
        if former is not None and (session is None or session.incarnation != former.incarnation):
            for listener in self._listeners:
                listener.left(former)
        if session is not None and (former is None or session.incarnation != former.incarnation):
            for listener in self._listeners:
                listener.joined(session)

    def _apply_coordinator(self, event: Event) -> None:
        self._replace_coordinator([] if event.current is None else [event.current])

    def _replace_coordinator(self, entries: list[KeyValue]) -> None:
        incarnation = 0
        for entry in entries:
            with suppress(Corrupt):  # then there is none, and the key is replaced when its lease ends
                incarnation = unpack_coordinator(entry.key, entry.value).incarnation
        self._set_coordinator(incarnation)
        self._to_coordinate.set()

    def _set_coordinator(self, incarnation: int) -> None:
        """Record which session is the coordinator, and call the listeners if it is this broker's and was not before."""
        former, self._coordinator = self._coordinator, incarnation
        session = self._session
        if session is not None and former != incarnation == session.incarnation:
            for listener in self._listeners:
                listener.coordinating(session)

    def _apply_node(self, event: Event) -> None:
        self._set_node(event.key.removeprefix(NODES), event.current)

    def _replace_nodes(self, entries: list[KeyValue]) -> None:
        found = {entry.key.removeprefix(NODES): entry for entry in entries}
        for name in [*self._nodes.keys() - found.keys(), *found]:
            self._set_node(name, found.get(name))

    def _set_node(self, name: str, entry: KeyValue | None) -> None:
        was_drained = self.is_drained(name)
        self._nodes.pop(name, None)
        if entry is not None:
            try:
                self._nodes[name] = _Node(unpack_node(entry.key, entry.value), entry)
            except Corrupt as error:
                log.error("node.unreadable", error=error.message)
        self._to_coordinate.set()
        if self.is_drained(name) != was_drained:
            for listener in self._listeners:
                listener.drained(name)


def namesake(living: BrokerSession) -> Refused:
    """Return the refusal of a broker that has the name of another, which lives."""
    given = (living.addresses.native, living.addresses.grpc, living.addresses.http, living.inside.native)
    where = ", ".join(address for address in given if address) or "an unknown address"
    since = utc_text(living.started_at)
    return Refused(
        f"broker {living.name!r} of this cluster lives at {where} since {since}: give this one a name of its own "
        f"(--name, server.name), or stop the other"
    )


def other_log(name: str, known: str, mine: str) -> Refused:
    """Return the refusal of a data directory that is not the one of this broker's name."""
    return Refused(
        f"broker {name!r} of this cluster writes log {known}, and this data directory has log {mine}: mount the data "
        f"directory of that broker, or give this one a name of its own (--name, server.name)"
    )
