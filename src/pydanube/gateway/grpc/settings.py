"""Limits and timeouts of the gRPC listeners: they bound the memory, time and connections of unknown clients."""

from __future__ import annotations

from dataclasses import dataclass

from pydanube.model.errors import Invalid
from pydanube.model.limits import MESSAGE_BYTES_MAX, MIB

REQUEST_OVERHEAD_BYTES = 2 * MIB
"""What a request may have beside the payload of its message: key, attributes, names."""


@dataclass(frozen=True, slots=True)
class GrpcSettings:
    """Sizes in bytes, times in milliseconds. Each limit counts for each of the two listeners."""

    connections_max: int = 1_800
    connections_per_address_max: int = 900
    admin_connections_max: int = 200
    admin_connections_per_address_max: int = 100
    calls_max: int = 10_000
    """Calls that run at the same time, streams included; past this they get RESOURCE_EXHAUSTED."""
    calls_per_address_max: int = 5_000
    calls_per_connection_max: int = 1_000
    """gRPC's maximum of concurrent streams: clients wait before they send more."""

    message_bytes_max: int = MESSAGE_BYTES_MAX
    """The largest payload of a message."""
    receive_bytes_max: int = 4 * MIB
    """The largest message that is sent to a client: what existing clients accept."""

    handshake_timeout_ms: int = 5_000
    """A connection that has not become an HTTP/2 connection after this time is closed."""
    keep_alive_ms: int = 5_000
    """A silent connection is asked for a sign of life after this time, and closed after twice this time."""
    idle_ms: int = 300_000
    """A connection without a call is closed after this time; clients open another when they need it."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 1:
                raise Invalid(f"grpc {name}={getattr(self, name)} must be at least 1")

    @property
    def request_bytes_max(self) -> int:
        """The largest request that is read at all. Small limits of messages leave admin requests alone."""
        return max(self.message_bytes_max, self.receive_bytes_max) + REQUEST_OVERHEAD_BYTES
