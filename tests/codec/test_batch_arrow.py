"""A batch in Arrow's clothes: the same values, over the same memory."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from batch_samples import NOW, Sample, loaded, samples
from hypothesis import given

from pydanube.codec.batch import Batch, Codec, encode
from pydanube.codec.batch.arrow import SCHEMA

pa = pytest.importorskip("pyarrow")


def columns_of(table: Any) -> dict[str, list[Any]]:
    table.validate(full=True)
    columns: dict[str, list[Any]] = table.to_pydict()
    columns["attributes"] = [dict(pairs) for pairs in columns["attributes"]]
    for name in ("append_time", "publish_time"):
        columns[name] = table[name].cast(pa.int64()).to_pylist()
    return columns


def expected(batch: Batch) -> dict[str, list[Any]]:
    count, header = batch.count, batch.header
    return {
        "offset": batch.offsets.tolist(),
        "append_time": [header.append_time] * count,
        "publish_time": batch.publish_times.tolist(),
        "key": batch.keys,
        "payload": batch.payloads,
        "attributes": batch.attributes,
        "producer": [batch.producer_name] * count,
        "schema_id": [header.schema_id] * count,
        "schema_version": [header.schema_version] * count,
    }


@given(samples())
def test_arrow_sees_the_same_values(sample: Sample) -> None:
    batch = Batch.open(sample.encode())
    batch.stamp(77, NOW, 1)
    table = batch.to_arrow()
    assert table.schema == SCHEMA
    assert columns_of(table) == expected(batch)


def test_the_schema_is_what_spark_is_promised() -> None:
    kinds = dict(zip(SCHEMA.names, map(str, SCHEMA.types), strict=True))
    assert kinds == {
        "offset": "int64",
        "append_time": "timestamp[us, tz=UTC]",
        "publish_time": "timestamp[us, tz=UTC]",
        "key": "string",
        "payload": "binary",
        "attributes": "map<string, string>",
        "producer": "string",
        "schema_id": "int64",
        "schema_version": "int32",
    }
    assert all(field.nullable for field in SCHEMA)


def test_times_are_in_utc() -> None:
    table = Batch.open(encode([b"a"], publish_times=NOW)).to_arrow()
    assert table["publish_time"][0].as_py() == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)


def test_a_derived_batch_has_its_own_offsets_in_arrow() -> None:
    source = Batch.open(loaded(40))
    source.stamp(1_000, NOW, 1)
    part = source.select([row % 7 == 3 for row in range(40)])
    table = part.to_arrow()
    assert table["offset"].to_pylist() == [1_003, 1_010, 1_017, 1_024, 1_031, 1_038]
    assert columns_of(table) == expected(part)


def test_uncompressed_columns_are_not_copied() -> None:
    batch = Batch.open(loaded(40))
    whole = pa.py_buffer(batch.view)
    table = batch.to_arrow()
    attributes = table["attributes"]
    for column in (
        table["payload"],
        table["key"],
        table["publish_time"],
        attributes,
        attributes.keys,
        attributes.items,
    ):
        for buffer in column.buffers():
            if buffer is not None:
                assert whole.address <= buffer.address
                assert buffer.address + buffer.size <= whole.address + whole.size


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_offsets_of_a_compressed_batch_are_not_copied(codec: Codec) -> None:
    batch = Batch.open(loaded(40, codec))
    whole = pa.py_buffer(batch.view)
    table = batch.to_arrow()
    assert table["payload"].buffers()[1].address == whole.address + batch.place.payload_offsets
    assert columns_of(table) == expected(batch)


@pytest.mark.parametrize("shift", range(1, 8))
def test_a_batch_that_lies_at_an_odd_address_is_still_read(shift: int) -> None:
    encoded = loaded(40)
    buffer = bytearray(shift) + encoded
    batch = Batch.open(memoryview(buffer)[shift:])
    table = batch.to_arrow()
    assert columns_of(table) == expected(Batch.open(encoded))
    assert table["payload"].buffers()[1].address % 8 == 0


def test_arrow_keeps_the_memory_alive() -> None:
    table = Batch.open(loaded(40)).to_arrow()
    assert table["payload"][39].as_py() == b"payload 39"
