"""A batch without its first rows, as somebody would have published it who had only the others."""

from __future__ import annotations

from pydanube.model.errors import Invalid

from .batch import Batch
from .encode import encode
from .layout import KEY


def rest_of(batch: Batch, row: int) -> bytearray:
    """The rows from `row` on: a batch of its own to publish, without a sequence and not yet stamped, where
    `Batch.slice` makes one for a delivery."""
    header = batch.header
    if not 0 <= row < header.count:
        raise Invalid(f"rows from {row} on are not a part of a batch of {header.count}")
    return encode(
        batch.payloads[row:],
        publish_times=batch.publish_times[row:].tolist(),
        keys=batch.keys[row:] if header.columns & KEY else None,
        attributes=batch.attributes[row:],
        deliver_at=None if batch.deliver_at is None else batch.deliver_at[row:].tolist(),
        producer_name=batch.producer_name,
        schema_id=header.schema_id,
        schema_version=header.schema_version,
        codec=header.codec,
    )
