"""Pipelines as processes: signals, kill -9 between two sinks, and a standalone cluster. Every row arrives once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pipeline_process import JVM, PipelineProcess, committed, planned
from spark_broker import Broker, payloads
from spark_cluster import standalone

import pydanube

pytestmark = [pytest.mark.spark_kill, pytest.mark.timeout(1800)]

PIPELINE = f"""
name: gates
checkpoint: checkpoint
spark:
  master: local[8,4]
  spark.driver.extraJavaOptions: "{JVM}"
sources:
  words: {{topic: /default/words}}
transforms:
  left: {{function: "gates:left", inputs: [words]}}
  right: {{function: "gates:right", inputs: [words]}}
expectations:
  words:
    - {{name: even, check: cast(cast(payload as string) as long) % 2 = 0, action: dead-letter, topic: /default/odd}}
sinks:
  table: {{from: left, format: delta, path: table}}
  topic: {{from: right, format: danube, topic: /default/copy}}
"""
FUNCTIONS = '''
import time
from pathlib import Path

import pyarrow as pa

CLOSED = Path(__file__).parent


def through(gate):
    """Return a function that lets rows through once the gate is open."""
    def pass_on(batches):
        for batch in batches:
            while (CLOSED / gate).exists():
                time.sleep(0.01)
            yield batch
    return pass_on


def left(words):
    return words.select("key", "payload").mapInArrow(through("left.closed"), "key string, payload binary")


def right(words):
    return words.select("key", "payload").mapInArrow(through("right.closed"), "key string, payload binary")
'''


class Scene:
    """A pipeline with a table, a topic and dead letters; a sink is held up while its gate is closed.

    The tasks of that sink wait in their slots, so there must be more slots than they take.
    """

    def __init__(self, directory: Path, broker: Broker, client: pydanube.BlockingClient) -> None:
        self.directory, self.broker, self.client = directory, broker, client
        self.file = directory / "gates.yaml"
        self.file.write_text(PIPELINE)
        (directory / "gates.py").write_text(FUNCTIONS)
        self.published = 0
        self.runs: list[PipelineProcess] = []
        client.create_topic("/default/words", partitions=2)

    def publish(self, count: int = 200) -> None:
        with self.client.producer("/default/words") as producer:
            numbers = range(self.published, self.published + count)
            producer.send_many([b"%d" % number for number in numbers], keys=[f"key-{number % 7}" for number in numbers])
        self.published += count

    def close(self, gate: str) -> None:
        (self.directory / f"{gate}.closed").touch()

    def open(self, gate: str) -> None:
        (self.directory / f"{gate}.closed").unlink()

    def start(self, *options: str) -> PipelineProcess:
        self.runs.append(PipelineProcess(self.file, self.broker.url, *options))
        return self.runs[-1]

    def batches(self, query: str) -> int:
        return committed(self.directory / "checkpoint", query)

    def begun(self, query: str) -> int:
        return planned(self.directory / "checkpoint", query)

    def end(self) -> None:
        for run in self.runs:
            run.kill()

    def check(self) -> None:
        from deltalake import DeltaTable

        table = DeltaTable(str(self.directory / "table")).to_pyarrow_table()["payload"].to_pylist()
        evens = Counter(b"%d" % number for number in range(0, self.published, 2))
        assert Counter(table) == evens
        assert Counter(payloads(self.client, "/default/copy")) == evens
        letters = [int(one.message.payload) for one in self.client.dead_letters("/default/odd")]
        assert sorted(letters) == list(range(1, self.published, 2))


@pytest.fixture
def scene(tmp_path: Path, broker: Broker, client: pydanube.BlockingClient) -> Iterator[Scene]:
    directory = tmp_path / "pipeline"
    directory.mkdir()
    scene = Scene(directory, broker, client)
    yield scene
    scene.end()


def test_kill_9_between_two_sinks_repeats_one_and_not_the_other(scene: Scene) -> None:
    sinks = {"left": "table", "right": "topic"}
    for gate, free in (("right", "left"), ("left", "right"), ("right", "left")):
        held, other = sinks[gate], sinks[free]
        scene.publish()
        scene.close(gate)
        before = {sink: scene.batches(sink) for sink in sinks.values()}
        run = scene.start()
        run.until(lambda held=held: scene.begun(held) > scene.batches(held), f"{held} waits in its batch")
        run.until(lambda other=other, before=before: scene.batches(other) > before[other], f"{other} has its batch")
        run.kill()
        assert scene.batches(held) == before[held], "it was killed in its batch"
        assert scene.begun(held) == before[held] + 1
        scene.open(gate)
    scene.publish()
    assert scene.start("--once").wait() == 0
    scene.check()


def test_signals_end_a_pipeline_after_its_batch(scene: Scene, tmp_path: Path) -> None:
    metrics = tmp_path / "gates.prom"
    scene.publish()
    scene.close("right")
    run = scene.start("--metrics-file", str(metrics))
    run.until(lambda: any(one["query"] == "table" for one in run.events), "the table has its batch")
    run.until(lambda: (scene.directory / "checkpoint" / "topic" / "offsets" / "0").exists(), "the topic's batch runs")
    run.process.send_signal(2)
    run.until(lambda: "ending after the batch" in run.log(), "the signal is noticed")
    assert scene.batches("topic") == 0
    scene.open("right")
    assert run.wait() == 0, run.log()
    assert scene.batches("topic") == 1, "its batch was completed, not interrupted"
    totals = {one["query"]: one["rows"] for one in run.events if one["event"] == "batch"}
    assert totals == {"table": 200, "topic": 200, "dead-letters.words": 200}
    figures = metrics.read_text().splitlines()
    labels = 'pipeline="gates",input="words",expectation="even",action="dead-letter"'
    assert f"danube_pipeline_expectation_failed_total{{{labels}}} 100" in figures

    scene.publish()
    run = scene.start()
    names = {"table", "topic", "dead-letters.words"}
    run.until(lambda: {one["query"] for one in run.events} == names, "every query has a batch")
    assert run.interrupt() == 0, run.log()
    scene.publish()
    run = scene.start()
    run.until(lambda: {one["query"] for one in run.events} == names, "every query has a batch")
    assert run.terminate() == 0, run.log()
    scene.check()


def test_a_second_ctrl_c_interrupts_the_batch(scene: Scene) -> None:
    scene.publish()
    scene.close("right")
    run = scene.start()
    run.until(lambda: (scene.directory / "checkpoint" / "topic" / "offsets" / "0").exists(), "the topic's batch runs")
    run.process.send_signal(2)
    run.until(lambda: "ending after the batch" in run.log(), "the signal is noticed")
    assert run.interrupt() == 130, run.log()
    scene.open("right")
    assert scene.start("--once").wait() == 0
    scene.check()


def test_a_pipeline_runs_on_a_standalone_cluster(scene: Scene, tmp_path: Path) -> None:
    with standalone(tmp_path, workers=1) as master:
        for _ in range(2):
            scene.publish()
            run = scene.start("--once", "--master", master)
            assert run.wait() == 0, run.log()
    scene.check()
