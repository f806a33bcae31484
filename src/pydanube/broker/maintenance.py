"""Takes brokers out of service and back: drains, resumes and removes them.

```
 drain   ─► `drained_since` in the record of the broker, by comparing that another broker still takes partitions
            every broker sees it: none gives it a partition, and it gives its own away (partitions.draining)
 resume  ─► the field is 0 again
 remove  ─► away, and nothing waits for it: its leftovers, the tombstones of its log, its record
```

Invariants
    of the living brokers one at least takes partitions, as far as requests decide
    a broker is removed only while it has no session and no partition is in its log
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pydanube.metadata.packing import unpack
from pydanube.metadata.store import Compare, Delete, KeyValue, Put, list_all
from pydanube.model.cluster import DrainState, StuckPartition
from pydanube.model.errors import DanubeError, NotFound, Refused, Unavailable
from pydanube.model.levels import DRAINED_BROKERS
from pydanube.model.limits import METADATA_OPERATIONS_MAX
from pydanube.model.positions import utc_text
from pydanube.operations.brokers import DrainBroker
from pydanube.runtime.telemetry import get_logger
from pydanube.storage.segments.store_proof import PROOFS

from .cluster.node_records import (
    FOUNDER_LOG_KEY,
    NodeRecord,
    changed,
    log_key,
    node_key,
    session_key,
    unpack_node,
)
from .cluster.owners import Key, has_ledgers
from .cluster.placing import is_bound_to_log
from .context import BrokerContext
from .leftovers import Leftovers
from .partitions.open_partitions import Partitions
from .registry.records import DROPPED, PARTITIONS, PartitionRecord, TopicRecord, partition_of_key

log = get_logger(__name__)

TRIES: Final = 10
"""How often a record is read again because others changed it."""

EXAMPLES_MAX: Final = 10
"""The most partitions that are named with the reason why they cannot be given away."""


class Maintenance:
    """The brokers of the cluster, as they are taken out of service and back."""

    def __init__(
        self,
        context: BrokerContext,
        partitions: Partitions,
        leftovers: Leftovers,
        failures: Callable[[], dict[Key, str]],
    ) -> None:
        """`failures` returns why partitions of this broker could not be moved when that was tried last."""
        self._context = context
        self._registry = context.registry
        self._store = context.store
        self._membership = context.cluster.membership
        self._owners = context.cluster.owners
        self._partitions = partitions
        self._placement = partitions.placement
        self._leftovers = leftovers
        self._failures = failures

    # -- drain and resume ----------------------------------------------------------------------------------------------

    async def drain(self, asked: DrainBroker) -> DrainState:
        """Have a broker give its partitions away, and return how far it is.

        Raises NotFound, and Refused for one that is away or the last that takes partitions; nothing has changed then.
        Raises Unavailable if the broker does not answer: it may be drained, and the request can be repeated.
        """
        name = asked.broker
        if not asked.own_only:
            self._refuse_alone("drained")
            await self._mark_drained(name)
        if name == self._membership.session.name:
            return self._state()
        return await self._context.gathering.forward(name, DrainBroker(broker=name, own_only=True), DrainState)

    async def resume(self, name: str) -> None:
        """Let a broker take partitions again. Raises NotFound."""
        self._refuse_alone("resumed")
        for _ in range(TRIES):
            found, record = await self._read(name)
            if not record.drained_since:
                return
            value = changed(found.value, drained_since=0)
            if await self._write(found, value, []):
                log.info("broker.resumed", broker=name)
                return
        raise _changes_too_often(name)

    async def _mark_drained(self, name: str) -> None:
        for _ in range(TRIES):
            found, record = await self._read(name)
            if record.drained_since:
                return
            self._registry.level.require(DRAINED_BROKERS, "draining a broker")
            if self._membership.find(name) is None:
                raise Refused(f"{self._away(name)}: start it again, or see `danube brokers remove`")
            value = changed(found.value, drained_since=self._context.clock.now_us())
            if await self._write(found, value, await self._another_takes(name)):
                log.info("broker.drained", broker=name)
                return
        raise _changes_too_often(name)

    async def _another_takes(self, name: str) -> list[Compare]:
        """Return comparisons that hold while another broker takes partitions. Raises Refused if none does."""
        for session in self._placement.takers():
            if session.name == name:
                continue
            key = session_key(session.name)
            node, living = await self._store.get(node_key(session.name)), await self._store.get(key)
            if node is None or living is None or unpack_node(node.key, node.value).drained_since:
                continue
            return [
                Compare.mod_revision(node.key, node.mod_revision),
                Compare.mod_revision(key, living.mod_revision),
            ]
        drained = [one.name for one in self._membership.sessions() if self._membership.is_drained(one.name)]
        other = f"`danube brokers resume {drained[0]}`" if drained else "start another one"
        raise Refused(f"broker {name!r} is the last one that takes partitions: {other} first")

    def _state(self) -> DrainState:
        """Return how far this broker is."""
        mine = self._membership.session.name
        stuck: list[StuckPartition] = []
        keys, failures = self._owners.of_broker(mine), self._failures()
        names = {self._registry.topic(name).topic_id: name for name in self._registry.topics()}
        for topic_id, index in keys:
            partition = self._partitions.find(topic_id, index)
            reason = partition.unmovable if partition is not None else ""
            if reason := reason or failures.get((topic_id, index), ""):
                stuck.append(StuckPartition(str(names.get(topic_id, topic_id)), index, reason))
        return DrainState(mine, len(keys), len(stuck), stuck[:EXAMPLES_MAX])

    # -- remove --------------------------------------------------------------------------------------------------------

    async def remove(self, name: str) -> None:
        """Forget a broker that is away, with what is left over of its log.

        Raises NotFound, and Refused while it lives or partitions wait for it. Cancelled or failed: some of its
        leftovers are gone, and the request can be repeated.
        """
        self._refuse_alone("removed")
        for _ in range(TRIES):
            found, record = await self._read(name)
            if await self._store.get(session_key(name)) is not None:
                raise Refused(f"broker {name!r} lives: `danube brokers drain {name}`, stop it, and remove it then")
            await self._refuse_if_needed(name, record.log)
            await self._leftovers.give_up(record.log)
            await self._forget_tombstones(record.log)
            is_founder = self._membership.is_founder_log(record.log)
            keys = [node_key(name), FOUNDER_LOG_KEY if is_founder else log_key(record.log), f"{PROOFS}{name}"]
            compares = [Compare.mod_revision(found.key, found.mod_revision), Compare.missing(session_key(name))]
            if (await self._store.transact(compares, [Delete(key) for key in keys])).succeeded:
                log.info("broker.removed", broker=name, log=record.log)
                return
        raise _changes_too_often(name)

    async def _refuse_if_needed(self, name: str, its_log: str) -> None:
        """Raise Refused if a partition waits for the broker, because its log holds ledgers of the partition."""
        topics = {one.topic_id: (name, one) for name in self._registry.topics() for one in [self._registry.topic(name)]}
        waiting: list[str] = []
        async for entry in list_all(self._store, PARTITIONS):
            topic_id, index = partition_of_key(entry.key)
            record = unpack(entry.value, PartitionRecord)
            topic, config = topics.get(topic_id, (None, None))
            if topic is None or config is None or not self._is_in(its_log, config, record):
                continue
            waiting.append(topic.partition(index) if config.partitions else str(topic))
        if waiting:
            first = waiting[0].rpartition("-part-")[0] or waiting[0]
            more = f" and {len(waiting) - 1} more" if len(waiting) > 1 else ""
            raise Refused(
                f"{self._away(name)}, and its log has {waiting[0]}{more}: start it again and `danube brokers drain "
                f"{name}`; if its disk is lost, `danube topics takeover {first}` first"
            )

    def _is_in(self, its_log: str, topic: TopicRecord, record: PartitionRecord) -> bool:
        """Return whether a partition is in the log of a broker, and in nothing else."""
        if not is_bound_to_log(topic, record) or not has_ledgers(record):
            return False
        return record.log == its_log or (not record.log and self._membership.is_founder_log(its_log))

    async def _forget_tombstones(self, its_log: str) -> None:
        """Delete the tombstones of a log: nobody will free anything in it."""
        gone = [
            Delete(one.key)
            async for one in list_all(self._store, DROPPED)
            if one.value.decode() == its_log or (not one.value and self._membership.is_founder_log(its_log))
        ]
        for start in range(0, len(gone), METADATA_OPERATIONS_MAX):
            await self._store.transact([], gone[start : start + METADATA_OPERATIONS_MAX])

    # -- records -------------------------------------------------------------------------------------------------------

    async def _read(self, name: str) -> tuple[KeyValue, NodeRecord]:
        """Return the record of a broker as the metadata has it. Raises NotFound."""
        found = await self._store.get(node_key(name))
        if found is None:
            known = sorted({one.name for one in self._membership.sessions()} | {*self._membership.away()})
            raise NotFound(f"there is no broker {name!r}: there is {', '.join(map(repr, known))}")
        return found, unpack_node(found.key, found.value)

    async def _write(self, former: KeyValue, value: bytes, compares: list[Compare]) -> bool:
        """Replace a record if it is as it was read and `compares` hold; return whether that is so."""
        unchanged = Compare.mod_revision(former.key, former.mod_revision)
        return (await self._store.transact([unchanged, *compares], [Put(former.key, value)])).succeeded

    def _refuse_alone(self, what: str) -> None:
        if self._membership.is_alone:
            raise Refused(f"this broker is no part of a cluster: it cannot be {what}")

    def _away(self, name: str) -> str:
        since_us = self._membership.away_since(name)
        return f"broker {name!r} is away" + (f" since {utc_text(since_us)}" if since_us else "")


def _changes_too_often(name: str) -> DanubeError:
    return Unavailable(f"the record of broker {name!r} changes all the time: try again")
