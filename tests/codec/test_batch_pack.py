"""Columns in Arrow's layout become, byte for byte, the batch that `encode` makes of the same rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from batch_samples import NOW, Sample, samples
from hypothesis import given
from hypothesis import strategies as st

from pydanube.codec.batch import Batch, encode
from pydanube.codec.batch.header import TIME_MAX, TIME_MIN
from pydanube.codec.batch.pack import ArrowColumns, ArrowText, AttributeColumns, pack
from pydanube.model.errors import Invalid
from pydanube.model.limits import (
    ATTRIBUTES_PER_MESSAGE_MAX,
    BATCH_BYTES_MAX,
    BATCH_MESSAGES_MAX,
    KEY_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    MIB,
)


def offsets_of(lengths: Sequence[int], first: int = 0) -> Any:
    return np.cumsum([first, *lengths], dtype=np.int32)


def texts_of(values: Sequence[bytes], around: bytes = b"") -> ArrowText:
    """The values between other bytes, as in a slice of a longer column."""
    return ArrowText(offsets_of([len(value) for value in values], len(around)), around + b"".join(values) + around)


def columns_of(sample: Sample, around: bytes = b"") -> ArrowColumns:
    pairs = [pair for row in sample.attributes for pair in row.items()]
    before = [around] * len(around)
    attributes = AttributeColumns(
        offsets_of([len(row) for row in sample.attributes], len(before)),
        texts_of([*before, *(key.encode() for key, _ in pairs), *before], around),
        texts_of([*before, *(value.encode() for _, value in pairs), *before], around),
    )
    return ArrowColumns(
        texts_of(sample.payloads, around),
        np.array(sample.publish_times, np.int64),
        texts_of([(key or "").encode() for key in sample.keys], around),
        np.array([key is not None for key in sample.keys]),
        attributes,
    )


def encoded(sample: Sample) -> bytearray:
    return encode(
        sample.payloads,
        publish_times=sample.publish_times,
        keys=sample.keys,
        attributes=sample.attributes,
        producer_name=sample.rest["producer_name"],
        codec=sample.rest["codec"],
    )


@given(samples(), st.sampled_from([b"", b"x", "grün".encode(), bytes(64)]))
def test_packed_columns_are_the_bytes_that_encode_makes(sample: Sample, around: bytes) -> None:
    packed = pack(columns_of(sample, around), producer_name=sample.rest["producer_name"], codec=sample.rest["codec"])
    assert packed == encoded(sample)
    Batch.open(packed)


def test_columns_that_say_nothing_are_left_out() -> None:
    payloads, nothing = texts_of([b"a", b"b"]), texts_of([b"", b""])
    none = AttributeColumns(offsets_of([0, 0]), texts_of([]), texts_of([]))
    packed = pack(ArrowColumns(payloads, np.array([NOW, NOW]), nothing, np.array([False, False]), none))
    assert packed == encode([b"a", b"b"], publish_times=NOW) == pack(ArrowColumns(payloads, NOW))


def test_an_empty_key_is_a_key() -> None:
    packed = pack(ArrowColumns(texts_of([b"a", b"b"]), NOW, texts_of([b"", b""])))
    assert packed == encode([b"a", b"b"], publish_times=NOW, keys=["", ""])


def test_long_keys_are_hashed_too() -> None:
    keys = ["k" * (1 + 97 * row) for row in range(100)]
    packed = pack(ArrowColumns(texts_of([b""] * 100), NOW, texts_of([key.encode() for key in keys])))
    assert packed == encode([b""] * 100, publish_times=NOW, keys=keys)


def test_a_batch_of_the_most_messages_is_packed_and_one_more_is_refused() -> None:
    payloads = ArrowText(np.arange(BATCH_MESSAGES_MAX + 2, dtype=np.int32), bytes(BATCH_MESSAGES_MAX + 1))
    most = ArrowText(payloads.offsets[:-1], payloads.data)
    assert Batch.open(pack(ArrowColumns(most, NOW))).count == BATCH_MESSAGES_MAX
    with pytest.raises(Invalid, match=rf"batch of {BATCH_MESSAGES_MAX + 1} messages is outside"):
        pack(ArrowColumns(payloads, NOW))
    with pytest.raises(Invalid, match="batch of 0 messages"):
        pack(ArrowColumns(texts_of([]), NOW))


ONE = texts_of([b"1", b"2", b"3"])
FEW = texts_of([b"", b"", b""])


def attributes_of(*rows: dict[bytes, bytes]) -> AttributeColumns:
    keys = [key for row in rows for key in row]
    values = [value for row in rows for value in row.values()]
    return AttributeColumns(offsets_of([len(row) for row in rows]), texts_of(keys), texts_of(values))


TOO_MANY = {b"%d" % number: b"" for number in range(ATTRIBUTES_PER_MESSAGE_MAX + 1)}

REFUSED: list[tuple[ArrowColumns, str]] = [
    (
        ArrowColumns(texts_of([b"", bytes(MESSAGE_BYTES_MAX + 1)]), NOW),
        f"message 1: payload of {MESSAGE_BYTES_MAX + 1} bytes is over the limit of {MESSAGE_BYTES_MAX}",
    ),
    (ArrowColumns(texts_of([bytes(9 * MIB)] * 4), NOW), f"is over the limit of {BATCH_BYTES_MAX}"),
    (ArrowColumns(ArrowText(ONE.offsets, b"12"), NOW), r"payload offsets 0..3 lie outside of 2 bytes"),
    (ArrowColumns(ArrowText(ONE.offsets[::-1], b"123"), NOW), "offsets fall"),
    (ArrowColumns(ArrowText(ONE.offsets - 1, b"123"), NOW), r"payload offsets -1..2 lie outside"),
    (ArrowColumns(ONE, TIME_MAX + 1), f"publish time {TIME_MAX + 1} is not in microseconds"),
    (ArrowColumns(ONE, np.array([0, TIME_MIN - 1, 0])), f"publish time {TIME_MIN - 1} is not in microseconds"),
    (ArrowColumns(ONE, np.array([0, 1])), "batch of 3 messages has 2 publish times"),
    (ArrowColumns(ONE, NOW, texts_of([b"a"])), "batch of 3 messages has 1 keys"),
    (ArrowColumns(ONE, NOW, FEW, np.array([True, False])), "batch of 3 messages has 2 key validity"),
    (ArrowColumns(ONE, NOW, ONE, np.array([True, False, True])), "a row without a key has key bytes"),
    (
        ArrowColumns(ONE, NOW, texts_of([b"", b"k" * (KEY_BYTES_MAX + 1), b""])),
        f"message 1: key of {KEY_BYTES_MAX + 1} bytes is over the limit of {KEY_BYTES_MAX}",
    ),
    (ArrowColumns(ONE, NOW, texts_of([b"", b"\xff", b""])), r"key b'\\xff' is not UTF-8"),
    (ArrowColumns(ONE, NOW, texts_of([b"\xc3", b"\xbc", b""])), "begins inside a character"),
    (ArrowColumns(ONE, NOW, attributes=attributes_of({b"a": b"\xff"}, {}, {})), "attribute value .* is not UTF-8"),
    (ArrowColumns(ONE, NOW, attributes=attributes_of({b"\xff": b"a"}, {}, {})), "attribute key .* is not UTF-8"),
    (
        ArrowColumns(ONE, NOW, attributes=attributes_of({}, TOO_MANY, {})),
        f"message 1: {len(TOO_MANY)} attributes are over the limit of {ATTRIBUTES_PER_MESSAGE_MAX}",
    ),
    (ArrowColumns(ONE, NOW, attributes=attributes_of({b"a": b"a"}, {})), "batch of 3 messages has 2 attribute lists"),
    (
        ArrowColumns(ONE, NOW, attributes=AttributeColumns(ONE.offsets, FEW, texts_of([b"a"]))),
        "batch of 3 messages has 1 attribute values",
    ),
]


@pytest.mark.parametrize(("columns", "reason"), REFUSED, ids=[str(number) for number in range(len(REFUSED))])
def test_what_no_batch_can_hold_is_refused_with_its_reason(columns: ArrowColumns, reason: str) -> None:
    with pytest.raises(Invalid, match=reason):
        pack(columns)


def test_a_producer_name_that_is_too_long_is_refused() -> None:
    with pytest.raises(Invalid, match="producer name of 256 bytes"):
        pack(ArrowColumns(ONE, NOW), producer_name="n" * 256)
