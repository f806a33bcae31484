"""Dead letters are listed, shown, and redriven to the topics they came from; none is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from impatient_clock import ImpatientClock
from letter_writer import broker_for_letters, known, write_letters

import pydanube
from pydanube import AlreadyExists, Client, DeadLetter, Full, Invalid, NotFound, Redriven
from pydanube.client.admin import dead_letters as module
from pydanube.client.producing.partitioning import Partitioner
from pydanube.codec.batch import Codec
from pydanube.model.dead_letters import LETTER_ATTRIBUTES, REDRIVE, parse_place

TOPIC = "/default/orders"
LETTERS = "/default/orders-dlq"


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    async with broker_for_letters(tmp_path / "data") as url:
        yield url


async def publish_letters(client: Client, count: int, topic: str = TOPIC, start: int = 0, returns: str = "") -> None:
    """Publish dead letters as a broker does, over the partitions of their topic."""
    more = {"x-redriven": returns} if returns else {}
    numbers = range(start, start + count)
    partitions = await partitions_of(client)
    for partition in range(partitions):
        some = numbers[partition::partitions]
        await write_letters(
            client.url,
            LETTERS,
            [b"%d" % number for number in some],
            [letter_of(number, topic) | more for number in some],
            keys=[f"key {number}" if number % 2 else None for number in some],
            partition=partition,
        )


async def partitions_of(client: Client) -> int:
    """Return how many partitions the dead letter topic has; it is made if it is not there."""
    with suppress(AlreadyExists):
        await client.create_topic(LETTERS)
    return len(await client.partitions(LETTERS))


def letter_of(number: int, topic: str = TOPIC) -> dict[str, str]:
    return {
        "colour": "red",
        "x-original-topic": topic,
        "x-original-subscription": "billing",
        "x-original-topic-offset": str(number),
        "x-original-producer-id": "7",
        "x-original-broker-addr": "127.0.0.1:6655",
        "x-poison-policy": "dead-letter",
        "x-delivery-attempt": "6",
        "x-failure-reason": "no stock",
        "x-dead-letter-id": f"{topic}/0/billing/{number}",
    }


async def payloads(client: Client, topic: str = TOPIC) -> list[bytes]:
    async with client.reader(topic, start="earliest", end="latest") as reader:
        return [message.payload async for message in reader]


async def left(client: Client) -> list[str]:
    return [letter.place async for letter in client.dead_letters(LETTERS)]


async def test_a_letter_has_the_history_of_its_message(client: Client) -> None:
    await publish_letters(client, 2, returns="2")
    letter = await client.dead_letters(LETTERS).get("0:1")
    assert letter.place == "0:1"
    assert letter.id == "/default/orders/0/billing/1"
    assert (letter.original_topic, letter.original_subscription, letter.original_offset) == (TOPIC, "billing", 1)
    assert (letter.attempts, letter.reason, letter.redriven) == (6, "no stock", 2)
    assert letter.original_attributes == {"colour": "red", "x-redriven": "2"}
    for missing in ("0:2", (1, 0)):
        with pytest.raises(NotFound):
            await client.dead_letters(LETTERS).get(missing)
    for wrong in ("x", "1:2:3", "-1:0", ""):
        with pytest.raises(Invalid, match="PARTITION:OFFSET"):
            parse_place(wrong)


async def test_listing_creates_no_subscription(client: Client) -> None:
    await publish_letters(client, 3)
    letters = client.dead_letters(LETTERS)
    assert await left(client) == ["0:0", "0:1", "0:2"]
    assert [one.place for one in await letters.first(2)] == ["0:0", "0:1"]
    async with aclosing(letters.listed()) as listed:
        assert (await anext(listed)).place == "0:0"
    assert await client.list_subscriptions(LETTERS) == []
    with pytest.raises(NotFound):
        await client.dead_letters("/default/nowhere").first(1)


async def test_a_redriven_letter_is_not_redriven_again(client, topic):
    await publish_letters(client, 3)
    letters = client.dead_letters(LETTERS)
    assert await letters.redrive(["0:1"]) == Redriven(total=1, done=1)
    assert await left(client) == ["0:0", "0:2"]
    assert [one.place for one in await letters.first(9, redriven=True)] == ["0:0", "0:1", "0:2"]
    async with client.reader(TOPIC, start="earliest", end="latest") as reader:
        (message,) = [message async for message in reader]
    assert (message.payload, message.key) == (b"1", "key 1")
    assert message.attributes == {"colour": "red", "x-redriven": "1"}
    again = await letters.redrive([(0, 1)])
    assert (again.done, list(again.stayed)) == (0, ["0:1"])
    assert await payloads(client) == [b"1"]
    with pytest.raises(NotFound):
        await letters.redrive(["0:17"])


async def test_all_letters_are_redriven_in_steps(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LETTERS_AT_ONCE", 10)
    await client.create_topic(TOPIC)
    await publish_letters(client, 25)
    told: list[Redriven] = []
    done = await client.dead_letters(LETTERS).redrive(progress=lambda state: told.append(replace(state)))
    assert [(one.done, one.total) for one in told] == [(10, 25), (20, 25), (25, 25)]
    assert done == told[-1]
    assert await payloads(client) == [b"%d" % number for number in range(25)]
    assert await left(client) == []
    await publish_letters(client, 2, start=25)
    assert await left(client) == ["0:25", "0:26"]
    assert (await client.dead_letters(LETTERS).redrive()).done == 2
    assert await payloads(client) == [b"%d" % number for number in range(27)]


async def test_redrives_are_counted(client, topic):
    await publish_letters(client, 1, returns="1")
    await client.dead_letters(LETTERS).redrive()
    async with client.reader(TOPIC, start="earliest", end="latest") as reader:
        assert (await reader.receive(timeout=60)).attributes["x-redriven"] == "2"


async def test_letters_are_selected_by_their_origin_and_may_be_sent_to_another_topic(client, topic):
    await client.create_topic("/default/repaired")
    await publish_letters(client, 2)
    await publish_letters(client, 1, topic="/default/other", start=2)
    letters = client.dead_letters(LETTERS)
    done = await letters.redrive(where=lambda letter: letter.original_topic == "/default/other", to="/default/repaired")
    assert (done.done, done.stayed) == (1, {})
    assert await payloads(client, "/default/repaired") == [b"2"]
    assert await left(client) == ["0:0", "0:1"]
    assert (await letters.redrive(where=lambda letter: letter.original_offset == 1)).done == 1
    assert (await payloads(client), await left(client)) == ([b"1"], ["0:0"])


async def test_letters_can_be_dropped(client, topic):
    await publish_letters(client, 4)
    letters = client.dead_letters(LETTERS)
    assert await letters.drop(["0:2"]) == Redriven(total=1, done=1)
    assert await left(client) == ["0:0", "0:1", "0:3"]
    assert (await letters.drop(where=lambda letter: letter.message.key is None)).done == 1
    assert await left(client) == ["0:1", "0:3"]
    assert (await letters.drop(["0:2"])).stayed == {"0:2": "it was redriven or dropped before"}
    assert (await letters.drop()).done == 2
    assert await payloads(client) == []
    assert len(await letters.first(9, redriven=True)) == 4


async def test_a_topic_without_letters_is_left_as_it_was(client: Client) -> None:
    async with client.producer(TOPIC) as producer:
        await producer.send(b"no letter")
    letters = client.dead_letters(TOPIC)
    assert await letters.redrive() == Redriven(total=0)
    assert list((await letters.redrive(["0:0"])).stayed) == ["0:0"]
    assert (await letters.drop(["0:0"])).done == 0
    with pytest.raises(NotFound):
        await letters.drop(["0:5"])
    assert await client.list_subscriptions(TOPIC) == []
    assert not (await letters.get("0:0")).is_letter


async def test_a_letter_that_cannot_be_sent_back_stays_with_the_reason(client, topic):
    await publish_letters(client, 1, topic="/default/gone")
    async with client.producer(LETTERS) as producer:
        await producer.send(b"by hand")
    await publish_letters(client, 1)
    state = await client.dead_letters(LETTERS).redrive()
    assert state.done == 1
    assert "/default/gone" in state.stayed["0:0"]
    assert "x-original-topic" in state.stayed["0:1"]
    assert await left(client) == ["0:0", "0:1"]
    assert "/default/gone" not in await client.list_topics()


async def test_only_the_refused_letter_of_a_batch_stays_and_the_others_are_sent_once(client, topic):
    """It shares a batch with others, and a batch is refused whole."""
    await client.set_policies(TOPIC, message_bytes_max=100)
    contents = [b"0", b"1", b"x" * 101, b"3", b"4"]
    await partitions_of(client)
    await write_letters(client.url, LETTERS, contents, [letter_of(number) for number in range(5)])
    letters = client.dead_letters(LETTERS)
    first = await letters.redrive()
    assert (first.done, list(first.stayed)) == (4, ["0:2"])
    assert "101 bytes" in first.stayed["0:2"]
    again = await letters.redrive()
    assert (again.done, list(again.stayed)) == (0, ["0:2"])
    assert sorted(await payloads(client)) == [b"0", b"1", b"3", b"4"]
    assert await left(client) == ["0:2"]


async def fill(client: Client, topic: str) -> None:
    """Let the topic refuse publishes with Full, because its backlog is as large as its quota allows."""
    await client.create_topic(topic)
    await client.set_policies(topic, backlog_messages_max=1, backlog_action="refuse")
    await client.create_subscription(topic, "stuck", start="earliest")
    async with client.producer(topic) as producer:
        await producer.send(b"first")


async def test_sent_letters_are_acked_also_when_others_fail(client: Client) -> None:
    client._brokers.timeout = 0.5  # for the topic that stays full
    await client.create_topic(TOPIC)
    await fill(client, "/default/full")
    await publish_letters(client, 1)
    await publish_letters(client, 1, topic="/default/full", start=1)
    await publish_letters(client, 1, start=2)
    letters = client.dead_letters(LETTERS)
    for places in (None, ["0:0", "0:1", "0:2"]):
        with pytest.raises(Full):
            await letters.redrive(places)
        assert await left(client) == ["0:1"]
        assert await payloads(client) == [b"0", b"2"]
    await client.clear_backlog("/default/full", "stuck")
    assert (await letters.redrive()).done == 1
    assert await payloads(client, "/default/full") == [b"first", b"1"]


async def test_numbers_that_are_too_long_are_ignored(client, topic):
    await publish_letters(client, 1, returns="9" * 5_000)
    strange = letter_of(1) | {"x-dead-letter-id": f"{TOPIC}/{'9' * 5_000}/billing/1"}
    await write_letters(client.url, LETTERS, [b"1"], [strange])
    letters = client.dead_letters(LETTERS)
    assert [letter.original_partition for letter in await letters.first(2)] == [0, None]
    assert (await letters.redrive()).done == 2
    async with client.reader(TOPIC, start="earliest", end="latest") as reader:
        assert [message.attributes["x-redriven"] async for message in reader] == ["1", "1"]


async def test_a_rate_is_kept_after_a_pause(client, topic):
    await publish_letters(client, 6)
    clock = client._brokers.clock = ImpatientClock()

    def pause(state: Redriven) -> None:
        if state.done == 3:
            clock.advance(60)

    assert (await client.dead_letters(LETTERS).redrive(rate=10, progress=pause)).done == 6
    assert clock.slept == pytest.approx([0, 0.1, 0.1, 0, 0.1, 0.1])


async def test_two_redrives_at_the_same_time_send_each_letter_once(client, topic):
    await publish_letters(client, 1200)
    letters = client.dead_letters(LETTERS)
    both = await asyncio.gather(letters.redrive(), letters.redrive())
    assert sum(one.done for one in both) == 1200
    assert sorted(await payloads(client), key=int) == [b"%d" % number for number in range(1200)]
    assert await left(client) == []


async def test_letters_go_back_to_the_partition_they_came_from(client: Client) -> None:
    """Also those without a key, and those that their producer put there by a rule of its own."""
    await client.create_topic(TOPIC, partitions=3)
    await partitions_of(client)
    attributes = [letter_of(number) | {"x-original-partition": "7" if number == 3 else "2"} for number in range(4)]
    contents = [b"%d" % number for number in range(4)]
    await write_letters(client.url, LETTERS, contents, attributes, keys=[None, "a", "b", "c"])
    assert (await client.dead_letters(LETTERS).redrive()).done == 4
    by_key = Partitioner(3).of("c", b"")
    found: dict[bytes, int] = {}
    for partition in range(3):
        async with client.reader(TOPIC, partition=partition, start="earliest", end="latest") as reader:
            found |= {message.payload: message.partition async for message in reader}
    assert found == {b"0": 2, b"1": 2, b"2": 2, b"3": by_key}


async def test_letters_in_compressed_batches_are_redriven(client, topic):
    await partitions_of(client)
    for numbers in (range(50), range(50, 100)):
        contents, attributes = [b"%d" % one * 50 for one in numbers], [letter_of(one) for one in numbers]
        await write_letters(client.url, LETTERS, contents, attributes, codec=Codec.ZSTD)
    letters = client.dead_letters(LETTERS)
    assert (await letters.redrive(["0:49", "0:50", "0:99"])).done == 3
    assert await payloads(client) == [b"%d" % one * 50 for one in (49, 50, 99)]
    assert (await letters.redrive()).done == 97
    assert len(await payloads(client)) == 100


async def test_a_redriven_message_keeps_its_schema(client, topic):
    await partitions_of(client)
    await write_letters(client.url, LETTERS, [b"0"], [letter_of(0)], schema_id=12, schema_version=3)
    await publish_letters(client, 1, start=1)
    await client.dead_letters(LETTERS).redrive()
    async with client.reader(TOPIC, start="earliest", end="latest") as reader:
        schemas = {message.payload: (message.schema_id, message.schema_version) async for message in reader}
    assert schemas == {b"0": (12, 3), b"1": (0, 0)}


async def test_letters_of_several_partitions_and_topics(client: Client) -> None:
    await client.create_topic(LETTERS, partitions=3)
    await client.create_topic(TOPIC, partitions=2)
    await client.create_topic("/default/other")
    await publish_letters(client, 20)
    await publish_letters(client, 5, topic="/default/other", start=100)
    assert (await client.dead_letters(LETTERS).redrive()).done == 25
    found: list[bytes] = []
    for partition in range(2):
        async with client.reader(TOPIC, partition=partition, start="earliest", end="latest") as reader:
            found += [message.payload async for message in reader]
    assert sorted(found, key=int) == [b"%d" % number for number in range(20)]
    assert sorted(await payloads(client, "/default/other")) == [b"%d" % number for number in range(100, 105)]
    assert await left(client) == []


async def test_letters_written_by_the_broker_are_read_and_redriven(client: Client) -> None:
    policy = pydanube.FailurePolicy(
        redeliveries_max=0, poison=pydanube.Poison.DEAD_LETTER, dead_letter_topic=LETTERS, delay_ms=0
    )
    async with client.producer(TOPIC) as producer:
        await producer.send(b"payload", key="k", attributes={"a": "b"})
    async with client.consumer(TOPIC, subscription="billing", start="earliest", failure_policy=policy) as consumer:
        await consumer.nack(await consumer.receive(timeout=60), reason="because")
        async with client.consumer(LETTERS, subscription="watch", start="earliest", create_topic=True) as watch:
            message = await watch.receive(timeout=60)
        assert message.attributes.keys() == LETTER_ATTRIBUTES - {"x-attributes-dropped"} | {"a"}
        assert message.attributes["x-dead-letter-id"] == "/default/orders/0/billing/0"
        assert (await client.dead_letters(LETTERS).redrive()).done == 1
        again = await consumer.receive(timeout=60)
        assert (again.payload, again.key, again.attributes) == (b"payload", "k", {"a": "b", "x-redriven": "1"})
        assert again.redeliveries == 0
        await consumer.ack(again)
    assert REDRIVE in await client.list_subscriptions(LETTERS)


async def test_a_letter_names_the_partition_it_came_from_and_keeps_its_time(client: Client) -> None:
    await client.create_topic(TOPIC, partitions=3)
    made = datetime(2020, 2, 29, 12, 30, 15, 123456, tzinfo=UTC)
    async with client.producer(TOPIC, partition_by=2) as producer:
        await producer.send(b"other", publish_time=made)
        await producer.send(b"payload", publish_time=made)
    policy = pydanube.FailurePolicy(redeliveries_max=0, dead_letter_topic=LETTERS)
    async with client.consumer(TOPIC, subscription="billing", start="earliest", failure_policy=policy) as consumer:
        await consumer.ack(await consumer.receive(timeout=60))
        await consumer.nack(await consumer.receive(timeout=60))
        async with client.consumer(LETTERS, subscription="watch", start="earliest", create_topic=True) as watch:
            letter = DeadLetter(await watch.receive(timeout=60))
        assert (letter.original_topic, letter.original_partition, letter.original_offset) == (TOPIC, 2, 1)
        assert letter.message.publish_time == made
        assert (await client.dead_letters(LETTERS).redrive()).done == 1
        again = await consumer.receive(timeout=60)
        assert (again.payload, again.publish_time, again.attributes) == (b"payload", made, {"x-redriven": "1"})


def test_without_await() -> None:
    with (
        pydanube.testing._server_thread(None, {}) as server,
        known(server) as url,
        pydanube.connect_blocking(url) as client,
    ):
        client.create_topic(TOPIC)
        client.create_topic(LETTERS)
        numbers = range(3)
        asyncio.run(write_letters(url, LETTERS, [b"%d" % one for one in numbers], [letter_of(one) for one in numbers]))
        letters = client.dead_letters(LETTERS)
        assert [letter.place for letter in letters] == ["0:0", "0:1", "0:2"]
        assert next(iter(letters)).place == "0:0"
        assert letters.get("0:1").message.payload == b"1"
        assert letters.redrive(["0:0"]).done == 1
        assert [letter.place for letter in letters.first(5)] == ["0:1", "0:2"]
        told: list[int] = []
        assert letters.redrive(progress=lambda state: told.append(state.done)).done == 2
        assert told == [2]
