"""Finds and creates the topics that Danube clients address, also by the names of their partitions.

Danube clients have no call that creates a partitioned topic on the data port: they open one producer for each
``/namespace/topic-part-k``. So the first producer of a partition creates the topic or adds the partitions up to k.

Invariants
    a name is compared whole; a topic that itself has a name ending in ``-part-k``, from an earlier release, comes first
    for those who may do something to it; for others the name is that of a partition, as if that topic did not exist
    a plain topic and a partitioned topic never share a name
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from pydanube.broker.registry.records import TopicRecord
from pydanube.broker.registry.registry import Registry
from pydanube.core.access import Action, Authorizer, Principal
from pydanube.model.errors import AlreadyExists, Denied, NotFound, Refused, Unavailable
from pydanube.model.names import TopicAddress, TopicName
from pydanube.model.security import subscription_resource
from pydanube.model.topics import AckLevel, TopicConfig
from pydanube.runtime.telemetry import get_logger

log = get_logger(__name__)

TRIES: Final = 10
"""How often creating or growing a topic is tried while other producers do the same."""


class Place(NamedTuple):
    """A partition of a topic; a plain topic has partition 0 only."""

    topic: TopicName
    partition: int


ChooseLevel = Callable[[], Awaitable[AckLevel]]


class TopicAddresses:
    """Resolves addresses. `find` and `get` refuse nothing: they come before calls that do."""

    def __init__(self, registry: Registry, authorizer: Authorizer, auto_create: bool, ack_level: ChooseLevel) -> None:
        """`ack_level` returns that of topics which a first publish creates."""
        self._registry = registry
        self._authorizer = authorizer
        self._auto_create = auto_create
        self._ack_level = ack_level

    def find(self, principal: Principal, address: TopicAddress) -> Place | None:
        """Return the partition that the address names to the caller; None if there is none."""
        return self._place(address, self._own(principal, address))

    def _own(self, principal: Principal, address: TopicAddress) -> TopicRecord | None:
        """Return the topic whose own name the address is; None if there is none, or if the address may name a partition
        too and the caller may do nothing to that topic."""
        record = self._registry.find_topic(address.topic) if address.topic is not None else None
        if record is None or address.base is None:
            return record
        is_seen = any(self._authorizer.allows(principal, one, str(address.topic)) for one in Action)
        return record if is_seen else None

    def _place(self, address: TopicAddress, own: TopicRecord | None) -> Place | None:
        if own is not None and address.topic is not None:
            return None if own.partitions else Place(address.topic, 0)
        if address.base is None or (record := self._registry.find_topic(address.base)) is None:
            return None
        return Place(address.base, address.partition) if address.partition < record.partitions else None

    async def refresh(self, address: TopicAddress) -> None:
        """In a cluster, ask the metadata about an address that this broker has not heard of yet: before `find`, `get`
        and the others, which answer from memory."""
        own = self._registry.find_topic(address.topic) if address.topic is not None else None
        if self._place(address, own) is not None:
            return
        if address.topic is not None:
            await self._registry.refresh_topic(address.topic)
        if address.base is not None:
            await self._registry.refresh_topic(address.base, address.partition)

    def get(self, principal: Principal, address: TopicAddress) -> Place:
        """Return the partition that the address names to the caller. Raises NotFound."""
        place = self.find(principal, address)
        if place is not None:
            return place
        if (record := self._own(principal, address)) is not None:
            raise NotFound(
                f"topic {address} has {record.partitions} partitions: address one of them, {address}-part-0 for example"
            )
        raise NotFound(f"topic {address} does not exist: a producer creates it, or `danube topics create`")

    def _resource(self, principal: Principal, address: TopicAddress) -> str:
        """Return the topic that rules of access name for the address: that of the partition, if it is one to the caller
        or would become one."""
        is_own = address.base is None or self._own(principal, address) is not None
        return str(address.topic if is_own else address.base)

    def check(self, principal: Principal, action: Action, address: TopicAddress, subscription: str = "") -> None:
        """Raise Denied unless the principal may do something to the topic that the address names, or to a subscription
        of it, whether it exists or not: before an operation says which of both it is."""
        topic = self._resource(principal, address)
        try:
            self._authorizer.check(
                principal, action, subscription_resource(topic, subscription) if subscription else topic
            )
        except Denied as error:  # it names what the caller has named: which topic that is says what exists
            raise Denied(error.message.replace(topic, address.text, 1)) from None

    def check_exists(self, principal: Principal, address: TopicAddress) -> None:
        """Raise NotFound if the address names neither a topic nor a partition."""
        self.check(principal, Action.DESCRIBE, address)
        if self._own(principal, address) is None:
            self.get(principal, address)

    def names(self, principal: Principal, address: TopicAddress) -> list[str]:
        """Return the names of the partitions: the address itself for a plain topic or a partition, and none for an
        unknown topic."""
        self.check(principal, Action.DESCRIBE, address)
        if self.find(principal, address) is not None:
            return [address.text]
        record = self._own(principal, address)
        if record is None or address.topic is None:
            return []
        return [address.topic.partition(index) for index in range(record.partitions)]

    async def ensure(self, principal: Principal, address: TopicAddress, reliable: bool) -> Place:
        """Return the partition that a producer addresses; create the topic, or add partitions, if `topics.auto_create`
        allows it.

        Raises AlreadyExists if the name is that of a topic of the other kind (plain or partitioned), and Refused if the
        topic has the other dispatch strategy. Cancelled: the topic may have been created or grown.
        """
        self.check(principal, Action.PRODUCE, address)
        for _ in range(TRIES):
            await self.refresh(address)
            place = self.find(principal, address)
            if place is not None:
                _check_dispatch(place.topic, self._registry.topic(place.topic), reliable)
                return place
            await self._create_or_grow(principal, address, reliable)
        raise Unavailable(f"topic {address} is being changed by others all the time: try again")

    async def _create_or_grow(self, principal: Principal, address: TopicAddress, reliable: bool) -> None:
        topic = address.base if address.base is not None else address.topic
        assert topic is not None
        record = self._registry.find_topic(topic)
        if record is not None and (not record.partitions or address.base is None):
            kind = "partitioned, and not a plain topic" if record.partitions else "a plain topic, without partitions"
            raise AlreadyExists(f"topic {topic} exists already and is {kind}: {address} cannot be created beside it")
        if not self._auto_create:
            raise NotFound(f"topic {address} does not exist: create it, or turn on topics.auto_create")
        self._authorizer.check(principal, Action.CREATE, str(topic))
        partitions = address.partition + 1 if address.base is not None else 0
        if record is None:
            level = await self._ack_level() if reliable else AckLevel.MEMORY
            config = TopicConfig(partitions, reliable, level)
            try:
                await self._registry.create_topic(topic, config, principal.owner_id)
            except AlreadyExists:
                return  # another producer was faster: the caller looks again
            log.info("topic.created", topic=str(topic), partitions=partitions, ack_level=str(config.ack_level))
            return
        _check_dispatch(topic, record, reliable)
        if await self._registry.ensure_partitions(topic, partitions):
            log.info("topic.grown", topic=str(topic), partitions=partitions)


def _check_dispatch(topic: TopicName, record: TopicRecord, reliable: bool) -> None:
    if record.reliable != reliable:
        has, wanted = ("reliable", "non-reliable") if record.reliable else ("non-reliable", "reliable")
        raise Refused(f"topic {topic} has {has} dispatch, and the producer asks for {wanted}: open it as it is")
