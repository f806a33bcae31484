"""Each listener of a real broker asks for credentials, takes the right ones, and ends what was opened with them."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import jwt
import pytest
from grpc_peer import connect as grpc_connect
from grpc_peer import method_of
from http_peer import Answer, Peer

import pydanube
from pydanube.broker.security.api_keys import new_key
from pydanube.broker.security.records import BindingRecord
from pydanube.client.connection.connection import Connection
from pydanube.client.connection.servers import BrokerAddress
from pydanube.codec.native import frames, requests
from pydanube.codec.native.frames import FrameKind
from pydanube.core.access import Principal
from pydanube.gateway.http.connection import STRANGER_LINGER_BYTES
from pydanube.model.errors import Denied, Invalid, Unauthenticated, Unavailable
from pydanube.model.security import BoundSubject
from pydanube.operations import topics
from pydanube.runtime.clock import ManualClock, SystemClock
from pydanube.server.server import Server
from pydanube.testing import _server
from waiting import until

SECRET = "s3cret-of-the-cluster-0123456789abcdef"
CLUSTER_TOKEN = "c1uster-token-0123456789abcdef-0123456789"
TOPIC = "/default/orders"
CLOCK = SystemClock()


class Here:
    def __init__(self, server: Server, directory: Path) -> None:
        self.server = server
        self.admin = (directory / "admin-key").read_text().strip()
        self.broker = server._native._resources.broker  # type: ignore[union-attr]
        self.store = self.broker.security._parts.store  # type: ignore[union-attr]

    async def key(self, principal: str = "user:admin", **options: Any) -> tuple[str, str]:
        """A new API key: its id and itself."""
        new, record = new_key(BoundSubject.parse(principal), CLOCK.now_us(), **options)
        await self.store.key_table.create(new.key.id, record)
        return new.key.id, new.secret

    def jwt(self, seconds: float, name: str = "admin") -> str:
        ends = CLOCK.now_us() / 1_000_000 + seconds
        claims = {"exp": ends, "sub": name, "principal_type": "user", "principal_name": name}
        return jwt.encode(claims, SECRET, "HS256")

    async def get(self, path: str, **headers: str) -> Answer:
        async with await Peer.connect(self) as peer:  # type: ignore[arg-type]
            return await peer.request("GET", path, **headers)

    @property
    def address(self) -> tuple[str, int]:
        return self.server.http_address

    async def connection(self, token: str = "") -> Connection:
        host, port = self.server.native_address
        return await Connection.open(BrokerAddress(host, port), CLOCK, 5.0, token)


@asynccontextmanager
async def served(tmp_path: Path, **overrides: Any) -> AsyncIterator[Here]:
    auth = {"auth_enabled": True, "auth_secret": SECRET, "auth_cluster_token": CLUSTER_TOKEN, "auth_leeway_s": 0}
    async with _server(tmp_path, {**auth, "grpc_data": True, "grpc_admin": True, **overrides}) as server:
        yield Here(server, tmp_path)


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


# -- native ------------------------------------------------------------------------------------------------------------


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Here]:
    async with served(tmp_path) as opened:
        yield opened


async def test_native_takes_a_key_and_refuses_everything_else(here):
    async with pydanube.connect(here.server.url, token=here.admin) as client:
        await client.create_topic(TOPIC)
        async with client.producer(TOPIC) as producer:
            assert (await producer.send(b"one")).offset == 0
    _, truncated = await here.key()
    for wrong in ("", truncated[:-1], "dnb_0123456789abcdef_" + "a" * 43, "x", "a.b.c"):
        with pytest.raises(Unauthenticated):
            await here.connection(wrong)
    async with pydanube.connect(here.server.url, token=(await here.key("user:stranger"))[1]) as client:
        with pytest.raises(Denied):
            await client.create_topic("/default/other")


async def test_nothing_behind_hello_is_handled_before_welcome(here):
    reader, writer = await asyncio.open_connection(*here.server.native_address)
    hello = requests.Hello(auth_scheme="bearer", auth_data=b"dnb_wrong")
    request = topics.CreateTopic(topic=TOPIC)
    writer.write(frames.PREAMBLE + frames.encode(FrameKind.HELLO, requests.encode(hello)))
    writer.write(frames.encode(FrameKind.REQUEST, requests.encode(request), 7))
    received = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    assert frames.decode(memoryview(received)).kind is FrameKind.ERROR
    assert frames.frame_length(memoryview(received)) == len(received)  # and nothing else
    assert await here.broker.topics.names(Principal("admin"), None) == []


async def test_what_is_sent_right_behind_hello_is_handled_as_the_principal_that_it_shows(here):
    reader, writer = await asyncio.open_connection(*here.server.native_address)
    hello = requests.Hello(auth_scheme="bearer", auth_data=here.jwt(60).encode())  # checked in a thread
    request = topics.CreateTopic(topic=TOPIC)
    writer.write(frames.PREAMBLE + frames.encode(FrameKind.HELLO, requests.encode(hello)))
    writer.write(frames.encode(FrameKind.REQUEST, requests.encode(request), 7))
    kinds = []
    for _ in range(2):
        header = await asyncio.wait_for(reader.readexactly(16), 60)
        length = frames.frame_length(memoryview(header))
        kinds.append(frames.decode(memoryview(header + await reader.readexactly(length - 16))).kind)
    writer.close()
    assert kinds == [FrameKind.WELCOME, FrameKind.RESPONSE]


@pytest.mark.parametrize(
    ("scheme", "data"),
    [
        ("bearer", b"\xff\xfe"),
        ("bearer", b"a" * 60_000),
        ("basic", b"x"),
        ("x" * 5_000, b""),
        ("bearer", b""),
        ("", b"x"),
    ],
)
async def test_garbage_in_hello_is_refused_and_the_broker_goes_on(here, scheme, data):
    reader, writer = await asyncio.open_connection(*here.server.native_address)
    hello = requests.encode(requests.Hello(auth_scheme=scheme, auth_data=data))
    writer.write(frames.PREAMBLE + frames.encode(FrameKind.HELLO, hello))
    received = frames.decode(memoryview(await asyncio.wait_for(reader.read(), 10)))
    writer.close()
    assert isinstance(requests.decode(received.head, requests.Failure).error(), Unauthenticated)
    connection = await here.connection(here.admin)
    await connection.close()


async def test_a_revoked_key_ends_its_session_at_once_and_opens_none(here):
    key_id, key = await here.key()
    connection, other = await here.connection(key), await here.connection(here.admin)
    await here.store.key_table.delete(key_id)
    await until(lambda: connection.lost is not None)
    assert "revoked" in str(connection.lost) and other.lost is None
    with pytest.raises(Unauthenticated):
        await here.connection(key)
    await other.close()


async def test_a_key_and_a_token_end_their_sessions_when_they_expire(here):
    _, key = await here.key(expires_at=CLOCK.now_us() + 2_000_000)
    connections = [await here.connection(key), await here.connection(here.jwt(2.0))]
    assert all(0 < one.welcome.credentials_ms <= 2_000 for one in connections)
    await until(lambda: all(one.lost is not None for one in connections))
    assert all("expired" in str(one.lost) for one in connections)


async def test_a_client_shows_newer_tokens_before_the_last_one_ends(here):
    shown: list[str] = []

    async def supply() -> str:
        shown.append(here.jwt(60))
        return shown[-1]

    clock = ManualClock()
    async with pydanube.Client(here.server.url, token=supply, clock=clock) as client:
        await client.create_topic(TOPIC)
        (connection,) = client._brokers._connections.values()
        for number in range(1, 4):
            await until(lambda: clock.sleeping > 0)
            assert len(shown) == number
            clock.advance(59)
            await until(lambda number=number: len(shown) > number)
        assert connection.lost is None
        assert (await client.describe_topic(TOPIC)).name == TOPIC


async def test_newer_credentials_are_of_the_same_principal_and_wrong_ones_change_nothing(here):
    connection = await here.connection(here.jwt(30))

    async def show(token: str) -> int:
        request = requests.Authenticate(auth_scheme="bearer", auth_data=token.encode())
        return (await connection.request(request, requests.Authenticated)).credentials_ms

    with pytest.raises(Denied, match=r"this connection is of user:admin"):
        await show(here.jwt(60, "bob"))
    with pytest.raises(Unauthenticated):
        await show("wrong")
    assert 50_000 < await show(here.jwt(60)) <= 60_000
    key_id, key = await here.key()
    assert await show(key) == 0
    await here.store.key_table.delete(key_id)
    await until(lambda: connection.lost is not None)


async def test_newer_credentials_with_fewer_groups_end_what_they_do_not_allow(here):
    _, member = await here.key("user:bob", groups=["readers"])
    _, alone = await here.key("user:bob")
    await here.store.binding_table.create("b", BindingRecord("group:readers", ["consumer"], "/default"))
    async with pydanube.connect(here.server.url, token=here.admin) as admin:
        await admin.create_topic(TOPIC)
    connection = await here.connection(member)
    attach = requests.Subscribe(topic=TOPIC, partition=0, subscription="s", consumer="c", type="exclusive")
    await connection.request(attach, requests.ConsumerOpened)
    (session,) = (one for one in here.server._native._sessions if one.principal.name == "bob")  # type: ignore[union-attr]
    show = requests.Authenticate(auth_scheme="bearer", auth_data=alone.encode())
    await connection.request(show, requests.Authenticated)
    await until(lambda: not session.consumers)
    with pytest.raises(Denied, match="user:bob may not consume"):
        await connection.request(attach, requests.ConsumerOpened)
    await connection.close()


async def test_the_cluster_token_makes_a_peer_and_others_are_none(here):
    peer, admin = await here.connection(CLUSTER_TOKEN), await here.connection(here.admin)
    await admin.request(topics.CreateTopic(topic=TOPIC), requests.Done)
    topic = await admin.request(topics.DescribeTopic(topic=TOPIC), topics.Topic)
    ask = requests.CountProducers(topic=TOPIC, topic_id=topic.topic_id)
    with pytest.raises(Denied, match="no broker of this cluster"):
        await admin.request(ask, requests.ProducerCount)
    await peer.request(ask, requests.ProducerCount)
    await peer.close()
    await admin.close()


async def test_a_broker_without_authentication_refuses_a_token_and_believes_anybody() -> None:
    async with pydanube.testing.broker() as url:
        with pytest.raises(Unauthenticated, match="has no authentication"):
            async with pydanube.connect(url, token="dnb_x"):
                pass
        async with pydanube.connect(url) as client:
            await client.create_topic(TOPIC)


# -- HTTP --------------------------------------------------------------------------------------------------------------


async def test_http_asks_for_credentials_everywhere_but_on_its_open_paths(here):
    for path in ("/healthz", "/readyz", "/openapi.json", "/docs", "/docs.js"):
        assert (await here.get(path)).status == 200, path
    for path in ("/api/v1/topics", "/metrics", "/schema-registry/subjects", "/api/v1/brokers", "/nowhere"):
        refused = await here.get(path)
        assert refused.status == 401 and "Bearer" in refused.headers["www-authenticate"], path
    ignored = {"x_danube_internal_broker": "true", "x_forwarded_user": "admin", "cookie": "token=x"}
    assert (await here.get("/api/v1/topics", **ignored)).status == 401
    for right in (bearer(here.admin), {"x_api_key": here.admin}, bearer(here.jwt(60))):
        assert (await here.get("/api/v1/topics", **right)).status == 200
    both = {**bearer(here.admin), "x_api_key": "another"}
    basic = {"authorization": "Basic " + base64.b64encode(f"anybody:{here.admin}".encode()).decode()}
    for wrong in (both, {"authorization": here.admin}, basic, bearer("")):
        assert (await here.get("/api/v1/topics", **wrong)).status == 401
    registry = await here.get("/schema-registry/subjects", **basic)
    assert (registry.status, registry.json()) == (200, [])
    wrong = {"authorization": "Basic " + base64.b64encode(b"admin:wrong").decode()}
    refused = await here.get("/schema-registry/subjects", **wrong)
    assert refused.status == 401 and refused.json()["error_code"] == 40101


async def test_a_client_finds_the_brokers_over_http_with_its_token(here):
    async with pydanube.connect(here.server.http_url, token=here.admin) as client:
        await client.create_topic(TOPIC)
    with pytest.raises(Unauthenticated):
        async with pydanube.connect(here.server.http_url, token="wrong"):
            pass


async def test_http_streams_end_with_their_key(here):
    upgrade = {
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec_websocket_version": "13",
        "sec_websocket_key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    events, websocket = f"/api/v1/topics{TOPIC}/events", f"/api/v1/topics{TOPIC}/subscriptions/workers/websocket"
    async with pydanube.connect(here.server.url, token=here.admin) as client:
        await client.create_topic(TOPIC)
    for path, headers, status in ((events, {}, b" 200 "), (websocket, upgrade, b" 101 ")):
        key_id, key = await here.key()
        async with await Peer.connect(here) as peer:  # type: ignore[arg-type]
            peer.send("GET", path, **headers)
            assert (await peer.answer()).status == 401
        async with await Peer.connect(here) as peer:  # type: ignore[arg-type]
            peer.send("GET", path, **headers, **bearer(key))
            assert status in await peer._reader.readuntil(b"\r\n\r\n")
            await here.store.key_table.delete(key_id)
            await asyncio.wait_for(peer.closed(), 5)


async def test_an_http_consumer_belongs_to_the_principal_that_opened_it(tmp_path: Path) -> None:
    consumers = f"/api/v1/topics{TOPIC}/subscriptions/workers/consumers"
    async with served(tmp_path, auth_super_users="user:admin,user:bob") as here:
        async with pydanube.connect(here.server.url, token=here.admin) as client:
            await client.create_topic(TOPIC)
        _, bobs = await here.key("user:bob")
        async with await Peer.connect(here) as peer:  # type: ignore[arg-type]
            opened = await peer.request("POST", consumers, b"{}", content_type="application/json", **bearer(here.admin))
            assert opened.status == 201, opened.body
            where = f"{consumers}/{opened.json()['id']}/messages"
            poll = f"{where}?wait_ms=0"
            assert (await peer.request("GET", poll, **bearer(bobs))).status == 404
            assert (await peer.request("GET", poll, **bearer(here.jwt(60)))).status == 200  # newer credentials


# -- gRPC --------------------------------------------------------------------------------------------------------------


async def test_grpc_asks_for_a_token_on_both_ports_and_health_stays_open(here):
    internal = ("x-danube-internal-broker", "true")
    asked = [
        (here.server.grpc_address, "danube.Discovery/TopicPartitions"),
        (here.server.admin_address, "danube_admin.BrokerAdmin/ListBrokers"),
    ]
    for address, path in asked:
        async with grpc_connect("{}:{}".format(*address)) as peer:
            for wrong in (
                "wrong",
                "Bearer wrong",
                f"Basic {here.admin}",
                "Bearer dnb_0123456789abcdef_" + "a" * 43,
            ):
                code, details = await peer.status(path, [("authorization", wrong), internal])
                assert code is grpc.StatusCode.UNAUTHENTICATED and "not accepted" in details
            assert (await peer.status(path, [internal]))[0] is grpc.StatusCode.UNAUTHENTICATED
            right = [("authorization", f"Bearer {here.admin}")]
            await peer.call(path, right, **({} if "Admin" in path else {"topic": TOPIC}))
            await peer.call("grpc.health.v1.Health/Check")


async def test_a_grpc_stream_ends_with_its_key(here):
    async with grpc_connect("{}:{}".format(*here.server.grpc_address)) as peer:
        key_id, key = await here.key()
        right = [("authorization", f"Bearer {key}")]
        async with pydanube.connect(here.server.url, token=here.admin) as client:
            await client.create_topic(TOPIC)
        subscribe = {"topic_name": TOPIC, "consumer_name": "c", "subscription": "s", "subscription_type": 0}
        made = await peer.call("danube.ConsumerService/Subscribe", right, request_id=1, **subscribe)
        method = method_of("danube.ConsumerService/ReceiveMessages")
        opening = peer.channel.unary_stream(method.path, response_deserializer=method.reply.FromString)
        request = method.request(request_id=2, consumer_id=made.consumer_id).SerializeToString()
        stream = opening(request, timeout=30, metadata=right)
        await stream.initial_metadata()
        await here.store.key_table.delete(key_id)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stream.read()
        assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert "revoked" in (raised.value.details() or "")


async def test_a_grpc_call_whose_request_comes_after_its_key_was_revoked_is_refused(here):
    key_id, key = await here.key()
    right = [("authorization", f"Bearer {key}")]
    async with pydanube.connect(here.server.url, token=here.admin) as client:
        await client.create_topic(TOPIC)
    limits = here.server._grpc._limits  # type: ignore[union-attr]
    async with (
        grpc_connect("{}:{}".format(*here.server.grpc_address)) as peer,
        grpc_connect("{}:{}".format(*here.server.admin_address)) as admin,
    ):
        subscribe = {"topic_name": TOPIC, "consumer_name": "c", "subscription": "s", "subscription_type": 0}
        made = await peer.call("danube.ConsumerService/Subscribe", right, request_id=1, **subscribe)
        receive = method_of("danube.ConsumerService/ReceiveMessages")
        create = method_of("danube_admin.TopicAdmin/CreateTopic")
        calls = [
            (
                peer.channel.stream_stream(receive.path)(metadata=right, timeout=30),
                receive.request(request_id=2, consumer_id=made.consumer_id),
            ),
            (
                admin.channel.stream_stream(create.path)(metadata=right, timeout=30),
                create.request(name="/default/late"),
            ),
        ]
        await until(lambda: len(limits.intake._arriving) == len(calls))  # they are authenticated
        await here.store.key_table.delete(key_id)
        for call, request in calls:
            await call.write(request.SerializeToString())
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                assert await call.read() is not grpc.aio.EOF
            assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED
    async with pydanube.connect(here.server.url, token=here.admin) as client:
        assert await client.list_topics() == [TOPIC]


# -- what waits for a quota --------------------------------------------------------------------------------------------


async def test_what_waits_for_a_quota_is_not_done_when_its_key_is_revoked_meanwhile(tmp_path: Path) -> None:
    async with served(tmp_path, auth_super_users="user:admin,user:bob") as here:
        key_id, key = await here.key("user:bob")
        throttle = here.broker.throttle
        async with pydanube.connect(here.server.url, token=here.admin) as client:
            await client.access.set_quota("user:bob", requests_per_s=1)
            native = await here.connection(key)
            await native.request(topics.CreateTopic(topic=TOPIC), requests.Done)
            late = asyncio.ensure_future(native.request(topics.CreateTopic(topic="/default/a"), requests.Done))
            async with await Peer.connect(here) as peer:  # type: ignore[arg-type]
                peer.send("PUT", "/api/v1/topics/default/b", b"{}", content_type="application/json", **bearer(key))
                await until(lambda: throttle.waiting == 2)
                await here.store.key_table.delete(key_id)
                assert (await peer.answer()).status == 401
            with pytest.raises((Unauthenticated, Unavailable)):
                await late
            await native.close()
            await until(lambda: throttle.waiting == 0)
            assert await client.list_topics() == [TOPIC]


# -- webhooks ----------------------------------------------------------------------------------------------------------


async def test_a_stranger_learns_no_name_of_a_webhook_and_waits_after_failures(tmp_path: Path) -> None:
    secret = "correct-horse-battery-staple"
    hooks = {"http_webhooks": f"shop topic={TOPIC} scheme=token secret={secret}; git topic={TOPIC} secret={secret}"}
    async with served(tmp_path, **hooks, auth_failures_max=6) as here:
        await here.store.binding_table.create("b", BindingRecord("service_account:webhook-shop", ["admin"], "/default"))

        async def send(name: str, token: str) -> Answer:
            async with await Peer.connect(here) as peer:  # type: ignore[arg-type]
                return await peer.request("POST", f"/webhooks/{name}", b"x", X_Webhook_Token=token)

        answers = [await send(name, "wrong") for name in ("shop", "git", "unknown")]
        answers.append(await here.get("/api/v1/topics", **bearer("dnb_wrong")))
        assert {(one.status, one.json()["detail"], one.headers.get("www-authenticate")) for one in answers} == {
            (401, answers[0].json()["detail"], answers[0].headers.get("www-authenticate"))
        }
        began = CLOCK.monotonic()
        assert (await send("unknown", "wrong")).status == 401
        assert CLOCK.monotonic() - began > 0.15  # the fifth failure: twice 0.1 s
        assert (await send("unknown", "wrong")).status == 401
        assert (await send("shop", "wrong")).status in (429, 503)
        assert (await send("shop", secret)).status == 200  # who knows the secret is not kept out by others


# -- strangers ---------------------------------------------------------------------------------------------------------


async def test_each_listener_answers_the_same_whether_a_key_exists_or_not(here):
    async with grpc_connect("{}:{}".format(*here.server.grpc_address)) as peer:
        key_id, _ = await here.key()
        told: set[str] = set()
        for wrong in (f"dnb_{key_id}_{'a' * 43}", f"dnb_{'0' * 16}_{'a' * 43}"):
            with pytest.raises(Unauthenticated) as raised:
                await here.connection(wrong)
            told.add(raised.value.message)
            told.add((await here.get("/api/v1/topics", **bearer(wrong))).json()["detail"])
            _, details = await peer.status("danube.Discovery/TopicPartitions", [("authorization", f"Bearer {wrong}")])
            told.add(details)
        assert len({one.rpartition("Unauthenticated: ")[2] for one in told}) == 1, told


async def test_giant_credentials_are_refused_by_each_listener_and_it_goes_on(here):
    giant = "a" * 1_000_000
    with pytest.raises((Unauthenticated, Invalid)):
        await here.connection(giant)
    async with await Peer.connect(here) as peer:  # type: ignore[arg-type]
        peer.send("GET", "/api/v1/topics", **bearer(giant))
        assert (await peer.answer()).status in (400, 401, 431)
    for address in (here.server.grpc_address, here.server.admin_address):
        async with grpc_connect("{}:{}".format(*address)) as channel:
            path = "danube_admin.BrokerAdmin/ListBrokers"
            path = path if address == here.server.admin_address else "danube.Discovery/TopicPartitions"
            code, _ = await channel.status(path, [("authorization", f"Bearer {giant}")])
            assert code in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAUTHENTICATED)
            await channel.call("grpc.health.v1.Health/Check")
    assert (await here.get("/api/v1/topics", **bearer(here.admin))).status == 200
    await (await here.connection(here.admin)).close()


# -- the work of strangers ---------------------------------------------------------------------------------------------


async def test_the_body_of_a_request_is_not_parsed_before_its_sender_is_known(here):
    assert here.server._http is not None
    path, chunks = f"/api/v1/topics{TOPIC}/messages", b"1\r\nx\r\n" * 2_000
    for _ in range(5):  # the last of them are answered late
        async with await Peer.connect(here) as peer:  # type: ignore[arg-type]
            peer.send("POST", path, chunks, transfer_encoding="chunked", **bearer("wrong"))
            await until(lambda: here.server._http._connections)  # type: ignore[union-attr]
            (connection,) = here.server._http._connections
            answer = await peer.answer()
            assert (answer.status, answer.headers["connection"]) == (401, "close")
            assert connection.conn._chunks == 0
            assert connection._discarded_bytes_max == STRANGER_LINGER_BYTES
            assert await peer.closed() == b""
        await until(lambda: not here.server._http._connections)  # type: ignore[union-attr]
    async with await Peer.connect(here) as peer:  # type: ignore[arg-type]
        body = b"1\r\nx\r\n0\r\n\r\n"
        answer = await peer.request("POST", path, body, transfer_encoding="chunked", **bearer(here.admin))
        assert answer.json() == {"offsets": [{"partition": 0, "offset": 0}]}
