"""How many messages per second one producer publishes with a plain loop of `send_nowait`.

    python benchmarks/send_nowait.py                    # 100 B messages, five rounds
    python benchmarks/send_nowait.py --size 1000 --keys 50 --profile

The loop calls `send_nowait` until the queue is full, then `flush`. The processor time of the client per message is
shown too: it changes least on a busy machine.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import pstats
import tempfile
import time
from pathlib import Path
from statistics import median

from pydanube.cli.bench.broker_process import BrokerProcess
from pydanube.client import Producer, connect
from pydanube.model.errors import Full


async def publish(producer: Producer, payload: bytes, keys: list[str | None], messages: int) -> None:
    send = producer.send_nowait
    count = len(keys)
    for number in range(messages):
        try:
            send(payload, key=keys[number % count]) if count else send(payload)
        except Full:
            await producer.flush()
            send(payload, key=keys[number % count] if count else None)
    await producer.flush()


async def main(chosen: argparse.Namespace) -> None:
    payload = bytes(chosen.size)
    keys: list[str | None] = [f"user-{number}" for number in range(chosen.keys)]
    with tempfile.TemporaryDirectory() as place:
        async with (
            await BrokerProcess.start(Path(place) / "data") as broker,
            connect(broker.url) as client,
            client.producer("/default/loop") as producer,
        ):
            await publish(producer, payload, keys, chosen.messages // 10)
            rates, costs = [], []
            for _ in range(chosen.rounds):
                at, own = time.perf_counter(), time.process_time()
                await publish(producer, payload, keys, chosen.messages)
                rates.append(chosen.messages / (time.perf_counter() - at))
                costs.append((time.process_time() - own) / chosen.messages)
            print(
                f"{median(rates):10,.0f} messages/s (best {max(rates):,.0f}); "
                f"processor of the client: {median(costs) * 1e6:.3f} us per message (best {min(costs) * 1e6:.3f})"
            )
            if chosen.profile:
                with cProfile.Profile() as profile:
                    await publish(producer, payload, keys, chosen.messages)
                pstats.Stats(profile).sort_stats("tottime").print_stats(20)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=500_000)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--keys", type=int, default=0, help="how many different keys; 0: messages without a key")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profile", action="store_true")
    asyncio.run(main(parser.parse_args()))
