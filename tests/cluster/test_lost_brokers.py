"""A broker that is lost with messages that only its disk has, as a user deals with it: on the command line alone.

Three brokers are processes on a real etcd. One is killed with -9; the partition of a `durable` topic waits for it, is
taken over with an accepted loss, and goes on behind a gap. The broker returns, and what it has left is salvaged.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from brokers import BrokerProcess
from cluster_world import PATIENCE_S, danube, danube_json
from etcd_cluster import EtcdCluster, EtcdMember, encoded, etcd_cluster, missing_etcd

pytestmark = [
    pytest.mark.etcd,
    pytest.mark.process,
    pytest.mark.skipif(bool(missing_etcd()), reason=missing_etcd() or "etcd is there"),
    pytest.mark.xdist_group("lost brokers"),
]
SALVAGED_ALL = "/default/salvaged-all"
ORDERS, BY_POLICY, SALVAGED, STOPPED = (f"/default/{name}" for name in ("orders", "by-policy", "salvaged", "stopped"))
PREFIX = "lost"
PROMISED = 1_000_000
"""The number of offsets that a `durable` partition promises at a time: a taker goes on behind them."""

ORIGIN = {"x-original-topic": ORDERS, "x-original-partition": "0"}
NO_UPLOADS = {"DANUBE_CLUSTER_SESSION_S": "2", "DANUBE_STORAGE_SEGMENT_AGE_S": "3600"}


class LostCluster:
    """Three brokers, of which tests kill some."""

    def __init__(self, directory: Path, etcd: EtcdCluster) -> None:
        self.etcd = etcd
        options = ["--metadata", etcd.url(PREFIX), "--storage-url", (directory / "objects").as_uri()]
        self.brokers = {
            name: BrokerProcess(directory / name, arguments=["--name", name, *options], environment=NO_UPLOADS)
            for name in ("b0", "b1", "b2")
        }

    def run(self, *arguments: str) -> str:
        """Run a command, which must succeed, at any broker that lives; return what it prints."""
        done = danube(*arguments, "--url", self.living.url)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def json(self, *arguments: str) -> Any:
        return danube_json(*arguments, "--url", self.living.url)

    def refused(self, *arguments: str) -> str:
        """Run a command, which must be refused and change no partition; return its one line."""
        before = self.partition_records()
        done = danube(*arguments, "--url", self.living.url)
        assert (done.returncode, done.stdout) == (1, ""), done.stderr
        assert done.stderr.startswith("danube: ") and done.stderr.count("\n") == 1, done.stderr
        assert self.partition_records() == before
        return done.stderr

    @property
    def living(self) -> BrokerProcess:
        return next(one for one in self.brokers.values() if one.is_alive)

    def partition_records(self) -> list[dict[str, str]]:
        member: EtcdMember = self.etcd.members[0]
        start, end = (f"/{PREFIX}/keys/partitions{last}".encode() for last in "/0")
        records: list[dict[str, str]] = member.post("kv/range", {"key": encoded(start), "range_end": encoded(end)})[
            "kvs"
        ]
        return records

    def partitions(self, topic: str) -> list[dict[str, Any]]:
        """Return the descriptions of the partitions, each with the name of its broker, None if it has none."""
        told = self.json("topics", "describe", topic)
        return [one | {"broker": owner or None} for one, owner in zip(told["partitions"], told["owners"], strict=True)]

    def partition(self, topic: str) -> dict[str, Any]:
        """Return the description of the only partition of a topic."""
        (found,) = self.partitions(topic)
        return found

    def wait_away(self, topic: str) -> dict[str, Any]:
        """Wait until the broker of the only partition of a topic is known to be away; return the description."""
        found: dict[str, Any] = {}

        def is_away() -> bool:
            found.update(self.partition(topic))
            return "away since" in found["health"]

        wait_until(is_away)
        return found

    def read(self, topic: str, start: str = "earliest") -> list[dict[str, Any]]:
        lines = self.run("consume", topic, "--from", start, "--exit", "--json").splitlines()
        return [json.loads(line) for line in lines]


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        threading.Event().wait(0.1)  # nothing tells us; we ask again


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LostCluster]:
    directory = tmp_path_factory.mktemp("lost")
    with etcd_cluster(directory / "etcd", 1) as etcd:
        cluster = LostCluster(directory, etcd)
        try:
            with ThreadPoolExecutor() as threads:
                list(threads.map(BrokerProcess.start, cluster.brokers.values()))
            yield cluster
        finally:
            for broker in cluster.brokers.values():
                broker.__exit__()


def test_a_lost_broker_is_replaced_and_what_it_has_left_is_salvaged(cluster: LostCluster) -> None:
    cluster.run("produce", ORDERS, "--ack-level", "durable", *("-m", "0", "-m", "1", "-m", "2"))
    lost = cluster.partition(ORDERS)["broker"]
    cluster.run("topics", "create", BY_POLICY, "--partitions", "3", "--ack-level", "durable")  # one for each broker
    cluster.run("topics", "policies", BY_POLICY, "--set", "takeover_after_s=1s")
    (index,) = [one["index"] for one in cluster.partitions(BY_POLICY) if one["broker"] == lost]
    cluster.run("produce", BY_POLICY, "--partition", str(index), "-m", "old")
    cluster.brokers[lost].kill()

    waiting = cluster.wait_away(ORDERS)
    assert f"waits for broker '{lost}', which is away since" in waiting["health"]
    assert waiting["broker"] is None and not waiting["is_known"]
    row = cluster.run("topics", "describe", ORDERS).splitlines()[-1].split()
    assert (row[1:3], row[4:8]) == (["-"] * 2, ["-"] * 4), "the owner; the offsets, the messages and their bytes"
    wait_until(lambda: cluster.partitions(BY_POLICY)[index]["broker"] not in (None, lost))
    cluster.run("produce", BY_POLICY, "--partition", str(index), "-m", "new")
    assert [(one["offset"], one["payload"]) for one in cluster.read(BY_POLICY)] == [(PROMISED, "new")]

    line = cluster.refused("topics", "takeover", ORDERS)
    assert f"broker '{lost}' (away since" in line and "--accept-loss" in line
    assert f"{ORDERS} from offset 0 on, at most up to {PROMISED - 1}" in line

    taken = cluster.json("topics", "takeover", ORDERS, "--accept-loss")
    assert taken == [{"partition": 0, "start": 0, "end": PROMISED, "broker": lost}]
    cluster.run("produce", ORDERS, "-m", "new")
    read = [(one["offset"], one["payload"]) for one in cluster.read(ORDERS, "1")]
    assert read == [(PROMISED, "new")], "a reader in the gap goes on behind it"

    cluster.brokers[lost].start()
    described = cluster.partition(ORDERS)
    assert described["broker"] in set(cluster.brokers) - {lost}, "it does not take its partition back"
    assert (described["missing_offsets"], described["end_offset"]) == (PROMISED, PROMISED + 1)
    assert described["gaps"] == [[0, PROMISED]]
    left = {one["topic"]: one for one in cluster.json("brokers", "leftovers")}
    assert sorted(left) == sorted([ORDERS, BY_POLICY])
    assert [left[ORDERS][name] for name in ("partition", "broker", "start_offset", "end_offset")] == [0, lost, 0, 3]
    assert [left[BY_POLICY][name] for name in ("partition", "start_offset", "end_offset")] == [index, 0, 1]

    line = cluster.refused("topics", "salvage", ORDERS, "--to", ORDERS)
    assert ORDERS in line and "same topic" in line and "name another one" in line
    cluster.run("topics", "create", SALVAGED)
    assert "published 3 messages" in cluster.run("topics", "salvage", ORDERS, "--to", SALVAGED)
    assert cluster.json("topics", "salvage", ORDERS, "--to", SALVAGED)["published"] == 0, "and none of them twice"
    salvaged = cluster.read(SALVAGED)
    assert [one["payload"] for one in salvaged] == ["0", "1", "2"]
    origins = [{**ORIGIN, "x-original-offset": str(offset)} for offset in range(3)]
    assert [one["attributes"] for one in salvaged] == origins

    cluster.run("topics", "create", SALVAGED_ALL)
    cluster.brokers[lost].kill()
    away = danube("topics", "salvage", "--all", "--to", SALVAGED_ALL, "--url", cluster.living.url)
    assert away.returncode == 1, away.stdout
    assert away.stderr.count(f"of broker {lost}: ") == 2
    assert "2 of 2 partitions not salvaged completely" in away.stderr
    cluster.brokers[lost].start()
    every = cluster.json("topics", "salvage", "--all", "--to", SALVAGED_ALL, "--drop")
    assert (every["published"], every["dropped"]) == (4, True)
    found = {(one["topic"], one["partition"], one["broker"], one["published"]) for one in every["partitions"]}
    assert found == {(ORDERS, 0, lost, 3), (BY_POLICY, index, lost, 1)}
    assert sorted(one["payload"] for one in cluster.read(SALVAGED_ALL)) == ["0", "1", "2", "old"]
    assert cluster.json("brokers", "leftovers") == []


def test_what_is_uploaded_is_taken_over_without_accepting_a_loss(cluster: LostCluster) -> None:
    """A broker that was stopped in order has written down where its offsets end."""
    cluster.run("produce", STOPPED, "--ack-level", "durable", *("-m", "0", "-m", "1"))
    stopped = cluster.partition(STOPPED)["broker"]
    assert cluster.brokers[stopped].stop() == 0
    cluster.wait_away(STOPPED)
    assert cluster.json("topics", "takeover", STOPPED) == [{"partition": 0, "start": 2, "end": 2, "broker": stopped}]
    cluster.run("produce", STOPPED, "-m", "2")
    assert [(one["offset"], one["payload"]) for one in cluster.read(STOPPED)] == [(0, "0"), (1, "1"), (2, "2")]
    cluster.brokers[stopped].start()
