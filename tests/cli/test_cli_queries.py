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
        client.commit_stages("nightly totals", "run-1", 4, stage(client, "nightly totals"), wait_ms=60_000)
        stage(client, "half done")
    return served


def stage(client: pydanube.BlockingClient, query: str) -> list[str]:
    with client.stager(query, run="run-1", batch_id=4) as stager:
        stager.add(TOPIC, 0, encode([b"1"], publish_times=1))
        return stager.finish()


def listed(served) -> list[str]:
    return [one["query"] for one in json.loads(run(served, "list", "--json"))]


def run(served, *arguments: str, code: int = 0) -> str:
    done = danube("queries", *arguments, "--url", served.url)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def test_queries_are_listed_by_name_with_their_last_batch(written):
    head, *rows = run(written, "list").splitlines()
    assert head.split() == ["query", "last", "batch", "committed", "pending"]
    half, nightly = (row for row in rows if row.startswith(("half done", "nightly totals")))
    assert half.startswith("half done") and "none yet" in half and "never" in half
    assert " 4 " in nightly


def test_a_query_is_described(written):
    shown = run(written, "describe", "nightly totals")
    assert "run-1" in shown and "all of it is published" in shown
    told = json.loads(run(written, "describe", "nightly totals", "--json"))
    assert (told["query"], told["run"], told["last_batch_id"]) == ("nightly totals", "run-1", 4)
    assert (told["pending"], told["obstacle"]) == (0, "")
    assert told["last_commit_at"] > 0


def test_an_unknown_query_is_named(written):
    assert "'nobody' is not known here" in run(written, "describe", "nobody", code=1)
    assert "'nobody' is not known here" in run(written, "forget", "nobody", "--yes", code=1)


def test_a_query_is_forgotten_only_when_told_so(written):
    with pydanube.connect_blocking(written.url) as client:
        stage(client, "forgotten")
    assert "--yes" in run(written, "forget", "forgotten", code=2)
    assert "forgotten" in listed(written)
    assert run(written, "forget", "forgotten", "--yes") == "forgot forgotten\n"
    assert "forgotten" not in listed(written)
