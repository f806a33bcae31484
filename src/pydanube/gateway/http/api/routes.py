"""The routes of the REST API in the HTTP application: the operations, the document, and the page that shows it.

The page at /docs (docs.html, docs.js) reads /openapi.json and loads nothing from anywhere else.
"""

from __future__ import annotations

import asyncio
from functools import cache
from importlib import resources
from typing import Final

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

_PAGE_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cache-control": "no-cache",
}


def routes(broker: Broker) -> list[BaseRoute]:
    router = Router(broker, OPERATIONS)
    bases = {BASE if one.path.startswith(BASE) else f"/{one.path.split('/')[1]}" for one in OPERATIONS}
    return [
        Route("/openapi.json", _openapi),
        Route("/docs", _page),
        Route("/docs.js", _script),
        *WEBSOCKET_ROUTES,
        *(Route(f"{base}/{{rest:path}}", router) for base in sorted(bases)),
    ]


@cache
def _document() -> bytes:
    """Return the document as it is sent; it is made when it is asked for first."""
    return msgspec.json.encode(document(OPERATIONS))


async def _openapi(_request: Request) -> Response:
    return Response(await asyncio.to_thread(_document), media_type=JSON)


@cache
def _file(name: str) -> bytes:
    return resources.files(__package__).joinpath(name).read_bytes()


async def _page(_request: Request) -> Response:
    return Response(await asyncio.to_thread(_file, "docs.html"), headers=_PAGE_HEADERS, media_type="text/html")


async def _script(_request: Request) -> Response:
    return Response(await asyncio.to_thread(_file, "docs.js"), headers=_PAGE_HEADERS, media_type="text/javascript")
