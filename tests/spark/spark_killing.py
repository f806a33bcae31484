"""Shared by the kill tests: a topic that is being filled, a Spark driver that dies, and the checks afterwards."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

import kill_driver
from spark_broker import messages, until

import pydanube

LOCAL = "local[2,4]"
SOURCE, SINK = "/default/source", "/default/sink"
SOURCE_PARTITIONS, SINK_PARTITIONS = 3, 4
KEYS = 50


def chosen_seed() -> int:
    """Return a new seed, or the one in DANUBE_SEED: DANUBE_SEED=1234 make test-spark."""
    seed = int(os.environ.get("DANUBE_SEED") or random.randrange(2**32))
    print(f"seed {seed} (repeat with DANUBE_SEED={seed})")
    return seed


class Served(Protocol):
    """One broker, or several: what answers at an address."""

    @property
    def url(self) -> str: ...


class Driver:
    """One run of the stream, in separate processes."""

    def __init__(
        self, broker: Served, directory: Path, master: str, kill_at: str, program: tuple[str, ...] | None = None
    ) -> None:
        self._directory = directory
        self._committed_before = self.committed
        self._log = directory / "driver.log"
        here = Path(__file__).parent
        self._armed = directory / "armed"
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
        environment |= {"KILL_AT": kill_at, "KILL_ARMED": str(self._armed)}
        environment |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        environment["PYTHONPATH"] = os.pathsep.join([str(here), os.environ.get("PYTHONPATH", "")])
        environment["KILL_MARK"] = self._mark = f"{os.getpid()}-{time.monotonic_ns()}"
        servers = broker.url.removeprefix("danube://")
        topics = servers, SOURCE, SINK, str(directory / "checkpoint")
        command = [sys.executable, *(program or (kill_driver.__file__, master, *topics))]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def committed(self) -> int:
        """Return the number of finished micro-batches over all runs. Spark keeps the files of the last hundred."""
        commits = self._directory / "checkpoint" / "commits"
        if not commits.is_dir():
            return 0
        return 1 + max((int(path.name) for path in commits.iterdir() if path.name.isdecimal()), default=-1)

    def until_committed(self, more: int = 1) -> None:
        """Wait until `more` micro-batches are finished since the start or the last call, or the run is over."""
        goal = self._committed_before + more
        until(lambda: not self.alive or self.committed >= goal, f"{goal} micro-batches", self.log)
        self._committed_before = self.committed

    def arm(self) -> None:
        """From now on, let the driver die at the step it was started with."""
        self._armed.touch()

    def until_dead(self) -> None:
        until(lambda: not self.alive, "the driver's death", self.log)

    def kill(self) -> None:
        """Kill the driver and its JVM. Python workers notice a moment later."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def workers(self) -> list[int]:
        """Return the Python processes of this Spark: of tasks, of the source, of commits."""
        return [pid for pid in self._marked() if b"pyspark.daemon" in _read(pid, "cmdline")]

    def end(self) -> None:
        """Kill everything that is left of this run."""
        self.kill()
        for pid in self._marked():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def log(self) -> str:
        return self._log.read_text(errors="replace")[-6000:]

    def _marked(self) -> list[int]:
        mark = f"KILL_MARK={self._mark}".encode()
        return [pid for pid in _processes() if mark in _read(pid, "environ").split(b"\0")]


def executors(directory: Path) -> list[int]:
    """Return the JVMs that run tasks for a cluster whose workers use this directory."""
    found = [pid for pid in _processes() if b"CoarseGrainedExecutorBackend" in _read(pid, "cmdline")]
    return [pid for pid in found if _place(pid).is_relative_to(directory)]


def _processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]


def _place(pid: int) -> Path:
    try:
        return Path(f"/proc/{pid}/cwd").readlink()
    except OSError:  # it has just ended
        return Path("/")


def _read(pid: int, what: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{what}").read_bytes()
    except OSError:  # it has just ended
        return b""


class Scene:
    """A source that is being filled, a sink, and the current run of the stream between them."""

    def __init__(self, broker: Served, directory: Path) -> None:
        self.broker = broker
        self._directory = directory
        self._published = 0
        self._stop = threading.Event()
        self._publisher: threading.Thread | None = None
        self._lives: list[Driver] = []
        with self._client() as client:
            client.create_topic(SOURCE, partitions=SOURCE_PARTITIONS)
            client.create_topic(SINK, partitions=SINK_PARTITIONS)

    def _client(self) -> pydanube.BlockingClient:
        return pydanube.connect_blocking(self.broker.url, timeout=60)

    # -- the source ---------------------------------------------------------------------------------------------------

    def publish(self, count: int) -> None:
        """Publish numbers, each once."""
        with self._client() as client, client.producer(SOURCE) as producer:
            self._send(producer, count)

    def _send(self, producer: pydanube.client.BlockingProducer, count: int) -> None:
        for number in range(self._published, self._published + count):
            producer.send_nowait(b"%d" % number, key=f"key-{number % KEYS}", attributes={"n": str(number % 7)})
        producer.flush()
        self._published += count

    @contextmanager
    def filled(self, chance: random.Random) -> Iterator[None]:
        """Publish some rows from time to time until the block ends."""
        thread = threading.Thread(target=self._fill, args=(random.Random(chance.random()),))
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def _fill(self, chance: random.Random) -> None:
        with self._client() as client, client.producer(SOURCE) as producer:
            while not self._stop.wait(chance.uniform(0, 0.4)):
                self._send(producer, chance.randint(1, 150))

    # -- the stream ---------------------------------------------------------------------------------------------------

    def start(self, master: str = LOCAL, kill_at: str = "") -> Driver:
        driver = Driver(self.broker, self._directory, master, kill_at)
        self._lives.append(driver)
        return driver

    def end(self) -> None:
        for driver in self._lives:
            driver.end()

    # -- what must hold -----------------------------------------------------------------------------------------------

    def check(self, driver: Driver) -> None:
        """Let the stream catch up; check that every row is in the sink once, and the rows of each key in order."""
        until(lambda: not driver.alive or self._written() >= self._published, "the stream catches up", driver.log)
        assert driver.alive, driver.log()
        driver.end()
        with self._client() as client:
            until(lambda: all(query.pending == 0 for query in client.staged_queries()), "what was committed is in")
            source, sink = _rows(client, SOURCE), _rows(client, SINK)
        assert Counter(row[0] for row in source) == Counter(range(self._published))
        lost = Counter(source) - Counter(sink)
        repeated = Counter(sink) - Counter(source)
        assert (lost, repeated) == (Counter(), Counter()), f"{len(lost)} rows lost, {len(repeated)} rows repeated"
        order = defaultdict(list)
        for number, key, _ in sink:
            order[key].append(number)
        assert all(numbers == sorted(numbers) for numbers in order.values()), "rows of a key are out of order"
        print(f"{len(sink)} rows in {driver.committed} micro-batches and {len(self._lives)} lives: each once")

    def _written(self) -> int:
        with self._client() as client:
            return sum(partition.end_offset - partition.start_offset for partition in client.partitions(SINK))


Found = tuple[int, str | None, tuple[tuple[str, str], ...]]


def _rows(client: pydanube.BlockingClient, topic: str) -> list[Found]:
    """Return the rows of all partitions, each in order."""
    every = messages(client, topic).values()
    return [(int(one.payload), one.key, tuple(one.attributes.items())) for each in every for one in each]
