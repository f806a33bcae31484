"""`danube table land` as a person runs it: continuously, stopped by Ctrl-C, and started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from brokers import BrokerProcess
from spark_broker import until
from test_table_formats import stored

import pydanube
from pydanube.spark.tables.options import TableOptions
from pydanube.spark.tables.table_formats import open_table

pytestmark = [pytest.mark.spark_kill, pytest.mark.process, pytest.mark.timeout(1800)]
TOPIC = "/default/orders"


def test_a_landing_ends_after_its_batch_and_continues(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker, pydanube.connect_blocking(broker.url) as client:
        client.create_topic(TOPIC, partitions=2)

        def publish(count: int) -> None:
            with client.producer(TOPIC) as producer:
                for number in range(count):
                    producer.send_nowait(b"%d" % number)
                producer.flush()

        def land(*options: str) -> subprocess.Popen[str]:
            command = [sys.executable, "-m", "pydanube.cli", "table", "land", TOPIC, str(tmp_path / "lake" / "orders")]
            command += ["--url", broker.url, "--json", "--master", "local[2,4]", *options]
            out = (tmp_path / "out").open("w")
            return subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, text=True, start_new_session=True)

        def landed() -> int:
            lines = (tmp_path / "out").read_text().splitlines()
            return sum(json.loads(line)["messages"] for line in lines if line.startswith("{"))

        publish(300)
        process = land("--every", "100ms", "--format", "iceberg")
        until(lambda: landed() == 300 or process.poll() is not None, "300 messages", (tmp_path / "out").read_text)
        publish(50)
        until(lambda: landed() == 350 or process.poll() is not None, "50 more", (tmp_path / "out").read_text)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        assert process.wait(600) == 0, (tmp_path / "out").read_text()
        publish(25)
        assert land("--once").wait(600) == 0, (tmp_path / "out").read_text()
        assert landed() == 25
    table = open_table(TableOptions.parse("iceberg", {"path": str(tmp_path / "lake" / "orders")}))
    rows = stored(table).to_pylist()
    assert len(rows) == len({(row["partition"], row["offset"]) for row in rows}) == 375
