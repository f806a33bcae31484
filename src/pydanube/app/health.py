"""What an orchestrator and Prometheus ask of an app that runs: whether it lives, whether it is ready, what it did.

GET /healthz    200 while the event loop runs
GET /readyz     200 while the app receives; 503 before, and while it ends
GET /metrics    counts of each handler, in the text format of Prometheus
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Final

from pydanube.model.limits import KIB

from .subscribers import Subscription

REQUEST_BYTES_MAX: Final = 16 * KIB
REQUEST_SECONDS: Final = 5.0
CONNECTIONS_MAX: Final = 64
"""More are closed at once: descriptors that connections to this port hold are missing in the service."""

_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}

_HEAD: Final = (
    "HTTP/1.1 {status} {reason}\r\n"
    "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
    "Content-Length: {length}\r\n"
    "Connection: close\r\n\r\n"
)


@asynccontextmanager
async def health_listener(
    host: str, port: int, is_ready: Callable[[], bool], metrics: Callable[[], str]
) -> AsyncGenerator[int, None]:
    """Answer requests on a port, 0 for any, and yield its number. Raises OSError if it is not free."""

    def answer(method: str, path: str) -> tuple[int, str]:
        if method not in ("GET", "HEAD"):
            return 405, "GET only\n"
        match path:
            case "/healthz":
                return 200, "ok\n"
            case "/readyz":
                return (200, "ready\n") if is_ready() else (503, "not ready\n")
            case "/metrics":
                return 200, metrics()
        return 404, "there are /healthz, /readyz and /metrics\n"

    connections: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(connections) >= CONNECTIONS_MAX:
            writer.close()
            return
        connections.add(writer)
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                words = head.partition(b"\r\n")[0].decode("latin-1").split()
                status, text = answer(words[0], words[1].partition("?")[0]) if len(words) == 3 else (400, "not HTTP\n")
                body = text.encode()
                writer.write(_HEAD.format(status=status, reason=_REASONS[status], length=len(body)).encode())
                if words[:1] != ["HEAD"]:
                    writer.write(body)
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # who asks so is not answered
        finally:
            connections.discard(writer)
            writer.close()

    server = await asyncio.start_server(serve, host, port, limit=REQUEST_BYTES_MAX)
    async with server:
        yield server.sockets[0].getsockname()[1]


def prometheus_text(subscriptions: Iterable[Subscription]) -> str:
    """Return what the subscribers did since the app started, in the text format of Prometheus."""
    lines = [
        "# HELP danube_app_messages_total Messages that a handler was given, by what became of them.",
        "# TYPE danube_app_messages_total counter",
    ]
    running = ["# HELP danube_app_running Calls of a handler, now.", "# TYPE danube_app_running gauge"]
    seconds = [
        "# HELP danube_app_handler_seconds_total Time spent in a handler, added up over its calls.",
        "# TYPE danube_app_handler_seconds_total counter",
    ]
    for one in subscriptions:
        labels = f'handler="{one.spec.handler.name}",subscription="{one.spec.subscription}"'
        counts = one.counts
        outcomes = {"acked": counts.acked, "failed": counts.failed, "rejected": counts.rejected}
        lines += [
            f'danube_app_messages_total{{{labels},outcome="{outcome}"}} {count}' for outcome, count in outcomes.items()
        ]
        running.append(f"danube_app_running{{{labels}}} {counts.running}")
        seconds.append(f"danube_app_handler_seconds_total{{{labels}}} {counts.seconds:.6f}")
    return "\n".join([*lines, *running, *seconds]) + "\n"
