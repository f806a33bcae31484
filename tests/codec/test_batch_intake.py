"""What cannot be published is refused, with the index of the message and the limit it breaks."""

from __future__ import annotations

from typing import Any

import pytest
from batch_samples import NOW, Sample, assert_holds, samples
from hypothesis import given

from pydanube.codec.batch import Batch, BatchBuilder, Codec, encode, read_header
from pydanube.codec.batch.header import TIME_MAX, TIME_MIN
from pydanube.model.errors import Full, Invalid
from pydanube.model.limits import (
    ATTRIBUTES_PER_MESSAGE_MAX,
    BATCH_BYTES_MAX,
    BATCH_MESSAGES_MAX,
    KEY_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    MIB,
)

TOO_MANY = {str(number): "" for number in range(ATTRIBUTES_PER_MESSAGE_MAX + 1)}

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"payload": "text"}, "payload is str, not bytes"),
    ({"payload": None}, "payload is NoneType, not bytes"),
    ({"payload": [1, 2]}, "payload is list, not bytes"),
    ({"payload": bytes(MESSAGE_BYTES_MAX + 1)}, f"is over the limit of {MESSAGE_BYTES_MAX}"),
    ({"key": b"bytes"}, "key is bytes, not text"),
    ({"key": 5}, "key is int, not text"),
    ({"key": "\ud800"}, "cannot be written as UTF-8"),
    ({"key": "k" * (KEY_BYTES_MAX + 1)}, f"key of {KEY_BYTES_MAX + 1} bytes is over the limit of {KEY_BYTES_MAX}"),
    ({"key": "ü" * (KEY_BYTES_MAX // 2 + 1)}, f"is over the limit of {KEY_BYTES_MAX}"),
    ({"attributes": ["a"]}, "attributes are list, not a mapping of text to text"),
    ({"attributes": {"a": 1}}, "value of attribute 'a' is int, not text"),
    ({"attributes": {1: "a"}}, "attribute key is int, not text"),
    ({"attributes": {"\udfff": "a"}}, "cannot be written as UTF-8"),
    ({"attributes": TOO_MANY}, f"{len(TOO_MANY)} attributes are over the limit of {ATTRIBUTES_PER_MESSAGE_MAX}"),
    ({"publish_time": "now"}, "publish time 'now' is not in microseconds"),
    ({"publish_time": 1.5}, "publish time 1.5 is not in microseconds"),
    ({"publish_time": TIME_MAX + 1}, f"to {TIME_MAX}"),
    ({"publish_time": TIME_MIN - 1}, f"from {TIME_MIN}"),
    ({"publish_time": 2**70}, "is not in microseconds"),
    ({"deliver_at": -1}, "deliver-at time -1 is not in microseconds from 0"),
    ({"deliver_at": 1.5}, "deliver-at time 1.5 is not in microseconds"),
    ({"deliver_at": TIME_MAX + 1}, "deliver-at time"),
]
NAMES = [f"{next(iter(bad))}-{index}" for index, (bad, _) in enumerate(REFUSED)]


@pytest.mark.parametrize(("bad", "reason"), REFUSED, ids=NAMES)
def test_encode_names_the_message(bad: dict[str, Any], reason: str) -> None:
    good: dict[str, Any] = {"payload": b"", "key": None, "attributes": None, "publish_time": NOW, "deliver_at": 0}
    rows = [good, good, good | bad]
    with pytest.raises(Invalid, match=f"message 2: .*{reason}"):
        encode(
            [row["payload"] for row in rows],
            keys=[row["key"] for row in rows],
            attributes=[row["attributes"] for row in rows],
            publish_times=[row["publish_time"] for row in rows],
            deliver_at=[row["deliver_at"] for row in rows],
        )


@pytest.mark.parametrize(("bad", "reason"), REFUSED, ids=NAMES)
def test_a_builder_refuses_one_message_and_keeps_the_others(bad: dict[str, Any], reason: str) -> None:
    builder = BatchBuilder()
    builder.add(b"first", publish_time=NOW)
    builder.add(b"second", key="k", publish_time=NOW)
    size = builder.size_bytes
    with pytest.raises(Invalid, match=f"message 2: .*{reason}"):
        builder.add(**({"payload": b"", "publish_time": NOW} | bad))
    assert (len(builder), builder.size_bytes) == (2, size)
    batch = Batch.open(builder.build(producer_id=1, producer_epoch=1, first_sequence=0))
    assert batch.payloads == [b"first", b"second"]
    assert batch.keys == [None, "k"]


def test_a_batch_without_messages_is_refused() -> None:
    with pytest.raises(Invalid, match="batch of 0 messages"):
        encode([], publish_times=NOW)
    with pytest.raises(Invalid, match="batch of 0 messages"):
        BatchBuilder().build(producer_id=1, producer_epoch=1, first_sequence=0)


def test_too_many_messages_are_refused() -> None:
    with pytest.raises(Invalid, match=f"outside 1..{BATCH_MESSAGES_MAX}"):
        encode([b""] * (BATCH_MESSAGES_MAX + 1), publish_times=NOW)


@pytest.mark.parametrize("column", ["keys", "attributes", "deliver_at", "publish_times"])
def test_columns_of_another_length_are_refused(column: str) -> None:
    columns: dict[str, Any] = {"publish_times": NOW} | {column: [None]}
    with pytest.raises(Invalid, match=f"batch of 2 messages has 1 {column}"):
        encode([b"a", b"b"], **columns)


def test_too_large_a_batch_is_refused_before_it_is_copied() -> None:
    with pytest.raises(Invalid, match=f"over the limit of {BATCH_BYTES_MAX}"):
        encode([bytes(10 * MIB)] * 50_000, publish_times=NOW)
    with pytest.raises(Invalid, match=f"over the limit of {BATCH_BYTES_MAX}"):
        encode([b""] * 20, attributes=[{"a": "x" * 2 * MIB}] * 20, publish_times=NOW)
    with pytest.raises(Invalid, match=f"over the limit of {BATCH_BYTES_MAX}"):
        encode([b"x"] * 100_000, keys=["k" * 340] * 100_000, publish_times=NOW, codec=Codec.LZ4)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("producer_id", -1),
        ("producer_id", 2**64),
        ("producer_epoch", 2**32),
        ("first_sequence", -2),
        ("first_sequence", 2**63 - 100_000),
        ("schema_id", 2**63),
        ("schema_version", 2**31),
    ],
)
def test_numbers_outside_their_fields_are_refused(field: str, value: int) -> None:
    origin: dict[str, Any] = {field: value}
    with pytest.raises(Invalid, match=f"{field.replace('_', ' ')} {value} is outside"):
        encode([b"a"], publish_times=NOW, **origin)


def test_a_producer_name_has_a_limit() -> None:
    assert Batch.open(encode([b""], publish_times=NOW, producer_name="n" * 255)).producer_name == "n" * 255
    with pytest.raises(Invalid, match="producer name of 256 bytes is over the limit of 255"):
        encode([b""], publish_times=NOW, producer_name="ü" * 128)
    with pytest.raises(Invalid, match="producer name is bytes, not text"):
        BatchBuilder(producer_name=b"name")  # type: ignore[arg-type]


@given(samples())
def test_a_builder_makes_the_bytes_that_encode_makes(sample: Sample) -> None:
    builder = BatchBuilder(producer_name=sample.rest["producer_name"], codec=sample.rest["codec"])
    for row, payload in enumerate(sample.payloads):
        builder.add(
            payload,
            sample.keys[row],
            sample.attributes[row],
            publish_time=sample.publish_times[row],
            deliver_at=sample.deliver_at[row],
        )
    estimate = builder.size_bytes
    origin = ("producer_id", "producer_epoch", "first_sequence", "schema_id", "schema_version")
    built = builder.build(**{name: sample.rest[name] for name in origin})
    assert built == sample.encode()
    assert read_header(built).plain_length + 128 <= estimate
    assert (len(builder), builder.size_bytes) == (0, BatchBuilder().size_bytes)
    assert_holds(Batch.open(built), sample)


def test_a_builder_starts_afresh_after_a_batch() -> None:
    builder = BatchBuilder()
    builder.add(b"a", "k", {"x": "y"}, publish_time=NOW, deliver_at=5)
    builder.build(producer_id=1, producer_epoch=1, first_sequence=0)
    builder.add(b"b", publish_time=NOW)
    built = builder.build(producer_id=1, producer_epoch=1, first_sequence=1)
    assert built == encode([b"b"], publish_times=NOW, producer_id=1, producer_epoch=1, first_sequence=1)


def test_a_builder_takes_many_payloads_at_once() -> None:
    builder = BatchBuilder()
    builder.add(b"first", key="k", publish_time=NOW)
    builder.extend([b"second", b"third"], publish_time=NOW + 1)
    builder.extend([], publish_time=NOW)
    builder.extend([bytearray(b"fourth")], publish_time=NOW + 2)
    batch = Batch.open(builder.build(producer_id=1, producer_epoch=1, first_sequence=0))
    assert batch.payloads == [b"first", b"second", b"third", b"fourth"]
    assert batch.keys == ["k", None, None, None]
    assert batch.publish_times.tolist() == [NOW, NOW + 1, NOW + 1, NOW + 2]


def test_a_builder_takes_all_of_many_or_none() -> None:
    builder = BatchBuilder()
    with pytest.raises(Invalid, match="message 1: payload is str, not bytes"):
        builder.extend([b"a", "b"], publish_time=NOW)  # type: ignore[list-item]
    with pytest.raises(Full, match="build the batch first"):
        builder.extend([b""] * (BATCH_MESSAGES_MAX + 1), publish_time=NOW)
    assert len(builder) == 0


def test_a_builder_is_not_changed_through_a_payload_it_took() -> None:
    payload = bytearray(b"before")
    builder = BatchBuilder()
    builder.add(payload, publish_time=NOW)
    builder.extend([payload], publish_time=NOW)
    payload[:] = b"after!"
    batch = Batch.open(builder.build(producer_id=1, producer_epoch=1, first_sequence=0))
    assert batch.payloads == [b"before", b"before"]


def test_a_full_builder_says_so_and_can_still_build() -> None:
    builder = BatchBuilder()
    payload = bytes(10 * MIB)
    for _ in range(3):
        builder.add(payload, publish_time=NOW)
    with pytest.raises(Full, match=r"message 3 makes a batch of 4 messages.*build the batch first"):
        builder.add(payload, publish_time=NOW)
    assert Batch.open(builder.build(producer_id=1, producer_epoch=1, first_sequence=0)).count == 3


def test_a_builder_holds_the_most_messages_and_no_more() -> None:
    builder = BatchBuilder()
    builder.extend([b""] * BATCH_MESSAGES_MAX, publish_time=NOW)
    with pytest.raises(Full, match=f"limit of {BATCH_MESSAGES_MAX} messages"):
        builder.add(b"", publish_time=NOW)
    assert Batch.open(builder.build(producer_id=1, producer_epoch=1, first_sequence=0)).count == BATCH_MESSAGES_MAX


def test_a_message_that_fills_more_than_a_batch_by_itself_is_invalid() -> None:
    with pytest.raises(Invalid, match="by itself, over the limit"):
        BatchBuilder().add(bytes(10 * MIB), attributes={"a": "x" * 23 * MIB}, publish_time=NOW)
