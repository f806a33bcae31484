"""kill -9 of the broker in the middle of a redrive: no dead letter is lost."""

from __future__ import annotations

import asyncio

import pytest
from brokers import BrokerProcess
from letter_writer import broker_for_letters, write_letters

import pydanube

TOPIC, LETTERS = "/default/orders", "/default/orders-dlq"
COUNT = 3_000


def letter_of(number: int) -> dict[str, str]:
    return {"x-original-topic": TOPIC, "x-dead-letter-id": f"{TOPIC}/0/billing/{number}"}


async def sent_back(client: pydanube.Client) -> list[int]:
    async with client.reader(TOPIC, start="earliest", end="latest") as reader:
        return [int(message.payload) async for message in reader]


@pytest.mark.exhaustive
@pytest.mark.process
async def test_every_letter_arrives_although_the_broker_is_killed_during_redrives(tmp_path) -> None:
    async with broker_for_letters(tmp_path / "data") as url, pydanube.connect(url) as client:
        await client.create_topic(TOPIC)
        await client.create_topic(LETTERS)
        payloads = [b"%d" % number for number in range(COUNT)]
        await write_letters(url, LETTERS, payloads, [letter_of(number) for number in range(COUNT)])
    with BrokerProcess(tmp_path / "data") as broker:
        async with pydanube.connect(broker.url, timeout=120) as client:
            letters = client.dead_letters(LETTERS)
            redrives = [asyncio.create_task(letters.redrive()) for _ in range(2)]
            for arrived in (1, 600, 1_600):
                async with client.reader(TOPIC, start="earliest") as reader:
                    for _ in range(arrived):
                        await reader.receive(timeout=120)
                await broker.restart()
            async with asyncio.timeout(300):
                done = await asyncio.gather(*redrives)
            assert not any(one.stayed for one in done)
            found = await sent_back(client)
            assert set(found) == set(range(COUNT))
            assert len(found) <= COUNT + 3 * 500, "a kill repeats one step at most"
            assert [one async for one in letters] == []
