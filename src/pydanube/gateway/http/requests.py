"""Reading requests: who sends it, its parameters, its body."""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec
from starlette.requests import HTTPConnection, Request
from starlette.types import Scope

from pydanube.gateway.door import Caller
from pydanube.model.errors import Invalid

T = TypeVar("T")

_FLAGS: Final = {"true": True, "1": True, "false": False, "0": False, "": False}


LISTENER: Final = "http"

CALLER: Final = "danube.caller"
"""Where the scope of a request has its caller."""


def caller_of(request: HTTPConnection) -> Caller:
    """Return who sends the request."""
    caller: Caller = request.scope[CALLER]
    return caller


def address_of(scope: Scope) -> str:
    """Return the IP address of a client."""
    client = scope.get("client")
    return client[0] if client else ""


def flag(request: Request, *names: str) -> bool:
    """Return whether one of these query parameters is true. Raises Invalid for a value that is neither true nor
    false."""
    given = [(name, request.query_params[name]) for name in names if name in request.query_params]
    for name, value in given:
        if value.lower() not in _FLAGS:
            raise Invalid(f"{name}={value!r} is not allowed: use true or false")
    return any(_FLAGS[value.lower()] for _, value in given)


def number(request: Request, name: str, default: int) -> int:
    """Return a query parameter that is a whole number. Raises Invalid."""
    value = request.query_params.get(name)
    if value is None:
        return default
    try:
        return int(value)
    except ValueError:
        raise Invalid(f"{name}={value!r} is not allowed: use a whole number") from None


async def read_json(request: Request, kind: type[T]) -> T:
    """Return the body, which is JSON of this type. Raises Invalid with the place of what is wrong."""
    try:
        return msgspec.json.decode(await request.body(), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid(f"the body is not what is expected here: {error}") from None
    except RecursionError:
        raise Invalid("the body is nested too deeply") from None
