"""A shop of three services: a front with FastAPI, billing, and a kitchen, here in one process.

    python examples/app

As processes they are `uvicorn front:web`, `danube app run billing:app` and `danube app run kitchen:app`, each as many
times as you like. Needs `pip install fastapi`.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.request import Request, urlopen

import billing
import front
import kitchen
import uvicorn
from events import Order, Served

import pydanube
import pydanube.testing


@asynccontextmanager
async def broker() -> AsyncIterator[str]:
    """The broker that DANUBE_URL names, or one of our own."""
    if url := os.environ.get("DANUBE_URL"):
        yield url
    else:
        async with pydanube.testing.broker() as url:
            yield url


@asynccontextmanager
async def listening() -> AsyncIterator[str]:
    """The front, on a free port."""
    server = uvicorn.Server(uvicorn.Config(front.web, port=0, log_level="warning"))
    running = asyncio.create_task(server.serve())
    while not server.started and not running.done():  # noqa: ASYNC110  uvicorn has no event for it
        await asyncio.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await running


def ask(address: str, order: Order | None = None) -> dict[str, float]:
    body = None if order is None else order.model_dump_json().encode()
    with urlopen(Request(address, body, {"Content-Type": "application/json"})) as answer:
        return json.load(answer)


async def main() -> None:
    async with broker() as url:
        front.service.url = url
        async with listening() as address, billing.app.running(url), kitchen.app.running(url) as client:
            async with client.consumer(
                "/default/shop-served", subscription="waiter", start="earliest", schema=Served
            ) as served:
                for drink, count in (("espresso", 2), ("tea", 1), ("melange", 1)):
                    order = Order(table="7", drink=drink, count=count)
                    print("ordered", drink, await asyncio.to_thread(ask, f"{address}/orders", order))
                for _ in range(4):
                    message = await served.receive(timeout=60)
                    await served.ack(message)
                    print("served", message.value().drink, "to table", message.key)
            async with client.consumer(
                "/default/shop-orders-billing-dlq", subscription="boss", start="earliest"
            ) as refused:
                letter = await refused.receive(timeout=60)
                await refused.ack(letter)
                print("not billed:", letter.attributes["x-failure-reason"])
            while (bill := await asyncio.to_thread(ask, f"{address}/tables/7"))["owes"] < 9:  # noqa: ASYNC110  over HTTP
                await asyncio.sleep(0.01)
            print("table 7 owes", bill["owes"])


asyncio.run(main())
