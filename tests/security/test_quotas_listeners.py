"""Quotas over every listener: who is over one waits or gets Full, and others on the same topic are not slowed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc_peer
import native_peer
import pytest
from access_harness import TableAuthenticator
from broker_harness import open_broker
from http_peer import Answer, HttpListener, Peer

import pydanube
from pydanube.broker import QUOTA_WAIT_S_MAX, Broker
from pydanube.broker.security.security import SecurityParts
from pydanube.broker.security.security_store import SecurityStore
from pydanube.codec.native import requests as wire
from pydanube.core.access import ANONYMOUS, Principal
from pydanube.core.access_rules import AccessRules
from pydanube.core.identity import Identity
from pydanube.gateway.grpc import GrpcServer
from pydanube.gateway.http import HttpServer
from pydanube.gateway.native import NativeServer
from pydanube.gateway.native.session import PEER_PREFIX
from pydanube.metadata.store import MetadataStore
from pydanube.model.addresses import BrokerAddresses
from pydanube.model.errors import Conflict, Denied, Full, Invalid, NotFound, Unavailable
from pydanube.model.limits import MIB
from pydanube.model.names import TopicName
from pydanube.model.paging import NamePage
from pydanube.model.quotas import QuotaSubject
from pydanube.model.settings.sections import HttpSettings, LimitSettings, Sections
from pydanube.model.topics import TopicConfig
from pydanube.model.webhooks import Webhook, WebhookScheme
from pydanube.operations import namespaces
from pydanube.runtime.clock import Clock, ManualClock, SystemClock
from pydanube.runtime.tasks import Tasks
from waiting import until

TOPIC = "/default/orders"
NAMES = ("root", "alice", "bob")
WEBHOOK = Webhook("shop", TopicName.parse(TOPIC), WebhookScheme.TOKEN, "a-token-of-the-shop")


class RequiredTable(TableAuthenticator):
    @property
    def is_required(self) -> bool:
        return True


def secured(store: MetadataStore, clock: Clock) -> SecurityParts:
    """Everybody may do everything, and shows their own name as the token."""
    rules = AccessRules([*(f"user:{name}" for name in NAMES), "service_account:webhook-shop"])
    table = {name: Identity(Principal(name), "table") for name in NAMES}
    return SecurityParts(rules, SecurityStore(store, clock, rules), RequiredTable(table))


@dataclass
class Place:
    """A broker whose time stands still, with all its listeners."""

    broker: Broker
    clock: ManualClock
    url: str
    http: HttpListener
    grpc: str

    def client(self, name: str, timeout: float = 60) -> pydanube.Client:
        """A client tries again after Full, until its timeout."""
        return pydanube.connect(self.url, token=name, timeout=timeout)

    async def set(self, subject: str, **limits: int) -> None:
        await self.broker.quotas.set(Principal("root"), QuotaSubject.parse(subject), limits)

    async def request(self, name: str, method: str, path: str, body: object = None, **headers: str) -> Answer:
        async with await Peer.connect(self.http) as peer:
            encoded = None if body is None else json.dumps(body).encode()
            if encoded is not None:
                headers["content_type"] = "application/json"
            return await peer.request(method, f"/api/v1/{path}", encoded, authorization=f"Bearer {name}", **headers)

    async def waiting(self, count: int) -> None:
        """Wait until so many callers wait for a rate."""
        await until(lambda: self.broker.throttle.waiting == count)

    async def pass_time(self, seconds: float) -> None:
        for _ in range(round(seconds * 20)):
            self.clock.advance(0.05)
            await asyncio.sleep(0.001)


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with open_place(tmp_path) as opened:
        yield opened


@asynccontextmanager
async def open_place(directory: Path) -> AsyncIterator[Place]:
    clock, system = ManualClock(), SystemClock()
    async with open_broker(directory, clock=clock, security=secured) as broker, Tasks() as tasks:
        await broker.topics.create(Principal("root"), TopicName.parse(TOPIC), TopicConfig())
        native = NativeServer(broker, LimitSettings(), system, tasks)
        http = HttpServer(broker, Sections(http=HttpSettings(webhooks=(WEBHOOK,), consumers_max=12)), system, tasks)
        server = GrpcServer(broker, Sections(), system, tasks)
        host, port = await native.start("127.0.0.1", 0)
        address = await http.start("127.0.0.1", 0)
        _, data = await server.open_data("127.0.0.1", 0)
        await server.start()
        broker._addresses = lambda: BrokerAddresses(f"{host}:{port}")
        listener = HttpListener(http, address, broker, "")
        try:
            yield Place(broker, clock, f"danube://{host}:{port}", listener, f"127.0.0.1:{data}")
        finally:
            broker.drain()
            await asyncio.gather(native.close(0), http.close(0), server.close(0))


# -- native ------------------------------------------------------------------------------------------------------------


async def test_a_native_producer_over_its_rate_waits_and_others_do_not(place: Place) -> None:
    await place.set("user:alice", publish_bytes_per_s=1000)
    async with (
        place.client("alice") as alice,
        place.client("bob") as bob,
        alice.producer(TOPIC) as slow,
        bob.producer(TOPIC) as fast,
    ):
        await slow.send(b"x" * 3000)
        late = asyncio.ensure_future(slow.send(b"late"))
        await place.waiting(1)
        for _ in range(50):
            await fast.send(b"y" * 3000)
        assert not late.done()
        await alice.list_namespaces()  # the connection of the producer that waits is served, too
        await place.pass_time(4)
        assert (await late).offset == 51


async def test_a_native_consumer_over_its_rate_waits_and_others_of_its_subscription_do_not(place: Place) -> None:
    await place.set("user:alice", fetch_bytes_per_s=1)
    async with place.client("alice") as alice, place.client("bob") as bob:
        async with bob.producer(TOPIC) as producer:
            for _ in range(50):
                await producer.send(b"x" * 1000)
        shared = {"subscription": "work", "type": "shared", "start": "earliest"}
        async with alice.consumer(TOPIC, **shared) as slow, bob.consumer(TOPIC, **shared) as fast:
            first = await slow.receive(timeout=60)
            received = [first.offset]
            while len(received) < 50:
                received.append((await fast.receive(timeout=60)).offset)
            assert sorted(received) == list(range(50))


async def test_a_native_reader_over_its_rate_waits_and_others_do_not(place: Place) -> None:
    async with place.client("alice") as alice, place.client("bob") as bob:
        async with bob.producer(TOPIC) as producer:
            for _ in range(20):
                await producer.send(b"x" * 1000)
        await place.set("user:alice", fetch_bytes_per_s=2000)

        async def read(client: pydanube.Client) -> list[int]:
            async with client.reader(TOPIC, start="earliest") as reader:
                return [(await reader.receive(timeout=60)).offset for _ in range(20)]

        slow = asyncio.ensure_future(read(alice))
        await place.waiting(1)
        assert await read(bob) == list(range(20))
        assert not slow.done()
        await place.pass_time(20)
        assert await slow == list(range(20))


async def test_a_native_connection_past_the_limit_is_refused_with_full(place: Place) -> None:
    await place.set("user:alice", connections_max=1)
    async with place.client("alice") as alice:
        await alice.list_namespaces()
        with pytest.raises(Full, match="connections_max=1"):
            async with place.client("alice", timeout=1) as second:
                await second.list_namespaces()
        async with place.client("bob") as bob:
            await bob.list_namespaces()
    async with place.client("alice") as again:
        await again.list_namespaces()


async def test_native_requests_past_the_rate_wait_and_then_get_full(place: Place) -> None:
    async with place.client("alice", timeout=10) as alice, place.client("bob") as bob:
        await alice.list_namespaces()
        await place.set("user:alice", requests_per_s=1)
        await alice.list_namespaces()
        late = asyncio.ensure_future(alice.list_namespaces())
        await place.waiting(1)
        await asyncio.gather(*(bob.list_namespaces() for _ in range(50)))
        await place.pass_time(1.5)
        await late
        more = [asyncio.ensure_future(alice.list_namespaces()) for _ in range(20)]
        await place.waiting(20)
        await place.pass_time(QUOTA_WAIT_S_MAX + 0.5)
        outcomes = await asyncio.gather(*more, return_exceptions=True)
        refused = [one for one in outcomes if isinstance(one, Full)]
        assert len(refused) >= 13 and "requests_per_s=1" in refused[0].message


# -- HTTP --------------------------------------------------------------------------------------------------------------


async def test_http_publishes_past_a_rate_wait_and_then_get_429(place: Place) -> None:
    await place.set("user:alice", publish_bytes_per_s=100)
    path, body = "topics/default/orders/messages", {"payload": "x" * 3000}
    assert (await place.request("alice", "POST", path, body)).status == 200
    late = asyncio.ensure_future(place.request("alice", "POST", path, body))
    await place.waiting(1)
    for _ in range(20):
        assert (await place.request("bob", "POST", path, body)).status == 200
    await place.pass_time(QUOTA_WAIT_S_MAX + 0.5)
    answer = await late
    assert answer.status == 429 and answer.headers["retry-after"] == "1"
    assert "user:alice uses up its quota publish_bytes_per_s=100" in answer.json()["detail"]


async def test_http_requests_and_connections_are_counted(place: Place) -> None:
    await place.set("user:alice", requests_per_s=1, connections_max=1)
    assert (await place.request("alice", "GET", "namespaces")).status == 200
    late = asyncio.ensure_future(place.request("alice", "GET", "namespaces"))
    await place.waiting(1)
    refused = await place.request("alice", "GET", "namespaces")
    assert refused.status == 429 and "connections_max=1" in refused.json()["detail"]
    assert (await place.request("bob", "GET", "namespaces")).status == 200
    async with await Peer.connect(place.http) as peer:  # health is nobody's
        assert (await peer.request("GET", "/healthz")).status == 200
    await place.pass_time(1.5)
    assert (await late).status == 200


async def test_a_namespace_over_its_requests_slows_no_other(place: Place) -> None:
    await place.broker.namespaces.create(Principal("root"), "shop")
    await place.set("/shop", requests_per_s=1)
    assert (await place.request("alice", "GET", "namespaces/shop/policies")).status == 200
    late = asyncio.ensure_future(place.request("alice", "GET", "namespaces/shop/policies"))
    await place.waiting(1)
    assert (await place.request("alice", "GET", "topics/default/orders")).status == 200
    await place.pass_time(1.5)
    assert (await late).status == 200


async def test_an_event_stream_over_its_rate_waits(place: Place) -> None:
    async with place.client("bob") as bob, bob.producer(TOPIC) as producer:
        for number in range(10):
            await producer.send(b"%d" % number * 1000)
    await place.set("user:alice", fetch_bytes_per_s=1)
    async with await Peer.connect(place.http) as peer:
        peer.send("GET", f"/api/v1/topics{TOPIC}/events?start=earliest", authorization="Bearer alice")
        await place.waiting(1)
        await place.broker.quotas.delete(Principal("root"), QuotaSubject.parse("user:alice"))
        text = b""
        async with asyncio.timeout(60):
            while b"9" * 1000 not in text:
                text += await peer._reader.read(65536)


async def test_rest_sets_shows_and_deletes_quotas(place: Place) -> None:
    made = await place.request("root", "PATCH", "access/quotas/user:alice", {"requests_per_s": 500})
    assert made.status == 200 and made.json()["requests_per_s"] == 500 and made.json()["used"]["connections"] == 0
    tag = made.headers["etag"]
    changed = await place.request("root", "PATCH", "access/quotas/user:alice", {"connections_max": 9}, if_match=tag)
    assert (changed.json()["requests_per_s"], changed.json()["connections_max"]) == (500, 9)
    stale = await place.request("root", "PATCH", "access/quotas/user:alice", {"connections_max": 8}, if_match=tag)
    assert stale.status == 412
    await place.request("root", "PATCH", "access/quotas/namespace:default", {"stored_bytes_max": 1 << 40})
    listed = await place.request("root", "GET", "access/quotas")
    assert [one["subject"] for one in listed.json()["quotas"]] == ["/default", "user:alice"]
    for subject, body in (
        ("%2Fdefault", {"connections_max": 1}),
        ("user:alice", {"requests_per_s": -1}),
        ("group:ops", {"requests_per_s": 1}),
        ("user:alice", {"speed": 1}),
    ):
        assert (await place.request("root", "PATCH", f"access/quotas/{subject}", body)).status == 400, subject
    assert (await place.request("root", "DELETE", "access/quotas/user:alice")).status == 204
    assert (await place.request("root", "GET", "access/quotas/user:alice")).status == 404


# -- gRPC --------------------------------------------------------------------------------------------------------------


async def test_grpc_publishes_past_a_rate_wait_and_then_get_resource_exhausted(place: Place) -> None:
    await place.set("user:alice", publish_bytes_per_s=100, connections_max=1)
    async with grpc_peer.connect(place.grpc) as one, grpc_peer.connect(place.grpc) as other:

        async def producer(peer: grpc_peer.GrpcPeer, name: str) -> dict[str, object]:
            made = await peer.call(
                "danube.ProducerService/CreateProducer",
                [("authorization", f"Bearer {name}")],
                topic_name=TOPIC,
                producer_name=name,
                dispatch_strategy=1,
            )
            origin = {"producer_id": made.producer_id, "topic_name": TOPIC}
            return {"msg_id": origin, "producer_name": name, "payload": b"x" * 3000}

        async def send(peer: grpc_peer.GrpcPeer, name: str, message: dict[str, object]) -> None:
            await peer.call("danube.ProducerService/SendMessage", [("authorization", f"Bearer {name}")], **message)

        slow, fast = await producer(one, "alice"), await producer(other, "bob")
        await send(one, "alice", slow)
        late = asyncio.ensure_future(send(one, "alice", slow))
        await place.waiting(1)
        for _ in range(20):
            await send(other, "bob", fast)
        with pytest.raises(grpc.aio.AioRpcError) as too_many:  # one connection is in use, by the call that waits
            await send(other, "alice", slow)
        assert too_many.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "connections_max=1" in (too_many.value.details() or "")
        await place.pass_time(QUOTA_WAIT_S_MAX + 0.5)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await late
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "publish_bytes_per_s=100" in (refused.value.details() or "")


# -- administration by clients -----------------------------------------------------------------------------------------


async def test_a_client_administers_quotas(place: Place) -> None:
    async with place.client("root") as client:
        access = client.access
        made = await access.set_quota("alice", publish_bytes_per_s=1000, requests_per_s=50)
        assert str(made.subject) == "user:alice" and made.limits.publish_bytes_per_s == 1000
        changed = await access.set_quota("user:alice", publish_bytes_per_s=0, expected=made.version)
        assert (changed.limits.publish_bytes_per_s, changed.limits.requests_per_s) == (0, 50)
        with pytest.raises(Conflict):
            await access.set_quota("user:alice", requests_per_s=1, expected=made.version)
        await access.set_quota("/default", stored_bytes_max=1 << 40)
        assert [str(one.subject) for one in await access.quotas()] == ["/default", "user:alice"]
        assert (await access.quota("/default")).limits.stored_bytes_max == 1 << 40
        async with place.client("alice") as alice:
            await alice.list_namespaces()
            used = (await access.quota("user:alice")).used
            assert used.connections == 1 and used.requests_per_s > 0
        await access.delete_quota("user:alice", expected=changed.version)
        with pytest.raises(NotFound):
            await access.quota("user:alice")
        with pytest.raises(Invalid):
            await access.set_quota("group:ops", requests_per_s=1)
        with pytest.raises(Invalid):
            await access.set_quota("user:alice", requests_per_s=-1)


async def test_quotas_work_without_authentication(tmp_path: Path) -> None:
    async with pydanube.testing.broker() as url, pydanube.connect(url) as client:
        await client.create_topic(TOPIC)
        await client.access.set_quota("/default", publish_bytes_per_s=1 << 30)
        await client.access.set_quota("user:anonymous", connections_max=1)
        with pytest.raises(Full):
            async with pydanube.connect(url, timeout=1) as second:
                await second.list_namespaces()
        async with client.producer(TOPIC) as producer:
            await producer.send(b"x")
        (default, anonymous) = await client.access.quotas()
        assert default.used.publish_bytes_per_s > 0 and anonymous.used.connections == 1
        assert ANONYMOUS.id == str(anonymous.subject)


async def test_other_brokers_have_no_quota_without_authentication_either(tmp_path: Path) -> None:
    async with open_broker(tmp_path, clock=ManualClock()) as broker, Tasks() as tasks:
        server = NativeServer(broker, LimitSettings(), SystemClock(), tasks)
        listener = native_peer.NativeListener(server, await server.start("127.0.0.1", 0), broker)
        await broker.quotas.set(
            ANONYMOUS, QuotaSubject.parse("user:anonymous"), {"connections_max": 1, "requests_per_s": 1}
        )
        hello = wire.Hello(client=f"{PEER_PREFIX}b 0.1")
        async with await native_peer.Peer.greet(listener) as client:
            async with await native_peer.Peer.greet(listener, hello) as peer:
                for _ in range(20):
                    await peer.request(namespaces.ListNamespaces(), NamePage)
            await client.request(namespaces.ListNamespaces(), NamePage)
        await server.close(0)


def test_the_blocking_client_administers_quotas() -> None:
    with pydanube.testing.broker_thread(auth=True) as secured_broker, secured_broker.admin_blocking() as client:
        assert client.access.set_quota("user:alice", connections_max=3).limits.connections_max == 3
        assert client.access.quota("user:alice") == client.access.quotas()[0]
        client.access.delete_quota("user:alice")
        assert client.access.quotas() == []
        key = client.access.create_key("user:alice").secret
        with pydanube.connect_blocking(secured_broker.url, api_key=key) as alice, pytest.raises(Denied):
            alice.access.set_quota("user:alice", connections_max=0)


# -- shares, and what strangers use up -------------------------------------------------------------------------------


async def test_a_principal_leaves_places_for_the_consumers_of_others_over_http(place: Place) -> None:
    async def opens(name: str, topic: str = TOPIC) -> int:
        path = f"topics{topic}/subscriptions/{name}/consumers"
        return (await place.request(name, "POST", path, {"type": "shared"})).status

    assert [await opens("alice") for _ in range(6)] == [201] * 4 + [429] * 2
    assert [await opens("bob") for _ in range(3)] == [201, 201, 429]
    await place.broker.namespaces.create(Principal("root"), "other")
    await place.broker.topics.create(Principal("root"), TopicName.parse("/other/orders"), TopicConfig())
    assert [await opens("root", "/other/orders") for _ in range(2)] == [201, 201]


async def test_the_bodies_of_a_principal_leave_memory_for_those_of_others(place: Place) -> None:
    """Slow uploads of one principal, on as many connections as it likes."""
    budget = place.http.server._application._bodies
    size, path = 4 * MIB, f"/api/v1/topics{TOPIC}/messages"
    async with AsyncExitStack() as stack:

        async def upload(name: str) -> Peer:
            peer = await stack.enter_async_context(await Peer.connect(place.http))
            used = budget.used
            peer.send("POST", path, bytes(size - 1), content_length=str(size), authorization=f"Bearer {name}")
            await peer.flushed()
            await place.http.until(lambda: budget.used >= used + size - 1 or not place.http.server._state.tasks)
            return peer

        for _ in range(5):
            await upload("alice")
        refused = await stack.enter_async_context(await Peer.connect(place.http))
        refused.send("POST", path, bytes(size), authorization="Bearer alice")
        assert (await refused.answer()).status == 503
        last = await upload("bob")
        last.write(b"x")
        assert (await last.answer()).status != 503


async def test_strangers_learn_from_no_webhook_whether_it_is_there(place: Place) -> None:
    """Whether the body is asked for depends on the headers alone."""
    now_s = str(place.clock.now_us() // 1_000_000)
    for headers, is_read in (
        ({"x_hub_signature_256": "sha256=00"}, True),
        ({"x_webhook_signature": "00", "x_webhook_timestamp": now_s}, False),  # the listener's clock is another one
        ({"x_webhook_token": "wrong"}, False),
        ({}, False),
    ):
        for name in ("shop", "none"):
            async with await Peer.connect(place.http) as peer:
                peer.send("POST", f"/webhooks/{name}", b"", content_length="2", expect="100-continue", **headers)
                first = (await asyncio.wait_for(peer._reader.readline(), 60)).decode()
                assert (first.split()[1] == "100") is is_read, (name, headers)
                if is_read:
                    await peer._reader.readline()
                    peer.write(b"{}")
                    assert (await peer.answer()).status in (401, 404)  # the authenticator here has several words


def test_an_address_and_a_webhook_leave_places_for_others_that_prove_themselves(place: Place) -> None:
    webhooks = place.http.server._application._data.webhooks
    with ExitStack() as stack:

        def fill(name: str, address: str) -> int:
            for number in range(1_000):
                try:
                    stack.enter_context(webhooks.proving(name, address))
                except Unavailable:
                    return number
            raise AssertionError("there is no limit")

        assert fill("shop", "192.0.2.1") < 40
        assert fill("shop", "192.0.2.2") > 5
        for number in range(50):
            fill("shop", f"192.0.2.{number}")
        assert fill("door", "192.0.2.1") > 5


async def test_strangers_use_up_nothing_of_a_webhook_before_they_have_proved_who_they_are(place: Place) -> None:
    await place.set("service_account:webhook-shop", requests_per_s=1, connections_max=1)

    async def send(name: str, token: str) -> int:
        async with await Peer.connect(place.http) as peer:
            return (await peer.request("POST", f"/webhooks/{name}", b"{}", x_webhook_token=token)).status

    for _ in range(3):
        assert await asyncio.wait_for(send("shop", "wrong"), 30) == 401
    assert await asyncio.wait_for(send("shop", WEBHOOK.secret), 30) == 200
    late = asyncio.ensure_future(send("shop", WEBHOOK.secret))
    await place.waiting(1)
    assert await asyncio.wait_for(send("shop", WEBHOOK.secret), 30) == 429  # its only connection waits
    await place.pass_time(2)
    assert await late == 200


async def test_a_webhook_without_a_signature_is_refused_before_its_body(place: Place) -> None:
    async with await Peer.connect(place.http) as peer:
        peer.send("POST", "/webhooks/shop", b"", content_length="1000000", x_webhook_token="wrong")
        assert (await asyncio.wait_for(peer.answer(), 30)).status == 401
