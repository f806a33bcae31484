"""Handlers that answer requests."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

import pydanube


@dataclass
class Ask:
    count: int


@dataclass
class Price:
    cents: int


async def test_the_result_is_the_reply_and_an_exception_is_too(client: pydanube.Client) -> None:
    app = pydanube.App()

    @app.reply("/shop/quotes", concurrency=10)
    async def quote(ask: Ask) -> Price:
        if ask.count < 1:
            raise ValueError("count must be 1 or more")
        return Price(250 * ask.count)

    async with app.running(client.url) as inside:
        replies = await asyncio.gather(
            *(inside.request("/shop/quotes", Ask(n), timeout=60, answer=Price) for n in range(1, 20))
        )
        assert [reply.value() for reply in replies] == [Price(250 * n) for n in range(1, 20)]
        with pytest.raises(pydanube.RequestFailed) as raised:
            await inside.request("/shop/quotes", Ask(0), timeout=60)
        assert (raised.value.kind, raised.value.message) == ("ValueError", "count must be 1 or more")
        with pytest.raises(pydanube.RequestFailed, match="cannot be decoded") as raised:
            await inside.request("/shop/quotes", b"not a question", timeout=60)
        assert raised.value.kind == "Invalid"
        assert not (await inside.topics.describe("/shop/quotes")).config.reliable


async def test_a_reply_may_be_a_dict_and_a_request_may_come_on_a_reliable_topic(client: pydanube.Client) -> None:
    app = pydanube.App()
    await client.topics.create("/shop/quotes")
    called: list[bytes] = []

    @app.reply("/shop/quotes", timeout=60)
    def quote(ask: bytes) -> dict[str, int]:
        called.append(ask)
        return {"cents": len(ask)}

    async with app.running(client.url) as inside:
        async with inside.producer("/shop/quotes") as producer:
            await producer.send(b"nobody asks")
        reply = await inside.request("/shop/quotes", b"tea", timeout=60)
        assert reply.payload == b'{"cents":3}'
    assert called == [b"tea"]
    described = await client.describe_subscription("/shop/quotes", "replies")
    assert sum(place.lag for place in described.partitions) == 0


def test_a_reply_is_one_value_for_one_request() -> None:
    app = pydanube.App()

    async def batch(asks: list[Ask]) -> Price: ...

    async def many(ask: Ask) -> list[Price]: ...

    for function, said in ((batch, "a request is one message"), (many, "a reply is one value")):
        with pytest.raises(pydanube.Invalid, match=rf"{function.__name__} \(test_app_replies.py:\d+\): {said}"):
            app.reply("/shop/quotes")(function)
