"""The REST API: routes, parameters, bodies and errors."""

import json
from typing import Any

from http_peer import Answer, HttpListener, Peer, open_listener


async def call(there: HttpListener, method: str, path: str, body: Any = None, **headers: str) -> Answer:
    """Send one request on a connection of its own; `body` is sent as JSON."""
    async with await Peer.connect(there) as peer:
        encoded = None if body is None else json.dumps(body).encode()
        return await peer.request(method, path, encoded, **headers)


async def test_brokers_are_listed_and_described(http):
    (one,) = (await call(http, "GET", "/api/v1/brokers")).json()["brokers"]
    assert one["state"] == "ok"
    answer = await call(http, "GET", f"/api/v1/brokers/{one['node']}")
    assert (answer.status, answer.json()["version"]) == (200, one["version"])
    assert (await call(http, "GET", "/api/v1/brokers/other")).status == 404


async def test_what_a_request_has_too_much_is_refused_by_name(http):
    answer = await call(http, "GET", "/api/v1/brokers?colour=red")
    assert (answer.status, answer.headers["content-type"]) == (400, "application/problem+json")
    assert "'colour'" in answer.json()["detail"]
    for path in ("/api/v1/nothing", "/api/v1", "/api/v1/", "/api/v1/topics/", "/api/v10"):
        assert (await call(http, "GET", path)).status == 404, path
    nowhere = await call(http, "GET", "/nothing")
    assert (nowhere.status, "/docs" in nowhere.json()["detail"]) == (404, True)
    answer = await call(http, "DELETE", "/api/v1/brokers")
    assert (answer.status, answer.headers["allow"]) == (405, "GET")


async def test_the_page_that_shows_the_document_loads_nothing_from_elsewhere() -> None:
    async with open_listener() as there:
        page, script = await call(there, "GET", "/docs"), await call(there, "GET", "/docs.js")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert script.headers["content-type"] == "text/javascript; charset=utf-8"
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert b"//" not in page.body.replace(b"<!--", b"")
    assert b"http" not in script.body
    assert b'src="/docs.js"' in page.body
    assert b'fetch("/openapi.json")' in script.body
    assert b"innerHTML" not in script.body


async def test_the_document_describes_the_operations() -> None:
    async with open_listener() as there:
        document = (await call(there, "GET", "/openapi.json")).json()
    assert document["openapi"] == "3.1.0"
    assert document["paths"]["/api/v1/brokers"]["get"]["operationId"] == "listBrokers"
