"""Describes the cluster, and tells the other brokers how much this one does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from pydanube.broker.cluster.loads import LEAVING, LoadRecord, load_key
from pydanube.broker.cluster.routing import client_addresses
from pydanube.broker.context import BrokerContext
from pydanube.broker.partitions.open_partitions import Partitions
from pydanube.core.access import BROKER, Action, Principal
from pydanube.metadata.packing import pack
from pydanube.metadata.store import Put
from pydanube.model.cluster import AWAY, DRAINED, DRAINING, BrokerSession, BrokerStatus, ClusterDescription
from pydanube.model.errors import DanubeError
from pydanube.runtime.telemetry import get_logger
from pydanube.version import __version__

log = get_logger(__name__)

TOLD_INTERVAL_S: Final = 10.0
"""How often a broker looks whether its load has changed. Three brokers then write at most once in three seconds."""

NOTICEABLE: Final = 0.25
"""Rates that differ by less than this part are not told anew: they are only compared between brokers."""

NOTICEABLE_BYTES_PER_S: Final = 10_000
"""Rates that differ by less than this are not told anew, however much that is of a small rate."""


def is_noticeable(told: LoadRecord | None, now: LoadRecord) -> bool:
    """Return whether the others should be told of a load, who were told `told` last."""
    if told is None or (told.incarnation, told.partitions, told.state, told.store) != (
        now.incarnation,
        now.partitions,
        now.state,
        now.store,
    ):
        return True
    change = abs(told.bytes_per_s - now.bytes_per_s)
    return change > max(NOTICEABLE_BYTES_PER_S, NOTICEABLE * max(told.bytes_per_s, now.bytes_per_s))


class ClusterStatus:
    """Knows how each broker is."""

    def __init__(
        self,
        context: BrokerContext,
        partitions: Partitions,
        cluster_id: str,
        started_at: int,
        state: Callable[[], str],
        store_health: Callable[[], str] = str,
    ) -> None:
        """`started_at`: when this broker was started, in microseconds since 1970. `state` returns "ok", or what is
        wrong with it, and `store_health` what its load says of the object store."""
        cluster = context.cluster
        self._registry = context.registry
        self._partitions = partitions
        self._membership = cluster.membership
        self._owners = cluster.owners
        self._loads = cluster.loads
        self._authorizer = context.authorizer
        self._store = context.store
        self._clock = context.clock
        self._cluster_id = cluster_id
        self._started_at = started_at
        self._state = state
        self._store_health = store_health
        self._told: LoadRecord | None = None
        self._is_leaving = False

    def describe(self, principal: Principal) -> ClusterDescription:
        self._authorizer.check(principal, Action.DESCRIBE, BROKER)
        waiting, unplaced = self._count_without_owner()
        living = [self._status(one) for one in self._membership.sessions()]
        away = [
            BrokerStatus(name, AWAY, since=self._membership.away_since(name), partitions=waiting[name])
            for name in self._membership.away()
        ]
        return ClusterDescription(
            cluster=self._cluster_id,
            coordinator=self._membership.coordinator_name,
            topics=self._registry.topic_count,
            brokers=sorted([*living, *away], key=lambda one: one.name),
            unplaced=unplaced,
        )

    def _status(self, session: BrokerSession) -> BrokerStatus:
        is_self = session.name == self._membership.session.name
        load = self.load() if is_self else self._loads.of(session.name) or LoadRecord()
        partitions = self._count_all() if self._membership.is_alone else len(self._owners.of_broker(session.name))
        state = load.state
        if state == "ok" and self._membership.is_drained(session.name):
            state = DRAINING if partitions else DRAINED
        return BrokerStatus(
            name=session.name,
            state=state,
            incarnation=session.incarnation,
            since=session.started_at or self._started_at,
            addresses=client_addresses(session),
            zone=session.zone,
            version=__version__ if is_self else session.version,
            partitions=partitions,
            messages_per_s=load.messages_per_s,
            bytes_per_s=load.bytes_per_s,
        )

    def _count_all(self) -> int:
        return sum(self._registry.topic(name).config().partition_count for name in self._registry.topics())

    def _count_without_owner(self) -> tuple[Counter[str], int]:
        """Return how many partitions wait for each broker that is away, and how many have no broker yet."""
        waiting: Counter[str] = Counter()
        unplaced = 0
        if self._membership.is_alone:
            return waiting, unplaced
        for name in self._registry.topics():
            topic = self._registry.topic(name)
            for index, owner in enumerate(self._partitions.routing.owners_of(topic)):
                if owner is not None:
                    continue
                if self._partitions.placement.is_unplaced(topic, index):
                    unplaced += 1
                elif (record := self._owners.record(topic.topic_id, index)) is not None:
                    waiting[record.owner or record.assigned] += 1
        return waiting, unplaced

    # -- the load of this broker ---------------------------------------------------------------------------------------

    def load(self) -> LoadRecord:
        """Return how much this broker does now."""
        now, count, messages_per_s, bytes_per_s = self._clock.now_us(), 0, 0.0, 0.0
        for partition in self._partitions:
            rates = partition.traffic.meter.rates(now)
            count, messages_per_s, bytes_per_s = count + 1, messages_per_s + rates[0], bytes_per_s + rates[1]
        incarnation = self._membership.session.incarnation
        state = LEAVING if self._is_leaving else self._state()
        rates = round(messages_per_s, 1), round(bytes_per_s, 1)
        return LoadRecord(incarnation, count, *rates, state, self._store_health())

    async def leave(self) -> None:
        """Tell the others that this broker stops, so that it is given nothing more. If that fails, what they give it is
        given to another when its session is over."""
        self._is_leaving = True
        await self.tell()

    async def run(self) -> None:
        """Tell the others at an interval, if there is something to tell, until cancelled."""
        while True:
            await self.tell()
            await self._clock.sleep(TOLD_INTERVAL_S)

    async def tell(self) -> None:
        """Tell the others this broker's load, if it has changed noticeably. What fails is told the next time."""
        load, lease = self.load(), self._membership.lease
        if not lease or not is_noticeable(self._told, load):
            return
        try:
            await self._store.transact([], [Put(load_key(self._membership.session.name), pack(load), lease)])
        except DanubeError as error:  # the lease has ended, or the metadata cannot be reached
            log.debug("broker.load_not_told", error=error.message)
        else:
            self._told = load
