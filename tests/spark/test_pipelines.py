"""Pipelines run: rows end in the sinks, dead letters and counts that the file says, each once."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from spark_broker import Broker, payloads

import pydanube
from pydanube.model.errors import Invalid, Refused
from pydanube.spark.pipelines import RunOptions, load, run
from pydanube.spark.pipelines.casts import IMPOSSIBLE
from pydanube.spark.pipelines.progress import BatchReport, PipelineStatus

ORDERS = """
name: cafe
checkpoint: checkpoint
sources:
  messages:
    topic: /default/orders
transforms:
  orders:
    sql: |
      select topic, partition, offset, key, o.*
      from (
        select *, from_json(cast(payload as string), 'id long, cents long, at timestamp, arrived timestamp') as o
        from messages
      )
    watermark: {column: at, delay: 30 seconds}
  minutes:
    sql: |
      select window.start as minute, count(*) as orders, sum(cents) as cents
      from orders
      group by window(at, '1 minute')
  totals:
    function: cafe_functions:as_messages
    inputs: [minutes]
expectations:
  messages:
    - {name: json, check: try_parse_json(cast(payload as string)) is not null, action: dead-letter, topic: /default/bad}
    - name: in_time
      check: |
        get_json_object(cast(payload as string), '$.at')
          >= get_json_object(cast(payload as string), '$.arrived')
      action: dead-letter
      topic: /default/late
  orders:
    - {name: paid, check: cents > 0, action: drop}
sinks:
  table: {from: orders, format: delta, path: table}
  sums: {from: totals, format: danube, topic: /default/sums}
"""
FUNCTIONS = """
from pyspark.sql import functions as f


def as_messages(minutes):
    return minutes.select(f.to_json(f.struct("*")).alias("payload"))
"""


def write(directory: Path, text: str) -> Path:
    file = directory / "pipeline.yaml"
    file.write_text(text)
    (directory / "cafe_functions.py").write_text(FUNCTIONS)
    return file


def publish(client: pydanube.BlockingClient, numbers: range) -> None:
    """Publish orders, one a second; every tenth is no JSON, every tenth is late, every tenth is not paid."""
    with client.producer("/default/orders") as producer:
        for number in numbers:
            at = f"2026-01-01T00:{number // 60:02}:{number % 60:02}Z"
            order = {"id": number, "cents": 0 if number % 10 == 2 else 100 + number, "at": at, "arrived": at}
            if number % 10 == 1:
                order["arrived"] = "2026-01-02T00:00:00Z"
            payload = b"not JSON" if number % 10 == 0 else json.dumps(order).encode()
            producer.send_nowait(payload, key=f"table-{number % 7}", attributes={"n": str(number)})
        producer.flush()


def read_table(path: Path) -> list[int]:
    from deltalake import DeltaTable

    return sorted(DeltaTable(str(path)).to_pyarrow_table(columns=["id"])["id"].to_pylist())


def test_late_and_broken_messages_end_where_the_pipeline_says(
    spark: SparkSession, broker: Broker, client: pydanube.BlockingClient, tmp_path: Path
) -> None:
    client.create_topic("/default/orders", partitions=2)
    publish(client, range(100))
    file = write(tmp_path, ORDERS)
    options = RunOptions(servers=broker.url, spark=spark, once=True)
    first = run(file, options)
    publish(client, range(100, 300))
    second = run(file, options)

    good = [number for number in range(300) if number % 10 > 2]
    assert read_table(tmp_path / "table") == good
    assert Counter(payloads(client, "/default/bad")) == {b"not JSON": 30}
    bad, late = (list(client.dead_letters(topic)) for topic in ("/default/bad", "/default/late"))
    assert sorted(int(one.original_attributes["n"]) for one in bad) == list(range(0, 300, 10))
    assert sorted(int(one.original_attributes["n"]) for one in late) == list(range(1, 300, 10))
    letter = next(one for one in late if one.original_attributes["n"] == "11")
    assert letter.original_topic == "/default/orders"
    assert letter.message.key == "table-4" and json.loads(letter.message.payload)["id"] == 11
    assert letter.id == f"/default/orders/{letter.original_partition}/cafe/{letter.original_offset}"
    assert letter.reason.startswith("expectation in_time is not met: get_json_object(")

    closed = [json.loads(payload) for payload in payloads(client, "/default/sums")]
    expected: Counter[int] = Counter()
    for number in good:
        expected[number // 60] += 100 + number
    assert [(one["minute"][14:16], one["cents"]) for one in sorted(closed, key=lambda one: one["minute"])] == [
        (f"{minute:02}", expected[minute]) for minute in range(4)
    ]
    for status, count in ((first, 10), (second, 20)):
        assert status.failed == {"messages": {"json": count, "in_time": 2 * count}, "orders": {"paid": count}}
        assert status.checked == {"messages": 10 * count, "orders": 8 * count}
        assert {one.state for one in status.queries.values()} == {"done"}
    assert second.queries["table"].rows == 200

    client.dead_letters("/default/late").redrive([letter.place], to="/default/orders")
    assert sum(one.end_offset for one in client.partitions("/default/orders")) == 301


COPIES = """
name: copies
checkpoint: checkpoint
sources:
  words: {topic: /default/words}
transforms:
  copied: {sql: "select key, payload from words"}
sinks:
  first: {from: copied, format: danube, topic: /default/copy}
  second: {from: copied, format: danube, topic: /later/copy}
"""


def test_a_sink_that_failed_is_repeated_without_repeating_the_other(
    spark: SparkSession, broker: Broker, client: pydanube.BlockingClient, tmp_path: Path
) -> None:
    client.create_topic("/default/words")
    with client.producer("/default/words") as producer:
        producer.send_many([b"%d" % number for number in range(50)])
    seen: list[str] = []

    def on_status(status: PipelineStatus) -> None:
        if status.queries["second"].restarts and not seen:
            seen.append(status.queries["second"].error)
            client.create_namespace("later")

    file = write(tmp_path, COPIES)
    status = run(file, RunOptions(servers=broker.url, spark=spark, once=True), on_status=on_status)
    assert "later" in seen[0]
    for topic in ("/default/copy", "/later/copy"):
        assert sorted(payloads(client, topic), key=int) == [b"%d" % number for number in range(50)]
    first, second = status.queries.values()
    assert (first.batches, first.rows, first.restarts) == (1, 50, 0)
    assert (second.batches, second.rows, second.restarts, second.state) == (1, 50, 1, "done")


def test_a_run_that_is_stopped_ends_after_its_batch_and_goes_on_where_it_was(
    spark: SparkSession, broker: Broker, client: pydanube.BlockingClient, tmp_path: Path
) -> None:
    client.create_topic("/default/words")
    stop = threading.Event()
    file = write(tmp_path, COPIES.partition("  second:")[0])

    def on_batch(_status: PipelineStatus, _query: str, report: BatchReport) -> None:
        assert report.rows == 50 and report.lag == 0
        stop.set()

    for _ in range(2):
        stop.clear()
        with client.producer("/default/words") as producer:
            producer.send_many([b"%d" % number for number in range(50)])
        status = run(file, RunOptions(servers=broker.url, spark=spark), stop=stop, on_batch=on_batch)
        assert [one.state for one in status.queries.values()] == ["stopped"]
    assert Counter(payloads(client, "/default/copy")) == {b"%d" % number: 2 for number in range(50)}


def test_an_expectation_that_must_hold_fails_the_run_and_names_the_message(
    spark: SparkSession, broker: Broker, client: pydanube.BlockingClient, tmp_path: Path
) -> None:
    client.create_topic("/default/words")
    with client.producer("/default/words") as producer:
        producer.send_many([b"a", b"b"], keys=["x", None])
    text = COPIES.partition("  second:")[0] + "expectations: {words: [{name: keyed, check: key > '', action: fail}]}\n"
    with pytest.raises(Refused) as raised:
        run(write(tmp_path, text), RunOptions(servers=broker.url, spark=spark, once=True))
    assert raised.value.message == (
        "sink first: an expectation is not met: keyed of words, which is key > '' by /default/words[0] offset 1"
    )
    with pytest.raises(pydanube.NotFound):
        client.partitions("/default/copy")


class Patience:
    """A flag that is set after so many looks: a run that goes on until then has not done what it should."""

    def __init__(self, looks: int) -> None:
        self._left = looks

    def is_set(self) -> bool:
        self._left -= 1
        return self._left < 0


TRIED_ONCE = """
name: tried-once
checkpoint: checkpoint
sources:
  words: {topic: /default/words}
transforms:
  failed: {function: "tried_once:FAILING", inputs: [words]}
sinks:
  first: {from: failed, format: noop}
"""
FAILS_FIRST = """
import threading

from pyspark import TaskContext
from pyspark.sql import functions as f

import pydanube


def invalid(words):
    def convert(payload):
        if TaskContext.get().attemptNumber():
            threading.Event().wait()
        raise pydanube.Invalid("there is no such order")

    return words.select(f.udf(convert)("payload").alias("payload"))


def cast(words):
    def convert(payload):
        if TaskContext.get().attemptNumber():
            threading.Event().wait()
        return "no number"

    return words.select(f.udf(convert)("payload").cast("int").cast("string").alias("payload"))
"""


@pytest.mark.parametrize(
    ("failing", "said"), [("invalid", "there is no such order"), ("cast", "The value 'no number' of the type")]
)
def test_a_task_whose_error_would_come_again_is_tried_once(
    spark: SparkSession,
    broker: Broker,
    client: pydanube.BlockingClient,
    tmp_path: Path,
    failing: str,
    said: str,
) -> None:
    """The second try, which Spark begins at once, would last for ever."""
    client.create_topic("/default/words")
    with client.producer("/default/words") as producer:
        producer.send(b"a")
    (tmp_path / "tried_once.py").write_text(FAILS_FIRST)
    options = RunOptions(servers=broker.url, spark=spark, once=True)
    patience = Patience(600)
    with pytest.raises(Refused, match="sink first: ") as raised:
        run(write(tmp_path, TRIED_ONCE.replace("FAILING", failing)), options, stop=patience, interrupt=patience)
    assert said in raised.value.message


def refused(spark: SparkSession, broker: Broker, file: Path) -> str:
    with pytest.raises(Refused) as raised:
        run(file, RunOptions(servers=broker.url, spark=spark, once=True))
    return raised.value.message.replace(str(file), "FILE")


def test_what_only_spark_can_refuse_has_its_place_too(
    spark: SparkSession, broker: Broker, client: pydanube.BlockingClient, tmp_path: Path
) -> None:
    client.create_topic("/default/words")
    bad: Callable[[str, str], str] = lambda old, new: refused(  # noqa: E731
        spark, broker, write(tmp_path, COPIES.partition("  second:")[0].replace(old, new))
    )
    assert bad("key, payload from", "key, no_such_function(payload) as payload from").startswith(
        "sink first: FILE:7:30: transform copied: [UNRESOLVED_ROUTINE]"
    )
    assert "column 'payload' is int, and must be binary" in bad("key, payload from", "key, 1 as payload from")


def test_spark_refuses_every_cast_that_validate_refuses(spark: SparkSession) -> None:
    samples = {
        "string": ("'a'", "string"),
        "number": ("1.5", "int"),
        "boolean": ("true", "boolean"),
        "date": ("date'2026-01-01'", "date"),
        "timestamp": ("timestamp'2026-01-01 00:00:00'", "timestamp"),
        "binary": ("X'00'", "binary"),
        "array": ("array(1)", "array<int>"),
        "map": ("map('a', 1)", "map<string,int>"),
        "struct": ("named_struct('a', 1)", "struct<a:int>"),
    }
    assert set(samples) == set(IMPOSSIBLE)
    for kind, targets in IMPOSSIBLE.items():
        for target in targets:
            with pytest.raises(AnalysisException, match="DATATYPE_MISMATCH"):
                spark.sql(f"select cast({samples[kind][0]} as {samples[target][1]})")


def test_the_broker_is_asked_for_topics_and_columns(broker: Broker, tmp_path: Path) -> None:
    file = write(tmp_path, COPIES)
    with pytest.raises(Invalid, match=r"pipeline\.yaml:5:11: there is no topic /default/words: create it"):
        load(file, servers=broker.url, offline=False)
