"""Limits and timeouts of the HTTP listener: they bound the memory, time and connections of unknown clients."""

from __future__ import annotations

from dataclasses import dataclass

from pydanube.model.errors import Invalid
from pydanube.model.limits import KIB, MIB
from pydanube.model.webhooks import Webhook


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
    """How much of an unwanted body is thrown away unparsed after the answer, so that a client that is known comes to
    read it; past this, the connection is closed."""
    body_timeout_ms: int = 30_000
    """The longest time from the end of the headers to the last byte of the body."""

    answer_timeout_ms: int = 30_000
    """A client that reads nothing of its answer for this time is disconnected."""
    keep_alive_ms: int = 60_000
    """How long a connection may wait for its next request."""

    allowed_hosts: tuple[str, ...] = ()
    """Names by which clients reach this broker, besides its addresses; "*": any."""
    consumers_max: int = 1_000
    """Consumers over HTTP: sessions, SSE and WebSocket."""
    session_timeout_ms_max: int = 300_000
    """The longest silence of a session that a client may ask for."""
    poll_wait_ms_max: int = 60_000
    """The longest wait of a long poll that a client may ask for."""
    heartbeat_ms: int = 15_000
    """How often a stream of events that has nothing to send sends a comment."""
    cors_origins: tuple[str, ...] = ()
    """The origins whose pages may use this listener from a browser."""
    webhooks: tuple[Webhook, ...] = ()
    metrics: MetricsSettings = MetricsSettings()

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if isinstance(getattr(self, name), int) and getattr(self, name) < 1:
                raise Invalid(f"http {name}={getattr(self, name)} must be at least 1")
        if self.bodies_bytes_max < self.body_bytes_max:
            raise Invalid("http bodies_bytes_max must not be smaller than body_bytes_max")
