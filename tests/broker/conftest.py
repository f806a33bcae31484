"""A broker in the directory of the test, a client and a topic of it, and a clock that stands still."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from broker_harness import TOPIC, BrokerClient, open_broker
from cluster_harness import World, open_world
from two_brokers import TwoBrokers, two_brokers

from pydanube.broker import Broker
from pydanube.core.access import ANONYMOUS
from pydanube.model.names import TopicName
from pydanube.model.topics import TopicConfig
from pydanube.runtime.clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    """The clock of the fixture `broker` where a test asks for it, or its module does by `usefixtures`."""
    return ManualClock()


@pytest.fixture
async def broker(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Broker]:
    clock = request.getfixturevalue("clock") if "clock" in request.fixturenames else None
    async with open_broker(tmp_path, clock=clock) as opened:
        yield opened


@pytest.fixture
def client(request: pytest.FixtureRequest, broker: Broker) -> BrokerClient:
    clock = request.getfixturevalue("clock") if "clock" in request.fixturenames else None
    return BrokerClient(broker, clock=clock)


@pytest.fixture
async def topic(broker: Broker) -> TopicName:
    """The topic of `client`, created with the defaults."""
    await broker.topics.create(ANONYMOUS, TOPIC, TopicConfig())
    return TOPIC


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """Brokers that take partitions from each other."""
    async with open_world(tmp_path) as opened:
        yield opened


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[TwoBrokers]:
    async with two_brokers(tmp_path) as opened:
        yield opened
