"""Refuses requests whose header Host names another server, which is how DNS rebinding reaches a local broker.

A page of an attacker can give its own host name the address of this broker. The browser then takes the broker for the
server of that page and lets the page read the answers; but it sends that name in the header Host. So a request is
answered only if the header has a name or an address that this broker is known by. The port is not compared: it is
often another one in front of a proxy, and an attacker's page cannot gain anything by it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import Scope

from pydanube.model.addresses import BrokerAddresses, is_loopback, split_host_port

ANY_HOST: Final = "*"
"""In the settings: the header Host is not checked."""

_REMEMBERED_MAX: Final = 100
"""How many allowed values of the header are remembered, so that they are not compared anew for every request."""

_SHOWN_CHARACTERS_MAX: Final = 100


class HostCheck:
    """Knows the names of this broker: those of the loopback address, the advertised ones, the address that the client
    connected to, the host that the listener was opened on, and those of the settings."""

    def __init__(self, configured: tuple[str, ...], advertised: Callable[[], BrokerAddresses]) -> None:
        self._configured = frozenset(one.lower().rstrip(".") for one in configured)
        self._advertised = advertised
        self._allowed: set[tuple[str, str]] = set()
        self.bound_host = ""
        """The host that the listener was opened on."""

    def refusal(self, scope: Scope) -> HTTPException | None:
        """Return why a request is refused, or None. A request without the header, of HTTP/1.0, is from no browser."""
        given = Headers(scope=scope).get("host")
        local = (scope.get("server") or ("", 0))[0]
        if given is None or ANY_HOST in self._configured or (given, local) in self._allowed:
            return None
        if not self._is_ours(host_of(given), local):
            shown = given[:_SHOWN_CHARACTERS_MAX]
            return HTTPException(
                421,
                f"this broker is not known as {shown!r}: use its address, or add the name to http.allowed_hosts",
            )
        if len(self._allowed) < _REMEMBERED_MAX:
            self._allowed.add((given, local))
        return None

    def _is_ours(self, host: str, local: str) -> bool:
        if not host:
            return False
        if is_loopback(host) or host in self._configured:
            return True
        known = self._advertised()
        names = {host_of(one) for one in (known.native, known.grpc, known.admin, known.http)}
        return host in names | {local.lower(), self.bound_host.lower()}


def host_of(text: str) -> str:
    """Return the host of `host:port` in lower case, without brackets and the dot at its end; empty if there is none."""
    host, port = split_host_port(text.strip().lower())
    return "" if port and not port.isdecimal() else host.rstrip(".")
