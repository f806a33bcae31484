"""Spark's own servers, as processes that end with their block: a standalone cluster, and a Spark Connect server."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from time import monotonic

import pyspark

from pydanube.spark import java

START_SECONDS_MAX = 300
HERE = "127.0.0.1"
MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
REGISTERED = re.compile(r"Successfully registered with master")
CONNECT = re.compile(r"Spark Connect server started at: \S*?:(\d+)")


@contextmanager
def standalone(directory: Path, workers: int = 1) -> Iterator[str]:
    """Start a master with `workers` workers of two cores each; yield its URL."""
    with ExitStack() as processes:
        start = "org.apache.spark.deploy.master.Master", "--host", HERE, "--port", "0", "--webui-port", "0"
        url = processes.enter_context(_spark(directory / "master.log", MASTER, "spark-class", *start))
        for number in range(workers):
            work = directory / f"worker-{number}"
            start = "org.apache.spark.deploy.worker.Worker", "--host", HERE, "--webui-port", "0", "--cores", "2"
            rest = "--memory", "1g", "--work-dir", str(work), url
            log = directory / f"worker-{number}.log"
            processes.enter_context(_spark(log, REGISTERED, "spark-class", *start, *rest))
        yield url


@contextmanager
def connect_server(directory: Path) -> Iterator[str]:
    """Start a Spark Connect server that computes in its own process; yield its ``sc://`` address."""
    server = "--class", "org.apache.spark.sql.connect.service.SparkConnectServer"
    settings = {
        "spark.connect.grpc.binding.address": HERE,
        "spark.connect.grpc.binding.port": "0",
        "spark.ui.enabled": "false",
    }
    conf = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    command = "spark-submit", "--master", "local[2,4]", *conf, *server, "spark-internal"
    with _spark(directory / "connect.log", CONNECT, *command) as port:
        yield f"sc://{HERE}:{port}"


@contextmanager
def _spark(log: Path, ready: re.Pattern[str], script: str, *arguments: str) -> Iterator[str]:
    """Start a Spark program in its own process group; yield what `ready` matches in its log."""
    home = Path(pyspark.__file__).parent
    environment = {
        **{name: value for name, value in os.environ.items() if name != "SPARK_HOME"},
        "SPARK_LOCAL_IP": HERE,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_DAEMON_MEMORY": "600m",
        "SPARK_NO_DAEMONIZE": "1",
    }
    found = java.find()
    if found.home is not None:
        environment["JAVA_HOME"] = str(found.home)
    with log.open("wb") as output:
        command = [str(home / "bin" / script), *arguments]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, start_new_session=True
        )
    try:
        yield _awaited(log, ready, process)
    finally:
        _end(process)


def _awaited(log: Path, ready: re.Pattern[str], process: subprocess.Popen[bytes]) -> str:
    """Wait for a match in the log; return its first group, or the whole match."""
    deadline = monotonic() + START_SECONDS_MAX
    while (found := ready.search(log.read_text())) is None:
        assert process.poll() is None and monotonic() < deadline, log.read_text()[-4000:]
        try:
            process.wait(0.2)
        except subprocess.TimeoutExpired:
            continue
    return found[1] if found.groups() else found[0]


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and everything it started: executors, Python workers."""
    try:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(120)
    except ProcessLookupError:
        return
    except subprocess.TimeoutExpired:
        pass
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
