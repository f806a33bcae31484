"""Reading requests: who sends it, its parameters, its body."""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec
from starlette.requests import HTTPConnection, Request

from pydanube.broker.security.audit_operations import Origin
from pydanube.core.access import Principal
from pydanube.core.identity import NOBODY, Identity
from pydanube.model.errors import Invalid

T = TypeVar("T")

_FLAGS: Final = {"true": True, "1": True, "false": False, "0": False, "": False}


LISTENER: Final = "http"

IDENTITY: Final = "danube.identity"
"""Where the scope of a request has its caller."""


def principal_of(request: HTTPConnection) -> Principal:
    """Return the caller, as `authentication` has noted it; on a broker without authentication it is anonymous."""
    return identity_of(request).principal


def identity_of(request: HTTPConnection) -> Identity:
    """Return who the caller is, and how that was established."""
    identity: Identity = request.scope.get(IDENTITY, NOBODY)
    return identity


def origin_of(request: HTTPConnection) -> Origin:
    """Return where the request comes from, for the audit."""
    identity, client = identity_of(request), request.client
    return Origin(LISTENER, client.host if client is not None else "", identity.principal.id, identity.method)


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
