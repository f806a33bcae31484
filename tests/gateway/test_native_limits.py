"""Policies, access modes, growth and non-reliable topics over the native listener."""

import asyncio
from typing import Any

import pytest
from native_peer import TOPIC, Peer, neighbour, one_batch, open_listener

from pydanube.codec.batch import Batch
from pydanube.codec.native import frames, requests
from pydanube.codec.native.frames import FrameKind
from pydanube.gateway.publish_memory import PauseReason
from pydanube.model.errors import Full, Invalid, NotFound, Refused, StaleEpoch, Unavailable
from pydanube.model.policies import Policies, PolicyReport
from pydanube.model.positions import Position
from pydanube.operations import namespaces, topics


def exclusive(**identity: int) -> requests.OpenProducer:
    return requests.OpenProducer(topic=TOPIC, partition=0, access="exclusive", **identity)


async def test_policies_are_set_and_read_on_topics_and_namespaces(peer, topic):
    asked = namespaces.SetPolicies(target="default", changes={"ttl_s": 60, "producers_max": 5})
    report = await peer.request(asked, PolicyReport)
    assert report.own == Policies(ttl_s=60, producers_max=5)
    asked = namespaces.SetPolicies(target=TOPIC, changes={"producers_max": 1, "backlog_action": 1})
    await peer.request(asked, PolicyReport)
    report = await peer.request(namespaces.GetPolicies(target=TOPIC), PolicyReport)
    assert (report.own.producers_max, report.own.ttl_s) == (1, None)
    assert (report.effective.producers_max, report.effective.ttl_s) == (1, 60)
    for target, error in (("/default", Invalid), ("/default/unknown", NotFound), ("unknown", NotFound)):
        with pytest.raises(error):
            await peer.request(namespaces.GetPolicies(target=target), PolicyReport)


async def test_a_producer_whose_connection_is_gone_does_not_fill_the_limit(native, peer, topic):
    limits = {"producers_max": 1, "consumers_max": 1}
    await peer.request(namespaces.SetPolicies(target=TOPIC, changes=limits), PolicyReport)
    for _ in range(3):
        async with await Peer.greet(native) as other:
            await other.open_producer()
            await other.subscribe("billing")
            with pytest.raises(Full, match="producers_max"):
                await peer.open_producer()
            with pytest.raises(Full, match="consumers_max"):
                await peer.subscribe("other")
            session = await native.session_of(other)
        await native.until(lambda session=session: session.is_closed)
    await peer.open_producer()
    await peer.subscribe("other")


async def test_exclusive_access_ends_with_its_connection_and_fences_for_good(native, peer, topic):
    shared = await peer.open_producer()
    async with await Peer.greet(native) as other:
        holder = await other.request(exclusive(), requests.ProducerOpened)
        with pytest.raises(Refused, match="exclusive access"):
            await peer.open_producer()
        peer.publish(shared.handle, one_batch(shared))
        with pytest.raises(StaleEpoch):
            await peer.receive(FrameKind.PUBLISHED)
        session = await native.session_of(other)
    await native.until(lambda: session.is_closed)
    again = await peer.request(
        exclusive(producer_id=holder.producer_id, producer_epoch=holder.producer_epoch), requests.ProducerOpened
    )
    peer.publish(again.handle, one_batch(again))
    await peer.receive(FrameKind.PUBLISHED)
    back = requests.OpenProducer(
        topic=TOPIC, partition=0, producer_id=shared.producer_id, producer_epoch=shared.producer_epoch
    )
    with pytest.raises(StaleEpoch):
        await peer.request(back, requests.ProducerOpened)


async def test_a_grown_topic_is_seen_by_lookup(peer):
    await peer.request(topics.CreateTopic(topic=TOPIC, partitions=1), requests.Done)
    await peer.request(topics.GrowTopic(topic=TOPIC, partitions=3), requests.Done)
    route = await peer.request(topics.Lookup(topic=TOPIC), topics.Route)
    assert [one.index for one in route.partitions] == [0, 1, 2]
    with pytest.raises(Refused, match="none can be taken away"):
        await peer.request(topics.GrowTopic(topic=TOPIC, partitions=2), requests.Done)


async def test_a_non_reliable_topic_delivers_to_whoever_has_credit(peer):
    await peer.request(topics.CreateTopic(topic=TOPIC, reliable=False), requests.Done)
    route = await peer.request(topics.Lookup(topic=TOPIC), topics.Route)
    assert not route.reliable
    producer, consumer = await peer.open_producer(), await peer.subscribe("live")
    unheard = peer.publish(producer.handle, one_batch(producer, sequence=0))
    assert (await peer.receive(FrameKind.PUBLISHED)).correlation == unheard
    peer.credit(consumer.handle, 3, 1 << 20)
    peer.publish(producer.handle, one_batch(producer, sequence=3))
    kinds = [await peer.receive(FrameKind.PUBLISHED, FrameKind.DELIVER) for _ in range(2)]
    (delivery,) = [frame for frame in kinds if frame.kind is FrameKind.DELIVER]
    assert Batch.open(delivery.body, stamped=True).base_offset == 3
    peer.ack(consumer.handle, (3, 6), correlation=99)
    assert (await peer.receive(FrameKind.RESPONSE)).correlation == 99
    fetch = requests.Fetch(topic=TOPIC, partition=0, start=Position("earliest"))
    peer.write(frames.encode(FrameKind.FETCH, requests.encode(fetch), 100))
    assert "not reliable" in (await peer.error(correlation=100)).message


async def test_a_publish_past_the_rate_is_answered_later_and_the_window_bounds_what_waits(native, peer, topic):
    rate = {"publish_messages_per_s": 20}
    await peer.request(namespaces.SetPolicies(target=TOPIC, changes=rate), PolicyReport)
    producer = await peer.open_producer()
    sent = [peer.publish(producer.handle, one_batch(producer, sequence=n * 3)) for n in range(8)]
    session = await native.session_of(peer)
    await native.until(lambda: session.in_flight >= 5)
    answered = [(await peer.receive(FrameKind.PUBLISHED)).correlation for _ in sent]
    assert answered == sent


async def test_publishers_that_a_rate_holds_back_leave_room_for_the_others() -> None:
    async with open_listener(pending_publish_bytes_max=120_000) as there, neighbour(there) as working:
        async with await Peer.greet(there) as peer:
            await peer.create_topic()
            rate = {"publish_messages_per_s": 1}
            await peer.request(namespaces.SetPolicies(target=TOPIC, changes=rate), PolicyReport)
        hogs = [await Peer.greet(there) for _ in range(5)]
        for hog in hogs:
            producer = await hog.open_producer()
            for n in range(30):
                hog.publish(producer.handle, one_batch(producer, payload_bytes=1_000, sequence=n * 3))
        sessions = [await there.session_of(hog) for hog in hogs]
        await there.until(lambda: all(session._pause_reasons & PauseReason.MEMORY for session in sessions))
        before = working.rounds
        await there.until(lambda: working.rounds > before + 20)
        assert all(session._pause_reasons & PauseReason.MEMORY for session in sessions)
        assert there.server._resources.door.publish_memory.used_bytes < 60_000 + 6 * 4_000
        for hog in hogs:
            hog.close()


async def test_a_listener_that_closes_does_not_wait_for_a_rate(native, peer, topic):
    rate = {"publish_messages_per_s": 1}
    await peer.request(namespaces.SetPolicies(target=TOPIC, changes=rate), PolicyReport)
    producer = await peer.open_producer()
    stored = peer.publish(producer.handle, one_batch(producer, count=100, sequence=0))
    late = peer.publish(producer.handle, one_batch(producer, sequence=100))
    assert (await peer.receive(FrameKind.PUBLISHED)).correlation == stored
    async with asyncio.timeout(60):
        closing = asyncio.ensure_future(native.server.close(600))
        await peer.receive(FrameKind.GOAWAY)
        assert isinstance(await peer.error(correlation=late), Unavailable)
        await closing


async def test_a_publisher_that_is_held_back_and_goes_away_gives_up_its_subscription() -> None:
    async with (
        open_listener(pending_publish_bytes_max=120_000, keep_alive_ms=1_000) as there,
        await Peer.greet(there) as peer,
    ):
        await peer.create_topic()
        rate = {"publish_messages_per_s": 1}
        await peer.request(namespaces.SetPolicies(target=TOPIC, changes=rate), PolicyReport)
        gone = await Peer.greet(there)
        await gone.subscribe("billing")
        producer = await gone.open_producer()
        for n in range(30):
            gone.publish(producer.handle, one_batch(producer, payload_bytes=1_000, sequence=n * 3))
        session = await there.session_of(gone)
        await there.until(lambda: bool(session._pause_reasons & PauseReason.MEMORY))
        gone.close()
        await there.until(lambda: session.is_closed)
        await peer.subscribe("billing")


async def test_many_messages_given_back_at_once_leave_others_their_turn(native, peer, topic):
    consumer = await peer.subscribe("billing")
    attached = (await native.session_of(peer)).consumers[consumer.handle]
    give_back, turns, taken = attached.nack, 0, list[int]()

    def turn() -> None:
        nonlocal turns
        turns += 1
        asyncio.get_running_loop().call_soon(turn)

    def observed(ranges: list[tuple[int, int]], *how: Any) -> None:
        taken.append(turns)
        give_back(ranges, *how)

    attached.nack = observed  # type: ignore[method-assign]
    turn()
    nack = frames.encode(FrameKind.NACK, requests.encode(requests.Nack(consumer.handle, [(0, 10_000)])))
    peer.write(nack * 5 + frames.encode(FrameKind.PING, correlation=7))
    await peer.receive(FrameKind.PONG)
    assert len(taken) == len(set(taken)) == 5
