"""Who sends an HTTP request: credentials from its headers.

```
 Authorization: Bearer TOKEN      an API key or a JWT
 X-Api-Key: TOKEN                 the same
 Authorization: Basic ...         under /schema-registry: any user, and the token as the password
```

No other header grants anything. Health, the document of the API and its page ask for no credentials; a webhook is
authenticated by its own signature, and publishes as the principal `service_account:webhook-NAME`.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Final

from starlette.datastructures import Headers
from starlette.types import Scope

from pydanube.core.access import Principal
from pydanube.core.identity import NOBODY, Credentials, Identity
from pydanube.gateway import peer_certificates
from pydanube.gateway.door import Door
from pydanube.model.security import SERVICE_ACCOUNT

from . import schema_registry
from .requests import LISTENER, address_of

_OPEN_PATHS: Final = frozenset({"/healthz", "/readyz", "/openapi.json", "/docs", "/docs.js"})
_WEBHOOK: Final = re.compile(r"(?:/api/v1)?/webhooks/([A-Za-z0-9_-]{1,100})")
_UNREADABLE: Final = "?"
"""Stands for credentials in a form that is none: no token is like it."""


def is_open(path: str) -> bool:
    """Return whether anybody may ask for a path, without credentials and without limits."""
    return path in _OPEN_PATHS


def proves_later(path: str) -> bool:
    """Return whether the sender of a request has proved nothing yet: that of a webhook is known when its signature is
    checked, and nothing counts against it before."""
    return _WEBHOOK.fullmatch(path) is not None


async def authenticate(door: Door, scope: Scope) -> Identity:
    """Return who sends the request. Raises Unauthenticated or Full. The sender has proved that then, unless its path
    asks for no proof, or for one later."""
    path, unproven = scope["path"], scope["state"]["connection"].unproven
    if not door.broker.security.is_required:
        unproven.proved()
        return NOBODY
    if is_open(path):
        return NOBODY
    if (webhook := _WEBHOOK.fullmatch(path)) is not None:
        return Identity(Principal(f"webhook-{webhook[1]}", SERVICE_ACCOUNT), "webhook")
    return await door.identify(LISTENER, address_of(scope), _credentials(scope), unproven)


def _credentials(scope: Scope) -> Credentials:
    headers = Headers(scope=scope)
    path, base = scope["path"], schema_registry.BASE
    takes_basic = path == base or path.startswith(f"{base}/")
    given = [_token(one, takes_basic) for one in headers.getlist("authorization")] + headers.getlist("x-api-key")
    token = given[0] if given else ""
    if len(set(given)) > 1 or (given and not token):
        token = _UNREADABLE  # two callers at once are none
    return Credentials(token, peer_certificates.of_transport(scope["state"]["connection"].transport))


def _token(header: str, takes_basic: bool) -> str:
    """Return the token of a header `Authorization`; empty if it has none."""
    scheme, _, rest = header.strip().partition(" ")
    if scheme.lower() == "bearer":
        return rest.strip()
    return _password(rest.strip()) if scheme.lower() == "basic" and takes_basic else ""


def _password(encoded: str) -> str:
    try:
        return base64.b64decode(encoded, validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return ""
