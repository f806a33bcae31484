"""Where events are logged in tests, and one Spark for all tests that need it.

Spark takes as long to start as twenty tests to run. So there is one JVM, and all tests that use it belong to one
group, which pytest-xdist gives to one worker. A test takes the fixture `spark` of tests/spark, a session of its own,
unless the session itself is what is tested.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import hypothesis
import pytest

from pydanube.runtime import telemetry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Up sooner, and slower after minutes of the same work, which no test does."""


hypothesis.settings.register_profile("danube", deadline=None)  # a busy machine is no failure
hypothesis.settings.load_profile("danube")


@pytest.fixture(autouse=True)
def _events_on_stderr() -> None:
    """Show warnings as in a program without logging of its own; pytest's handlers would take them. For each test,
    because commands that run inside a test configure it as well."""
    telemetry.configure("warning")


@pytest.fixture(scope="session")
def the_spark() -> Iterator[SparkSession]:
    """The one that all share."""
    from pydanube.spark import session

    started = session("danube tests", "local[2,4]", **{"spark.driver.extraJavaOptions": JVM})
    yield started
    started.stop()
