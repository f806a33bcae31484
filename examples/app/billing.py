"""Billing: an invoice for each order. `danube app run billing:app` in this directory runs it as a process."""

from __future__ import annotations

from events import Invoice, Order

import pydanube

app = pydanube.App()


class UnknownDrink(Exception):
    """No further try would change that."""


@app.subscriber(
    "/default/shop-orders",
    subscription="billing",
    start="earliest",
    concurrency=20,
    publish_to="/default/shop-invoices",
    retries=pydanube.Retries(5, backoff="1s..5m", dead_letter=True),
    reject=(UnknownDrink,),
)
async def bill(order: Order) -> Invoice:
    """Write the invoice of an order."""
    prices = {"espresso": 2.5, "melange": 4.0}
    if order.drink not in prices:
        raise UnknownDrink(order.drink)
    return Invoice(table=order.table, total=prices[order.drink] * order.count)
