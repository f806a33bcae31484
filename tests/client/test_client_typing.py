"""What a type checker knows: a consumer of orders gives orders, a producer of orders takes nothing else, and a
misspelled option is an error. Without a schema, everything is bytes, also where a program names the classes without a
parameter."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
from mypy import api

import pydanube
from pydanube.client.settings import CompressionName
from pydanube.codec.batch import Codec
from pydanube.model.topics import AckLevel, AckLevelName, SubscriptionType, SubscriptionTypeName

HEAD = """
import dataclasses
from typing import Any, assert_type
import msgspec, pydantic
import pydanube
from pydanube import (
    BlockingConsumer, BlockingProducer, BlockingReader, Consumer, Message, Producer, Reader, Receipt, Receipts,
    ReceivedBatch, SchemaDefinition,
)

class Order(msgspec.Struct):
    id: int

@dataclasses.dataclass
class Point:
    x: float

class Person(pydantic.BaseModel):
    name: str

AVRO: dict[str, Any] = {}

def handle(message: Message, consumer: Consumer, producer: Producer, batch: ReceivedBatch) -> None:
    assert_type(message.value(), bytes)
    assert_type(batch.values(), list[bytes])
    assert_type(consumer, Consumer[bytes])
    assert_type(producer, Producer[bytes])

async def program(client: pydanube.Client, definition: SchemaDefinition, either: bool) -> None:
""".strip().splitlines()

RIGHT = """
assert_type(client.consumer("/default/a", subscription="s", schema=Order), Consumer[Order])
assert_type(client.consumer("/default/a", subscription="s", type="shared", schema=Point), Consumer[Point])
assert_type(client.consumer(["/default/a"], subscription="s", schema=Person), Consumer[Person])
assert_type(client.consumer("/default/a", subscription="s", schema=str), Consumer[str])
assert_type(client.consumer("/default/a", subscription="s", schema=AVRO), Consumer[Any])
assert_type(client.consumer("/default/a", subscription="s", schema=definition), Consumer[Any])
assert_type(client.consumer("/default/a", subscription="s"), Consumer[bytes])
assert_type(client.consumer("/default/a", subscription="s", schema=None), Consumer[bytes])
assert_type(client.producer("/default/a", schema=Order, subject="s", register_schema=False), Producer[Order])
assert_type(client.producer("/default/a", schema=AVRO, subject="s"), Producer[Any])
assert_type(client.producer("/default/a", name="p"), Producer[bytes])
assert_type(client.reader("/default/a", schema=Order, partition=1), Reader[Order])
assert_type(client.reader("/default/a"), Reader[bytes])
producer = await client.producer("/default/a", schema=Order)
assert_type(await producer.send(Order(1), key="a"), Receipt)
assert_type(await producer.send_many([Order(1)], keys=["a"]), Receipts)
await producer.queue_many([Order(1)])
producer.send_nowait(Order(1))
consumer = await client.consumer("/default/a", subscription="s", schema=Order)
message = await consumer.receive(timeout=1)
assert_type(message, Message[Order])
assert_type(message.value(), Order)
assert_type(message.payload, bytes)
batch = await consumer.receive_batch()
assert_type(batch, ReceivedBatch[Order])
assert_type(batch.values(), list[Order])
assert_type([one.value().id for one in batch], list[int])
assert_type([one.value().id async for one in consumer], list[int])
await consumer.ack(message)
await consumer.nack(batch)
plain = await client.consumer("/default/a", subscription="s")
assert_type((await plain.receive()).value(), bytes)
handle(await plain.receive(), plain, await client.producer("/default/a"), await plain.receive_batch())
async with client.producer("/default/a", schema=Point) as points:
    await points.send(Point(1.0))
blocking = pydanube.connect_blocking()
assert_type(blocking.producer("/default/a", schema=Order), BlockingProducer[Order])
assert_type(blocking.producer("/default/a"), BlockingProducer[bytes])
assert_type(blocking.consumer("/default/a", subscription="s", schema=Order), BlockingConsumer[Order])
assert_type(blocking.consumer("/default/a", subscription="s"), BlockingConsumer[bytes])
assert_type(blocking.consumer("/default/a", subscription="s", schema=AVRO), BlockingConsumer[Any])
assert_type(blocking.reader("/default/a", schema=Order), BlockingReader[Order])
with blocking.consumer("/default/a", subscription="s", schema=Order) as orders:
    assert_type(orders.receive(timeout=1).value(), Order)
    assert_type(orders.receive_batch().values(), list[Order])
    assert_type([one.value().id for one in orders], list[int])
    orders.ack(orders.receive())
with blocking.producer("/default/a", schema=Order) as sender:
    assert_type(sender.send(Order(1), key="a"), Receipt)
    assert_type(sender.send_many([Order(1)]), Receipts)
    sender.send_nowait(Order(1))
client.consumer("/default/orders", subscription="s", type="key-shared", start="earliest")
client.consumer("/default/orders", subscription="s", type=None)
client.producer("/default/orders", compression="zstd", access="exclusive", partition_by="round-robin")
client.producer("/default/orders", compression=None, partition_by=lambda key, payload, count: 0)
client.producer("/default/orders", partition_by=3)
client.create_topic("/default/orders", ack_level="written")
client.create_subscription("/default/orders", "s", type="failover")
blocking.consumer("/default/orders", subscription="s", type="shared")
client.close(timeout=1)
blocking.close(timeout=1.5)
pydanube.connect()
untyped = blocking.producer("/default/a")
assert_type(untyped.send(b"a"), Receipt)
""".strip().splitlines()

WRONG = """
client.consumer("/default/orders", subscription="s", type="sharde")
client.producer("/default/orders", compression="gzip")
client.producer("/default/orders", access="exclusif")
client.producer("/default/orders", partition_by="keys")
client.create_topic("/default/orders", ack_level="durabel")
client.create_subscription("/default/orders", "s", type="key_shared")
blocking.consumer("/default/orders", subscription="s", type="sharde")
blocking.producer("/default/orders", compression="gzip")
blocking.create_topic("/default/orders", ack_level="durabel")
await producer.send(Point(1.0))
await producer.send(b"bytes")
await producer.send_many([Order(1), Point(1.0)])
await producer.queue_many([b"bytes"])
producer.send_nowait("text")
await producer.send(Order(1), kye="a")
message.value().nothing
text: str = message.value()
(await plain.receive()).value().id
await (await client.producer("/default/a")).send(Order(1))
untyped.send(Order(1))
sender.send(b"bytes")
sender.send_many([b"bytes"])
sender.send_nowait("text")
sender.send(Order(1), kye="a")
orders.receive().value().nothing
client.producer("/default/a", schema=Order(1))
client.producer("/default/a", subject="orders")
client.producer("/default/a", schema=Order, subjekt="orders")
client.consumer("/default/a", schema=Order)
client.consumer("/default/a", subscription="s", schema=Order, register_schema=True)
client.consumer("/default/a", subscription="s", schema=Order, type="sharde")
blocking.consumer("/default/a", subscription="s", schema="Order")
handle(message, plain, untyped, batch)
""".strip().splitlines()


def test_values_are_typed_and_wrong_ones_are_type_errors(
    tmp_path: Path, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "program.py"
    lines = HEAD + [f"    {line}" for line in RIGHT + WRONG]
    program.write_text("\n".join(lines) + "\n")
    monkeypatch.setenv("MYPYPATH", str(Path(pydanube.__file__).parents[1]))
    assert pytestconfig.cache is not None
    options = ["--cache-dir", str(pytestconfig.cache.mkdir("mypy")), "--follow-imports=silent", "--config-file="]
    out, err, _ = api.run([str(program), *options, "--strict", "--disable-error-code=unused-coroutine"])
    assert err == ""
    refused = {int(number) for number in re.findall(r"program\.py:(\d+): error", out)}
    first = len(HEAD) + len(RIGHT) + 1
    assert sorted(refused) == list(range(first, first + len(WRONG))), out
    assert 'has incompatible type "Point"; expected "Order"' in out
    assert 'expected "Literal[' in out


def test_the_words_are_those_that_are_understood() -> None:
    assert set(get_args(SubscriptionTypeName)) == {str(one) for one in SubscriptionType}
    assert set(get_args(AckLevelName)) == {str(one) for one in AckLevel}
    assert set(get_args(CompressionName)) == {str(one) for one in Codec}
