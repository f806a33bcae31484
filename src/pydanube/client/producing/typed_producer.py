"""A producer with a schema: it registers the schema when it is opened, and encodes the values that it is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, TypedDict, Unpack, cast

from pydanube.client.connection.routing import Brokers
from pydanube.client.settings import ProducerSettings
from pydanube.client.typed.registration import Registration
from pydanube.client.typed.value_type import ValueT
from pydanube.model.errors import Invalid

from .message_intake import Attributes
from .partitioning import PartitionBy
from .producer import Producer
from .receipts import Receipt, Receipts


class SendArguments(TypedDict, total=False):
    key: str | None
    attributes: Attributes | None
    publish_time: datetime | None
    deliver_at: datetime | None
    deliver_after: float | timedelta | None


class BulkSendArguments(TypedDict, total=False):
    keys: Sequence[str | None] | None
    attributes: Sequence[Attributes | None] | None
    publish_time: datetime | None
    deliver_at: datetime | None
    deliver_after: float | timedelta | None


class TypedProducer(Producer[ValueT]):
    """Publishes values of one type. A value that cannot be encoded raises Invalid, and nothing is published."""

    def __init__(
        self,
        brokers: Brokers,
        topic: str,
        settings: ProducerSettings,
        create_topic: bool,
        partition_by: PartitionBy,
        registration: Registration,
    ) -> None:
        super().__init__(brokers, topic, settings, create_topic, partition_by)
        self._registration = registration
        self._value_type = registration.value_type

    async def _choose_schema(self) -> None:
        subject, schema_id, version = await self._registration.run(self.topic)
        self._settings = replace(self._settings, subject=subject, schema=(schema_id, version))

    def encode(self, value: ValueT) -> bytes:
        """Return the payload of a value. Raises Invalid."""
        return self._value_type.encode(value)

    def encode_many(self, values: Sequence[ValueT]) -> list[bytes]:
        """Return the payloads of many values. Raises Invalid with the place of the first that is wrong."""
        if isinstance(values, bytes | str) or not isinstance(values, Sequence):
            raise Invalid("many values are a list: use send for a single one")
        return self._value_type.encode_many(values)

    async def send(self, payload: ValueT, **arguments: Unpack[SendArguments]) -> Receipt:
        return await super().send(cast(Any, self.encode(payload)), **arguments)

    def send_nowait(self, payload: ValueT, **arguments: Unpack[SendArguments]) -> None:
        super().send_nowait(cast(Any, self.encode(payload)), **arguments)

    async def send_many(self, payloads: Sequence[ValueT], **arguments: Unpack[BulkSendArguments]) -> Receipts:
        return await super().send_many(cast(Any, self.encode_many(payloads)), **arguments)

    async def queue_many(self, payloads: Sequence[ValueT], **arguments: Unpack[BulkSendArguments]) -> None:
        await super().queue_many(cast(Any, self.encode_many(payloads)), **arguments)
