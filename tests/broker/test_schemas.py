"""The schema registry: subjects, versions, ids, deletion, references and settings."""

from __future__ import annotations

import asyncio

import pytest
from broker_harness import open_broker
from metadata_harness import FaultyStore, puts

from pydanube.broker.schemas import records
from pydanube.broker.schemas.definitions import READS_AT_ONCE
from pydanube.broker.tiering.disaster_recovery import rebuild
from pydanube.core.access import ANONYMOUS, Action, Principal
from pydanube.core.access_rules import AccessRules
from pydanube.formats import all_formats
from pydanube.metadata.embedded import EmbeddedStore
from pydanube.metadata.packing import pack
from pydanube.model import limits
from pydanube.model.errors import Denied, Full, Invalid, NotFound, Refused, Unavailable
from pydanube.model.names import TopicName
from pydanube.model.schemas import (
    Binding,
    Compatibility,
    RegistryMode,
    SchemaDefinition,
    SchemaFormat,
    SchemaReference,
    ValidationPolicy,
    parse_subject,
)
from pydanube.model.security import Binding as AccessBinding
from pydanube.model.security import BoundSubject, ResourcePattern
from pydanube.model.topics import TopicConfig
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.objects.memory import MemoryStore
from pydanube.storage.segments.store_ownership import StoreOwner
from waiting import until

STRING = SchemaDefinition(SchemaFormat.STRING, "a name")
NUMBER = SchemaDefinition(SchemaFormat.NUMBER, "a price")
BYTES = SchemaDefinition(SchemaFormat.BYTES, "")


@pytest.fixture
async def broker(tmp_path):
    async with open_broker(tmp_path) as opened:
        await opened.schemas.set_compatibility(ANONYMOUS, None, Compatibility.NONE)
        yield opened


async def register(broker, subject, definition):
    return await broker.schemas.register(ANONYMOUS, subject, definition)


async def test_versions_and_schema_ids_count_from_one(broker):
    first, second = await register(broker, "orders", STRING), await register(broker, "orders", NUMBER)
    other = await register(broker, "users", BYTES)
    assert (first.schema_id, first.version, first.is_new) == (1, 1, True)
    assert (second.schema_id, second.version) == (1, 2)
    assert (other.schema_id, other.version) == (2, 1)
    assert [one.global_id for one in (first, second, other)] == [1, 2, 3]
    assert first.fingerprint.startswith("sha256:")


async def test_the_same_definition_written_differently_is_the_same_version_and_is_kept_as_first_written(broker):
    first = await register(broker, "orders", STRING)
    again = await register(broker, "orders", SchemaDefinition(SchemaFormat.STRING, "the same in other words"))
    assert (again.version, again.global_id, again.is_new) == (first.version, first.global_id, False)
    assert (await broker.schemas.get(ANONYMOUS, "orders", 1)).definition == STRING


async def test_the_same_definition_under_two_subjects_has_one_global_id(broker):
    first, second = await register(broker, "orders", STRING), await register(broker, "users", STRING)
    assert first.global_id == second.global_id and first.schema_id != second.schema_id
    assert (await broker.schemas.by_global_id(ANONYMOUS, first.global_id)).subject == "orders"
    places = await broker.schemas.versions_of_global_id(ANONYMOUS, first.global_id)
    assert places == [("orders", 1), ("users", 1)]


async def test_many_who_register_the_same_schema_at_once_get_one_version(broker):
    definitions = [SchemaDefinition(SchemaFormat.STRING, f"words {number}") for number in range(100)]
    found = await asyncio.gather(*(register(broker, "orders", one) for one in definitions))
    assert {(one.schema_id, one.version, one.global_id) for one in found} == {(1, 1, 1)}
    assert sum(one.is_new for one in found) == 1


async def test_different_definitions_registered_at_once_get_a_version_each(broker):
    found = await asyncio.gather(*(register(broker, "orders", one) for one in (STRING, NUMBER, BYTES)))
    assert sorted(one.version for one in found) == [1, 2, 3]
    assert len({one.global_id for one in found}) == 3


async def test_versions_are_read_by_subject_and_by_ids(broker):
    await register(broker, "orders", STRING)
    second = await register(broker, "orders", NUMBER)
    latest = await broker.schemas.get(ANONYMOUS, "orders", "latest")
    assert (latest.subject, latest.version, latest.definition) == ("orders", 2, NUMBER)
    assert latest == await broker.schemas.get(ANONYMOUS, "orders")
    assert latest == await broker.schemas.get_by_id(ANONYMOUS, second.schema_id, 2)
    assert latest == await broker.schemas.by_global_id(ANONYMOUS, second.global_id)
    assert latest == await broker.schemas.lookup(ANONYMOUS, "orders", NUMBER)
    assert latest.created_at > 0
    assert await broker.schemas.versions(ANONYMOUS, "orders") == [1, 2]


async def test_what_does_not_exist_is_not_found_by_name(broker):
    await register(broker, "orders", STRING)
    with pytest.raises(NotFound, match="users"):
        await broker.schemas.get(ANONYMOUS, "users")
    with pytest.raises(NotFound, match="no version 7: it has 1"):
        await broker.schemas.get(ANONYMOUS, "orders", 7)
    with pytest.raises(NotFound, match="schema id 99 was never given out"):
        await broker.schemas.get_by_id(ANONYMOUS, 99, 1)
    with pytest.raises(NotFound, match="global schema id 99 was never given out"):
        await broker.schemas.by_global_id(ANONYMOUS, 99)
    with pytest.raises(NotFound, match="no version with this definition"):
        await broker.schemas.lookup(ANONYMOUS, "orders", NUMBER)
    for version in (0, -1, 2**31, True, "first"):
        with pytest.raises(Invalid):
            await broker.schemas.get(ANONYMOUS, "orders", version)


async def test_subjects_are_listed_by_prefix(broker):
    for name in ("orders/value", "orders-key", "users"):
        await register(broker, name, STRING)
    assert await broker.schemas.subjects(ANONYMOUS) == ["orders-key", "orders/value", "users"]
    assert await broker.schemas.subjects(ANONYMOUS, "orders") == ["orders-key", "orders/value"]


@pytest.mark.parametrize("name", ["", "a b", "a\n", "é", "a" * 201, 7])
def test_a_name_that_is_no_subject_is_invalid(name):
    with pytest.raises(Invalid, match="subject"):
        parse_subject(name)


async def test_everything_is_there_after_a_restart_and_numbering_goes_on(tmp_path):
    async with open_broker(tmp_path) as broker:
        await broker.schemas.set_compatibility(ANONYMOUS, None, Compatibility.NONE)
        await register(broker, "orders", STRING)
        await register(broker, "users", NUMBER)
        await broker.schemas.set_compatibility(ANONYMOUS, "users", Compatibility.FULL)
        await broker.schemas.set_tags(ANONYMOUS, "orders", 1, ["pii", "gold"])
        before = await broker.schemas.get(ANONYMOUS, "orders")
    async with open_broker(tmp_path) as broker:
        assert await broker.schemas.get(ANONYMOUS, "orders") == before
        assert before.tags == ("pii", "gold")
        assert await broker.schemas.compatibility(ANONYMOUS) == (Compatibility.NONE, Compatibility.NONE)
        assert await broker.schemas.compatibility(ANONYMOUS, "users") == (Compatibility.FULL, Compatibility.FULL)
        again, new = await register(broker, "orders", STRING), await register(broker, "prices", BYTES)
        assert (again.version, again.is_new) == (1, False)
        assert (new.schema_id, new.global_id) == (3, 3)


async def test_a_registration_that_was_not_answered_is_found_when_it_is_sent_again(tmp_path):
    """The process dies between the write and the answer."""
    async with open_broker(tmp_path, crash=True) as broker:
        first = await register(broker, "orders", STRING)
    async with open_broker(tmp_path) as broker:
        again = await register(broker, "orders", STRING)
        assert (again.schema_id, again.version, again.global_id) == (first.schema_id, first.version, first.global_id)


async def test_a_write_that_failed_and_was_made_is_known(tmp_path):
    metadata = FaultyStore()
    async with open_broker(tmp_path, metadata=metadata) as broker:
        metadata.lose_answer(puts(records.VERSIONS))
        assert (await register(broker, "orders", STRING)).version == 1
        metadata.refuse(puts(records.VERSIONS))
        with pytest.raises(Unavailable):
            await register(broker, "users", STRING)
        assert await broker.schemas.subjects(ANONYMOUS) == ["orders"]
        assert (await register(broker, "users", STRING)).schema_id == 2


async def test_what_many_ask_for_at_once_is_read_once_and_few_definitions_are_read_at_a_time(tmp_path):
    metadata, wanted = FaultyStore(), 2 * READS_AT_ONCE
    async with open_broker(tmp_path, metadata=metadata) as broker:
        for number in range(wanted):
            await register(broker, f"s{number}", STRING)
    async with open_broker(tmp_path, metadata=metadata) as broker:
        held = [metadata.hold_read(records.VERSIONS) for _ in range(10 * wanted)]
        asked = [broker.schemas.get(ANONYMOUS, f"s{one % wanted}") for one in range(10 * wanted)]
        answers = asyncio.gather(*asked)
        await until(held[0].asked.is_set)
        for _ in range(10):  # every turn that any of the others could need to begin a read
            await asyncio.sleep(0)
        assert sum(one.asked.is_set() for one in held) == READS_AT_ONCE
        for one in held:
            one.go_on()
        assert [one.definition for one in await answers] == [STRING] * (10 * wanted)
        assert sum(one.asked.is_set() for one in held) == wanted


# -- deletion ----------------------------------------------------------------------------------------------------------


async def test_a_deleted_version_is_hidden_and_still_read_by_its_ids(broker):
    first = await register(broker, "orders", STRING)
    await register(broker, "orders", NUMBER)
    assert await broker.schemas.delete_version(ANONYMOUS, "orders", 1) == 1
    assert await broker.schemas.versions(ANONYMOUS, "orders") == [2]
    assert await broker.schemas.versions(ANONYMOUS, "orders", deleted=True) == [1, 2]
    with pytest.raises(NotFound):
        await broker.schemas.get(ANONYMOUS, "orders", 1)
    assert (await broker.schemas.get(ANONYMOUS, "orders", 1, deleted=True)).deleted
    assert (await broker.schemas.get_by_id(ANONYMOUS, first.schema_id, 1)).definition == STRING
    assert (await broker.schemas.by_global_id(ANONYMOUS, first.global_id)).definition == STRING


async def test_a_deleted_definition_registered_again_is_a_new_version_with_its_former_global_id(broker):
    first = await register(broker, "orders", STRING)
    await broker.schemas.delete_version(ANONYMOUS, "orders", "latest")
    again = await register(broker, "orders", STRING)
    assert (again.version, again.global_id, again.is_new) == (2, first.global_id, True)


async def test_only_what_is_deleted_can_be_deleted_permanently(broker):
    await register(broker, "orders", STRING)
    with pytest.raises(Refused, match="not deleted"):
        await broker.schemas.delete_version(ANONYMOUS, "orders", 1, permanent=True)
    with pytest.raises(Refused, match="not deleted"):
        await broker.schemas.delete_subject(ANONYMOUS, "orders", permanent=True)
    assert await broker.schemas.delete_subject(ANONYMOUS, "orders") == [1]
    assert await broker.schemas.subjects(ANONYMOUS) == []
    assert await broker.schemas.subjects(ANONYMOUS, deleted=True) == ["orders"]
    assert await broker.schemas.delete_subject(ANONYMOUS, "orders", permanent=True) == [1]
    assert await broker.schemas.subjects(ANONYMOUS, deleted=True) == []


async def test_no_id_and_no_version_is_used_again_after_a_deletion(tmp_path):
    async with open_broker(tmp_path) as broker:
        await broker.schemas.set_compatibility(ANONYMOUS, None, Compatibility.NONE)
        await register(broker, "orders", STRING)
        second = await register(broker, "orders", NUMBER)
        await broker.schemas.delete_version(ANONYMOUS, "orders", 2)
        await broker.schemas.delete_version(ANONYMOUS, "orders", 2, permanent=True)
        with pytest.raises(NotFound, match="is deleted"):
            await broker.schemas.by_global_id(ANONYMOUS, second.global_id)
    async with open_broker(tmp_path) as broker:
        third = await register(broker, "orders", NUMBER)
        assert (third.schema_id, third.version, third.global_id) == (1, 3, 3)
        await broker.schemas.delete_subject(ANONYMOUS, "orders")
        await broker.schemas.delete_subject(ANONYMOUS, "orders", permanent=True)
    async with open_broker(tmp_path) as broker:
        made_again = await register(broker, "orders", NUMBER)
        assert (made_again.schema_id, made_again.version, made_again.global_id) == (2, 1, 4)
        with pytest.raises(NotFound, match="schema id 1 was never given out, or is deleted"):
            await broker.schemas.get_by_id(ANONYMOUS, 1, 1)


async def test_a_subject_of_many_versions_is_removed_whole(broker, monkeypatch):
    number = iter(range(1000))
    monkeypatch.setattr(all_formats.PrimitiveSchema, "canonical", property(lambda self: b"%d" % next(number)))
    for one in range(200):
        await register(broker, "orders", SchemaDefinition(SchemaFormat.STRING, str(one)))
    assert len(await broker.schemas.delete_subject(ANONYMOUS, "orders")) == 200
    assert len(await broker.schemas.delete_subject(ANONYMOUS, "orders", permanent=True)) == 200
    assert await broker.schemas.subjects(ANONYMOUS, deleted=True) == []


# -- references --------------------------------------------------------------------------------------------------------


@pytest.fixture
def referring(monkeypatch):
    """Lets the format string have references, whose texts become part of its meaning."""

    def parse(definition):
        return all_formats.PrimitiveSchema(definition)

    monkeypatch.setattr(all_formats, "_parse_primitive", parse)


def refer(*references):
    return SchemaDefinition(SchemaFormat.STRING, "refers", tuple(SchemaReference(*one) for one in references))


async def test_a_version_that_another_one_refers_to_is_not_deleted(broker, referring):
    await register(broker, "address", NUMBER)
    user = await register(broker, "user", refer(("Address", "address", 1)))
    assert await broker.schemas.referenced_by(ANONYMOUS, "address", 1) == [user.global_id]
    with pytest.raises(Refused, match="'user' version 1"):
        await broker.schemas.delete_version(ANONYMOUS, "address", 1)
    with pytest.raises(Refused, match="'user' version 1"):
        await broker.schemas.delete_subject(ANONYMOUS, "address")
    await broker.schemas.delete_subject(ANONYMOUS, "user")
    await broker.schemas.delete_subject(ANONYMOUS, "user", permanent=True)
    assert await broker.schemas.delete_subject(ANONYMOUS, "address") == [1]


async def test_the_same_text_with_another_reference_is_another_version(broker, referring):
    await register(broker, "address", NUMBER)
    await register(broker, "address", BYTES)
    first = await register(broker, "user", refer(("Address", "address", 1)))
    second = await register(broker, "user", refer(("Address", "address", 2)))
    assert (first.version, second.version) == (1, 2) and first.global_id != second.global_id
    assert not (await register(broker, "user", refer(("Address", "address", 1)))).is_new


async def test_a_reference_that_cannot_be_resolved_is_invalid_by_name(broker, referring):
    with pytest.raises(Invalid, match="'Address' cannot be resolved: subject 'address' does not exist"):
        await register(broker, "user", refer(("Address", "address", 1)))
    await register(broker, "address", NUMBER)
    with pytest.raises(Invalid, match="no version 2"):
        await register(broker, "user", refer(("Address", "address", 2)))
    with pytest.raises(Invalid, match="-1 is not a version"):
        await register(broker, "user", refer(("Address", "address", -1)))
    await broker.schemas.delete_version(ANONYMOUS, "address", 1)
    with pytest.raises(Invalid, match="cannot be resolved"):
        await register(broker, "user", refer(("Address", "address", 1)))


async def test_one_name_with_two_meanings_is_invalid(broker, referring):
    await register(broker, "address", NUMBER)
    await register(broker, "address", BYTES)
    await register(broker, "company", refer(("Address", "address", 1)))
    with pytest.raises(Invalid, match="means both"):
        await register(broker, "user", refer(("Company", "company", 1), ("Address", "address", 2)))


async def test_a_chain_of_references_has_a_limit(broker, referring, monkeypatch):
    monkeypatch.setattr("pydanube.broker.schemas.definitions.SCHEMA_REFERENCES_MAX", 10)
    await register(broker, "link-0", NUMBER)
    for number in range(1, 11):
        await register(broker, f"link-{number}", refer((f"link-{number - 1}", f"link-{number - 1}", 1)))
    with pytest.raises(Invalid, match="more than 10"):
        await register(broker, "link-11", refer(("link-10", "link-10", 1)))


# -- compatibility, modes, tags, limits --------------------------------------------------------------------------------


async def test_an_incompatible_definition_is_refused_with_the_reasons(tmp_path):
    async with open_broker(tmp_path) as broker:
        assert await broker.schemas.compatibility(ANONYMOUS) == (None, Compatibility.BACKWARD)
        await register(broker, "orders", STRING)
        with pytest.raises(Refused, match=r"backward.*\$: the format was string and is number \(version 1\)"):
            await register(broker, "orders", NUMBER)
        reasons = await broker.schemas.check(ANONYMOUS, "orders", NUMBER)
        assert [(one.path, one.version) for one in reasons] == [("$", 1)]
        assert await broker.schemas.check(ANONYMOUS, "orders", NUMBER, level=Compatibility.NONE) == []
        assert await broker.schemas.check(ANONYMOUS, "users", NUMBER) == []
        await broker.schemas.set_compatibility(ANONYMOUS, "orders", Compatibility.NONE)
        assert (await register(broker, "orders", NUMBER)).version == 2


async def test_a_transitive_level_compares_with_all_versions_that_are_not_deleted(broker):
    await register(broker, "orders", STRING)
    await register(broker, "orders", NUMBER)
    again = SchemaDefinition(SchemaFormat.NUMBER, "x")
    level = Compatibility.BACKWARD_TRANSITIVE
    assert {one.version for one in await broker.schemas.check(ANONYMOUS, "orders", BYTES, level=level)} == {1, 2}
    assert {one.version for one in await broker.schemas.check(ANONYMOUS, "orders", again, level=level)} == {1}
    assert await broker.schemas.check(ANONYMOUS, "orders", again, level=Compatibility.BACKWARD) == []
    found = await broker.schemas.check(ANONYMOUS, "orders", again, version=1, level=Compatibility.BACKWARD)
    assert {one.version for one in found} == {1}
    await broker.schemas.delete_version(ANONYMOUS, "orders", 1)
    assert await broker.schemas.check(ANONYMOUS, "orders", again, level=level) == []


async def test_a_level_can_be_set_before_the_first_version_and_unset(broker):
    await broker.schemas.set_compatibility(ANONYMOUS, "orders", Compatibility.FULL)
    assert await broker.schemas.subjects(ANONYMOUS, deleted=True) == []
    with pytest.raises(NotFound):
        await broker.schemas.get(ANONYMOUS, "orders")
    assert (await register(broker, "orders", STRING)).version == 1
    with pytest.raises(Refused):
        await register(broker, "orders", NUMBER)
    report = await broker.schemas.set_compatibility(ANONYMOUS, "orders", None)
    assert report == (None, Compatibility.NONE)
    assert (await register(broker, "orders", NUMBER)).version == 2


async def test_a_read_only_subject_is_not_changed(broker):
    await register(broker, "orders", STRING)
    assert await broker.schemas.mode(ANONYMOUS) == (None, RegistryMode.READWRITE)
    await broker.schemas.set_mode(ANONYMOUS, "orders", RegistryMode.READONLY)
    assert not (await register(broker, "orders", STRING)).is_new
    for change in (register(broker, "orders", NUMBER), broker.schemas.delete_version(ANONYMOUS, "orders", 1)):
        with pytest.raises(Refused, match="read-only"):
            await change
    await broker.schemas.set_mode(ANONYMOUS, None, RegistryMode.READONLY)
    await broker.schemas.set_mode(ANONYMOUS, "orders", RegistryMode.READWRITE)
    assert (await register(broker, "orders", NUMBER)).version == 2
    with pytest.raises(Refused, match="read-only"):
        await register(broker, "users", NUMBER)


async def test_tags_are_bounded(broker):
    await register(broker, "orders", STRING)
    for tags in (["x"] * 1 + [""], ["x" * 201], [str(one) for one in range(limits.SCHEMA_TAGS_MAX + 1)]):
        with pytest.raises(Invalid, match="tags"):
            await broker.schemas.set_tags(ANONYMOUS, "orders", 1, tags)


async def test_a_definition_has_a_largest_size_and_is_text(broker):
    largest = SchemaDefinition(SchemaFormat.STRING, "é" * (limits.SCHEMA_BYTES_MAX // 2))
    assert (await register(broker, "orders", largest)).version == 1
    assert (await broker.schemas.get(ANONYMOUS, "orders")).definition == largest
    with pytest.raises(Invalid, match="larger than a schema may be"):
        await register(broker, "orders", SchemaDefinition(SchemaFormat.STRING, largest.text + "x"))
    with pytest.raises(Invalid, match="UTF-8"):
        await register(broker, "orders", SchemaDefinition(SchemaFormat.STRING, "\ud800"))


async def test_subjects_and_versions_have_a_limit(broker, monkeypatch):
    monkeypatch.setattr("pydanube.broker.schemas.subjects.SCHEMA_SUBJECTS_MAX", 2)
    monkeypatch.setattr("pydanube.broker.schemas.subjects.SCHEMA_VERSIONS_MAX", 2)
    await register(broker, "a", STRING)
    await register(broker, "a", NUMBER)
    await register(broker, "b", STRING)
    with pytest.raises(Full, match="2 subjects"):
        await register(broker, "c", STRING)
    with pytest.raises(Full, match="2 versions"):
        await register(broker, "a", BYTES)


async def test_the_subjects_of_a_principal_leave_some_for_others(tmp_path, monkeypatch):
    monkeypatch.setattr("pydanube.broker.schemas.subjects.SCHEMA_SUBJECTS_MAX", 6)
    rules, eve, bob = AccessRules([ANONYMOUS.id]), Principal("eve"), Principal("bob")
    rules.set_role("registrar", [Action.CREATE, Action.ADMINISTER, Action.DELETE, Action.DESCRIBE])
    for one in (eve, bob):
        who, where = BoundSubject.parse(one.id), ResourcePattern.parse("schema:*")
        rules.set_binding(one.name, AccessBinding(one.name, who, ("registrar",), where))
    async with open_broker(tmp_path, authorizer=rules) as broker:
        schemas = broker.schemas
        await schemas.register(eve, "e1", STRING)
        await schemas.set_mode(eve, "e2", RegistryMode.READWRITE)
        await schemas.register(eve, "e2", STRING)
        await schemas.register(eve, "e3", STRING)
        for call in (schemas.register(eve, "e4", STRING), schemas.set_mode(eve, "e4", RegistryMode.READWRITE)):
            with pytest.raises(Full, match="user:eve has made 3 subjects, and the 3 that are left are for others"):
                await call
    async with open_broker(tmp_path, authorizer=rules) as broker:
        schemas = broker.schemas
        with pytest.raises(Full, match="user:eve has made 3 subjects"):
            await schemas.register(eve, "e4", STRING)
        await schemas.register(bob, "b1", STRING)
        await schemas.register(ANONYMOUS, "a1", STRING)
        for permanent in (False, True):
            await schemas.delete_subject(eve, "e1", permanent=permanent)
            await schemas.delete_subject(eve, "e3", permanent=permanent)
        await schemas.register(eve, "e4", STRING)


async def test_definitions_that_wait_have_a_limit_together(tmp_path, monkeypatch):
    monkeypatch.setattr("pydanube.broker.schemas.schemas.WAITING_BYTES_MAX", 100_000)
    store = FaultyStore()
    async with open_broker(tmp_path, metadata=store) as broker:
        held = store.hold(puts(records.VERSIONS))
        large = SchemaDefinition(SchemaFormat.STRING, "x" * 60_000)
        first = asyncio.ensure_future(register(broker, "orders", large))
        await held.asked.wait()
        for call in (broker.schemas.register, broker.schemas.check):
            with pytest.raises(Unavailable, match="too many definitions"):
                await call(ANONYMOUS, "users", large)
        held.go_on()
        assert (await first).version == 1
        assert (await register(broker, "users", large)).version == 1
        assert (await broker.schemas.lookup(ANONYMOUS, "users", large)).version == 1


async def test_a_subject_that_has_only_settings_goes_with_the_last_of_them(broker, monkeypatch):
    monkeypatch.setattr("pydanube.broker.schemas.subjects.SCHEMA_SUBJECTS_MAX", 1)
    schemas = broker.schemas
    await schemas.set_compatibility(ANONYMOUS, "a", Compatibility.FULL)
    await schemas.set_mode(ANONYMOUS, "a", RegistryMode.READONLY)
    await schemas.set_compatibility(ANONYMOUS, "a", None)
    assert (await schemas.mode(ANONYMOUS, "a")).own is RegistryMode.READONLY
    with pytest.raises(Full, match="1 subjects"):
        await register(broker, "b", STRING)
    await schemas.set_mode(ANONYMOUS, "a", None)
    assert (await register(broker, "b", STRING)).schema_id == 2
    await schemas.set_compatibility(ANONYMOUS, "b", Compatibility.FULL)
    await schemas.set_compatibility(ANONYMOUS, "b", None)
    assert await schemas.versions(ANONYMOUS, "b") == [1]


async def test_a_subject_is_described(broker):
    await register(broker, "orders", STRING)
    await register(broker, "orders", NUMBER)
    await broker.schemas.delete_version(ANONYMOUS, "orders", 2)
    found = await broker.schemas.describe(ANONYMOUS, "orders")
    assert (found.schema_id, found.versions, found.deleted_versions) == (1, (1,), (2,))
    assert (found.format, found.compatibility) == (SchemaFormat.STRING, None)
    assert found.effective_compatibility is Compatibility.NONE


class Strict:
    """Allows nothing but what is listed, and remembers what was asked."""

    def __init__(self):
        self.asked = []

    def check(self, principal, action, resource):
        self.asked.append((action, resource))
        raise Denied("no")

    def allows(self, principal, action, resource):
        return False


async def test_every_call_asks_the_authorizer_first(tmp_path):
    authorizer = Strict()
    async with open_broker(tmp_path, authorizer=authorizer) as broker:
        schemas = broker.schemas
        calls = {
            (Action.CREATE, "schema:orders"): lambda: schemas.register(ANONYMOUS, "orders", STRING),
            (Action.DESCRIBE, "schema:orders"): lambda: schemas.get(ANONYMOUS, "orders"),
            (Action.DELETE, "schema:orders"): lambda: schemas.delete_subject(ANONYMOUS, "orders"),
            (Action.ADMINISTER, "schema:orders"): lambda: schemas.set_tags(ANONYMOUS, "orders", 1, []),
            (Action.ADMINISTER, "/"): lambda: schemas.set_compatibility(ANONYMOUS, None, Compatibility.NONE),
        }
        for expected, call in calls.items():
            with pytest.raises(Denied):
                await call()
            assert authorizer.asked[-1] == expected
        assert await schemas.subjects(ANONYMOUS) == []


async def test_the_registry_is_restored_from_the_object_store_and_no_number_is_used_again(tmp_path):
    objects, topic = MemoryStore(), TopicName.parse("/default/orders")
    (tmp_path / "before").mkdir()
    (tmp_path / "after").mkdir()
    async with open_broker(tmp_path / "before", objects=objects, crash=True) as broker:
        await broker.schemas.set_compatibility(ANONYMOUS, None, Compatibility.NONE)
        await broker.topics.create(ANONYMOUS, topic, TopicConfig())
        await register(broker, "orders", STRING)
        await broker.schemas.bind(ANONYMOUS, topic, Binding("orders", ValidationPolicy.WARN))
        await broker.schemas.set_tags(ANONYMOUS, "orders", 1, ["pii"])
        kept = await broker.schemas.get(ANONYMOUS, "orders")
        await broker._tiers.manifests.write()
        lost = await register(broker, "orders", NUMBER), await register(broker, "users", BYTES)
    async with await EmbeddedStore.open(tmp_path / "after" / "metadata.db", SystemClock()) as store:
        report = await rebuild(objects, store, SystemClock(), StoreOwner("cluster"))
        assert report.subjects == 1
    async with open_broker(tmp_path / "after", objects=objects) as broker:
        assert await broker.schemas.get(ANONYMOUS, "orders") == kept
        assert await broker.schemas.binding(ANONYMOUS, topic) == Binding("orders", ValidationPolicy.WARN)
        assert await broker.schemas.compatibility(ANONYMOUS) == (Compatibility.NONE, Compatibility.NONE)
        assert not (await register(broker, "orders", STRING)).is_new
        made = await register(broker, "orders", BYTES), await register(broker, "users", NUMBER)
        assert made[0].schema_id == kept.schema_id and made[0].version > lost[0].version
        assert made[1].schema_id > lost[1].schema_id
        assert not {one.global_id for one in made} & {one.global_id for one in (*lost, kept)}


async def test_definitions_larger_together_than_a_transaction_are_restored(tmp_path):
    objects = MemoryStore()
    (tmp_path / "before").mkdir()
    (tmp_path / "after").mkdir()
    texts = [f"{n}" * 400_000 for n in range(5)]
    async with open_broker(tmp_path / "before", objects=objects, crash=True) as broker:
        for n, text in enumerate(texts):
            await register(broker, f"large-{n}", SchemaDefinition(SchemaFormat.STRING, text))
        await broker._tiers.manifests.write()
    async with await EmbeddedStore.open(tmp_path / "after" / "metadata.db", SystemClock()) as store:
        report = await rebuild(objects, store, SystemClock(), StoreOwner("cluster"))
        assert report.subjects == len(texts)
    async with open_broker(tmp_path / "after", objects=objects) as broker:
        found = [await broker.schemas.get(ANONYMOUS, f"large-{n}") for n in range(5)]
        assert [one.definition.text for one in found] == texts


async def test_what_is_registered_while_a_manifest_is_written_does_not_spoil_it(tmp_path, monkeypatch):
    """A manifest is read from the metadata store page by page, and new versions are on the last page."""
    objects, lost = MemoryStore(), []
    (tmp_path / "before").mkdir()
    (tmp_path / "after").mkdir()
    async with open_broker(tmp_path / "before", objects=objects, crash=True) as broker:
        await broker.schemas.set_compatibility(ANONYMOUS, None, Compatibility.NONE)
        await register(broker, "orders", STRING)
        store = broker._tiers.manifests._store
        real_list = store.list

        async def list_one(prefix, *, start_after="", limit=1000):
            if start_after.startswith(records.VERSIONS) and not lost:
                lost.append(await register(broker, "users", SchemaDefinition(SchemaFormat.JSON, "{}")))
                user = SchemaReference("user", "users", 1)
                using = SchemaDefinition(SchemaFormat.JSON, '{"$ref": "user"}', (user,))
                lost.append(await register(broker, "orders", using))
            return await real_list(prefix, start_after=start_after, limit=1)

        monkeypatch.setattr(store, "list", list_one)
        await broker._tiers.manifests.write()
        monkeypatch.undo()
    async with await EmbeddedStore.open(tmp_path / "after" / "metadata.db", SystemClock()) as store:
        await rebuild(objects, store, SystemClock(), StoreOwner("cluster"))
    async with open_broker(tmp_path / "after", objects=objects) as broker:
        assert await broker.schemas.subjects(ANONYMOUS, deleted=True) == ["orders"]
        assert await broker.schemas.versions(ANONYMOUS, "orders", deleted=True) == [1]
        made = [await register(broker, "users", STRING), await register(broker, "orders", BYTES)]
        assert made[0].schema_id > lost[0].schema_id and made[1].version > lost[1].version
        assert made[1].global_id > lost[1].global_id


async def test_numbers_given_out_after_the_only_manifest_are_not_used_again(tmp_path):
    """The manifest knows of no schema at all."""
    objects = MemoryStore()
    (tmp_path / "before").mkdir()
    (tmp_path / "after").mkdir()
    async with open_broker(tmp_path / "before", objects=objects, crash=True) as broker:
        await broker._tiers.manifests.write()
        lost = await register(broker, "orders", STRING)
    async with await EmbeddedStore.open(tmp_path / "after" / "metadata.db", SystemClock()) as store:
        await rebuild(objects, store, SystemClock(), StoreOwner("cluster"))
    async with open_broker(tmp_path / "after", objects=objects) as broker:
        made = await register(broker, "orders", NUMBER)
        assert made.schema_id > lost.schema_id and made.global_id > lost.global_id


def test_the_records_have_the_bytes_they_had_when_they_were_released():
    subject = records.SubjectRecord(7, 3, [2], "full", created_at=1000)
    version = records.VersionRecord(9, "avro", "sha256:ab", '"int"', [("A", "a", 1)], ["pii"], 1000, "anonymous")
    described = records.VersionRecord(
        9, "avro", "sha256:ab", '"int"', [("A", "a", 1)], ["pii"], 1000, "anonymous", description="ids"
    )
    assert pack(described) == bytes([pack(version)[0] + 1]) + pack(version)[1:] + b"\xabdescription\xa3ids"
    assert records.subject_key("orders/value") == "/schemas/subjects/orders/value"
    assert records.version_key(7, 3) == "/schemas/versions/0000000000000007/00000003"
    assert pack(subject).hex() == (
        "85a9736368656d615f696407ac6c6173745f76657273696f6e03a764656c657465649102ad636f6d7061746962696c697479a4"
        "66756c6caa637265617465645f6174cd03e8"
    )
    assert pack(version).hex() == (
        "88a9676c6f62616c5f696409a6666f726d6174a46176726fab66696e6765727072696e74a97368613235363a6162a474657874a5"
        "22696e7422aa7265666572656e6365739193a141a16101a47461677391a3706969aa637265617465645f6174cd03e8aa63726561"
        "7465645f6279a9616e6f6e796d6f7573"
    )
