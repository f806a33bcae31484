"""Batches for the tests of codec/batch: random ones, and forged ones whose checksums are right all the same."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from crc32c import crc32c
from hypothesis import strategies as st

from pydanube.codec.batch import Batch, Codec, encode
from pydanube.codec.batch.header import TIME_MAX, TIME_MIN

NOW = 1_700_000_000_000_000


@dataclass
class Sample:
    """The arguments of `encode`, with one entry per message in every column."""

    payloads: list[bytes]
    keys: list[str | None]
    attributes: list[dict[str, str]]
    publish_times: list[int]
    deliver_at: list[int]
    rest: dict[str, Any]

    def encode(self) -> bytearray:
        return encode(
            self.payloads,
            keys=self.keys,
            attributes=self.attributes,
            publish_times=self.publish_times,
            deliver_at=self.deliver_at,
            **self.rest,
        )

    def rows(self, selected: list[int]) -> Sample:
        return Sample(
            [self.payloads[row] for row in selected],
            [self.keys[row] for row in selected],
            [self.attributes[row] for row in selected],
            [self.publish_times[row] for row in selected],
            [self.deliver_at[row] for row in selected],
            self.rest,
        )


def assert_holds(batch: Batch, sample: Sample) -> None:
    """Check that the batch holds the sample, by columns and by messages."""
    assert batch.payloads == sample.payloads
    assert batch.keys == sample.keys
    assert batch.attributes == sample.attributes
    assert batch.publish_times.tolist() == sample.publish_times
    deliver_at = [0] * len(sample.payloads) if batch.deliver_at is None else batch.deliver_at.tolist()
    assert deliver_at == sample.deliver_at
    assert batch.producer_name == sample.rest["producer_name"]
    messages = list(batch.messages())
    assert [message.payload for message in messages] == sample.payloads
    assert [message.key for message in messages] == sample.keys
    assert [message.attributes for message in messages] == sample.attributes


def _columns(values: st.SearchStrategy[Any], nothing: Any, count: int) -> st.SearchStrategy[list[Any]]:
    """Return a strategy for a column: empty, with the same value in every row, or with any values."""
    mixed = st.lists(st.one_of(st.just(nothing), values), min_size=count, max_size=count)
    full = st.lists(values, min_size=count, max_size=count)
    return st.one_of(st.just([nothing] * count), values.map(lambda value: [value] * count), mixed, full)


times = st.integers(TIME_MIN, TIME_MAX)
texts = st.text(max_size=8)


@st.composite
def samples(draw: st.DrawFn, codecs: tuple[Codec, ...] = tuple(Codec)) -> Sample:
    # On both sides of the count where numpy takes over from plain Python.
    count = draw(st.one_of(st.integers(1, 8), st.integers(30, 70)))
    return Sample(
        draw(_columns(st.binary(max_size=40), b"", count)),
        draw(_columns(texts, None, count)),
        draw(_columns(st.dictionaries(texts, texts, max_size=3), {}, count)),
        draw(_columns(times, NOW, count)),
        draw(_columns(st.integers(0, TIME_MAX), 0, count)),
        {
            "producer_name": draw(texts),
            "producer_id": draw(st.integers(0, 2**64 - 1)),
            "producer_epoch": draw(st.integers(0, 2**32 - 1)),
            "first_sequence": draw(st.integers(-1, 2**63 - 100_001)),
            "schema_id": draw(st.integers(0, 2**63 - 1)),
            "schema_version": draw(st.integers(0, 2**31 - 1)),
            "codec": draw(st.sampled_from(codecs)),
        },
    )


def loaded(count: int = 5, codec: Codec = Codec.NONE) -> bytearray:
    """Return a batch with every column that a producer can send."""
    return encode(
        [b"payload %d" % row for row in range(count)],
        keys=[None if row % 3 == 2 else f"schlüssel-{row}" for row in range(count)],
        attributes=[{"größe": "ü" * row, "b": str(row)} if row % 2 else {} for row in range(count)],
        publish_times=[NOW + row for row in range(count)],
        deliver_at=[0] * (count - 1) + [NOW + 60_000_000],
        producer_name="fähre",
        producer_id=7,
        producer_epoch=2,
        first_sequence=100,
        schema_id=3,
        schema_version=1,
        codec=codec,
    )


def seal(batch: bytearray) -> bytearray:
    """Compute the checksums of the producer's part again, as a hostile producer would."""
    struct.pack_into("<I", batch, 96, crc32c(bytes(batch[128:])))
    struct.pack_into("<I", batch, 100, crc32c(bytes(batch[:100])))
    return batch


def forge(batch: bytes | bytearray, position: int, layout: str, *values: int) -> bytearray:
    """Return a copy with other values at a position, and correct checksums."""
    copy = bytearray(batch)
    struct.pack_into("<" + layout, copy, position, *values)
    return seal(copy)
