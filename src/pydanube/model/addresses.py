"""Where clients reach a broker; hosts and ports as text."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final


@dataclass(frozen=True, slots=True)
class BrokerAddresses:
    """The addresses of one broker's listeners that clients are told, host:port each; empty: it has no such listener.

    `native` is also how the owner of a partition is named.
    """

    native: str
    grpc: str = ""
    """The Danube gRPC API."""
    admin: str = ""
    """The Danube gRPC admin API."""
    http: str = ""


NO_ADDRESSES: Final = BrokerAddresses("")
"""Of a broker of an earlier release, which tells none."""


def bracketed(host: str) -> str:
    """Return the host as it stands before a port: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


def host_port(host: str, port: int) -> str:
    return f"{bracketed(host)}:{port}"


def split_host_port(text: str) -> tuple[str, str | None]:
    """Return the host without brackets, and what follows the colon behind it; None: there is no colon. The host is
    empty if the text has another form."""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        port = rest.removeprefix(":") if rest else None
        return (host, port) if bracket and port != rest else ("", None)
    host, colon, port = text.partition(":")
    if ":" in port:
        return "", None
    return host, port if colon else None


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
