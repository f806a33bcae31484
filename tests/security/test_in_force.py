"""A change of the rules reaches what is open: a revoked producer is fenced, a revoked consumer is detached."""

from __future__ import annotations

import asyncio

import pytest
from access_world import ROOT, SUBSCRIPTION, TOPIC, NoSink, give, publish

from pydanube.broker import Attachment
from pydanube.broker.cluster.topic_addresses import Place
from pydanube.core.access import Action, Principal
from pydanube.model.errors import Denied
from pydanube.model.names import TopicAddress
from pydanube.model.positions import LATEST, Position
from pydanube.model.topics import SubscriptionType
from pydanube.operations.subscriptions import ListConsumers
from waiting import until

PRODUCER, CONSUMER = Principal("producer"), Principal("consumer")


async def reviewed(world) -> None:
    """Wait until the review that the last change has started is over."""
    await until(lambda: not world.broker._review.is_running)


async def attach(world, principal, sink, name="c"):
    attachment = Attachment(SUBSCRIPTION, name, SubscriptionType.SHARED)
    return await world.broker.subscriptions.subscribe(principal, TOPIC, 0, attachment, sink)


async def test_a_revoked_producer_is_fenced_and_frees_the_topic(world):
    world.producer.close()
    producer = await world.broker.open_producer(PRODUCER, TOPIC, 0, "", 0, 0, "exclusive")
    publish(world.broker, PRODUCER, producer)
    give(world.rules, PRODUCER, "monitor")
    await reviewed(world)
    assert isinstance(producer.fenced, Denied)
    give(world.rules, PRODUCER, "producer")  # the right is back; the producer must be opened again
    with pytest.raises(Denied, match="any more"):
        publish(world.broker, PRODUCER, producer)
    await world.broker.open_producer(ROOT, TOPIC, 0, "", 0, 0)  # nobody has the topic exclusively any more


async def test_a_revoked_producer_is_refused_before_the_review(world):
    producer = await world.broker.open_producer(PRODUCER, TOPIC, 0, "", 0, 0)
    give(world.rules, PRODUCER, "monitor")
    with pytest.raises(Denied):
        publish(world.broker, PRODUCER, producer)


async def test_a_revoked_shared_producer_is_fenced(world):
    address = TopicAddress.parse(str(TOPIC))
    shared = await world.broker.shared_producers.open(PRODUCER, address, Place(TOPIC, 0), "p")
    give(world.rules, PRODUCER, "reader")
    await reviewed(world)
    assert not shared.is_open


async def test_a_revoked_consumer_is_detached_and_others_stay(world):
    sink, other = NoSink(), NoSink()
    await attach(world, CONSUMER, sink)
    await attach(world, ROOT, other, "root")
    give(world.rules, CONSUMER, "reader")
    await reviewed(world)
    assert isinstance(sink.error, Denied) and other.error is None
    attached = world.broker.subscriptions.consumers(ListConsumers(topic=TOPIC)).consumers
    assert [name for _, name in attached] == ["root"]


async def test_a_consumer_whose_right_comes_from_another_binding_stays(world):
    sink = NoSink()
    await attach(world, CONSUMER, sink)
    give(world.rules, CONSUMER, "namespace-admin")
    await reviewed(world)
    assert sink.error is None


async def test_many_changes_in_one_turn_are_reviewed_together(world):
    await attach(world, CONSUMER, NoSink())
    asked = 0
    allows = world.rules.allows

    def counted(principal: Principal, action: Action, resource: str) -> bool:
        nonlocal asked
        asked += principal == CONSUMER
        return allows(principal, action, resource)

    world.rules.allows = counted  # type: ignore[method-assign]
    for _ in range(1000):
        give(world.rules, Principal("somebody"), "reader")
    await reviewed(world)
    assert asked == 1


async def test_newer_credentials_of_a_consumer_count(world):
    sink = NoSink()
    member = Principal("guest", groups=("ops",))
    give(world.rules, Principal("ops", "group"), "consumer")
    consumer = await attach(world, member, sink)
    consumer.renew(Principal("guest"))
    give(world.rules, Principal("somebody"), "reader")
    await reviewed(world)
    assert isinstance(sink.error, Denied)


async def test_a_fetch_that_waits_delivers_nothing_after_the_right_was_taken_away(world):
    """Streams of a topic wait in a fetch for most of their time; the right is asked for when it ends, too."""
    end = await world.broker.topics.find_offset(ROOT, TOPIC, 0, LATEST)
    reader = Principal("reader")
    fetching = asyncio.create_task(world.broker.fetch(reader, TOPIC, 0, Position("offset", end), 1000, 60_000))
    (partition,) = [one for one in world.broker._partitions if one.name == str(TOPIC)]
    await asyncio.sleep(0)
    give(world.rules, reader, "nobody")
    publish(world.broker, ROOT, world.producer)
    with pytest.raises(Denied, match="reader may not read"):
        await asyncio.wait_for(fetching, 60)
    assert partition.stream.end_offset > end
