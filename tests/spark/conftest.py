"""Each Spark test gets a new session in the one Spark of this process, and a new broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from spark_broker import Broker

import pydanube
from pydanube.testing import broker_thread


@pytest.fixture
def spark(the_spark: SparkSession) -> Iterator[SparkSession]:
    """Return a session without queries, views or settings of earlier tests; its streams end with the test."""
    own = the_spark.newSession()
    own.createDataFrame([], "nothing int")  # makes it the active one, in which Spark looks for what is registered
    yield own
    for query in own.streams.active:
        query.stop()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    directory = tmp_path / "broker"
    with broker_thread(directory) as url:
        yield Broker(url, directory)


@pytest.fixture
def client(broker: Broker) -> Iterator[pydanube.BlockingClient]:
    with pydanube.connect_blocking(broker.url, timeout=120) as client:
        yield client
