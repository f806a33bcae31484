"""Producers for the functions of a FastAPI application, bounded by the deadline of the request.

```python
service = pydanube.App()
web = FastAPI(lifespan=service.lifespan)
Orders = Annotated[RequestProducer, Depends(pydanube.fastapi.producer("/shop/orders", schema=Order))]

@web.post("/orders")
async def order(order: Order, orders: Orders) -> None:
    await orders.send(order, key=order.table)
```

Importing this module needs Starlette only, which pydanube is made of.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection

from .app.application import App
from .client.producing.producer import Producer
from .client.producing.receipts import Receipt, Receipts
from .client.settings import check_number
from .model.errors import Full, Refused, Unavailable

TIMEOUT_SECONDS: Final = 5.0

DEADLINE_HEADER: Final = "request-timeout"
"""How many seconds the caller waits for the answer, as it says; a longer time than ours does not count."""


class RequestProducer:
    """A shared producer, as one request uses it: a send ends when the request's time is over."""

    def __init__(self, producer: Producer[Any], seconds: float) -> None:
        self._producer = producer
        self._deadline = asyncio.get_running_loop().time() + seconds

    async def send(self, value: Any, **arguments: Any) -> Receipt:
        """Publish one message as `Producer.send` does. Raises HTTPException: 504 when the time is over, 503 when the
        broker cannot take it. After 504 the message may still be stored."""
        async with self._bounded():
            return await self._producer.send(value, **arguments)
        raise AssertionError("the block returns or raises")

    async def send_many(self, values: Sequence[Any], **arguments: Any) -> Receipts:
        """Publish many messages as `Producer.send_many` does; raises as `send`."""
        async with self._bounded():
            return await self._producer.send_many(values, **arguments)
        raise AssertionError("the block returns or raises")

    @asynccontextmanager
    async def _bounded(self) -> AsyncGenerator[None, None]:
        try:
            async with asyncio.timeout_at(self._deadline):
                yield
        except TimeoutError:
            raise HTTPException(504, "the message was not stored in the time of this request") from None
        except (Unavailable, Full) as error:
            raise HTTPException(503, error.message) from error


def producer(
    topic: str, *, schema: Any = None, timeout: float = TIMEOUT_SECONDS
) -> Callable[[HTTPConnection], Awaitable[RequestProducer]]:
    """Return a dependency for ``Depends``: the producer of a topic, which all requests share.

    timeout     seconds that sends of a request may take, from the moment it is handled; less if its header
                ``Request-Timeout`` says so
    """
    check_number("timeout", timeout, 0.001, 1e6)

    async def provide(connection: HTTPConnection) -> RequestProducer:
        app = getattr(connection.state, "danube", None)
        if not isinstance(app, App):
            raise Refused("no pydanube.App runs with this application: write FastAPI(lifespan=service.lifespan)")
        seconds = _seconds(connection.headers.get(DEADLINE_HEADER), timeout)
        try:
            async with asyncio.timeout(seconds):
                return RequestProducer(await app.producer(topic, schema=schema), seconds)
        except (TimeoutError, Unavailable):
            raise HTTPException(503, f"{topic} cannot be published to now") from None

    return provide


def _seconds(header: str | None, longest: float) -> float:
    try:
        return longest if header is None else min(max(float(header), 0.0), longest)
    except ValueError:
        raise HTTPException(400, f"header {DEADLINE_HEADER} is not a number of seconds") from None
