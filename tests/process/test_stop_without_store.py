"""A broker alone that is stopped while publishes to `stored` topics wait for an object store that is away."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from brokers import BrokerProcess
from commanded_store import StoreCommands
from entry_points import installed

import pydanube
from pydanube.model.errors import Unavailable

pytestmark = pytest.mark.process
TOPIC = "/default/orders"
PARTITIONS = 70
"""More than are closed at the same time."""
STOPPING_S = 60.0


async def test_it_ends_in_time_and_keeps_what_it_has_acked(tmp_path: Path) -> None:
    commands = StoreCommands(tmp_path / "commands")
    environment = {
        "PYTHONPATH": installed(tmp_path / "site", "commanded", "commanded_store"),
        "DANUBE_STORAGE_URL": f"commanded://{tmp_path / 'objects'}",
        "STORE_COMMANDS": str(tmp_path / "commands"),
    }
    with BrokerProcess(tmp_path / "data", environment=environment) as broker:
        async with pydanube.connect(broker.url) as client:
            await client.create_topic(TOPIC, partitions=PARTITIONS, ack_level="stored")
            for partition in range(PARTITIONS):
                async with client.producer(TOPIC, partition_by=partition) as producer:
                    await producer.send(b"acked")
            async with client.producer(TOPIC, partition_by=0, timeout=1) as producer:
                commands.give("away")
                with pytest.raises(Unavailable):
                    await producer.send(b"waits")
        began = time.monotonic()
        assert await asyncio.to_thread(broker.stop, STOPPING_S) == 0
        print(f"stopped after {time.monotonic() - began:.1f} s")
        commands.give("")
        await asyncio.to_thread(broker.start)
        async with pydanube.connect(broker.url) as client:
            for partition in range(PARTITIONS):
                async with client.reader(TOPIC, partition=partition, start="earliest", end="latest") as reader:
                    found = [message.payload async for message in reader]
                assert found == [b"acked"] or (partition == 0 and found == [b"acked", b"waits"])
