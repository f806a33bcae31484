"""What belongs to the principal that made it: subscriptions, staged queries, ids and names of producers."""

from __future__ import annotations

import pytest
from access_world import (
    LETTERS,
    QUERY,
    ROOT,
    SUBJECT,
    SUBSCRIPTION,
    TOPIC,
    NoSink,
    World,
    commit,
    give,
    publish,
    stage,
)

from pydanube.broker import Attachment
from pydanube.core.access import ANONYMOUS, Action, Principal
from pydanube.model.errors import Denied
from pydanube.model.failure import FailurePolicy
from pydanube.model.names import TopicAddress, TopicName
from pydanube.model.positions import EARLIEST, LATEST
from pydanube.model.schemas import Binding
from pydanube.model.security import Binding as RoleBinding
from pydanube.model.security import BoundSubject, ResourcePattern
from pydanube.model.topics import SubscriptionType, TopicConfig
from pydanube.operations.subscriptions import Seek

CONSUMER, PRODUCER = Principal("consumer"), Principal("producer")


def bind(world: World, who: str, role: str, resource: str) -> None:
    pattern = ResourcePattern.parse(resource)
    world.rules.set_binding(f"{who}-{resource}", RoleBinding("", BoundSubject.parse(who), (role,), pattern))


async def test_who_created_a_subscription_seeks_and_deletes_it(world):
    subscriptions = world.broker.subscriptions
    await subscriptions.create(CONSUMER, TOPIC, "own", SubscriptionType.SHARED, EARLIEST)
    await subscriptions.seek(CONSUMER, Seek(topic=TOPIC, subscription="own", position=LATEST))
    await subscriptions.set_unacked_max(CONSUMER, TOPIC, "own", 3)
    with pytest.raises(Denied):
        await subscriptions.seek(CONSUMER, Seek(topic=TOPIC, subscription=SUBSCRIPTION, position=LATEST))
    give(world.rules, CONSUMER, "monitor")  # having created it is nothing without consume
    with pytest.raises(Denied):
        await subscriptions.delete(CONSUMER, TOPIC, "own")
    give(world.rules, CONSUMER, "consumer")
    await subscriptions.delete(CONSUMER, TOPIC, "own")


async def test_a_subscription_made_without_authentication_is_deleted_by_those_who_may_delete(world):
    give(world.rules, ANONYMOUS, "consumer")
    await world.broker.subscriptions.create(ANONYMOUS, TOPIC, "old", SubscriptionType.SHARED, EARLIEST)
    for principal in (ANONYMOUS, CONSUMER):
        with pytest.raises(Denied):
            await world.broker.subscriptions.delete(principal, TOPIC, "old")
    await world.broker.subscriptions.delete(Principal("namespace-admin"), TOPIC, "old")


async def test_an_attached_consumer_seeks_its_subscription_and_does_not_delete_it(world):
    attachment = Attachment(SUBSCRIPTION, "c", SubscriptionType.SHARED)
    consumer = await world.broker.subscriptions.subscribe(CONSUMER, TOPIC, 0, attachment, NoSink())
    await world.broker.subscriptions.seek(CONSUMER, Seek(topic=TOPIC, subscription=SUBSCRIPTION, position=LATEST))
    with pytest.raises(Denied):
        await world.broker.subscriptions.delete(CONSUMER, TOPIC, SUBSCRIPTION)
    consumer.close()
    with pytest.raises(Denied):
        await world.broker.subscriptions.seek(CONSUMER, Seek(topic=TOPIC, subscription=SUBSCRIPTION, position=LATEST))


async def test_a_right_on_one_subscription_shows_no_other_one(world):
    broker, guest = world.broker, Principal("guest")
    await broker.subscriptions.create(ROOT, TOPIC, "secret", SubscriptionType.SHARED, EARLIEST)
    bind(world, "guest", "consumer", f"{TOPIC}/{SUBSCRIPTION}")
    assert await broker.topics.names(guest) == [str(TOPIC)]
    assert await broker.namespaces.names(guest) == ["default"]
    assert await broker.subscriptions.names(guest, TOPIC) == [SUBSCRIPTION]
    assert (await broker.topics.describe(guest, TOPIC)).subscriptions == [SUBSCRIPTION]
    (partition,) = (await broker.statistics.topic(guest, TOPIC)).partitions
    assert [one.name for one in partition.subscriptions] == [SUBSCRIPTION]
    ((summary,),) = [chunk async for chunk in broker.statistics.all(guest)]
    assert ([one.name for one in summary.subscriptions], summary.subscription_count) == ([SUBSCRIPTION], 1)
    for refused in (
        broker.subscriptions.describe(guest, TOPIC, "secret"),
        broker.subscriptions.create(guest, TOPIC, "third", SubscriptionType.SHARED, EARLIEST),
        broker.topics.describe(guest, LETTERS),
    ):
        with pytest.raises(Denied):
            await refused


@pytest.mark.parametrize("way", ["create", "subscribe", "set_failure_policy"])
async def test_a_dead_letter_topic_needs_what_the_broker_does_for_the_caller(world, way):
    await world.broker.namespaces.create(ROOT, "private")
    await world.broker.topics.create(ROOT, TopicName("private", "there"), TopicConfig())
    subscriptions, numbers = world.broker.subscriptions, iter(range(100))
    await subscriptions.create(CONSUMER, TOPIC, "own", SubscriptionType.SHARED, EARLIEST)

    async def name(topic: str) -> None:
        policy, new = FailurePolicy(redeliveries_max=1, dead_letter_topic=topic), f"s{next(numbers)}"
        if way == "create":
            await subscriptions.create(CONSUMER, TOPIC, new, SubscriptionType.SHARED, EARLIEST, policy)
        elif way == "subscribe":
            attachment = Attachment(new, "c", SubscriptionType.SHARED, failure_policy=policy)
            await subscriptions.subscribe(CONSUMER, TOPIC, 0, attachment, NoSink())
        else:
            await subscriptions.set_failure_policy(CONSUMER, TOPIC, "own", policy)

    with pytest.raises(Denied, match="produce /private/there"):
        await name("/private/there")
    bind(world, "consumer", "producer", "/private")
    await name("/private/there")
    with pytest.raises(Denied, match="create /private/new"):
        await name("/private/new")
    bind(world, "consumer", "namespace-admin", "/private/new")
    await name("/private/new")


async def test_an_attached_consumer_need_not_be_able_to_use_the_dead_letter_topic(world):
    """The policy of a subscription that exists is not changed by a consumer that names one."""
    policy = FailurePolicy(redeliveries_max=1, dead_letter_topic=str(LETTERS))
    attachment = Attachment(SUBSCRIPTION, "c", SubscriptionType.SHARED, failure_policy=policy)
    await world.broker.subscriptions.subscribe(CONSUMER, TOPIC, 0, attachment, NoSink())
    described = await world.broker.subscriptions.describe(ROOT, TOPIC, SUBSCRIPTION)
    assert described.failure_policy.dead_letter_topic == ""


async def test_a_staged_query_belongs_to_the_principal_that_made_it(world):
    broker, other = world.broker, Principal("other")
    give(world.rules, other, "producer")
    await stage(broker, PRODUCER, "mine")
    for principal, names in ((PRODUCER, ["mine"]), (other, []), (ROOT, ["mine", QUERY])):
        assert [one.query for one in (await broker.staging.queries(principal, "", 10)).queries] == names
    for refused in (stage(broker, other, "mine"), commit(broker, other), broker.staging.forget(other, "mine")):
        with pytest.raises(Denied):
            await refused
    await broker.staging.forget(PRODUCER, "mine")
    await stage(broker, other, "mine")  # the name is free again


async def test_who_may_publish_nothing_makes_no_query(world):
    await world.broker.staging.forget(ROOT, QUERY)
    with pytest.raises(Denied):
        await commit(world.broker, CONSUMER)
    await commit(world.broker, PRODUCER)


async def test_a_producer_id_is_of_use_to_nobody_else(world):
    broker, other = world.broker, Principal("other")
    give(world.rules, other, "producer")
    opened = await broker.open_producer(PRODUCER, TOPIC, 0, "", 0, 0)
    again = await broker.open_producer(PRODUCER, TOPIC, 0, "", opened.producer_id, opened.producer_epoch)
    assert again.producer_id == opened.producer_id
    unmarked = opened.producer_id & (1 << 34) - 1
    for number in (opened.producer_id, unmarked, world.producer.producer_id):
        with pytest.raises(Denied):
            await broker.open_producer(other, TOPIC, 0, "", number, 0)


async def test_the_name_of_a_producer_belongs_to_who_opened_it_first(world):
    broker, other, admin = world.broker, Principal("other"), Principal("namespace-admin")
    give(world.rules, other, "producer")
    first = await broker.open_producer(PRODUCER, TOPIC, 0, "writer", 0, 0)
    for number in (0, first.producer_id):
        with pytest.raises(Denied, match="belongs to another principal"):
            await broker.open_producer(other, TOPIC, 0, "writer", number, first.producer_epoch)
    assert first.fenced is None
    taken = await broker.open_producer(admin, TOPIC, 0, "writer", 0, 0)
    assert taken.producer_id == first.producer_id and first.fenced is not None
    with pytest.raises(Denied):
        await broker.open_producer(PRODUCER, TOPIC, 0, "writer", 0, 0)


async def test_two_principals_with_one_name_have_two_shared_producers(world):
    from pydanube.broker.cluster.topic_addresses import Place

    shared, other = world.broker.shared_producers, Principal("other")
    give(world.rules, other, "producer")
    address, place = TopicAddress.parse(str(TOPIC)), Place(TOPIC, 0)
    one, two = [await shared.open(who, address, place, "p") for who in (PRODUCER, other)]
    assert one.producer is not two.producer
    with pytest.raises(Denied):
        shared.find(other, one.producer.producer_id, str(TOPIC), "p")
    publish(world.broker, PRODUCER, one.producer)


async def test_a_subject_is_seen_by_those_who_see_a_topic_that_is_bound_to_it(world):
    schemas, guest = world.broker.schemas, Principal("guest")
    bind(world, "guest", "reader", str(TOPIC))
    with pytest.raises(Denied):
        await schemas.get(guest, SUBJECT)
    assert await schemas.subjects(guest) == []
    await schemas.bind(ROOT, TOPIC, Binding(SUBJECT))
    assert (await schemas.get(guest, SUBJECT)).version == 1
    assert await schemas.subjects(guest) == [SUBJECT]
    assert await schemas.versions_of_global_id(guest, 1) == [(SUBJECT, 1)]
    assert (await schemas.by_global_id(guest, 1)).subject == SUBJECT
    with pytest.raises(Denied):
        await schemas.delete_subject(guest, SUBJECT)
    await schemas.unbind(ROOT, TOPIC)
    with pytest.raises(Denied):
        await schemas.get(guest, SUBJECT)


async def test_binding_a_topic_does_not_show_a_subject_of_others(world):
    bind(world, "lead", "namespace-admin", "/default")
    with pytest.raises(Denied):
        await world.broker.schemas.bind(Principal("lead"), TOPIC, Binding(SUBJECT))


async def test_a_producer_registers_what_is_registered_already(world):
    from access_world import BYTES, STRING

    assert not (await world.broker.schemas.register(PRODUCER, SUBJECT, STRING)).is_new
    with pytest.raises(Denied, match="create schema:orders-value"):
        await world.broker.schemas.register(PRODUCER, SUBJECT, BYTES)


async def test_the_name_of_a_partition_is_covered_by_the_topic(world):
    await world.broker.topics.create(ROOT, TopicName("default", "wide"), TopicConfig(partitions=2))
    bind(world, "guest", "producer", "/default/wide")
    guest, address = Principal("guest"), TopicAddress.parse("/default/wide-part-1")
    assert world.broker.addresses.names(guest, address) == ["/default/wide-part-1"]
    assert (await world.broker.addresses.ensure(guest, address, True)).partition == 1
    with pytest.raises(Denied, match="create /default/wide"):  # growing it takes more
        await world.broker.addresses.ensure(guest, TopicAddress.parse("/default/wide-part-2"), True)


async def test_a_refusal_names_the_address_that_the_caller_gave(world):
    """Whether it is a partition, or a topic of an earlier release, says what exists."""
    address, stranger = TopicAddress.parse("/default/x-part-0"), Principal("stranger")
    with pytest.raises(Denied, match=r"user:stranger may not produce.* /default/x-part-0:"):
        world.broker.addresses.check(stranger, Action.PRODUCE, address)
