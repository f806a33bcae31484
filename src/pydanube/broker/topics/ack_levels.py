"""Which ack level a topic gets, and whether the object store can keep it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from pydanube.broker.context import BrokerContext
from pydanube.broker.partitions.broker_slices import BrokerSlices
from pydanube.broker.tiering.object_storage import ObjectStorage
from pydanube.model.errors import DanubeError, Refused, Unavailable
from pydanube.model.names import TopicName
from pydanube.model.topics import AckLevel, TopicConfig
from pydanube.runtime.telemetry import get_logger

log = get_logger(__name__)


@dataclass(eq=False)
class AckLevels:
    """Without object storage, `tiers` and `slices` are None."""

    context: BrokerContext
    tiers: ObjectStorage | None
    slices: BrokerSlices | None

    async def default(self) -> AckLevel:
        """Return the ack level of a topic that was created without one: `stored` in a cluster, because there the
        loss of a broker must not matter, and `durable` on a broker alone.

        Where the object store cannot keep `stored` topics it is `durable`, with a warning. Raises Unavailable if that
        cannot be told now.
        """
        if self.context.cluster.membership.is_alone or self.slices is None:
            return AckLevel.DURABLE
        try:
            await self.slices.start()
        except Refused as error:
            log.warning("topic.not_stored", ack_level=str(AckLevel.DURABLE), error=error.message)
            return AckLevel.DURABLE
        return AckLevel.STORED

    async def of_first_publish(self) -> AckLevel:
        """Return the ack level of a topic that a first publish creates."""
        chosen = self.context.settings.topics.ack_level
        return chosen if chosen is not None else await self.default()

    async def check_storable(self, config: TopicConfig) -> None:
        """Raise Refused if a topic with this config cannot be kept by this broker's object store."""
        if not config.reliable or config.ack_level is not AckLevel.STORED:
            return
        if self.slices is None:
            raise Refused("this broker has no object storage, where `stored` topics are kept: set storage.url")
        with suppress(Unavailable):  # then the topic waits for the store
            await self.check_store()

    async def check_storing(self, topic: TopicName) -> None:
        """Raise Refused if a topic cannot become `stored`."""
        if self.slices is None:
            raise Refused(f"topic {topic} cannot be stored: this broker has no object storage; set storage.url")
        await self.check_store()

    async def check_store(self) -> None:
        """Raise Refused if the object store belongs to others, or cannot keep `stored` topics."""
        assert self.slices is not None and self.tiers is not None
        await self.tiers.check_ours()
        await self.slices.check()

    async def warn_of_store(self) -> None:
        """Check the store before the first topic needs it. Failed: it is checked again then."""
        try:
            await self.check_store()
        except DanubeError as error:
            log.warning("slices.unfit_store", error=error.message)
