"""What a client that behaves gets from the native listener, frame by frame."""

from __future__ import annotations

import asyncio
import typing

import msgspec
import pytest
from native_peer import TOPIC, Between, Peer, one_batch, open_listener

from pydanube.broker.handlers import HANDLERS
from pydanube.codec import batch as batches
from pydanube.codec.native import frames, requests
from pydanube.codec.native.frames import FrameKind
from pydanube.core.access import ANONYMOUS
from pydanube.gateway.native import requests as dispatch
from pydanube.model.errors import (
    AlreadyExists,
    Corrupt,
    DanubeError,
    Full,
    Invalid,
    NotFound,
    Refused,
    Unauthenticated,
    Unavailable,
)
from pydanube.model.limits import FRAME_BYTES_MAX
from pydanube.model.names import TopicName
from pydanube.model.paging import NamePage
from pydanube.model.positions import Position
from pydanube.model.topics import BrokerDescription, SubscriptionDescription
from pydanube.operations import brokers, namespaces, subscriptions, topics
from pydanube.runtime.clock import ManualClock


def test_every_request_of_the_protocol_is_answered_by_a_function() -> None:
    assert {*dispatch._TABLE, *HANDLERS} == set(typing.get_args(requests.AnyRequest))


# -- handshake ---------------------------------------------------------------------------------------------------------


async def test_a_client_is_welcomed_with_what_it_has_to_know() -> None:
    async with (
        open_listener(publish_window_bytes=1_234_567, keep_alive_ms=4_000) as there,
        await Peer.greet(there) as peer,
    ):
        assert peer.welcome is not None
        assert peer.welcome.version == 1
        assert peer.welcome.broker
        assert peer.welcome.frame_bytes_max == FRAME_BYTES_MAX
        assert peer.welcome.publish_window_bytes == 1_234_567
        assert peer.welcome.keep_alive_ms == 4_000


async def test_requests_may_follow_hello_without_waiting_for_welcome(native):
    async with await Peer.connect(native) as peer:
        hello = frames.encode(FrameKind.HELLO, requests.encode(requests.Hello()))
        request = frames.encode(FrameKind.REQUEST, requests.encode(namespaces.ListNamespaces()), 5)
        peer.write(frames.PREAMBLE + hello + request)
        await peer.receive(FrameKind.WELCOME)
        answer = await peer.receive(FrameKind.RESPONSE)
        assert requests.decode(answer.head, NamePage).names == ["default"]


async def test_a_version_that_is_not_spoken_is_refused_with_both_ranges(native):
    with pytest.raises(Refused, match=r"versions 2\.\.9 are not spoken here: this broker speaks 1\.\.1"):
        await Peer.greet(native, requests.Hello(version_min=2, version_max=9))


async def test_a_newer_client_that_still_speaks_our_version_is_welcomed_with_ours(native):
    async with await Peer.greet(native, requests.Hello(version_min=1, version_max=9)) as peer:
        assert peer.welcome is not None and peer.welcome.version == 1


async def test_credentials_are_refused_while_there_is_nobody_to_check_them(native):
    with pytest.raises(Unauthenticated, match="'token' is not offered"):
        await Peer.greet(native, requests.Hello(auth_scheme="token", auth_data=b"secret"))


# -- requests ----------------------------------------------------------------------------------------------------------


async def test_topics_namespaces_and_subscriptions_are_administered(peer):
    await peer.request(namespaces.CreateNamespace(namespace="shop"), requests.Done)
    await peer.request(topics.CreateTopic(topic=TopicName.parse("/shop/orders"), partitions=2), requests.Done)
    with pytest.raises(AlreadyExists):
        await peer.request(topics.CreateTopic(topic=TopicName.parse("/shop/orders"), partitions=2), requests.Done)
    assert (await peer.request(topics.ListTopics(namespace="shop"), NamePage)).names == ["/shop/orders"]
    assert (await peer.request(namespaces.ListNamespaces(), NamePage)).names == ["default", "shop"]
    described = await peer.request(topics.DescribeTopic(topic=TopicName.parse("/shop/orders")), topics.Topic)
    assert [one.index for one in described.partition_infos] == [0, 1]
    made = subscriptions.CreateSubscription(topic=TopicName.parse("/shop/orders"), subscription="billing")
    await peer.request(made, requests.Done)
    listed = await peer.request(subscriptions.ListSubscriptions(topic=TopicName.parse("/shop/orders")), NamePage)
    assert listed.names == ["billing"]
    billing = subscriptions.DescribeSubscription(topic=TopicName.parse("/shop/orders"), subscription="billing")
    assert len((await peer.request(billing, SubscriptionDescription)).partitions) == 2
    moved = subscriptions.Seek(
        topic=TopicName.parse("/shop/orders"), subscription="billing", position=Position("earliest")
    )
    assert (await peer.request(moved, topics.Positions)).positions == [(0, 0), (1, 0)]
    pending = subscriptions.ListPending(
        topic=TopicName.parse("/shop/orders"), subscription="billing", partition=0, messages_max=250
    )
    assert (await peer.request(pending, subscriptions.PendingMessages)).messages == []
    with pytest.raises(Invalid, match="messages_max=251 is out of range"):
        await peer.request(msgspec.structs.replace(pending, messages_max=251), subscriptions.PendingMessages)
    settle = subscriptions.Settle(topic=TopicName.parse("/shop/orders"), subscription="billing")
    assert (await peer.request(settle, subscriptions.Settled)).messages == 0
    gone = subscriptions.DeleteSubscription(topic=TopicName.parse("/shop/orders"), subscription="billing")
    await peer.request(gone, requests.Done)
    await peer.request(topics.DeleteTopic(topic=TopicName.parse("/shop/orders")), requests.Done)
    await peer.request(namespaces.DeleteNamespace(namespace="shop"), requests.Done)
    about = await peer.request(brokers.DescribeBroker(), BrokerDescription)
    assert (about.state, about.topics) == ("ok", 0)


async def test_a_lookup_names_the_owner_of_each_partition(native, peer):
    route = await peer.request(topics.Lookup(topic=TOPIC, create=True), topics.Route)
    assert (route.topic, route.partitioned) == (TOPIC, False)
    assert [(one.index, one.owner) for one in route.partitions] == [(0, native.broker.address)]
    with pytest.raises(NotFound):
        await peer.request(topics.Lookup(topic=TopicName.parse("/default/unknown")), topics.Route)


@pytest.mark.parametrize(
    ("request_", "complaint"),
    [
        (topics.Lookup(topic="orders"), "not a full name"),
        (topics.CreateTopic(topic=TOPIC, ack_level="sure"), "ack level 'sure' is unknown"),
        (topics.CreateTopic(topic=TOPIC, partitions=-1), "out of range"),
        (namespaces.CreateNamespace(namespace="a/b"), "not a name"),
        (requests.Subscribe(topic=TOPIC, partition=0, subscription="s", consumer=""), "1 to 200 characters"),
    ],
)
async def test_a_request_that_makes_no_sense_is_refused_and_the_connection_lives(peer, request_, complaint):
    with pytest.raises(Invalid, match=complaint):
        await peer.request(request_, requests.Done)
    await peer.request(namespaces.ListNamespaces(), NamePage)


async def test_an_operation_of_a_later_release_is_refused_by_name_and_the_connection_lives(peer):
    peer.send(FrameKind.REQUEST, b"\x81\xa2op\xa7unheard", 3)
    error = await peer.error(correlation=3)
    assert isinstance(error, Invalid) and "unheard" in error.message
    await peer.request(namespaces.ListNamespaces(), NamePage)


async def test_requests_are_answered_as_they_finish_and_find_their_way_by_correlation() -> None:
    class SlowLookup(Between):
        def __init__(self, broker: object) -> None:
            super().__init__(broker)
            self.go = asyncio.Event()

        async def lookup(self, *arguments: object) -> object:
            await self.go.wait()
            return await self._broker.topics.lookup(*arguments)

    async with open_listener(wrap=SlowLookup) as there, await Peer.greet(there) as peer:
        peer.send(FrameKind.REQUEST, requests.encode(topics.Lookup(topic=TOPIC, create=True)), 1)
        peer.send(FrameKind.REQUEST, requests.encode(namespaces.ListNamespaces()), 2)
        assert (await peer.receive(FrameKind.RESPONSE)).correlation == 2
        there.broker.go.set()
        assert (await peer.receive(FrameKind.RESPONSE)).correlation == 1


async def test_a_mistake_of_the_broker_is_an_error_of_that_request_only() -> None:
    class Broken(Between):
        async def lookup(self, *_: object) -> object:
            raise RuntimeError("secret detail")

        def publish(self, *_: object) -> object:
            raise RuntimeError("secret detail")

        async def fetch(self, *_: object, **__: object) -> object:
            raise RuntimeError("secret detail")

    async with open_listener(wrap=Broken) as there, await Peer.greet(there) as peer:
        with pytest.raises(DanubeError, match="internal error in request: RuntimeError"):
            await peer.request(topics.Lookup(topic=TOPIC), topics.Route)
        await peer.create_topic()
        producer = await peer.request(requests.OpenProducer(topic=TOPIC, partition=0), requests.ProducerOpened)
        asked = peer.publish(producer.handle, one_batch(producer))
        error = await peer.error(asked)
        assert error.code == DanubeError.code and "secret" not in error.message
        peer.send(FrameKind.FETCH, requests.encode(requests.Fetch(TOPIC, 0, Position("earliest"))), 99)
        assert "internal error in fetch" in (await peer.error(99)).message
        (session,) = there.sessions
        assert session.in_flight == 0


# -- publishing --------------------------------------------------------------------------------------------------------


async def test_publishes_are_pipelined_and_each_is_answered(peer, topic):
    producer = await peer.open_producer()
    asked = [peer.publish(producer.handle, one_batch(producer, sequence=n * 3)) for n in range(50)]
    for index, correlation in enumerate(asked):
        frame = await peer.receive(FrameKind.PUBLISHED)
        assert frame.correlation == correlation
        handle, base_offset, epoch = frames.unpack_head(frame.head, frames.PUBLISHED, FrameKind.PUBLISHED)
        assert (handle, base_offset, epoch) == (producer.handle, index * 3, producer.owner_epoch)


async def test_a_batch_sent_again_is_answered_as_a_duplicate_with_its_first_offset(peer, topic):
    producer = await peer.open_producer()
    batch = one_batch(producer, sequence=0)
    peer.publish(producer.handle, batch)
    first = await peer.receive(FrameKind.PUBLISHED)
    peer.publish(producer.handle, batch)
    again = await peer.receive(FrameKind.PUBLISHED)
    assert (first.flags, again.flags) == (0, frames.FLAG_DUPLICATE)
    assert bytes(first.head) == bytes(again.head)


async def test_a_batch_that_is_not_one_is_refused_and_the_connection_lives(peer, topic):
    producer = await peer.open_producer()
    for bad in (b"", b"no batch at all", bytes(200)):
        asked = peer.publish(producer.handle, bytearray(bad))
        assert isinstance(await peer.error(asked), (Corrupt, Invalid))
    damaged = one_batch(producer)
    damaged[-9] ^= 1
    assert isinstance(await peer.error(peer.publish(producer.handle, damaged)), Corrupt)
    peer.publish(producer.handle, one_batch(producer))
    await peer.receive(FrameKind.PUBLISHED)


async def test_an_unknown_handle_is_not_found_on_its_correlation(peer):
    asked = peer.publish(77, one_batch())
    assert isinstance(await peer.error(asked), NotFound)
    peer.ack(77, (0, 1), correlation=5)
    assert isinstance(await peer.error(5), NotFound)
    peer.ack(77, (0, 1))
    peer.credit(77, 10, 10)
    with pytest.raises(NotFound):
        await peer.request(requests.CloseProducer(handle=77), requests.Done)
    with pytest.raises(NotFound):
        await peer.request(requests.CloseConsumer(handle=77), requests.Done)


async def test_a_closed_producer_publishes_no_more(peer, topic):
    producer = await peer.open_producer()
    await peer.request(requests.CloseProducer(handle=producer.handle), requests.Done)
    assert isinstance(await peer.error(peer.publish(producer.handle, one_batch(producer))), NotFound)


async def test_a_batch_larger_than_the_window_may_go_alone() -> None:
    async with open_listener(publish_window_bytes=1_000) as there, await Peer.greet(there) as peer:
        await peer.create_topic()
        producer = await peer.open_producer()
        peer.publish(producer.handle, one_batch(producer, payload_bytes=5_000))
        await peer.receive(FrameKind.PUBLISHED)


# -- consuming ---------------------------------------------------------------------------------------------------------


async def test_messages_are_delivered_as_far_as_credit_goes_and_acks_are_kept(peer, topic):
    producer, consumer = await peer.open_producer(), await peer.subscribe("billing")
    assert (consumer.position, consumer.created) == (0, True)
    batch = one_batch(producer)
    for _ in range(3):
        peer.publish(producer.handle, batch)
        await peer.receive(FrameKind.PUBLISHED)
    peer.credit(consumer.handle, 6, 2 * len(batch))
    for base in (0, 3):
        frame = await peer.receive(FrameKind.DELIVER)
        head = frames.decode_deliver_head(frame.head)
        assert (head.handle, head.ranges, head.redeliveries) == (consumer.handle, [], ())
        received = batches.Batch.open(frame.body, stamped=True)
        assert received.base_offset == base
    peer.ack(consumer.handle, (0, 2), (3, 4), correlation=41)
    assert (await peer.receive(FrameKind.RESPONSE)).correlation == 41
    peer.ack(consumer.handle, (0, 3), correlation=42, flags=frames.FLAG_CUMULATIVE)
    assert (await peer.receive(FrameKind.RESPONSE)).correlation == 42
    described = subscriptions.DescribeSubscription(topic=TOPIC, subscription="billing")
    (place,) = (await peer.request(described, SubscriptionDescription)).partitions
    assert (place.position, place.lag, place.consumer) == (4, 5, "billing")
    await peer.request(requests.CloseConsumer(handle=consumer.handle), requests.Done)
    again = await peer.subscribe("billing")
    assert (again.position, again.created) == (4, False)
    peer.credit(again.handle, 100, 100_000)
    frame = await peer.receive(FrameKind.DELIVER)
    assert frames.decode_deliver_head(frame.head).ranges == [(1, 3)]


async def test_a_consumer_whose_topic_is_deleted_is_told(peer, topic):
    consumer = await peer.subscribe("billing")
    peer.send(FrameKind.REQUEST, requests.encode(topics.DeleteTopic(topic=TopicName.parse(TOPIC))), 50)
    frame = await peer.receive(FrameKind.CONSUMER_CLOSED)
    failure = requests.decode(frame.head, requests.Failure)
    assert failure.handle == consumer.handle
    assert isinstance(failure.error(), NotFound)
    await peer.receive(FrameKind.RESPONSE)
    with pytest.raises(NotFound):
        await peer.request(requests.CloseConsumer(handle=consumer.handle), requests.Done)


async def test_what_a_lost_client_held_is_free_for_the_next(native):
    async with await Peer.greet(native) as other:
        await other.create_topic()
        peer = await Peer.greet(native)
        await peer.subscribe("billing")
        peer.close()
        await native.until(lambda: native.server.connections == 1)
        asked = requests.Subscribe(topic=TOPIC, partition=0, subscription="billing", consumer="somebody else")
        await other.request(asked, requests.ConsumerOpened)


# -- fetching ----------------------------------------------------------------------------------------------------------


def fetch(start: Position, wait_ms: int = 0, bytes_max: int = 1 << 20, topic_id: int = 0) -> bytes:
    return requests.encode(requests.Fetch(TOPIC, 0, start, bytes_max, wait_ms, topic_id))


async def test_a_fetch_returns_whole_batches_aligned_in_one_frame(peer, topic):
    producer = await peer.open_producer()
    batch = one_batch(producer)
    for _ in range(3):
        peer.publish(producer.handle, batch)
        await peer.receive(FrameKind.PUBLISHED)
    peer.send(FrameKind.FETCH, fetch(Position("offset", 4)), 9)
    frame = await peer.receive(FrameKind.FETCHED)
    assert frame.correlation == 9
    assert frames.unpack_head(frame.head, frames.FETCHED, FrameKind.FETCHED)[:3] == (9, 0, 9)
    step = -(-len(batch) // 64) * 64
    assert len(frame.body) == 2 * step
    for index in range(2):
        whole = frame.body[index * step : index * step + len(batch)]
        assert batches.Batch.open(whole, stamped=True).base_offset == 3 + 3 * index


async def test_a_fetch_that_waits_is_answered_by_the_next_publish(peer, topic):
    producer = await peer.open_producer()
    peer.send(FrameKind.FETCH, fetch(Position("latest"), wait_ms=30_000), 9)
    peer.publish(producer.handle, one_batch(producer))
    seen = {(await peer.receive(FrameKind.FETCHED, FrameKind.PUBLISHED)).kind for _ in range(2)}
    assert seen == {FrameKind.FETCHED, FrameKind.PUBLISHED}


async def test_a_fetch_that_waits_in_vain_is_answered_empty(peer, topic):
    peer.send(FrameKind.FETCH, fetch(Position("earliest"), wait_ms=10), 9)
    frame = await peer.receive(FrameKind.FETCHED)
    assert len(frame.body) == 0


async def test_a_fetch_of_what_is_not_there_is_an_error_of_the_tree(peer):
    peer.send(FrameKind.FETCH, fetch(Position("earliest")), 9)
    assert isinstance(await peer.error(9), NotFound)
    peer.send(FrameKind.FETCH, b"\xc1", 10)
    assert isinstance(await peer.error(10), Invalid)


async def test_a_fetch_that_means_one_topic_gets_nothing_of_a_later_one_of_the_same_name(peer, topic):
    meant = (await peer.request(topics.Lookup(topic=TOPIC), topics.Route)).topic_id
    peer.send(FrameKind.FETCH, fetch(Position("earliest"), topic_id=meant), 9)
    await peer.receive(FrameKind.FETCHED)
    await peer.request(topics.DeleteTopic(topic=TopicName.parse(TOPIC)), requests.Done)
    await peer.create_topic()
    peer.send(FrameKind.FETCH, fetch(Position("offset", 1000), topic_id=meant), 10)
    error = await peer.error(10)
    assert isinstance(error, NotFound), "not Invalid: that this one ends before offset 1000 means nothing"
    assert f"topic {TOPIC} was deleted and made anew since: it had the id {meant}" in error.message
    peer.send(FrameKind.FETCH, fetch(Position("earliest")), 11)
    assert (await peer.receive(FrameKind.FETCHED)).correlation == 11, "who means any topic gets this one"


async def test_a_topic_that_is_deleted_while_it_is_read_is_not_taken_for_one_with_a_gap(
    native, peer, topic, monkeypatch
):
    producer = await peer.open_producer()
    peer.publish(producer.handle, one_batch(producer))
    await peer.receive(FrameKind.PUBLISHED)
    partition = await native.broker._partitions.get(TopicName.parse(TOPIC), 0)

    async def read(*_: object) -> list[memoryview]:
        await native.broker.topics.delete(ANONYMOUS, TopicName.parse(TOPIC))
        return []  # as from a log that has given back the files

    monkeypatch.setattr(partition.stream, "read", read)
    peer.send(FrameKind.FETCH, fetch(Position("earliest")), 9)
    assert isinstance(await peer.error(9), NotFound)


async def test_more_waiting_fetches_than_allowed_are_refused() -> None:
    async with open_listener(fetches_in_flight_max=2) as there, await Peer.greet(there) as peer:
        await peer.create_topic()
        for correlation in (1, 2, 3):
            peer.send(FrameKind.FETCH, fetch(Position("latest"), wait_ms=30_000), 100 + correlation)
        assert isinstance(await peer.error(103), Full)


# -- keep-alive and the end --------------------------------------------------------------------------------------------


async def test_a_ping_is_answered(peer):
    peer.send(FrameKind.PING, correlation=3)
    assert (await peer.receive(FrameKind.PONG)).correlation == 3


async def test_a_silent_peer_is_asked_and_one_that_answers_stays() -> None:
    clock = ManualClock()
    async with open_listener(clock=clock, keep_alive_ms=1_000) as there, await Peer.greet(there) as peer:
        for _ in range(6):
            for _ in range(4):
                clock.advance(0.1)
                await asyncio.sleep(0)
            await peer.receive(FrameKind.PING)
            peer.send(FrameKind.PONG)
            session = await there.session_of(peer)
            now = clock.monotonic()
            await there.until(lambda now=now, session=session: session.connection.last_received >= now)  # type: ignore[misc]
        assert there.server.connections == 1


async def test_a_peer_that_stays_silent_for_its_keep_alive_is_gone() -> None:
    clock = ManualClock()
    async with open_listener(clock=clock, keep_alive_ms=1_000) as there, await Peer.greet(there) as peer:
        for _ in range(12):
            clock.advance(0.1)
            await asyncio.sleep(0)
        while (frame := await peer.next_frame()) is not None and frame.kind is FrameKind.PING:
            pass
        assert frame is not None and frame.kind is FrameKind.ERROR
        error = requests.decode(frame.head, requests.Failure).error()
        assert isinstance(error, Unavailable) and "nothing was heard" in error.message
        assert await peer.next_frame() is None


async def test_a_listener_that_closes_says_so_answers_what_is_in_flight_and_takes_nothing_new() -> None:
    class Holding(Between):
        def __init__(self, broker: object) -> None:
            super().__init__(broker)
            self.held: list[tuple[object, ...]] = []

        def publish(self, *arguments: object) -> None:
            self.held.append(arguments)

    async with open_listener(wrap=Holding) as there, await Peer.greet(there) as peer:
        await peer.create_topic()
        producer = await peer.open_producer()
        in_flight = peer.publish(producer.handle, one_batch(producer))
        await there.until(lambda: len(there.broker.held) == 1)
        closing = asyncio.ensure_future(there.server.close(drain_s=10))
        goaway = await peer.receive(FrameKind.GOAWAY)
        assert isinstance(requests.decode(goaway.head, requests.Failure).error(), Unavailable)
        late = peer.publish(producer.handle, one_batch(producer))
        assert isinstance(await peer.error(late), Unavailable)
        assert not closing.done()
        there.broker._broker.batches.publish(*there.broker.held[0])
        assert (await peer.receive(FrameKind.PUBLISHED)).correlation == in_flight
        assert await peer.next_frame() is None
        await closing
        assert there.server.connections == 0
        with pytest.raises(ConnectionError):
            await Peer.connect(there)


async def test_a_waiting_fetch_does_not_keep_the_listener_open(native, peer, topic):
    peer.send(FrameKind.FETCH, fetch(Position("latest"), wait_ms=600_000), 9)
    await native.until(lambda: native.sessions[0].in_flight == 1)
    closing = asyncio.ensure_future(native.server.close(drain_s=600))
    await peer.receive(FrameKind.GOAWAY)
    assert isinstance(await peer.error(9), Unavailable)
    async with asyncio.timeout(60):
        await closing


# -- seek generations --------------------------------------------------------------------------------------------------


async def test_acks_of_an_earlier_client_and_of_a_generation_count_as_they_should_after_a_seek() -> None:
    async with open_listener() as here, await Peer.greet(here) as peer:
        await peer.create_topic()
        producer = await peer.open_producer()
        peer.publish(producer.handle, one_batch(producer, count=9))
        await peer.receive(FrameKind.PUBLISHED)
        opened = await peer.subscribe("billing")
        assert (opened.moves, opened.generation) == (0, 0)
        handle = opened.handle
        peer.credit(handle, 100, 1 << 20)
        await peer.receive(FrameKind.DELIVER)

        peer.write(bytes.fromhex(EARLIER_ACK.format(handle=f"{handle:02x}")))  # offsets 0 to 2
        assert await position(peer) == 2

        async with await Peer.greet(here) as operator:
            seek = subscriptions.Seek(topic=TOPIC, subscription="billing", position=Position("earliest"))
            await operator.request(seek, topics.Positions)
        frame = await peer.receive(FrameKind.CONSUMER_CHANGED)  # comes before the replay
        changed = requests.decode(frame.head, requests.ConsumerChanged)
        assert (changed.handle, changed.ack_timeout_ms) == (handle, 0) and changed.generation > 0
        await peer.receive(FrameKind.DELIVER)

        peer.send(FrameKind.ACK, frames.encode_ack_head(handle, [(0, 9)], 0), 77)
        assert (await peer.receive(FrameKind.RESPONSE)).correlation == 77, "answered as done"
        peer.send(FrameKind.ACK, frames.encode_ack_head(handle, [(0, 9)], 0), flags=frames.FLAG_CUMULATIVE)
        peer.send(FrameKind.NACK, requests.encode(requests.Nack(handle, [(0, 9)], 0, generation=0)))
        assert await position(peer) == 0

        peer.write(bytes.fromhex(EARLIER_ACK.format(handle=f"{handle:02x}")))  # which it holds again
        assert await position(peer) == 2
        peer.send(FrameKind.ACK, frames.encode_ack_head(handle, [(2, 9)], changed.generation))
        assert await position(peer) == 9


EARLIER_ACK = "28000000200000000000000018000000{handle}0000000100000000000000000000000200000000000000"
"""ACK of offsets 0 and 1 as releases sent it that knew no generation."""


async def position(peer: Peer) -> int:
    request = subscriptions.DescribeSubscription(topic=TOPIC, subscription="billing")
    return (await peer.request(request, SubscriptionDescription)).partitions[0].position
