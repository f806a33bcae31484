"""Pages of other origins: refused unless they are configured, and then answered as browsers need it."""

from __future__ import annotations

import pytest
from http_peer import Peer, open_listener

PATH = "/api/v1/topics/default/orders/messages"
CONSOLE = "https://example.com"


async def test_without_configuration_another_origin_changes_nothing_and_sees_nothing(caller):
    answer = await caller.request("POST", PATH, b"x", Origin=CONSOLE)
    assert answer.status == 403
    asked = {"Origin": CONSOLE, "Access_Control_Request_Method": "POST"}
    assert (await caller.request("OPTIONS", PATH, **asked)).status == 405
    answer = await caller.request("GET", "/healthz", Origin=CONSOLE)
    assert answer.status == 200 and not any(name.startswith("access-control") for name in answer.headers)


async def test_a_configured_origin_may_ask_and_then_publish() -> None:
    async with open_listener(cors_origins=(CONSOLE,)) as there, await Peer.connect(there) as peer:
        asked = {"Access_Control_Request_Method": "POST", "Access_Control_Request_Headers": "content-type,x-danube-key"}
        peer.send("OPTIONS", PATH, Origin=CONSOLE, **asked)
        head = (await peer._reader.readuntil(b"\r\n\r\n")).decode().lower()
        assert head.startswith("http/1.1 204 ")
        assert f"access-control-allow-origin: {CONSOLE}\r\n" in head and "vary: origin\r\n" in head
        assert "access-control-allow-headers: content-type,x-danube-key\r\n" in head
        assert "access-control-allow-credentials" not in head
        answer = await peer.request("POST", PATH, b"x", Origin=CONSOLE)
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, CONSOLE)
        answer = await peer.request("GET", "/api/v1/none", Origin=CONSOLE)
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (404, CONSOLE), "errors are read too"


async def test_an_origin_that_is_not_configured_is_refused_beside_one_that_is() -> None:
    async with open_listener(cors_origins=(CONSOLE,)) as there, await Peer.connect(there) as peer:
        for origin in ("https://example.com:444", "http://example.com", "null", "https://["):
            answer = await peer.request("POST", PATH, b"x", Origin=origin)
            assert answer.status == 403, origin
            assert "access-control-allow-origin" not in answer.headers
            assert answer.headers["vary"] == "origin"


@pytest.mark.parametrize("headers", [{"Origin": CONSOLE}, {"Sec_Fetch_Site": "cross-site"}])
async def test_a_page_of_another_origin_takes_no_messages(caller, headers):
    """A GET that is an image or a stream of another page would acknowledge messages that no consumer has processed."""
    assert (await caller.request("POST", PATH, b"x")).status == 200
    topic = PATH.removesuffix("/messages")
    for path in (f"{topic}/subscriptions/workers/events?start=earliest", f"{topic}/events?start=earliest"):
        assert (await caller.request("GET", path, **headers)).status == 403
    assert (await caller.request("GET", f"{topic}/subscriptions/workers")).status == 404, "it was not created"
    assert (await caller.request("GET", topic, Sec_Fetch_Site="cross-site")).status == 200, "this changes nothing"
