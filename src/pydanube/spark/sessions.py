"""A Spark session with the settings that the danube data source likes, on a Java that was found for it.

    spark = pydanube.spark.session("orders")

Every setting can be overridden, and any other session will do as well: the data source asks for none of these. They
were chosen by measuring; docs/spark/README.md says what each is for.
"""

from __future__ import annotations

import os
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from pydanube.model.errors import Invalid

from . import java

SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.python.unix.domain.socket.enabled": "true",
}
"""For any master. Times are UTC on both sides, filters reach the data source, and workers are talked to without TCP."""

_CHECKPOINTS: Final = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"

LOCAL_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINTS,
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    "spark.log.level": "ERROR",
}
"""For masters on this machine: nothing listens to the network, and a micro-batch writes few small files."""


LAUNCHER: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""For the small JVM that only finds out how to start the real one."""


def session(app_name: str = "danube", master: str = "local[*,4]", **conf: object) -> SparkSession:
    """The session of this process: a new one, or the one that there is (Spark allows one JVM to a process).

    A thread of your own that writes batches calls this too: each thread has an active session, or none.

    `master` is handed to Spark as it is. ``local[*,4]`` means all cores, and four tries for a task; plain
    ``local[*]`` gives up at the first failure; ``sc://host:port`` is a Spark Connect server, with a Java of its own.
    `conf` are settings by their Spark names: ``session("orders", **{"spark.ui.enabled": True})``.
    Refused when no Java can be found.
    """
    for name in conf:
        if not name.startswith("spark."):
            raise Invalid(f"the setting {name!r} is none of Spark's: their names begin with 'spark.'")
    if master.startswith("sc://"):
        settings = {name: value for name, value in SETTINGS.items() if name.startswith("spark.sql.")}
        return _build_session(SparkSession.builder.remote(master), {**settings, **conf})
    local = master.startswith("local")
    if SparkSession.getActiveSession() is None:
        java.find().use()
        if local:
            _prepare_environment()
    settings = {**SETTINGS, **(_settings_for_local() if local else {})}
    spark = _build_session(SparkSession.builder.appName(app_name).master(master), {**settings, **conf})
    # Spark looks for the format of a batch write in the active session of the thread, and this makes it the active one.
    spark.createDataFrame([], "nothing int")
    return spark


def _build_session(builder: SparkSession.Builder, settings: dict[str, object]) -> SparkSession:
    for name, value in settings.items():
        builder = builder.config(name, str(value).lower() if isinstance(value, bool) else str(value))
    return builder.getOrCreate()


def _settings_for_local() -> dict[str, str]:
    """On one machine a shuffle into more pieces than cores only costs; Spark's own default is 200."""
    return {**LOCAL_SETTINGS, "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 1))}


def _prepare_environment() -> None:
    """What Spark takes from the environment: workers run this Python, whatever `python3` on the PATH is."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", LAUNCHER)
    if "SPARK_HOME" not in os.environ:
        _use_slim_home()


def _use_slim_home() -> None:
    """Let Spark's home be one without `python/lib/pyspark.zip`.

    Python workers put that archive before everything else on their path, and a module in an archive is compiled again
    by every worker that starts. Without it they import the installed package, which is the same and is compiled
    already.
    """
    spec = find_spec("pyspark")
    assert spec is not None and spec.origin is not None, "it was imported above"
    real = Path(spec.origin).parent
    if not (real / "jars").is_dir():  # the slim client of Spark Connect has no JVM to start
        return
    try:
        home = java.cache_directory() / "spark" / java.short_name(str(real))
        java.link_directory(home, real, ("bin", "jars", "sbin"))
    except OSError:
        home = Path(tempfile.mkdtemp(prefix="pydanube-spark-"))
        java.link_directory(home, real, ("bin", "jars", "sbin"))
    os.environ["SPARK_HOME"] = str(home)
