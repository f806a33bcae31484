"""Limits and timeouts of the HTTP listener: they bound the memory, time and connections of unknown clients."""

from __future__ import annotations

from dataclasses import dataclass

from pydanube.model.errors import Invalid
from pydanube.model.limits import KIB, MIB


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """What /metrics answers."""

    topics: bool = True
    """Whether topics and subscriptions have series of their own."""
    series_max: int = 250_000
    """How many of these there may be."""


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """Sizes in bytes, times in milliseconds."""

    connections_max: int = 2_000
    connections_per_address_max: int = 1_000
    accepted_at_once: int = 64
    """How many connections are accepted in one turn of the loop."""

    header_bytes_max: int = 32 * KIB
    """The request line and the headers of one request."""
    header_timeout_ms: int = 5_000
    """The longest time for them, from the first byte (on a new connection, from accepting it) to the last."""

    body_bytes_max: int = 4 * MIB
    bodies_bytes_max: int = 64 * MIB
    """The bodies of all requests that have no answer yet; past this, requests are refused."""
    discarded_bytes_max: int = 16 * MIB
    """How much of an unwanted body is read and discarded before the answer, so that the client comes to read
    it; past this, the connection is closed."""
    body_timeout_ms: int = 30_000
    """The longest time from the end of the headers to the last byte of the body."""

    answer_timeout_ms: int = 30_000
    """A client that reads nothing of its answer for this time is disconnected."""
    keep_alive_ms: int = 60_000
    """How long a connection may wait for its next request."""

    metrics: MetricsSettings = MetricsSettings()

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if isinstance(getattr(self, name), int) and getattr(self, name) < 1:
                raise Invalid(f"http {name}={getattr(self, name)} must be at least 1")
        if self.bodies_bytes_max < self.body_bytes_max:
            raise Invalid("http bodies_bytes_max must not be smaller than body_bytes_max")
