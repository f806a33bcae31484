"""The audit of a whole broker: its file and its topic, sessions with what they moved, credentials, and no secret."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from broker_harness import BrokerClient
from grpc_peer import connect as grpc_connect
from grpc_peer import method_of
from http_peer import Peer
from two_brokers import two_brokers

import pydanube
from pydanube.broker.security.api_keys import new_key
from pydanube.broker.security.audit import FAILURES_MAX
from pydanube.broker.security.audit_operations import Origin
from pydanube.broker.security.audit_topic import TopicSink
from pydanube.broker.security.records import BindingRecord
from pydanube.client.connection.connection import Connection
from pydanube.client.connection.servers import BrokerAddress
from pydanube.codec.batch import encode
from pydanube.codec.native import requests
from pydanube.core.access import Action
from pydanube.model.errors import DanubeError, Denied, Refused, Unauthenticated
from pydanube.model.names import TopicName
from pydanube.model.security import BoundSubject
from pydanube.operations import topics
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.tasks import Tasks
from pydanube.server.server import Server
from pydanube.testing import _server

TOPIC = "/default/orders"
CLOCK = SystemClock()
CLUSTER_TOKEN = "c1uster-token-0123456789abcdef-0123456789"


class Here:
    def __init__(self, server: Server, directory: Path) -> None:
        self.server = server
        self.directory = directory
        key = directory / "admin-key"
        self.admin = key.read_text().strip() if key.exists() else ""
        self.broker = server._native._resources.broker  # type: ignore[union-attr]
        self.store = self.broker.security._parts.store if self.admin else None  # type: ignore[union-attr]

    @property
    def address(self) -> tuple[str, int]:
        return self.server.http_address

    async def key(self, principal: str, role: str = "", resource: str = "/default") -> tuple[str, str]:
        """Return the id and the secret of a new key, of a principal that has the role."""
        assert self.store is not None
        new, record = new_key(BoundSubject.parse(principal), CLOCK.now_us())
        await self.store.key_table.create(new.key.id, record)
        if role:
            await self.store.binding_table.create(f"{principal}-{role}", BindingRecord(principal, [role], resource))
        return new.key.id, new.secret

    async def connection(self, token: str = "") -> Connection:
        return await Connection.open(BrokerAddress(*self.server.native_address), CLOCK, 5.0, token)

    async def request(self, method: str, path: str, body: object = None, **headers: str) -> int:
        async with await Peer.connect(self) as peer:  # type: ignore[arg-type]
            content = b"" if body is None else json.dumps(body).encode()
            if content:
                headers["content_type"] = "application/json"
            return (await peer.request(method, path, content, **headers)).status

    async def events(self, *kinds: str, least: int = 0) -> list[dict[str, Any]]:
        """Return the events of these kinds that are in the file, once there are so many."""
        async with asyncio.timeout(30):
            while True:
                found = read_events(self.directory)
                found = [one for one in found if one["kind"] in kinds]
                if len(found) >= least and not self.broker.audit._queue:
                    return found
                await asyncio.sleep(0.01)


def read_events(directory: Path) -> list[dict[str, Any]]:
    path = directory / "audit.log"
    return [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []


@asynccontextmanager
async def served(directory: Path, **overrides: Any) -> AsyncIterator[Here]:
    given = {"auth_enabled": True, "grpc_data": True, "grpc_admin": True, "auth_cluster_token": CLUSTER_TOKEN}
    async with _server(directory, {**given, **overrides}) as server:
        yield Here(server, directory)


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def shown(event: dict[str, Any], *fields: str) -> tuple[Any, ...]:
    return tuple(event.get(one) for one in fields)


# -- sessions ----------------------------------------------------------------------------------------------------------


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Here]:
    async with served(tmp_path) as opened:
        yield opened


async def test_native_producers_consumers_and_readers_are_sessions_with_what_they_moved(tmp_path: Path):
    async with served(tmp_path) as here:
        async with pydanube.connect(here.server.url, token=here.admin) as client:
            async with client.producer(TOPIC) as producer:
                await asyncio.gather(*(producer.send(b"x" * 100) for _ in range(20)))
            async with client.consumer(TOPIC, subscription="billing", start="earliest") as consumer:
                for _ in range(20):
                    await consumer.ack(await consumer.receive())
            async with client.reader(TOPIC, start="earliest") as reader:
                await anext(aiter(reader))
        sessions = await here.events("session", least=6)
        changes = await here.events("administration", least=2)
    ended = {one["operation"]: one for one in sessions if one["phase"] == "ended"}
    opened = {one["operation"]: one for one in sessions if one["phase"] == "opened"}
    assert set(ended) == set(opened) == {"OpenProducer", "Subscribe", "Fetch"}
    fields = ("action", "resource", "messages", "partition", "outcome")
    assert shown(ended["OpenProducer"], *fields) == ("produce", TOPIC, 20, 0, "done")
    assert shown(ended["Subscribe"], *fields) == ("consume", f"{TOPIC}/billing", 20, 0, "done")
    assert shown(ended["Fetch"], *fields) == ("read", TOPIC, 20, None, "done")
    for name, one in ended.items():
        assert one["bytes"] >= 2000 and one["session"] == opened[name]["session"], name
        assert shown(one, "principal", "method", "listener") == ("user:admin", "api-key", "native")
    created = [shown(one, "operation", "action", "resource", "outcome") for one in changes]
    assert created == [
        ("Lookup", "create", TOPIC, "done"),
        ("Subscribe", "create", f"{TOPIC}/billing", "done"),
    ]


async def test_publishing_and_consuming_over_http_and_grpc_are_sessions(tmp_path: Path):
    topic = f"/api/v1/topics{TOPIC}"
    messages, events = f"{topic}/messages", f"{topic}/events?start=earliest"
    async with served(tmp_path) as here:
        for count in (2, 3):
            body = {"messages": [{"payload": "x"}] * count}
            assert await here.request("POST", messages, body, **bearer(here.admin)) == 200
        async with await Peer.connect(here) as reading:  # type: ignore[arg-type]
            reading.send("GET", events, **bearer(here.admin))
            await reading._reader.readuntil(b"id: 0.5")
        body = {"type": "shared", "start": "earliest"}
        assert await here.request("POST", f"{topic}/subscriptions/s/consumers", body, **bearer(here.admin)) == 201
        port = here.server.grpc_address[1]
        async with grpc_connect(f"127.0.0.1:{port}") as peer:
            metadata = (("authorization", f"Bearer {here.admin}"),)
            create, send = (method_of(f"danube.ProducerService/{one}") for one in ("CreateProducer", "SendMessage"))

            async def call(method, **fields: Any) -> Any:
                caller = peer.channel.unary_unary(
                    method.path, lambda one: one.SerializeToString(), method.reply.FromString
                )
                return await caller(method.request(**fields), metadata=metadata)

            made = await call(create, topic_name=TOPIC, producer_name="p", dispatch_strategy=1)
            identity = {"producer_id": made.producer_id, "topic_name": TOPIC}
            await call(send, msg_id=identity, producer_name="p", payload=b"x")
        opened = [one for one in await here.events("session", least=5) if one["phase"] == "opened"]
        assert {shown(one, "principal", "address") for one in opened} == {("user:admin", "127.0.0.1")}
    ended = [one for one in read_events(tmp_path) if one["kind"] == "session" and one["phase"] == "ended"]
    assert len(ended) == 4
    found = {one["operation"]: shown(one, "listener", "action", "messages") for one in ended}
    assert found.pop("openConsumer")[:2] == ("http", "consume")  # it may have got some messages, and was not asked
    assert found == {
        "publishMessages": ("http", "produce", 5),
        "streamTopic": ("http", "read", 5),
        "danube.ProducerService/CreateProducer": ("grpc", "produce", 1),
    }


async def test_sessions_end_denied_when_the_right_is_taken_away(tmp_path: Path):
    async with served(tmp_path) as here:
        _, key = await here.key("user:bob", "producer")
        async with pydanube.connect(here.server.url, token=here.admin) as client:
            await client.create_topic(TOPIC)
        async with pydanube.connect(here.server.url, token=key) as client, client.producer(TOPIC) as producer:
            await producer.send(b"x")
            assert here.store is not None
            await here.store.binding_table.delete("user:bob-producer")
            with pytest.raises(DanubeError):
                await producer.send(b"y")
        (_, ended) = await here.events("session", least=2)
    assert shown(ended, "outcome", "messages", "principal") == ("denied", 1, "user:bob")
    assert ended["reason"].startswith("Denied: user:bob may not produce")


async def test_a_denied_fetch_is_refused_once(tmp_path: Path):
    async with served(tmp_path) as here:
        _, key = await here.key("user:bob", "monitor")
        async with pydanube.connect(here.server.url, token=here.admin) as client:
            await client.create_topic(TOPIC)
        async with pydanube.connect(here.server.url, token=key) as client:
            with pytest.raises(Denied):
                async with client.reader(TOPIC, start=0) as reader:
                    await anext(aiter(reader))
        refused = await here.events("refused", least=1)
    assert {shown(one, "action", "resource", "principal") for one in refused} == {("read", TOPIC, "user:bob")}


async def test_sessions_can_be_turned_off(tmp_path: Path):
    async with served(tmp_path, audit_sessions=False) as here:
        async with (
            pydanube.connect(here.server.url, token=here.admin) as client,
            client.producer(TOPIC) as producer,
        ):
            await producer.send(b"x")
        assert len(await here.events("administration", least=1)) == 1
    assert [one for one in read_events(tmp_path) if one["kind"] == "session"] == []


# -- security ----------------------------------------------------------------------------------------------------------


async def test_roles_bindings_and_keys_say_what_was_changed(tmp_path: Path):
    async with served(tmp_path) as here:
        async with pydanube.connect(here.server.url, token=here.admin) as client:
            await client.access.create_role("loader", ["produce", "create"])
            await client.access.create_binding("user:etl", ["loader"], "/default", binding_id="b1")
            made = await client.access.create_key("user:etl")
            etl = made.secret
        async with pydanube.connect(here.server.url, token=etl) as client:
            await client.access.create_key()
            with suppress(DanubeError):  # the answer may come when the session has ended
                await client.access.revoke_key(made.key.id)
        found = await here.events("security", least=6)
    assert [shown(one, "operation", "outcome", "detail")[:2] for one in found[:3]] == [
        ("CreateRole", "done"),
        ("CreateAccessBinding", "done"),
        ("CreateApiKey", "done"),
    ]
    assert [one["detail"] for one in found[:3]] == [
        "role loader: produce, create",
        "binding b1: loader to user:etl on /default",
        f"API key {made.key.id} of user:etl",
    ]
    own = {shown(one, "operation", "principal", "outcome") for one in found[3:]}
    assert own == {
        ("CreateApiKey", "user:etl", "done"),
        ("RevokeApiKey", "user:etl", "done"),
        ("endSession", "user:etl", "unauthenticated"),
    }
    (ended,) = (one for one in found if one["operation"] == "endSession")
    assert shown(ended, "reason", "listener", "address") == ("the API key was revoked", "native", "127.0.0.1")
    assert "dnb_" not in (tmp_path / "audit.log").read_text()


async def test_quotas_say_whose_limits_were_changed(tmp_path: Path):
    async with served(tmp_path) as here:
        async with pydanube.connect(here.server.url, token=here.admin) as client:
            await client.access.set_quota("user:etl", publish_bytes_per_s=1000, connections_max=3)
            await client.access.delete_quota("user:etl")
        found = await here.events("administration", least=2)
    assert [shown(one, "operation", "outcome", "detail") for one in found] == [
        ("SetQuota", "done", "quota of user:etl: connections_max=3, publish_bytes_per_s=1000"),
        ("DeleteQuota", "done", "quota of user:etl"),
    ]


async def test_wrong_credentials_are_events_with_the_reason_and_never_with_the_credentials(tmp_path: Path):
    marks = {one: f"MARKED-{one}-0123456789abcdef" for one in ("hello", "bearer", "key", "basic", "grpc", "again")}
    async with served(tmp_path, auth_failures_max=1000) as here:
        for token in (marks["hello"], f"dnb_0123456789abcdef_{marks['hello']}", f"a.{marks['hello']}.c"):
            with pytest.raises(Unauthenticated):
                await here.connection(token)
        topics, subjects = "/api/v1/topics", "/schema-registry/subjects"
        password = base64.b64encode(f"admin:{marks['basic']}".encode()).decode()
        assert await here.request("GET", topics, **bearer(marks["bearer"])) == 401
        assert await here.request("GET", topics, x_api_key=marks["key"]) == 401
        assert await here.request("GET", subjects, authorization=f"Basic {password}") == 401
        assert await here.request("GET", topics) == 401
        async with grpc_connect(f"127.0.0.1:{here.server.admin_address[1]}") as peer:
            method = method_of("danube_admin.BrokerAdmin/ListNamespaces")
            call = peer.channel.unary_unary(method.path, lambda one: one.SerializeToString(), method.reply.FromString)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call(method.request(), metadata=(("authorization", f"Bearer {marks['grpc']}"),))
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        connection = await here.connection(here.admin)
        request = requests.Authenticate(auth_scheme="bearer", auth_data=marks["again"].encode())
        with pytest.raises(Unauthenticated):
            await connection.request(request, requests.Authenticated)
        await connection.close()
        found = await here.events("security", least=9)
    assert len(found) == 9 and {shown(one, "outcome", "operation", "address") for one in found} == {
        ("unauthenticated", "authenticate", "127.0.0.1")
    }
    assert [one["listener"] for one in found] == ["native"] * 3 + ["http"] * 4 + ["admin", "native"]
    assert all(one["reason"] and "principal" not in one for one in found)
    assert [one["reason"] for one in found[:3]] == [
        "it is neither an API key nor a JWT",
        "it begins as an API key, and does not have its form: a part may be missing",
        "JWTs are not accepted: auth.secret, auth.jwks_file or auth.jwks_url is needed for them",
    ]
    assert found[6]["reason"] == "no credentials were shown"
    text = (tmp_path / "audit.log").read_text()
    assert "MARKED" not in text and password not in text and here.admin not in text


async def test_a_flood_of_wrong_credentials_does_not_fill_the_disk(tmp_path: Path):
    async with served(tmp_path) as here:
        for _ in range(60):
            await here.request("GET", "/api/v1/topics")
        assert len(await here.events("security", least=FAILURES_MAX)) == FAILURES_MAX
    last = [one for one in read_events(tmp_path) if one["kind"] == "security"][-1]
    assert last["reason"] == f"{60 - FAILURES_MAX} more failures within 60 s"


async def test_what_a_broker_asks_for_its_callers_is_not_recorded_twice_and_the_rest_is(tmp_path: Path):
    async with served(tmp_path) as here:
        peer = await here.connection(CLUSTER_TOKEN)
        await peer.request(topics.CreateTopic(topic=TOPIC), requests.Done)
        topic = await peer.request(topics.DescribeTopic(topic=TOPIC), topics.Topic)
        await peer.request(topics.UnloadTopic(topic=TopicName.parse(TOPIC), own_only=True), requests.Done)
        await peer.request(requests.CountProducers(topic=TOPIC, topic_id=topic.topic_id), requests.ProducerCount)
        await peer.request(requests.OpenForwarder(topic=TOPIC, partition=0), requests.ProducerOpened)
        await peer.close()
    (created,) = read_events(tmp_path)
    assert shown(created, "operation", "principal", "method") == ("CreateTopic", "broker:cluster", "cluster-token")


async def test_the_schema_registry_of_confluents_clients_is_recorded(tmp_path: Path):
    versions, schema = "/schema-registry/subjects/orders-value/versions", {"schema": '{"type": "string"}'}
    async with served(tmp_path) as here:
        _, key = await here.key("user:bob")
        assert await here.request("POST", versions, schema, **bearer(key)) == 403
        for _ in range(2):
            assert await here.request("POST", versions, schema, **bearer(here.admin)) == 200
        assert await here.request("GET", versions, **bearer(here.admin)) == 200
        assert await here.request("DELETE", "/schema-registry/subjects/other", **bearer(here.admin)) == 404
    fields = ("operation", "principal", "action", "resource", "outcome")
    assert [shown(one, *fields) for one in read_events(tmp_path)] == [
        ("schemaRegistry.register", "user:bob", "create", "schema:orders-value", "denied"),
        ("schemaRegistry.register", "user:admin", "create", "schema:orders-value", "done"),
        ("schemaRegistry.delete_subject", "user:admin", "delete", "schema:other", "failed"),
    ]


async def test_staged_writes_are_sessions(tmp_path: Path):
    async with served(tmp_path) as here, pydanube.connect(here.server.url, token=here.admin) as client:
        await client.create_topic(TOPIC)
        async with client.stager("nightly", run="run", batch_id=0) as stager:
            await stager.add(TOPIC, 0, encode([b"one", b"two", b"three"], publish_times=1))
            stages = await stager.finish()
        await client.commit_stages("nightly", run="run", batch_id=0, stages=stages)
    found = {one["phase"]: one for one in read_events(tmp_path) if one["kind"] == "session"}
    assert shown(found["ended"], "operation", "action", "resource", "messages") == ("Stage", "produce", TOPIC, 3)


# -- where it goes -----------------------------------------------------------------------------------------------------


async def test_it_is_off_without_authentication_unless_it_is_turned_on(tmp_path: Path):
    for directory, overrides, has_it in (
        (tmp_path / "plain", {"auth_enabled": False}, False),
        (tmp_path / "on", {"auth_enabled": False, "audit_enabled": True}, True),
        (tmp_path / "off", {"audit_enabled": False}, False),
    ):
        async with (
            served(directory, auth_cluster_token="", **overrides) as here,
            pydanube.connect(here.server.url, token=here.admin or None) as client,
        ):
            await client.create_topic(TOPIC)
        assert (directory / "audit.log").exists() is has_it
        found = [shown(one, "operation", "principal", "outcome") for one in read_events(directory)]
        assert found == ([("CreateTopic", "user:anonymous", "done")] if has_it else [])


async def test_a_file_that_cannot_be_opened_refuses_the_start(tmp_path: Path):
    with pytest.raises(Refused, match=r"audit\.enabled = false"):
        async with served(tmp_path / "data", audit_file=str(tmp_path / "missing" / "audit.log")):
            pass


async def test_a_restart_goes_on_behind_the_events_before(tmp_path: Path):
    for number in range(2):
        async with served(tmp_path) as here, pydanube.connect(here.server.url, token=here.admin) as client:
            await client.create_topic(f"/default/topic-{number}")
        if not number:
            with (tmp_path / "audit.log").open("ab") as torn:
                torn.write(b'{"time":"torn')
    lines = (tmp_path / "audit.log").read_text().splitlines()
    assert [json.loads(one)["resource"] for one in (lines[0], lines[2])] == ["/default/topic-0", "/default/topic-1"]
    assert lines[1] == '{"time":"torn'


async def test_the_state_and_the_metrics_say_that_events_cannot_be_written(here):

    def fail(_lines: object) -> None:
        raise OSError(28, "No space left on device")

    sink = here.broker.audit.sink
    append, sink._file.append = sink._file.append, fail  # type: ignore[union-attr]
    async with pydanube.connect(here.server.url, token=here.admin) as client:
        await client.create_topic(TOPIC)  # operations go on
        async with asyncio.timeout(30):
            while "audit" not in (state := (await client.describe_broker()).state):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    assert "audit events cannot be written" in state and "No space left on device" in state
    sink._file.append = append  # type: ignore[union-attr]
    assert len(await here.events("administration", least=1)) == 1


async def read_topic(client: pydanube.Client, topic: str, count: int) -> list[dict[str, Any]]:
    async with asyncio.timeout(30):
        while topic not in await client.list_topics():  # noqa: ASYNC110 - the broker creates it soon
            await asyncio.sleep(0.01)
    async with client.reader(topic, start="earliest") as reader:
        found: list[dict[str, Any]] = []
        async for message in reader:
            found.append(json.loads(message.payload))
            if len(found) == count:
                return found
    raise AssertionError(found)


async def test_events_can_go_to_a_topic_without_events_about_that(tmp_path: Path):
    settings = {"audit_to": "topic", "audit_topic": "/system/audit"}
    async with served(tmp_path, **settings) as here, pydanube.connect(here.server.url, token=here.admin) as client:
        await client.create_topic(TOPIC)
        await client.create_topic("/default/other")
        found = await read_topic(client, "/system/audit", 2)
        description = await client.describe_topic("/system/audit")
        assert description.config.reliable
    assert not (tmp_path / "audit.log").exists()
    assert [shown(one, "operation", "resource") for one in found] == [
        ("CreateTopic", TOPIC),
        ("CreateTopic", "/default/other"),
    ]
    async with served(tmp_path, audit_to="topic") as here:
        async with pydanube.connect(here.server.url, token=here.admin) as client:
            found = await read_topic(client, "/system/audit", 4)
        assert {shown(one, "operation", "resource", "kind") for one in found[2:]} == {
            ("Fetch", "/system/audit", "session")
        }


async def test_events_go_to_a_topic_of_another_broker(tmp_path: Path):
    topic = TopicName.parse("/default/audit")
    async with two_brokers(tmp_path) as pair, Tasks() as tasks:
        await pair.create(topic, b=[0])
        broker, placement = pair.a, pair.a._partitions.placement.place_quietly
        publish, level = broker.publisher.publish_own, broker._levels.default
        broker.audit.sink = TopicSink(topic, broker._registry, publish, placement, level, pair.clock)
        broker.audit.start(tasks)
        broker.audit.refuse(Origin("native", "10.0.0.1", "user:bob"), "Fetch", Action.READ, TOPIC, Denied("no"))
        await broker.audit.close()
        stored = await BrokerClient(pair.b, topic).read_all()
        assert [json.loads(payload)["principal"] for _, payload in stored] == ["user:bob"]
        assert pair.opened_by(topic) == {"a": [], "b": [0]}
