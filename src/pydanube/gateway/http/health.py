"""/healthz and /readyz, for supervisors and load balancers. They need no credentials and change nothing.

Healthy means that the event loop runs: a broker that does not answer is to be restarted. Ready means that it accepts
writes: a broker that is not ready gets no new clients, and says why.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

JSON = "application/json"


class Health(msgspec.Struct, omit_defaults=True):
    status: str
    reasons: list[str] = []


def routes(not_ready: Callable[[], list[str]]) -> list[Route]:
    """Return the two routes. `not_ready` returns why the broker is not ready, nothing when it is."""

    async def healthz(_request: Request) -> Response:
        return _answer(200, Health("ok"))

    async def readyz(_request: Request) -> Response:
        reasons = not_ready()
        return _answer(503, Health("not ready", reasons)) if reasons else _answer(200, Health("ready"))

    return [Route("/healthz", healthz), Route("/readyz", readyz)]


def _answer(status: int, health: Health) -> Response:
    return Response(msgspec.json.encode(health), status, {"cache-control": "no-store"}, JSON)
