"""The front: takes orders over HTTP, and tells what a table owes. `uvicorn front:web` runs it."""

from __future__ import annotations

from collections import defaultdict
from typing import Annotated

from events import Invoice, Order
from fastapi import Depends, FastAPI

import pydanube
import pydanube.fastapi

service = pydanube.App()
web = FastAPI(lifespan=service.lifespan)
owed: dict[str, float] = defaultdict(float)

Orders = Annotated[
    pydanube.fastapi.RequestProducer,
    Depends(pydanube.fastapi.producer("/default/shop-orders", schema=Order, timeout=2)),
]


@web.post("/orders", status_code=202)
async def order(order: Order, orders: Orders) -> dict[str, int]:
    """Take an order: it is answered when the broker has it on disk."""
    receipt = await orders.send(order, key=order.table)
    return {"number": receipt.offset}


@web.get("/tables/{table}")
async def table(table: str) -> dict[str, float]:
    return {"owes": owed[table]}


@service.subscriber("/default/shop-invoices", subscription="front", type="exclusive", start="earliest")
async def remember(invoice: Invoice) -> None:
    """Add up what each table owes."""
    owed[invoice.table] += invoice.total
