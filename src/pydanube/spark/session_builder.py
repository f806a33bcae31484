"""A Spark session with the settings that suit the danube data source, on a Java runtime that is found for it.

    spark = pydanube.spark.session("orders")

Every setting can be overridden, and the data source works in any other session too: it requires none of them. They
were chosen by measurement; docs/spark/README.md says what each is for.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from pyspark import SparkConf, SparkContext
from pyspark.errors import AnalysisException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from pydanube.model.errors import Invalid

from . import java

SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.python.unix.domain.socket.enabled": "true",
}
"""For any master: times are UTC on both sides, filters reach the data source, and workers are reached without TCP."""

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


JAVA_OPTIONS: Final = (
    "-Darrow.enable_unsafe_memory_access=true",
    "-Darrow.enable_null_check_for_get=false",
    "-XX:MetaspaceSize=256m",
)
"""For a JVM on this machine. Arrow does not check bounds and nulls at every value, which took an eighth of the time of
reading tasks: the batches of the data source are checked in Python, and Spark looks for nulls itself. The room for
classes is larger from the start, because a JVM collects garbage each time it has to grow."""

COLLECTOR: Final = "-XX:+UseParallelGC"
"""Measured only together with JAVA_OPTIONS, on a heap of 1 GB. A JVM refuses to start with two collectors."""

JAVA_OPTION_SETTINGS: Final = ("spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions")
JAVA_OPTION_VARIABLES: Final = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")

CHECKSUM_FILES: Final = "spark.sql.streaming.checkpoint.fileChecksum.enabled"
"""Set to true, it keeps Hadoop's checksum files too."""

LAUNCHER: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Options of the small JVM that only computes the command line of the real one."""


def session(app_name: str = "danube", master: str = "local[*,4]", **conf: object) -> SparkSession:
    """Return the session of this process: the existing one, or a new one (Spark allows one JVM per process).

    A thread of your own that writes batches must call this too, because Spark tracks the active session per thread.

    `master` is passed to Spark unchanged. ``local[*,4]`` means all cores and four attempts for a task; plain
    ``local[*]`` fails at the first failure; ``sc://host:port`` is a Spark Connect server, which has its own Java.
    `conf` holds settings by their Spark names: ``session("orders", **{"spark.ui.enabled": True})``.
    Raises Refused if no Java can be found.
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
    settings = {**SETTINGS, **(_settings_for_local(conf) if local else {})}
    spark = _build_session(SparkSession.builder.appName(app_name).master(master), {**settings, **conf})
    if local and spark.conf.get(CHECKSUM_FILES) == "false":
        _write_no_checksum_files(spark)
    # Spark looks up the format of a batch write in the thread's active session; this call makes `spark` the active one.
    spark.createDataFrame([], "nothing int")
    return spark


def register(spark: SparkSession) -> None:
    """Register the formats `danube`, `danube-delta` and `danube-iceberg` in a session that does not find them.

    Spark finds them by the names of installed modules. This is for a session whose server has the modules in a place
    where it does not look, and for programs that register every format by hand; calling it again changes nothing.
    """
    from .datasource import DanubeDataSource
    from .tables.sources import DanubeDeltaDataSource, DanubeIcebergDataSource

    for source in (DanubeDataSource, DanubeDeltaDataSource, DanubeIcebergDataSource):
        try:
            spark.dataSource.register(source)
        except AnalysisException as error:
            if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
                raise


def start_detached_java(app_name: str, master: str, **conf: object) -> None:
    """Start the JVM for a `session` with the same arguments in a process group of its own.

    Ctrl-C in a terminal then reaches this process only, which can let the Python workers of the JVM finish. The JVM
    ends with this process, which it notices by its stdin. Does nothing if there is a JVM, or none is needed.
    """

    if SparkContext._gateway is not None or master.startswith("sc://"):
        return
    java.find().use()
    local = master.startswith("local")
    if local:
        _prepare_environment()
    settings: dict[str, object] = {**SETTINGS, **(_settings_for_local(conf) if local else {}), **conf}
    settings |= {"spark.master": master, "spark.app.name": app_name}
    settings_of_java = SparkConf().setAll([(name, _setting(value)) for name, value in settings.items()])
    launch: Any = launch_gateway
    SparkContext._ensure_initialized(gateway=launch(settings_of_java, {"start_new_session": True}))


def _build_session(builder: SparkSession.Builder, settings: dict[str, object]) -> SparkSession:
    for name, value in settings.items():
        builder = builder.config(name, _setting(value))
    return builder.getOrCreate()


def _setting(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _settings_for_local(conf: Mapping[str, object]) -> dict[str, str]:
    """Return the settings of a local master, with one shuffle partition per core: more only cost time."""
    return {
        **LOCAL_SETTINGS,
        "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 1)),
        "spark.driver.defaultJavaOptions": " ".join(java_options(conf, os.environ)),
    }


def java_options(conf: Mapping[str, object], environment: Mapping[str, str]) -> list[str]:
    """Return the options of a JVM on this machine, with a garbage collector unless one may be chosen elsewhere."""
    given = [str(conf.get(name, "")) for name in JAVA_OPTION_SETTINGS]
    given += [environment.get(name, "") for name in JAVA_OPTION_VARIABLES]
    directory = environment.get("SPARK_CONF_DIR") or Path(environment.get("SPARK_HOME", ""), "conf")
    with suppress(OSError, UnicodeDecodeError):
        given.append(Path(directory, "spark-defaults.conf").read_text())
    chosen = any(one.startswith("-XX:") and one.endswith("GC") for text in given for one in text.split())
    return [*JAVA_OPTIONS] if chosen else [*JAVA_OPTIONS, COLLECTOR]


def _write_no_checksum_files(spark: SparkSession) -> None:
    """Let Hadoop write no `.crc` file beside each local file.

    Without Hadoop's native library, the JVM starts a `chmod` process for each file that it creates. A micro-batch
    writes two files to its checkpoint, and four with the checksums.
    """
    jvm, configuration = spark._jvm, spark._jsc.hadoopConfiguration()
    assert jvm is not None
    jvm.org.apache.hadoop.fs.FileSystem.getLocal(configuration).setWriteChecksum(False)


def _prepare_environment() -> None:
    """Set what Spark reads from the environment. Workers run this Python, not `python3` of the PATH."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", LAUNCHER)
    if "SPARK_HOME" not in os.environ:
        _use_slim_home()


def _use_slim_home() -> None:
    """Set SPARK_HOME to a directory without `python/lib/pyspark.zip`.

    Python workers put that archive first on their path, and every worker that starts compiles the modules in it again.
    Without the archive they import the installed package, which is the same code and compiled already.
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
