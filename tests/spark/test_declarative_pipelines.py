"""Spark Declarative Pipelines read topics: the example of examples/declarative."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet
import pyspark
import pytest
from spark_broker import Broker

import pydanube
from pydanube.spark import java

EXAMPLE = Path(__file__).parents[2] / "examples" / "declarative"
SECONDS_MAX = 400
ITEMS = ("espresso", "cortado", "tea")


@pytest.mark.spark_kill
@pytest.mark.timeout(2 * SECONDS_MAX)
def test_a_declarative_pipeline_reads_a_topic(broker: Broker, client: pydanube.BlockingClient, tmp_path: Path) -> None:
    project = tmp_path / "project"
    shutil.copytree(EXAMPLE, project)
    spec = project / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("file:///tmp/danube-declarative", (tmp_path / "storage").as_uri()))
    client.create_topic("/default/orders", partitions=2)
    with client.producer("/default/orders") as producer:
        orders = [{"id": one, "item": ITEMS[one % 3], "cents": one} for one in range(60)]
        producer.send_many([json.dumps(order).encode() for order in orders])
    said = run(project, broker)
    assert "COMPLETED" in said, said
    tables = project / "spark-warehouse"
    assert sorted(pyarrow.parquet.read_table(tables / "orders")["id"].to_pylist()) == list(range(60))
    sums = {row["item"]: row["cents"] for row in pyarrow.parquet.read_table(tables / "turnover").to_pylist()}
    assert sums == {item: sum(range(at, 60, 3)) for at, item in enumerate(ITEMS)}


def run(project: Path, broker: Broker) -> str:
    """Run the pipeline and return what was printed. Its exit code says nothing: with Python sources Spark's command
    fails after the pipeline was completed."""
    home = Path(pyspark.__file__).parent
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    environment = {
        **clean,
        "SPARK_HOME": str(home),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "DANUBE_URL": broker.url,
    }
    found = java.find()
    if found.home is not None:
        environment["JAVA_HOME"] = str(found.home)
    command = [str(home / "bin" / "spark-pipelines"), "--conf", "spark.ui.enabled=false", "run"]
    done = subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    return done.stdout + done.stderr
