"""The kitchen: makes the drinks of each table in order, and cleans. `danube app run kitchen:app` runs it."""

from __future__ import annotations

from events import Order, Served

import pydanube

app = pydanube.App()


@app.subscriber(
    "/default/shop-orders",
    subscription="kitchen",
    type="key-shared",  # the key is the table: its drinks come in order, those of other tables meanwhile
    start="earliest",
    concurrency=4,
    publish_to="/default/shop-served",
)
async def make(order: Order) -> list[Served]:
    """Make the drinks of an order."""
    return [Served(table=order.table, drink=order.drink) for _ in range(order.count)]


@app.cron("0 22 * * *", zone="Europe/Vienna")
async def clean(tick: pydanube.Tick) -> None:
    """Clean the machine, in one of all kitchens."""
    print("cleaned at", tick.time)
