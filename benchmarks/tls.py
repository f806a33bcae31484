"""The native listener with TLS beside one without, and beside a bare TLS loopback, in turns.

    python benchmarks/tls.py                     # three rounds of each size
    python benchmarks/tls.py --rounds 5 --count 2000000

published     `danube bench` publishing and receiving, one producer and one consumer process, at a broker without
              TLS and one with it: medians of the ratios of each round
loopback      256 KiB writes from one process to another over one connection, plain and with TLS: what OpenSSL itself
              costs here, without a broker and without asyncio
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import socket
import ssl
import statistics
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

from pydanube.cli.bench.broker_process import BrokerProcess
from pydanube.cli.bench.runs import measure
from pydanube.cli.bench.scenario import Scenario
from pydanube.cli.security.certificate_files import make_certificates
from pydanube.runtime.clock import SystemClock

TARGET = 0.5
WRITE_BYTES = 256 * 1024
LOOPBACK_BYTES = 512 * 1024 * 1024


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--count", type=int, default=500_000, help="messages of each measurement")
    return parser.parse_args()


def write_certificates(directory: Path) -> None:
    for name, content in make_certificates(["127.0.0.1"], SystemClock().now_us()).items():
        path = directory / name
        path.touch(0o600)
        path.write_bytes(content)


async def compare(directory: Path, size: int, batch: int, level: str, rounds: int, count: int) -> bool:
    """Print the rates of brokers with and without TLS; return whether the target is met."""
    settings = {
        "DANUBE_TLS_CERT_FILE": str(directory / "broker.pem"),
        "DANUBE_TLS_KEY_FILE": str(directory / "broker-key.pem"),
    }
    scenario = Scenario(size=size, batch=batch, count=count, ack_level=level)
    name = f"{size}-{level}"
    publish: list[float] = []
    received: list[float] = []
    async with (
        await BrokerProcess.start(directory / f"plain-{name}") as plain,
        await BrokerProcess.start(directory / f"tls-{name}", environment=settings) as secure,
    ):
        for _ in range(rounds):
            without = (await measure(scenario, plain.url, plain)).throughput
            with_tls = (await measure(scenario, secure.url.replace("danube:", "danubes:"), secure)).throughput
            assert without is not None and with_tls is not None
            publish.append(with_tls.publish / without.publish)
            received.append(with_tls.end_to_end / without.end_to_end)
            print(
                f"  {size} B x {batch}, {level}: "
                f"publish {without.publish:,.0f}/s plain, {with_tls.publish:,.0f}/s TLS; "
                f"end to end {without.end_to_end:,.0f}/s plain, {with_tls.end_to_end:,.0f}/s TLS",
                flush=True,
            )
    ratios = statistics.median(publish), statistics.median(received)
    met = min(ratios) >= TARGET
    print(
        f"{size} B x {batch}, {level}: publish {ratios[0]:.2f}, end to end {ratios[1]:.2f} of plain (target {TARGET})"
    )
    return met


def loopback(directory: Path, encrypted: bool) -> float:
    """Return the GB/s of large writes from this process to another."""
    listener = socket.create_server(("127.0.0.1", 0))
    ready, child = multiprocessing.Pipe()
    reader = multiprocessing.Process(target=_read_all, args=(listener, directory, encrypted, child))
    reader.start()
    stream: socket.socket = socket.create_connection(listener.getsockname())
    if encrypted:
        context = ssl.create_default_context(cafile=str(directory / "ca.pem"))
        stream = context.wrap_socket(stream, server_hostname="127.0.0.1")
    data = bytes(WRITE_BYTES)
    begun = time.perf_counter()
    for _ in range(LOOPBACK_BYTES // WRITE_BYTES):
        stream.sendall(data)
    ready.recv()
    seconds = time.perf_counter() - begun
    stream.close()
    reader.join()
    return LOOPBACK_BYTES / seconds / 1e9


def _read_all(listener: socket.socket, directory: Path, encrypted: bool, done: Connection) -> None:
    stream, _ = listener.accept()
    if encrypted:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(directory / "broker.pem", directory / "broker-key.pem")
        stream = context.wrap_socket(stream, server_side=True)
    buffer, received = bytearray(WRITE_BYTES), 0
    while received < LOOPBACK_BYTES:
        received += stream.recv_into(buffer)
    done.send(None)


def main() -> None:
    given = arguments()
    with tempfile.TemporaryDirectory(prefix="danube-tls-") as name:
        directory = Path(name)
        write_certificates(directory)
        os.environ["DANUBE_TLS_CA_FILE"] = str(directory / "ca.pem")
        rates = [(loopback(directory, False), loopback(directory, True)) for _ in range(given.rounds)]
        bare = statistics.median(secure / plain for plain, secure in rates)
        plain, secure = (statistics.median(one) for one in zip(*rates, strict=True))
        print(f"bare loopback: {plain:.2f} GB/s plain, {secure:.2f} GB/s TLS: {bare:.2f} of plain", flush=True)
        met = [
            asyncio.run(compare(directory, size, batch, level, given.rounds, count))
            for size, batch, level, count in (
                (100, 500, "durable", given.count),
                (1_000, 500, "written", given.count),
                (10_000, 100, "memory", given.count // 10),
            )
        ]
    raise SystemExit(0 if all(met) else 1)


if __name__ == "__main__":
    main()
