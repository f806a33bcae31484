"""Webhooks: who may send them, the window of time, repetitions, and what becomes of a request."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
from typing import Any

import pytest
from http_peer import Answer, HttpListener, Peer, open_listener

import pydanube
from pydanube import testing
from pydanube.model.errors import Invalid, Refused
from pydanube.model.webhooks import Webhook
from pydanube.runtime.clock import MICROSECONDS, ManualClock
from pydanube.settings import Settings

SECRET = "correct horse battery staple"
STANDARD_SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef").decode()


def webhooks() -> tuple[Webhook, ...]:
    topic = "/default/hooks"
    return (
        Webhook.parse("shop", {"topic": topic, "secret": SECRET, "headers": ["X-Kind"], "key_header": "X-Order"}),
        Webhook.parse("door", {"topic": topic, "secret": SECRET, "scheme": "token"}),
        Webhook.parse("svix", {"topic": topic, "secret": STANDARD_SECRET, "scheme": "standard"}),
        Webhook.parse("github", {"topic": topic, "secret": SECRET, "scheme": "github", "headers": ["x-github-event"]}),
    )


def digest(data: bytes, key: bytes = SECRET.encode()) -> bytes:
    return hmac.new(key, data, hashlib.sha256).digest()


def signed(body: bytes, now_s: int) -> dict[str, str]:
    signature = digest(str(now_s).encode() + b"." + body).hex()
    return {"X_Webhook_Timestamp": str(now_s), "X_Webhook_Signature": f"sha256={signature}"}


async def send(there: HttpListener, name: str, body: bytes, **headers: str) -> Answer:
    async with await Peer.connect(there) as peer:
        return await peer.request("POST", f"/webhooks/{name}", body, **headers)


async def stored(there: HttpListener, count: int) -> list[Any]:
    async with (
        pydanube.connect(there.broker_url) as client,
        client.consumer("/default/hooks", subscription="s", start="earliest") as consumer,
        asyncio.timeout(60),
    ):
        found = [await consumer.receive() for _ in range(count)]
        described = await client.describe_topic("/default/hooks")
        assert described.partitions[0].end_offset == count
        return found


async def test_a_signed_request_becomes_a_message() -> None:
    clock = ManualClock()
    now_s = clock.now_us() // MICROSECONDS
    async with open_listener(clock, webhooks=webhooks()) as there:
        headers = {"X_Kind": "sale", "X_Order": "7", "Content_Type": "application/json", "X_Other": "not kept"}
        answer = await send(there, "shop", b'{"id": 7}', **signed(b'{"id": 7}', now_s), **headers)
        assert (answer.status, answer.json()) == (200, {"offsets": [{"partition": 0, "offset": 0}]})
        (message,) = await stored(there, 1)
        assert (message.payload, message.key, message.producer) == (b'{"id": 7}', "7", "webhook")
        assert message.attributes == {"webhook": "shop", "content-type": "application/json", "x-kind": "sale"}


async def test_the_schemes_of_others_are_understood() -> None:
    clock = ManualClock()
    now_s = clock.now_us() // MICROSECONDS
    async with open_listener(clock, webhooks=webhooks()) as there:
        assert (await send(there, "door", b"a", Authorization=f"Bearer {SECRET}")).status == 200
        assert (await send(there, "door", b"b", X_Webhook_Token=SECRET)).status == 200
        signature = base64.b64encode(digest(f"msg_1.{now_s}.c".encode(), b"0123456789abcdef")).decode()
        standard = {"webhook_id": "msg_1", "webhook_timestamp": str(now_s)}
        standard["webhook_signature"] = f"v1,bad v1,{signature}"
        assert (await send(there, "svix", b"c", **standard)).status == 200
        github = {"X_Hub_Signature_256": f"sha256={digest(b'd').hex()}"}
        github |= {"X_GitHub_Delivery": "1", "X_GitHub_Event": "push"}
        assert (await send(there, "github", b"d", **github)).status == 200
        messages = await stored(there, 4)
        assert [one.payload for one in messages] == [b"a", b"b", b"c", b"d"]
        assert messages[3].attributes == {"webhook": "github", "x-github-event": "push"}


@pytest.mark.parametrize("late_s", [-301, 301])
async def test_a_request_of_another_time_is_refused(late_s: int) -> None:
    clock = ManualClock()
    now_s = clock.now_us() // MICROSECONDS
    async with open_listener(clock, webhooks=webhooks()) as there:
        answer = await send(there, "shop", b"x", **signed(b"x", now_s - late_s))
        assert answer.status == 401 and "300 s" in answer.json()["detail"]
        assert (await send(there, "shop", b"x", **signed(b"x", now_s - late_s // 2))).status == 200
        await stored(there, 1)


async def test_a_request_without_the_secret_is_refused_and_stores_nothing() -> None:
    clock = ManualClock()
    now_s = clock.now_us() // MICROSECONDS
    async with open_listener(clock, webhooks=webhooks()) as there, pydanube.connect(there.broker_url) as client:
        right = signed(b"x", now_s)
        wrong: list[tuple[str, dict[str, str]]] = [
            ("shop", {}),
            ("shop", {**right, "X_Webhook_Signature": "sha256=" + "0" * 64}),
            ("shop", {**right, "X_Webhook_Signature": "é"}),
            ("shop", {**right, "X_Webhook_Timestamp": str(now_s + 1)}),
            ("shop", signed(b"y", now_s)),
            ("shop", {"Authorization": f"Bearer {SECRET}"}),
            ("door", {}),
            ("door", {"Authorization": f"Bearer {SECRET}x"}),
            ("door", {"Authorization": f"Basic {SECRET}"}),
            ("svix", {}),
            ("github", {"X_Hub_Signature_256": "sha256="}),
        ]
        for name, headers in wrong:
            answer = await send(there, name, b"x", **headers)
            assert answer.status == 401, (name, headers)
            assert SECRET not in answer.body.decode() and digest(b"x").hex() not in answer.body.decode()
        assert (await send(there, "unknown", b"x", **right)).status == 404
        assert await client.list_topics() == []


async def test_a_repeated_request_is_answered_as_the_first_and_stored_once() -> None:
    clock = ManualClock()
    now_s = clock.now_us() // MICROSECONDS
    async with open_listener(clock, webhooks=webhooks()) as there:
        headers = signed(b"x", now_s)
        answers = await asyncio.gather(*(send(there, "shop", b"x", **headers) for _ in range(5)))
        assert {one.status for one in answers} == {200} and len({one.body for one in answers}) == 1
        clock.advance(200)
        assert (await send(there, "shop", b"x", **headers)).body == answers[0].body
        clock.advance(200)
        assert (await send(there, "shop", b"x", **headers)).status == 401
        assert not any(one._seen for one in [there.server._application._data.webhooks._bound["door"]])
        await stored(there, 1)


async def test_a_request_that_failed_may_be_repeated() -> None:
    clock = ManualClock()
    now_s = clock.now_us() // MICROSECONDS
    async with open_listener(clock, webhooks=webhooks()) as there, pydanube.connect(there.broker_url) as client:
        await client.create_topic("/default/hooks")
        producer = client.producer("/default/hooks", access="exclusive", name="other")
        async with producer:
            await producer.send(b"first")
            assert (await send(there, "shop", b"x", **signed(b"x", now_s))).status == 409
        assert (await send(there, "shop", b"x", **signed(b"x", now_s))).status == 200


def test_secrets_are_not_shown(tmp_path: Any) -> None:
    file = tmp_path / "danube.toml"
    file.write_text(f'[http.webhooks.shop]\ntopic = "/default/hooks"\nsecret = "{SECRET}"\nwindow_s = 60\n')
    settings = Settings.load(file, {}, {})
    (webhook,) = settings.http.webhooks
    assert (webhook.secret, webhook.window_s) == (SECRET, 60)
    assert SECRET not in repr(settings)
    shown = {one.key: one.value for one in settings.describe()}["http.webhooks"]
    assert shown == "shop topic=/default/hooks scheme=hmac window_s=60 secret=***"


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({}, "needs a topic"),
        ({"topic": "orders"}, "webhook 'shop': topic 'orders' is not a full name"),
        ({"topic": "/default/hooks"}, "either secret or secret_file"),
        ({"topic": "/default/hooks", "secret": "short"}, "fewer than 8"),
        ({"topic": "/default/hooks", "secret": SECRET, "scheme": "md5"}, "md5"),
        ({"topic": "/default/hooks", "secret": SECRET, "window_s": 0}, "window_s"),
        ({"topic": "/default/hooks", "secret": SECRET, "colour": "red"}, "colour"),
        ({"topic": "/default/hooks", "secret": 7}, "secret is text"),
        ({"topic": "/default/hooks", "secret": SECRET, "headers": "x"}, "headers is a list"),
    ],
)
def test_a_wrong_webhook_is_refused_at_the_start_without_its_secret(options: dict[str, Any], what: str) -> None:
    with pytest.raises(Invalid, match=what) as refused:
        Settings.load(None, {}, {"http.webhooks": {"shop": options}})
    assert SECRET not in refused.value.message


async def test_a_secret_may_be_in_a_file(tmp_path: Any) -> None:
    file = tmp_path / "secret"
    text = f"door topic=/default/hooks scheme=token secret_file={file}"
    with pytest.raises(Refused, match="cannot be read"):
        async with testing._server(None, {"http_webhooks": text}):
            pass
    file.write_text(f"{SECRET}\n")
    async with testing._server(None, {"http_webhooks": text}) as server:
        reader, writer = await asyncio.open_connection(*server.http_address)
        lines = ["POST /webhooks/door HTTP/1.1", "Host: localhost", f"Authorization: Bearer {SECRET}"]
        head = "\r\n".join([*lines, "Content-Length: 1", "", "x"])
        writer.write(head.encode())
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        writer.close()
