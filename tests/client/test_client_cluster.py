"""What a client does when brokers come and go: it learns the others, follows moves, and refuses replaced owners."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from impatient_clock import ImpatientClock
from scripted_brokers import TOPIC, ScriptedBroker, scripted_brokers

import pydanube
from pydanube import Client, Unavailable
from pydanube.client.connection import routing
from pydanube.client.connection.owner_epochs import TOPICS_MAX, OwnerEpochs
from pydanube.client.connection.servers import BrokerAddress
from pydanube.client.consuming import partition_sources
from waiting import until


def url(*brokers: ScriptedBroker) -> str:
    return "danube://" + ",".join(one.address for one in brokers)


def move(owner: ScriptedBroker, brokers: list[ScriptedBroker], epoch: int) -> None:
    """Give the partition to another broker, and let the others know."""
    owner.owns(epoch)
    for one in brokers:
        if one is not owner:
            one.follows(owner)


# -- learned brokers ---------------------------------------------------------------------------------------------------


@pytest.fixture
async def brokers() -> AsyncIterator[list[ScriptedBroker]]:
    async with scripted_brokers(2) as opened:
        yield opened


async def test_a_client_that_was_told_one_broker_goes_on_when_that_one_is_gone() -> None:
    async with scripted_brokers(3) as brokers:
        first, second, third = brokers
        move(second, brokers, 1)
        async with pydanube.connect(url(first)) as client, client.producer(TOPIC) as producer:
            await producer.send(b"one")
            first.stop()
            second.stop()
            third.owns(2)
            assert (await producer.send(b"two")).offset == 0
            assert third.stored == [b"two"]
            third.created = 0
            await client.create_topic("/default/other")
            assert third.created == 1


async def test_listed_brokers_are_asked_before_learned_ones() -> None:
    async with scripted_brokers(3) as brokers:
        first, second, third = brokers
        async with pydanube.connect(url(third)) as client, client.producer(TOPIC) as producer:
            await producer.send(b"one")
            asked = third.lookups
            async with client.producer(TOPIC):
                pass
            assert (third.lookups > asked, first.lookups, second.lookups) == (True, 0, 0)


async def test_each_lookup_replaces_the_learned_brokers_and_they_are_bounded(brokers):
    first, second = brokers
    async with pydanube.connect(url(first)) as client:
        first.brokers = [f"127.0.0.1:{port}" for port in range(1, 1000)]
        await client._brokers.route(TOPIC)
        assert len(client._brokers.known_addresses) == 1 + routing.LEARNED_MAX
        first.brokers = [first.address, second.address, second.address]
        await client._brokers.route(TOPIC, age_max=0.0)
        assert [str(one) for one in client._brokers.known_addresses] == [first.address, second.address]
        first.brokers = []
        await client._brokers.route(TOPIC, age_max=0.0)
        assert len(client._brokers.known_addresses) == 2, "a broker of an earlier release names none"


# -- moves -------------------------------------------------------------------------------------------------------------


async def test_a_partition_that_has_no_owner_is_waited_for(brokers):
    first, second = brokers
    async with pydanube.connect(url(second)) as client, client.producer(TOPIC) as producer:
        await producer.send(b"one")
        first.epoch = 0
        first.owner = second.owner = ""
        sending = asyncio.create_task(producer.send(b"two"))
        await until(lambda: first.refused + second.refused > 2)
        move(second, brokers, 2)
        assert (await sending).offset == 0
        assert second.stored == [b"two"]


@pytest.mark.parametrize("what", ["producer", "consumer", "reader"])
async def test_the_error_after_the_timeout_says_what_the_broker_said(what: str) -> None:
    async with scripted_brokers(1) as brokers:
        (only,) = brokers
        only.epoch, only.owner, only.says = 0, "", "broker 'b2' is away since 12:00"
        async with Client(url(only), clock=ImpatientClock()) as client:
            opened = {
                "producer": lambda: client.producer(TOPIC),
                "consumer": lambda: client.consumer(TOPIC, subscription="billing"),
                "reader": lambda: client.reader(TOPIC, start="latest"),
            }[what]()
            with pytest.raises(Unavailable, match="broker 'b2' is away since 12:00"):
                await opened.open()


async def test_a_request_that_is_sent_once_follows_the_owner_that_refused_it_names(brokers):
    first, second = brokers
    async with pydanube.connect(url(second)) as client:
        await client.create_topic("/default/other")
        assert (first.created, second.created) == (1, 0)


# -- partitions whose broker is away -----------------------------------------------------------------------------------


async def test_a_consumer_that_opens_serves_what_it_has_and_attaches_to_the_rest_when_it_is_back(monkeypatch) -> None:
    monkeypatch.setattr(partition_sources, "PATIENCE_S", 0.05)
    async with scripted_brokers(1) as brokers:
        (only,) = brokers
        only.others = [""]
        async with (
            pydanube.connect(url(only), timeout=5) as client,
            client.consumer(TOPIC, subscription="billing") as consumer,
        ):
            only.deliver(b"served", 1)
            assert (await consumer.receive()).payload == b"served"
            assert only.subscribed == [(TOPIC, 0)]
            assert "1 partitions wait for their broker" in repr(consumer)
            only.others = [only.address]
            await until(lambda: len(only.subscribed) == 2)
            await until(lambda: "wait for" not in repr(consumer))


async def test_a_consumer_of_a_topic_that_is_away_grants_no_credit_for_another_topic_meanwhile() -> None:
    async with scripted_brokers(1) as brokers:
        (only,) = brokers
        only.away, only.says = {"/default/away"}, "broker 'b2' is away since 12:00"
        async with pydanube.connect(url(only), timeout=0.3) as client:
            with pytest.raises(Unavailable, match="s: broker 'b2' is away since 12:00"):
                await client.consumer([TOPIC, "/default/away"], subscription="billing").open()
            assert only.credited == 0
            only.away = set()
            async with client.consumer([TOPIC, "/default/away"], subscription="billing"):
                await until(lambda: only.credited == 2)


# -- replaced owners ---------------------------------------------------------------------------------------------------


async def test_an_ack_of_an_owner_that_was_replaced_does_not_count(brokers):
    first, second = brokers
    async with pydanube.connect(url(first)) as client, client.producer(TOPIC) as producer:
        await producer.send(b"one")
        second.owns(2)  # and the first one does not know it
        async with pydanube.connect(url(second)) as other:
            route = await other._brokers.route(TOPIC)
        client._brokers.epochs.of(TOPIC, 0).accepts(route.partitions[0].epoch)
        await producer.send(b"two")
        assert second.stored == [b"two"], "the first one acked it too, and that was refused"


@pytest.mark.parametrize("route_epoch", [0, 1])
async def test_a_broker_that_was_replaced_is_not_asked_where_the_owner_is(brokers, route_epoch):
    first, second = brokers
    first.route_epoch = route_epoch
    async with pydanube.connect(url(first)) as client:
        second.owns(2)
        client._brokers.epochs.of(TOPIC, 0).accepts(2)
        first.brokers = [first.address, second.address]
        async with client.producer(TOPIC) as producer:
            await producer.send(b"one")
        assert (first.stored, second.stored) == ([], [b"one"])


async def test_advice_to_go_back_to_a_replaced_owner_is_not_followed() -> None:
    async with scripted_brokers(3) as brokers:
        first, second, third = brokers
        async with pydanube.connect(url(second, third)) as client:
            third.owns(2)
            client._brokers.epochs.of(TOPIC, 0).accepts(2)
            async with client.producer(TOPIC) as producer:  # the second one still names the first
                await producer.send(b"one")
            assert (first.stored, third.stored) == ([], [b"one"])


async def test_a_route_without_an_owner_is_not_kept() -> None:
    async with scripted_brokers(1) as brokers:
        (only,) = brokers
        only.epoch, only.owner = 0, ""
        async with pydanube.connect(url(only)) as client:
            await client._brokers.owner(TOPIC, 0)
            asked = only.lookups
            await client._brokers.owner(TOPIC, 0)
            assert only.lookups == asked + 1


async def test_after_advice_to_go_to_an_avoided_broker_the_owner_is_looked_up(brokers):
    first, second = brokers
    move(second, brokers, 2)
    async with pydanube.connect(url(first)) as client:
        await client._brokers.route(TOPIC)
        client._brokers.moved(TOPIC, 0, first.address)
        assert (await client._brokers.route(TOPIC)).partitions[0].owner == first.address
        client._brokers.avoid(BrokerAddress.parse(first.address))
        client._brokers.moved(TOPIC, 0, first.address)
        assert (await client._brokers.route(TOPIC)).partitions[0].owner == second.address


async def test_an_owner_that_was_replaced_is_not_taken_from_a_lookup(brokers):
    first, second = brokers
    async with pydanube.connect(url(first, second)) as client:
        client._brokers.epochs.of(TOPIC, 0).accepts(2)
        assert (await client._brokers.route(TOPIC)).partitions[0].owner == ""
        assert str((await client._brokers.owner(TOPIC, 0)).address) == second.address


async def test_deliveries_of_an_owner_that_was_replaced_are_dropped(brokers):
    first, second = brokers
    async with (
        pydanube.connect(url(first)) as client,
        client.consumer(TOPIC, subscription="billing") as consumer,
    ):
        await until(lambda: first.has_consumers)
        first.deliver(b"one", 1)
        assert (await consumer.receive(timeout=60)).payload == b"one"
        second.owns(2)
        client._brokers.epochs.of(TOPIC, 0).accepts(2)
        first.deliver(b"of a replaced owner", 1)
        await until(lambda: second.has_consumers)
        second.deliver(b"two", 2)
        assert (await consumer.receive(timeout=60)).payload == b"two"


async def test_what_a_replaced_owner_answers_to_a_reader_is_dropped(brokers):
    first, second = brokers
    first.route_epoch = 0  # its lookups do not give it away
    first.stored = [b"one", b"of a replaced owner"]
    second.stored = [b"one", b"two"]
    async with pydanube.connect(url(first)) as client:
        client._brokers.epochs.of(TOPIC, 0).accepts(2)
        second.owns(2)
        async with client.reader(TOPIC, start=0, end=2) as reader:
            assert [message.payload async for message in reader] == [b"one", b"two"]


# -- remembered epochs -------------------------------------------------------------------------------------------------


def test_an_answer_without_an_epoch_is_accepted_and_a_lower_one_is_not() -> None:
    seen = OwnerEpochs().of(TOPIC, 0)
    assert [seen.accepts(epoch) for epoch in (0, 3, 3, 2, 0, 4, 3)] == [True, True, True, False, True, True, False]
    assert "epoch 3" in seen.refusal(3, "broker:1").message
    assert "epoch 4" in seen.refusal(3, "broker:1").message


def test_a_topic_that_was_made_anew_begins_with_low_epochs() -> None:
    epochs = OwnerEpochs()
    seen = epochs.of(TOPIC, 0)
    epochs.use_topic(TOPIC, 1)
    assert seen.accepts(5)
    epochs.use_topic(TOPIC, 1)
    assert not seen.accepts(1)
    epochs.use_topic(TOPIC, 2)
    assert seen.accepts(1)


def test_epochs_of_another_cluster_say_nothing() -> None:
    epochs = OwnerEpochs()
    seen = epochs.of(TOPIC, 0)
    epochs.use_cluster("one")
    assert seen.accepts(5)
    epochs.use_cluster("one")
    assert not seen.accepts(1)
    epochs.use_cluster("two")
    assert seen.accepts(1)


def test_remembered_epochs_are_bounded() -> None:
    epochs = OwnerEpochs()
    first = epochs.of("/default/0", 0)
    for number in range(TOPICS_MAX):
        epochs.of(f"/default/{number}", 0)
    assert epochs.of("/default/0", 0) is first
    epochs.of("/default/more", 0)
    epochs.of("/default/0", 0)
    assert len(epochs._topics) == TOPICS_MAX


async def test_a_client_names_all_brokers_that_it_knows_for_the_next_one() -> None:
    async with scripted_brokers(3) as brokers:
        first, second, third = brokers
        async with pydanube.connect(url(second)) as client:
            assert client.servers == url(second)
            await client._brokers.route(TOPIC)
            assert client.servers == url(second, first, third)
