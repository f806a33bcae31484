"""Producers and consumers with a schema: registration, bindings, versions, and messages that cannot be decoded."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

import msgspec
import pydantic
import pytest
from google.protobuf import timestamp_pb2

import pydanube
from pydanube import Client, DanubeError, Invalid, NotFound, Refused
from pydanube.client import arguments
from pydanube.client.producing import typed_producer
from pydanube.client.producing.producer import Producer
from pydanube.client.settings import ProducerSettings
from pydanube.client.typed import writer_schemas
from pydanube.model.schemas import SchemaDefinition, SchemaFormat, SchemaReference, ValidationPolicy

TOPIC = "/default/orders"


class Order(msgspec.Struct):
    id: int
    customer: str


class Placed(msgspec.Struct, tag=True):
    id: int


class Shipped(msgspec.Struct, tag=True):
    box: str


class NewOrder(msgspec.Struct):
    id: int
    customer: str
    note: str = "none"


@dataclasses.dataclass
class Point:
    x: float
    y: float = 0.0


class Person(pydantic.BaseModel):
    name: str
    age: int | None = None


AVRO = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
NEW_AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "double"}, {"name": "note", "type": "string", "default": "none"}],
}
JSON = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}

KINDS: list[tuple[Any, list[Any]]] = [
    (Order, [Order(1, "a"), Order(2, "b")]),
    (Point, [Point(1.5), Point(2.5, 3.0)]),
    (Person, [Person(name="a"), Person(name="b", age=3)]),
    (AVRO, [{"id": 1}, {"id": 2}]),
    (JSON, [{"id": 1}, {"id": 2, "more": [1.5, None]}]),
    (timestamp_pb2.Timestamp, [timestamp_pb2.Timestamp(seconds=1), timestamp_pb2.Timestamp()]),
    (str, ["text", ""]),
    (int, [1, -(2**80)]),
    (float, [1.5, 2.0]),
    (bytes, [b"\xff", b""]),
]


@pytest.mark.parametrize(("schema", "values"), KINDS, ids=lambda value: getattr(value, "__name__", ""))
async def test_values_arrive_as_they_were_sent(client: Client, schema: Any, values: list[Any]) -> None:
    async with client.producer(TOPIC, schema=schema) as producer:
        consumer = await client.consumer(TOPIC, subscription="s", schema=schema, start="earliest")
        await client.schemas.bind(TOPIC, TOPIC, policy="enforce", tombstones=True)
        receipt = await producer.send(values[0], key="k", attributes={"a": "b"})
        await producer.send_many(values, keys=["k", "k"])
        await producer.queue_many(values)
        producer.send_nowait(values[1])
        await producer.flush()
        expected = [values[0], *values, *values, values[1]]
        messages = [await consumer.receive(timeout=60) for _ in range(3)]
        received = [message.value() for message in messages]
        assert (messages[0].key, messages[0].attributes, messages[0].offset) == ("k", {"a": "b"}, receipt.offset)
        while len(received) < len(expected):
            received += (await consumer.receive_batch(timeout=60)).values()
        assert received == expected
        await consumer.close()
    description = await client.schemas.describe(TOPIC)
    assert (description.schema_id, description.versions) == (messages[0].schema_id, (1,))
    assert messages[0].schema_version == 1
    reader = client.reader(TOPIC, schema=schema, start="earliest", end="latest")
    assert [message.value() async for message in reader] == expected


async def test_without_a_schema_the_value_is_the_payload(client: Client) -> None:
    async with client.producer(TOPIC) as producer:
        await producer.send_many([b"0", b"1"])
    async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
        message = await consumer.receive(timeout=60)
        assert message.value() == b"0"
        assert message.value() is message.payload
        assert (await consumer.receive_batch(timeout=60)).values() == [b"1"]
    assert await client.schemas.subjects() == []
    assert await client.schemas.binding(TOPIC) is None


async def test_the_first_producer_binds_the_topic_to_the_subject_of_its_name(client: Client) -> None:
    await client.producer(TOPIC, schema=Order)
    binding = await client.schemas.binding(TOPIC)
    assert binding is not None and binding.subject == TOPIC
    assert msgspec.json.decode((await client.schemas.get(TOPIC)).definition.text)["$ref"] == "#/$defs/Order"
    with pytest.raises(Refused, match="bound to"):
        await client.producer(TOPIC, schema=Order, subject="others")
    assert await client.schemas.subjects() == [TOPIC]


async def test_the_first_producer_may_have_its_schema_enforced(client: Client) -> None:
    async with client.producer(TOPIC, schema=Order, enforce=True):
        pass
    binding = await client.schemas.binding(TOPIC)
    assert binding is not None and binding.policy is ValidationPolicy.ENFORCE
    async with client.producer(TOPIC) as producer:
        with pytest.raises(Invalid):
            await producer.send(b"no order")


async def test_alternatives_and_lists_are_messages(client: Client) -> None:
    async with client.producer(TOPIC, schema=Placed | Shipped) as producer:
        await producer.send_many([Placed(1), Shipped("box")])
    async with client.producer("/default/lists", schema=list[Placed]) as lists:
        await lists.send([Placed(1), Placed(2)])
    async with client.consumer(TOPIC, subscription="s", start="earliest", schema=Placed | Shipped) as consumer:
        assert [(await consumer.receive(timeout=60)).value() for _ in range(2)] == [Placed(1), Shipped("box")]
    async with client.consumer("/default/lists", subscription="s", start="earliest", schema=list[Placed]) as consumer:
        assert (await consumer.receive(timeout=60)).value() == [Placed(1), Placed(2)]


async def test_a_topic_that_is_bound_has_its_subject(client, topic):
    await client.schemas.register("orders", SchemaDefinition(SchemaFormat.STRING, ""))
    await client.schemas.bind(TOPIC, "orders")
    async with client.producer(TOPIC, schema=str) as producer:
        await producer.send("text")
    assert await client.schemas.subjects() == ["orders"]


async def test_the_subject_can_be_given_and_shared(client: Client) -> None:
    await client.producer(TOPIC, schema=Order, subject="orders")
    await client.producer("/default/more", schema=Order, subject="orders")
    assert (await client.schemas.describe("orders")).versions == (1,)
    assert set((await client.schemas.describe("orders")).topics) == {TOPIC, "/default/more"}


async def test_without_registration_the_schema_has_to_be_there(client: Client) -> None:
    with pytest.raises(NotFound, match="register_schema=False does not register it"):
        await client.producer(TOPIC, schema=Order, register_schema=False)
    await client.producer(TOPIC, schema=Order)
    with pytest.raises(NotFound, match="has no version with this definition"):
        await client.producer(TOPIC, schema=NewOrder, register_schema=False)
    async with client.producer(TOPIC, schema=Order, register_schema=False) as producer:
        await producer.send(Order(1, "a"))
    assert (await client.schemas.describe(TOPIC)).versions == (1,)


async def test_payloads_that_are_encoded_already_are_sent_under_a_registered_version(client: Client) -> None:
    await client.producer(TOPIC, schema=Order, subject="orders")
    version = await client.schemas.get("orders")
    async with client.producer(TOPIC, schema=version) as producer:
        await producer.send(b'{"id":7,"customer":"Ann"}')
    async with client.reader(TOPIC, schema=Order, start="earliest", end="latest") as reader:
        (message,) = [message async for message in reader]
    assert message.value() == Order(7, "Ann")
    assert (message.schema_id, message.schema_version) == (version.schema_id, version.version)
    with pytest.raises(Invalid, match="belong to a producer with a schema that may be registered"):
        client.producer(TOPIC, schema=version, subject="orders")  # type: ignore[call-overload]
    other = dataclasses.replace(version, version=9)
    with pytest.raises(NotFound, match="version 9"):
        await client.producer(TOPIC, schema=other)


async def test_options_of_a_schema_without_one_are_refused(client: Client) -> None:
    for options in ({"subject": "orders"}, {"register_schema": False}, {"enforce": True}):
        with pytest.raises(Invalid, match="belong to a producer with a schema"):
            client.producer(TOPIC, **options)
    with pytest.raises(Invalid, match="is not a name"):
        client.producer(TOPIC, schema=Order, subject="two words")
    for make in (client.producer, client.reader):
        with pytest.raises(Invalid, match="is not a schema: use the class of a msgspec Struct"):
            make(TOPIC, schema=object)
    with pytest.raises(Invalid, match="is not a schema: use the class of a msgspec Struct"):
        client.consumer(TOPIC, subscription="s", schema=object)


async def test_an_incompatible_class_is_refused_with_the_reason(client: Client) -> None:
    class Changed(msgspec.Struct, tag=None):
        id: str
        customer: str

    await client.producer(TOPIC, schema=Order)
    with pytest.raises(Refused, match=r"not compatible.*id"):
        await client.producer(TOPIC, schema=Changed)


@pytest.mark.parametrize(
    ("old", "new", "old_value", "new_value", "old_as_new", "new_as_old"),
    [
        (Order, NewOrder, Order(1, "a"), NewOrder(2, "b", "c"), NewOrder(1, "a"), Order(2, "b")),
        (AVRO, NEW_AVRO, {"id": 1}, {"id": 2.5, "note": "b"}, {"id": 1.0, "note": "none"}, None),
    ],
)
async def test_versions_are_mixed_in_one_topic_and_read_as_the_readers(
    client: Client, old: Any, new: Any, old_value: Any, new_value: Any, old_as_new: Any, new_as_old: Any
) -> None:
    async with client.producer(TOPIC, schema=old) as first, client.producer(TOPIC, schema=new) as second:
        await first.send(old_value)
        await second.send(new_value)
        await first.send(old_value)
    async with (
        client.consumer(TOPIC, subscription="new", schema=new, start="earliest") as newer,
        client.consumer(TOPIC, subscription="old", schema=old, start="earliest") as older,
    ):
        messages = [await newer.receive(timeout=60) for _ in range(3)]
        assert [message.schema_version for message in messages] == [1, 2, 1]
        assert [message.value() for message in messages] == [old_as_new, new_value, old_as_new]
        messages = [await older.receive(timeout=60) for _ in range(3)]
        assert [messages[0].value(), messages[2].value()] == [old_value, old_value]
        if new_as_old is not None:
            assert messages[1].value() == new_as_old
        else:
            with pytest.raises(Invalid, match=rf"message 1 of {TOPIC}\[0\] cannot be decoded: .*"):
                messages[1].value()


async def test_a_message_that_cannot_be_decoded_names_itself_and_can_be_acked_and_nacked(client: Client) -> None:
    async with client.producer(TOPIC) as producer:
        await producer.send_many([b'{"id":1,"customer":"a"}', b'{"id":"x","customer":"a"}', b"no json"])
    options: dict[str, Any] = {"subscription": "s", "type": "shared", "start": "earliest", "schema": Order}
    async with client.consumer(TOPIC, **options) as consumer:
        batch = await consumer.receive_batch(timeout=60)
        with pytest.raises(Invalid, match=rf"message 1 of {TOPIC}\[0\] cannot be decoded: Expected `int`, got `str`"):
            batch.values()
        good, bad, worse = batch
        assert good.value() == Order(1, "a")
        with pytest.raises(Invalid, match=rf"message 2 of {TOPIC}\[0\] cannot be decoded: JSON is malformed") as caught:
            worse.value()
        assert isinstance(caught.value, DanubeError)
        await consumer.ack(good)
        await consumer.ack(bad)
        await consumer.nack(worse, delay=0, reason="not JSON")
        again = await consumer.receive(timeout=60)
        assert (again.offset, again.redeliveries, again.failure_reason) == (2, 1, "not JSON")
        await consumer.ack(again)
    described = await client.describe_subscription(TOPIC, "s")
    assert described.partitions[0].lag == 0


class Strict(msgspec.Struct):
    id: int

    def __post_init__(self) -> None:
        raise LookupError(f"no order {self.id}")


async def test_an_exception_of_the_users_own_class_is_told_with_the_message(client: Client) -> None:
    async with client.producer(TOPIC) as producer:
        await producer.send(b'{"id":1}')
    reader = client.reader(TOPIC, schema=Strict, start="earliest", end="latest")
    [message] = [message async for message in reader]
    with pytest.raises(Invalid, match=r"message 0 of .* cannot be decoded: .*no order 1"):
        message.value()


async def test_each_field_that_pydantic_refuses_is_named(client: Client) -> None:
    async with client.producer(TOPIC) as producer:
        await producer.send_many([b'{"name": 1, "age": "x"}', b"no json"])
    reader = client.reader(TOPIC, schema=Person, start="earliest", end="latest")
    wrong, worse = [message async for message in reader]
    reasons = r"\$\.name: Input should be a valid string; \$\.age: Input should be a valid integer[^;]*$"
    with pytest.raises(Invalid, match=rf"message 0 of .* cannot be decoded: {reasons}"):
        wrong.value()
    with pytest.raises(Invalid, match=r"message 1 of .* cannot be decoded: \$: Invalid JSON"):
        worse.value()


async def test_another_format_than_the_readers_is_told_with_the_message(client: Client) -> None:
    async with client.producer(TOPIC, schema=AVRO) as producer:
        await producer.send({"id": 1})
    async with client.consumer(TOPIC, subscription="s", schema=Order, start="earliest") as consumer:
        message = await consumer.receive(timeout=60)
        with pytest.raises(Invalid, match=r"message 0 of .*data of the format avro cannot be read as json"):
            message.value()


async def test_an_unknown_schema_is_told_with_the_message(client: Client) -> None:
    settings = ProducerSettings(schema=(77, 3))
    async with client._keep(Producer(client._brokers, TOPIC, settings, create_topic=True)) as producer:
        await producer.send(b'{"id":1,"customer":"a"}')
    async with client.consumer(TOPIC, subscription="s", schema=Order, start="earliest") as consumer:
        message = await consumer.receive(timeout=60)
        with pytest.raises(NotFound, match=r"message 0 of .* cannot be decoded: .*77"):
            message.value()
        await consumer.ack(message)


async def test_a_version_is_fetched_once_for_all_consumers(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    fetch = pydanube.client.admin.schemas.Schemas.get_by_id

    async def noted(self: Any, schema_id: int, version: Any = "latest") -> Any:
        asked.append((schema_id, version))
        return await fetch(self, schema_id, version)

    monkeypatch.setattr(pydanube.client.admin.schemas.Schemas, "get_by_id", noted)
    await client.create_topic(TOPIC, partitions=3)
    async with client.producer(TOPIC, schema=Order, partition_by="round-robin") as producer:
        for number in range(30):
            await producer.send(Order(number, "a"))
    consumers = [
        await client.consumer(TOPIC, subscription=f"s{number}", schema=Order, start="earliest") for number in range(3)
    ]

    async def receive(consumer: pydanube.Consumer[Order]) -> list[int]:
        return sorted([(await consumer.receive(timeout=60)).value().id for _ in range(30)])

    assert await asyncio.gather(*map(receive, consumers)) == [list(range(30))] * 3
    assert len(asked) == 1


async def test_references_are_fetched(client: Client) -> None:
    item = SchemaDefinition(
        SchemaFormat.AVRO, '{"type": "record", "name": "Item", "fields": [{"name": "name", "type": "string"}]}'
    )
    await client.schemas.register("items", item)
    order = SchemaDefinition(
        SchemaFormat.AVRO,
        '{"type": "record", "name": "Order", "fields": [{"name": "items", "type": '
        '{"type": "array", "items": "Item"}}]}',
        (SchemaReference("Item", "items", 1),),
    )
    value = {"items": [{"name": "a"}]}
    with pytest.raises(Refused, match="fetched on opening"):
        await client.producer(TOPIC, schema=order).send(value)
    async with client.producer(TOPIC, schema=order) as producer:
        await producer.send(value)
    async with client.consumer(TOPIC, subscription="s", schema=order, start="earliest") as consumer:
        assert (await consumer.receive(timeout=60)).value() == value


async def test_a_value_that_does_not_fit_is_not_published(client: Client) -> None:
    async with client.producer(TOPIC, schema=Order) as producer:
        wrong: Any = {"id": 1}
        with pytest.raises(Invalid, match="a dict is not a value of the schema Order"):
            await producer.send(wrong)
        with pytest.raises(Invalid, match="a dict is not a value of the schema Order"):
            producer.send_nowait(wrong)
        with pytest.raises(Invalid, match="value 1 of 2: a dict"):
            await producer.send_many([Order(1, "a"), wrong])
        with pytest.raises(Invalid, match="value 1 of 2: a dict"):
            await producer.queue_many([Order(1, "a"), wrong])
        for single in (Order(1, "a"), b"text", None):
            with pytest.raises(Invalid, match="many values are a list"):
                await producer.send_many(single)  # type: ignore[arg-type]
        await producer.flush()
    assert (await client.partitions(TOPIC))[0].end_offset == 0


def test_without_await() -> None:
    with pydanube.testing.broker_thread() as url, pydanube.connect_blocking(url) as client:
        with client.producer(TOPIC, schema=Order) as producer:
            producer.send(Order(1, "a"), key="k")
            producer.send_many([Order(2, "a"), Order(3, "a")])
            producer.queue_many([Order(4, "a")])
            producer.send_nowait(Order(5, "a"))
            producer.flush()
            for send in (producer.send, producer.send_nowait):
                with pytest.raises(Invalid, match="a str is not a value of the schema Order"):
                    send("text")  # type: ignore[arg-type]
            with pytest.raises(Invalid, match="value 0 of 1"):
                producer.send_many(["text"])  # type: ignore[list-item]
        with client.producer(TOPIC) as untyped:
            untyped.send(b"no json")
        with client.consumer(TOPIC, subscription="s", schema=NewOrder, start="earliest") as consumer:
            assert consumer.receive(timeout=60).value() == NewOrder(1, "a")
            received = [next(consumer).value().id for _ in range(4)]
            assert received == [2, 3, 4, 5]
            message = consumer.receive(timeout=60)
            with pytest.raises(Invalid, match="message 5 of"):
                message.value()
            consumer.ack(message)
        with client.reader(TOPIC, schema=Order, start="earliest", end=5) as reader:
            assert [message.value().id for message in reader] == [1, 2, 3, 4, 5]


async def test_seeking_while_a_schema_is_fetched_leaves_nothing_behind(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch, go_on = pydanube.client.admin.schemas.Schemas.get_by_id, asyncio.Event()
    asked = asyncio.Event()

    async def held(self: Any, schema_id: int, version: Any = "latest") -> Any:
        asked.set()
        await go_on.wait()
        return await fetch(self, schema_id, version)

    async with client.producer(TOPIC, schema=Order) as producer:
        await producer.send_many([Order(number, "a") for number in range(5)])
    monkeypatch.setattr(pydanube.client.admin.schemas.Schemas, "get_by_id", held)
    async with client.consumer(TOPIC, subscription="s", schema=Order, start="earliest") as consumer:
        await asked.wait()
        with pytest.raises(TimeoutError):
            await consumer.receive(timeout=0)
        await consumer.seek("earliest")
        go_on.set()
        assert [(await consumer.receive(timeout=60)).value().id for _ in range(5)] == [0, 1, 2, 3, 4]
        with pytest.raises(TimeoutError):
            await consumer.receive(timeout=0.1)


async def test_a_reader_does_not_end_before_the_schema_of_its_last_batch_is_known(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch, go_on, asked = pydanube.client.admin.schemas.Schemas.get_by_id, asyncio.Event(), asyncio.Event()

    async def held(self: Any, schema_id: int, version: Any = "latest") -> Any:
        asked.set()
        await go_on.wait()
        return await fetch(self, schema_id, version)

    async with client.producer(TOPIC, schema=Order) as producer:
        await producer.send_many([Order(number, "a") for number in range(3)])
    monkeypatch.setattr(pydanube.client.admin.schemas.Schemas, "get_by_id", held)
    async with client.reader(TOPIC, schema=Order, start="earliest", end="latest") as reader:
        await asked.wait()
        assert reader._queue.ended  # nothing more is read; one batch waits
        with pytest.raises(TimeoutError):
            await reader.receive(timeout=0)
        go_on.set()
        assert [message.value().id async for message in reader] == [0, 1, 2]


async def test_the_rest_of_a_batch_has_values_too(client: Client) -> None:
    async with client.producer(TOPIC, schema=Order) as producer:
        await producer.send_many([Order(number, "a") for number in range(5)])
    async with client.consumer(TOPIC, subscription="s", schema=Order, start="earliest") as consumer:
        assert (await consumer.receive(timeout=60)).value().id == 0
        assert [order.id for order in (await consumer.receive_batch(timeout=60)).values()] == [1, 2, 3, 4]
    async with client.reader(TOPIC, schema=Order, start=1, end=3) as reader:
        assert [message.value().id async for message in reader] == [1, 2]


async def test_closing_while_a_schema_is_fetched_leaves_nothing_behind(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asyncio.Event()

    async def held(self: Any, schema_id: int, version: Any = "latest") -> Any:
        asked.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(pydanube.client.admin.schemas.Schemas, "get_by_id", held)
    async with pydanube.connect(url) as client:
        async with client.producer(TOPIC, schema=Order) as producer:
            await producer.send(Order(1, "a"))
        consumer = await client.consumer(TOPIC, subscription="s", schema=Order, start="earliest")
        waiting = asyncio.create_task(consumer.receive())
        await asked.wait()
        reader = await client.reader(TOPIC, schema=Order, start="earliest", end="latest")
        reading = asyncio.create_task(reader.receive())
        await asyncio.sleep(0)
    for task in (waiting, reading):
        with pytest.raises(Refused, match="is closed"):
            await task


async def test_a_failure_is_kept_for_a_moment_and_asked_for_again(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    writers = client._writer_schemas
    known = asyncio.Event()
    writers.when_known((5, 1), known.set)
    await known.wait()
    assert isinstance(writers.find((5, 1)), NotFound)
    monkeypatch.setattr(writer_schemas, "FAILURE_SECONDS", -1.0)
    known.clear()
    writers.when_known((5, 1), known.set)
    await known.wait()
    assert writers.find((5, 1)) is None


def test_the_written_out_arguments_are_those_of_the_methods() -> None:
    def keywords(method: Callable[..., Any], *without: str) -> list[str]:
        parameters = inspect.signature(method).parameters.values()
        return [one.name for one in parameters if one.kind is one.KEYWORD_ONLY and one.name not in without]

    schema = ("schema", "subject", "register_schema", "enforce")
    for method, listed in (
        (Client.producer, arguments.ProducerArguments),
        (Client.consumer, arguments.ConsumerArguments),
        (Client.reader, arguments.ReaderArguments),
        (Producer.send, typed_producer.SendArguments),
        (Producer.send_nowait, typed_producer.SendArguments),
        (Producer.send_many, typed_producer.BulkSendArguments),
        (Producer.queue_many, typed_producer.BulkSendArguments),
    ):
        assert keywords(method, *schema) == list(get_type_hints(listed)), method
