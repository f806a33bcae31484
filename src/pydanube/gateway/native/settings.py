"""Limits and timeouts of the native listener: they bound the memory, time and connections of unknown clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pydanube.model.errors import Invalid
from pydanube.model.limits import KIB, MIB

PEER_PREFIX: Final = "broker "
"""What the `client` of a HELLO begins with that another broker sends."""


@dataclass(frozen=True, slots=True)
class NativeSettings:
    """Sizes in bytes, times in milliseconds."""

    connections_max: int = 10_000
    connections_per_address_max: int = 1_000
    descriptors_reserved: int = 0
    """File descriptors that the connections of other listeners may need."""
    handshake_timeout_ms: int = 5_000
    """The longest time from accepting a connection to its HELLO."""
    handshake_frame_bytes_max: int = 64 * KIB
    """The largest frame before the handshake is over."""

    keep_alive_ms: int = 5_000
    """A client that was silent for this time is disconnected; it gets several PING frames before."""
    frame_timeout_ms: int = 60_000
    """The longest time from the first byte of a frame to its last."""

    publish_window_bytes: int = 16 * MIB
    """Batches of one connection that have no answer yet; a client that sends more is disconnected."""
    publishes_in_flight_max: int = 4_096
    """PUBLISH frames of one connection that have no answer yet; past this the connection is not read from."""
    publish_memory_bytes: int = 64 * MIB
    """Batches of all connections that have no answer yet; past this, publishing connections are not read from."""
    large_frames_bytes: int = 256 * MIB
    """Memory for frames above 512 KiB that have arrived in part, of all connections."""

    requests_in_flight_max: int = 64
    """Control requests of one connection that run at once; past this the connection is not read from."""
    fetches_in_flight_max: int = 1_024
    """Fetches of one connection that run or wait; past this they are refused."""
    fetch_bytes_max: int = 8 * MIB
    fetch_wait_ms_max: int = 60_000
    handles_max: int = 10_000
    """Producers and consumers of one connection."""

    write_high_bytes: int = 1 * MIB
    """While more than this waits to be sent to a client, its consumers are paused."""
    answers_bytes_max: int = 4 * MIB
    """While more than this waits to be sent to a client, it is not read from either."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            least = 0 if name == "descriptors_reserved" else 1
            if getattr(self, name) < least:
                raise Invalid(f"native {name}={getattr(self, name)} must be at least {least}")
        if self.answers_bytes_max < self.write_high_bytes:
            raise Invalid("native answers_bytes_max must not be smaller than write_high_bytes")
