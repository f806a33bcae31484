"""What can be tuned at the native door. Every number bounds memory, time or connections that a stranger could take."""

from __future__ import annotations

from dataclasses import dataclass

from pydanube.model.errors import Invalid
from pydanube.model.limits import KIB, MIB


@dataclass(frozen=True, slots=True)
class NativeSettings:
    """Sizes in bytes, times in milliseconds."""

    connections_max: int = 10_000
    connections_per_address_max: int = 1_000
    handshake_timeout_ms: int = 5_000
    """From accepting a connection to its HELLO."""
    handshake_frame_bytes_max: int = 64 * KIB
    """The largest frame from a peer that has not been welcomed."""

    keep_alive_ms: int = 5_000
    """A client that was silent for so long is gone; it is asked several times before."""
    frame_timeout_ms: int = 60_000
    """From the first byte of a frame to its last."""

    publish_window_bytes: int = 16 * MIB
    """Batches of one connection that have no answer yet; a client that sends more is closed."""
    publishes_in_flight_max: int = 4_096
    """The same as a number of PUBLISH frames; past it the connection is not read from."""
    publish_memory_bytes: int = 64 * MIB
    """Batches of all connections that have no answer yet; past it nobody who publishes is read from."""
    large_frames_bytes: int = 256 * MIB
    """Memory for frames above 512 KiB that have arrived in part, over all connections."""

    requests_in_flight_max: int = 64
    """Control requests of one connection that run at once; past it the connection is not read from."""
    fetches_in_flight_max: int = 1_024
    """Fetches of one connection that run or wait; past it they are refused."""
    fetch_bytes_max: int = 8 * MIB
    fetch_wait_ms_max: int = 60_000
    handles_max: int = 10_000
    """Producers and consumers of one connection."""

    write_high_bytes: int = 1 * MIB
    """With more than this waiting to be sent to a client, its consumers get nothing until it has read."""
    unread_answers_bytes_max: int = 256 * MIB
    """Fetch answers of all connections, being read or not taken; past it fetches wait, and are refused in the end."""
    answers_bytes_max: int = 4 * MIB
    """With more than this waiting, the client is not read from either."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 1:
                raise Invalid(f"native {name}={getattr(self, name)} must be at least 1")
        if self.answers_bytes_max < self.write_high_bytes:
            raise Invalid("native answers_bytes_max must not be smaller than write_high_bytes")
