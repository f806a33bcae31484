"""Which pages of other origins may use this listener from a browser (CORS). None may, unless the settings name them.

A browser sends the header Origin with every request of a page that could change something, and with every WebSocket. A
request of an origin that is neither this listener's own nor allowed is refused before anything is done.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Scope

METHODS: Final = "GET, HEAD, POST, PUT, PATCH, DELETE"
EXPOSED: Final = "ETag, Location, Retry-After"
MAX_AGE_S: Final = 600

_OWN_SITES: Final = frozenset({"same-origin", "none"})
"""Sec-Fetch-Site of a page of this listener, and of an address that the user entered."""


class Origins:
    """The origins that are allowed, such as https://example.com."""

    def __init__(self, allowed: tuple[str, ...]) -> None:
        self._allowed = frozenset(one.lower() for one in allowed)

    def refusal(self, headers: Headers) -> HTTPException | None:
        """Return why a request that changes something is refused, or None."""
        if not self.is_foreign(headers):
            return None
        page = f"a page of {headers['origin']}" if "origin" in headers else "a page of another origin"
        return HTTPException(403, f"{page} may not change anything here")

    def is_foreign(self, headers: Headers) -> bool:
        """Return whether a browser sends the request for a page of an origin that is not allowed.

        For an image or a link, which are GET requests, a browser sends no Origin, but Sec-Fetch-Site.
        """
        origin = headers.get("origin")
        if origin is None:
            return headers.get("sec-fetch-site", "none").lower() not in _OWN_SITES
        if origin.lower() in self._allowed:
            return False
        try:
            return urlsplit(origin).netloc != headers.get("host")
        except ValueError:  # brackets that are no IPv6 address
            return True

    def preflight(self, scope: Scope) -> Response | None:
        """Return the answer to the question of a browser whether it may send a request; None: this is no such
        question, or the origin is not allowed."""
        if scope["method"] != "OPTIONS" or not self._allowed:
            return None
        headers = Headers(scope=scope)
        if "access-control-request-method" not in headers or headers.get("origin", "").lower() not in self._allowed:
            return None
        allowed = {
            "access-control-allow-methods": METHODS,
            "access-control-allow-headers": headers.get("access-control-request-headers", ""),
            "access-control-max-age": str(MAX_AGE_S),
        }
        return Response(None, 204, {name: value for name, value in allowed.items() if value})

    def headers(self, scope: Scope) -> list[tuple[bytes, bytes]]:
        """Return the headers that an answer to the request gets."""
        if not self._allowed:
            return []
        origin = Headers(scope=scope).get("origin", "")
        if origin.lower() not in self._allowed:
            return [(b"vary", b"origin")]
        return [
            (b"vary", b"origin"),
            (b"access-control-allow-origin", origin.encode("latin-1")),
            (b"access-control-expose-headers", EXPOSED.encode()),
        ]
