"""The places that a listener has for connections, in all and for one address. Every listener counts by this.

A connection has its place from the moment it is accepted, also while TLS shakes hands and before it is known who the
client is, until it is lost. A connection that finds no place, or whose address has cost too much without proof
(`unproven_work`), is refused before anything of it is read. Refusals, and handshakes that fail, are logged as a number,
once per round, so that a flood of them is not a flood of log lines.

Invariants
    connections + handshakes <= connections_max, and for one counted address <= per_address_max
    a connection leaves exactly the place that it took
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from pydanube.broker import ListenerMetrics
from pydanube.runtime.network import counted_address
from pydanube.runtime.telemetry import get_logger
from pydanube.runtime.tls import ServerCertificates
from pydanube.runtime.tls_transport import Handshakes, TlsListening

from .unproven_work import CONNECTION_S, UnprovenClient, UnprovenWork

log = get_logger(__name__)

_ADVICE: Final = ", as many as it may have: close some or raise the limit"


class Places:
    """The connections of one listener, by address."""

    def __init__(
        self,
        listener: str,
        connections_max: int,
        per_address_max: int,
        metrics: ListenerMetrics,
        work: UnprovenWork,
        kind: str = "",
    ) -> None:
        """`listener` begins the names of log events; `kind` is how refusals call its connections, such as `HTTP`.
        `work` is what clients cost before they have shown who they are, over all listeners."""
        self.work = work
        self.connections_max = connections_max
        self.connections = 0
        """Those that have a place and have finished their handshake."""
        self.handshakes = Handshakes(counted_address, work.add)
        self._refused_event = f"{listener}.connections_refused"
        self._failed_event = f"{listener}.tls_handshakes_failed"
        self._what = f"{kind} connections".strip()
        self._per_address_max = per_address_max
        self._metrics = metrics
        self._addresses: Counter[str] = Counter()
        self._refused = 0

    def tls(
        self,
        certificates: ServerCertificates | None,
        handshake_ms: int,
        plain_answer: bytes = b"",
        *,
        is_http2: bool = False,
    ) -> TlsListening | None:
        """Return how connections are encrypted, which is agreed on for HTTP/2 if they speak that; None: without
        certificates they are not. A client that speaks no TLS gets `plain_answer`."""
        if certificates is None:
            return None
        return TlsListening(
            lambda: certificates.http2_context if is_http2 else certificates.context,
            handshake_ms / 1000,
            self.handshakes,
            self.may_begin,
            plain_answer,
        )

    def may_begin(self, address: str) -> bool:
        """Return whether a TLS handshake from this IP address may begin: it takes the place of a connection. If not,
        count a refusal."""
        if self._problem(address, self.handshakes.total, self.handshakes.count(counted_address(address))):
            self._count_refused()
            return False
        return True

    def enter(self, address: str, handshake_s: float = 0.0) -> str:
        """Give a connection from this IP address a place; return why there is none, or nothing. One whose handshake
        took processor time may go on, whatever its address has cost: what it cost is given back with its proof."""
        problem = self._problem(address, may_cost=handshake_s > 0)
        if problem:
            self._count_refused()
            return problem
        self.connections += 1
        self._metrics.accepted += 1
        self._metrics.connections += 1
        self._addresses[counted_address(address)] += 1
        return ""

    def client(self, address: str, handshake_s: float = 0.0) -> UnprovenClient:
        """Return what measures the work for a connection that has a place, until its client has shown who it is. That
        of its handshake is counted already, and given back with the rest."""
        made = self.work.client(address, CONNECTION_S)
        if handshake_s:
            made.shook_hands(handshake_s)
        return made

    def leave(self, address: str) -> None:
        """Free the place of a connection that `enter` gave one."""
        counted = counted_address(address)
        self.connections -= 1
        self._metrics.connections -= 1
        self._addresses[counted] -= 1
        if self._addresses[counted] <= 0:
            del self._addresses[counted]

    def log_refusals(self) -> None:
        """Log what was refused, and which handshakes failed, since the last call."""
        if self._refused:
            log.warning(self._refused_event, count=self._refused, connections=self.connections)
            self._refused = 0
        failed, last = self.handshakes.drain_failures()
        if failed:
            log.warning(self._failed_event, count=failed, last=last)

    def _problem(self, address: str, shaking: int = 0, shaking_here: int = 0, may_cost: bool = False) -> str:
        """Return why there is no place for one more connection from this address, or nothing."""
        counted = counted_address(address)
        if self.connections + shaking >= self.connections_max:
            return f"this broker has {self.connections_max} {self._what}{_ADVICE}"
        if self._addresses.get(counted, 0) + shaking_here >= self._per_address_max:
            return f"address {counted} has {self._per_address_max} {self._what}{_ADVICE}"
        return "" if may_cost else self.work.refusal(counted)

    def _count_refused(self) -> None:
        self._refused += 1
        self._metrics.refused += 1
