"""An app that tests start as processes. What its handlers do is told by the topics that they publish to."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import dataclass

import pydanube


@dataclass
class Order:
    """What a customer wants."""

    id: int
    drink: str = "espresso"


@dataclass
class Done:
    id: int
    worker: int


app = pydanube.App(drain_seconds=20)


@app.subscriber(
    "/shop/orders",
    subscription="bar",
    type="key-shared",
    start="earliest",
    concurrency=4,
    prefetch=20,
    publish_to="/shop/done",
)
async def serve(order: Order, client: pydanube.Client) -> Done:
    """Serve a drink.

    Orders of one table are served in order.
    """
    if order.drink == "poison":
        os.kill(os.getpid(), signal.SIGKILL)
    if order.drink == "slow":
        await asyncio.sleep(0.3)  # work that a drain waits for
    if order.drink == "long":  # until the test says so
        async with client.consumer("/shop/go-on", subscription="bar", create_topic=True) as go_on:
            async with client.producer("/shop/begun") as begun:
                await begun.send(b"")
            await go_on.receive(timeout=120)
    return Done(order.id, os.getpid())


@app.every("1h", topic="/shop/cleaning")
async def clean() -> None:
    """Clean the bar."""
