"""Topics as tables: rows, columns, conditions, typed payloads, what cannot be decoded, and where rows are read from."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pydanube
from pydanube import Invalid, NotFound, Refused
from pydanube.client.tables.read_types import COLUMNS
from pydanube.model.schemas import SchemaDefinition, SchemaFormat

TOPIC = "/default/orders"
MESSAGE_COLUMNS = ["topic", "partition", "offset", "append_time", "publish_time", "key"]
ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "customer", "type": ["null", "string"], "default": None}],
}
WITH_TOTAL = ORDER | {"fields": [*ORDER["fields"], {"name": "total", "type": "double", "default": 0.5}]}


async def publish(client: pydanube.Client, *values: Any, topic: str = TOPIC, schema: Any = None, **more: Any) -> None:
    async with client.producer(topic, schema=schema, **more) as producer:
        await producer.send_many(list(values))


async def rows(client: pydanube.Client, topic: str = TOPIC, **arguments: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await client.read(topic, **arguments)).to_arrow().to_pylist()
    return found


async def column(client: pydanube.Client, name: str, topic: str = TOPIC, **arguments: Any) -> list[Any]:
    return [row[name] for row in await rows(client, topic, columns=[name], **arguments)]


# -- rows of messages --------------------------------------------------------------------------------------------------


async def test_each_message_of_every_partition_is_a_row(client: pydanube.Client) -> None:
    await client.create_topic(TOPIC, partitions=3)
    before = datetime.now(UTC)
    async with client.producer(
        TOPIC, name="shop", partition_by=lambda key, payload, count: int(payload) % 3
    ) as producer:
        for number in range(6):
            await producer.send(b"%d" % number, key=f"k{number}", attributes={"n": str(number)})
    found = await client.read(TOPIC)
    assert tuple(found.schema.names) == COLUMNS
    assert len(found) == 6
    assert found.undecoded == 0
    table = found.to_arrow()
    assert table.select(["partition", "offset", "key", "payload"]).to_pylist() == [
        {"partition": number % 3, "offset": number // 3, "key": f"k{number}", "payload": b"%d" % number}
        for number in (0, 3, 1, 4, 2, 5)
    ]
    assert set(table["topic"].to_pylist()) == {TOPIC}
    assert set(table["producer"].to_pylist()) == {"shop"}
    assert table["attributes"].to_pylist()[1] == [("n", "3")]
    assert all(before <= time <= datetime.now(UTC) for time in table["append_time"].to_pylist())


async def test_an_empty_topic_is_a_table_without_rows(client, topic):
    found = await client.read(TOPIC, columns=["offset", "payload"])
    assert len(found) == 0
    assert found.to_arrow().schema.names == ["offset", "payload"]


async def test_reading_starts_and_ends_at_offsets_and_times(client, topic):
    await publish(client, *(b"%d" % number for number in range(10)))
    (time,) = await column(client, "append_time", start=9)
    await asyncio.to_thread(lambda: None)
    assert await column(client, "offset", start=3, end=6) == [3, 4, 5]
    assert await column(client, "offset", start="latest") == []
    assert await column(client, "offset", start=time) == list(range(10))
    assert await column(client, "offset", end=time) == []
    assert await column(client, "offset", start=time + timedelta(seconds=1)) == []
    assert await column(client, "offset", start=8, end=100) == [8, 9]
    assert await column(client, "offset", start=6, end=3) == []


async def test_what_is_published_later_is_not_read(client, topic):
    await publish(client, b"before")
    async with client.read_batches(TOPIC, columns=["payload"]) as batches:
        await publish(client, b"after")
        assert [batch.to_pylist() async for batch in batches] == [[{"payload": b"before"}]]


async def test_removed_messages_are_left_out(client, topic):
    await publish(client, *(b"%d" % number for number in range(10)))
    await client.truncate_topic(TOPIC, 4)
    assert await column(client, "offset", start=2, end=6) == [4, 5]


async def test_a_topic_that_cannot_be_read_says_why(client: pydanube.Client) -> None:
    with pytest.raises(NotFound, match="/default/nothing"):
        await client.read("/default/nothing")
    await client.create_topic("/default/news", reliable=False)
    with pytest.raises(Refused, match="/default/news is not reliable"):
        await client.read("/default/news")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"columns": ["ofset"]}, "columns names 'ofset': did you mean 'offset'"),
        ({"columns": ["offset", "offset"]}, "columns names 'offset' more than once"),
        ({"columns": "offset"}, "give a list of names"),
        ({"columns": []}, "columns is empty"),
        ({"errors": "ignore"}, "errors is 'ignore': use one of raise, keep, skip"),
        ({"direct_read": True}, "direct_read is True: use one of auto, always, never"),
        ({"start": "tomorrow"}, "'tomorrow' is not a position"),
        ({"schema_version": 3}, "no schema is bound to /default/orders"),
        ({"where": [("ofset", "=", 1)]}, "where names column 'ofset': did you mean 'offset'"),
        ({"where": [("offset", "~", 1)]}, "where has the operator '~' for column 'offset': use one of =, !="),
        ({"where": ("offset", "=", "x")}, "where compares column 'offset', which is int64, by '=' with 'x'"),
        ({"where": ("offset", "<", None)}, "where compares column 'offset' with None"),
        ({"where": ("offset", "=", 1 << 70)}, "where compares column 'offset'"),
        ({"where": ("key", "in", "abc")}, "where compares column 'key' by 'in': give a list"),
        ({"where": ("key", "in", ["a", None])}, "without None"),
        ({"where": ("attributes", "=", "x")}, "where compares column 'attributes'"),
        ({"where": "offset > 1"}, "where is 'offset > 1': give conditions such as"),
        ({"where": [[("offset", "=", 1)], ("key", "=", "a")]}, "among lists of conditions"),
        ({"where": [("offset", "=")]}, "a condition is a column, an operator and a value"),
    ],
)
async def test_wrong_arguments_are_named(client, topic, arguments, message):
    with pytest.raises(Invalid, match=message.replace("(", r"\(")):
        await client.read(TOPIC, **arguments)


# -- typed rows --------------------------------------------------------------------------------------------------------


async def test_fields_of_the_schema_are_columns(client: pydanube.Client) -> None:
    await publish(client, {"id": 1, "customer": "a"}, {"id": 2}, schema=ORDER)
    found = await client.read(TOPIC)
    assert found.schema.names == [*MESSAGE_COLUMNS, "id", "customer"]
    assert found.to_arrow().select(["id", "customer"]).to_pylist() == [
        {"id": 1, "customer": "a"},
        {"id": 2, "customer": None},
    ]
    assert (await client.read(TOPIC, decode=False)).schema.names == list(COLUMNS)
    assert (await client.read(TOPIC, columns=["customer", "offset"])).schema.names == ["customer", "offset"]


async def test_a_field_hides_the_column_of_messages_with_its_name(client: pydanube.Client) -> None:
    @dataclass
    class Entry:
        key: int
        Offset: str

    async with client.producer(TOPIC, schema=Entry) as producer:
        await producer.send(Entry(7, "here"), key="k")
    (row,) = await rows(client)
    assert (row["key"], row["_key"], row["Offset"], row["_offset"]) == (7, "k", "here", 0)
    assert await rows(client, where=[("_key", "=", "k"), ("_offset", "<", 1), ("key", ">", 6)], columns=["_key"]) == [
        {"_key": "k"}
    ]


@pytest.mark.parametrize(
    ("definition", "value", "expected"),
    [
        (SchemaDefinition(SchemaFormat.STRING, ""), "text", {"value": "text"}),
        (SchemaDefinition(SchemaFormat.NUMBER, ""), 2.5, {"value": 2.5}),
        (SchemaDefinition(SchemaFormat.BYTES, ""), b"\0", {"value": b"\0"}),
    ],
)
async def test_values_that_are_no_records_are_one_column(
    client: pydanube.Client, definition: SchemaDefinition, value: Any, expected: dict[str, Any]
) -> None:
    await publish(client, value, schema=definition)
    assert await rows(client, columns=["value"]) == [expected]


async def test_several_versions_become_the_columns_of_one(client: pydanube.Client) -> None:
    await publish(client, {"id": 1}, schema=ORDER)
    await publish(client, {"id": 2, "total": 9.5}, schema=WITH_TOTAL)
    await publish(client, {"id": 3, "customer": "c"}, schema=ORDER)
    assert await rows(client, columns=["id", "customer", "total"]) == [
        {"id": 1, "customer": None, "total": 0.5},
        {"id": 2, "customer": None, "total": 9.5},
        {"id": 3, "customer": "c", "total": 0.5},
    ]
    assert await rows(client, columns=["id", "customer"], schema_version=1, start=1) == [
        {"id": 2, "customer": None},
        {"id": 3, "customer": "c"},
    ]
    with pytest.raises(NotFound, match="version 9"):
        await client.read(TOPIC, schema_version=9)


@pytest.fixture
async def with_garbage(client: pydanube.Client) -> pydanube.Client:
    """Two orders, with two messages between them that are none."""
    await publish(client, {"id": 1}, schema=ORDER)
    await client.schemas.bind(TOPIC, TOPIC, policy="none")
    await publish(client, b"\x80\x80", b"")
    await publish(client, {"id": 2}, schema=ORDER)
    return client


async def test_a_payload_that_cannot_be_decoded_is_an_error_with_its_place(with_garbage: pydanube.Client) -> None:
    with pytest.raises(Invalid, match=r'message 1 of /default/orders\[0\] cannot be decoded: .*errors="skip"'):
        await with_garbage.read(TOPIC)
    assert await column(with_garbage, "id", where=("offset", "in", [0, 3])) == [1, 2]
    assert await column(with_garbage, "offset") == [0, 1, 2, 3]


async def test_payloads_that_cannot_be_decoded_are_skipped_and_counted(with_garbage: pydanube.Client) -> None:
    found = await with_garbage.read(TOPIC, errors="skip")
    assert found.to_arrow()["id"].to_pylist() == [1, 2]
    assert found.undecoded == 2


async def test_payloads_that_cannot_be_decoded_are_kept_with_the_reason(with_garbage: pydanube.Client) -> None:
    found = await with_garbage.read(TOPIC, errors="keep")
    assert found.schema.names == [*MESSAGE_COLUMNS, "payload", "id", "customer", "decode_error"]
    kept = found.to_arrow().filter(pa.compute.field("decode_error").is_valid()).to_pylist()
    assert [(row["offset"], row["payload"], row["id"]) for row in kept] == [(1, b"\x80\x80", None), (2, b"", None)]
    assert found.undecoded == 2
    assert await column(with_garbage, "offset", errors="keep", where=("decode_error", "!=", None)) == [1, 2]


async def test_batches_of_another_format_are_errors_of_their_rows(client: pydanube.Client) -> None:
    await publish(client, {"id": 1}, schema=ORDER)
    await client.schemas.unbind(TOPIC)
    await publish(client, "text", schema=str, subject="texts")
    await client.schemas.unbind(TOPIC)
    await client.schemas.bind(TOPIC, TOPIC)
    found = await client.read(TOPIC, errors="keep", columns=["id", "decode_error"])
    assert [row["id"] for row in found.to_arrow().to_pylist()] == [1, None]
    assert "cannot be read as avro" in found.to_arrow()["decode_error"].to_pylist()[1]


# -- sources -----------------------------------------------------------------------------------------------------------


@pytest.fixture
async def history(client: pydanube.Client) -> pydanube.Client:
    """A topic with 0..69 in the object store and 70..99 in the log."""
    await client.create_topic(TOPIC)
    for start, end in ((0, 40), (40, 70)):
        for first in range(start, end, 10):
            await publish(client, *(b"%d" % number for number in range(first, first + 10)))
        await client.upload_storage(TOPIC)
    await publish(client, *(b"%d" % number for number in range(70, 100)))
    return client


@pytest.mark.parametrize("direct_read", ["always", "never", "auto"])
async def test_ranges_are_exact_wherever_they_are_read_from(history: pydanube.Client, direct_read: str) -> None:
    for start, end in [(0, 100), (0, 70), (39, 41), (65, 75), (69, 71), (70, 100), (1, 99), (15, 16), (50, 50)]:
        read = await rows(history, start=start, end=end, columns=["offset", "payload"], direct_read=direct_read)
        assert read == [{"offset": number, "payload": b"%d" % number} for number in range(start, end)]


async def test_direct_reads_do_not_ask_the_broker_for_what_is_in_the_store(
    history: pydanube.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []
    fetches = history.fetches
    monkeypatch.setattr(history, "fetches", lambda span: asked.append((span.start, span.end)) or fetches(span))
    assert await column(history, "offset", direct_read="always") == list(range(100))
    assert asked == [(70, 100)]


async def test_the_broker_continues_where_the_store_fails(
    history: pydanube.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pydanube.client.tables import planning

    monkeypatch.setattr(planning, "DIRECT_OFFSETS_MIN", 1)
    await column(history, "offset")
    last = sorted((tmp_path / "data" / "objects").rglob("*.seg"))[-1]
    content = bytearray(last.read_bytes())
    content[200:300] = bytes(100)
    last.write_bytes(content)
    assert await column(history, "offset", end=70) == list(range(70))
    with pytest.raises(pydanube.DanubeError, match=r'direct_read="always": /default/orders\[0\] offsets 40\.\.70'):
        await history.read(TOPIC, end=70, direct_read="always")
    missing = (tmp_path / "nowhere").as_uri()
    assert await column(history, "offset", store=missing) == list(range(100))
    with pytest.raises(pydanube.Unavailable, match="there is no directory"):
        await history.read(TOPIC, store=missing, direct_read="always")


# -- batches, and other libraries --------------------------------------------------------------------------------------


async def test_batches_have_the_schema_of_the_table_and_close_with_the_block(client: pydanube.Client) -> None:
    await client.create_topic(TOPIC, partitions=2)
    await publish(client, *(b"%d" % number for number in range(100)), partition_by="round-robin")
    async with client.read_batches(TOPIC, columns=["partition", "offset"]) as batches:
        assert batches.schema.names == ["partition", "offset"]
        first = await anext(aiter(batches))
        assert first.schema == batches.schema
    with pytest.raises(Refused, match="this read is closed"):
        await anext(aiter(batches))


async def test_memory_is_bounded_by_the_size_of_batches(
    client: pydanube.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pydanube.client.tables import topic_batches

    monkeypatch.setattr(topic_batches, "BYTES_AIM", 10_000)
    await client.create_topic(TOPIC)
    for _ in range(20):
        await publish(client, *([bytes(100)] * 50))
    sizes = [batch.num_rows async for batch in client.read_batches(TOPIC, columns=["payload"])]
    assert sum(sizes) == 1000
    assert max(sizes) <= 100


async def test_other_libraries_take_the_rows(client: pydanube.Client) -> None:
    polars, duckdb = pytest.importorskip("polars"), pytest.importorskip("duckdb")
    await publish(client, {"id": 1, "customer": "a"}, {"id": 2}, schema=ORDER)
    found = await client.read(TOPIC)
    assert found.to_polars()["id"].to_list() == [1, 2]
    assert polars.DataFrame(found)["customer"].to_list() == ["a", None]
    assert found.to_pandas()["id"].tolist() == [1, 2]
    assert found.to_duckdb().aggregate("sum(id)").fetchall() == [(3,)]
    with duckdb.connect() as connection:
        assert found.to_duckdb(connection).filter("id = 2").project('"offset"').fetchall() == [(1,)]
    assert pa.table(found).equals(found.to_arrow())
    assert repr(found) == (
        "<TopicRows /default/orders: 2 rows, "
        "columns topic, partition, offset, append_time, publish_time, key, id, customer>"
    )


def test_the_blocking_client_reads_the_same(danube_url: str) -> None:
    with pydanube.connect_blocking(danube_url) as client:
        client.create_topic(TOPIC)
        with client.producer(TOPIC) as producer:
            producer.send_many([b"a", b"b"])
        assert client.read(TOPIC, columns=["payload"]).to_arrow()["payload"].to_pylist() == [b"a", b"b"]
        batches = client.read_batches(TOPIC, columns=["offset"])
        assert batches.schema.names == ["offset"]
        assert [batch.to_pydict() for batch in batches] == [{"offset": [0, 1]}]
        assert pa.table(client.read_batches(TOPIC, columns=["offset"])).to_pydict() == {"offset": [0, 1]}
        with client.read_batches(TOPIC, errors="skip") as open_batches:
            assert next(iter(open_batches)).num_rows == 2
            assert open_batches.undecoded == 0
