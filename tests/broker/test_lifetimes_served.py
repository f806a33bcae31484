"""A broker that is served looks after lifetimes by itself."""

import asyncio
from contextlib import asynccontextmanager

from pydanube.core.access import ANONYMOUS, AllowAll
from pydanube.model.names import TopicName
from pydanube.model.topics import TopicConfig
from pydanube.runtime.clock import ManualClock
from pydanube.runtime.disk import OsDisk
from pydanube.server.server import Components, Server
from pydanube.settings import Settings

TOPIC = TopicName.parse("/default/orders")


@asynccontextmanager
async def served(tmp_path, clock, **settings):
    chosen = {
        "server.data_dir": str(tmp_path),
        "server.port": 0,
        "server.http_port": 0,
        "grpc.data": False,
        "grpc.admin": False,
        **settings,
    }
    server = await Server.start(Settings.load(overrides=chosen), Components(clock, OsDisk(), AllowAll()))
    try:
        yield server._native._resources.broker
    finally:
        await server.close()


async def test_what_nobody_uses_is_gone_after_the_interval_of_the_settings(tmp_path):
    clock = ManualClock()
    async with served(tmp_path, clock, **{"topics.lifetimes_interval_s": 20}) as broker:
        await broker.topics.create(ANONYMOUS, TOPIC, TopicConfig())
        await broker.policies.set(ANONYMOUS, TOPIC, {"inactive_topic_s": 1})
        await asyncio.sleep(0)
        clock.advance(19)
        await asyncio.sleep(0)
        assert await broker.topics.names(ANONYMOUS) == [str(TOPIC)]
        clock.advance(1)
        async with asyncio.timeout(60):
            while await broker.topics.names(ANONYMOUS):  # noqa: ASYNC110 - it happens inside the broker
                await asyncio.sleep(0.001)


async def test_a_broker_closes_in_the_middle_of_a_round(tmp_path):
    clock = ManualClock()
    async with served(tmp_path, clock) as broker:
        for number in range(20):
            await broker.topics.create(ANONYMOUS, TopicName("default", f"topic-{number}"), TopicConfig())
        await asyncio.sleep(0)
        clock.advance(10)
        await asyncio.sleep(0)
    async with served(tmp_path, clock) as broker:
        assert len(await broker.topics.names(ANONYMOUS)) == 20
