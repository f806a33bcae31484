"""Producers in a FastAPI application: shared, typed, and bounded by the time of the request."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Annotated, Any

import fastapi
import pytest
from pydantic import BaseModel

import pydanube
import pydanube.fastapi


class Order(BaseModel):
    id: int


Orders = Annotated[
    pydanube.fastapi.RequestProducer, fastapi.Depends(pydanube.fastapi.producer("/shop/orders", schema=Order))
]


def application(service: pydanube.App, **options: Any) -> fastapi.FastAPI:
    web = fastapi.FastAPI(**options or {"lifespan": service.lifespan})

    @web.post("/orders", status_code=202)
    async def order(order: Order, orders: Orders) -> dict[str, int]:
        receipt = await orders.send(order, key="table")
        return {"offset": receipt.offset}

    return web


async def post(web: Any, state: dict[str, Any], body: bytes, *headers: tuple[bytes, bytes]) -> tuple[int, bytes]:
    """Send one request to an ASGI application, as a server does."""
    sent: list[dict[str, Any]] = []
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/orders",
        "headers": [(b"content-type", b"application/json"), *headers],
        "query_string": b"",
        "state": state,
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(event: dict[str, Any]) -> None:
        sent.append(event)

    await web(scope, receive, send)
    return sent[0]["status"], b"".join(event.get("body", b"") for event in sent)


async def test_a_request_publishes_through_the_producer_that_all_share(client: pydanube.Client) -> None:
    service = pydanube.App(client.url)
    web = application(service)
    async with web.router.lifespan_context(web) as state:
        assert state is not None
        answers = await asyncio.gather(*(post(web, dict(state), b'{"id": %d}' % n) for n in range(20)))
        assert {status for status, _ in answers} == {202}
        assert await service.producer("/shop/orders", schema=Order) is await service.producer(
            "/shop/orders", schema=Order
        )
    async with client.reader("/shop/orders", start="earliest", end="latest", schema=Order) as reader:
        assert {message.value().id async for message in reader} == set(range(20))


async def test_a_request_whose_time_is_over_gets_504(client: pydanube.Client) -> None:
    service = pydanube.App(client.url)
    web = application(service)
    async with AsyncExitStack() as stack:
        state = await stack.enter_async_context(web.router.lifespan_context(web))
        assert state is not None
        await service.producer("/shop/orders", schema=Order)
        status, body = await post(web, dict(state), b'{"id": 1}', (b"request-timeout", b"0"))
        assert status in (503, 504), body
        assert (await post(web, dict(state), b'{"id": 1}', (b"request-timeout", b"soon")))[0] == 400
        assert (await post(web, dict(state), b'{"id": 1}', (b"request-timeout", b"1000")))[0] == 202


async def test_an_application_without_the_lifespan_is_told_so() -> None:
    web = application(pydanube.App(), title="no lifespan")
    with pytest.raises(pydanube.Refused, match=r"lifespan=service\.lifespan"):
        await post(web, {}, b'{"id": 1}')
