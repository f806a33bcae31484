"""The gRPC listeners themselves: health, reflection, limits, bad input, shutting down."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from google.protobuf import descriptor_pb2
from grpc import StatusCode
from grpc_peer import TIMEOUT_S, GrpcListener, GrpcPeer, connect, method_of, open_listener

import pydanube
from pydanube import testing
from pydanube.gateway.grpc import front
from pydanube.gateway.grpc.calls import snake_case
from pydanube.gateway.grpc.messages import SCHEMA
from pydanube.gateway.grpc.request_intake import RequestIntake
from pydanube.gateway.grpc.services import SERVICES
from pydanube.model.errors import Corrupt
from pydanube.model.limits import MIB

HEALTH_CHECK = "grpc.health.v1.Health/Check"
SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3
LIST_BROKERS = "danube_admin.BrokerAdmin/ListBrokers"
REGISTER = "danube_schema.SchemaRegistry/RegisterSchema"


@pytest.fixture(params=["data", "admin"])
async def peer(there: GrpcListener, request: pytest.FixtureRequest) -> AsyncIterator[GrpcPeer]:
    """A peer of each listener."""
    async with connect(getattr(there, request.param)) as peer:
        yield peer


class Gate:
    """A broker whose namespaces are listed when the test says so, and whose health the test chooses."""

    def __init__(self, broker: Any) -> None:
        self._broker = broker
        self.waiting = 0
        self.go = asyncio.Event()
        self.namespaces = self
        self.problems: list[str] = []
        self.error: Exception | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)

    def write_problems(self) -> list[str]:
        return self.problems

    async def names(self, _principal: Any) -> list[str]:
        self.waiting += 1
        try:
            await self.go.wait()
        finally:
            self.waiting -= 1
        if self.error is not None:
            raise self.error
        return ["default"]


# -- services ----------------------------------------------------------------------------------------------------------


def test_every_method_of_every_service_in_the_table_is_implemented():
    for service in SERVICES:
        for rpc in SCHEMA.methods(service.name):
            assert hasattr(service.make, snake_case(rpc)), f"{service.name}/{rpc}"


async def test_the_admin_services_are_not_on_the_data_port(there):
    async with connect(there.data) as peer:
        code, details = await peer.status(LIST_BROKERS)
    assert code is StatusCode.UNIMPLEMENTED
    assert "/danube_admin.BrokerAdmin/ListBrokers" in details and "admin port" in details


async def test_an_unknown_method_is_named_whatever_kind_of_call_it_is(there, peer):
    path = "/danube.Nothing/Here"
    calls = [
        peer.channel.unary_unary(path)(b"x", timeout=TIMEOUT_S),
        peer.channel.stream_unary(path)(iter([b"x"]), timeout=TIMEOUT_S),
    ]
    for call in calls:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await call
        assert raised.value.code() is StatusCode.UNIMPLEMENTED
        assert path in raised.value.details()


# -- health ------------------------------------------------------------------------------------------------------------


async def test_health_is_serving_for_the_broker_and_each_service_and_unknown_services_are_not_found(there, peer):
    listed = (await peer.call("grpc.health.v1.Health/List")).statuses
    assert {"", "danube_schema.SchemaRegistry"} <= set(listed)
    for name in listed:
        assert (await peer.call(HEALTH_CHECK, service=name)).status == SERVING
    assert (await peer.status(HEALTH_CHECK, service="danube.Nothing"))[0] is StatusCode.NOT_FOUND


async def test_a_watch_is_told_when_the_health_changes():
    async with open_listener(Gate) as there, connect(there.data) as peer:
        stream = peer.stream("grpc.health.v1.Health/Watch", service="")
        unknown = peer.stream("grpc.health.v1.Health/Watch", service="danube.Nothing")
        assert (await stream.read()).status == SERVING
        assert (await unknown.read()).status == SERVICE_UNKNOWN
        there.broker.problems = ["read-only: disk full"]
        assert (await stream.read()).status == NOT_SERVING
        assert (await peer.call(HEALTH_CHECK)).status == NOT_SERVING
        there.broker.problems = []
        assert (await stream.read()).status == SERVING
        there.server.drain()
        assert (await stream.read()).status == NOT_SERVING
        assert (await peer.call(HEALTH_CHECK)).status == NOT_SERVING


# -- reflection --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_a_tool_learns_all_services_and_calls_one_of_them(there, version):
    path = f"grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
    request = method_of(path).request
    async with connect(there.admin) as peer:
        asked = [
            request(list_services="*"),
            request(file_containing_symbol="danube_admin.BrokerAdmin"),
            request(file_by_filename="pydanube/gateway/grpc/danube_admin.proto"),
            request(all_extension_numbers_of_type="danube_admin.Empty"),
            request(file_containing_symbol="danube.Nothing"),
            request(),
        ]
        replies = [reply async for reply in peer.both_streams(path, iter(asked))]
    services, symbol, named, numbers, missing, nothing = replies
    assert {one.name for one in services.list_services_response.service} == {
        *(one.name for one in SERVICES if one.admin),
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
    }
    (serialized,) = symbol.file_descriptor_response.file_descriptor_proto
    assert list(named.file_descriptor_response.file_descriptor_proto) == [serialized]
    file = descriptor_pb2.FileDescriptorProto.FromString(serialized)
    assert "BrokerAdmin" in [one.name for one in file.service]
    assert numbers.all_extension_numbers_response.base_type_name == "danube_admin.Empty"
    assert missing.error_response.error_code == StatusCode.NOT_FOUND.value[0]
    assert nothing.error_response.error_code == StatusCode.INVALID_ARGUMENT.value[0]


# -- bad input ---------------------------------------------------------------------------------------------------------


async def test_a_request_that_is_no_message_is_invalid(there, peer):
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await peer.send(REGISTER, b"\xff\xff\xff garbage")
    assert raised.value.code() is StatusCode.INVALID_ARGUMENT
    assert "danube_schema.RegisterSchemaRequest" in raised.value.details()


async def test_an_oversized_request_is_refused_and_the_connection_goes_on():
    async with open_listener(message_bytes_max=MIB, receive_bytes_max=MIB) as there, connect(there.data) as peer:
        code, details = await peer.status(
            REGISTER, subject="s", schema_type="string", schema_definition=b"x" * (4 * MIB)
        )
        assert code is StatusCode.RESOURCE_EXHAUSTED and "larger than max" in details
        assert (await peer.call(HEALTH_CHECK)).status == SERVING


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: danube\r\n\r\n",
        b"\x00" * 1_000,
        b"DANB" + bytes(range(256)) * 10,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 1_000,
        b"",
    ],
    ids=["http1", "zeros", "native", "broken http2", "silence"],
)
async def test_what_is_not_http2_is_disconnected_and_disturbs_nobody(sent):
    async with open_listener(handshake_timeout_ms=500) as there, connect(there.data) as peer:
        host, _, port = there.data.rpartition(":")
        assert (await peer.call(HEALTH_CHECK)).status == SERVING
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(sent)
        async with asyncio.timeout(TIMEOUT_S):
            with suppress(ConnectionError):
                await reader.read()  # until it is closed
        writer.transport.abort()
        assert (await peer.call(HEALTH_CHECK)).status == SERVING


async def test_a_header_from_outside_grants_nothing_and_changes_nothing(there):
    async with connect(there.admin) as peer:
        metadata = (("x-danube-internal-broker", "true"), ("authorization", "Bearer nonsense"))
        assert (await peer.call(LIST_BROKERS, metadata)) == (await peer.call(LIST_BROKERS))


async def test_headers_beyond_the_limit_are_refused(there, peer):
    code, _ = await peer.status(HEALTH_CHECK, metadata=(("x-large", "x" * 100_000),))
    assert code is StatusCode.RESOURCE_EXHAUSTED
    assert (await peer.call(HEALTH_CHECK)).status == SERVING


async def test_an_exception_that_is_no_error_of_ours_is_internal_and_tells_no_details():
    async with open_listener(Gate) as there, connect(there.admin) as peer:
        there.broker.go.set()
        there.broker.error = RuntimeError("secret")
        code, details = await peer.status("danube_admin.BrokerAdmin/ListNamespaces")
        assert code is StatusCode.INTERNAL and "secret" not in details and "RuntimeError" in details
        there.broker.error = Corrupt("x" * 50_000)
        code, details = await peer.status("danube_admin.BrokerAdmin/ListNamespaces")
        assert code is StatusCode.DATA_LOSS and len(details) < 1_100


# -- limits ------------------------------------------------------------------------------------------------------------


async def test_calls_past_the_limit_of_an_address_are_refused_until_others_end():
    path = "danube_admin.BrokerAdmin/ListNamespaces"
    async with open_listener(Gate, calls_per_address_max=3) as there, connect(there.admin) as peer:
        running = [asyncio.ensure_future(peer.call(path)) for _ in range(3)]
        await there.until(lambda: there.broker.waiting == 3)
        code, details = await peer.status(path)
        assert code is StatusCode.RESOURCE_EXHAUSTED and "127.0.0.1 has 3 calls" in details
        there.broker.go.set()
        assert [list((await one).namespaces) for one in running] == [["default"]] * 3
        assert list((await peer.call(path)).namespaces) == ["default"]


async def test_calls_past_the_limit_of_the_listener_are_refused():
    path = "danube_admin.BrokerAdmin/ListNamespaces"
    async with open_listener(Gate, calls_max=3) as there, connect(there.admin) as peer:
        running = [asyncio.ensure_future(peer.call(path)) for _ in range(3)]
        await there.until(lambda: there.broker.waiting == 3)
        assert (await peer.status(path))[0] is StatusCode.RESOURCE_EXHAUSTED
        there.broker.go.set()
        await asyncio.gather(*running)
        assert list((await peer.call(path)).namespaces) == ["default"]


async def test_connections_past_the_limit_are_closed_and_the_others_work():
    async with (
        open_listener(connections_max=5) as there,  # four of the data listener, half of them for one address
        connect(there.data) as first,
        connect(there.data) as second,
        connect(there.data) as third,
    ):
        for peer in (first, second):
            assert (await peer.call(HEALTH_CHECK)).status == SERVING
        assert (await third.status(HEALTH_CHECK))[0] is StatusCode.UNAVAILABLE
        for peer in (first, second):
            assert (await peer.call(HEALTH_CHECK)).status == SERVING


@pytest.mark.parametrize("listener", ["data", "admin"])
async def test_idle_connections_of_one_address_leave_places_for_others(listener: str) -> None:
    """They are counted before a client has sent anything, as on the other listeners, and refused ones are logged as a
    number."""
    async with open_listener(connections_per_address_max=3) as there:
        host, _, port = getattr(there, listener).rpartition(":")
        front = there.server._fronts[listener == "admin"]
        idle = [await asyncio.open_connection(host, int(port)) for _ in range(3)]
        await there.until(lambda: front.places.connections == 3)
        for _ in range(5):
            reader, writer = await asyncio.open_connection(host, int(port))
            with suppress(ConnectionError):
                assert await reader.read() == b""  # disconnected at once
            writer.close()
        assert front.places._refused == 5
        idle.pop()[1].transport.abort()
        await there.until(lambda: front.places.connections == 2)
        async with connect(getattr(there, listener)) as peer:
            assert (await peer.call(HEALTH_CHECK)).status == SERVING
            assert [one.address.startswith("ipv4:127.0.0.1:") for one in front.clients] == [True] * 3
        for _, writer in idle:
            writer.transport.abort()
        await there.until(lambda: front.places.connections == 0 and not there.server._peers._clients)


class SlowRegistry:
    """A broker whose schemas are registered when the test says so."""

    def __init__(self, broker: Any) -> None:
        self._broker = broker
        self.schemas = self
        self.waiting = 0
        self.go = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)

    async def register(self, *arguments: Any) -> Any:
        self.waiting += 1
        await self.go.wait()
        return await self._broker.schemas.register(*arguments)


async def test_unanswered_requests_count_in_the_memory_that_native_publishes_use():
    def fields(subject):
        return {"subject": subject, "schema_type": "string", "schema_definition": subject.encode() * 40_000}

    async with open_listener(SlowRegistry, memory_bytes=100_000) as there, connect(there.data) as peer:
        first = asyncio.ensure_future(peer.call(REGISTER, **fields("a")))
        await there.until(lambda: there.broker.waiting == 1)
        assert 40_000 <= there.memory.used_bytes < 50_000
        code, details = await peer.status(REGISTER, **fields("b"))
        assert code is StatusCode.UNAVAILABLE and "unanswered" in details
        there.broker.go.set()  # acks and other small requests are not counted
        assert (await first).is_new_version
        await there.until(lambda: there.memory.used_bytes == 0)
        assert (await peer.call(REGISTER, **fields("b"))).is_new_version


class Received(bytes):
    """A request; counts those that are in memory."""

    alive = 0

    def __init__(self, *_: Any) -> None:
        Received.alive += 1

    def __del__(self) -> None:
        Received.alive -= 1


async def test_a_refused_request_is_not_kept_while_its_connection_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    real = RequestIntake.receive

    async def receive(intake: RequestIntake, context: Any) -> bytes:
        return Received(await real(intake, context))

    monkeypatch.setattr(RequestIntake, "receive", receive)
    async with open_listener(memory_bytes=100_000) as there, connect(there.data) as peer:
        assert there.memory.reserve(90_000)  # by others
        for _ in range(10):
            code, _ = await peer.status(REGISTER, subject="s", schema_type="string", schema_definition=b"x" * 40_000)
            assert code is StatusCode.UNAVAILABLE
        await there.until(lambda: Received.alive == 0)


async def test_a_client_that_goes_away_frees_what_its_calls_held():
    path = "danube_admin.BrokerAdmin/ListNamespaces"
    async with open_listener(Gate, calls_per_address_max=2) as there:
        async with connect(there.admin) as peer:
            running = [asyncio.ensure_future(peer.call(path)) for _ in range(2)]
            await there.until(lambda: there.broker.waiting == 2)
        await there.until(lambda: there.broker.waiting == 0)
        await asyncio.gather(*running, return_exceptions=True)
        there.broker.go.set()
        async with connect(there.admin) as peer:
            assert list((await peer.call(path)).namespaces) == ["default"]


# -- shutting down -----------------------------------------------------------------------------------------------------


async def test_a_draining_listener_answers_what_runs_and_refuses_what_is_new():
    path = "danube_admin.BrokerAdmin/ListNamespaces"
    async with open_listener(Gate) as there, connect(there.admin) as peer:
        running = asyncio.ensure_future(peer.call(path))
        await there.until(lambda: there.broker.waiting == 1)
        there.server.drain()
        code, details = await peer.status(path)
        assert code is StatusCode.UNAVAILABLE and "shutting down" in details
        closing = asyncio.ensure_future(there.server.close(TIMEOUT_S))
        there.broker.go.set()
        assert list((await running).namespaces) == ["default"]
        await closing


# -- the listeners as parts of the broker ------------------------------------------------------------------------------


async def test_a_broker_opens_both_listeners_and_publishes_memory_is_shared(tmp_path):
    async with testing._server(tmp_path, {"grpc_data": True, "grpc_admin": True}) as server:
        assert server._grpc._door is server._native._resources.door
        for host, port in (server.grpc_address, server.admin_address):
            async with connect(f"{host}:{port}") as peer:
                assert (await peer.call(HEALTH_CHECK)).status == SERVING
        assert (
            f"grpc=127.0.0.1:{server.grpc_address[1]} admin=127.0.0.1:{server.admin_address[1]} " in server.ready_line
        )


@pytest.mark.parametrize(("name", "listener"), [("grpc", "gRPC"), ("admin", "gRPC admin")])
async def test_a_port_that_is_taken_says_how_to_choose_another(tmp_path, name, listener):
    on = {"grpc_data": True, "grpc_admin": True}
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            pydanube.Refused, match=rf"127.0.0.1:{port} is taken.* {listener} listener; .* --{name}-port"
        ):
            async with testing.broker(tmp_path, **on, **{f"server_{name}_port": port}):
                raise AssertionError("it listens on a port that is taken")


async def test_each_listener_can_be_turned_off(tmp_path):
    async with testing._server(tmp_path / "a", {"grpc_data": True}) as server:
        assert server.grpc_address[1] and not server.admin_address[1]
    async with testing._server(tmp_path / "b", {"grpc_admin": True}) as server:
        assert not server.grpc_address[1] and server.admin_address[1]


async def test_without_grpcio_there_is_no_listener_and_the_log_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "grpc", None)  # as if it were not installed
    logged: dict[str, Any] = {}
    monkeypatch.setattr("pydanube.server.server.log.info", lambda event, **data: logged.update({event: data}))
    async with testing._server(tmp_path, {"grpc_data": True, "grpc_admin": True}) as server:
        assert "grpc=127.0.0.1:0 admin=127.0.0.1:0" in server.ready_line
    assert "pip install 'pydanube[grpc]'" in logged["grpc.not_installed"]["advice"]


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        ({}, "http://127.0.0.1:{port}"),
        ({"server_advertised": "broker:7000"}, "http://broker:{port}"),
        ({"grpc_advertised": "danube:80"}, "http://danube:80"),
        ({"grpc_advertised": "[2001:db8::1]:80"}, "http://[2001:db8::1]:80"),
        ({"server_advertised": "[2001:db8::1]:80"}, "http://[2001:db8::1]:{port}"),
        ({"server_host": "0.0.0.0"}, "http://127.0.0.1:{port}"),
    ],
)
async def test_clients_are_told_an_address_with_a_scheme(tmp_path, settings, url):
    async with testing._server(tmp_path, {"grpc_data": True, "grpc_admin": True, **settings}) as server:
        async with connect(f"127.0.0.1:{server.admin_address[1]}") as peer:
            (broker,) = (await peer.call(LIST_BROKERS)).brokers
        assert broker.broker_addr == url.format(port=server.grpc_address[1])
        assert broker.admin_addr.rpartition(":")[2] == str(server.admin_address[1])


async def test_every_listener_of_all_ipv4_addresses_is_closed_on_ipv6(tmp_path):
    if not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    async with testing._server(tmp_path, {"server_host": "0.0.0.0", "grpc_data": True, "grpc_admin": True}) as server:
        for host, port in (server.native_address, server.http_address, server.grpc_address, server.admin_address):
            assert host == "0.0.0.0" and port
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            with pytest.raises(OSError):
                await asyncio.open_connection("::1", port)


def test_the_directory_that_a_killed_broker_left_is_removed_and_those_of_others_stay() -> None:
    killed, running = front._PrivateDirectory(), front._PrivateDirectory()
    os.close(killed._lock)  # as its end does
    started = front._PrivateDirectory()
    assert [Path(one.path).exists() for one in (killed, running, started)] == [False, True, True]
    for one in (running, started):
        one.remove()
        assert not Path(one.path).exists()


async def test_a_connection_that_grpc_ends_and_nobody_reads_loses_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "LAST_BYTES_S", 0.2)
    async with open_listener() as there:
        host, port = there.data.rsplit(":", 1)
        listener = there.server._fronts[0]
        with socket.socket() as line:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            line.connect((host, int(port)))
            await there.until(lambda: any(one.other is not None for one in listener.clients))
            (client,) = listener.clients
            client.transport.write(bytes(64 * MIB))
            assert client.other is not None
            client.other.transport.abort()
            await there.until(lambda: listener.places.connections == 0)
