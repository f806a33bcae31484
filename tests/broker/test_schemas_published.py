"""What is published to a topic that is bound to a subject: policies, versions, tombstones, framing, order."""

from __future__ import annotations

import asyncio

import pytest
from broker_harness import TOPIC, created, open_broker, open_client, open_topic
from metadata_harness import FaultyStore
from staging_harness import Query, staging_broker
from staging_harness import payloads as staged_payloads

from pydanube.broker.schemas import validation
from pydanube.broker.schemas.records import VERSIONS
from pydanube.codec.batch import Batch, Codec, encode
from pydanube.core.access import ANONYMOUS
from pydanube.model.errors import Invalid, NotFound, Refused, StaleEpoch, Unavailable
from pydanube.model.failure import FailurePolicy, Poison
from pydanube.model.names import TopicName
from pydanube.model.schemas import (
    Binding,
    Compatibility,
    Framing,
    SchemaDefinition,
    SchemaFormat,
    ValidationPolicy,
)
from pydanube.model.topics import AckLevel, SubscriptionType
from pydanube.runtime.objects.memory import MemoryStore

NUMBER = SchemaDefinition(SchemaFormat.NUMBER, "a price")
STRING = SchemaDefinition(SchemaFormat.STRING, "a name")
BYTES = SchemaDefinition(SchemaFormat.BYTES, "")
OTHER = TopicName.parse("/default/other")


@pytest.fixture
async def broker(tmp_path):
    async with open_broker(tmp_path) as opened:
        await opened.schemas.set_compatibility(ANONYMOUS, None, Compatibility.NONE)
        await opened.schemas.register(ANONYMOUS, "orders", NUMBER)
        yield opened


@pytest.fixture
async def client(broker):
    return await created(broker)


async def bind(client, **options):
    await client.broker.schemas.bind(ANONYMOUS, client.topic, Binding("orders", **options))


async def payloads(client):
    return [payload for _, payload in await client.read_all()]


async def warnings(client):
    statistics = await client.broker.statistics.topic(ANONYMOUS, client.topic)
    return [one.schema_warnings for one in statistics.partitions]


async def test_a_batch_that_fits_is_stored_with_its_schema(client):
    await bind(client)
    producer = await client.producer()
    await client.publish(producer, [b"1", b"2.5"], schema_id=1, schema_version=1)
    stored = Batch.open((await client.fetch()).batches[0], stamped=True)
    assert (stored.payloads, stored.header.schema_id, stored.header.schema_version) == ([b"1", b"2.5"], 1, 1)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4, Codec.ZSTD])
async def test_enforce_names_the_row_and_the_reason(client, codec):
    await bind(client)
    producer = await client.producer()
    answer = client.publish(producer, [b"1", b"2", b"x"], schema_id=1, schema_version=1, codec=codec)
    with pytest.raises(Invalid, match=r"row 2 of the batch does not fit version 1 of subject 'orders': .*number"):
        await answer
    assert await payloads(client) == []


async def test_warn_stores_counts_and_logs_a_bounded_number_of_events(client, monkeypatch):
    events = []
    monkeypatch.setattr(validation.log, "warning", lambda event, **data: events.append((event, data)))
    await bind(client, policy=ValidationPolicy.WARN)
    producer = await client.producer()
    for _ in range(20):
        await client.publish(producer, [b"x"], schema_id=1, schema_version=1)
    await client.publish(producer, [b"1"], schema_id=1, schema_version=1)
    await client.publish(producer, [b"1"])
    assert await payloads(client) == [b"x"] * 20 + [b"1"] * 2
    assert await warnings(client) == [21]
    assert [event for event, _ in events] == ["schema.violated"]
    assert "row 0" in events[0][1]["reason"]


async def test_none_checks_nothing(client):
    await bind(client, policy=ValidationPolicy.NONE)
    producer = await client.producer()
    await client.publish(producer, [b"x"])
    await client.publish(producer, [b"x"], schema_id=77, schema_version=5)
    assert await warnings(client) == [0]


async def test_a_producer_without_a_schema_may_open_and_its_batches_are_invalid_under_enforce(client):
    await bind(client)
    producer = await client.producer()
    with pytest.raises(Invalid, match="names no schema"):
        await client.publish(producer, [b"1"])


async def test_a_batch_of_another_subject_is_invalid(client):
    other = await client.broker.schemas.register(ANONYMOUS, "users", NUMBER)
    await bind(client)
    producer = await client.producer()
    with pytest.raises(Invalid, match=r"schema id is 1, and the batch has schema id 2"):
        await client.publish(producer, [b"1"], schema_id=other.schema_id, schema_version=1)
    with pytest.raises(Invalid, match="schema id 99"):
        await client.publish(producer, [b"1"], schema_id=99, schema_version=1)


async def test_the_validator_follows_the_version_of_each_batch(client):
    await client.broker.schemas.register(ANONYMOUS, "orders", STRING)
    await bind(client)
    producer = await client.producer()
    for _ in range(2):
        await client.publish(producer, [b"a name"], schema_id=1, schema_version=2)
        await client.publish(producer, [b"1"], schema_id=1, schema_version=1)
        with pytest.raises(Invalid, match="version 1"):
            await client.publish(producer, [b"a name"], schema_id=1, schema_version=1)
    await client.publish(producer, [b"a name"], schema_id=1)  # no version: the latest


async def test_a_version_that_does_not_exist_or_is_deleted_is_invalid(client):
    await client.broker.schemas.register(ANONYMOUS, "orders", STRING)
    await bind(client)
    producer = await client.producer()
    with pytest.raises(Invalid, match="no version 3"):
        await client.publish(producer, [b"1"], schema_id=1, schema_version=3)
    await client.publish(producer, [b"1"], schema_id=1, schema_version=1)
    await client.broker.schemas.delete_version(ANONYMOUS, "orders", 1)
    with pytest.raises(Invalid, match="version 1 of subject 'orders' is deleted"):
        await client.publish(producer, [b"1"], schema_id=1, schema_version=1)


async def test_pinned_and_minimum_versions(client):
    for definition in (STRING, BYTES):
        await client.broker.schemas.register(ANONYMOUS, "orders", definition)
    producer = await client.producer()
    await bind(client, pinned_version=2)
    await client.publish(producer, [b"a"], schema_id=1, schema_version=2)
    await client.publish(producer, [b"a"], schema_id=1)
    for version in (1, 3):
        with pytest.raises(Invalid, match=f"takes version 2 of subject 'orders', not version {version}"):
            await client.publish(producer, [b"1"], schema_id=1, schema_version=version)
    await bind(client, minimum_version=2)
    for version in (2, 3):
        await client.publish(producer, [b"a"], schema_id=1, schema_version=version)
    with pytest.raises(Invalid, match="takes versions from 2 on of subject 'orders', not version 1"):
        await client.publish(producer, [b"1"], schema_id=1, schema_version=1)


async def test_a_version_that_a_topic_is_pinned_to_is_not_deleted(client):
    await client.broker.schemas.register(ANONYMOUS, "orders", STRING)
    await bind(client, pinned_version=1)
    with pytest.raises(Refused, match="takes only version 1"):
        await client.broker.schemas.delete_version(ANONYMOUS, "orders", 1)
    await bind(client, minimum_version=2)
    assert await client.broker.schemas.delete_version(ANONYMOUS, "orders", 1) == 1


async def test_without_payload_validation_only_the_schema_is_checked(client):
    await bind(client, validate_payloads=False)
    producer = await client.producer()
    await client.publish(producer, [b"x"], schema_id=1, schema_version=1)
    with pytest.raises(Invalid, match="names no schema"):
        await client.publish(producer, [b"x"])


async def test_an_empty_payload_is_a_tombstone(client):
    await bind(client)
    producer = await client.producer()
    with pytest.raises(Invalid, match=r"row 1 .* empty, and the topic takes no tombstones"):
        await client.publish(producer, [b"1", b"", b"x"], schema_id=1, schema_version=1)
    with pytest.raises(Invalid, match=r"row 0 .* number"):
        await client.publish(producer, [b"x", b""], schema_id=1, schema_version=1)
    await bind(client, tombstones=True)
    await client.publish(producer, [b"", b"1", b""], schema_id=1, schema_version=1)
    with pytest.raises(Invalid, match=r"row 2 .* number"):
        await client.publish(producer, [b"", b"1", b"x"], schema_id=1, schema_version=1)


@pytest.mark.parametrize(
    ("definition", "is_valid"),
    [
        (SchemaDefinition(SchemaFormat.PROTOBUF, 'syntax = "proto3"; message M { int32 a = 1; }'), True),
        (SchemaDefinition(SchemaFormat.PROTOBUF, 'syntax = "proto2"; message M { required int32 a = 1; }'), False),
        (SchemaDefinition(SchemaFormat.AVRO, '{"type": "record", "name": "R", "fields": []}'), True),
        (SchemaDefinition(SchemaFormat.AVRO, '"string"'), False),
        (SchemaDefinition(SchemaFormat.JSON, "true"), False),
        (STRING, True),
        (BYTES, True),
    ],
)
async def test_an_empty_payload_that_is_a_value_of_the_schema_is_no_tombstone(client, definition, is_valid):
    registered = await client.broker.schemas.register(ANONYMOUS, "orders", definition)
    await bind(client)
    producer = await client.producer()
    schema = {"schema_id": registered.schema_id, "schema_version": registered.version}
    if is_valid:
        await client.publish(producer, [b""], **schema)
        assert await payloads(client) == [b""]
    else:
        with pytest.raises(Invalid, match=r"row 0 .* empty, and the topic takes no tombstones"):
            await client.publish(producer, [b""], **schema)


def framed(global_id, payload):
    return b"\0" + global_id.to_bytes(4) + payload


async def test_framed_payloads_name_their_schemas(client):
    await client.broker.schemas.register(ANONYMOUS, "orders", STRING)
    foreign = await client.broker.schemas.register(ANONYMOUS, "users", BYTES)
    await bind(client, framing=Framing.CONFLUENT)
    producer = await client.producer()
    await client.publish(producer, [framed(1, b"1"), framed(2, b"a name"), framed(1, b"2")])
    await client.publish(producer, [framed(1, b"1")], schema_id=1, schema_version=1)
    wrong = {
        "row 1 .*number": [framed(2, b"a name"), framed(1, b"a name"), b"1"],
        "row 0 .*prefix of Confluent": [b"1", framed(1, b"x")],
        "row 1 .*prefix": [framed(1, b"1"), b"\0\0\0"],
        f"row 0 .*id {foreign.global_id} is no version of subject 'orders'": [framed(foreign.global_id, b"1")],
        "row 0 .*id 99 is no version": [framed(99, b"1")],
        "row 1 .*tombstones": [framed(1, b"1"), b""],
    }
    for reason, rows in wrong.items():
        with pytest.raises(Invalid, match=reason):
            await client.publish(producer, rows)
    await bind(client, framing=Framing.CONFLUENT, pinned_version=2)
    with pytest.raises(Invalid, match="takes version 2"):
        await client.publish(producer, [framed(2, b"x"), framed(1, b"1")])
    await bind(client, framing=Framing.CONFLUENT, tombstones=True)
    await client.publish(producer, [b"", framed(1, b"1")])


async def test_a_batch_may_have_payloads_of_more_schemas_than_a_topic_keeps_ready(client, monkeypatch):
    schemas = client.broker.schemas
    monkeypatch.setattr(validation, "VALIDATORS_KEPT", 2)
    ids = [(await schemas.register(ANONYMOUS, "orders", one)).global_id for one in (NUMBER, STRING, BYTES)]
    await bind(client, framing=Framing.CONFLUENT, tombstones=True)
    producer = await client.producer()
    rows = [framed(one, b"1") for one in ids] * 20 + [b""]
    async with asyncio.timeout(60):
        await client.publish(producer, rows)
        with pytest.raises(Invalid, match=r"row 61 .*number"):
            await client.publish(producer, [*rows, framed(ids[0], b"x")])
    assert await payloads(client) == rows


async def test_a_topic_bound_again_takes_the_subject_that_was_made_again(client):
    schemas = client.broker.schemas
    await bind(client)
    kept = schemas.check_of(client.topic)  # as a batch does that is still being checked
    await schemas.unbind(ANONYMOUS, client.topic)
    for permanent in (False, True):
        await schemas.delete_subject(ANONYMOUS, "orders", permanent)
    made = await schemas.register(ANONYMOUS, "orders", NUMBER)
    await bind(client)
    producer = await client.producer()
    await client.publish(producer, [b"1"], schema_id=made.schema_id, schema_version=1)
    assert kept is not None and await payloads(client) == [b"1"]


async def test_a_framed_payload_on_a_topic_without_framing_is_invalid_with_a_hint(client):
    await bind(client)
    producer = await client.producer()
    with pytest.raises(Invalid, match="bind the topic with that framing"):
        await client.publish(producer, [framed(1, b"1")], schema_id=1, schema_version=1)


# -- binding by producers ----------------------------------------------------------------------------------------------


async def test_the_first_producer_that_names_a_subject_binds_the_topic(client):
    schemas = client.broker.schemas
    await schemas.register(ANONYMOUS, "users", NUMBER)
    assert await schemas.choose(ANONYMOUS, TOPIC, "orders") == (1, 1)
    assert await schemas.binding(ANONYMOUS, TOPIC) == Binding("orders", ValidationPolicy.NONE)
    with pytest.raises(Refused, match="bound to subject 'orders', not to 'users'"):
        await schemas.choose(ANONYMOUS, TOPIC, "users")
    await bind(client)
    await schemas.choose(ANONYMOUS, TOPIC, "orders")
    assert (await schemas.binding(ANONYMOUS, TOPIC)).policy is ValidationPolicy.ENFORCE


async def test_producers_at_once_with_two_subjects_bind_the_topic_to_one(client):
    schemas = client.broker.schemas
    await schemas.register(ANONYMOUS, "users", NUMBER)
    found = await asyncio.gather(
        *(schemas.choose(ANONYMOUS, TOPIC, name) for name in ("orders", "users") * 5), return_exceptions=True
    )
    assert sum(isinstance(one, Refused) for one in found) == 5


async def test_a_producer_uses_the_latest_a_chosen_or_a_minimum_version(client):
    schemas = client.broker.schemas
    for definition in (STRING, BYTES):
        await schemas.register(ANONYMOUS, "orders", definition)
    assert await schemas.choose(ANONYMOUS, TOPIC, "orders") == (1, 3)
    assert await schemas.choose(ANONYMOUS, TOPIC, "orders", version=2) == (1, 2)
    assert await schemas.choose(ANONYMOUS, TOPIC, "orders", minimum=2) == (1, 3)
    with pytest.raises(NotFound, match="no version 9"):
        await schemas.choose(ANONYMOUS, TOPIC, "orders", version=9)
    with pytest.raises(NotFound, match="no version 9 or later"):
        await schemas.choose(ANONYMOUS, TOPIC, "orders", minimum=9)
    with pytest.raises(NotFound, match="'nothing'"):
        await schemas.choose(ANONYMOUS, TOPIC, "nothing")
    await bind(client, pinned_version=2)
    assert await schemas.choose(ANONYMOUS, TOPIC, "orders") == (1, 2)
    with pytest.raises(Refused, match="takes version 2"):
        await schemas.choose(ANONYMOUS, TOPIC, "orders", version=3)


async def test_a_refused_producer_leaves_a_topic_unbound(client):
    with pytest.raises(NotFound):
        await client.broker.schemas.choose(ANONYMOUS, TOPIC, "nothing")
    assert await client.broker.schemas.binding(ANONYMOUS, TOPIC) is None


# -- order, turns, fencing, changes ------------------------------------------------------------------------------------


class Turns:
    """Counts turns of the event loop, and notes in which of them something was checked."""

    def __init__(self, monkeypatch):
        self.checked = []
        self.number = 0
        step = validation.BatchCheck.step

        def counted(check):
            self.checked.append(self.number)
            return step(check)

        monkeypatch.setattr(validation.BatchCheck, "step", counted)

    async def until(self, answer):
        while not answer.done():
            self.number += 1
            await asyncio.sleep(0)
        return await answer


async def test_a_large_batch_is_checked_in_many_turns_and_another_topic_is_served_meanwhile(client, monkeypatch):
    monkeypatch.setattr(validation, "PACE_FIRST", 1_000_000.0)
    monkeypatch.setattr(validation.Pace, "measure", lambda *_: None)
    monkeypatch.setattr(validation, "STEPS_PER_TURN", 1)
    turns = Turns(monkeypatch)
    await bind(client)
    other = await created(client.broker, OTHER, ack_level=AckLevel.MEMORY)
    producer, another = await client.producer(), await other.producer()
    await other.publish(another, [b"warm"])
    large = client.publish(producer, [b"123"] * 5_000, schema_id=1, schema_version=1)
    small = other.publish(another, [b"x"])
    await turns.until(small)
    assert not large.done()
    await turns.until(large)
    assert len(turns.checked) > 100
    assert len(set(turns.checked)) > 100
    assert len(await payloads(client)) == 5_000


async def test_the_batches_of_a_partition_keep_their_order(client, monkeypatch):
    """Large and small ones, checked and unchecked, while the binding changes."""
    monkeypatch.setattr(validation, "PACE_FIRST", 500_000.0)
    monkeypatch.setattr(validation.Pace, "measure", lambda *_: None)
    await bind(client, policy=ValidationPolicy.WARN)
    first, second = await client.producer(), await client.producer()
    answers, expected = [], []
    for number in range(60):
        rows = [b"%d" % number] * (300 if number % 3 == 0 else 1)
        schema = {"schema_id": 1, "schema_version": 1} if number % 2 else {}
        codec = Codec.LZ4 if number % 5 == 0 else Codec.NONE
        answers.append(client.publish(second if number % 4 == 0 else first, rows, codec=codec, **schema))
        expected += rows
        if number == 30:
            await client.broker.schemas.unbind(ANONYMOUS, TOPIC)
        await asyncio.sleep(0)
    for answer in answers:
        await answer
    assert await payloads(client) == expected


async def test_batches_behind_one_that_is_refused_are_stored(client):
    await bind(client)
    producer = await client.producer()
    answers = [client.publish(producer, [one], schema_id=1, schema_version=1) for one in (b"1", b"x", b"2", b"y", b"3")]
    outcomes = await asyncio.gather(*answers, return_exceptions=True)
    assert [isinstance(one, Invalid) for one in outcomes] == [False, True, False, True, False]
    assert await payloads(client) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("is_live", [True, False])
async def test_a_producer_fenced_while_its_batch_is_checked_stores_nothing(tmp_path, is_live):
    metadata = FaultyStore()
    async with open_topic(tmp_path, metadata=metadata) as client:
        await client.broker.schemas.register(ANONYMOUS, "orders", NUMBER)
        former = await client.producer(name="p", opener=1)
        await client.publish(former, [b"0"])
        await bind(client)
        loading = metadata.hold_read(VERSIONS)
        stale = client.publish(former, [b"1"], schema_id=1, schema_version=1)
        await loading.asked.wait()
        if not is_live:
            former.close()  # its connection is gone, and its batch still waits
        successor = await client.producer(name="p", opener=2)
        loading.go_on()
        await client.publish(successor, [b"2"], schema_id=1, schema_version=1)
        with pytest.raises(StaleEpoch):
            await stale
        assert await payloads(client) == [b"0", b"2"]


async def test_a_schema_that_cannot_be_read_now_fails_its_batch_retryably(tmp_path):
    metadata = FaultyStore()
    async with open_topic(tmp_path, metadata=metadata) as client:
        await client.broker.schemas.register(ANONYMOUS, "orders", NUMBER)
        await bind(client)
        producer = await client.producer()
        failing = metadata.refuse_reads()
        with pytest.raises(Unavailable):
            await client.publish(producer, [b"1"], schema_id=1, schema_version=1)
        failing.end()
        await client.publish(producer, [b"1"], schema_id=1, schema_version=1)
        assert await payloads(client) == [b"1"]


async def test_a_topic_deleted_while_a_batch_is_checked_answers_it(client):
    await bind(client)
    producer = await client.producer()
    answer = client.publish(producer, [b"1"] * 10, schema_id=1, schema_version=1)
    await client.broker.topics.delete(ANONYMOUS, TOPIC)
    with pytest.raises(NotFound):
        await answer


async def test_a_broker_that_closes_answers_what_is_being_checked(tmp_path, monkeypatch):
    monkeypatch.setattr(validation, "PACE_FIRST", 500_000.0)
    async with open_topic(tmp_path) as client:
        await client.broker.schemas.register(ANONYMOUS, "orders", NUMBER)
        await bind(client)
        producer = await client.producer()
        answers = [client.publish(producer, [b"1"] * 2_000, schema_id=1, schema_version=1) for _ in range(20)]
    assert all(answer.done() for answer in answers)
    await asyncio.gather(*answers, return_exceptions=True)


async def test_a_binding_applies_after_a_restart_and_to_partitions_opened_later(tmp_path):
    async with open_client(tmp_path) as client:
        await client.create(partitions=2)
        await client.broker.schemas.register(ANONYMOUS, "orders", NUMBER)
        producer = await client.producer()
        await client.publish(producer, [b"x"])
        await bind(client)
        for partition in (0, 1):
            with pytest.raises(Invalid):
                await client.publish(await client.producer(partition=partition), [b"x"])
    async with open_client(tmp_path) as client:
        producer = await client.producer(partition=1)
        with pytest.raises(Invalid):
            await client.publish(producer, [b"x"])
        await client.publish(producer, [b"1"], schema_id=1, schema_version=1)
        await client.broker.schemas.unbind(ANONYMOUS, TOPIC)
        await client.publish(producer, [b"x"])


async def test_a_bug_of_a_library_fails_its_batch_and_no_other(client, monkeypatch):
    await bind(client)
    producer = await client.producer()
    await client.publish(producer, [b"1"], schema_id=1, schema_version=1)
    step = validation.BatchCheck.step
    monkeypatch.setattr(validation.BatchCheck, "step", lambda _check: 1 // 0)
    with pytest.raises(Exception, match="internal error"):
        await client.publish(producer, [b"1"], schema_id=1, schema_version=1)
    monkeypatch.setattr(validation.BatchCheck, "step", step)
    await client.publish(producer, [b"1"], schema_id=1, schema_version=1)


async def test_an_answer_that_raises_does_not_stop_the_batches_behind(client):
    await bind(client)
    producer = await client.producer()
    batch = encode(
        [b"x"], publish_times=1, producer_id=producer.producer_id, producer_epoch=0, schema_id=1, schema_version=1
    )

    def done(result):
        raise ZeroDivisionError

    client.broker.batches.publish(ANONYMOUS, producer, memoryview(batch), done)
    await client.publish(producer, [b"1"], schema_id=1, schema_version=1)
    assert await payloads(client) == [b"1"]


async def test_a_topic_without_a_binding_has_no_intake(client):
    producer = await client.producer()
    await client.publish(producer, [b"x"], schema_id=7, schema_version=3)
    assert producer.partition.intake is None


# -- what is staged, and what the broker writes itself -----------------------------------------------------------------


async def test_a_staged_write_is_judged_when_it_is_staged(tmp_path):
    async with staging_broker(tmp_path, MemoryStore()) as broker:
        client = await created(broker, partitions=2)
        await broker.schemas.register(ANONYMOUS, "orders", NUMBER)
        await bind(client)
        query = Query(broker)
        with pytest.raises(Invalid, match="names no schema"):
            await query.stage(0, {0: [b"1"]})
        with pytest.raises(Invalid, match="row 1 of the batch does not fit"):
            await query.stage(0, {0: [b"1"], 1: [b"1", b"x"]}, schema_id=1, schema_version=1)
        stage = await query.stage(0, {0: [b"1"], 1: [b"2"] * 5_000}, schema_id=1, schema_version=1)
        await broker.schemas.register(ANONYMOUS, "users", BYTES)
        await broker.schemas.unbind(ANONYMOUS, TOPIC)
        await broker.schemas.bind(ANONYMOUS, TOPIC, Binding("users"))
        await query.commit(0, stage)  # which does not judge it again
        assert await staged_payloads(broker, 1) == [b"2"] * 5_000
        await broker.schemas.unbind(ANONYMOUS, TOPIC)
        await bind(client, policy=ValidationPolicy.WARN)
        await query.write(1, {1: [b"x"]})
        assert await warnings(client) == [0, 1]


async def test_a_dead_letter_keeps_its_schema_and_is_not_judged_again(client):
    dead = await created(client.broker, OTHER)
    await client.broker.schemas.register(ANONYMOUS, "users", STRING)
    await bind(client)
    await client.broker.schemas.bind(ANONYMOUS, OTHER, Binding("users"))
    policy = FailurePolicy(redeliveries_max=0, delay_ms=0, poison=Poison.DEAD_LETTER, dead_letter_topic=str(OTHER))
    consumer = await client.subscribe(kind=SubscriptionType.SHARED, failure_policy=policy)
    await client.publish(await client.producer(), [b"1"], schema_id=1, schema_version=1)
    await consumer.wait_for(1)
    consumer.consumer.nack([(0, 1)])
    fetched = await dead.fetch(wait_ms=60_000)
    letter = Batch.open(fetched.batches[0], stamped=True)
    assert (letter.payloads, letter.header.schema_id, letter.header.schema_version) == ([b"1"], 1, 1)
