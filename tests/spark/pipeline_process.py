"""`danube pipeline run` as processes of its own, which can be killed with all that belongs to them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from spark_broker import STEP_SECONDS_MAX

HERE = {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
"""Nothing listens to the network, and executors have the packages of this Python."""

JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


class PipelineProcess:
    """One run of a pipeline: the command, its JVM and their Python workers."""

    def __init__(self, file: Path, url: str, *options: str, **environment: str) -> None:
        self._directory = file.parent
        self._mark = f"{os.getpid()}-{time.monotonic_ns()}"
        self._output = self._directory / f"run-{self._mark}.out"
        self._log = self._directory / f"run-{self._mark}.log"
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
        command = [sys.executable, "-m", "pydanube.cli", "pipeline", "run", str(file), "--json", "--url", url, *options]
        with self._output.open("wb") as output, self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=log,
                env={**clean, **HERE, **environment, "PIPELINE_MARK": self._mark},
                start_new_session=True,
            )

    @property
    def events(self) -> list[dict[str, Any]]:
        """What was printed so far."""
        lines = self._output.read_text().split("\n")[:-1]
        return [json.loads(line) for line in lines]

    def log(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]

    def until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + STEP_SECONDS_MAX
        while not condition():
            assert self.process.poll() is None, f"it ended before: {what}\n{self.log()}"
            assert time.monotonic() < deadline, f"not within {STEP_SECONDS_MAX} s: {what}\n{self.log()}"
            time.sleep(0.02)

    def interrupt(self) -> int:
        """Send SIGINT to the process group, as Ctrl-C in a terminal does; return the exit code."""
        os.killpg(self.process.pid, signal.SIGINT)
        return self.process.wait(STEP_SECONDS_MAX)

    def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STEP_SECONDS_MAX)

    def wait(self) -> int:
        return self.process.wait(STEP_SECONDS_MAX)

    def kill(self) -> None:
        """Kill everything that belongs to this run with -9: driver first."""
        for _ in range(3):  # a process that was being started during the first round
            for pid in [self.process.pid, *self._marked()]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def _marked(self) -> list[int]:
        found = []
        for path in Path("/proc").iterdir():
            with suppress(OSError, ValueError):
                if f"PIPELINE_MARK={self._mark}".encode() in (path / "environ").read_bytes().split(b"\0"):
                    found.append(int(path.name))
        return found


def committed(checkpoint: Path, query: str) -> int:
    """Return how many batches a query has completed."""
    return _logged(checkpoint / query / "commits")


def planned(checkpoint: Path, query: str) -> int:
    """Return how many batches a query has begun; it may not have completed the last one."""
    return _logged(checkpoint / query / "offsets")


def _logged(directory: Path) -> int:
    """Return how many batches one of Spark's logs has, also if it deleted the files of old ones."""
    if not directory.is_dir():
        return 0
    return 1 + max((int(path.name) for path in directory.iterdir() if path.name.isdecimal()), default=-1)
