"""One message, as a row of its batch. Nothing is cut out or converted before somebody asks for it."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from pydanube.model.positions import datetime_from_micros

if TYPE_CHECKING:
    from .batch import Batch


class BatchMessage(msgspec.Struct, gc=False, eq=False):
    """Making one costs some 50 ns. Subclasses add fields: `Message(batch, row, ...)`."""

    batch: Batch
    row: int

    @property
    def payload(self) -> bytes:
        return self.batch.payloads[self.row]

    @property
    def key(self) -> str | None:
        return self.batch.keys[self.row]

    @property
    def attributes(self) -> dict[str, str]:
        return self.batch.attributes[self.row]

    @property
    def offset(self) -> int:
        return self.batch.offset_at(self.row)

    @property
    def publish_time(self) -> datetime:
        return datetime_from_micros(self.batch.publish_time_at(self.row))

    @property
    def append_time(self) -> datetime:
        return datetime_from_micros(self.batch.append_time_at(self.row))

    @property
    def deliver_at(self) -> datetime | None:
        """None: at once."""
        column = self.batch.deliver_at
        moment = 0 if column is None else int(column[self.row])
        return datetime_from_micros(moment) if moment else None

    @property
    def producer(self) -> str:
        return self.batch.producer_name

    @property
    def schema_id(self) -> int:
        return self.batch.header.schema_id

    @property
    def schema_version(self) -> int:
        return self.batch.header.schema_version

    def __repr__(self) -> str:
        return f"{type(self).__name__}(offset={self.offset}, key={self.key!r}, payload={self.payload[:32]!r})"
