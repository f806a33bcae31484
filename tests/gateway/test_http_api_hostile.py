"""Wrong requests to the REST API: each gets a 4xx that names the problem, and nothing is half done."""

import json

import pytest
from http_peer import Answer, HttpListener, Peer, open_listener
from native_peer import Between

TOPIC = "/api/v1/topics/default/orders"


async def send(there: HttpListener, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
    async with await Peer.connect(there) as peer:
        return await peer.request(method, path, body, **headers)


async def topics_of(there: HttpListener) -> list[str]:
    return [one["topic"] for one in (await send(there, "GET", "/api/v1/topics")).json()["topics"]]


NAMES = [
    "..",
    ".",
    "%2e%2e",
    "..%2f..%2fetc%2fpasswd",
    "a%2Fb",
    "a%5Cb",
    "a%00b",
    "a%0Ab",
    "%20",
    "%1b[31m",
    "%ff",
    "%C3%A9",
    "%E2%80%AE",
    "a" * 201,
    "a-part-0",
    "%7B%7D",
]


@pytest.mark.parametrize("name", NAMES)
async def test_a_name_that_is_none_is_refused_everywhere(http, name):
    paths = [
        ("PUT", f"/api/v1/topics/default/{name}"),
        ("PUT", f"/api/v1/topics/{name}/orders"),
        ("PUT", f"/api/v1/namespaces/{name}"),
    ]
    for method, path in paths:
        if name == "a-part-0" and "/default/" not in path:
            continue  # only the names of topics must not look like a partition
        answer = await send(http, method, path)
        assert answer.status == 400, (path, answer.status, answer.body)
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["detail"]
    assert (await send(http, "PUT", TOPIC)).status == 201
    answer = await send(http, "PUT", f"{TOPIC}/subscriptions/{name}")
    assert answer.status == 400 or name == "a-part-0"
    assert await topics_of(http) == ["/default/orders"]
    assert (await send(http, "GET", "/api/v1/namespaces")).json()["names"] == ["default"]


BODIES: list[tuple[bytes, str]] = [
    (b"", "needs a body"),
    (b"{", "truncated"),
    (b'{"partitions": 3} x', "trailing"),
    (b'{"partitions": "3"}', "$.partitions"),
    (b'{"partitions": 1e3}', "$.partitions"),
    (b'{"partitions": NaN}', "malformed"),
    (b'{"partitions": 3, "reliable": true}', "`reliable`"),
    (b'{"partitions": 18446744073709551616}', "$.partitions"),
    (b'{"partitions": -1}', "$.partitions"),
    (b"[3]", "Expected `object`"),
    (b"null", "Expected `object`"),
    (b"\xff\xfe", "malformed"),
    (b'{"partitions": 3, "\xff": 1}', "the body"),
    (b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "the body"),
]


@pytest.mark.parametrize(("body", "said"), BODIES, ids=range(len(BODIES)))
async def test_a_body_that_is_wrong_is_refused_and_changes_nothing(http, body, said):
    await send(http, "PUT", TOPIC, b'{"partitions": 2}')
    answer = await send(http, "PUT", f"{TOPIC}/partitions", body)
    assert answer.status == 400
    assert said in answer.json()["detail"]
    assert len((await send(http, "GET", TOPIC)).json()["partitions"]) == 2


async def test_unknown_fields_are_refused_at_any_depth(http):
    await send(http, "PUT", TOPIC)
    body = {"start": "earliest", "failure_policy": {"redeliveries_max": 3, "retries": 1}}
    answer = await send(http, "PUT", f"{TOPIC}/subscriptions/billing", json.dumps(body).encode())
    assert answer.status == 400
    assert "`retries`" in answer.json()["detail"]
    assert "$.failure_policy" in answer.json()["detail"]
    assert (await send(http, "GET", f"{TOPIC}/subscriptions")).json()["names"] == []


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("colour=red", "'colour'"),
        ("limit=1&limit=2", "'limit'"),
        ("limit=many", "limit"),
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=99999999999999999999999", "limit"),
        ("sort=colour", "sort"),
        ("after=nonsense", "token"),
        ("namespace=..", "namespace"),
        ("filter=" + "x" * 500, "filter"),
        ("%00=1", "'\\x00'"),
    ],
)
async def test_a_query_that_is_wrong_is_refused_by_name(http, query, said):
    answer = await send(http, "GET", f"/api/v1/topics?{query}")
    assert answer.status == 400
    assert said in answer.json()["detail"]


@pytest.mark.parametrize(
    ("method", "path", "status", "said"),
    [
        ("GET", "/api/v1/topics/orders", 404, "/api/v1/topics/{namespace}/ goes on with {topic}; /docs shows"),
        ("GET", f"{TOPIC}/polices", 404, "lookup, messages, partitions, policies, "),
        ("GET", f"{TOPIC}/policies/x", 404, "policies/x: /docs shows every path"),
        ("POST", "/api/v1/topics/orders/messages", 405, "POST is not possible at /api/v1/topics/{namespace}/{topic}: "),
    ],
)
async def test_a_wrong_path_is_answered_with_those_that_there_are(http, method, path, status, said):
    answer = await send(http, method, path)
    assert answer.status == status
    assert said in answer.json()["detail"]


async def test_a_body_of_another_media_type_is_refused(http):
    answer = await send(http, "PUT", TOPIC, b"{}", content_type="application/x-www-form-urlencoded")
    assert (answer.status, "application/json" in answer.json()["detail"]) == (415, True)
    assert await topics_of(http) == []
    path = "/api/v1/namespaces/default/policies"
    for kind in ("application/json; charset=utf-8", "application/merge-patch+json"):
        assert (await send(http, "PATCH", path, b'{"ttl_s": 1}', content_type=kind)).status == 200


async def test_a_body_that_is_not_wanted_is_refused(http):
    await send(http, "PUT", TOPIC)
    answer = await send(http, "DELETE", TOPIC, b'{"force": true}')
    assert (answer.status, answer.json()["detail"]) == (400, "this operation takes no body")
    assert await topics_of(http) == ["/default/orders"]


async def test_a_body_has_the_limits_of_the_listener() -> None:
    async with open_listener(http_body_bytes_max=1024) as there:
        answer = await send(there, "PUT", TOPIC, b" " * 1025)
        assert (answer.status, answer.headers["content-type"]) == (413, "application/problem+json")
        assert await topics_of(there) == []


@pytest.mark.parametrize("path", [TOPIC, "/schema-registry/config", "/webhooks/shop"])
async def test_a_page_of_another_origin_changes_nothing_on_any_api(http, path):
    for method in ("PUT", "POST", "DELETE"):
        answer = await send(http, method, path, b"{}", origin="https://evil.example")
        assert answer.status == 403
        assert "https://evil.example" in answer.json()["detail"]
    assert await topics_of(http) == []


async def test_dots_in_a_path_lead_nowhere(http):
    for path in ("/api/v1/../../etc/passwd", "/api/v1/topics/../brokers", "/docs/../settings", "/api/v1//topics"):
        assert (await send(http, "GET", path)).status in (400, 404), path


async def test_health_says_why_the_broker_is_not_ready() -> None:
    class Troubled(Between):
        problems: tuple[str, ...] = ()

        def write_problems(self) -> list[str]:
            return list(self.problems)

    async with open_listener(wrap=Troubled) as there:
        answer = await send(there, "GET", "/api/v1/health")
        assert (answer.status, answer.json()) == (200, {"status": "ready", "reasons": []})
        there.broker.problems = ("read-only: the disk is full",)
        answer = await send(there, "GET", "/api/v1/health")
        assert (answer.status, answer.json()["retryable"]) == (503, True)
        assert "read-only: the disk is full" in answer.json()["detail"]
