"""The application: which address is which page, and what every answer has."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from secrets import compare_digest
from typing import Final
from urllib.parse import parse_qsl

import httpx2
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pydanube.model.limits import MESSAGE_BYTES_MAX
from pydanube.runtime.clock import Clock, SystemClock

from . import acts, pages
from .rest import CONNECT_SECONDS_MAX, SECONDS_MAX, Away, Refused, RestApi
from .sessions import COOKIE, IDLE_S_MAX, Session, Sessions
from .view import View

HEADERS: Final = {
    # Pico draws the arrow of a select with an image in its style sheet.
    "content-security-policy": "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'self'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cache-control": "no-store",
}
FORM_BYTES_MAX: Final = 3 * MESSAGE_BYTES_MAX
"""A payload whose every byte is written with three characters."""
STATIC: Final = Path(__file__).parent / "static"

Page = Callable[[View], Awaitable[Response]]


class Console:
    """What all requests share."""

    def __init__(self, urls: Sequence[str], http: httpx2.AsyncClient, clock: Clock, is_https: bool) -> None:
        self._rest = RestApi(http, urls)
        self._clock = clock
        self._sessions = Sessions(clock)
        self._is_https = is_https

    def endpoint(self, page: Page) -> Callable[[Request], Awaitable[Response]]:
        """Return what Starlette calls for a page."""

        async def answer(request: Request) -> Response:
            session = self._sessions.find(request.cookies.get(COOKIE))
            form = await _form(request) if request.method == "POST" else None
            view = View(request, session, self._rest.signed_in(session.credential), self._clock, form)
            if form is not None and not compare_digest(view.field("form_token"), session.form_token):
                return view.page("problem.html", 403, title="Not sent", problem="This page was too old: open it anew.")
            try:
                response = await page(view)
            except Refused as refused:
                if refused.status == 401:
                    response = view.page(
                        "sign_in.html", 401, problem=str(refused) if session.credential or form else ""
                    )
                else:
                    response = view.page("problem.html", refused.status, title=refused.title, problem=str(refused))
            except Away as away:
                response = view.page("away.html", 503, problem=str(away))
            self._remember(response, view.session)
            return response

        return answer

    def _remember(self, response: Response, session: Session) -> None:
        response.set_cookie(
            COOKIE, session.id, max_age=IDLE_S_MAX, httponly=True, samesite="strict", secure=self._is_https
        )

    async def sign_in(self, view: View) -> Response:
        if view.form is None:
            return view.page("sign_in.html", problem="")
        credential = view.field("credential").strip()
        who = await self._rest.signed_in(credential).get("/access/whoami")
        view.session = self._sessions.sign_in(view.session, credential, who["principal"])
        return view.go("/")

    async def sign_out(self, view: View) -> Response:
        self._sessions.sign_out(view.session)
        view.session = self._sessions.find(None)
        return view.go("/sign-in")


def application(
    urls: Sequence[str],
    hosts: Sequence[str],
    *,
    ca: str | None = None,
    is_https: bool = False,
    clock: Clock | None = None,
) -> Starlette:
    """Return the console of the broker at these addresses; `hosts`: the names by which browsers may reach it."""
    http = httpx2.AsyncClient(timeout=httpx2.Timeout(SECONDS_MAX, connect=CONNECT_SECONDS_MAX), verify=ca or True)
    console = Console(urls, http, clock or SystemClock(), is_https)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with http:
            yield

    async def healthz(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    routes = [Route(path, console.endpoint(page), methods=["GET"]) for path, page in pages.PAGES.items()]
    routes += [
        Route("/acts/{act}", console.endpoint(acts.show), methods=["GET"]),
        Route("/acts/{act}", console.endpoint(acts.carry_out), methods=["POST"]),
        Route("/sign-in", console.endpoint(console.sign_in), methods=["GET", "POST"]),
        Route("/sign-out", console.endpoint(console.sign_out), methods=["POST"]),
        Route("/healthz", healthz),
    ]
    return Starlette(
        routes=[*routes, Mount("/static", StaticFiles(directory=STATIC))],
        middleware=[Middleware(_Headers), Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))],
        lifespan=lifespan,
    )


async def _form(request: Request) -> dict[str, str]:
    """Return the fields of a form; of one that is larger than a message may be, none."""
    received = bytearray()
    async for part in request.stream():
        received += part
        if len(received) > FORM_BYTES_MAX:
            return {}
    return dict(parse_qsl(received.decode("utf-8", "replace"), keep_blank_values=True))


class _Headers:
    """Adds to every answer what keeps a browser from running or showing anything else."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        cached = {"cache-control": "max-age=3600"} if scope.get("path", "").startswith("/static/") else {}
        headers = [(name.encode(), value.encode()) for name, value in (HEADERS | cached).items()]

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *headers]
            await send(message)

        await self._app(scope, receive, with_headers)
