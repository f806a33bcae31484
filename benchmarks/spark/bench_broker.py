"""A broker in a separate process, and topics filled with messages, in the log and in object storage."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydanube.client import BlockingClient

PARTITIONS = 2


@contextmanager
def running_broker(data_dir: Path) -> Iterator[str]:
    """Run a broker and yield its URL."""
    ports = [f"--{option}=0" for option in ("port", "grpc-port", "admin-port", "http-port")]
    command = [sys.executable, "-m", "pydanube.cli", "serve", "--data-dir", str(data_dir), *ports]
    with (data_dir.parent / "broker.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    try:
        ready = process.stdout.readline()
        if not ready.startswith("danube ready native="):
            raise SystemExit(f"the broker did not start: {(data_dir.parent / 'broker.log').read_text()}")
        yield "danube://" + ready.split()[2].removeprefix("native=")
    finally:
        process.terminate()
        process.wait()


def fill(client: BlockingClient, topic: str, size: int, rows: int, batch_rows: int) -> None:
    """Publish messages of `size` random bytes in batches of `batch_rows`, evenly over partitions, and upload them."""
    client.create_topic(topic, partitions=PARTITIONS)
    payloads = [os.urandom(size) for _ in range(batch_rows)]
    for partition in range(PARTITIONS):
        with client.producer(
            topic,
            name=f"benchmark-{partition}",
            partition_by=partition,
            batch_messages=batch_rows,
            batch_bytes=4 * batch_rows * size,
        ) as producer:
            for _ in range(rows // PARTITIONS // batch_rows):
                producer.queue_many(payloads)
            producer.flush()
    client.upload_storage(topic)
