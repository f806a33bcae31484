"""How much of a gRPC server's speed the Danube gRPC API keeps, with the official client.

    make danube-client && .venv/bin/python benchmarks/grpc_api.py [--rounds 5]

The client, which `make danube-client` installs in an environment of its own, runs in a process of its own against two
servers in turn: one of grpc.aio that does nothing, and a broker whose sends are synced before they are answered. Each
round measures both; the ratio of the medians is what counts, absolute numbers depend on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

CLIENT = """
import asyncio, json, sys, time
import danube
from danube.consumer import SubType

async def main(url, topic, sends, receives):
    client = await danube.DanubeClientBuilder().service_url(url).build()
    reliable = danube.DispatchStrategy.RELIABLE
    producer = client.new_producer().with_topic(topic).with_name("bench").with_dispatch_strategy(reliable).build()
    await producer.create()
    limit, payload = asyncio.Semaphore(100), b"x" * 100

    async def send():
        async with limit:
            await producer.send(payload)

    await asyncio.gather(*(send() for _ in range(200)))
    began = time.perf_counter()
    await asyncio.gather(*(send() for _ in range(sends)))
    sent = sends / (time.perf_counter() - began)
    builder = client.new_consumer().with_topic(topic).with_consumer_name("c").with_subscription("s")
    consumer = builder.with_subscription_type(SubType.EXCLUSIVE).build()
    await consumer.subscribe()
    await asyncio.gather(*(send() for _ in range(receives)))
    queue = await consumer.receive()
    await consumer.ack(await queue.get())
    began = time.perf_counter()
    for _ in range(receives - 1):
        await consumer.ack(await queue.get())
    received = (receives - 1) / (time.perf_counter() - began)
    print(json.dumps({"sends": sent, "receives": received}), flush=True)
    await consumer.close()

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
"""


async def serve_nothing() -> None:
    """Serve the calls of the client without doing anything, until killed; prints the port."""
    import grpc
    import grpc.aio

    from pydanube.gateway.grpc.messages import API, SCHEMA

    url, topic, sent = "", "", 0

    async def subscribe(request: Any, _context: Any) -> Any:
        nonlocal topic, sent
        topic, sent = request.topic_name, 0  # the client acks only messages of the topic that it subscribed to
        return API["ConsumerResponse"](request_id=request.request_id, consumer_id=1)

    async def send(request: Any, _context: Any) -> Any:
        nonlocal sent
        sent += 1
        return API["MessageResponse"](request_id=request.request_id)

    async def receive(_request: Any, context: Any) -> None:
        for offset in range(sent):
            identity = API["MsgID"](producer_id=1, topic_name=topic, broker_addr=url, topic_offset=offset)
            await context.write(API["StreamMessage"](request_id=offset, msg_id=identity, payload=b"x" * 100))
        await asyncio.Event().wait()

    replies = {
        "CreateProducer": lambda one: API["ProducerResponse"](request_id=one.request_id, producer_id=1),
        "Ack": lambda one: API["AckResponse"](request_id=one.request_id),
        "TopicPartitions": lambda one: API["TopicPartitionsResponse"](partitions=[one.topic]),
        "TopicLookup": lambda one: API["TopicLookupResponse"](response_type=1, connect_url=url, broker_url=url),
        "HealthCheck": lambda _: API["HealthCheckResponse"](),
    }

    def answer(reply: Any) -> Any:
        async def handle(request: Any, _context: Any) -> Any:
            return reply(request)

        return handle

    server = grpc.aio.server()
    for service in ("ProducerService", "ConsumerService", "Discovery", "HealthCheck"):
        handlers = {}
        for name, method in SCHEMA.methods(f"danube.{service}").items():
            functions = {"request_deserializer": method.request.FromString}
            functions["response_serializer"] = method.reply.SerializeToString
            if name == "ReceiveMessages":
                handlers[name] = grpc.unary_stream_rpc_method_handler(receive, **functions)
            elif name in ("SendMessage", "Subscribe"):
                function = send if name == "SendMessage" else subscribe
                handlers[name] = grpc.unary_unary_rpc_method_handler(function, **functions)
            elif name in replies:
                handlers[name] = grpc.unary_unary_rpc_method_handler(answer(replies[name]), **functions)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(f"danube.{service}", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    url = f"http://127.0.0.1:{port}"
    await server.start()
    print(f"grpc=127.0.0.1:{port} ", flush=True)
    await server.wait_for_termination()


def start(command: list[str]) -> tuple[subprocess.Popen[str], str]:
    """Start a server and return it with its URL."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    line = process.stdout.readline()
    return process, "http://" + line.split("grpc=")[1].split()[0]


def processor_s(pid: int) -> float:
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--client-python", default=Path(sys.prefix) / "danube-client/bin/python", help="a Python that has danube-client"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sends", type=int, default=3_000)
    parser.add_argument("--receives", type=int, default=1_000)
    parser.add_argument("--serve-nothing", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve_nothing:
        asyncio.run(serve_nothing())
        return
    ports = [part for one in ("port", "grpc-port", "admin-port", "http-port") for part in (f"--{one}", "0")]
    with tempfile.TemporaryDirectory() as directory:
        danube = str(Path(sys.executable).parent / "danube")
        servers = {
            "nothing": start([sys.executable, __file__, "--serve-nothing"]),
            "pydanube": start([danube, "serve", "--data-dir", directory, *ports]),
        }
        results: dict[str, dict[str, list[float]]] = {name: {"sends": [], "receives": []} for name in servers}
        used = dict.fromkeys(servers, 0.0)
        try:
            for number in range(options.rounds):
                for name, (process, url) in servers.items():
                    used[name] -= processor_s(process.pid)
                    counts = [str(options.sends), str(options.receives)]
                    command = [options.client_python, "-c", CLIENT, url, f"/default/t{number}", *counts]
                    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
                    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=300, check=True, env=env)
                    for what, rate in json.loads(done.stdout).items():
                        results[name][what].append(rate)
                    used[name] += processor_s(process.pid)
        finally:
            for process, _ in servers.values():
                process.terminate()
                process.wait(30)
    for what, title in [("sends", "100 concurrent sends/s"), ("receives", "receive + ack/s")]:
        nothing, ours = (statistics.median(results[name][what]) for name in ("nothing", "pydanube"))
        print(f"{title}: {ours:.0f}, a server that does nothing {nothing:.0f}, ratio {ours / nothing:.2f}")
    calls = options.rounds * (options.sends + 3 * options.receives + 200)
    per_call = {name: f"{1000 * seconds / calls:.2f} ms" for name, seconds in used.items()}
    print(f"processor time of the server per send, delivery and ack: {per_call}")


if __name__ == "__main__":
    main()
