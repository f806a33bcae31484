"""The official Danube client, unmodified, at a broker that does not own what the client uses: it follows lookups."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from danube_client import OfficialClient
from grpc_pair import open_grpc
from two_brokers import two_brokers

from pydanube.model.names import TopicName

pytestmark = pytest.mark.process


@pytest.mark.parametrize("owner", ["a", "b"])
async def test_what_the_official_client_publishes_at_any_broker_it_receives(
    client_command: list[str], tmp_path: Path, owner: str
) -> None:
    topic = TopicName.parse("/default/of-another")
    payloads = [f"message {number}" for number in range(20)]
    async with AsyncExitStack() as parts:
        pair = await parts.enter_async_context(two_brokers(tmp_path))
        a, _ = await parts.enter_async_context(open_grpc(pair, "a"))
        await parts.enter_async_context(open_grpc(pair, "b"))
        await pair.create(topic, **{owner: [0]})
        official = OfficialClient(client_command, f"http://{a.address}")
        received = await asyncio.to_thread(
            official.run, "round_trip.publish_and_receive", topic=str(topic), payloads=payloads, reliable=True
        )
        assert [payload for payload, *_ in received] == payloads
        assert [offset for _, _, offset, *_ in received] == list(range(20))
        assert pair.opened_by(topic)[owner] == [0]
