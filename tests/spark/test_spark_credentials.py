"""Credentials of the data source reach driver and executors, and are found in no plan, log, error or row."""

from __future__ import annotations

import io
import logging
import os
import pickle
import traceback
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from marked_secrets import arguments_of_family
from pyspark.sql import DataFrame, SparkSession

from pydanube import Invalid, testing
from pydanube.client.connection.credentials import API_KEY_VARIABLE, TOKEN_FILE_VARIABLE, TOKEN_VARIABLE
from pydanube.spark.datasource import DanubeDataSource
from pydanube.spark.options import ReadOptions, WriteOptions
from pydanube.testing import SecuredBroker

MARKED = "dnb_marked_SECRETSECRETSECRET"
TOPIC = "/default/orders"
OPTIONS = ["token", "tokenFile"]


@pytest.fixture
def secured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SecuredBroker]:
    for variable in (TOKEN_VARIABLE, API_KEY_VARIABLE, TOKEN_FILE_VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    with testing.broker_thread(tmp_path / "broker", auth=True) as started:
        with started.admin_blocking() as client:
            client.create_topic(TOPIC, partitions=2)
            with client.producer(TOPIC) as producer:
                producer.send(b"one", key="a")
        yield started


def given(name: str, token: str, tmp_path: Path) -> dict[str, str]:
    """Return the option, with a file for `tokenFile`."""
    if name != "tokenFile":
        return {name: token}
    (tmp_path / "token").write_text(token)
    return {name: str(tmp_path / "token")}


def plans(frame: DataFrame) -> str:
    """Return everything that Spark shows of a plan."""
    printed = io.StringIO()
    with redirect_stdout(printed):
        for mode in ("simple", "extended", "codegen", "cost", "formatted"):
            frame.explain(mode=mode)
    java = frame._jdf.queryExecution()
    trees = [java.logical(), java.analyzed()]
    if not frame.isStreaming:
        trees += [java.optimizedPlan(), java.sparkPlan(), java.executedPlan()]
    shown = [text for tree in trees for text in (tree.toString(), tree.treeString(), tree.verboseString(1000))]
    return "\n".join([printed.getvalue(), java.toString(), *shown])


def executions(spark: SparkSession) -> str:
    """Return what the pages of Spark's web interface tell about queries, also about writing ones."""
    store = spark._jsparkSession.sharedState().statusStore()
    jobs = store.executionsList()
    found = [jobs.apply(number) for number in range(jobs.size())]
    texts = [text for one in found for text in (one.physicalPlanDescription(), one.description(), one.details())]
    return "\n".join(["".join(map(str, (one.modifiedConfigs(), one.metrics()))) for one in found] + texts)


@pytest.mark.parametrize("name", OPTIONS)
def test_batches_and_streams_are_read_and_written_with_credentials(
    name: str, spark: SparkSession, secured: SecuredBroker, tmp_path: Path
) -> None:
    spark.dataSource.register(DanubeDataSource)
    options = {"servers": secured.url, "topic": TOPIC, "timeout": "30", **given(name, secured.admin_key, tmp_path)}
    frame = spark.read.format("danube").options(**options).load()
    assert [bytes(row.payload) for row in frame.collect()] == [b"one"]
    frame.select("key", "payload").write.format("danube").options(**options).mode("append").save()
    assert spark.read.format("danube").options(**options).load().count() == 2
    stream = spark.readStream.format("danube").options(**options, startingOffsets="earliest").load()
    copied = {**options, "topic": "/default/copy"}
    writer = stream.select("key", "payload").writeStream.format("danube").options(**copied)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    told = [str(query.lastProgress), str(query.recentProgress), str(query.status)]
    told += [query._jsq.explainInternal(True), *map(str, query._jsq.recentProgress())]
    told += [path.read_text(errors="replace") for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()]
    assert spark.read.format("danube").options(**copied).load().count() == 2
    told += [plans(frame), plans(stream), executions(spark)]
    assert "AppendData" in told[-1]
    arguments: set[bytes] = set()
    arguments_of_family(os.getpid(), arguments)  # of the JVM and of the workers too
    assert any(b"org.apache.spark" in one for one in arguments)
    told += [one.decode(errors="replace") for one in arguments]
    assert secured.admin_key not in "\n".join(told)


@pytest.mark.parametrize("name", OPTIONS)
def test_a_refused_token_is_nowhere_to_be_seen(
    name: str,
    spark: SparkSession,
    secured: SecuredBroker,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.INFO, "py4j")  # it logs what is sent to the JVM, options too
    spark.dataSource.register(DanubeDataSource)
    options = {"servers": secured.url, "topic": TOPIC, "timeout": "1", **given(name, MARKED, tmp_path)}
    frame = spark.read.format("danube").options(**options).load()
    writer = spark.createDataFrame([(b"x",)], "payload binary").write.format("danube").options(**options)
    shown: list[str] = []
    for work in (frame.collect, writer.mode("append").save):
        with pytest.raises(Exception, match=r"(?s)Unauthenticated") as refused:
            work()
        shown += [str(refused.value), repr(refused.value), *traceback.format_exception(refused.value)]
    printed = capfd.readouterr()

    for text in (*shown, caplog.text, printed.out, printed.err):
        assert MARKED not in text


def test_the_environment_of_the_driver_travels_with_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, MARKED)
    read, written = ReadOptions.parse({"topic": TOPIC}), WriteOptions.parse({"topic": TOPIC})
    monkeypatch.delenv(TOKEN_VARIABLE)
    for options in (read, written):
        assert pickle.loads(pickle.dumps(options)).credentials.arguments() == {"token": MARKED}
        assert MARKED not in repr(options)
    assert ReadOptions.parse({"topic": TOPIC}).credentials.arguments() == {}
    monkeypatch.setenv(TOKEN_FILE_VARIABLE, "/run/token")
    assert ReadOptions.parse({"topic": TOPIC}).credentials.arguments() == {"token_file": "/run/token"}


def test_an_option_goes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, MARKED)
    assert ReadOptions.parse({"topic": TOPIC, "TOKEN": "mine"}).credentials.token == "mine"


@pytest.mark.parametrize(
    "options",
    [
        {"token": MARKED, "tokenFile": "/x"},
        {"apiKey": MARKED},
        {"token": f"{MARKED} x"},
        {"token": f"{MARKED}\n{MARKED}"},
        {"tokenFile": " "},
        {"servers": f"danube://user:{MARKED}@host"},
    ],
)
def test_wrong_options_are_refused_without_their_value(options: dict[str, str]) -> None:
    for parse in (ReadOptions.parse, WriteOptions.parse):
        with pytest.raises(Invalid) as refused:
            parse({"topic": TOPIC, **options})
        assert MARKED not in str(refused.value)


def test_two_queries_with_other_credentials_share_no_connection(secured: SecuredBroker) -> None:
    from pydanube import Unauthenticated
    from pydanube.spark import connections
    from pydanube.spark.credentials import BrokerCredentials

    try:
        with connections.client(secured.url, 5, BrokerCredentials(secured.admin_key)) as client:
            assert client.list_namespaces() == ["default"]
        with pytest.raises(Unauthenticated), connections.client(secured.url, 5, BrokerCredentials(MARKED)):
            pass
    finally:
        connections.close_all()
