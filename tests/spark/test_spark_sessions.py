"""Sessions: settings that the data source likes, a Python that has the package, errors that name the setting."""

from __future__ import annotations

import sys

import pyspark
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

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


def test_a_setting_that_is_none_of_sparks_is_refused_by_name() -> None:
    with pytest.raises(Invalid, match=r"'app\.name' is none of Spark's"):
        session("t", **{"app.name": "x"})
