"""The producers that clients of the Danube gRPC API have open.

These clients open no connection per producer and never close one: a producer is open as long as something is heard of
it, a message or a health check. One that was silent, or was opened before a restart, is opened again by its next
message.

Invariants
    a producer that nothing was heard of for SILENT_S is not open, and counts against no limit
    a producer id is accepted only from the principal, and with the topic and the name, that it is the hash of
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from pydanube.broker.cluster.topic_addresses import Place, TopicAddresses
from pydanube.broker.context import BrokerContext
from pydanube.broker.producers.producers import Producer, Producers, shared_id
from pydanube.core.access import Action, Principal
from pydanube.model.errors import Denied, Unavailable
from pydanube.model.names import TopicAddress

SILENT_S: Final = 30.0
"""Clients send a health check every 5 seconds."""

ROUND_S: Final = 10.0
"""How often silent producers are looked for, while there are any producers."""


class SharedProducer:
    """An open producer of one name at one address, for all clients that use it."""

    __slots__ = ("address", "heard_at", "name", "producer")

    def __init__(self, address: str, name: str, producer: Producer) -> None:
        self.address = address
        self.name = name
        self.producer = producer
        self.heard_at = 0.0

    @property
    def is_open(self) -> bool:
        return self.producer.fenced is None and self.producer.partition.closed is None


@dataclass(eq=False)
class SharedProducers:
    """Opens producers by name, finds them by id, and closes those that are silent."""

    context: BrokerContext
    producers: Producers
    addresses: TopicAddresses

    def __post_init__(self) -> None:
        self._open: dict[int, SharedProducer] = {}
        self._rounds: asyncio.Task[None] | None = None

    async def open(
        self, principal: Principal, address: TopicAddress, place: Place, name: str, exclusive: bool = False
    ) -> SharedProducer:
        """Open a producer, or return the one that is open under this name."""
        self.context.authorizer.check(principal, Action.PRODUCE, str(place.topic))
        number = shared_id(address.text, name, principal.owner_id)
        producer = await self.producers.open_shared(principal, place.topic, place.partition, name, number, exclusive)
        found = self._open.get(number)
        if found is None or found.producer is not producer:
            found = SharedProducer(address.text, name, producer)
            self._open[number] = found
            if self._rounds is None or self._rounds.done():
                self._rounds = self.context.tasks.spawn(self._close_silent(), "silent producers closing")
        found.heard_at = self.context.clock.monotonic()
        return found

    def find(self, principal: Principal, producer_id: int, address: str, name: str) -> SharedProducer | None:
        """Return the open producer for a message that names this id, this address and, if it is not empty, this name;
        None: call `reopen`. Raises Denied for a producer of another principal."""
        found = self._open.get(producer_id)
        if found is None or found.address != address or not found.is_open or name not in (found.name, ""):
            return None
        self.context.authorizer.check(principal, Action.PRODUCE, found.producer.topic)
        if found.producer.principal.id != principal.id:
            raise Denied(f"producer {producer_id} does not belong to {principal.id}: create one")
        found.heard_at = self.context.clock.monotonic()
        return found

    async def reopen(self, principal: Principal, producer_id: int, address: str, name: str) -> SharedProducer:
        """Open the producer of a client that has an id from before. Raises Unavailable for an id that is not that of
        the name at the address, and NotFound if the topic does not exist any more."""
        self.addresses.check(principal, Action.PRODUCE, parsed := TopicAddress.parse(address))
        place = self.addresses.get(principal, parsed)
        if producer_id != shared_id(address, name, principal.owner_id):
            raise Unavailable(f"producer {producer_id} is not {name!r} on {address}: create the producer again")
        return await self.open(principal, parsed, place, name)

    def hear(self, producer_id: int) -> bool:
        """Note that the client of a producer is there; return whether the producer is open."""
        found = self._open.get(producer_id)
        if found is None or not found.is_open:
            return False
        found.heard_at = self.context.clock.monotonic()
        return True

    async def _close_silent(self) -> None:
        while self._open:
            await self.context.clock.sleep(ROUND_S)
            limit = self.context.clock.monotonic() - SILENT_S
            for number, one in list(self._open.items()):
                if one.heard_at < limit or not one.is_open:
                    one.producer.close()
                    del self._open[number]
