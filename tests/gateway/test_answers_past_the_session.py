"""What a broker says whose session is over, while others change what it has in memory: on every listener."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio
import pytest
from broker_harness import TOPIC
from cluster_harness import stop_following
from grpc_pair import open_grpc
from http_peer import HttpListener, Peer
from two_brokers import TwoBrokers, two_brokers

from pydanube.client.connection.connection import Connection
from pydanube.client.connection.servers import BrokerAddress
from pydanube.codec.native import requests
from pydanube.core.access import ANONYMOUS
from pydanube.gateway.grpc.messages import SCHEMA
from pydanube.gateway.http import HttpServer
from pydanube.gateway.native import NativeServer
from pydanube.model.errors import NotFound, Unavailable
from pydanube.model.names import TopicName
from pydanube.model.paging import NamePage
from pydanube.model.quotas import QuotaSubject
from pydanube.model.replies import ReplyHead
from pydanube.model.schemas import Binding, SchemaDefinition, SchemaFormat, ValidationPolicy
from pydanube.model.settings.sections import LimitSettings, Sections
from pydanube.model.topics import TopicConfig
from pydanube.operations import topics
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.descriptor_sets import ServiceMethod
from pydanube.runtime.tasks import Tasks

NEW = TopicName.parse("/default/new")
QUOTA = QuotaSubject.parse("user:alice")


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[TwoBrokers]:
    async with two_brokers(tmp_path) as pair:
        await pair.create(TOPIC)
        yield pair


async def change_elsewhere(pair: TwoBrokers) -> None:
    """Let broker `a` hear of nothing, and broker `b` make a topic, a quota and a binding."""
    await stop_following(pair.a)
    await pair.b.topics.create(ANONYMOUS, NEW, TopicConfig())
    await pair.b.quotas.set(ANONYMOUS, QUOTA, {"fetch_bytes_per_s": 1 << 20})
    await pair.b.schemas.register(ANONYMOUS, "orders", SchemaDefinition(SchemaFormat.AVRO, '"string"'))
    await pair.b.schemas.bind(ANONYMOUS, TOPIC, Binding("orders", ValidationPolicy.WARN))


@asynccontextmanager
async def http_of(pair: TwoBrokers, name: str) -> AsyncIterator[HttpListener]:
    broker = pair.table.brokers[name]
    async with Tasks() as tasks:
        server = HttpServer(broker, Sections(), SystemClock(), tasks)
        address = await server.start("127.0.0.1", 0)
        try:
            yield HttpListener(server, address, broker, "")
        finally:
            await server.close(0)


@asynccontextmanager
async def native_of(pair: TwoBrokers, name: str) -> AsyncIterator[Connection]:
    clock = SystemClock()
    async with Tasks() as tasks:
        server = NativeServer(pair.table.brokers[name], LimitSettings(), clock, tasks)
        host, port = await server.start("127.0.0.1", 0)
        connection = await Connection.open(BrokerAddress(host, port), clock)
        try:
            yield connection
        finally:
            await connection.close()
            await server.close(0)


async def test_a_broker_that_has_a_session_asks_the_metadata_before_it_says_that_there_is_none(
    pair: TwoBrokers,
) -> None:
    await change_elsewhere(pair)
    assert (await pair.a.quotas.get(ANONYMOUS, QUOTA)).limits.fetch_bytes_per_s == 1 << 20
    assert await pair.a.schemas.binding(ANONYMOUS, TOPIC) == Binding("orders", ValidationPolicy.WARN)
    assert (await pair.a.policies.get(ANONYMOUS, NEW)).own is not None


async def test_http_says_how_old_an_answer_may_be_and_never_that_something_does_not_exist(pair: TwoBrokers) -> None:
    async with http_of(pair, "a") as listener, await Peer.connect(listener) as peer:
        missing = [
            "/api/v1/topics/default/nowhere",
            "/api/v1/access/quotas/user:nobody",
            "/schema-registry/subjects/nowhere/versions",
        ]
        for path in missing:
            answer = await peer.request("GET", path)
            assert (answer.status, answer.headers.get("danube-age")) == (404, None)
        pair.table.sessions.ages_s["a"] = 41.2
        for path in missing:
            answer = await peer.request("GET", path)
            assert (answer.status, answer.headers["danube-age"]) == (503, "42"), answer.body
            assert "the changes of the last 42 s" in answer.body.decode()
        listed = await peer.request("GET", "/api/v1/topics")
        assert (listed.status, listed.headers["danube-age"]) == (200, "42")
        about = await peer.request("GET", "/api/v1/brokers/a")
        assert "may be 42 s old" in about.json()["state"]
        del pair.table.sessions.ages_s["a"]
        assert "danube-age" not in (await peer.request("GET", "/api/v1/topics")).headers


async def test_a_native_client_is_warned_of_an_old_answer_and_told_unavailable(
    pair: TwoBrokers, capsys: pytest.CaptureFixture[str]
) -> None:
    async with native_of(pair, "a") as connection:
        with pytest.raises(NotFound):
            await connection.request(topics.DescribeTopic(topic="/default/nowhere"), topics.Topic)
        pair.table.sessions.ages_s["a"] = 41.2
        with pytest.raises(Unavailable, match=r"the changes of the last 42 s; as it was then: topic /default/nowhere"):
            await connection.request(topics.DescribeTopic(topic="/default/nowhere"), topics.Topic)
        for _ in range(2):
            assert (await connection.request(topics.ListTopics(), NamePage)).names == [str(TOPIC)]
    assert capsys.readouterr().err.count("broker.answers_old") == 1


class Asked:
    """Waits for what ends a request."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def replied(self, head: ReplyHead, payload: bytes, is_last: bool) -> None:
        self.ended.set_result(None)

    def fail(self, error: Exception) -> None:
        self.ended.set_exception(error)


async def test_a_request_for_replies_is_not_told_either_that_its_topic_does_not_exist(pair: TwoBrokers) -> None:
    async def ask(connection: Connection) -> None:
        asked = Asked()
        connection.ask(requests.Ask("/default/nowhere", 0, 8), b"question", asked)
        await asked.ended

    async with native_of(pair, "a") as connection:
        with pytest.raises(NotFound):
            await ask(connection)
        pair.table.sessions.ages_s["a"] = 41.2
        with pytest.raises(Unavailable, match="the changes of the last 42 s"):
            await ask(connection)


async def test_grpc_says_how_old_an_answer_may_be_and_never_that_something_does_not_exist(pair: TwoBrokers) -> None:
    described = SCHEMA.methods("danube_admin.TopicAdmin")["DescribeTopic"]
    listed = SCHEMA.methods("danube_admin.BrokerAdmin")["ListNamespaces"]
    async with open_grpc(pair, "a") as (_, admin), grpc.aio.insecure_channel(admin) as channel:

        async def ask(method: ServiceMethod, **fields: str) -> tuple[str, str]:
            stub = channel.unary_unary(
                method.path, method.request.SerializeToString, response_deserializer=method.reply.FromString
            )
            call = stub(method.request(**fields), timeout=60, wait_for_ready=True)
            ages = [value for name, value in await call.trailing_metadata() or () if name == "danube-age"]
            return (await call.code()).name, ",".join(ages)

        assert await ask(described, name="/default/nowhere") == ("NOT_FOUND", "")
        pair.table.sessions.ages_s["a"] = 41.2
        assert await ask(described, name="/default/nowhere") == ("UNAVAILABLE", "42")
        assert await ask(listed) == ("OK", "42")
