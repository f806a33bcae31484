"""The schema registries of several brokers on one metadata store: one id for one definition, and none given twice."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from broker_harness import TOPIC
from cluster_harness import MemberBroker, open_brokers

from pydanube.broker.schemas import records
from pydanube.core.access import ANONYMOUS
from pydanube.metadata.packing import unpack
from pydanube.metadata.store import Put, list_all
from pydanube.model.errors import Conflict, DanubeError, Invalid, NotFound, Refused
from pydanube.model.schemas import (
    Binding,
    Compatibility,
    RegisteredVersion,
    RegistryMode,
    SchemaDefinition,
    SchemaFormat,
    SchemaReference,
    ValidationPolicy,
)
from pydanube.model.topics import TopicConfig

STRING = SchemaDefinition(SchemaFormat.STRING, "")
NUMBER = SchemaDefinition(SchemaFormat.NUMBER, "")


def fields(*names: str) -> SchemaDefinition:
    """Return a definition that differs from every one with other names."""
    properties = {name: {"type": "string"} for name in names}
    return SchemaDefinition(SchemaFormat.JSON, msgspec.json.encode({"properties": properties}).decode())


def referring(subject: str, version: int = 1) -> SchemaDefinition:
    reference = SchemaReference("part.json", subject, version)
    return SchemaDefinition(SchemaFormat.JSON, '{"$ref": "part.json"}', (reference,))


@pytest.fixture
async def brokers(tmp_path: Path) -> AsyncIterator[list[MemberBroker]]:
    async with open_brokers(tmp_path, "a", "b") as opened:
        await opened[0].broker.schemas.set_compatibility(ANONYMOUS, None, Compatibility.NONE)
        for one in opened:
            await one.catch_up()
        yield opened


async def register(member: MemberBroker, subject: str, definition: SchemaDefinition) -> RegisteredVersion:
    return await member.broker.schemas.register(ANONYMOUS, subject, definition)


async def test_versions_levels_and_deletions_are_heard_of(brokers: list[MemberBroker]) -> None:
    a, b = brokers
    await register(a, "orders", STRING)
    await register(a, "orders", NUMBER)
    await a.broker.schemas.set_compatibility(ANONYMOUS, "orders", Compatibility.FULL)
    await a.broker.schemas.set_mode(ANONYMOUS, "empty", RegistryMode.READONLY)
    await a.broker.schemas.set_tags(ANONYMOUS, "orders", 2, ["good"])
    await b.catch_up()
    schemas = b.broker.schemas
    assert schemas._subjects.names() == ["orders"]
    assert (await schemas.versions(ANONYMOUS, "orders")) == [1, 2]
    assert (await schemas.compatibility(ANONYMOUS, "orders")).own is Compatibility.FULL
    assert (await schemas.mode(ANONYMOUS, "empty")).own is RegistryMode.READONLY
    assert (await schemas.get(ANONYMOUS, "orders", 2)).tags == ("good",)
    await a.broker.schemas.delete_version(ANONYMOUS, "orders", 1)
    await b.catch_up()
    assert await schemas.versions(ANONYMOUS, "orders") == [2]
    await a.broker.schemas.delete_subject(ANONYMOUS, "orders")
    await a.broker.schemas.delete_subject(ANONYMOUS, "orders", permanent=True)
    await b.catch_up()
    assert schemas._subjects.find("orders") is None
    assert (await register(b, "orders", STRING)).schema_id == 3, "made again, it has another id"


async def test_the_same_definition_registered_at_two_brokers_at_once_is_one_version(
    brokers: list[MemberBroker],
) -> None:
    for number in range(5):
        found = await asyncio.gather(*(register(one, f"s{number}", fields(f"f{number}")) for one in brokers))
        assert found[0].schema_id == found[1].schema_id
        assert (found[0].version, found[0].global_id) == (found[1].version, found[1].global_id)
        assert sorted(one.is_new for one in found) == [False, True]


async def test_different_definitions_at_two_brokers_at_once_get_different_ids(brokers: list[MemberBroker]) -> None:
    for number in range(5):
        found = await asyncio.gather(
            *(register(one, "orders", fields(f"{number}-{index}")) for index, one in enumerate(brokers))
        )
        assert found[0].global_id != found[1].global_id
        assert found[0].version != found[1].version
    assert len(await brokers[0].store.list(records.VERSIONS)) == 10


async def test_one_definition_has_one_global_id_in_subjects_of_two_brokers(brokers: list[MemberBroker]) -> None:
    a, b = brokers
    b.store.hold()
    first = await register(a, "orders", fields("x"))
    second = await register(b, "users", fields("x"))
    assert first.global_id == second.global_id
    assert first.schema_id != second.schema_id


async def test_a_global_id_is_not_given_twice_to_versions_of_different_subjects(brokers: list[MemberBroker]) -> None:
    a, b = brokers
    await register(a, "orders", STRING)
    await register(a, "users", STRING)
    await b.catch_up()
    b.store.hold()
    first = await register(a, "orders", fields("x"))
    second = await register(b, "users", fields("y"))
    assert first.global_id != second.global_id
    third = await register(b, "users", fields("x"))
    assert third.global_id == first.global_id


async def test_a_version_is_compared_with_what_another_broker_just_registered(brokers: list[MemberBroker]) -> None:
    a, b = brokers
    b.store.hold()
    await register(a, "orders", STRING)
    await a.broker.schemas.set_compatibility(ANONYMOUS, "orders", Compatibility.BACKWARD)
    with pytest.raises(Refused, match="not compatible"):
        await register(b, "orders", NUMBER)


async def test_what_another_broker_registered_is_found_before_it_is_heard_of(brokers: list[MemberBroker]) -> None:
    a, b = brokers
    b.store.hold()
    schemas = b.broker.schemas
    first = await register(a, "orders", fields("x"))
    assert (await schemas.get(ANONYMOUS, "orders", 1)).global_id == first.global_id
    second = await register(a, "orders", fields("y"))
    assert (await schemas.get(ANONYMOUS, "orders", 2)).global_id == second.global_id
    assert (await schemas.lookup(ANONYMOUS, "orders", fields("y"))).version == 2
    third = await register(a, "users", fields("z"))
    assert (await schemas.get_by_id(ANONYMOUS, third.schema_id)).subject == "users"
    fourth = await register(a, "more", fields("w"))
    assert (await schemas.by_global_id(ANONYMOUS, fourth.global_id)).subject == "more"
    fifth = await register(a, "topics", fields("v"))
    await a.broker.topics.create(ANONYMOUS, TOPIC, TopicConfig())
    chosen = await schemas.choose(ANONYMOUS, TOPIC, "topics", 1)
    assert chosen == (fifth.schema_id, 1)
    for unknown in (
        schemas.get(ANONYMOUS, "none"),
        schemas.get_by_id(ANONYMOUS, 999),
        schemas.get(ANONYMOUS, "more", 9),
    ):
        with pytest.raises(NotFound):
            await unknown


async def test_a_subject_that_another_broker_deleted_is_not_changed_as_if_it_were_there(
    brokers: list[MemberBroker],
) -> None:
    a, b = brokers
    first = await register(a, "orders", STRING)
    await b.catch_up()
    b.store.hold()
    await a.broker.schemas.delete_subject(ANONYMOUS, "orders")
    await a.broker.schemas.delete_subject(ANONYMOUS, "orders", permanent=True)
    again = await register(b, "orders", NUMBER)
    assert again.version == 1
    assert again.schema_id > first.schema_id
    with pytest.raises(NotFound):
        await b.broker.schemas.set_tags(ANONYMOUS, "never", "latest", ["x"])


async def test_settings_changed_at_two_brokers_are_both_kept(brokers: list[MemberBroker]) -> None:
    a, b = brokers
    await register(a, "orders", STRING)
    await b.catch_up()
    a.store.hold()
    b.store.hold()
    await a.broker.schemas.set_compatibility(ANONYMOUS, None, Compatibility.FULL)
    await b.broker.schemas.set_mode(ANONYMOUS, None, RegistryMode.READONLY)
    await a.broker.schemas.set_compatibility(ANONYMOUS, "orders", Compatibility.FORWARD)
    await b.broker.schemas.set_mode(ANONYMOUS, "orders", RegistryMode.READWRITE)
    settings = unpack((await a.store.get(records.SETTINGS)).value, records.SettingsRecord)
    assert (settings.compatibility, settings.mode) == (str(Compatibility.FULL), str(RegistryMode.READONLY))
    subject = unpack((await a.store.get(records.subject_key("orders"))).value, records.SubjectRecord)
    assert (subject.compatibility, subject.mode) == (str(Compatibility.FORWARD), str(RegistryMode.READWRITE))
    version = await b.broker.schemas.compatibility_version(ANONYMOUS, None)
    await a.broker.schemas.set_compatibility(ANONYMOUS, None, Compatibility.NONE)
    with pytest.raises(Conflict):
        await b.broker.schemas.set_compatibility(ANONYMOUS, None, Compatibility.FULL, version)


async def test_a_subject_to_which_another_broker_just_bound_a_topic_is_not_deleted(
    brokers: list[MemberBroker],
) -> None:
    a, b = brokers
    await register(a, "orders", STRING)
    await a.broker.topics.create(ANONYMOUS, TOPIC, TopicConfig())
    await b.catch_up()
    b.store.hold()
    await a.broker.schemas.bind(ANONYMOUS, TOPIC, Binding("orders", ValidationPolicy.ENFORCE))
    with pytest.raises(Refused, match="is bound to subject 'orders'"):
        await b.broker.schemas.delete_subject(ANONYMOUS, "orders")
    assert await a.broker.schemas.versions(ANONYMOUS, "orders") == [1]
    b.store.release()
    await b.catch_up()
    assert await b.broker.schemas.versions(ANONYMOUS, "orders") == [1]


async def test_no_topic_is_bound_to_a_subject_that_another_broker_just_deleted(brokers: list[MemberBroker]) -> None:
    a, b = brokers
    await register(a, "orders", STRING)
    await a.broker.topics.create(ANONYMOUS, TOPIC, TopicConfig())
    await b.catch_up()
    b.store.hold()
    await a.broker.schemas.delete_subject(ANONYMOUS, "orders")
    with pytest.raises(NotFound):
        await b.broker.schemas.bind(ANONYMOUS, TOPIC, Binding("orders", ValidationPolicy.ENFORCE))
    assert a.registry.topic(TOPIC).binding is None


async def test_a_version_that_another_broker_just_referred_to_is_not_deleted(brokers: list[MemberBroker]) -> None:
    a, b = brokers
    await register(a, "part", fields("x"))
    await b.catch_up()
    b.store.hold()
    await register(a, "whole", referring("part"))
    with pytest.raises(Refused, match="is used by 'whole' version 1"):
        await b.broker.schemas.delete_version(ANONYMOUS, "part", 1)
    assert await a.broker.schemas.versions(ANONYMOUS, "part") == [1]


async def test_a_version_that_another_broker_just_deleted_is_not_referred_to(brokers: list[MemberBroker]) -> None:
    a, b = brokers
    await register(a, "part", fields("x"))
    await b.catch_up()
    b.store.hold()
    await a.broker.schemas.delete_subject(ANONYMOUS, "part")
    with pytest.raises(Invalid, match="cannot be resolved"):
        await register(b, "whole", referring("part"))


async def test_schema_records_keep_the_fields_of_a_later_release(brokers: list[MemberBroker]) -> None:
    a, b = brokers
    made = await register(a, "orders", STRING)
    keys = [records.SETTINGS, records.subject_key("orders"), records.version_key(made.schema_id, 1)]
    for key in keys:
        found = await a.store.get(key)
        content = msgspec.msgpack.decode(found.value) | {"later": 7}
        await a.store.transact([], [Put(key, msgspec.msgpack.encode(content))])
    await b.catch_up()
    await b.broker.schemas.set_compatibility(ANONYMOUS, None, Compatibility.FULL)
    await b.broker.schemas.set_mode(ANONYMOUS, "orders", RegistryMode.READWRITE)
    await b.broker.schemas.set_compatibility(ANONYMOUS, "orders", Compatibility.NONE)
    await register(b, "orders", NUMBER)
    await b.broker.schemas.set_tags(ANONYMOUS, "orders", 1, ["x"])
    await b.broker.schemas.delete_version(ANONYMOUS, "orders", 1)
    for key in keys:
        assert msgspec.msgpack.decode((await a.store.get(key)).value)["later"] == 7, key


async def act(chance: random.Random, member: MemberBroker) -> None:
    """Do one random operation; that it is refused is no failure."""
    schemas, subject = member.broker.schemas, chance.choice(["s", "t"])
    match chance.randrange(8):
        case 0 | 1 | 2 | 3:
            await schemas.register(ANONYMOUS, subject, fields(str(chance.randrange(6))))
        case 4:
            await schemas.delete_version(ANONYMOUS, subject, "latest")
        case 5:
            await schemas.delete_subject(ANONYMOUS, subject, permanent=True)
        case 6:
            await schemas.delete_subject(ANONYMOUS, subject)
        case 7:
            await schemas.set_compatibility(ANONYMOUS, subject, chance.choice([None, Compatibility.NONE]))


@pytest.mark.parametrize("seed", range(4))
async def test_after_random_operations_all_memories_equal_the_store(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    async with open_brokers(tmp_path, "a", "b", "c") as brokers:
        await brokers[0].broker.schemas.set_compatibility(ANONYMOUS, None, Compatibility.NONE)
        ids: dict[int, tuple[str, ...]] = {}
        for _ in range(12):
            for member in brokers:
                if chance.random() < 0.3:
                    member.store.hold()
                else:
                    member.store.release()
            calls = [act(chance, chance.choice(brokers)) for _ in range(6)]
            for outcome in await asyncio.gather(*calls, return_exceptions=True):
                assert outcome is None or isinstance(outcome, DanubeError | int | list), f"seed {seed}: {outcome!r}"
            async for one in list_all(brokers[0].store.view, records.VERSIONS):
                record = unpack(one.value, records.VersionRecord)
                content = (record.format, record.fingerprint)
                assert ids.setdefault(record.global_id, content) == content, f"seed {seed}: an id was given twice"
        for member in brokers:
            member.store.release()
        versions = [one async for one in list_all(brokers[0].store.view, records.VERSIONS)]
        subjects = [one async for one in list_all(brokers[0].store.view, records.SUBJECTS)]
        for member in brokers:
            await member.catch_up()
            held = member.broker.schemas._subjects
            assert held._subjects.keys() == {records.subject_of_key(one.key) for one in subjects}
            for one in subjects:
                assert held._subjects[records.subject_of_key(one.key)].stored == one.value
            places = {(its.schema_id, number) for its in held._subjects.values() for number in its.versions}
            assert places == {records.version_of_key(one.key) for one in versions}
            assert all(list(its.versions) == sorted(its.versions) for its in held._subjects.values())
            assert not held._orphans
            indexed = {place for its in held._by_global_id.values() for place in its}
            assert len(indexed) == len(versions)
