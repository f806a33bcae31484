"""`danube queries` against a real broker."""

from __future__ import annotations

import json

import pytest
from commands import danube

import pydanube
from pydanube.codec.batch import encode

TOPIC = "/default/staged-by-the-command-line"


@pytest.fixture(scope="module")
def written(served):
    """A query that wrote one batch, and one that only staged something."""
    with pydanube.connect_blocking(served.url) as client:
        client.create_topic(TOPIC)
        for query, commits in (("nightly totals", True), ("half done", False)):
            with client.stager(query, run="run-1", batch_id=4) as stager:
                stager.add(TOPIC, 0, encode([b"1"], publish_times=1))
                stages = stager.finish()
            if commits:
                client.commit_stages(query, "run-1", 4, stages, wait_ms=10_000)
    return served


def run(served, *arguments: str, code: int = 0) -> str:
    done = danube("queries", *arguments, "--url", served.url)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def test_queries_are_listed_by_name_with_their_last_batch(written):
    lines = run(written, "list").splitlines()
    assert lines[0].split() == ["query", "last", "batch", "committed", "pending"]
    assert lines[1].startswith("half done") and "none yet" in lines[1] and "never" in lines[1]
    assert lines[2].startswith("nightly totals") and " 4 " in lines[2]


def test_a_query_is_described(written):
    shown = run(written, "describe", "nightly totals")
    assert "run-1" in shown and "all of it is published" in shown
    told = json.loads(run(written, "describe", "nightly totals", "--json"))
    assert (told["query"], told["run"], told["last_batch_id"]) == ("nightly totals", "run-1", 4)
    assert (told["pending_partitions"], told["obstacle"]) == (0, None)
    assert told["last_commit_at"].startswith("20")


def test_an_unknown_query_is_named(written):
    assert "'nobody' is not known here" in run(written, "describe", "nobody", code=1)
    assert "'nobody' is not known here" in run(written, "forget", "nobody", "--yes", code=1)


def test_a_query_is_forgotten_only_when_told_so(written):
    assert "--yes" in run(written, "forget", "half done", code=2)
    assert run(written, "forget", "half done", "--yes") == "forgot half done\n"
    assert [one["query"] for one in json.loads(run(written, "list", "--json"))] == ["nightly totals"]


def test_what_is_no_name_is_wrong_usage(written):
    assert "is no name" in run(written, "describe", "x" * 201, code=2)
