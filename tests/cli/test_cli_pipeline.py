"""`danube pipeline validate` and `list`, and a wrong file that `run` refuses before Spark starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import pydanube

PIPELINE = """name: orders
checkpoint: checkpoint
sources:
  orders:
    topic: TOPIC
    decode: schema
transforms:
  cheap: {sql: "select id, cents from orders where cents < 100"}
expectations:
  orders: [{name: paid, check: cents > 0, action: drop}]
sinks:
  table: {from: cheap, format: delta, path: table}
"""
ORDER = {"type": "object", "properties": {"id": {"type": "integer"}, "cents": {"type": "integer"}}}


@pytest.fixture
def file(tmp_path: Path, topic: str) -> Path:
    file = tmp_path / "orders.yaml"
    file.write_text(PIPELINE.replace("TOPIC", topic))
    return file


def test_validate_prints_every_problem_with_its_place(danube, file: Path) -> None:
    file.write_text(file.read_text().replace("from: cheap", "from: cheep").replace("cents > 0", "cents >"))
    done = danube("pipeline", "validate", "--offline", str(file))
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        f"{file}:10:38: the SQL cannot be parsed near '>': something is missing after it",
        f"{file}:12:17: there is no source or transform 'cheep': did you mean 'cheap'?",
    ]
    assert done.stderr == "danube: 2 problems\n"
    told = json.loads(danube("pipeline", "validate", "--offline", str(file), "--json").stdout)
    assert [(one["line"], one["column"]) for one in told] == [(10, 38), (12, 17)]


def test_validate_asks_the_broker_for_topics_schemas_and_columns(danube, served, file: Path, topic: str) -> None:
    def problems() -> list[str]:
        said = danube("pipeline", "validate", str(file)).stdout
        return [line.removeprefix(f"{file}:") for line in said.splitlines()]

    assert problems() == [f"5:5: there is no topic {topic}: create it with 'danube topics create {topic}'"]
    with pydanube.connect_blocking(served.url) as client:
        client.create_topic(topic)
        assert problems() == [
            f"5:5: topic {topic} is not bound to a subject: bind it with 'danube schemas bind {topic} SUBJECT', or "
            "name a 'subject' here"
        ]
        subject = topic.rpartition("/")[2]
        client.schemas.register(subject, json.dumps(ORDER), format="json")
        client.schemas.bind(topic, subject)
    assert problems() == [" ok: 1 source, 1 transform, 1 expectation, 1 sink"]
    file.write_text(file.read_text().replace("select id,", "select idd,").replace("cents > 0", "sents > 0"))
    assert problems() == [
        "8:24: there is no column 'idd': did you mean 'id'?",
        "10:32: there is no column 'sents': did you mean 'cents'?",
    ]
    text = file.read_text().replace("idd,", "id,").replace("sents", "cents")
    file.write_text(text.replace("decode: schema", "decode: schema\n    schemaVersion: 7"))
    assert problems() == [f"7:5: subject {subject} has no version 7: there are 1"]
    file.write_text(text.replace("decode: schema", f"decode: schema\n    subject: {subject}x"))
    assert problems() == [f"7:5: there is no subject '{subject}x': did you mean '{subject}'?"]


def test_validate_says_what_it_could_not_check_without_a_broker(danube, file: Path) -> None:
    done = danube("pipeline", "validate", str(file), url="danube://127.0.0.1:1")
    assert done.returncode == 0
    assert done.stdout == f"{file}: ok: 1 source, 1 transform, 1 expectation, 1 sink\n"
    assert "topics and schemas are not checked" in done.stderr


def test_a_wrong_file_is_refused_before_spark_starts(danube, file: Path) -> None:
    file.write_text(file.read_text().replace("format: delta", "format: detla"))
    done = danube("pipeline", "run", str(file))
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"{file}:12:32: there is no format 'detla': did you mean 'delta'?",
        f"danube: {file} has 1 problem: nothing was started",
    ]


def test_wrong_usage_of_run(danube, file: Path) -> None:
    master = danube("pipeline", "run", str(file), "--master", "locl")
    assert master.returncode == 2 and "the master 'locl' is none that Spark knows" in master.stderr
    variable = danube("pipeline", "run", str(file), "--set", "DATA")
    assert variable.returncode == 2 and "write it as NAME=VALUE" in variable.stderr


def test_list_shows_pipelines_and_how_far_they_have_come(danube, file: Path, topic: str) -> None:
    commits = file.parent / "checkpoint" / "table" / "commits"
    commits.mkdir(parents=True)
    (commits / "41").touch()
    (file.parent / "broken.yml").write_text("name: [\n")
    (file.parent / "notes.txt").write_text("not a pipeline")
    told = json.loads(danube("pipeline", "list", str(file.parent), "--json").stdout)
    broken, orders = told
    assert [one.partition(": ")[0] for one in broken["problems"]] == [f"{file.parent}/broken.yml:2:1"]
    assert (orders["name"], orders["sources"], orders["sinks"]) == ("orders", {"orders": topic}, ["table"])
    (state,) = orders["queries"]
    assert (state["query"], state["batch"], state["target"]) == ("table", 41, f"delta {file.parent}/table")
    shown = danube("pipeline", "list", str(file)).stdout
    assert "batch 41" in shown and topic in shown
