"""The routes of the REST API in the HTTP application: the operations and the document."""

from __future__ import annotations

from functools import cache

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from pydanube.broker import Broker

from .consuming import WEBSOCKET_ROUTES
from .openapi import document
from .operations import BASE, JSON
from .router import Router
from .table import OPERATIONS


def routes(broker: Broker) -> list[BaseRoute]:
    router = Router(broker, OPERATIONS)
    bases = {BASE if one.path.startswith(BASE) else f"/{one.path.split('/')[1]}" for one in OPERATIONS}
    return [
        Route("/openapi.json", _openapi),
        *WEBSOCKET_ROUTES,
        *(Route(f"{base}/{{rest:path}}", router) for base in sorted(bases)),
    ]


@cache
def _document() -> bytes:
    """Return the document as it is sent; it is made when it is asked for first."""
    return msgspec.json.encode(document(OPERATIONS))


async def _openapi(_request: Request) -> Response:
    return Response(_document(), media_type=JSON)
