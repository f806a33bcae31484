"""The error tree as HTTP: the only place that chooses a status for an error.

A NotOwner whose owner has an HTTP listener is answered as a redirect (307) to the same path there; see `location_of`.
Any other error is answered as problem details (RFC 9457). `code` and `retryable` are those of the error tree, so that a
client can react as a native one does:

    {"title": "NotFound", "status": 404, "detail": "topic /default/orders does not exist", "code": 4}
"""

from __future__ import annotations

from typing import Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Scope

from pydanube.broker import Broker
from pydanube.model import errors

PROBLEM: Final = "application/problem+json"
REDIRECT: Final = 307
MISTAKE: Final = "the broker made a mistake with this request; its log has the details"

STATUS: Final[dict[type[errors.DanubeError], int]] = {
    errors.DanubeError: 500,
    errors.Invalid: 400,
    errors.Refused: 409,
    errors.NotFound: 404,
    errors.AlreadyExists: 409,
    errors.Denied: 403,
    errors.Unauthenticated: 401,
    errors.Full: 429,
    errors.NotOwner: 421,
    errors.StaleEpoch: 409,
    errors.Held: 409,
    errors.Conflict: 412,
    errors.RequestFailed: 502,
    errors.Unavailable: 503,
    errors.Corrupt: 500,
}

_HEADERS: Final[dict[int, dict[str, str]]] = {
    401: {"www-authenticate": "Bearer"},
    429: {"retry-after": "1"},
    503: {"retry-after": "1"},
}
"""Headers that belong to a status."""


class Problem(msgspec.Struct, omit_defaults=True):
    """The body of an answer that is an error."""

    title: str
    status: int
    detail: str
    code: int = 0
    """The code of the error tree; absent for errors of HTTP itself."""
    retryable: bool = False
    owner: str = ""
    """The address of the broker to ask instead, of a NotOwner."""
    kind: str = ""
    """What kind of error the responder to a request has given, of a RequestFailed."""


def status_of(error: errors.DanubeError) -> int:
    """Return the status of an error; a class that is not in the table has that of its nearest base.

    A NotOwner that names no owner is for clients with something to open again, when a partition was unloaded. A request
    over HTTP only has to be sent again.
    """
    if isinstance(error, errors.NotOwner) and not error.owner:
        return STATUS[errors.Unavailable]
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)


def problem_of(error: errors.DanubeError) -> Problem:
    owner = error.owner if isinstance(error, errors.NotOwner) else ""
    kind, status = type(error), status_of(error)
    is_retryable = kind.retryable or status == STATUS[errors.Unavailable]
    return Problem(kind.__name__, status, error.message, kind.code, is_retryable, owner, getattr(error, "kind", ""))


def problem_of_http(error: HTTPException) -> Problem:
    """Return the body for an error of HTTP itself: no such path, method not allowed, body too large."""
    return Problem("HTTP", error.status_code, error.detail)


def headers_of(error: errors.DanubeError | HTTPException) -> dict[str, str]:
    if isinstance(error, HTTPException):
        return {**_HEADERS.get(error.status_code, {}), **(error.headers or {})}
    return dict(_HEADERS.get(status_of(error), {}))


def location_of(broker: Broker, scope: Scope, error: errors.DanubeError) -> str:
    """Return where the request would be answered, of an error that another broker owns what it is about; empty if that
    broker is not known, or has no HTTP listener."""
    if not isinstance(error, errors.NotOwner) or not error.owner:
        return ""
    address = broker.http_address_of(error.owner)
    query = scope.get("query_string", b"").decode("ascii", "replace")
    path = scope["raw_path"].decode("ascii", "replace")
    scheme = "https" if scope.get("scheme") in ("https", "wss") else "http"
    return f"{scheme}://{address}{path}{'?' if query else ''}{query}" if address else ""


def respond(error: errors.DanubeError | HTTPException, location: str = "") -> Response:
    """Return the answer for an error; with a `location`, a redirect to it, which clients follow with the same method
    and body."""
    problem = problem_of_http(error) if isinstance(error, HTTPException) else problem_of(error)
    headers = headers_of(error)
    if location:
        problem.status, headers = REDIRECT, {**headers, "location": location}
    return Response(msgspec.json.encode(problem), problem.status, headers, PROBLEM)


def bad_request(text: str) -> bytes:
    """Return the answer to what is no request for this port, as bytes; the connection is closed behind it."""
    body = msgspec.json.encode(problem_of_http(HTTPException(400, text)))
    head = f"HTTP/1.1 400 Bad Request\r\nContent-Type: {PROBLEM}\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"Connection: close\r\n\r\n" + body
