"""The registries of several brokers on one metadata store: each hears of the others' changes, and none undoes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from following_harness import Member, act_at_random, check_equal, open_members

from pydanube.broker.registry import records
from pydanube.broker.registry.effective_policies import EffectivePolicies
from pydanube.broker.registry.ids import IdBlocks
from pydanube.broker.registry.records import (
    ConsumerRecord,
    LedgerRecord,
    NamespaceRecord,
    ProducerRecord,
    TopicRecord,
)
from pydanube.broker.registry.registry import RegistryListener
from pydanube.metadata.packing import pack, unpack, version_of
from pydanube.metadata.store import Compare, Delete, MetadataStore, Put
from pydanube.model.errors import AlreadyExists, Conflict, DanubeError, Full, NotFound, Refused, Unavailable
from pydanube.model.failure import FailurePolicy
from pydanube.model.names import TopicName
from pydanube.model.schemas import Binding
from pydanube.model.settings.sections import LimitSettings, Sections
from pydanube.model.topics import SubscriptionType, TopicConfig

TOPIC = TopicName.parse("/default/orders")
SHARED = SubscriptionType.SHARED


@pytest.fixture
async def members(tmp_path: Path) -> AsyncIterator[list[Member]]:
    async with open_members(tmp_path, 2) as opened:
        yield opened


async def subscribe(member: Member, name: str = "billing", maximum: int = 0) -> bool:
    topic_id = member.registry.topic(TOPIC).topic_id
    return (await member.registry.create_subscription(TOPIC, topic_id, name, SHARED, [0], subscriptions_max=maximum))[1]


async def stored(store: MetadataStore, key: str) -> dict[str, Any]:
    found = await store.get(key)
    assert found is not None
    return msgspec.msgpack.decode(found.value)


async def test_what_one_broker_changes_the_others_hear(members: list[Member]) -> None:
    a, b = members
    await a.registry.create_namespace("shop")
    await a.registry.create_topic(TOPIC, TopicConfig(2))
    await subscribe(a)
    await b.catch_up()
    assert b.registry.namespaces() == ["default", "shop"]
    assert b.registry.topics() == [TOPIC]
    assert list(b.registry.subscriptions(TOPIC)) == ["billing"]
    await b.registry.delete_subscription(TOPIC, "billing")
    await b.registry.grow_topic(TOPIC, 3)
    await b.registry.delete_namespace("shop")
    await a.catch_up()
    assert a.registry.subscriptions(TOPIC) == {}
    assert a.registry.topic(TOPIC).partitions == 3
    assert a.registry.namespaces() == ["default"]
    await a.registry.delete_topic(TOPIC)
    await b.catch_up()
    assert b.registry.topics() == []


async def test_listeners_hear_own_and_other_changes_once(members: list[Member]) -> None:
    heard: dict[int, list[str]] = {0: [], 1: []}
    for index, member in enumerate(members):
        note = heard[index].append
        member.registry.subscribe(
            RegistryListener(
                topic_changed=lambda name, former, record, note=note: note(
                    f"topic {former and former.partitions}->{record.partitions}"
                ),
                topic_deleted=lambda name, record, note=note: note("topic deleted"),
                subscription_changed=lambda topic_id, name, former, record, note=note: note(
                    f"{name} {former and former.unacked_max}->{record.unacked_max}"
                ),
                subscription_deleted=lambda topic_id, name, record, note=note: note(f"{name} deleted"),
                access_taken=lambda topic_id, record, note=note: note(f"access {record.epoch}"),
            )
        )
    a, b = members
    record = await a.registry.create_topic(TOPIC, TopicConfig(1))
    await a.registry.grow_topic(TOPIC, 2)
    await subscribe(a)
    await b.catch_up()
    await b.registry.change_subscription(TOPIC, "billing", unacked_max=7)
    await b.registry.delete_subscription(TOPIC, "billing")
    await b.registry.take_access(TOPIC, record.topic_id, ProducerRecord(1), 0)
    await b.registry.delete_topic(TOPIC)
    await a.catch_up()
    await b.catch_up()
    expected = [
        "topic None->1",
        "topic 1->2",
        "billing None->0",
        "billing 0->7",
        "billing deleted",
        "access 1",
        "topic deleted",
    ]
    assert heard[0] == expected
    assert heard[1] == expected


async def test_two_brokers_that_change_different_policies_both_win(members: list[Member]) -> None:
    a, b = members
    await a.registry.create_topic(TOPIC, TopicConfig())
    await b.catch_up()
    a.store.hold()
    b.store.hold()  # neither hears of the other before it changes
    await a.registry.set_topic_policies(TOPIC, {"producers_max": 3})
    await b.registry.set_topic_policies(TOPIC, {"consumers_max": 4})
    await a.registry.set_namespace_policies("default", {"producers_max": 5})
    await b.registry.set_namespace_policies("default", {"consumers_max": 6})
    for member in members:
        member.store.release()
        await member.catch_up()
        policies = member.registry.topic(TOPIC).own_policies()
        assert (policies.producers_max, policies.consumers_max) == (3, 4)
        inherited = member.registry.namespace("default").own_policies()
        assert (inherited.producers_max, inherited.consumers_max) == (5, 6)


async def test_many_changes_at_once_are_all_made(members: list[Member]) -> None:
    a, b = members
    await a.registry.create_topic(TOPIC, TopicConfig(1))
    await b.catch_up()
    await asyncio.gather(
        *(member.registry.ensure_partitions(TOPIC, count) for count in range(2, 12) for member in members),
        a.registry.set_topic_policies(TOPIC, {"producers_max": 3}),
        b.registry.set_topic_policies(TOPIC, {"consumers_max": 4}),
    )
    found = await stored(a.store.view, records.topic_key(TOPIC))
    assert found["partitions"] == 11
    assert {"producers_max": 3, "consumers_max": 4}.items() <= found["policies"].items()


async def test_growing_at_two_brokers_never_shrinks(members: list[Member]) -> None:
    a, b = members
    await a.registry.create_topic(TOPIC, TopicConfig(2))
    await b.catch_up()
    b.store.hold()
    await a.registry.grow_topic(TOPIC, 8)
    assert not await b.registry.ensure_partitions(TOPIC, 5)
    with pytest.raises(Refused, match="has 8 partitions"):
        await b.registry.grow_topic(TOPIC, 4)
    assert b.registry.topic(TOPIC).partitions == 8


async def test_the_second_creation_of_a_name_says_that_it_exists(members: list[Member]) -> None:
    a, b = members
    b.store.hold()
    await a.registry.create_topic(TOPIC, TopicConfig(3))
    await a.registry.create_namespace("shop")
    with pytest.raises(AlreadyExists):
        await b.registry.create_topic(TOPIC, TopicConfig())
    with pytest.raises(AlreadyExists):
        await b.registry.create_namespace("shop")
    assert b.registry.topic(TOPIC).partitions == 3, "what it ran into is known from then on"
    await subscribe(a)
    assert not await subscribe(b)


async def test_of_two_creations_at_the_same_moment_one_wins(members: list[Member]) -> None:
    for number in range(10):
        name = TopicName.parse(f"/default/race-{number}")
        outcomes = await asyncio.gather(
            *(member.registry.create_topic(name, TopicConfig()) for member in members), return_exceptions=True
        )
        assert sorted(type(one).__name__ for one in outcomes) == ["AlreadyExists", "TopicRecord"]


async def test_a_topic_that_was_deleted_elsewhere_can_be_created_before_that_is_heard(members: list[Member]) -> None:
    a, b = members
    first = await a.registry.create_topic(TOPIC, TopicConfig())
    await b.catch_up()
    gone: list[int] = []
    b.registry.subscribe(RegistryListener(topic_deleted=lambda name, record: gone.append(record.topic_id)))
    b.store.hold()
    await a.registry.delete_topic(TOPIC)
    made = await b.registry.create_topic(TOPIC, TopicConfig())
    assert gone == [first.topic_id]
    assert made.topic_id != first.topic_id
    b.store.release()
    await b.catch_up()
    assert b.registry.topic(TOPIC) == made, "the deletion that is heard late is of the former topic"


async def test_a_deleted_topic_does_not_come_back_by_an_older_event(members: list[Member]) -> None:
    a, b = members
    await a.registry.create_topic(TOPIC, TopicConfig(1))
    await b.catch_up()
    b.store.hold()
    await a.registry.grow_topic(TOPIC, 2)
    shown: list[str] = []
    b.registry.subscribe(RegistryListener(topic_changed=lambda name, former, record: shown.append(str(name))))
    await b.registry.delete_topic(TOPIC)
    shown.clear()  # the growth, of which it read before it deleted
    b.store.release()
    await b.catch_up()
    assert b.registry.find_topic(TOPIC) is None
    assert shown == []


async def test_a_deletion_notices_what_another_broker_changed(members: list[Member]) -> None:
    a, b = members
    await a.registry.create_topic(TOPIC, TopicConfig(1))
    await b.catch_up()
    read = version_of(b.registry.topic(TOPIC))
    b.store.hold()
    await a.registry.grow_topic(TOPIC, 2)
    with pytest.raises(Conflict):
        await b.registry.delete_topic(TOPIC, expected=read)
    with pytest.raises(Conflict):
        await b.registry.set_topic_policies(TOPIC, {"producers_max": 1}, expected=read)
    asked: list[int] = []
    await b.registry.delete_topic(TOPIC, lambda record: asked.append(record.partitions))
    assert asked == [2]


async def test_an_unknown_topic_is_asked_for_in_the_store(members: list[Member]) -> None:
    a, b = members
    b.store.hold()
    await a.registry.create_topic(TOPIC, TopicConfig(1))
    await subscribe(a)
    await subscribe(a, "audit")
    assert b.registry.find_topic(TOPIC) is None
    assert await b.registry.refresh_topic(TOPIC) is not None
    assert set(b.registry.subscriptions(TOPIC)) == {"billing", "audit"}
    await subscribe(a, "late")
    assert await b.registry.refresh_subscription(TOPIC, "late") is not None
    assert await b.registry.refresh_subscription(TOPIC, "never") is None
    await a.registry.grow_topic(TOPIC, 4)
    found = await b.registry.refresh_topic(TOPIC, 3)
    assert found is not None
    assert found.partitions == 4
    assert await b.registry.refresh_topic(TopicName.parse("/default/none")) is None


async def test_an_unknown_subscription_of_another_broker_can_be_changed_and_deleted(members: list[Member]) -> None:
    a, b = members
    await a.registry.create_topic(TOPIC, TopicConfig())
    await b.catch_up()
    b.store.hold()
    await subscribe(a)
    await a.registry.change_subscription(TOPIC, "billing", failure_policy=FailurePolicy(redeliveries_max=2))
    changed = await b.registry.change_subscription(TOPIC, "billing", unacked_max=9)
    assert (changed.failure().redeliveries_max, changed.unacked_max) == (2, 9)
    await b.registry.delete_subscription(TOPIC, "billing")
    with pytest.raises(NotFound):
        await a.registry.change_subscription(TOPIC, "billing", unacked_max=1)


async def test_no_topic_is_created_in_a_namespace_that_another_broker_deletes(members: list[Member]) -> None:
    a, b = members
    topic = TopicName.parse("/shop/orders")
    await a.registry.create_namespace("shop")
    await b.catch_up()
    b.store.hold()
    await a.registry.delete_namespace("shop")
    with pytest.raises(NotFound, match="namespace 'shop' does not exist"):
        await b.registry.create_topic(topic, TopicConfig())
    assert await a.store.get(records.topic_key(topic)) is None


async def test_a_namespace_in_which_another_broker_has_created_a_topic_stays(members: list[Member]) -> None:
    a, b = members
    topic = TopicName.parse("/shop/orders")
    await a.registry.create_namespace("shop")
    await b.catch_up()
    a.store.hold()
    await b.registry.create_topic(topic, TopicConfig())
    with pytest.raises(Refused, match="still has 1 topics, for example /shop/orders"):
        await a.registry.delete_namespace("shop")
    await b.registry.create_topic(TopicName.parse("/shop/more"), TopicConfig())


async def test_a_topic_that_is_created_between_the_mark_and_the_list_is_refused(members: list[Member]) -> None:
    a, b = members
    await a.registry.create_namespace("shop")
    await b.catch_up()
    outcomes: list[DanubeError] = []

    async def meanwhile(prefix: str) -> None:
        if prefix == "/topics/shop/":
            a.store.after_list = None
            try:
                await b.registry.create_topic(TopicName.parse("/shop/orders"), TopicConfig())
            except DanubeError as error:
                outcomes.append(error)

    a.store.after_list = meanwhile
    await a.registry.delete_namespace("shop")
    assert [type(one) for one in outcomes] == [Refused]
    assert "is being deleted" in outcomes[0].message
    assert not await a.store.list("/topics/shop/")


async def test_an_interrupted_deletion_of_a_namespace_says_so_and_can_be_repeated(members: list[Member]) -> None:
    a, b = members
    await a.registry.create_namespace("shop")
    key = records.namespace_key("shop")
    await a.store.transact([], [Put(key, pack(NamespaceRecord(1, deleting=True)))])  # as a kill leaves it
    await b.catch_up()
    with pytest.raises(Refused, match="its deletion was interrupted: delete it again"):
        await b.registry.create_topic(TopicName.parse("/shop/orders"), TopicConfig())
    await b.registry.delete_namespace("shop")
    assert await a.store.get(key) is None


async def test_two_brokers_together_do_not_exceed_subscriptions_max(members: list[Member]) -> None:
    a, b = members
    await a.registry.create_topic(TOPIC, TopicConfig())
    await b.catch_up()
    a.store.hold()
    b.store.hold()
    outcomes = await asyncio.gather(
        *(subscribe(member, f"{index}-{number}", 5) for number in range(5) for index, member in enumerate(members)),
        return_exceptions=True,
    )
    assert outcomes.count(True) == 5
    assert {type(one) for one in outcomes if one is not True} == {Full}
    topic_id = a.registry.topic(TOPIC).topic_id
    assert len(await a.store.list(records.subscriptions_of(topic_id))) == 5


async def test_no_subscription_is_created_on_a_topic_that_another_broker_deleted(members: list[Member]) -> None:
    a, b = members
    record = await a.registry.create_topic(TOPIC, TopicConfig())
    await b.catch_up()
    b.store.hold()
    await a.registry.delete_topic(TOPIC)
    with pytest.raises(NotFound):
        await subscribe(b)
    await a.registry.create_topic(TOPIC, TopicConfig())
    with pytest.raises(Unavailable, match="created anew"):
        await subscribe(b)
    assert not await a.store.list(records.subscriptions_of(record.topic_id))


async def test_ids_that_another_broker_gave_out_are_known(members: list[Member]) -> None:
    a, b = members
    await a.registry.create_topic(TOPIC, TopicConfig())
    await b.catch_up()
    given = [await member.registry.new_producer(0) for member in members]
    for member in members:
        for identity in given:
            assert (await member.registry.check_producer(TOPIC, "", identity)).producer_id == identity.producer_id
    with pytest.raises(Refused, match="never given out"):
        await a.registry.check_producer(TOPIC, "", ProducerRecord(10**9))


async def test_the_store_is_not_asked_about_ids_that_are_known(members: list[Member]) -> None:
    ids = IdBlocks(members[0].store.view, "some", 10)
    taken = await ids.take()
    assert await ids.was_given(taken)
    members[0].store._store = None  # whatever asks the store now fails
    assert await ids.was_given(taken)


async def test_epochs_of_names_and_of_access_rise_over_brokers(members: list[Member]) -> None:
    a, b = members
    record = await a.registry.create_topic(TOPIC, TopicConfig())
    await b.catch_up()
    resumed = await asyncio.gather(
        *(one.registry.resume_producer(TOPIC, record.topic_id, "p", 0, 0) for one in members * 4)
    )
    assert sorted(one.epoch for one in resumed) == list(range(8))
    assert len({one.producer_id for one in resumed}) == 1
    await asyncio.gather(*(one.registry.take_access(TOPIC, record.topic_id, resumed[0], 0) for one in members * 4))
    assert (await a.registry.access(TOPIC)).epoch == 8


async def test_a_change_that_others_always_outrun_is_given_up(members: list[Member]) -> None:
    a, _ = members
    await a.registry.create_topic(TOPIC, TopicConfig())
    key, transact = records.topic_key(TOPIC), a.store._store.transact
    tried = 0

    async def outrun(compares: list[Compare], writes: list[Put | Delete]) -> Any:
        nonlocal tried
        if writes[0].key == key:
            tried += 1
            found = await a.store.get(key)
            assert found is not None
            await transact([], [Put(key, found.value)])
        return await transact(compares, writes)

    a.store.transact = outrun
    with pytest.raises(Unavailable, match="others changed the metadata"):
        await a.registry.set_topic_policies(TOPIC, {"producers_max": 1})
    assert tried == 20


async def test_effective_policies_change_with_what_another_broker_sets(members: list[Member]) -> None:
    a, b = members
    await a.registry.create_topic(TOPIC, TopicConfig())
    await b.catch_up()
    effective = EffectivePolicies(b.registry, Sections(limits=LimitSettings(message_bytes_max=1000)))
    assert effective.of_topic(TOPIC).producers_max == 0
    await a.registry.set_namespace_policies("default", {"producers_max": 3})
    await b.catch_up()
    assert effective.of_topic(TOPIC).producers_max == 3
    assert effective.of_namespace("default").producers_max == 3
    await a.registry.set_topic_policies(TOPIC, {"producers_max": 2})
    await b.catch_up()
    assert effective.of_topic(TOPIC).producers_max == 2


async def test_records_keep_the_fields_of_a_later_release(members: list[Member]) -> None:
    a, b = members
    await a.registry.create_topic(TOPIC, TopicConfig(1))
    await subscribe(a)
    topic_id = a.registry.topic(TOPIC).topic_id
    await a.registry.resume_producer(TOPIC, topic_id, "p", 0, 0)
    await a.registry.take_access(TOPIC, topic_id, ProducerRecord(1), 0)
    keys = [
        records.topic_key(TOPIC),
        records.namespace_key("default"),
        records.subscription_key(topic_id, "billing"),
        records.producer_key(topic_id, "p"),
        records.access_key(topic_id),
    ]
    for key in keys:
        content = await stored(a.store.view, key) | {"of_a_later_release": [1, "x"]}
        await a.store.transact([], [Put(key, msgspec.msgpack.encode(content))])
    await b.catch_up()
    await b.registry.grow_topic(TOPIC, 2)
    await b.registry.set_topic_policies(TOPIC, {"producers_max": 1})
    await b.registry.set_binding(TOPIC, Binding("s"))
    await b.registry.set_namespace_policies("default", {"producers_max": 1})
    await b.registry.change_subscription(TOPIC, "billing", unacked_max=1)
    await b.registry.resume_producer(TOPIC, topic_id, "p", 0, 0)
    await b.registry.take_access(TOPIC, topic_id, ProducerRecord(2), 0)
    for key in keys:
        assert (await stored(a.store.view, key))["of_a_later_release"] == [1, "x"], key
    read = unpack((await a.store.get(keys[0])).value, TopicRecord)
    assert version_of(read) == version_of(b.registry.topic(TOPIC)), "versions depend on the known fields only"


def consumer(topic_id: int, subscription_id: int, name: str = "a") -> ConsumerRecord:
    return ConsumerRecord(topic_id, subscription_id, str(TOPIC), str(TOPIC), 0, "billing", name, used_at=1)


async def test_a_start_keeps_the_consumers_of_a_topic_that_was_created_meanwhile(members: list[Member]) -> None:
    a, _ = members
    starting = Member(a.store._store)

    async def meanwhile(prefix: str) -> None:
        if prefix == records.SUBSCRIPTIONS:  # topics and subscriptions are listed already
            starting.store.after_list = None
            await a.registry.create_topic(TOPIC, TopicConfig())
            await subscribe(a)
            subscription = a.registry.subscription(TOPIC, "billing")
            topic_id = a.registry.topic(TOPIC).topic_id
            await a.registry.consumers.save(consumer(topic_id, subscription.subscription_id))

    starting.store.after_list = meanwhile
    await starting.start()
    assert len(await a.store.list(records.CONSUMERS)) == 1
    await starting.catch_up()
    assert len(starting.registry.consumers._by_id) == 1
    await starting.close()


async def test_a_start_removes_consumers_whose_subscription_is_gone(members: list[Member]) -> None:
    a, _ = members
    await a.registry.create_topic(TOPIC, TopicConfig())
    key = records.consumer_key(a.registry.topic(TOPIC).topic_id, 77, 5)
    value = pack(consumer(a.registry.topic(TOPIC).topic_id, 77))
    await a.store.transact([], [Put(key, value)])
    starting = Member(a.store._store)
    await starting.start()
    assert await a.store.get(key) is None
    await starting.close()


async def test_a_consumer_that_another_broker_serves_keeps_its_record(members: list[Member]) -> None:
    a, b = members
    await a.registry.create_topic(TOPIC, TopicConfig())
    await subscribe(a)
    subscription = a.registry.subscription(TOPIC, "billing")
    number = await a.registry.consumers.save(consumer(a.registry.topic(TOPIC).topic_id, subscription.subscription_id))
    await b.catch_up()
    assert b.registry.consumers.find(number) is not None, "its id works at every broker"
    b.store.hold()
    a.registry.consumers.live.add(number)
    await a.registry.consumers.note_live()
    await b.registry.consumers.remove_unused()  # has not heard of that
    assert len(await a.store.list(records.CONSUMERS)) == 1


async def test_ledgers_of_a_topic_that_was_created_meanwhile_are_not_lost(members: list[Member]) -> None:
    a, b = members
    b.store.hold()
    record = await a.registry.create_topic(TOPIC, TopicConfig())
    ledger = pack(LedgerRecord("data", 1))
    await a.store.transact([], [Put(records.ledger_key(record.topic_id, 0, 9), ledger)])
    await a.store.transact([], [Put(records.ledger_key(10**6, 0, 10), ledger)])
    known = await b.registry.known_ledgers()
    assert known.needed == {9}
    assert list(known.lost.values()) == [10**6]


@pytest.mark.parametrize("seed", range(8))
async def test_after_random_operations_at_three_brokers_all_memories_equal_the_store(tmp_path: Path, seed: int) -> None:
    async with open_members(tmp_path, 3) as members:
        await act_at_random(seed, members, rounds=12)
        await check_equal(members)
