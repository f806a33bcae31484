"""Each area of the REST API, from end to end: what is changed over HTTP is seen over HTTP and by a native client."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from http_peer import Peer, open_listener

from pydanube import connect
from pydanube.codec.native import requests as wire
from pydanube.gateway.http.api.table import NOT_OFFERED, OPERATIONS

TOPIC = "/api/v1/topics/default/orders"
AVRO = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}'
WIDER = AVRO.replace("}]", '}, {"name": "name", "type": "string"}]')


class Api:
    """Calls operations on one connection."""

    def __init__(self, peer: Peer, broker_url: str) -> None:
        self._peer = peer
        self.broker_url = broker_url
        self.tag = ""
        """The entity tag of the last answer."""

    async def __call__(self, method: str, path: str, body: Any = None, expect: int = 200, tag: str = "") -> Any:
        """Return the JSON of the answer, whose status must be `expect`. `tag` is sent as If-Match."""
        encoded = None if body is None else json.dumps(body).encode()
        headers = {"if_match": tag} if tag else {}
        answer = await self._peer.request(method, path, encoded, content_type="application/json", **headers)
        assert answer.status == expect, (answer.status, answer.body)
        self.tag = answer.headers.get("etag", "")
        return answer.json() if answer.body else None


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    async with open_listener() as there, await Peer.connect(there) as peer:
        yield Api(peer, there.broker_url)


async def test_namespaces_are_created_listed_and_deleted(api):
    await api("PUT", "/api/v1/namespaces/shop", expect=201)
    assert (await api("PUT", "/api/v1/namespaces/shop", expect=409))["title"] == "AlreadyExists"
    assert (await api("GET", "/api/v1/namespaces"))["names"] == ["default", "shop"]
    await api("DELETE", "/api/v1/namespaces/shop", expect=204)
    await api("DELETE", "/api/v1/namespaces/shop", expect=404)


async def test_policies_are_changed_and_inherited(api):
    await api("PUT", TOPIC, expect=201)
    await api("PATCH", "/api/v1/namespaces/default/policies", {"ttl_s": 60, "backlog_action": "evict"})
    changed = await api("PATCH", f"{TOPIC}/policies", {"retention_s": 10})
    assert (changed["own"]["retention_s"], changed["own"]["ttl_s"]) == (10, None)
    assert (changed["effective"]["ttl_s"], changed["effective"]["backlog_action"]) == (60, "evict")
    changed = await api("PATCH", f"{TOPIC}/policies", {"retention_s": None})
    assert changed == await api("GET", f"{TOPIC}/policies")
    assert changed["own"]["retention_s"] is None
    unknown = (await api("PATCH", f"{TOPIC}/policies", {"tll_s": 1}, 400))["detail"]
    assert "unknown field `tll_s`: use producers_max, " in unknown
    wrong = (await api("PATCH", f"{TOPIC}/policies", {"backlog_action": "x"}, 400))["detail"]
    assert wrong.endswith("at `$.backlog_action`: use refuse, evict")
    assert "out of range" in (await api("PATCH", f"{TOPIC}/policies", {"ttl_s": -5}, 400))["detail"]


@pytest.mark.parametrize(
    ("read", "method", "path", "body"),
    [
        ("/api/v1/namespaces/default/policies", "PATCH", "/api/v1/namespaces/default/policies", {"ttl_s": 7}),
        (f"{TOPIC}/policies", "PATCH", f"{TOPIC}/policies", {"ttl_s": 7}),
        (TOPIC, "PUT", f"{TOPIC}/partitions", {"partitions": 3}),
        (TOPIC, "PUT", f"{TOPIC}/schema", {"subject": "orders", "policy": "warn"}),
        (TOPIC, "DELETE", TOPIC, None),
        (f"{TOPIC}/subscriptions/billing", "DELETE", f"{TOPIC}/subscriptions/billing", None),
        (
            f"{TOPIC}/subscriptions/billing/failure-policy",
            "PUT",
            f"{TOPIC}/subscriptions/billing/failure-policy",
            {"redeliveries_max": 3},
        ),
        (f"{TOPIC}/subscriptions/billing", "PUT", f"{TOPIC}/subscriptions/billing/unacked-max", {"unacked_max": 5}),
        ("/api/v1/schemas/orders/compatibility", "PUT", "/api/v1/schemas/orders/compatibility", {"level": "none"}),
        ("/api/v1/schema-compatibility", "PUT", "/api/v1/schema-compatibility", {"level": "none"}),
    ],
)
async def test_an_update_is_refused_if_the_state_is_another_one(api, read, method, path, body):
    await api("PUT", TOPIC, {"partitions": 2, "ack_level": "written"}, 201)
    await api("PUT", f"{TOPIC}/subscriptions/billing", expect=201)
    await api("POST", "/api/v1/schemas/orders/versions", {"format": "avro", "text": AVRO}, 201)
    await api("GET", read)
    tag = api.tag
    assert tag.startswith('"') and len(tag) > 2
    refused = await api(method, path, body, 412, tag='"0123456789abcdef"')
    assert refused["title"] == "Conflict"
    await api(method, path, body, 412, tag=f"W/{tag}")
    assert "If-Match" in (await api(method, path, body, 400, tag="plain"))["detail"]
    assert "empty" in (await api(method, path, body, 400, tag=" "))["detail"]
    await api("GET", read)
    assert api.tag == tag
    await api(method, path, body, 204 if method == "DELETE" else 200, tag=tag)
    await api(method, path, body, 404 if method == "DELETE" else 412, tag=tag)


async def test_of_two_updates_with_the_same_tag_one_is_carried_out(http):
    async with await Peer.connect(http) as one, await Peer.connect(http) as other:
        path = "/api/v1/namespaces/default/policies"
        tag = (await one.request("GET", path)).headers["etag"]
        for peer, seconds in ((one, b"1"), (other, b"2")):
            peer.send("PATCH", path, b'{"ttl_s": ' + seconds + b"}", if_match=tag)
        answers = [await one.answer(), await other.answer()]
        assert sorted(answer.status for answer in answers) == [200, 412]
        won = next(answer for answer in answers if answer.status == 200)
        assert (await one.request("GET", path)).json() == won.json()


async def test_a_condition_that_would_not_be_looked_at_is_refused(api):
    assert "If-Match" in (await api("PUT", TOPIC, None, 400, tag='"a"'))["detail"]
    await api("GET", TOPIC, expect=404)


async def test_a_topic_is_created_described_grown_unloaded_and_deleted(api):
    created = await api("PUT", TOPIC, {"partitions": 2, "ack_level": "written"}, 201)
    assert (created["topic"], created["ack_level"], len(created["partitions"])) == ("/default/orders", "written", 2)
    assert "partitions=-1" in (await api("PUT", f"{TOPIC}2", {"partitions": -1}, 400))["detail"]
    async with connect(api.broker_url) as client, client.producer("/default/orders") as producer:
        await producer.send_many([b"x"] * 10)
        described = await api("GET", TOPIC)
        assert described["config"] == {"partitions": 2, "reliable": True, "ack_level": "written"}
        assert sum(one["end_offset"] for one in described["partitions"]) == 10
        counted = await api("GET", f"{TOPIC}/statistics")
        assert sum(one["published"] for one in counted["partitions"]) == 10
        routes = await api("GET", f"{TOPIC}/lookup")
        assert {one["owner"] for one in routes["partitions"]} == {api.broker_url.removeprefix("danube://")}
        assert routes["brokers"][0]["native"] == routes["partitions"][0]["owner"]
    ends = [await api("GET", f"{TOPIC}/partitions/{one}/offset?position=latest") for one in range(2)]
    assert sum(one["offset"] for one in ends) == 10
    assert (await api("GET", f"{TOPIC}/partitions/0/offset?position=2001-01-01T00:00:00Z"))["offset"] == 0
    assert len((await api("PUT", f"{TOPIC}/partitions", {"partitions": 4}))["partitions"]) == 4
    await api("PUT", f"{TOPIC}/partitions", {"partitions": 1}, 409)
    await api("POST", f"{TOPIC}/unload", expect=204)
    full = max(range(2), key=lambda one: int(ends[one]["offset"]))
    begins = await api("POST", f"{TOPIC}/truncate", {"offsets": [[full, 3]]})
    assert begins == {"positions": [[full, 3]]}
    assert (await api("GET", TOPIC))["partitions"][full]["start_offset"] == 3
    await api("POST", f"{TOPIC}/truncate", {"offsets": [[full, 11]]}, 400)
    twice = {"offsets": [[full, 4], [full, 5]]}
    assert "twice" in (await api("POST", f"{TOPIC}/truncate", twice, 400))["detail"]
    (listed,) = (await api("GET", "/api/v1/topics?namespace=default"))["topics"]
    assert (listed["topic"], listed["partitions"]) == ("/default/orders", 4)
    await api("DELETE", TOPIC, expect=204)
    await api("GET", TOPIC, expect=404)


async def test_lists_come_in_pages(api):
    for number in range(5):
        await api("PUT", f"/api/v1/topics/default/t{number}", {"ack_level": "memory"}, 201)
    seen, after = [], ""
    while True:
        page = await api("GET", f"/api/v1/topics?limit=2&after={after}")
        seen += [one["topic"] for one in page["topics"]]
        after = page["next"]
        if not after:
            break
    assert seen == [f"/default/t{number}" for number in range(5)]
    assert "limit" in (await api("GET", "/api/v1/topics?limit=0", expect=400))["detail"]
    assert "sort" in (await api("GET", "/api/v1/topics?sort=colour", expect=400))["detail"]
    found = await api("GET", "/api/v1/topics?filter=*t[13]&sort=-name")
    assert [one["topic"] for one in found["topics"]] == ["/default/t3", "/default/t1"]


async def test_a_subscription_is_created_moved_and_emptied(api):
    await api("PUT", TOPIC, {"ack_level": "written"}, 201)
    async with connect(api.broker_url) as client, client.producer("/default/orders") as producer:
        await producer.send_many([b"x"] * 10)
    path = f"{TOPIC}/subscriptions/billing"
    made = await api("PUT", path, {"type": "key-shared", "start": "earliest"}, 201)
    assert (made["type"], made["partitions"][0]["lag"]) == ("key-shared", 10)
    assert (await api("GET", f"{TOPIC}/subscriptions"))["names"] == ["billing"]
    assert (await api("POST", f"{path}/skip", {"partition": 0, "ranges": [[1, 3]]}))["messages"] == 2
    assert (await api("GET", f"{path}/unsettled?limit=3"))["ranges"] == [[0, 1], [3, 5]]
    page = await api("GET", f"{path}/pending?limit=2")
    assert ([one["offset"] for one in page["messages"]], page["next"], page["type"]) == ([0, 3], 4, "key-shared")
    assert (await api("GET", f"{path}/statistics"))["partitions"][0]["statistics"]["backlog"] == 8
    moves = {"moves": [[0, 5, 0]]}
    assert await api("POST", f"{path}/advance", moves) == {"positions": [[0, 5]]}
    assert (await api("POST", f"{path}/clear"))["messages"] == 5
    assert await api("POST", f"{path}/seek", {"position": "7"}) == {"positions": [[0, 7]]}
    assert (await api("GET", path))["partitions"][0]["lag"] == 3
    assert (await api("PUT", f"{path}/unacked-max", {"unacked_max": 9}))["unacked_max"] == 9
    await api("DELETE", path, expect=204)
    await api("GET", path, expect=404)
    await api("GET", f"{path}/statistics", expect=404)


async def test_a_failure_policy_is_replaced(api):
    await api("PUT", TOPIC, expect=201)
    path = f"{TOPIC}/subscriptions/billing"
    await api("PUT", path, expect=201)
    changed = await api("PUT", f"{path}/failure-policy", {"redeliveries_max": 3, "poison": "drop"})
    assert changed == await api("GET", f"{path}/failure-policy")
    assert (changed["redeliveries_max"], changed["poison"], changed["backoff"]) == (3, "drop", "exponential")
    assert "dead_letter" in (await api("PUT", f"{path}/failure-policy", {"poison": "dead-letter"}, 400))["detail"]


async def test_a_backlog_is_peeked_at(api):
    await api("PUT", TOPIC, {"ack_level": "written"}, 201)
    await api("PUT", f"{TOPIC}/subscriptions/billing", {"start": "earliest"}, 201)
    async with connect(api.broker_url) as client, client.producer("/default/orders") as producer:
        await producer.send(b'{"id": 1}', key="a", attributes={"k": "v"})
        await producer.send(b"\xff")
    path = f"{TOPIC}/subscriptions/billing/peek"
    first, second = (await api("GET", path))["messages"]
    assert (first["message"]["payload"], first["message"]["key"]) == ('{"id": 1}', "a")
    assert (first["pending"]["state"], first["message"]["attributes"]) == ("ready", {"k": "v"})
    assert (second["message"]["payload_base64"], "payload" in second["message"]) == ("/w==", False)
    (only,) = (await api("GET", f"{path}?limit=1&payload=json"))["messages"]
    assert only["message"]["payload"] == {"id": 1}


async def test_dead_letters_are_listed_redriven_and_dropped(api):
    letters = "/api/v1/topics/default/failed/dead-letters"
    await api("PUT", TOPIC, {"ack_level": "written"}, 201)
    await api("PUT", "/api/v1/topics/default/failed", {"ack_level": "written"}, 201)
    policy = {"redeliveries_max": 0, "dead_letter_topic": "/default/failed"}
    path = f"{TOPIC}/subscriptions/billing"
    await api("PUT", path, {"start": "earliest", "failure_policy": policy}, 201)
    async with connect(api.broker_url) as client:
        async with client.producer("/default/orders") as producer:
            await producer.send_many([b"one", b"two"])
        async with client.consumer("/default/orders", subscription="billing") as consumer:
            for _ in range(2):
                await consumer.nack(await consumer.receive(timeout=60), reason="no")
            while len((found := await api("GET", letters))["letters"]) < 2:
                pass
    first, second = found["letters"]
    assert (first["message"]["payload"], first["original_topic"], first["reason"]) == (
        "one",
        "/default/orders",
        "no",
    )
    assert await api("GET", f"{letters}/0/1") == second
    dropped = await api("POST", f"{letters}/drop", {"offsets": [1]})
    assert (dropped["done"], dropped["remaining"]) == (1, 1)
    assert await api("POST", f"{letters}/redrive") == {"done": 1, "stayed": [], "next_offset": -1, "remaining": 0}
    assert (await api("GET", letters))["letters"] == []
    assert len((await api("GET", f"{letters}?redriven=true"))["letters"]) == 2
    (again,) = (await api("GET", f"{path}/peek"))["messages"]
    assert (again["message"]["payload"], again["message"]["attributes"]["x-redriven"]) == ("one", "1")
    await api("GET", f"{letters}/0/9", expect=404)


async def test_schemas_are_registered_checked_found_and_deleted(api):
    subject = "/api/v1/schemas/shop%2Forders"
    definition = {"format": "avro", "text": AVRO}
    first = await api("POST", f"{subject}/versions", definition, 201)
    assert await api("POST", f"{subject}/versions", definition, 200) == {**first, "is_new": False}
    checked = await api("POST", f"{subject}/check", {"format": "avro", "text": WIDER})
    assert checked["reasons"][0]["version"] == 1
    checked = await api("POST", f"{subject}/check?level=none", {"format": "avro", "text": WIDER})
    assert checked == {"reasons": [], "left_out": 0}
    assert (await api("PUT", f"{subject}/compatibility", {"level": "none"}))["effective"] == "none"
    await api("POST", f"{subject}/versions", {"format": "avro", "text": WIDER}, 201)
    assert (await api("DELETE", f"{subject}/compatibility"))["own"] is None
    assert (await api("GET", f"{subject}/versions"))["versions"] == [1, 2]
    assert (await api("POST", f"{subject}/lookup", definition))["version"] == 1
    await api("PUT", f"{subject}/versions/1/tags", {"tags": ["old"]}, 204)
    found = await api("GET", f"{subject}/versions/1")
    assert (found["subject"], found["tags"], found["definition"]["format"]) == ("shop/orders", ["old"], "avro")
    assert await api("GET", f"/api/v1/schema-ids/global/{found['global_id']}") == found
    assert await api("GET", f"/api/v1/schema-ids/subject/{found['schema_id']}/versions/1") == found
    assert (await api("GET", f"{subject}/versions/1/referrers"))["global_ids"] == []
    assert (await api("GET", "/api/v1/schemas?prefix=shop"))["names"] == ["shop/orders"]
    assert (await api("GET", subject))["versions"] == [1, 2]
    assert (await api("DELETE", f"{subject}/versions/latest"))["versions"] == [2]
    assert (await api("DELETE", subject))["versions"] == [1]
    assert (await api("GET", "/api/v1/schema-compatibility"))["effective"] == "backward"


async def test_a_topic_is_bound_to_a_subject(api):
    await api("PUT", TOPIC, expect=201)
    await api("GET", f"{TOPIC}/schema", expect=404)
    await api("POST", "/api/v1/schemas/orders/versions", {"format": "avro", "text": AVRO}, 201)
    bound = await api("PUT", f"{TOPIC}/schema", {"subject": "orders", "policy": "warn"})
    assert bound == await api("GET", f"{TOPIC}/schema")
    assert (bound["policy"], bound["framing"]) == ("warn", "none")
    await api("DELETE", f"{TOPIC}/schema", expect=204)


async def test_storage_is_uploaded_listed_verified_and_collected(api):
    await api("PUT", TOPIC, {"ack_level": "durable"}, 201)
    async with connect(api.broker_url) as client, client.producer("/default/orders") as producer:
        await producer.send_many([b"x"] * 10)
    started = await api("POST", "/api/v1/storage/uploads", {"topic": "/default/orders"}, 202)
    while not (state := await api("GET", f"/api/v1/storage/uploads/{started['run']}"))["done"]:
        pass
    assert state["failure"] == ""
    used = await api("GET", "/api/v1/storage?topic=/default/orders")
    assert (used["partitions"][0]["uploaded_end"], used["status"]["uploads"], used["next"]) == (10, "ok", None)
    listed = await api("GET", f"{TOPIC}/partitions/0/segments")
    assert (listed["segments"][0]["end_offset"], listed["next_offset"]) == (10, -1)
    verified = await api("POST", "/api/v1/storage/verify")
    assert verified["verified"]["messages"] == 10
    assert (await api("POST", "/api/v1/storage/collect", {"dry_run": True}))["collected"]["deleted"] == 0
    assert "after" in (await api("GET", "/api/v1/storage?after=nonsense", expect=400))["detail"]
    await api("GET", "/api/v1/storage/uploads/99", expect=404)


async def test_staged_queries_are_listed_and_forgotten(api):
    assert await api("GET", "/api/v1/staged-queries") == {"queries": [], "next": ""}
    assert "unknown" not in (await api("DELETE", "/api/v1/staged-queries/a%2Fb", expect=404))["detail"]


def test_every_native_request_has_an_operation_or_a_reason() -> None:
    requests = {one for one in wire.AnyRequest.__args__ if not isinstance(getattr(one, "rest", None), str)}
    offered = {one for operation in OPERATIONS for one in operation.native}
    assert (offered & requests) | set(NOT_OFFERED) == requests
    assert not offered & set(NOT_OFFERED)
    assert all(len(reason) > 20 for reason in NOT_OFFERED.values())
