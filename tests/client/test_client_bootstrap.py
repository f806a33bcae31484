"""A client that is given the URL of an HTTP listener finds the brokers by itself, also after they have moved."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from client_harness import server_that_says
from impatient_clock import ImpatientClock
from ports import free_port

import pydanube
from pydanube import Client, Invalid, Unavailable, testing
from pydanube.client.connection.discovery import find_brokers
from pydanube.client.connection.servers import BrokerAddress

TOPIC = "/default/orders"


def http(status: str, body: bytes = b"") -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), len(body), body)


async def test_one_http_url_is_enough(tmp_path: Path) -> None:
    async with testing._server(tmp_path, {}) as server, pydanube.connect(server.http_url) as client:
        assert client.url == server.http_url
        async with client.producer(TOPIC) as producer:
            await producer.send(b"one")
        async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
            assert (await consumer.receive(timeout=60)).payload == b"one"


async def test_the_first_listener_that_answers_is_asked(tmp_path: Path) -> None:
    async with testing._server(tmp_path, {}) as server:
        nowhere, (_, port) = free_port(), server.http_address
        async with pydanube.connect(f"http://127.0.0.1:{nowhere},127.0.0.1:{port}") as client:
            assert await client.list_namespaces() == ["default"]


async def test_it_is_asked_again_when_the_broker_has_another_native_port(tmp_path: Path) -> None:
    http_port = free_port()
    settings = {"server_http_port": http_port}
    async with testing._server(tmp_path, settings) as server:
        client = pydanube.connect(f"http://127.0.0.1:{http_port}")
        await client.open()
        producer = client.producer(TOPIC)
        await producer.open()
        await producer.send(b"before")
        former = server.native_address[1]
    try:
        async with testing._server(tmp_path, settings | {"server_port": free_port()}) as server:
            assert server.native_address[1] != former
            assert (await producer.send(b"after")).offset == 1
            assert await client.list_topics() == [TOPIC]
            await client.close()
    finally:
        await client.close()


async def test_a_listener_that_cannot_be_reached_is_tried_until_the_timeout(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"http://127.0.0.1:\d+ cannot be reached"):
        await Client(f"http://127.0.0.1:{free_port()}", clock=ImpatientClock()).open()


async def test_a_broker_that_starts_later_is_found(tmp_path: Path) -> None:
    port = free_port()
    client = pydanube.connect(f"http://127.0.0.1:{port}", timeout=60)
    opening = asyncio.create_task(client.open())
    async with testing._server(tmp_path, {"server_http_port": port}):
        await opening
        assert await client.list_namespaces() == ["default"]
        await client.close()


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (http("404 Not Found"), "answered 404: it is no broker, or one of an earlier release"),
        (http("421 Misdirected Request", b'{"detail": "Host is wrong"}'), "answered 421: Host is wrong"),
        (http("200 OK", b"<html>"), "did not answer with brokers"),
        (http("200 OK", b'{"brokers": [{"addresses": {"native": "a b"}}]}'), "no usable host"),
        (http("200 OK", b" " * (1 << 20)), "sends more than"),
        (b"SSH-2.0-OpenSSH_9.6p1\r\n", "does not speak HTTP.*8650 by default"),
        (b"HTTP/1.1 abc\r\n\r\n", "does not speak HTTP"),
        (b"x\0\0\0\xa4code", "does not speak HTTP; http:// takes"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "does not speak HTTP"),
    ],
)
async def test_what_is_wrong_with_an_address_is_said_at_once(answer: bytes, told: str) -> None:
    async with server_that_says(answer, ends=answer.startswith(b"HTTP/")) as address:
        with pytest.raises(Invalid, match=told):
            await pydanube.connect(f"http://{address}", timeout=60).open()


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (http("503 Service Unavailable", b'{"detail": "it is shutting down"}'), "answered 503: it is shutting down"),
        (http("200 OK", b'{"brokers": [{"addresses": {"native": ""}}]}'), "it is starting"),
        (http("200 OK", b'{"brokers": [{}]}'), "of an earlier release"),
    ],
)
async def test_what_may_pass_is_tried_again(answer: bytes, told: str) -> None:
    async with server_that_says(answer, ends=answer.startswith(b"HTTP/")) as address:
        with pytest.raises(Unavailable, match=told):
            await Client(f"http://{address}", clock=ImpatientClock()).open()


async def test_the_native_port_is_recognised(tmp_path: Path) -> None:
    async with testing.broker(tmp_path) as url:
        with pytest.raises(Invalid, match="danube:// its native port"):
            await pydanube.connect(url.replace("danube://", "http://"), timeout=60).open()


async def test_a_chunked_answer_of_a_proxy_is_read() -> None:
    body = b'{"brokers": [{"node": "a", "addresses": {"native": "10.0.0.2:6655", "more": 1}}, {"node": "b"}]}'
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    async with server_that_says(chunked, ends=True) as address:
        assert await find_brokers([BrokerAddress.parse(address)], 60) == [BrokerAddress("10.0.0.2", 6655)]


@pytest.mark.process
def test_the_command_and_blocking_clients_take_it_too(tmp_path: Path) -> None:
    with testing._server_thread(tmp_path, {}) as server:
        with pydanube.connect_blocking(server.http_url) as client:
            client.create_namespace("found")
        for arguments, environment in (
            (("--url", server.http_url, "namespaces", "list"), {}),
            (("namespaces", "list"), {"DANUBE_URL": server.http_url}),
        ):
            done = subprocess.run(
                [sys.executable, "-m", "pydanube.cli", *arguments],
                capture_output=True,
                text=True,
                timeout=120,
                check=True,
                env=os.environ | environment,
            )
            assert "found" in done.stdout
