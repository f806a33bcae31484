"""A client certificate tells who a caller is, on every listener, and nothing else does. TLS on every listener: who is
believed, what others get, and certificates that change while clients are connected."""

from __future__ import annotations

import asyncio
import http.client
import ssl
import stat
import tomllib
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_peer import method_of
from tls_files import EXPIRED, Authority, Pair, tls_broker, tls_settings

import pydanube
from pydanube.gateway import peer_certificates
from pydanube.model.errors import Denied, Invalid, Refused, Unauthenticated, Unavailable
from pydanube.runtime.certificates import read_certificate, read_pem
from pydanube.runtime.clock import ManualClock, SystemClock
from pydanube.runtime.tls import ServerCertificates, ServerTls
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


QUICK_S = 30.0


"""A failure of TLS must come before any retry or time-out of a minute would end it."""


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.issue("broker")


@pytest.fixture
async def broker(tmp_path: Path, pair: Pair) -> AsyncIterator[Server]:
    async with tls_broker(tmp_path / "data", pair) as server:
        yield server


async def refused(url: str, **tls: Any) -> str:
    """Return why a client cannot connect, which must be known at once."""
    with pytest.raises(Invalid) as caught:
        async with asyncio.timeout(QUICK_S), pydanube.connect(url, timeout=60, **tls):
            pass
    return caught.value.message


def trusting(ca_file: Path, pair: Pair | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(ca_file))
    if pair is not None:
        context.load_cert_chain(pair.cert_file, pair.key_file)
    return context


async def shown_certificate(port: int, context: ssl.SSLContext) -> tuple[str, ...]:
    """Return the alternative names of the certificate that a port shows to a new connection."""
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="127.0.0.1")
    der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.transport.abort()
    return read_certificate(der).names


# -- what works --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["danubes", "https"])
async def test_messages_of_every_size_cross_an_encrypted_connection(
    broker: Server, authority: Authority, scheme: str
) -> None:
    url = broker.url if scheme == "danubes" else broker.http_url
    assert url.startswith(scheme)
    payloads = [b"x" * size for size in (0, 1, 16_383, 16_384, 16_385, 300_000, 3_000_000)]
    async with pydanube.connect(url, tls_ca_file=authority.ca_file) as client:
        async with client.producer("/default/sizes") as producer:
            for payload in payloads:
                await producer.send(payload)
            await producer.send_many([b"small"] * 20_000)
        received: list[bytes] = []
        async with client.consumer("/default/sizes", subscription="all", start="earliest") as consumer:
            while len(received) < len(payloads) + 20_000:
                batch = await consumer.receive_batch()
                received += [bytes(one) for one in batch.payloads]
    assert received == payloads + [b"small"] * 20_000


async def test_the_blocking_client_and_the_environment(
    broker: Server, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DANUBE_URL", broker.url)
    monkeypatch.setenv("DANUBE_TLS_CA_FILE", str(authority.ca_file))

    def publish() -> int:
        with pydanube.connect_blocking() as client, client.producer("/default/blocking") as producer:
            return producer.send(b"one").offset

    assert await asyncio.to_thread(publish) == 0


async def test_grpc_and_grpc_admin_are_encrypted(broker: Server, authority: Authority) -> None:
    credentials = grpc.ssl_channel_credentials(authority.ca_file.read_bytes())
    for _, port in (broker.grpc_address, broker.admin_address):
        async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials) as channel:
            check = channel.unary_unary("/grpc.health.v1.Health/Check")
            assert await check(b"", timeout=QUICK_S) == b"\x08\x01"  # SERVING


# -- what is refused ---------------------------------------------------------------------------------------------------


async def test_a_certificate_of_another_authority_is_not_believed(broker: Server, tmp_path: Path) -> None:
    other = Authority(tmp_path / "other")
    assert "tls_ca_file" in await refused(broker.url, tls_ca_file=other.ca_file)
    assert "tls_ca_file" in await refused(broker.http_url, tls_ca_file=other.ca_file)
    assert "tls_ca_file" in await refused(broker.url)  # the authorities of the system
    for _, port in (broker.grpc_address, broker.admin_address):
        await refused_by_grpc(port, other.ca_file)


async def test_only_an_option_that_says_so_turns_verification_off(broker: Server) -> None:
    async with pydanube.connect(broker.url, tls_insecure_skip_verify=True) as client:
        await client.create_topic("/default/believed")


async def test_a_certificate_of_another_name_is_not_believed(tmp_path: Path, authority: Authority) -> None:
    elsewhere = authority.issue("elsewhere", "elsewhere.example")
    async with tls_broker(tmp_path / "data", elsewhere) as server:
        for url in (server.url, server.http_url):
            message = await refused(url, tls_ca_file=authority.ca_file)
            assert "127.0.0.1" in message and "connect by a name that is in it" in message
        for _, port in (server.grpc_address, server.admin_address):
            await refused_by_grpc(port, authority.ca_file)


async def refused_by_grpc(port: int, ca_file: Path, pair: Pair | None = None) -> None:
    """Expect that a gRPC client that believes this authority, and shows this certificate, gets no connection."""
    async with grpc.aio.secure_channel(f"127.0.0.1:{port}", grpc_credentials(ca_file, pair)) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=QUICK_S)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def grpc_credentials(ca_file: Path, pair: Pair | None) -> grpc.ChannelCredentials:
    key, chain = (None, None) if pair is None else (pair.key_file.read_bytes(), pair.cert_file.read_bytes())
    return grpc.ssl_channel_credentials(ca_file.read_bytes(), key, chain)


async def test_an_expired_certificate_is_not_believed(tmp_path: Path, authority: Authority) -> None:
    """The broker refuses to start with one; a proxy before it may still show one."""
    expired = authority.issue("expired", not_after=EXPIRED)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(expired.cert_file, expired.key_file)
    server = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0, ssl=context)
    async with server:
        port = server.sockets[0].getsockname()[1]
        for scheme in ("danubes", "https"):
            assert "expired" in await refused(f"{scheme}://127.0.0.1:{port}", tls_ca_file=authority.ca_file)


async def test_plain_text_to_a_tls_port_is_answered_with_the_remedy(broker: Server) -> None:
    assert "danubes://" in await refused(broker.url.replace("danubes", "danube"))
    assert "https://" in await refused(broker.http_url.replace("https", "http"))
    for _, port in (broker.grpc_address, broker.admin_address):
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=QUICK_S)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_tls_to_a_plain_port_fails_at_once(tmp_path: Path, pair: Pair, authority: Authority) -> None:
    off = {f"tls_{name}__enabled": False for name in ("native", "grpc", "admin", "http")}
    async with tls_broker(tmp_path / "data", pair, **off) as server:
        assert server.url.startswith("danube://") and not server.has_tls
        for url in (server.url.replace("danube", "danubes"), server.http_url.replace("http", "https")):
            assert "no TLS" in await refused(url, tls_ca_file=authority.ca_file)
        credentials = grpc.ssl_channel_credentials(authority.ca_file.read_bytes())
        async with grpc.aio.secure_channel(f"127.0.0.1:{server.grpc_address[1]}", credentials) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=QUICK_S)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_tls_below_1_2_is_refused(broker: Server, authority: Authority) -> None:
    context = trusting(authority.ca_file)
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.TLSv1
    context.maximum_version = ssl.TLSVersion.TLSv1_1
    for _, port in (broker.native_address, broker.http_address, broker.grpc_address, broker.admin_address):
        with pytest.raises((ssl.SSLError, ConnectionResetError)):
            await shown_certificate(port, context)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    assert await shown_certificate(broker.native_address[1], context)


async def test_a_stranger_that_begins_no_handshake_is_disconnected_and_counted(
    tmp_path: Path, pair: Pair, authority: Authority
) -> None:
    limits = {"limits__handshake_timeout_ms": 300, "limits__connections_per_address_max": 2}
    async with tls_broker(tmp_path / "data", pair, **limits) as server:
        silent = [await asyncio.open_connection(*server.native_address) for _ in range(3)]
        async with asyncio.timeout(QUICK_S):
            assert [await reader.read() for reader, _ in silent] == [b"", b"", b""]
        for _, writer in silent:
            writer.transport.abort()
        async with pydanube.connect(server.url, tls_ca_file=authority.ca_file) as client:
            await client.create_topic("/default/free-again")


async def test_handshakes_take_the_places_of_connections(tmp_path: Path, pair: Pair, authority: Authority) -> None:
    async with tls_broker(tmp_path / "data", pair, limits__connections_per_address_max=1) as server:
        reader, writer = await asyncio.open_connection(*server.native_address)
        with pytest.raises(Unavailable):
            async with pydanube.connect(server.url, tls_ca_file=authority.ca_file, timeout=0.5):
                pass
        writer.transport.abort()
        async with pydanube.connect(server.url, tls_ca_file=authority.ca_file):
            pass
        assert await reader.read() == b""


# -- client certificates -----------------------------------------------------------------------------------------------


async def test_a_required_client_certificate(tmp_path: Path, pair: Pair, authority: Authority) -> None:
    required = {"tls__client_ca_file": authority.ca_file, "tls__client_certificates": "required"}
    loader = authority.issue("loader", "loader.example", common_name="loader")
    stranger = Authority(tmp_path / "strange").issue("loader")
    mine = {"tls_cert_file": loader.cert_file, "tls_key_file": loader.key_file, "tls_ca_file": authority.ca_file}
    theirs = {"tls_cert_file": stranger.cert_file, "tls_key_file": stranger.key_file, "tls_ca_file": authority.ca_file}
    async with tls_broker(tmp_path / "data", pair, **required) as server:
        for url in (server.url, server.http_url):
            assert "client certificate" in await refused(url, tls_ca_file=authority.ca_file)
            await refused(url, **theirs)
            async with pydanube.connect(url, **mine) as client:
                await client.list_topics()
        for _, port in (server.grpc_address, server.admin_address):
            root, key, chain = (one.read_bytes() for one in (authority.ca_file, loader.key_file, loader.cert_file))
            for credentials, works in (
                (grpc.ssl_channel_credentials(root), False),
                (grpc.ssl_channel_credentials(root, key, chain), True),
            ):
                async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials) as channel:
                    check = channel.unary_unary("/grpc.health.v1.Health/Check")
                    if works:
                        await check(b"", timeout=QUICK_S)
                        continue
                    with pytest.raises(grpc.aio.AioRpcError):
                        await check(b"", timeout=QUICK_S)


async def test_expired_and_strange_client_certificates_are_refused_by_each_listener(
    tmp_path: Path, pair: Pair, authority: Authority
) -> None:
    required = {"tls__client_ca_file": authority.ca_file, "tls__client_certificates": "required"}
    strange = Authority(tmp_path / "strange").issue("loader", "loader.example")
    wrong = [authority.issue("late", "late.example", not_after=EXPIRED), strange]
    async with tls_broker(tmp_path / "data", pair, **required) as server:
        for one in wrong:
            files = {"tls_cert_file": one.cert_file, "tls_key_file": one.key_file, "tls_ca_file": authority.ca_file}
            for url in (server.url, server.http_url):
                assert "certificate" in await refused(url, **files)
            for _, port in (server.grpc_address, server.admin_address):
                await refused_by_grpc(port, authority.ca_file, one)


async def test_optional_client_certificates_are_native_and_http_only(
    tmp_path: Path, pair: Pair, authority: Authority
) -> None:
    optional = {"tls__client_ca_file": authority.ca_file, "tls__client_certificates": "optional"}
    async with tls_broker(tmp_path / "data", pair, **optional) as server:
        async with pydanube.connect(server.url, tls_ca_file=authority.ca_file) as client:
            await client.list_topics()
        credentials = grpc.ssl_channel_credentials(authority.ca_file.read_bytes())
        async with grpc.aio.secure_channel(f"127.0.0.1:{server.grpc_address[1]}", credentials) as channel:
            await channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=QUICK_S)
    with pytest.raises(Refused, match="gRPC listener cannot have optional client certificates"):
        await Server.start(tls_settings(tmp_path / "other", pair, **optional, tls_grpc__client_certificates="optional"))


async def test_each_listener_tells_the_same_about_a_client(tmp_path: Path, pair: Pair, authority: Authority) -> None:
    required = {"tls__client_ca_file": authority.ca_file, "tls__client_certificates": "required"}
    loader = authority.issue("named", "loader.example", "10.0.0.1", common_name="a, b+c")
    wanted = read_pem(loader.cert_file.read_bytes())[0]
    assert wanted.subject.startswith("CN=a\\, b\\+c,OU=") and wanted.names == ("DNS:loader.example", "IP:10.0.0.1")
    async with tls_broker(tmp_path / "data", pair, **required) as server:
        context = trusting(authority.ca_file, loader)
        mine = {"tls_cert_file": loader.cert_file, "tls_key_file": loader.key_file, "tls_ca_file": authority.ca_file}
        native, http = server._native, server._http
        assert native is not None and http is not None
        async with pydanube.connect(server.url, **mine):
            (session,) = native._sessions
            told = [peer_certificates.of_connection(session.connection)]
        _, writer = await asyncio.open_connection(*server.http_address, ssl=context)
        while not http._connections:  # noqa: ASYNC110
            await asyncio.sleep(0)
        told += [peer_certificates.of_transport(one.transport) for one in http._connections]
        writer.transport.abort()
        told += [await _told_by_grpc(server.grpc_address[1], authority, loader)]
    assert {(one.subject, one.names, one.expires_at_us) for one in told if one} == {
        (wanted.subject, wanted.names, wanted.expires_at_us)
    }
    assert len(told) == 3 and None not in told


async def _told_by_grpc(_port: int, authority: Authority, pair: Pair) -> Any:
    """Return what the accessor for gRPC tells, of a server of the test's own: a listener keeps no context of a call."""
    told: list[Any] = []

    async def handle(_request: bytes, context: Any) -> bytes:
        told.append(peer_certificates.of_call(context))
        return b""

    server = grpc.aio.server()
    handlers = {"Check": grpc.unary_unary_rpc_method_handler(handle)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.T", handlers),))
    root, key, chain = (one.read_bytes() for one in (authority.ca_file, pair.key_file, pair.cert_file))
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(key, chain)], root, True))
    await server.start()
    options = [("grpc.ssl_target_name_override", "loader.example")]
    async with grpc.aio.secure_channel(
        f"127.0.0.1:{port}", grpc.ssl_channel_credentials(root, key, chain), options
    ) as channel:
        await channel.unary_unary("/t.T/Check")(b"", timeout=QUICK_S)
    await server.stop(None)
    return told[0]


# -- certificates that change ------------------------------------------------------------------------------------------


async def test_a_reload_under_load_loses_no_connection_and_new_ones_see_the_new_certificate(
    tmp_path: Path, authority: Authority
) -> None:
    pair = authority.issue("renewed", "127.0.0.1", "old.example")
    async with (
        tls_broker(tmp_path / "data", pair) as server,
        pydanube.connect(server.url, tls_ca_file=authority.ca_file) as client,
        client.producer("/default/load") as producer,
    ):
        ports = [server.native_address[1], server.http_address[1], server.grpc_address[1], server.admin_address[1]]
        accepted = server._native and server._native._places._metrics.accepted
        (certificates,) = server._certificates.values()
        context = trusting(authority.ca_file)
        context.set_alpn_protocols(["h2"])
        for renewal in range(3):
            sending = asyncio.gather(*(producer.send_many([b"x" * 2_000] * 2_000) for _ in range(5)))
            authority.issue("renewed", "127.0.0.1", f"new-{renewal}.example")
            assert await certificates.reload()
            for port in ports:
                assert f"DNS:new-{renewal}.example" in await shown_certificate(port, context)
            assert sum(len(one) for one in await sending) == 10_000
        assert (
            server._native is not None and server._native._places._metrics.accepted == accepted + 3
        )  # only those above


async def test_connections_of_http_and_grpc_outlive_a_renewal(tmp_path: Path, authority: Authority) -> None:
    pair = authority.issue("kept", "127.0.0.1", "old.example")
    async with tls_broker(tmp_path / "data", pair) as server:
        port = server.http_address[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting(authority.ca_file))

        async def alive() -> bytes:
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n" % port)
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), QUICK_S)
            (length,) = [int(one.split(b":")[1]) for one in head.lower().splitlines() if b"content-length" in one]
            await reader.readexactly(length)
            return head.partition(b"\r\n")[0]

        credentials = grpc.ssl_channel_credentials(authority.ca_file.read_bytes())
        async with grpc.aio.secure_channel(f"127.0.0.1:{server.grpc_address[1]}", credentials) as channel:
            check = channel.unary_unary("/grpc.health.v1.Health/Check")
            await check(b"", timeout=QUICK_S)
            assert await alive() == b"HTTP/1.1 200 OK"
            authority.issue("kept", "127.0.0.1", "new.example")
            (certificates,) = server._certificates.values()
            assert await certificates.reload()
            assert "DNS:new.example" in await shown_certificate(port, trusting(authority.ca_file))
            assert await alive() == b"HTTP/1.1 200 OK"
            await check(b"", timeout=QUICK_S)
            assert channel.get_state() is grpc.ChannelConnectivity.READY
        writer.transport.abort()


async def test_files_are_looked_at_by_the_clock_and_a_bad_pair_keeps_the_old_one(
    tmp_path: Path, authority: Authority, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = authority.issue("watched", "127.0.0.1", "one.example")
    clock = ManualClock(SystemClock().now_us())
    certificates = ServerCertificates(ServerTls(pair.cert_file, pair.key_file), clock)
    before = certificates.context
    watching = asyncio.ensure_future(certificates.run(10.0))
    while not clock.sleeping:  # noqa: ASYNC110
        await asyncio.sleep(0)

    async def next_look() -> None:
        clock.advance(10.0)
        while clock.sleeping:  # noqa: ASYNC110
            await asyncio.sleep(0)
        while not clock.sleeping:  # noqa: ASYNC110
            await asyncio.sleep(0.001)

    other = authority.issue("other")
    pair.cert_file.write_bytes(other.cert_file.read_bytes())  # its key is another one
    await next_look()
    assert certificates.context is before
    assert "DNS:one.example" in certificates.certificate.names
    authority.issue("watched", "127.0.0.1", "two.example")
    await next_look()
    assert certificates.context is not before and "DNS:two.example" in certificates.certificate.names
    authority.issue("watched", "127.0.0.1", "three.example", not_after=EXPIRED)
    await next_look()
    assert "DNS:two.example" in certificates.certificate.names
    watching.cancel()
    logged = "".join(capsys.readouterr())
    assert "does not belong to the certificate" in logged and str(pair.cert_file) in logged


# -- files that cannot be used -----------------------------------------------------------------------------------------


def opened(pair: Pair, **options: Any) -> ServerCertificates:
    return ServerCertificates(ServerTls(pair.cert_file, pair.key_file, **options), SystemClock())


def test_a_key_that_others_can_read_is_refused_unless_a_setting_says_otherwise(authority: Authority) -> None:
    pair = authority.issue("open")
    for mode in (0o640, 0o604, 0o660):
        pair.key_file.chmod(mode)
        with pytest.raises(Refused, match=r"has mode 0\d+.*chmod 600.*allow_unsafe_key_mode"):
            opened(pair)
    opened(pair, allow_unsafe_key_mode=True)


def test_files_that_cannot_be_used_are_refused_with_the_remedy(tmp_path: Path, authority: Authority) -> None:
    pair, other = authority.issue("mine"), authority.issue("yours")
    with pytest.raises(Refused, match="does not belong to the certificate"):
        opened(Pair(pair.cert_file, other.key_file))
    with pytest.raises(Refused, match=r"has expired: renew it"):
        opened(authority.issue("over", not_after=EXPIRED))
    with pytest.raises(Refused, match=r"missing\.pem cannot be read: No such file"):
        opened(Pair(tmp_path / "missing.pem", pair.key_file))
    (tmp_path / "text.pem").write_text("hello")
    with pytest.raises(Refused, match="PEM"):
        opened(Pair(tmp_path / "text.pem", pair.key_file))
    with pytest.raises(Refused, match=r"client_ca_file .*text\.pem"):
        opened(pair, client_ca_file=tmp_path / "text.pem", client_certificates="required")


def test_settings_of_tls_that_do_not_belong_together_are_refused_by_name(tmp_path: Path, pair: Pair) -> None:
    with pytest.raises(Invalid, match=r"tls_http\.cert_file and tls_http\.key_file belong together"):
        tls_settings(tmp_path, pair, tls_http__cert_file=pair.cert_file)
    with pytest.raises(
        Invalid, match=r"tls_native, tls_grpc, .*: client certificates are asked for.*tls\.client_ca_file"
    ):
        tls_settings(tmp_path, pair, tls__client_certificates="required")


async def test_options_of_tls_need_a_url_with_tls(authority: Authority) -> None:
    with pytest.raises(Invalid, match=r"danubes://127\.0\.0\.1:6655"):
        pydanube.connect("danube://127.0.0.1:6655", tls_ca_file=authority.ca_file)
    with pytest.raises(Invalid, match="belong together"):
        pydanube.connect("danubes://127.0.0.1:6655", tls_cert_file="client.pem")


# -- danube certs create -----------------------------------------------------------------------------------------------


async def test_created_certificates_work_and_are_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from click.testing import CliRunner

    from pydanube.cli.root import cli

    made = CliRunner().invoke(cli, ["certs", "create", "--directory", str(tmp_path / "c"), "--name", "b.example"])
    assert made.exit_code == 0 and "--tls-ca-file" in made.output
    assert tomllib.loads(made.output)["tls"] == {
        "cert_file": str(tmp_path / "c" / "broker.pem"),
        "key_file": str(tmp_path / "c" / "broker-key.pem"),
        "client_ca_file": str(tmp_path / "c" / "ca.pem"),
    }
    files = {one.name: one for one in (tmp_path / "c").iterdir()}
    assert {name for name, one in files.items() if stat.S_IMODE(one.stat().st_mode) == 0o600} == {
        "ca-key.pem",
        "broker-key.pem",
        "client-key.pem",
    }
    again = CliRunner().invoke(cli, ["certs", "create", "--directory", str(tmp_path / "c")])
    assert isinstance(again.exception, Refused) and "not overwritten" in again.exception.message
    required = {"tls__client_ca_file": files["ca.pem"], "tls__client_certificates": "required"}
    mine = {"tls_cert_file": files["client.pem"], "tls_key_file": files["client-key.pem"]}
    async with tls_broker(tmp_path / "data", Pair(files["broker.pem"], files["broker-key.pem"]), **required) as server:
        async with pydanube.connect(server.url, tls_ca_file=files["ca.pem"], **mine) as client:
            await client.list_topics()
        names = await shown_certificate(
            server.native_address[1], trusting(files["ca.pem"], Pair(files["client.pem"], files["client-key.pem"]))
        )
    assert set(names) == {"DNS:localhost", "DNS:b.example", "IP:127.0.0.1", "IP:::1"}
