"""One Spark for all tests of this directory, and a broker for each.

Spark takes as long to start as twenty tests to run. So there is one JVM, all tests here belong to one group that
pytest-xdist gives to one worker, and each test gets a session of its own in it, without queries, views or settings of
the test before.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import pydanube
from pydanube.spark import session
from pydanube.testing import broker_thread

HERE = Path(__file__).parent
JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Up sooner, and slower after minutes of the same work, which no test does."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def the_spark() -> Iterator[SparkSession]:
    """The one that all share. Take `spark` instead, unless the session itself is what is tested."""
    os.environ["SPARK_LAUNCHER_OPTS"] = JVM
    started = session("danube tests", "local[2,4]", **{"spark.driver.extraJavaOptions": JVM})
    yield started
    started.stop()


@pytest.fixture
def spark(the_spark: SparkSession) -> Iterator[SparkSession]:
    """A session of the test's own; its streams end with the test."""
    own = the_spark.newSession()
    yield own
    for query in own.streams.active:
        query.stop()


@dataclass(frozen=True)
class Broker:
    """A broker that lives as long as the test, in this process; its history goes to `directory`/objects."""

    url: str
    directory: Path

    @property
    def servers(self) -> str:
        """What the data source's option `servers` takes."""
        return self.url.removeprefix("danube://")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    directory = tmp_path / "broker"
    with broker_thread(directory) as url:
        yield Broker(url, directory)


@pytest.fixture
def client(broker: Broker) -> Iterator[pydanube.BlockingClient]:
    with pydanube.connect_blocking(broker.url) as client:
        yield client
