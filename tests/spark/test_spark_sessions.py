"""Sessions: settings for the data source, a Python with the package, errors that name the setting."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import pyspark
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf
from spark_broker import Broker

from pydanube import Invalid
from pydanube.spark import session
from pydanube.spark.sessions import LOCAL_SETTINGS, SETTINGS


def test_a_session_has_the_settings_that_were_measured(the_spark: SparkSession) -> None:
    for name, value in {**SETTINGS, **LOCAL_SETTINGS}.items():
        assert the_spark.conf.get(name) == value
    assert the_spark.sparkContext.master == "local[2,4]"


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


def test_a_setting_that_is_none_of_sparks_is_refused_by_name() -> None:
    with pytest.raises(Invalid, match=r"'app\.name' is none of Spark's"):
        session("t", **{"app.name": "x"})
