"""A retry is stored once, and a producer name has one holder.

    python examples/idempotent_producer.py

It runs its own broker behind a bad network: a small proxy that forwards a publish to the broker and then drops the
response. The producer cannot know whether its message was stored, so it sends the same bytes again. The broker
recognises them by their sequence number and answers with the offset of the first attempt.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pydanube
from pydanube import testing

TOPIC = "/default/payments"


class BadNetwork:
    """Forwards connections to a broker; on request it drops one response, with its connection."""

    def __init__(self) -> None:
        self.lose_next_answer = False
        self.lost = 0
        self._target = ("", 0)

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return "{}:{}".format(*self._server.sockets[0].getsockname())

    def leads_to(self, url: str) -> None:
        host, _, port = url.removeprefix("danube://").rpartition(":")
        self._target = (host, int(port))

    def close(self) -> None:
        self._server.close()

    async def _accept(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        from_broker, to_broker = await asyncio.open_connection(*self._target)
        asking = asyncio.gather(
            self._forward(from_client, to_broker), self._forward(from_broker, to_client, answers=True)
        )
        with suppress(ConnectionError, OSError):
            await asking
        asking.cancel()
        to_client.close()
        to_broker.close()

    async def _forward(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, answers: bool = False) -> None:
        while data := await source.read(1 << 16):
            if answers and self.lose_next_answer:
                self.lose_next_answer = False
                self.lost += 1
                raise ConnectionResetError
            target.write(data)
            await target.drain()
        target.close()


async def a_lost_answer(network: BadNetwork, url: str) -> None:
    async with pydanube.connect(url) as client, client.producer(TOPIC) as producer:
        first = await producer.send(b"pay 10")
        print(f"stored at offset {first.offset}")

        network.lose_next_answer = True
        second = await producer.send(b"pay 20")
        print(f"answer lost {network.lost} time, sent again: offset {second.offset}, duplicate={second.duplicate}")
        assert network.lost == 1 and second.duplicate

        stored = (await client.describe_topic(TOPIC)).partitions[0].end_offset
        print(f"messages in the topic: {stored}")
        assert stored == 2


async def one_holder_of_a_name(url: str) -> None:
    async with pydanube.connect(url) as client:
        older = await client.producer(TOPIC, name="cashier")
        await older.send(b"pay 30")
        async with client.producer(TOPIC, name="cashier") as newer:
            await newer.send(b"pay 40")
            try:
                await older.send(b"pay 50")
            except pydanube.StaleEpoch as error:
                print(f"the older 'cashier' is fenced: {error}")
            else:
                raise AssertionError("two holders of one name")
        with suppress(pydanube.StaleEpoch):
            await older.close()


async def main() -> None:
    network = BadNetwork()
    address = await network.start()
    # Clients look up the owner of a partition and connect to it: `advertised` makes that the proxy's address.
    async with testing.broker(server_advertised=address) as broker_url:
        network.leads_to(broker_url)
        await a_lost_answer(network, f"danube://{address}")
        await one_holder_of_a_name(f"danube://{address}")
    network.close()


if __name__ == "__main__":
    asyncio.run(main())
