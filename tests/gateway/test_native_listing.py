"""Listings in pages as a native client gets them. Statistics as a native client gets them. Requests frame by frame:
what callers and responders that keep to nothing can do, and that nothing is left of it."""

from __future__ import annotations

import msgspec
import pytest
from native_peer import TOPIC, NativeListener, Peer, neighbour, one_batch

from pydanube.broker.topics.listing import cut_page
from pydanube.codec import batch as batches
from pydanube.codec.native import frames, requests
from pydanube.codec.native.frames import Frame, FrameKind
from pydanube.gateway.native import asks as asks_module
from pydanube.model.errors import Full, Invalid, NotFound, Unavailable
from pydanube.model.paging import NamePage, Order, TopicPage
from pydanube.model.replies import EXPIRES, REPLY_TO, REQUEST_PRODUCER, ReplyHead
from pydanube.model.statistics import SubscriptionSummary, TopicSummary
from pydanube.operations import namespaces, subscriptions, topics


async def test_topics_come_in_pages_with_their_numbers(peer):
    for number in range(5):
        await peer.request(topics.CreateTopic(topic=f"/default/t{number}"), requests.Done)
    first = await peer.request(topics.ListTopicPage(limit=3), TopicPage)
    assert [one.topic for one in first.topics] == ["/default/t0", "/default/t1", "/default/t2"]
    assert all((one.open_partitions, one.ack_level) == (0, "durable") for one in first.topics)
    second = await peer.request(topics.ListTopicPage(limit=3, after=first.next), TopicPage)
    assert ([one.topic for one in second.topics], second.next) == (["/default/t3", "/default/t4"], "")
    found = await peer.request(topics.ListTopicPage(filter="*3", namespace="default"), TopicPage)
    assert [one.topic for one in found.topics] == ["/default/t3"]
    for bad in ({"limit": 0}, {"limit": 1001}, {"sort": "x"}, {"after": "x"}, {"namespace": "a/b"}):
        with pytest.raises(Invalid):
            await peer.request(topics.ListTopicPage(**bad), TopicPage)


async def test_names_come_in_pages_when_that_is_asked_for(peer, topic):
    for name in ("a", "b", "c"):
        await peer.request(namespaces.CreateNamespace(namespace=name), requests.Done)
        await peer.request(subscriptions.CreateSubscription(topic=TOPIC, subscription=name), requests.Done)
    everything = await peer.request(namespaces.ListNamespaces(), NamePage)
    assert (everything.names, everything.next) == (["a", "b", "c", "default"], "")
    page = await peer.request(namespaces.ListNamespaces(limit=3), NamePage)
    assert page.names == ["a", "b", "c"]
    page = await peer.request(namespaces.ListNamespaces(limit=3, after=page.next), NamePage)
    assert (page.names, page.next) == (["default"], "")
    page = await peer.request(subscriptions.ListSubscriptions(topic=TOPIC, filter="[bc]"), NamePage)
    assert (page.names, page.next) == (["b", "c"], "")


def summary(name: str, subscriptions: int) -> TopicSummary:
    found = [SubscriptionSummary(f"s{number:03}", "shared", backlog=number) for number in range(subscriptions)]
    return TopicSummary(f"/default/{name}", True, "durable", 0, 0, subscriptions=found)


@pytest.mark.parametrize("order", [Order("name", False), Order("backlog", True)])
def test_a_page_is_cut_to_what_fits_an_answer(order: Order) -> None:
    topics = [summary("a", 90), summary("b", 5), summary("c", 20), summary("d", 5), summary("e", 1)]
    limit = len(msgspec.msgpack.encode(topics[2])) + len(msgspec.msgpack.encode(topics[3]))
    listed, following = list[tuple[str, int]](), list[str]()
    while topics:
        page = cut_page(TopicPage.of(topics, order, more=True), order, limit)
        assert sum(len(msgspec.msgpack.encode(one)) for one in page.topics) <= limit
        listed += [(one.topic[-1], len(one.subscriptions)) for one in page.topics]
        following.append(order.parse_token(page.next)[1][-1])
        topics = topics[len(page.topics) :]
    assert listed == [("a", 0), ("b", 5), ("c", 20), ("d", 5), ("e", 1)]
    assert following == ["a", "c", "e"]
    largest = TopicPage.of([summary("a", 90), summary("b", 1)], Order("backlog", True), more=False)
    cut = cut_page(largest, Order("backlog", True), 1_000)
    assert Order("backlog", True).parse_token(cut.next) == (89, "/default/a"), "its place is that with subscriptions"
    alone = cut_page(TopicPage([summary("a", 90)]), Order("name", False), 1_000)
    assert (alone.topics[0].subscriptions, alone.next) == ([], "")


async def test_a_client_is_told_what_was_counted_down_to_its_own_consumer(peer, topic):
    producer, consumer = await peer.open_producer(), await peer.subscribe("billing")
    batch = one_batch(producer, count=7)
    peer.publish(producer.handle, batch)
    await peer.receive(FrameKind.PUBLISHED)
    peer.credit(consumer.handle, 100, 1 << 20)
    await peer.receive(FrameKind.DELIVER)
    found = (await peer.request(topics.GetStatistics(topic=TOPIC), topics.StatisticsReport)).topic
    (partition,) = found.partitions
    (subscription,) = partition.subscriptions
    assert (found.topic, found.reliable) == (TOPIC, True)
    assert (partition.published, partition.published_bytes, partition.producers) == (7, len(batch), 1)
    assert (subscription.name, subscription.backlog, subscription.unacked) == ("billing", 7, 7)
    assert subscription.backlog_bytes == len(batch)
    assert subscription.backlog_s >= 0
    assert [(one.name, one.delivered) for one in subscription.consumers] == [("billing", 7)]


async def test_an_unknown_topic_is_refused_by_name(peer):
    with pytest.raises(NotFound, match=TOPIC):
        await peer.request(topics.GetStatistics(topic=TOPIC), topics.StatisticsReport)


QUOTES = "/default/quotes"


async def open_topic(peer: Peer, credit: int = 1_000) -> requests.ConsumerOpened:
    """Create a topic that is not reliable, with a consumer that has credit."""
    await peer.request(topics.CreateTopic(topic=QUOTES, reliable=False), requests.Done)
    consumer = await peer.subscribe("clerk", QUOTES)
    peer.credit(consumer.handle, credit, 1 << 30)
    return consumer


def ask(peer: Peer, payload: bytes = b"?", *, size: int | None = None, **fields: object) -> int:
    correlation = peer.next_correlation()
    head = requests.Ask(QUOTES, 0, len(payload) if size is None else size)
    for name, value in fields.items():
        setattr(head, name, value)
    peer.write(*frames.encode_with_payload(FrameKind.ASK, requests.encode(head), payload, correlation))
    return correlation


def reply(peer: Peer, inbox: str, payload: bytes = b"!", head: ReplyHead | None = None) -> None:
    packed = requests.encode(requests.Reply(inbox, len(payload), head or ReplyHead()))
    peer.write(*frames.encode_with_payload(FrameKind.REPLY, packed, payload))


async def next_request(peer: Peer) -> batches.Batch:
    return batches.Batch.open((await peer.receive(FrameKind.DELIVER)).body, stamped=True)


def inbox_of(request: batches.Batch) -> str:
    return request.attributes[0][REPLY_TO]


def replied(frame: Frame) -> tuple[int, bytes, bool]:
    head = requests.decode(frame.head, requests.Replied)
    return frame.correlation, frames.payload_of(frame, head.payload_bytes), bool(frame.flags & frames.FLAG_LAST)


async def test_a_request_carries_what_the_broker_wrote_and_gets_its_reply(native: NativeListener) -> None:
    async with await Peer.greet(native) as caller, await Peer.greet(native) as responder:
        await open_topic(responder)
        number = ask(caller, b"price?", key="k", attributes={"a": "b"}, timeout_ms=1_000, schema_id=7, schema_version=2)
        request = await next_request(responder)
        assert request.header.producer_id == REQUEST_PRODUCER
        assert (request.header.schema_id, request.header.schema_version) == (7, 2)
        assert (request.payloads, request.keys) == ([b"price?"], ["k"])
        assert request.attributes[0].keys() == {"a", REPLY_TO, EXPIRES}
        assert request.attributes[0][EXPIRES] == str(request.publish_time_at(0) // 1_000 + 1_000)
        reply(responder, inbox_of(request), b"42")
        assert replied(await caller.receive(FrameKind.REPLIED)) == (number, b"42", True)
        reply(responder, inbox_of(request), b"43")
        await native.until(lambda: native.broker.inboxes.dropped == 1)
        await native.until(lambda: nothing_waits(native))


def nothing_waits(native: NativeListener) -> bool:
    """Return whether no request waits and none has left anything in memory."""
    resources = native.server._resources
    native.broker.unread.refresh()
    for session in native.sessions:
        session.unread.refresh()
    return (
        not len(native.broker.inboxes)
        and not any(len(one._asks) or one._asks.publish_bytes for one in native.sessions)
        and not resources.door.publish_memory.used_bytes
        and not native.broker.unread.used_bytes
    )


async def test_many_replies_end_with_the_last_one(native: NativeListener) -> None:
    async with await Peer.greet(native) as caller, await Peer.greet(native) as responder:
        await open_topic(responder)
        number = ask(caller, replies_max=2)
        inbox = inbox_of(await next_request(responder))
        for payload in (b"1", b"2", b"3"):
            reply(responder, inbox, payload)
        assert replied(await caller.receive(FrameKind.REPLIED)) == (number, b"1", False)
        assert replied(await caller.receive(FrameKind.REPLIED)) == (number, b"2", True)
        await native.until(lambda: native.broker.inboxes.dropped == 1 and nothing_waits(native))


async def test_replies_to_others_than_a_waiting_caller_are_dropped(native: NativeListener) -> None:
    async with await Peer.greet(native) as caller, await Peer.greet(native) as responder:
        await open_topic(responder)
        ask(caller)
        inbox = inbox_of(await next_request(responder))
        broker, incarnation, token = inbox.rsplit(".", 2)
        for wrong in (
            f"{broker}.{incarnation}.{token[:-1]}",
            f"{broker}.{incarnation}.{token}x",
            f"{broker}.{int(incarnation) + 1}.{token}",
            f"other.{incarnation}.{token}",
        ):
            reply(responder, wrong, b"forged")
        await native.until(lambda: native.broker.inboxes.dropped == 4)
        reply(responder, inbox, b"true")
        assert replied(await caller.receive(FrameKind.REPLIED))[1] == b"true"


async def test_no_client_can_write_where_replies_go(peer, native):
    async with neighbour(native):
        await open_topic(peer)
        for reserved in (REPLY_TO, EXPIRES):
            number = ask(peer, attributes={reserved: "node.0.token"})
            assert isinstance(await peer.error(number), Invalid)
        producer = await peer.open_producer(QUOTES)
        forged = batches.encode(
            [b"?"], publish_times=1, attributes=[{REPLY_TO: "node.0.token"}], producer_id=REQUEST_PRODUCER
        )
        number = peer.publish(producer.handle, forged)
        assert "signed by producer" in (await peer.error(number)).message
        with pytest.raises(Exception, match="never given out"):
            await peer.request(
                requests.OpenProducer(topic=QUOTES, partition=0, producer_id=REQUEST_PRODUCER), requests.ProducerOpened
            )
        forwarder = await peer.request(requests.OpenForwarder(topic=QUOTES, partition=0), requests.ProducerOpened)
        number = peer.publish(forwarder.handle, forged)
        assert "not proven" in (await peer.error(number)).message


async def test_a_wrong_ask_is_refused(peer, native):
    number = ask(peer)
    assert isinstance(await peer.error(number), NotFound)
    await peer.request(topics.CreateTopic(topic=QUOTES, reliable=False), requests.Done)
    unheard = await peer.error(ask(peer))
    assert isinstance(unheard, Unavailable)
    assert "nobody consumes" in unheard.message
    await open_consumer(peer)
    for wrong in (
        {"partition": 7},
        {"partition": -1},
        {"topic": "nothing"},
        {"key": "k" * (1 << 17)},
        {"replies_max": 0},
        {"replies_max": 10_001},
        {"timeout_ms": -1},
        {"schema_id": -1},
        {"size": 100},
    ):
        number = ask(peer, **wrong)  # type: ignore[arg-type]
        assert isinstance(await peer.error(number), Invalid | NotFound), wrong
    assert nothing_waits(native)


async def open_consumer(peer: Peer) -> None:
    consumer = await peer.subscribe("clerk", QUOTES)
    peer.credit(consumer.handle, 1_000, 1 << 30)


@pytest.mark.parametrize("frame", ["REPLY, no inbox", "REPLY, no map", "CANCEL", "ASK", "ASK, twice", "REPLIED"])
async def test_a_malformed_frame_ends_its_connection_only(native: NativeListener, frame: str) -> None:
    async with neighbour(native), await Peer.greet(native) as peer:
        await open_topic(peer, credit=0)
        match frame:
            case "REPLY, no inbox":
                reply(peer, "nothing")
            case "REPLY, no map":
                peer.send(FrameKind.REPLY, b"\xc1")
            case "CANCEL" | "ASK":
                peer.send(FrameKind[frame])  # without a correlation
            case "ASK, twice":
                number = ask(peer)
                head = requests.encode(requests.Ask(QUOTES, 0, 0))
                peer.send(FrameKind.ASK, head, number)
                assert isinstance(await peer.error(number), Invalid)
                return
            case _:
                peer.send(FrameKind.REPLIED, correlation=1)
        assert isinstance(await peer.last_words(), Invalid)
        await native.until(lambda: nothing_waits(native))


async def test_a_cancelled_request_and_a_caller_that_is_gone_leave_nothing(native: NativeListener) -> None:
    async with await Peer.greet(native) as responder:
        await open_topic(responder)
        async with await Peer.greet(native) as caller:
            number = ask(caller)
            first = inbox_of(await next_request(responder))
            caller.send(FrameKind.CANCEL, correlation=number)
            caller.send(FrameKind.CANCEL, correlation=number)
            ask(caller)
            second = inbox_of(await next_request(responder))
            await native.until(lambda: len(native.broker.inboxes) == 1)
        await native.until(lambda: nothing_waits(native))
        for _ in range(1_000):
            reply(responder, first)
            reply(responder, second, bytes(10_000))
        await native.until(lambda: native.broker.inboxes.dropped == 2_000)
        assert nothing_waits(native)


async def test_a_flood_of_requests_is_refused_beyond_the_limit(
    native: NativeListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asks_module, "REQUESTS_WAITING_MAX", 100)
    async with await Peer.greet(native) as caller, await Peer.greet(native) as responder, neighbour(native):
        await open_topic(responder)
        numbers = [ask(caller) for _ in range(150)]
        for number in numbers[100:]:
            assert isinstance(await caller.error(number), Full)
        inboxes = [inbox_of(await next_request(responder)) for _ in range(100)]
        for inbox in inboxes:
            reply(responder, inbox)
        answered = [replied(await caller.receive(FrameKind.REPLIED))[0] for _ in range(100)]
        assert answered == numbers[:100]
        ask(caller)
        await next_request(responder)


async def test_replies_that_a_caller_does_not_read_are_bounded(native: NativeListener) -> None:
    native.broker.unread.limit_bytes = 4 << 20
    async with await Peer.greet(native) as caller, await Peer.greet(native) as responder:
        await open_topic(responder)
        caller.stop_reading()
        for _ in range(40):
            ask(caller)
        for _ in range(40):
            reply(responder, inbox_of(await next_request(responder)), bytes(1 << 20))
        await native.until(lambda: not len(native.broker.inboxes))
        assert native.broker.unread.used_bytes <= 6 << 20
        caller.resume_reading()
        outcomes = [(await caller.receive(FrameKind.REPLIED, FrameKind.ERROR)).kind for _ in range(40)]
        assert outcomes.count(FrameKind.ERROR) > 20
        assert FrameKind.REPLIED in outcomes
        await native.until(lambda: nothing_waits(native))


async def test_a_peer_is_told_that_requests_are_known_if_it_knows_them(native: NativeListener) -> None:
    async with await Peer.greet(native) as peer:
        assert peer.welcome is not None
        assert peer.welcome.features == []
    hello = requests.Hello(client="test", features=["something-else", requests.REQUEST_REPLY])
    async with await Peer.greet(native, hello) as peer:
        assert peer.welcome is not None
        assert peer.welcome.features == [requests.REQUEST_REPLY]


async def test_a_reliable_topic_stores_requests_with_other_messages(peer, native):
    await peer.create_topic(QUOTES)
    producer = await peer.open_producer(QUOTES)
    peer.publish(producer.handle, one_batch(producer))
    await peer.receive(FrameKind.PUBLISHED)
    ask(peer)
    consumer = await peer.subscribe("clerk", QUOTES)
    peer.credit(consumer.handle, 4, 1 << 20)
    await peer.receive(FrameKind.DELIVER)
    stored = await next_request(peer)
    assert stored.base_offset == 3
    assert stored.header.producer_id == REQUEST_PRODUCER


async def test_draining_refuses_new_requests(peer, native):
    await open_topic(peer)
    (await native.session_of(peer)).drain()
    await peer.receive(FrameKind.GOAWAY)
    assert isinstance(await peer.error(ask(peer)), Unavailable)
