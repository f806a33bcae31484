"""Topics of the ack level `stored`: brokers that die, and what is in the object store afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from broker_harness import BrokerClient
from metadata_harness import FaultyStore, Writes

from pydanube.broker import Broker
from pydanube.broker.registry.records import PARTITIONS, PartitionRecord, SequenceRecord
from pydanube.codec.slice import HEADER_BYTES
from pydanube.core.access import ANONYMOUS
from pydanube.metadata.packing import unpack
from pydanube.metadata.store import MetadataStore, list_all
from pydanube.model.errors import Unavailable
from pydanube.model.names import TopicName
from pydanube.model.positions import EARLIEST, Position
from pydanube.model.topics import AckLevel
from pydanube.operations.subscriptions import Seek
from pydanube.runtime.objects import Buffer, ObjectInfo
from pydanube.runtime.objects.memory import MemoryStore

STORED = AckLevel.STORED


class Death:
    """Counts what a broker writes, and lets nothing more happen after `after` writes."""

    def __init__(self, after: int | None = None) -> None:
        self.after = after
        self.writes = 0

    def is_dead(self) -> bool:
        self.writes += 1
        return self.after is not None and self.writes > self.after


class MortalStore(MemoryStore):
    """An object store that refuses the puts of a broker that is dead."""

    def __init__(self) -> None:
        super().__init__()
        self.death = Death()

    async def put(
        self, key: str, data: Buffer | Sequence[Buffer], *, create: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        if self.death.is_dead():
            raise Unavailable("the broker is dead")
        return await super().put(key, data, create=create, if_match=if_match)


def mortal_metadata(death: Death) -> FaultyStore:
    """Return a metadata store that refuses the transactions of a broker that is dead."""
    store = FaultyStore()

    def dies(_writes: Writes) -> bool:
        return death.is_dead()

    store.refuse_all(dies)
    return store


async def stored_topic(broker: Broker, topic: str = "orders", **config: Any) -> BrokerClient:
    client = BrokerClient(broker, TopicName.parse(f"/default/{topic}"))
    await client.create(ack_level=STORED, **config)
    return client


def client_of(broker: Broker, topic: str = "orders") -> BrokerClient:
    return BrokerClient(broker, TopicName.parse(f"/default/{topic}"))


async def offset_of(client: BrokerClient, position: Position = EARLIEST) -> list[tuple[int, int]]:
    return (
        await client.broker.subscriptions.seek(
            ANONYMOUS, Seek(topic=client.topic, subscription="billing", position=position)
        )
    ).positions


async def slices(objects: MemoryStore) -> list[str]:
    """Return the keys of slices that are no markers."""
    return [one.key async for one in objects.list("slices/") if one.size > HEADER_BYTES]


async def markers(objects: MemoryStore) -> list[str]:
    return [one.key async for one in objects.list("slices/") if one.size == HEADER_BYTES]


async def sequences(store: MetadataStore) -> list[list[SequenceRecord]]:
    """Return what each partition needs, by its key."""
    return [unpack(one.value, PartitionRecord).sequences async for one in list_all(store, PARTITIONS)]
