"""Clients that nobody knows, at a broker that asks everybody who they are: others do not notice them."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from contextlib import suppress
from pathlib import Path

import pytest
from brokers import BrokerProcess
from tls_files import Authority

import pydanube

pytestmark = pytest.mark.process

TOPIC = "/default/orders"
LOG_LINE = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z (debug|info|warning|error) +[a-z_]+\.[a-z_.]+ .*")


async def flood(port: int, token: str) -> None:
    """Send one-byte chunks with wrong credentials, on a new connection whenever one was closed, until cancelled."""
    head = f"POST /api/v1/topics{TOPIC}/messages HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
    while True:
        with suppress(ConnectionError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
                while not writer.is_closing() and not reader.at_eof():
                    writer.write(b"1\r\nx\r\n" * 2_000)
                    await writer.drain()
                    await asyncio.sleep(0.01)
            finally:
                writer.transport.abort()
        await asyncio.sleep(0.01)


@pytest.mark.timeout(300)
async def test_four_strangers_that_send_tiny_chunks_do_not_stop_a_client_that_is_known(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", environment={"DANUBE_AUTH_ENABLED": "true"}).start()
    try:
        token = (tmp_path / "data" / "admin-key").read_text().strip()
        async with pydanube.connect(broker.url, token=token) as client, asyncio.TaskGroup() as group:
            await client.create_topic(TOPIC)
            floods = [group.create_task(flood(broker.http_port, name)) for name in ("dnb_wrong", "", "a.b.c", "x")]
            async with client.producer(TOPIC) as producer:
                for number in range(200):
                    await producer.send(b"%d" % number)
            for one in floods:
                one.cancel()
        async with pydanube.connect(broker.url, token=token) as client:
            assert (await client.describe_topic(TOPIC)).partitions[0].end_offset == 200
    finally:
        broker.kill()


@pytest.mark.timeout(300)
async def test_handshakes_that_fail_leave_no_line_of_their_own_on_stderr(tmp_path: Path) -> None:
    pair = Authority(tmp_path).issue("broker", "127.0.0.1")
    environment = {"DANUBE_TLS_CERT_FILE": str(pair.cert_file), "DANUBE_TLS_KEY_FILE": str(pair.key_file)}
    broker = BrokerProcess(tmp_path / "data", environment=environment).start()
    try:
        careless = ssl.create_default_context()  # which does not know the authority
        for port in (broker.grpc_port, broker.admin_port, broker.http_port):
            for sent in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00\x05hello", b"PRI * HTTP/2.0\r\n\r\n"):
                with socket.create_connection(("127.0.0.1", port)) as line, suppress(ConnectionError):
                    line.sendall(sent)
                    line.recv(100)
            with socket.create_connection(("127.0.0.1", port)) as line, suppress(ssl.SSLError, ConnectionError):
                careless.wrap_socket(line, server_hostname="127.0.0.1")
        async with asyncio.timeout(60):
            while "tls_handshakes_failed" not in broker.log.read_text():  # noqa: ASYNC110 - another process writes it
                await asyncio.sleep(0.05)
    finally:
        broker.stop()
    lines = broker.log.read_text().splitlines()
    assert lines and not [line for line in lines if not LOG_LINE.fullmatch(line)]
