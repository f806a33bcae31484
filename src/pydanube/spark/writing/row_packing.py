"""Converts the rows of a Spark task, as Arrow record batches, to encoded batches for each partition of each topic.

```
 record batches  ->  a round of some MiB  ->  which partition, for every row  ->  one take  ->  slices  ->  batches
```

Work per row is done in numpy or Arrow, for all rows of a round at once; Python loops only over topics, partitions and
batches. Rows of one key keep their order, and so do all rows of one partition.

Invariants
    at most one round and one record batch are in memory
    a batch holds at most `batch_messages` rows, and at most `batch_bytes` plus one row
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
"""The size of a round, whose rows are assigned together: large enough for good batches in many partitions."""

TOPICS_MAX: Final = 1_000
"""The most topics that one task writes to; more suggest that the column is not a topic."""

IntArray: TypeAlias = "np.ndarray[Any, np.dtype[np.signedinteger[Any]]]"
BoolArray: TypeAlias = "np.ndarray[Any, np.dtype[np.bool_]]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """How rows are made into batches."""

    topic: str = ""
    """The topic of all rows; empty: each row names its own in the column `topic`."""
    partition_by: str | int = "key"
    """"key", "round-robin", or the number of a partition"""
    producer: str = ""
    codec: Codec = Codec.NONE
    schema: tuple[int, int] = (0, 0)
    """The schema id and the version that the payloads were encoded with; zeros: none."""
    batch_bytes: int = MIB
    batch_messages: int = 10_000


class Packed(NamedTuple):
    """An encoded batch, with its topic and partition."""

    topic: str
    partition: int
    batch: bytearray


class _TopicPartitions(NamedTuple):
    topic: str
    partitions: int


class Packer:
    """Packs the rows of one task. `partitions_of` returns the partition count of a topic; called once per topic."""

    def __init__(
        self, packing: Packing, partitions_of: Callable[[str], int], now_us: Callable[[], int], first_turn: int = 0
    ) -> None:
        self._packing = packing
        self._partitions_of = partitions_of
        self._now_us = now_us
        self._first_turn = first_turn
        self._targets: dict[str, _TopicPartitions] = {}
        self._weights_sent: dict[str, int] = {}
        """By topic, the total weight of the rows that were assigned round-robin so far."""
        self._row_weight = -(-packing.batch_bytes // packing.batch_messages)
        """The minimum weight of a row, chosen so that `batch_messages` rows weigh `batch_bytes`."""

    def packed(self, record_batches: Iterable[pa.RecordBatch]) -> Iterator[Packed]:
        """Yield all rows as batches, in order. Raises Invalid for a row that cannot be a message, before its round."""
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
                packing = self._packing
                batch = pack(piece, producer_name=packing.producer, codec=packing.codec, schema=packing.schema)
                yield Packed(topic, partition, batch)
            start = end

    # -- which partition ----------------------------------------------------------------------------------------------

    def _assign_partitions(self, rows: pa.RecordBatch, weights: IntArray) -> tuple[IntArray, list[tuple[str, int]]]:
        """Return the group number of every row, and the topic and partition of each group."""
        codes, targets = self._topic_codes(rows)
        counts = np.array([target.partitions for target in targets])
        chosen = self._choose_partitions(rows, codes, counts)
        if "partition" in rows.schema.names:
            chosen = _named_partitions(rows.column("partition"), chosen, codes, targets)
        for code, target in enumerate(targets):
            mine = np.flatnonzero((chosen < 0) & (codes == code))
            if len(mine):
                chosen[mine] = self._round_robin(target, weights[mine])
        groups = (np.cumsum(counts) - counts)[codes] + chosen
        names = [(target.topic, partition) for target in targets for partition in range(target.partitions)]
        narrow = np.uint16 if len(names) < 2**16 else np.int64  # numpy uses radix sort for 16-bit integers
        return groups.astype(narrow), names

    def _topic_codes(self, rows: pa.RecordBatch) -> tuple[IntArray, list[_TopicPartitions]]:
        """Return the topic of each row as an index, and the topics."""
        if self._packing.topic:
            return np.zeros(rows.num_rows, np.int64), [self._target(self._packing.topic)]
        encoded = rows.column("topic").dictionary_encode()
        return encoded.indices.to_numpy(), [self._target(name) for name in encoded.dictionary.to_pylist()]

    def _target(self, name: str) -> _TopicPartitions:
        target = self._targets.get(name)
        if target is None:
            if len(self._targets) >= TOPICS_MAX:
                raise Invalid(f"column topic names more than {TOPICS_MAX} topics in one task: is it the right column?")
            topic = _topic_name(name)
            target = self._targets[name] = _TopicPartitions(topic, self._partitions_of(topic))
        return target

    def _choose_partitions(self, rows: pa.RecordBatch, codes: IntArray, counts: IntArray) -> IntArray:
        """Return the partition of every row; -1: round-robin."""
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

    def _round_robin(self, target: _TopicPartitions, weights: IntArray) -> IntArray:
        """Assign partitions so that each gets about one batch before the next one's turn."""
        before = self._weights_sent.get(target.topic, 0)
        behind = before + np.cumsum(weights)
        self._weights_sent[target.topic] = int(behind[-1])
        turns = (behind - weights) // self._packing.batch_bytes
        partitions: IntArray = (self._first_turn + turns) % target.partitions
        return partitions


def _named_partitions(
    column: pa.Array, otherwise: IntArray, codes: IntArray, targets: list[_TopicPartitions]
) -> IntArray:
    """Return the partition that each row names in `column`; that of `otherwise` where it is null."""
    named = column.cast(pa.int64()).fill_null(0).to_numpy()
    counts = np.array([target.partitions for target in targets])
    wrong = np.flatnonzero((named < 0) | (named >= counts[codes]))
    if len(wrong):
        row = wrong[0]
        topic, partitions = targets[codes[row]]
        has = f"partitions 0 to {partitions - 1}"
        if partitions == 1:
            has = "one partition only: create a topic with more (`danube topics create --partitions`) and write to that"
        raise Invalid(f"column partition is {named[row]}, and {topic} has {has}")
    return np.where(_valid(column), named, otherwise) if column.null_count else named


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
    """Raise Invalid if the column has nulls: every message needs a payload and a topic."""
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
    """Cut rows into batches [start, end) of about weight `most`; a row that weighs more gets a batch of its own."""
    if not len(weights):
        return []
    starts = np.cumsum(weights) - weights
    turns = starts // most
    first = np.flatnonzero((turns[1:] != turns[:-1]) | (weights[1:] > most)) + 1
    edges = [0, *first.tolist(), len(weights)]
    return list(pairwise(edges))


# -- columns of Arrow -------------------------------------------------------------------------------------------------


def _columns(rows: pa.RecordBatch, now_us: int) -> ArrowColumns:
    """Return the columns of one batch, without copying."""
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
    """Return a column of text or bytes in which null rows have no bytes."""
    if values.type in (pa.large_binary(), pa.large_string()):
        values = values.cast(pa.binary())
    texts = ArrowText(_offsets(values), values.buffers()[2] or b"")
    if values.null_count and np.count_nonzero(texts.lengths()[~_valid(values)]):
        return _texts(values.fill_null(b"" if values.type == pa.binary() else ""))
    return texts


def _offsets(values: pa.Array) -> Any:
    """Return the value offsets of a column of text, bytes or maps, which may be a slice."""
    if not len(values):
        return np.zeros(1, np.int32)
    return np.frombuffer(values.buffers()[1], np.int32, len(values) + 1, 4 * values.offset)


def _valid(values: pa.Array) -> BoolArray:
    valid: BoolArray = values.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _times(values: pa.Array, now_us: int) -> Any:
    """Return the times in microseconds; null becomes `now_us`."""
    numbers = values.cast(pa.timestamp("us", tz=values.type.tz)).view(pa.int64())
    return numbers.fill_null(now_us).to_numpy() if numbers.null_count else numbers.to_numpy()


def _attributes(maps: pa.Array) -> AttributeColumns:
    lists = _offsets(maps)
    if maps.null_count and np.count_nonzero((lists[1:] - lists[:-1])[~_valid(maps)]):
        return _attributes(maps.take(pa.array(np.arange(len(maps)))))  # in the copy, null rows have no entries
    values = maps.items
    if values.slice(lists[0], lists[-1] - lists[0]).null_count:
        raise Invalid(
            "column attributes has a null value: use map_filter(attributes, (k, v) -> v is not null), or coalesce"
        )
    return AttributeColumns(lists, _texts(maps.keys), _texts(values))


def _sizes(rows: pa.RecordBatch) -> IntArray:
    """Return the approximate bytes of every row."""
    present = rows.schema.names
    sizes = _texts(rows.column("payload")).lengths().astype(np.int64)
    if "key" in present:
        sizes += _texts(rows.column("key")).lengths()
    if "attributes" in present:
        lists, keys, values = _attributes(rows.column("attributes"))
        sizes += keys.offsets[lists[1:]] - keys.offsets[lists[:-1]]
        sizes += values.offsets[lists[1:]] - values.offsets[lists[:-1]]
    return sizes
