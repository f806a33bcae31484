"""Rows of a Spark task, as Arrow record batches, become encoded batches for each partition of each topic.

```
 record batches  ->  a round of some MiB  ->  which partition, for every row  ->  one take  ->  slices  ->  batches
```

What is done for a row is done in numpy or Arrow, for all rows of a round at once; Python loops over topics, partitions
and batches only. Rows of one key keep their order, and so do all rows of one partition.

Invariants
    what is in hand is at most a round and one record batch
    a batch holds at most `batch_messages` rows, and `batch_bytes` plus one row
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from pydanube.client.producing.partitioning import fnv1a_64_each
from pydanube.codec.batch import Codec
from pydanube.codec.batch.pack import ArrowColumns, ArrowText, AttributeColumns, pack
from pydanube.model.errors import Invalid
from pydanube.model.limits import MIB
from pydanube.model.names import TopicName

ROUND_BYTES: Final = 16 * MIB
"""Rows that are dealt out together: many partitions still get batches worth their headers."""

TOPICS_MAX: Final = 1_000
"""Topics that one task writes to; more is a column of something else."""

IntArray: TypeAlias = "np.ndarray[Any, np.dtype[np.signedinteger[Any]]]"
BoolArray: TypeAlias = "np.ndarray[Any, np.dtype[np.bool_]]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """How rows are made into batches."""

    topic: str = ""
    """For all rows; empty: each row names its own, in the column `topic`."""
    partition_by: str | int = "key"
    """"key", "round-robin", or the number of a partition"""
    producer: str = ""
    codec: Codec = Codec.NONE
    batch_bytes: int = MIB
    batch_messages: int = 10_000


class Packed(NamedTuple):
    """A batch, and where it belongs."""

    topic: str
    partition: int
    batch: bytearray


class _TopicPartitions(NamedTuple):
    topic: str
    partitions: int


class Packer:
    """The rows of one task on their way. `partitions_of` tells how many a topic has, and is asked once for each."""

    def __init__(
        self, packing: Packing, partitions_of: Callable[[str], int], now_us: Callable[[], int], first_turn: int = 0
    ) -> None:
        self._packing = packing
        self._partitions_of = partitions_of
        self._now_us = now_us
        self._first_turn = first_turn
        self._topics_seen: dict[str, _TopicPartitions] = {}
        self._weights_sent: dict[str, int] = {}
        """For each topic, the weight of what took turns so far."""
        self._row_weight = -(-packing.batch_bytes // packing.batch_messages)
        """The least that a row weighs: so many of them as may be in a batch weigh as much as a batch may."""

    def packed(self, record_batches: Iterable[pa.RecordBatch]) -> Iterator[Packed]:
        """Everything, in order. Raises Invalid for rows that are no messages, before any row of their round is out."""
        held: list[pa.RecordBatch] = []
        held_bytes = 0
        for rows in record_batches:
            if held and held_bytes + rows.nbytes > ROUND_BYTES:
                yield from self._pack_round(_combine(held))
                held, held_bytes = [], 0
            if rows.num_rows:
                held.append(rows)
                held_bytes += rows.nbytes
        if held:
            yield from self._pack_round(_combine(held))

    def _pack_round(self, rows: pa.RecordBatch) -> Iterator[Packed]:
        for name in ("payload", "topic"):
            _refuse_nulls(rows, name, self._packing.topic)
        weights = np.maximum(_sizes(rows), self._row_weight)
        groups, names = self._assign_partitions(rows, weights)
        sizes = np.bincount(groups, minlength=len(names))
        if sizes[groups[0]] != rows.num_rows:
            order = np.argsort(groups, kind="stable")
            rows, weights = rows.take(pa.array(order)), weights[order]
        now_us, start = self._now_us(), 0
        for (topic, partition), size in zip(names, sizes.tolist(), strict=True):
            end = start + size
            for begin, stop in _cut(weights[start:end], self._packing.batch_bytes):
                piece = _columns(rows.slice(start + begin, stop - begin), now_us)
                batch = pack(piece, producer_name=self._packing.producer, codec=self._packing.codec)
                yield Packed(topic, partition, batch)
            start = end

    # -- which partition ----------------------------------------------------------------------------------------------

    def _assign_partitions(self, rows: pa.RecordBatch, weights: IntArray) -> tuple[IntArray, list[tuple[str, int]]]:
        """The group of every row, and for each group its topic and partition."""
        codes, topics = self._topic_codes(rows)
        counts = np.array([topic_of.partitions for topic_of in topics])
        chosen = self._choose_partitions(rows, codes, counts)
        for code, topic_of in enumerate(topics):
            mine = np.flatnonzero((chosen < 0) & (codes == code))
            if len(mine):
                chosen[mine] = self._round_robin(topic_of, weights[mine])
        groups = (np.cumsum(counts) - counts)[codes] + chosen
        names = [(topic_of.topic, partition) for topic_of in topics for partition in range(topic_of.partitions)]
        narrow = np.uint16 if len(names) < 2**16 else np.int64  # numpy sorts short numbers by their digits
        return groups.astype(narrow), names

    def _topic_codes(self, rows: pa.RecordBatch) -> tuple[IntArray, list[_TopicPartitions]]:
        """Which of the topics each row is for."""
        if self._packing.topic:
            return np.zeros(rows.num_rows, np.int64), [self._topic(self._packing.topic)]
        encoded = rows.column("topic").dictionary_encode()
        return encoded.indices.to_numpy(), [self._topic(name) for name in encoded.dictionary.to_pylist()]

    def _topic(self, name: str) -> _TopicPartitions:
        topic_of = self._topics_seen.get(name)
        if topic_of is None:
            if len(self._topics_seen) >= TOPICS_MAX:
                raise Invalid(f"column topic names more than {TOPICS_MAX} topics in one task: is it the right column?")
            topic = _topic_name(name)
            topic_of = self._topics_seen[name] = _TopicPartitions(topic, self._partitions_of(topic))
        return topic_of

    def _choose_partitions(self, rows: pa.RecordBatch, codes: IntArray, counts: IntArray) -> IntArray:
        """The partition of every row; -1: in turn."""
        by = self._packing.partition_by
        if isinstance(by, int):
            if by >= counts.min():
                raise Invalid(f"partitionBy={by}: the topic has {counts.min()} partitions, counted from 0")
            return np.full(rows.num_rows, by, np.int64)
        if counts.max() == 1:
            return np.zeros(rows.num_rows, np.int64)
        if by != "key" or "key" not in rows.schema.names:
            return np.full(rows.num_rows, -1, np.int64)
        keys = rows.column("key")
        texts = _texts(keys)
        hashes = fnv1a_64_each(texts.offsets, memoryview(texts.data))
        chosen = (hashes % counts.astype(np.uint64)[codes]).astype(np.int64)
        if keys.null_count:
            chosen[~_valid(keys)] = -1
        return chosen

    def _round_robin(self, topic_of: _TopicPartitions, weights: IntArray) -> IntArray:
        """A batch for one partition, the next one for the next."""
        before = self._weights_sent.get(topic_of.topic, 0)
        behind = before + np.cumsum(weights)
        self._weights_sent[topic_of.topic] = int(behind[-1])
        turns = (behind - weights) // self._packing.batch_bytes
        partitions: IntArray = (self._first_turn + turns) % topic_of.partitions
        return partitions


def _topic_name(name: str) -> str:
    try:
        return str(TopicName.parse(name))
    except Invalid as error:
        raise Invalid(f"column topic: {error.message}") from None


def _combine(held: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(held) == 1:
        return held[0]
    return pa.Table.from_batches(held).combine_chunks().to_batches()[0]


def _refuse_nulls(rows: pa.RecordBatch, name: str, topic: str) -> None:
    """A message has a payload and a topic."""
    if name not in rows.schema.names or (name == "topic" and topic):
        return
    nulls = rows.column(name).null_count
    if nulls:
        fix = {
            "payload": "leave those rows out (where payload is not null), or give them an empty one with coalesce",
            "topic": "leave those rows out, fill it with coalesce, or name one topic for all with the option 'topic'",
        }
        raise Invalid(f"column {name} is null in {nulls} of {rows.num_rows} rows: {fix[name]}")


def _cut(weights: IntArray, most: int) -> list[tuple[int, int]]:
    """Neighbours that go into one batch: until they weigh as much as a batch may, and what weighs more by itself."""
    if not len(weights):
        return []
    starts = np.cumsum(weights) - weights
    turns = starts // most
    first = np.flatnonzero((turns[1:] != turns[:-1]) | (weights[1:] > most)) + 1
    edges = [0, *first.tolist(), len(weights)]
    return list(pairwise(edges))


# -- columns of Arrow -------------------------------------------------------------------------------------------------


def _columns(rows: pa.RecordBatch, now_us: int) -> ArrowColumns:
    """The columns of one batch, over the memory they lie in."""
    present = rows.schema.names
    keys = rows.column("key") if "key" in present else None
    valid = _valid(keys) if keys is not None and keys.null_count else None
    return ArrowColumns(
        _texts(rows.column("payload")),
        _times(rows.column("publish_time"), now_us) if "publish_time" in present else now_us,
        None if keys is None else _texts(keys),
        valid,
        _attributes(rows.column("attributes")) if "attributes" in present else None,
    )


def _texts(values: pa.Array) -> ArrowText:
    """A column of text or bytes. Rows that are null have no bytes in it."""
    if values.type in (pa.large_binary(), pa.large_string()):
        values = values.cast(pa.binary())
    texts = ArrowText(_offsets(values), values.buffers()[2] or b"")
    if values.null_count and np.count_nonzero(texts.lengths()[~_valid(values)]):
        return _texts(values.fill_null(b"" if values.type == pa.binary() else ""))
    return texts


def _offsets(values: pa.Array) -> Any:
    """Of a column of text, bytes or maps, which may be a slice."""
    if not len(values):
        return np.zeros(1, np.int32)
    return np.frombuffer(values.buffers()[1], np.int32, len(values) + 1, 4 * values.offset)


def _valid(values: pa.Array) -> BoolArray:
    valid: BoolArray = values.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _times(values: pa.Array, now_us: int) -> Any:
    """Microseconds; rows without one are published now."""
    numbers = values.cast(pa.timestamp("us", tz=values.type.tz)).view(pa.int64())
    return numbers.fill_null(now_us).to_numpy() if numbers.null_count else numbers.to_numpy()


def _attributes(maps: pa.Array) -> AttributeColumns:
    lists = _offsets(maps)
    if maps.null_count and np.count_nonzero((lists[1:] - lists[:-1])[~_valid(maps)]):
        return _attributes(maps.take(pa.array(np.arange(len(maps)))))  # the copy has nothing where there is nothing
    values = maps.items
    if values.slice(lists[0], lists[-1] - lists[0]).null_count:
        raise Invalid(
            "column attributes has a null value: use map_filter(attributes, (k, v) -> v is not null), or coalesce"
        )
    return AttributeColumns(lists, _texts(maps.keys), _texts(values))


def _sizes(rows: pa.RecordBatch) -> IntArray:
    """Bytes of every row, about."""
    present = rows.schema.names
    sizes = _texts(rows.column("payload")).lengths().astype(np.int64)
    if "key" in present:
        sizes += _texts(rows.column("key")).lengths()
    if "attributes" in present:
        lists, keys, values = _attributes(rows.column("attributes"))
        sizes += keys.offsets[lists[1:]] - keys.offsets[lists[:-1]]
        sizes += values.offsets[lists[1:]] - values.offsets[lists[:-1]]
    return sizes
