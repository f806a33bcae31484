"""Where events are logged in tests and where directories lie, and one Spark for all tests that need it.

Spark takes as long to start as twenty tests to run. So there is one JVM, and all tests that use it belong to one
group, which pytest-xdist gives to one worker. A test takes the fixture `spark` of tests/spark, a session of its own,
unless the session itself is what is tested.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

from exhaustive import several
from pydanube.runtime import telemetry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest_plugins = ["progress"]

JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Up sooner, and slower after minutes of the same work, which no test does."""

MEMORY_MIN = 4 << 30
"""Free bytes. Directories of tests are removed as they pass; a run keeps less than a gigabyte at a time."""

hypothesis.settings.register_profile(
    "danube", max_examples=several(20, 200), deadline=None, print_blob=True
)  # no deadline: a busy machine is no failure
hypothesis.settings.load_profile("danube")


def use_memory_for_directories() -> None:
    """Put temporary directories into memory where there is room: a test needs what kill -9 leaves, not what a power
    cut leaves, which the simulated disk shows. The workers of pytest-xdist inherit it."""
    memory = Path("/dev/shm")
    if "TMPDIR" not in os.environ and memory.is_dir() and shutil.disk_usage(memory).free > MEMORY_MIN:
        os.environ["TMPDIR"] = tempfile.tempdir = str(memory)


use_memory_for_directories()


def use_signals() -> None:
    """Undo what `nohup` and `&` leave: processes of tests would inherit that SIGINT and SIGHUP are ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


use_signals()


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests that use Spark's JVM in one worker; runs in each worker."""
    for item in items:
        if "the_spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))


def pytest_collection_finish() -> None:
    """Let the collector pass over twelve thousand tests and their modules, which stay."""
    gc.freeze()


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
