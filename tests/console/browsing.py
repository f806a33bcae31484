"""A browser that keeps cookies and reads forms, and what a broker has for it to look at."""

from __future__ import annotations

import html
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import quote

import httpx2

import pydanube
from pydanube.console.application import application

TOPIC: Final = "/default/orders"
LETTERS: Final = "/default/orders-dlq"
SUBSCRIPTION: Final = "billing"
SUBJECT: Final = "orders-value"
SCRIPT: Final = "<script>alert(1)</script>"


class Browser:
    """Goes to pages of the console, and sends their forms."""

    def __init__(self, http: httpx2.AsyncClient) -> None:
        self._http = http

    async def get(self, path: str, status: int = 200, **headers: str) -> str:
        """Return the text of a page, which must have this status."""
        answer = await self._http.get(path, headers=headers)
        assert answer.status_code == status, answer.text
        return answer.text

    async def headers(self, path: str) -> httpx2.Headers:
        return (await self._http.get(path)).headers

    async def send(self, path: str, status: int = 200, token: str | None = None, to: str = "", **fields: str) -> str:
        """Send the form of a page with these fields. `token`: another one than the page has; `to`: elsewhere."""
        page = await self._http.get(path)
        found = re.search(r'name="form_token" value="([^"]+)"', page.text)
        assert found is not None, page.text
        sent = {"form_token": token if token is not None else found[1], **fields}
        answer = await self._http.post(to or path.split("?")[0], data=sent, follow_redirects=True)
        assert answer.status_code == status, answer.text
        return answer.text


@asynccontextmanager
async def browser_of(urls: Sequence[str]) -> AsyncIterator[Browser]:
    """A browser of a console that asks the brokers at these addresses."""
    app = application(urls, ["console"])
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://console") as http,
    ):
        yield Browser(http)


def text_of(page: str) -> str:
    """What a person reads: without tags, white space as one space."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


def act(name: str, **about: str) -> str:
    """The address of an act."""
    return f"/acts/{name}?" + "&".join(f"{key}={quote(value, safe='')}" for key, value in about.items())


async def fill(url: str) -> None:
    """Ten orders of which two are acked and one is a dead letter; messages with what a page must not run."""
    async with pydanube.connect(url) as client:
        await client.create_topic(TOPIC, partitions=2)
        await client.create_subscription(TOPIC, SUBSCRIPTION, type="shared", start="earliest")
        policy = pydanube.FailurePolicy(poison=pydanube.Poison.DEAD_LETTER, dead_letter_topic=LETTERS)
        await client.set_failure_policy(TOPIC, SUBSCRIPTION, policy)
        async with client.producer(TOPIC, name=f"till {SCRIPT}") as producer:
            for number in range(10):
                await producer.send(b'{"cups": %d}' % number, key=f"table-{number % 3}", attributes={"note": SCRIPT})
            await producer.send(f"{SCRIPT} \u202e dlrow".encode(), key=SCRIPT)
            await producer.send(b"\xff\x00\xfe")
        async with client.consumer(TOPIC, subscription=SUBSCRIPTION, type="shared") as consumer:
            for number in range(3):
                message = await consumer.receive(timeout=60)
                await (consumer.reject(message, f"no such cup {SCRIPT}") if number == 2 else consumer.ack(message))
            await consumer.flush()
        async with client.reader(LETTERS, start="earliest") as letters:
            await anext(aiter(letters))  # it is written after the consumer was answered
        await client.schemas.register(SUBJECT, '{"type": "object"}', format="json")
