"""Reads single messages of a partition by their offsets, for administration: peeking at a backlog, and dead letters.

The hot path works per batch and does not use this.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final, NamedTuple

import numpy as np

from pydanube.broker.partitions.decompression import DecompressionBudget
from pydanube.codec.batch import Batch, Codec
from pydanube.model.dead_letters import LETTER_PRODUCER
from pydanube.model.limits import KIB
from pydanube.model.messages import StoredMessage
from pydanube.storage.stream import PartitionStream

MADE_TIMES: Final = 2
"""In the memory of what clients have not received, a message that is read takes this many times its size: in the batch
and by itself."""

READ_BYTES: Final = 256 * KIB
"""Stored batches are read in pieces of about this size."""

Range = tuple[int, int]


class BatchRows(NamedTuple):
    """Adjacent rows [start, end) of a stored batch."""

    batch: Batch
    start: int
    end: int


async def read_rows(stream: PartitionStream, ranges: Sequence[Range]) -> AsyncGenerator[BatchRows, None]:
    """Yield the stored rows in these ranges of offsets, which are in order and do not overlap.

    Offsets without a stored message are left out. A caller that stops early closes the generator (`aclosing`).
    """
    batches: list[Batch] = []
    for start, end in ranges:
        offset = start
        while offset < end:
            while batches and batches[0].end_offset <= offset:
                batches.pop(0)
            if not batches:
                batches = [Batch.trust(view) for view in await stream.read(offset, READ_BYTES)]
            if not batches or batches[0].base_offset >= end:
                break
            batch = batches[0]
            first, last = np.searchsorted(batch.offsets, (offset, end)).tolist()
            if first < last:
                yield BatchRows(batch, first, last)
            offset = batch.end_offset


async def read_messages(
    stream: PartitionStream, partition: int, ranges: Sequence[Range], decompression: DecompressionBudget
) -> AsyncGenerator[StoredMessage, None]:
    """Yield the messages in these ranges of offsets, as `read_rows` finds them."""
    async with aclosing(read_rows(stream, ranges)) as found:
        async for rows in found:
            if rows.batch.header.codec is not Codec.NONE:
                await decompression.turn(rows.batch.header.plain_length)
            for message in messages_of(rows, partition):
                yield message


def messages_of(rows: BatchRows, partition: int) -> list[StoredMessage]:
    """Return the messages of these rows; other rows of the batch are not unpacked."""
    batch, start, end = rows
    if end - start < batch.count:
        batch = batch.slice(start, end)
    header, deliver_at = batch.header, batch.deliver_at
    return [
        StoredMessage(
            partition,
            batch.offset_at(row),
            payload,
            batch.keys[row],
            batch.attributes[row],
            batch.publish_time_at(row),
            batch.append_time_at(row),
            batch.producer_name,
            0 if deliver_at is None else int(deliver_at[row]),
            header.schema_id,
            header.schema_version,
            header.producer_id == LETTER_PRODUCER,
        )
        for row, payload in enumerate(batch.payloads)
    ]
