"""A client certificate tells who a caller is, on every listener, and nothing else does."""

from __future__ import annotations

import asyncio
import http.client
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_peer import method_of
from tls_files import Authority, Pair, tls_broker

import pydanube
from pydanube.model.errors import Denied, Unauthenticated
from pydanube.server.server import Server
from waiting import until

RULE = r"SAN DNS:([a-z]+)\.example => service_account:{1}"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def secured(authority: Authority) -> dict[str, Any]:
    return {
        "auth__enabled": True,
        "auth__certificate_rules": [RULE],
        "auth__super_users": "user:admin,service_account:loader",
        "tls__client_ca_file": authority.ca_file,
        "tls__client_certificates": "required",
    }


def shown(authority: Authority, pair: Pair) -> dict[str, Path]:
    return {"tls_ca_file": authority.ca_file, "tls_cert_file": pair.cert_file, "tls_key_file": pair.key_file}


def ask_http(server: Server, authority: Authority, pair: Pair, **headers: str) -> tuple[int, bytes]:
    context = ssl.create_default_context(cafile=str(authority.ca_file))
    context.load_cert_chain(pair.cert_file, pair.key_file)
    connection = http.client.HTTPSConnection("127.0.0.1", server.http_address[1], timeout=30, context=context)
    try:
        connection.request("GET", "/api/v1/access/whoami", headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


async def ask_grpc(port: int, authority: Authority, pair: Pair, **metadata: str) -> grpc.StatusCode:
    """Return the status of a call that needs rights on the cluster."""
    files = (authority.ca_file, pair.key_file, pair.cert_file)
    credentials = grpc.ssl_channel_credentials(*await asyncio.to_thread(lambda: [one.read_bytes() for one in files]))
    method = method_of("danube_admin.SecurityAdmin/ListRoles")
    async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials) as channel:
        try:
            await channel.unary_unary(method.path)(
                method.request().SerializeToString(), timeout=30, metadata=list(metadata.items())
            )
        except grpc.aio.AioRpcError as error:
            return error.code()
    return grpc.StatusCode.OK


async def test_each_listener_believes_a_certificate_that_a_rule_knows(tmp_path: Path, authority: Authority) -> None:
    loader, other = authority.issue("loader", "loader.example"), authority.issue("other", "other.example")
    nobody = authority.issue("nobody", "loader.example.org", common_name="loader.example")
    async with tls_broker(tmp_path / "data", authority.issue("broker"), **secured(authority)) as server:
        async with pydanube.connect(server.url, **shown(authority, loader)) as client:
            found = await client.access.whoami()
            assert (found.principal, found.method) == ("service_account:loader", "certificate")
            await client.create_topic("/default/orders")
        async with pydanube.connect(server.url, **shown(authority, other)) as client:
            with pytest.raises(Denied, match="service_account:other"):
                await client.create_topic("/default/others")
        for wrong in ({}, {"token": "dnb_wrong"}):
            with pytest.raises(Unauthenticated):
                async with pydanube.connect(server.url, **shown(authority, loader if wrong else nobody), **wrong):
                    pass
        status, body = await asyncio.to_thread(ask_http, server, authority, loader)
        assert status == 200 and b"service_account:loader" in body
        assert (await asyncio.to_thread(ask_http, server, authority, nobody))[0] == 401
        claimed = {"X-Danube-Internal-Broker": "true", "X-SSL-Client-S-DN": "CN=loader", "X-Forwarded-User": "admin"}
        assert (await asyncio.to_thread(lambda: ask_http(server, authority, nobody, **claimed)))[0] == 401
        port = server.admin_address[1]
        assert await ask_grpc(port, authority, loader) is grpc.StatusCode.OK
        assert await ask_grpc(port, authority, other) is grpc.StatusCode.PERMISSION_DENIED
        assert await ask_grpc(port, authority, nobody) is grpc.StatusCode.UNAUTHENTICATED
        assert await ask_grpc(port, authority, loader, authorization="Bearer wrong") is grpc.StatusCode.UNAUTHENTICATED


async def test_a_session_ends_with_its_certificate(tmp_path: Path, authority: Authority) -> None:
    async with tls_broker(tmp_path / "data", authority.issue("broker"), **secured(authority)) as server:
        ends = (datetime.now(UTC) + timedelta(seconds=4)).replace(microsecond=0)
        short = authority.issue("short", "loader.example", not_after=ends)
        async with pydanube.connect(server.url, **shown(authority, short)) as client:
            await client.create_topic("/default/orders")
            (connection,) = client._brokers._connections.values()
            await until(lambda: connection.lost is not None)
            assert "expired" in str(connection.lost)
