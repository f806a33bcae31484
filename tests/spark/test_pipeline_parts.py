"""Parts of pipelines without Spark: definitions, variables, figures, checkpoints, and when a query is started again."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from pydanube.model.errors import Invalid
from pydanube.spark.pipelines import check_file, load
from pydanube.spark.pipelines.definition import Trigger
from pydanube.spark.pipelines.graph import explain
from pydanube.spark.pipelines.metrics import MetricsServer, render, write_file
from pydanube.spark.pipelines.progress import BatchReport, PipelineStatus, QueryStatus, read_states
from pydanube.spark.pipelines.queries import RETRIES_MAX, PipelineQuery
from pydanube.spark.pipelines.runner import counted_by

WHOLE = """
name: cafe
servers: danube://127.0.0.1:${PORT:-6655}
checkpoint: ${DATA}/checkpoint
trigger: 10s
spark:
  master: local[2,4]
  spark.sql.shuffle.partitions: 2
sources:
  orders:
    topic: /default/orders
    maxOffsetsPerTrigger: 1000
    failOnDataLoss: no
    columns: [topic, partition, offset, append_time, key, payload]
    watermark: {column: append_time, delay: 1m}
  customers: {topic: /default/customers, columns: [key, payload]}
transforms:
  joined:
    sql: |
      with recent as (select * from Orders where cast(payload as string) like '${not a variable}')
      select r.key, c.payload, 1 as x, transform(array(1), v -> v + 1) as list, window.end as e
      from recent r join customers c on r.key = c.key
      group by window(r.append_time, '1 minute')
expectations:
  orders:
    - {name: keyed, check: key is not null and length(key) > 2, action: dead-letter, topic: /default/dlq}
    - {name: small, check: length(payload) < 10, action: drop}
sinks:
  table: {from: joined, format: delta, path: table, partitionBy: [key, x]}
  copy: {from: customers, format: danube, topic: /default/copy, compression: lz4}
"""


def write(directory: Path, text: str = WHOLE) -> Path:
    file = directory / "cafe.yaml"
    file.write_text(text)
    return file


def test_a_file_becomes_a_definition(tmp_path: Path) -> None:
    found = load(write(tmp_path), variables={"DATA": str(tmp_path)})
    assert (found.name, found.servers, found.master) == ("cafe", "danube://127.0.0.1:6655", "local[2,4]")
    assert found.checkpoint == str(tmp_path / "checkpoint")
    assert found.trigger == Trigger("interval", 10.0)
    assert found.conf == {"spark.sql.shuffle.partitions": "2"}
    orders = found.sources["orders"]
    assert orders.options == {
        "topic": "/default/orders",
        "maxOffsetsPerTrigger": "1000",
        "failOnDataLoss": "false",
        "columns": "topic,partition,offset,append_time,key,payload",
    }
    assert orders.watermark is not None and orders.watermark.delay == "60000 milliseconds"
    assert found.transforms["joined"].inputs == ("orders", "customers")
    assert found.needed("joined") == ["orders", "customers", "joined"]
    assert found.sinks["table"].spark_format == "danube-delta"
    assert found.sinks["table"].options == {"path": str(tmp_path / "table"), "partitionBy": "key,x"}
    assert found.query_names() == ["table", "copy", "dead-letters.orders"]


def test_every_input_is_counted_by_one_query(tmp_path: Path) -> None:
    found = load(write(tmp_path), variables={"DATA": "x"})
    assert counted_by(found) == {
        "table": {"customers", "joined"},
        "copy": frozenset(),
        "dead-letters.orders": {"orders"},
    }


def test_variables_come_from_the_call_before_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATA", "/from/environment")
    monkeypatch.setenv("PORT", "7000")
    file = write(tmp_path)
    assert load(file).checkpoint == "/from/environment/checkpoint"
    assert load(file).servers == "danube://127.0.0.1:7000"
    assert load(file, variables={"DATA": "/given"}).checkpoint == "/given/checkpoint"


def test_a_variable_is_a_value_and_never_yaml(tmp_path: Path) -> None:
    checked = check_file(write(tmp_path), variables={"DATA": "x\nsinks: {}", "PORT": "6655"})
    assert checked.pipeline is not None and len(checked.pipeline.sinks) == 2


def test_loading_names_all_problems(tmp_path: Path) -> None:
    with pytest.raises(Invalid) as raised:
        load(write(tmp_path, "name: a\nsinkz: 1\n"))
    assert raised.value.message.splitlines() == [
        f"{tmp_path}/cafe.yaml:1:1: the pipeline has no 'checkpoint', which it needs",
        f"{tmp_path}/cafe.yaml:1:1: the pipeline has no 'sinks', which it needs",
        f"{tmp_path}/cafe.yaml:1:1: the pipeline has no 'sources', which it needs",
        f"{tmp_path}/cafe.yaml:2:1: a pipeline has no key 'sinkz': did you mean 'sinks'?",
    ]


@pytest.mark.parametrize(
    "sql",
    [
        "select o.key from orders o where exists (select 1 from customers c where c.key = o.key)",
        "select key, rank() over (partition by key order by offset) as r from orders",
        "select upper(key) as k, k || 'x' as l from orders",
        "select x.a from (select from_json(cast(payload as string), 'a int') as x from orders)",
        "select key, item from orders lateral view explode(split(key, ',')) items as item",
        "select * except (payload), cast(payload as string) as text from orders",
        "select count(*) as n, session_window.start from orders group by session_window(append_time, '5 minutes')",
        "select key, filter(array(1, 2), x -> x > 1) as f from orders",
        "from orders select key",
        "select `key`, ORDERS.Offset from orders",
        "select key from orders union all select key from customers",
        "select attributes['a'] as a, attributes.b from orders",
        "select a.key from orders a, lateral (select a.offset + 1 as next) b where b.next > 1",
        "select key, t.* from orders, lateral explode(array(1)) as t(x)",
        "select min(offset) filter (where key = 'a') as m from orders having m > 1 order by m",
        "select * from orders pivot (count(offset) for key in ('a', 'b'))",
        "select window(append_time, '1 minute').start as s, key from orders",
    ],
)
def test_sql_that_spark_accepts_is_not_refused(sql: str, tmp_path: Path) -> None:
    text = f"""
name: a
checkpoint: c
sources: {{orders: {{topic: /default/orders}}, customers: {{topic: /default/customers}}}}
transforms:
  t:
    sql: |
      {sql}
sinks: {{s: {{from: t, format: noop}}}}
"""
    assert [str(one) for one in check_file(write(tmp_path, text)).problems] == []


# -- figures -----------------------------------------------------------------------------------------------------------

PROGRESS: dict[str, Any] = {
    "id": "q",
    "runId": "r",
    "timestamp": "2026-01-01T00:00:00.000Z",
    "batchId": 7,
    "numInputRows": 500,
    "durationMs": {"addBatch": 200, "triggerExecution": 250},
    "stateOperators": [{"numRowsDroppedByWatermark": 3}],
    "sources": [
        {
            "endOffset": {"version": 1, "topics": {"/default/orders": {"offsets": [10, 20]}}},
            "latestOffset": json.dumps({"version": 1, "topics": {"/default/orders": {"offsets": [15, 20]}}}),
        },
        {"endOffset": "elsewhere", "latestOffset": None},
    ],
    "observedMetrics": {"expectations.orders": {"checked": 500, "keyed": 2, "small": None}, "other": {"x": 1}},
}


def test_a_batch_is_reported_with_rate_lag_late_rows_and_expectations() -> None:
    found = BatchReport.of(PROGRESS)
    assert found is not None
    assert (found.batch, found.rows, found.rows_per_s, found.seconds) == (7, 500, 2000.0, 0.25)
    assert (found.lag, found.position, found.late) == (5, 30, 3)
    assert (found.failed, found.checked) == ({"orders": {"keyed": 2, "small": 0}}, {"orders": 500})


def test_a_progress_without_a_batch_is_not_counted() -> None:
    assert BatchReport.of({**PROGRESS, "durationMs": {"latestOffset": 1, "triggerExecution": 1}}) is None


def status_of(tmp_path: Path) -> PipelineStatus:
    status = PipelineStatus.of(load(write(tmp_path), variables={"DATA": "x"}))
    report = BatchReport.of(PROGRESS)
    assert report is not None
    status.add("dead-letters.orders", report)
    status.add("dead-letters.orders", report)
    status.queries["copy"].state = "running"
    return status


def test_figures_are_prometheus_text(tmp_path: Path) -> None:
    lines = render(status_of(tmp_path)).splitlines()
    assert 'danube_pipeline_rows_total{pipeline="cafe",query="dead-letters.orders"} 1000' in lines
    assert 'danube_pipeline_batches_total{pipeline="cafe",query="dead-letters.orders"} 2' in lines
    assert 'danube_pipeline_lag_messages{pipeline="cafe",query="dead-letters.orders"} 5' in lines
    assert 'danube_pipeline_batch_seconds{pipeline="cafe",query="table"} 0' in lines
    assert 'danube_pipeline_up{pipeline="cafe",query="copy"} 1' in lines
    labels = 'pipeline="cafe",input="orders",expectation="keyed",action="dead-letter"'
    assert f"danube_pipeline_expectation_failed_total{{{labels}}} 4" in lines
    assert 'danube_pipeline_checked_rows_total{pipeline="cafe",input="orders"} 1000' in lines
    names = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(names) == len(set(names)) == 10
    assert not any("\n" in line or line != line.strip() for line in lines)


def test_figures_are_exact_when_they_are_large(tmp_path: Path) -> None:
    status = status_of(tmp_path)
    status.queries["copy"].rows = 123_456_789_123
    assert 'danube_pipeline_rows_total{pipeline="cafe",query="copy"} 123456789123' in render(status).splitlines()


def test_figures_are_in_a_file_that_is_replaced_and_on_a_port(tmp_path: Path) -> None:
    status = status_of(tmp_path)
    file = tmp_path / "f.prom"
    for _ in range(2):
        write_file(status, file)
    assert file.read_text() == render(status)
    assert [one.name for one in tmp_path.iterdir() if "prom" in one.name] == ["f.prom"]
    with MetricsServer(0) as server:
        server.show(status)
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=60) as answer:
            assert answer.read().decode() == render(status)


# -- checkpoints -------------------------------------------------------------------------------------------------------


def test_states_come_from_the_checkpoints(tmp_path: Path) -> None:
    commits = tmp_path / "checkpoint" / "table" / "commits"
    commits.mkdir(parents=True)
    for name in ("9", "10", ".10.crc", "metadata"):
        (commits / name).touch()
    (tmp_path / "checkpoint" / "copy" / "commits").mkdir(parents=True)
    states = read_states(load(write(tmp_path), variables={"DATA": str(tmp_path)}))
    assert [(one.query, one.batch, str(one)) for one in states] == [
        ("table", 10, "batch 10"),
        ("copy", None, "new"),
        ("dead-letters.orders", None, "new"),
    ]
    assert states[0].time is not None
    elsewhere = read_states(load(write(tmp_path), variables={"DATA": "s3://bucket"}))
    assert [str(one) for one in elsewhere] == ["checkpoint is elsewhere"] * 3


# -- when a query is started again -------------------------------------------------------------------------------------


class FakeProgress:
    def __init__(self, run: str, batch: int) -> None:
        self.json = json.dumps({**PROGRESS, "runId": run, "batchId": batch, "observedMetrics": {}})


class FakeQuery:
    """A streaming query of Spark that does what the test says."""

    def __init__(self, run: str) -> None:
        self.run = self.runId = run
        self.isActive = True
        self.error: Exception | None = None
        self.recentProgress: list[FakeProgress] = []
        self.status = {"message": "Processing new data"}
        self.stopped = False

    @property
    def lastProgress(self) -> FakeProgress | None:  # noqa: N802  Spark's name
        return self.recentProgress[-1] if self.recentProgress else None

    def exception(self) -> Exception | None:
        return self.error

    def fail(self, why: str) -> None:
        self.isActive, self.error = False, RuntimeError(why)

    def complete(self, batch: int) -> None:
        self.recentProgress.append(FakeProgress(self.run, batch))

    def stop(self) -> None:
        self.stopped, self.isActive = True, False


class FakeGraph:
    """Starts fake queries, one after the other."""

    def __init__(self) -> None:
        self.started: list[FakeQuery] = []

    def writer(self, _query: str, _counted: object) -> FakeGraph:
        return self

    def start(self) -> FakeQuery:
        self.started.append(FakeQuery(f"run {len(self.started)}"))
        return self.started[-1]


class Scene:
    def __init__(self) -> None:
        self.graph = FakeGraph()
        self.status = QueryStatus("copy", "")
        self.query = PipelineQuery(self.status, self.graph, Trigger(), ())  # type: ignore[arg-type]
        self.reported: list[int] = []

    def poll(self, now: float) -> None:
        self.query.poll(now, lambda report: self.reported.append(report.batch))

    def stop(self) -> bool:
        return self.query.stop_after_batch(lambda report: self.reported.append(report.batch))


def test_a_query_is_started_again_after_a_growing_delay_and_fails_for_good_after_the_last_retry() -> None:
    scene = Scene()
    scene.poll(0)
    waits = []
    now = 0.0
    for attempt in range(RETRIES_MAX):
        scene.graph.started[-1].fail("disk full")
        scene.poll(now)
        assert (scene.status.state, scene.status.error, scene.status.restarts) == (
            "restarting",
            "disk full",
            attempt + 1,
        )
        before = now
        while len(scene.graph.started) == attempt + 1:
            now += 0.5
            scene.poll(now)
        waits.append(now - before)
    assert waits == [1.0, 4.0, 16.0]
    scene.graph.started[-1].fail("disk full")
    scene.poll(now)
    assert (scene.status.state, scene.status.error) == ("failed", "failed 4 times: disk full")
    scene.poll(now + 1000)
    assert len(scene.graph.started) == RETRIES_MAX + 1


def test_a_completed_batch_gives_a_query_all_its_retries_again() -> None:
    scene = Scene()
    for batch in range(3 * RETRIES_MAX):
        scene.poll(1000.0 * batch)
        scene.graph.started[-1].complete(batch)
        scene.graph.started[-1].fail("disk full")
        scene.poll(1000.0 * batch + 1)
    assert scene.status.state == "restarting"
    assert scene.reported == list(range(3 * RETRIES_MAX))


def test_every_batch_is_reported_once() -> None:
    scene = Scene()
    scene.poll(0)
    query = scene.graph.started[0]
    query.complete(0)
    query.complete(1)
    scene.poll(1)
    scene.poll(2)
    query.complete(2)
    scene.poll(3)
    assert scene.reported == [0, 1, 2]


def test_an_expectation_that_is_not_met_is_not_tried_again() -> None:
    scene = Scene()
    scene.poll(0)
    scene.graph.started[0].fail("job aborted: an expectation is not met: keyed of words\n  at somewhere")
    scene.poll(1)
    assert (scene.status.state, scene.status.error) == ("failed", "an expectation is not met: keyed of words")


def test_what_is_invalid_is_not_tried_again() -> None:
    scene = Scene()
    scene.poll(0)
    scene.graph.started[0].fail("job aborted\npydanube.model.errors.Invalid: there is no column 'payload'\n at x")
    scene.poll(1)
    assert (scene.status.state, scene.status.error) == ("failed", "there is no column 'payload'")


@pytest.mark.parametrize(
    "error",
    [
        "[STREAM_FAILED] x SQLSTATE: XXKST\n[CAST_INVALID_INPUT] The value 'a' is no INT SQLSTATE: 22018",
        "[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012",
        "[UNRESOLVED_COLUMN.WITH_SUGGESTION] x SQLSTATE: 42703",
        "pydanube.model.errors.Corrupt: the object is not what was written",
    ],
)
def test_an_error_that_comes_from_the_data_or_the_sql_is_not_tried_again(error: str) -> None:
    scene = Scene()
    scene.poll(0)
    scene.graph.started[0].fail(error)
    scene.poll(1)
    assert (scene.status.state, scene.status.restarts) == ("failed", 0)


def test_a_query_that_is_stopped_completes_its_batch_first() -> None:
    scene = Scene()
    scene.poll(0)
    query = scene.graph.started[0]
    query.complete(4)
    scene.poll(1)
    assert not scene.stop() and not query.stopped
    query.complete(5)
    assert scene.stop() and query.stopped
    assert (scene.reported, scene.status.state) == ([4, 5], "stopped")


def test_a_query_that_waits_for_data_is_stopped_at_once() -> None:
    scene = Scene()
    scene.poll(0)
    scene.graph.started[0].status = {"message": "Getting offsets from danube"}
    assert scene.stop()
    assert scene.graph.started[0].stopped


def test_a_query_that_waits_for_its_next_start_is_not_started_when_it_is_stopped() -> None:
    scene = Scene()
    scene.poll(0)
    scene.graph.started[0].fail("disk full")
    scene.poll(1)
    assert scene.stop()
    scene.poll(100)
    assert (len(scene.graph.started), scene.status.state) == (1, "stopped")


WITHOUT_MODULE = """[PYTHON_DATA_SOURCE_ERROR] Failed to create Python data source: Traceback (most recent call last):
  File "/spark/worker.py", line 1, in main
    from .options import Mode
  File "/packages/options.py", line 3, in <module>
    import lz4
ModuleNotFoundError: No module named 'lz4'
 SQLSTATE: 38000"""


def test_a_python_that_lacks_modules_is_explained_with_what_to_do() -> None:
    assert explain(RuntimeError(WITHOUT_MODULE)) == (
        "ModuleNotFoundError: No module named 'lz4', in the Python that Spark runs: "
        "set PYSPARK_PYTHON to one that has it, on every machine"
    )
