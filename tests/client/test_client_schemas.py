"""The schema registry as a client calls it."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

import pydanube
from pydanube import Client, Invalid, NotFound, Refused
from pydanube.client.producing.producer import Producer
from pydanube.client.settings import ProducerSettings
from pydanube.model.schemas import (
    Binding,
    Compatibility,
    Framing,
    SchemaDefinition,
    SchemaFormat,
    SchemaReference,
    ValidationPolicy,
)

TOPIC = "/default/orders"


async def test_a_schema_is_registered_read_checked_and_deleted(client: Client) -> None:
    schemas = client.schemas
    first = await schemas.register("orders", "a name", format="string")
    assert (first.schema_id, first.version, first.global_id, first.is_new) == (1, 1, 1, True)
    again = await schemas.register("orders", SchemaDefinition(SchemaFormat.STRING, "other words"))
    assert (again.version, again.is_new) == (1, False)
    found = await schemas.get("orders")
    assert found == await schemas.get("orders", 1) == await schemas.get_by_id(1, 1) == await schemas.get_by_id(1)
    assert found == await schemas.by_global_id(1) == await schemas.lookup("orders", "x", format="string")
    assert (found.definition.text, found.fingerprint) == ("a name", first.fingerprint)
    reasons = await schemas.check("orders", "", format="number")
    assert [(one.path, one.version) for one in reasons] == [("$", 1)]
    assert await schemas.check("orders", "", format="number", level="none") == []
    assert len(await schemas.check("orders", "", format="number", version="latest")) == 1
    with pytest.raises(Refused, match="format was string"):
        await schemas.register("orders", "", format="number")
    assert await schemas.set_compatibility("orders", "none") is Compatibility.NONE
    assert await schemas.compatibility() is Compatibility.BACKWARD
    assert (await schemas.register("orders", "", format="number")).version == 2
    assert await schemas.versions("orders") == [1, 2]
    await schemas.set_tags("orders", "latest", ["gold"])
    assert (await schemas.get("orders", 2)).tags == ("gold",)
    assert await schemas.referenced_by("orders", 1) == []
    described = await schemas.describe("orders")
    assert (described.schema_id, described.versions, described.topics) == (1, (1, 2), ())
    assert await schemas.delete("orders", "latest") == [2]
    assert await schemas.delete("orders", 2, permanent=True) == [2]
    assert await schemas.delete("orders") == [1]
    assert await schemas.subjects() == []
    assert await schemas.subjects(deleted=True) == ["orders"]
    assert (await schemas.get("orders", 1, deleted=True)).deleted


async def test_more_subjects_than_one_answer_holds_are_listed(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pydanube.client.admin.schemas.SUBJECTS_AT_ONCE", 3)
    names = [f"orders-{number}" for number in range(7)]
    for name in ("invoices", *names):
        await client.schemas.register(name, "", format="string")
    assert await client.schemas.subjects("orders-") == names


async def test_a_topic_is_bound_and_unbound(client, topic):
    await client.schemas.register("orders", "", format="string")
    await client.schemas.register("users", "", format="string")
    assert await client.schemas.binding(TOPIC) is None
    await client.schemas.bind(TOPIC, "orders", policy="warn", tombstones=True, framing="confluent")
    bound = Binding("orders", ValidationPolicy.WARN, tombstones=True, framing=Framing.CONFLUENT)
    assert await client.schemas.binding(TOPIC) == bound
    assert (await client.schemas.describe("orders")).topics == (TOPIC,)
    with pytest.raises(Refused, match="bound to subject 'orders', not to 'users'"):
        await client.schemas.bind(TOPIC, "users")
    with pytest.raises(Refused, match="unbind it first"):
        await client.schemas.delete("orders")
    for version in ({"pinned_version": 2}, {"minimum_version": 2}):
        with pytest.raises(NotFound, match="no version 2"):
            await client.schemas.bind(TOPIC, "orders", **version)
    with pytest.raises(NotFound, match="nothing"):
        await client.schemas.bind(TOPIC, "nothing")
    await client.schemas.unbind(TOPIC)
    with pytest.raises(NotFound, match="not bound"):
        await client.schemas.unbind(TOPIC)
    await client.schemas.bind(TOPIC, "users")


async def test_a_binding_is_there_after_a_restart(tmp_path) -> None:
    async with pydanube.testing.broker(tmp_path) as url, pydanube.connect(url) as client:
        await client.create_topic(TOPIC)
        await client.schemas.register("orders", "", format="string")
        await client.schemas.bind(TOPIC, "orders", pinned_version=1)
    async with pydanube.testing.broker(tmp_path) as url, pydanube.connect(url) as client:
        assert await client.schemas.binding(TOPIC) == Binding("orders", pinned_version=1)


async def test_the_schema_of_a_class_or_a_dict_can_be_registered_before_it_is_used(client: Client) -> None:
    @dataclasses.dataclass
    class Order:
        id: int

    await client.schemas.register("orders", Order)
    await client.schemas.register("labels", {"type": "record", "name": "Label", "fields": []})
    formats = [(await client.schemas.get(one)).definition.format for one in ("orders", "labels")]
    assert formats == [SchemaFormat.JSON, SchemaFormat.AVRO]
    assert (await client.schemas.lookup("orders", Order)).version == 1
    async with client.producer(TOPIC, schema=Order, subject="orders", register_schema=False) as producer:
        await producer.send(Order(1))
    assert [one.path for one in await client.schemas.check("orders", {"type": "object", "required": ["a"]})]
    with pytest.raises(Invalid, match="is not a schema"):
        await client.schemas.register("orders", b'{"type": "string"}')  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="only text takes a format"):
        await client.schemas.register("orders", Order, format="json")


async def test_what_is_wrong_is_refused_before_it_is_sent(client: Client) -> None:
    definition = SchemaDefinition(SchemaFormat.STRING, "")
    with pytest.raises(Invalid, match="needs a format"):
        await client.schemas.register("orders", "x")
    with pytest.raises(Invalid, match="already"):
        await client.schemas.register("orders", definition, references=[SchemaReference("a", "a", 1)])
    with pytest.raises(Invalid, match="SchemaFormat 'xml' is unknown"):
        await client.schemas.register("orders", "x", format="xml")
    with pytest.raises(Invalid, match="Compatibility 'sideways' is unknown"):
        await client.schemas.set_compatibility("orders", "sideways")
    with pytest.raises(Invalid, match="subject"):
        await client.schemas.get("a subject")
    with pytest.raises(Invalid, match="version"):
        await client.schemas.get("orders", -1)
    with pytest.raises(Invalid, match="not both"):
        await client.schemas.bind(TOPIC, "orders", pinned_version=1, minimum_version=1)


async def test_a_producer_that_names_a_subject_binds_the_topic_and_its_messages_carry_the_schema(
    client: Client,
) -> None:
    registered = await client.schemas.register("orders", "", format="number")
    await client.schemas.register("users", "", format="number")
    schema = (registered.schema_id, registered.version)
    settings = ProducerSettings(subject="orders", schema=schema)
    async with Producer(client._brokers, TOPIC, settings, True, "key") as producer:
        await producer.send(b"1")
        assert await client.schemas.binding(TOPIC) == Binding("orders", ValidationPolicy.NONE)
        await client.schemas.bind(TOPIC, "orders")
        await producer.send_many([b"2", b"3"])
        with pytest.raises(Invalid, match="row 0 of the batch does not fit version 1 of subject 'orders'"):
            await producer.send(b"x")
        await producer.send(b"4")
    with pytest.raises(Refused, match="bound to subject 'orders', not to 'users'"):
        async with Producer(client._brokers, TOPIC, ProducerSettings(subject="users"), True, "key"):
            pass
    async with client.producer(TOPIC) as plain:
        with pytest.raises(Invalid, match="names no schema"):
            await plain.send(b"5")
    async with client.consumer(TOPIC, subscription="billing", start="earliest") as consumer:
        received = [await consumer.receive(timeout=60) for _ in range(4)]
    assert [(one.payload, one.schema_id, one.schema_version) for one in received] == [
        (b"%d" % number, *schema) for number in range(1, 5)
    ]


async def test_under_enforce_many_producers_get_everything_stored_in_their_order(client, topic):
    """The window of a connection holds more than is checked at once."""
    await client.schemas.register("orders", "", format="number")
    await client.schemas.bind(TOPIC, "orders")
    settings = ProducerSettings(subject="orders", schema=(1, 1), batch_messages=500)

    async def produce(number: int) -> None:
        async with Producer(client._brokers, TOPIC, settings, True, "key") as producer:
            await producer.send_many([b"%d" % (number * 100_000 + one) for one in range(20_000)])

    await asyncio.gather(*(produce(number) for number in range(3)))
    async with client.reader(TOPIC, start="earliest", end="latest") as reader:
        found = [int(message.payload) async for message in reader]
    for number in range(3):
        mine = [one for one in found if one // 100_000 == number]
        assert mine == list(range(number * 100_000, number * 100_000 + 20_000))
