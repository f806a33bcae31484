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
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Receive, Scope, Send

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
    return [  # Starlette tries them in order
        *(_Below(base, router) for base in sorted(bases)),
        *WEBSOCKET_ROUTES,
        Route("/openapi.json", _openapi),
        Route("/docs", _page),
        Route("/docs.js", _script),
    ]


class _Below(BaseRoute):
    """A path and everything below it. The paths of Starlette's routes match no line breaks, which the router refuses by
    name."""

    def __init__(self, base: str, router: Router) -> None:
        self._base = base
        self._router = router

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        is_ours = scope["type"] == "http" and f"{scope['path']}/".startswith(f"{self._base}/")
        return (Match.FULL if is_ours else Match.NONE), {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._router(scope, receive, send)


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
