"""Where clients reach a broker."""

from __future__ import annotations

from dataclasses import dataclass
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
