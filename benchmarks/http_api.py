"""How much of a Starlette server's speed publishing over HTTP keeps: 100-message JSON batches on one connection.

    .venv/bin/python benchmarks/http_api.py [--rounds 200] [--keys]

A client with one keep-alive connection sends the same batches in turn to two servers, each in a process of its own: one
of Starlette on uvicorn that reads the body into the same structs and does nothing with it, and a broker that publishes
it and answers the offsets. Rounds are short and interleaved, so that other load on the machine meets both; the median
of the ratios of the rounds is what counts, absolute numbers depend on the machine. Topics of each ack level are
measured: a client that waits for every answer waits for the disk too where the topic is durable, so that the ratio of
that one says more about the disk than about HTTP. The processor time of the broker per batch does not depend on that.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LEVELS = ("durable", "written", "memory")
MESSAGES = 100


def body_of(count: int, keys: bool = False) -> bytes:
    messages = [{"payload": "x" * 100, **({"key": f"key-{one}"} if keys else {})} for one in range(count)]
    return json.dumps({"messages": messages}).encode()


async def serve_nothing() -> None:
    """Serve Starlette with a route that only parses, until killed; prints the port."""
    import msgspec
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from pydanube.gateway.http.data.messages import PublishBody

    decoder = msgspec.json.Decoder(PublishBody)

    async def publish(request: Request) -> Response:
        read = decoder.decode(await request.body())
        return Response(b'{"offsets":%d}' % len(read.messages), media_type="application/json")  # type: ignore[arg-type]

    app = Starlette(routes=[Route("/{rest:path}", publish, methods=["POST"])])
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # so that asyncio sets NODELAY
    listening.bind(("127.0.0.1", 0))
    print(f"http=127.0.0.1:{listening.getsockname()[1]} ", flush=True)
    config = uvicorn.Config(app, log_level="error", http="h11", loop="asyncio", ws="none", lifespan="off")
    await uvicorn.Server(config).serve([listening])


class Client:
    """One keep-alive connection that sends the same request again and again."""

    def __init__(self, port: int, path: str, body: bytes) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        self._request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    def send(self) -> None:
        self._socket.sendall(self._request)
        received = b""
        while b"\r\n\r\n" not in received:
            received += self._socket.recv(65536)
        head, _, rest = received.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 "), received
        lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        left = int(lengths[0].partition(b":")[2]) - len(rest)
        while left > 0:
            left -= len(self._socket.recv(65536))

    def rate(self, count: int) -> float:
        """Return batches per second."""
        began = time.perf_counter()
        for _ in range(count):
            self.send()
        return count / (time.perf_counter() - began)


def start(command: list[str]) -> tuple[subprocess.Popen[str], int]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    line = process.stdout.readline()
    return process, int(line.split("http=")[1].split()[0].rpartition(":")[2])


def processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def create_topics(url: str) -> None:
    import pydanube

    async def create() -> None:
        async with pydanube.connect(url) as client:
            for level in LEVELS:
                await client.create_topic(f"/default/{level}", ack_level=level)

    asyncio.run(create())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--requests", type=int, default=20, help="of each round")
    parser.add_argument("--keys", action="store_true", help="every message has a key of its own")
    parser.add_argument("--serve-nothing", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve_nothing:
        asyncio.run(serve_nothing())
        return
    ports = [part for one in ("port", "grpc-port", "admin-port", "http-port") for part in (f"--{one}", "0")]
    body = body_of(MESSAGES, options.keys)
    with tempfile.TemporaryDirectory() as directory:
        broker = subprocess.Popen(
            [sys.executable, "-m", "pydanube.cli", "serve", "--data-dir", directory, *ports],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        nothing, nothing_port = start([sys.executable, __file__, "--serve-nothing"])
        try:
            assert broker.stdout is not None
            ready = dict(one.split("=") for one in broker.stdout.readline().split()[2:])
            create_topics(f"danube://{ready['native']}")
            http_port = int(ready["http"].rpartition(":")[2])
            measure(options, (broker.pid, http_port), (nothing.pid, nothing_port), body)
        finally:
            for process in (broker, nothing):
                process.terminate()
                process.wait(30)


def measure(options: argparse.Namespace, broker: tuple[int, int], nothing: tuple[int, int], body: bytes) -> None:
    baseline = Client(nothing[1], "/x", body)
    clients = {level: Client(broker[1], f"/api/v1/topics/default/{level}/messages", body) for level in LEVELS}
    for client in (baseline, *clients.values()):
        client.rate(200)
    rates: dict[str, list[tuple[float, float]]] = {level: [] for level in LEVELS}
    used: dict[str, float] = dict.fromkeys(["nothing", *LEVELS], 0.0)

    def run(name: str, pid: int, client: Client) -> float:
        used[name] -= processor_s(pid)
        rate = client.rate(options.requests)
        used[name] += processor_s(pid)
        return rate

    for level, client in clients.items():
        for _ in range(options.rounds):
            rates[level].append((run("nothing", nothing[0], baseline), run(level, broker[0], client)))
    for level, pairs in rates.items():
        ratio = statistics.median(ours / base for base, ours in pairs)
        ours = statistics.median(ours for _, ours in pairs)
        base = statistics.median(base for base, _ in pairs)
        print(f"{level}: {ours:.0f} batches/s, Starlette that only parses {base:.0f}, ratio {ratio:.2f}")
    requests = options.rounds * options.requests
    used["nothing"] /= len(LEVELS)
    times = {name: f"{1e6 * seconds / requests:.0f} us" for name, seconds in used.items()}
    print(f"processor time of the server per batch of {MESSAGES}: {times}")


if __name__ == "__main__":
    main()
