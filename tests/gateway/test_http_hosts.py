"""The header Host: a request for another server is refused on every path, so that DNS rebinding reaches nothing."""

import pytest
from http_peer import Peer, open_listener

from pydanube import testing
from pydanube.gateway.http.host_check import HostCheck, host_of
from pydanube.model.addresses import BrokerAddresses

PATHS = ("/api/v1/topics", "/openapi.json", "/schema-registry/subjects", "/healthz", "/nothing")


async def test_a_request_for_another_host_is_refused_on_every_path(caller):
    for path in PATHS:
        for host in ("evil.example", "evil.example:8650", "localhost.evil.example", "", "[::1", "localhost:x"):
            answer = await caller.request("GET", path, host=host)
            assert answer.status == 421, (path, host)
            assert "http.allowed_hosts" in answer.json()["detail"]
    answer = await caller.request("PUT", "/api/v1/topics/default/orders", host="evil.example")
    assert answer.status == 421
    assert (await caller.request("GET", "/api/v1/topics/default/orders")).status == 404


async def test_the_names_of_the_broker_are_allowed_with_any_port() -> None:
    async with open_listener(allowed_hosts=("Broker.example",)) as there, await Peer.connect(there) as peer:
        for host in ("localhost", "LOCALHOST.:1", "127.0.0.1:8650", "127.9.9.9", "[::1]:8650", "broker.example:80"):
            assert (await peer.request("GET", "/schema-registry/subjects", host=host)).status == 200, host
        peer.write(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert (await peer.answer()).status == 200


async def test_any_host_can_be_allowed() -> None:
    async with open_listener(allowed_hosts=("*",)) as there, await Peer.connect(there) as peer:
        assert (await peer.request("GET", "/api/v1/topics", host="anything.example")).status == 200


def test_advertised_and_bound_addresses_and_the_address_of_the_connection_are_allowed() -> None:
    check = HostCheck((), lambda: BrokerAddresses("one.example:6655", http="[fd00::1]:8650"))
    check.bound_host = "Bound.example"

    def is_allowed(host: str) -> bool:
        scope = {"type": "http", "headers": [(b"host", host.encode())], "server": ("10.0.0.7", 8650)}
        return check.refusal(scope) is None

    assert all(map(is_allowed, ("one.example", "[fd00::1]", "bound.example:8650", "10.0.0.7:8650")))
    assert not any(map(is_allowed, ("two.example", "[fd00::2]", "10.0.0.8", "0.0.0.0:8650")))


@pytest.mark.parametrize(
    ("text", "host"),
    [("A.b.:80", "a.b"), ("[::1]:80", "::1"), ("[::1", ""), ("a:b", ""), ("a:", "a"), (" a ", "a"), ("::1", "")],
)
def test_the_host_of_an_address(text: str, host: str) -> None:
    assert host_of(text) == host


async def test_the_setting_reaches_the_listener() -> None:
    async with testing._server(None, {"http_allowed_hosts": "broker.example,other.example"}) as server:
        assert server._http is not None
        assert server._http.settings.allowed_hosts == ("broker.example", "other.example")
