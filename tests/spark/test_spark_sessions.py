"""Sessions: settings for the data source, a Python with the package, errors that name the setting."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pyspark
import pytest
from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf
from spark_broker import Broker

import pydanube
from pydanube import Invalid
from pydanube.spark import DanubeDataSource, session
from pydanube.spark.session_builder import COLLECTOR, JAVA_OPTIONS, LOCAL_SETTINGS, SETTINGS, java_options


def test_a_session_has_the_settings_that_were_measured(the_spark: SparkSession) -> None:
    for name, value in {**SETTINGS, **LOCAL_SETTINGS}.items():
        assert the_spark.conf.get(name) == value
    assert the_spark.sparkContext.master == "local[2,4]"


def test_the_jvm_has_the_options_that_were_measured(the_spark: SparkSession) -> None:
    jvm = the_spark._jvm
    assert jvm is not None
    started_with = list(jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments())
    assert set(JAVA_OPTIONS) <= set(started_with)
    assert COLLECTOR not in started_with  # the tests choose another one


@pytest.mark.parametrize(
    ("conf", "environment"),
    [
        ({"spark.driver.extraJavaOptions": "-Xss2m -XX:+UseG1GC"}, {}),
        ({}, {"JAVA_TOOL_OPTIONS": "-XX:+UseZGC"}),
        ({}, {"SPARK_CONF_DIR": "."}),
    ],
)
def test_a_collector_that_was_chosen_elsewhere_stays_the_only_one(
    conf: dict[str, str], environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert java_options({"spark.driver.extraJavaOptions": "-Xss2m"}, {}) == [*JAVA_OPTIONS, COLLECTOR]
    (tmp_path / "spark-defaults.conf").write_text("spark.driver.extraJavaOptions -XX:+UseSerialGC\n")
    assert java_options(conf, environment) == [*JAVA_OPTIONS]


def test_local_files_have_no_checksum_files_and_stale_ones_go(spark: SparkSession, tmp_path: Path) -> None:
    """A file that another session wrote with checksums can be written again here, and read there."""
    jvm = spark._jvm
    assert jvm is not None
    hadoop = jvm.org.apache.hadoop.fs
    local = hadoop.FileSystem.getLocal(spark._jsc.hadoopConfiguration())
    other = hadoop.FileSystem.newInstanceLocal(spark._jsc.hadoopConfiguration())  # as other sessions have it
    place = hadoop.Path(str(tmp_path / "file"))
    for system, names in ((other, {"file", ".file.crc"}), (local, {"file"})):
        stream = system.create(place, True)
        stream.write(bytes(names.__len__()))
        stream.close()
        assert {one.name for one in tmp_path.iterdir()} == names
    assert other.open(place).read() == 0


def test_workers_run_this_python_with_the_installed_spark(spark: SparkSession) -> None:
    worker = udf(lambda _: f"{sys.executable} {pyspark.__file__}")
    (row,) = spark.range(1).select(worker("id")).collect()
    executable, package = row[0].split()
    assert executable == sys.executable
    assert ".zip" not in package


def test_a_second_session_is_the_first_with_other_settings(the_spark: SparkSession) -> None:
    second = session("another", "local[2,4]", **{"spark.sql.shuffle.partitions": 3})
    assert second.sparkContext is the_spark.sparkContext
    assert second.conf.get("spark.sql.shuffle.partitions") == "3"


def test_a_thread_that_asks_for_the_session_can_write_batches(the_spark: SparkSession, broker: Broker) -> None:
    def write(name: str) -> None:
        rows = the_spark.range(3).selectExpr("string(id) as payload").write.format("danube").mode("append")
        rows.options(servers=broker.servers, topic=f"/default/{name}").save()

    def ask_and_write() -> None:
        session("another", "local[2,4]")
        write("asked")

    # Should this ever succeed, the session need not be made the active one any more.
    with ThreadPoolExecutor() as threads, pytest.raises(Py4JJavaError, match="DATA_SOURCE_NOT_FOUND"):
        threads.submit(write, "not-asked").result(60)
    with ThreadPoolExecutor() as threads:
        threads.submit(ask_and_write).result(60)


PLAIN_SESSION = """
import sys
from pyspark.sql import SparkSession
from pydanube.spark import DanubeDataSource, java

java.find().use()
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
spark = builder.getOrCreate()
spark.dataSource.register(DanubeDataSource)
rows = spark.read.format("danube").options(servers=sys.argv[1], topic="/default/orders").load()
print(rows.count())
"""


@pytest.mark.exhaustive
@pytest.mark.process
def test_a_plain_session_works_in_an_environment_that_is_not_activated(
    broker: Broker, client: pydanube.BlockingClient, tmp_path: Path
) -> None:
    """The `python3` of the PATH is none that could run a worker."""
    with client.producer("/default/orders") as producer:
        producer.send_many([b"x"] * 7)
    other = tmp_path / "bin" / "python3"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\necho 'the wrong Python was started' >&2\nexit 1\n")
    other.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    environment |= {"PATH": f"{other.parent}:{environment['PATH']}", "SPARK_LOCAL_IP": "127.0.0.1"}
    program = [sys.executable, "-c", PLAIN_SESSION, broker.servers]
    ran = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=400)
    assert ran.stdout.split() == ["7"], ran.stderr[-3000:]


@pytest.mark.parametrize(
    ("master", "chosen", "used"),
    [
        ("local[2,4]", "python3", sys.executable),
        ("local[2,4]", "/opt/python/bin/python", "/opt/python/bin/python"),
        ("spark://host:7077", "python3", "python3"),
    ],
)
def test_only_the_default_python_of_a_local_master_is_replaced(
    monkeypatch: pytest.MonkeyPatch, master: str, chosen: str, used: str
) -> None:
    context = SimpleNamespace(master=master, pythonExec=chosen)
    monkeypatch.setattr(SparkContext, "_active_spark_context", context)
    assert DanubeDataSource.name() == "danube"
    assert context.pythonExec == used


def test_a_setting_that_is_none_of_sparks_is_refused_by_name() -> None:
    with pytest.raises(Invalid, match=r"'app\.name' is none of Spark's"):
        session("t", **{"app.name": "x"})
