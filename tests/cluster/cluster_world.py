"""Three brokers, three members of a real etcd and one object store, as processes, with a TCP proxy between any two.

Every way that bytes take can be cut: a broker to each member of etcd, clients to a broker, brokers to a broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from brokers import BrokerProcess
from etcd_cluster import EtcdCluster, programs
from faulty_proxy import FaultyProxy, holder

import pydanube
from pydanube.model.errors import DanubeError

SESSION_S = 3
"""A short session, so that a test sees one end in seconds."""
PATIENCE_S = 60
"""How long anything may take on a busy machine."""

SETTINGS = {
    "DANUBE_CLUSTER_SESSION_S": str(SESSION_S),
    "DANUBE_STORAGE_SEGMENT_AGE_S": "2",
    "DANUBE_LOGGING_LEVEL": "info",
}
"""Of every broker: uploads begin after seconds, so that faults meet them."""


class ClusterBroker(BrokerProcess):
    """One broker, with the proxies in which its connections and those to it can be cut."""

    def __init__(self, name: str, directory: Path, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        super().__init__(directory / name, arguments=["--name", name, *arguments], environment=environment)
        self.name = name
        self.outside = FaultyProxy(f"127.0.0.1:{self.port}")
        """Before its native listener, for clients."""
        self.inside = FaultyProxy(f"127.0.0.1:{self.port}")
        """Before its native listener, for the other brokers."""
        self.to_etcd: list[FaultyProxy] = []
        """Before each member of etcd, for this broker."""

    @property
    def proxies(self) -> list[FaultyProxy]:
        return [self.outside, self.inside, *self.to_etcd]

    @property
    def client_url(self) -> str:
        return f"danube://{self.outside.address}"

    async def open_proxies(self, etcd: EtcdCluster, prefix: str) -> None:
        self.to_etcd = [FaultyProxy(member.address) for member in etcd.members]
        for proxy in self.proxies:
            await proxy.start()
        members = ",".join(proxy.address for proxy in self.to_etcd)
        self.arguments += ["--metadata", f"etcd://{members}/{prefix}"]
        self.environment["DANUBE_SERVER_ADVERTISED"] = self.outside.address
        self.environment["DANUBE_SERVER_ADVERTISED_INSIDE"] = self.inside.address

    async def begin(self) -> None:
        await asyncio.to_thread(self.start)

    def heal(self) -> None:
        for proxy in self.proxies:
            proxy.delay_s = 0.0
            proxy.thaw()

    async def close(self) -> None:
        self.__exit__()
        for proxy in self.proxies:
            await proxy.close()


class ClusterWorld:
    """The whole cluster. Brokers are b0, b1 and b2, members of etcd m0, m1 and m2."""

    def __init__(
        self,
        directory: Path,
        *,
        storage_url: str = "",
        environment: Mapping[str, str] | None = None,
        etcd_flags: Sequence[str] = (),
        brokers: int = 3,
        members: int = 3,
        clocks: Mapping[str, str] | None = None,
    ) -> None:
        """`clocks`: what libfaketime makes of the clocks of some brokers, by their names."""
        self.directory = directory
        self.storage_url = storage_url or (directory / "objects").as_uri()
        self.environment = {**SETTINGS, **(environment or {})}
        self.clocks = clocks or {}
        self.etcd = EtcdCluster(directory / "etcd", members, programs()[0], etcd_flags)
        self.brokers = [self.make_broker(f"b{number}") for number in range(brokers)]

    def make_broker(self, name: str) -> ClusterBroker:
        environment = {**self.environment, **(wrong_clock(self.clocks[name]) if name in self.clocks else {})}
        broker = ClusterBroker(name, self.directory, ["--storage-url", self.storage_url], environment)
        broker.inside.client_name = lambda port: holder(port, self._processes())
        return broker

    def _processes(self) -> dict[int, str]:
        return {broker.pid: broker.name for broker in self.brokers if broker.is_alive}

    @property
    def url(self) -> str:
        """All brokers, as clients reach them."""
        return "danube://" + ",".join(broker.outside.address for broker in self.brokers)

    async def start(self) -> None:
        await asyncio.to_thread(self.etcd.start)
        for broker in self.brokers:
            await broker.open_proxies(self.etcd, "test")
        await self.start_brokers(self.brokers)

    async def start_brokers(self, brokers: Sequence[ClusterBroker]) -> None:
        async with asyncio.TaskGroup() as tasks:
            for broker in brokers:
                tasks.create_task(broker.begin())

    async def close(self) -> None:
        for broker in self.brokers:
            await broker.close()
        await asyncio.to_thread(self.etcd.close)

    async def heal(self) -> None:
        """Repair everything that faults have broken: all members and brokers run, and all reach each other."""
        await asyncio.to_thread(self.heal_etcd)
        for broker in self.brokers:
            broker.heal()
        down = []
        for broker in self.brokers:
            if broker.is_alive:
                broker.thaw()
            else:
                down.append(broker)
        await self.start_brokers(down)

    def heal_etcd(self) -> None:
        for member in self.etcd.members:
            if member.process is None:
                self.etcd.start_member(member)
            else:
                member.thaw()
        self.etcd.wait_ready()

    def logs(self) -> str:
        """Return the end of every broker's log."""
        parts = [f"{broker.name}:\n{broker.log.read_text()[-3000:]}" for broker in self.brokers if broker.log.exists()]
        return "\n".join(parts)

    # What etcd holds

    def metadata_revision(self) -> int:
        """Return etcd's revision: every transaction that changes something adds one."""
        return int(self.etcd.members[0].post("maintenance/status")["header"]["revision"])

    def compact(self) -> None:
        self.etcd.leader().post("kv/compaction", {"revision": str(self.metadata_revision())})


@contextlib.asynccontextmanager
async def cluster_world(directory: Path, **options: Any) -> AsyncIterator[ClusterWorld]:
    """Yield a running cluster; it is gone afterwards."""
    world = ClusterWorld(directory, **options)
    try:
        await world.start()
        yield world
    finally:
        await world.close()


@contextlib.contextmanager
def blocking_world(directory: Path, **options: Any) -> Iterator[ClusterWorld]:
    """Yield a running cluster whose proxies run in a thread, for tests that block their own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    world = ClusterWorld(directory, **options)
    try:
        asyncio.run_coroutine_threadsafe(world.start(), loop).result()
        yield world
    finally:
        asyncio.run_coroutine_threadsafe(world.close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def missing_faketime() -> str:
    """Return what to install for clocks that are wrong; empty if nothing is missing."""
    return "" if _faketime() else "libfaketime is not installed: apt install libfaketime"


def _faketime() -> str:
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    return str(found[0]) if found else ""


def wrong_clock(error: str) -> dict[str, str]:
    """Return the environment of a process all of whose clocks are wrong: "+600s" is ahead, "+0 x1.1" 10 % fast."""
    return {"LD_PRELOAD": _faketime(), "FAKETIME": error}


async def eventually(holds: Callable[[], Any], what: str, seconds: float = PATIENCE_S) -> None:
    """Wait until `holds`, a coroutine function, returns true; Danube's errors count as not yet."""
    deadline = time.monotonic() + seconds
    last: BaseException | None = None
    while time.monotonic() < deadline:
        try:
            if await holds():
                return
        except DanubeError as error:
            last = error
        await asyncio.sleep(0.1)  # nothing tells us; we ask again
    raise AssertionError(f"{what}: not within {seconds} s; the last answer was {last!r}")


def danube(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command line until it ends."""
    return subprocess.run(
        [sys.executable, "-m", "pydanube.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={**os.environ, "NO_COLOR": "1", **environment},
        check=False,
    )


def danube_json(*arguments: str) -> Any:
    done = danube(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


async def readable(client: pydanube.Client, topic: str) -> bool:
    """Return whether all partitions of a topic are served."""
    await client.topic_statistics(topic)
    return True
