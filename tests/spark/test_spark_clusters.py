"""The same job on a standalone cluster and through Spark Connect, with processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from spark_broker import Broker
from spark_cluster import connect_server, standalone

import pydanube

PROGRAM = Path(__file__).with_name("spark_program.py")
SOURCE, TARGET = "/default/source", "/default/target"
MESSAGES = 5_000
SECONDS_MAX = 300

pytestmark = [pytest.mark.spark_kill, pytest.mark.timeout(SECONDS_MAX * 2)]


@pytest.fixture
def words(client: pydanube.BlockingClient) -> Counter[bytes]:
    """Return the messages of the source topic: three partitions, keys, some payloads twice."""
    client.create_topic(SOURCE, partitions=3)
    payloads = [f"word {number % 4_000}".encode() for number in range(MESSAGES)]
    with client.producer(SOURCE) as producer:
        producer.send_many(payloads, keys=[f"key-{number % 50}" for number in range(MESSAGES)])
    return Counter(payloads)


def test_a_standalone_cluster_reads_and_writes_exactly_once(
    broker: Broker, client: pydanube.BlockingClient, words: Counter[bytes], tmp_path: Path
) -> None:
    with standalone(tmp_path, workers=2) as master:
        said = submit(master, broker, tmp_path)
    check(said, client, words)


def test_spark_connect_reads_and_writes_exactly_once(
    broker: Broker, client: pydanube.BlockingClient, words: Counter[bytes], tmp_path: Path
) -> None:
    with connect_server(tmp_path) as address:
        said = submit(address, broker, tmp_path)
    check(said, client, words)


def submit(master: str, broker: Broker, directory: Path) -> dict[str, dict[str, list[int]]]:
    """Submit the job in a clean environment, and return what it printed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    finished = subprocess.run(
        [sys.executable, str(PROGRAM), master, broker.servers, SOURCE, TARGET, str(directory / "checkpoint")],
        env={**environment, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )
    assert finished.returncode == 0, finished.stderr[-4000:]
    answer: dict[str, dict[str, list[int]]] = json.loads(finished.stdout.splitlines()[-1])
    return answer


def check(said: dict[str, dict[str, list[int]]], client: pydanube.BlockingClient, words: Counter[bytes]) -> None:
    ends = {one.index: one.end_offset for one in client.describe_topic(SOURCE).partitions}
    assert {int(partition): rows for partition, rows in said["seen"].items()} == {
        partition: [end, end - 1] for partition, end in ends.items()
    }
    carried: Counter[bytes] = Counter()
    for partition in client.describe_topic(TARGET).partitions:
        with client.reader(TARGET, partition=partition.index, start="earliest") as reader:
            for _ in range(partition.end_offset):
                carried[reader.receive(timeout=60).payload] += 1
    assert carried == Counter({word.upper(): count for word, count in words.items()})
