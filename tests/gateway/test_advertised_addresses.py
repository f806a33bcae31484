"""What clients are told about the listeners of a broker, by lookups, descriptions and on the command line."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from typing import Any

import pytest

import pydanube
from pydanube import testing
from pydanube.codec.native import requests
from pydanube.model.addresses import BrokerAddresses
from pydanube.model.topics import BrokerDescription
from pydanube.operations import topics
from pydanube.server.server import Server

ALL = {"server_http": True, "grpc_data": True, "grpc_admin": True}


def here(server: Server, host: str = "127.0.0.1") -> BrokerAddresses:
    listeners = (server.native_address, server.grpc_address, server.admin_address, server.http_address)
    return BrokerAddresses(*(f"{host}:{port}" for _, port in listeners))


async def test_a_lookup_names_all_listeners_of_the_owner(tmp_path):
    async with testing._server(tmp_path, ALL) as server, pydanube.connect(server.url) as client:
        await client.create_topic("/default/orders", partitions=2)
        route = await client._brokers.call(topics.Lookup(topic="/default/orders"), topics.Route)
        assert route.brokers == [here(server)]
        assert {one.owner for one in route.partitions} == {here(server).native}
        assert (await client.describe_topic("/default/orders")).brokers == [here(server)]
        assert (await client.describe_broker()).addresses == here(server)


async def test_a_listener_that_is_off_has_no_address(tmp_path):
    settings = {"server_http": False, "grpc_data": False, "grpc_admin": False, "http_advertised": "elsewhere:80"}
    async with testing._server(tmp_path, settings) as server, pydanube.connect(server.url) as client:
        native = f"127.0.0.1:{server.native_address[1]}"
        assert (await client.describe_broker()).addresses == BrokerAddresses(native)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"server_advertised": "a:1"}, BrokerAddresses("a:1", "a:{grpc}", "a:{admin}", "a:{http}")),
        (
            {"server_advertised": "a:1", "grpc_advertised": "b:2", "http_advertised": "c:3"},
            BrokerAddresses("a:1", "b:2", "b:{admin}", "c:3"),
        ),
        (
            {"server_advertised": "[2001:db8::1]:1", "http_advertised": "[2001:db8::2]:3"},
            BrokerAddresses("[2001:db8::1]:1", "[2001:db8::1]:{grpc}", "[2001:db8::1]:{admin}", "[2001:db8::2]:3"),
        ),
    ],
)
async def test_configured_addresses_are_told_instead(tmp_path, settings: dict[str, Any], expected: BrokerAddresses):
    async with testing._server(tmp_path, ALL | settings) as server, pydanube.connect(server.url) as client:
        ports = {"grpc": server.grpc_address[1], "admin": server.admin_address[1], "http": server.http_address[1]}
        told = (await client.describe_broker()).addresses
        assert told == BrokerAddresses(
            expected.native, *(one.format(**ports) for one in (expected.grpc, expected.admin, expected.http))
        )


def test_answers_of_earlier_brokers_have_no_addresses():
    head = b"\x84\xa7version\xa30.1\xa4node\xa1a\xa7cluster\xa1c\xa5state\xa2ok"
    assert requests.decode(memoryview(head), BrokerDescription).addresses == BrokerAddresses("")


INSIDE = {"server_advertised": "outside.example:1", "server_inside": "127.0.0.0/8"}


@pytest.mark.parametrize(
    ("settings", "is_told"),
    [({}, True), ({"server_inside": "192.0.2.0/24"}, False), ({"server_advertised_inside": ""}, False)],
)
async def test_a_client_inside_the_network_is_told_the_inside_addresses(tmp_path, settings: dict[str, Any], is_told):
    given = ALL | INSIDE | {"server_advertised_inside": "inside.example:7"} | settings
    async with testing._server(tmp_path, given) as server, pydanube.connect(server.url) as client:
        await client.create_topic("/default/orders")
        route = await client._brokers.call(topics.Lookup(topic="/default/orders"), topics.Route)
        grpc, admin, http = server.grpc_address[1], server.admin_address[1], server.http_address[1]
        host, native = ("inside.example", 7) if is_told else ("outside.example", 1)
        assert route.brokers == [BrokerAddresses(*(f"{host}:{port}" for port in (native, grpc, admin, http)))]
        assert route.partitions[0].owner == f"{host}:{native}"
        url = f"{server.http_url}/api/v1/topics/default/orders/lookup"
        told = await asyncio.to_thread(lambda: json.loads(urllib.request.urlopen(url, timeout=60).read()))
        assert told["partitions"][0]["owner"] == f"{host}:{native}"
