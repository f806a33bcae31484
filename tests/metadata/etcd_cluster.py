"""Real etcd members for tests, as processes on loopback, and proxies between them and before them.

The programs come from the variable DANUBE_ETCD (several are separated by ':'), or the `etcd` of the PATH.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from faulty_proxy import FaultyProxy
from ports import free_ports, is_free

READY_SECONDS = 60
"""How long etcd may take to be ready; a busy machine is slow."""

INSTALL = "etcd is not installed: apt install etcd-server, or set DANUBE_ETCD to the path of an etcd program"
FIRST_PORTS = (6650, 8650, 23790, 50051)
"""Of the brokers and of etcd in a cluster of `make cluster`, each with the nine after it."""


def programs() -> list[str]:
    """Return the etcd programs to test with."""
    named = [path for path in os.environ.get("DANUBE_ETCD", "").split(":") if path]
    found = shutil.which("etcd") or shutil.which("etcd", path="/usr/local/bin:/usr/bin:/usr/sbin")
    return named or ([found] if found else [])


def missing_etcd() -> str:
    """Return what to install; empty if nothing is missing."""
    return "" if programs() else INSTALL


def free_shift() -> int:
    """Return how far `deploy/cluster/run.py` has to move all ports, so that each is free.

    Some of them are among those that the system gives to connections.
    """
    start = os.getpid() % 1_000
    return next(
        shift
        for shift in range(2_000 + 10 * start, 14_000, 10)
        if all(is_free(first + shift + number) for first in FIRST_PORTS for number in range(10))
    )


class EtcdMember:
    """One member: a process that can be killed, frozen and started again."""

    def __init__(self, program: str, name: str, directory: Path, client_port: int, peer_port: int) -> None:
        self.program = program
        self.name = name
        self.directory = directory
        self.client_port = client_port
        self.peer_port = peer_port
        self.peer_address = f"127.0.0.1:{peer_port}"
        """Where the other members reach this one; a proxy may stand in between."""
        self.scheme = "http"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.client_port}"

    def start(self, cluster: str, flags: Sequence[str]) -> None:
        output = (self.directory.parent / f"{self.name}.log").open("ab")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}
        self.process = subprocess.Popen(
            [
                *(self.program, "--name", self.name, "--data-dir", str(self.directory)),
                *("--listen-client-urls", f"{self.scheme}://{self.address}"),
                *("--advertise-client-urls", f"{self.scheme}://{self.address}"),
                *("--listen-peer-urls", f"http://127.0.0.1:{self.peer_port}"),
                *("--initial-advertise-peer-urls", f"http://{self.peer_address}"),
                *("--initial-cluster", cluster, "--initial-cluster-state", "new", "--log-level", "warn"),
                *flags,
            ],
            stdout=output,
            stderr=output,
            env=environment,
        )
        output.close()

    def kill(self) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()
            self.process = None

    def freeze(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def post(self, path: str, body: dict[str, Any] | None = None, token: str = "") -> dict[str, Any]:
        """Call etcd's JSON gateway."""
        headers = {"Content-Type": "application/json"} | ({"Authorization": token} if token else {})
        request = urllib.request.Request(f"http://{self.address}/v3/{path}", json.dumps(body or {}).encode(), headers)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=10) as reply:
            answer: dict[str, Any] = json.loads(reply.read())
        return answer

    def is_ready(self) -> bool:
        try:
            self.post("kv/range", {"key": encoded(b"/")})
        except (OSError, ValueError):
            return False
        return True


def encoded(value: bytes) -> str:
    return base64.b64encode(value).decode()


class EtcdCluster:
    """Members of one etcd. Another client writes to it all the time, so that revisions are not dense."""

    def __init__(self, directory: Path, size: int, program: str, flags: Sequence[str] = ()) -> None:
        help_text = subprocess.run([program, "--help"], capture_output=True, check=False)
        fast = ["--unsafe-no-fsync"] if b"unsafe-no-fsync" in help_text.stdout + help_text.stderr else []
        self._flags = [*fast, *flags]
        ports = free_ports(2 * size)
        self.members = [
            EtcdMember(program, f"m{number}", directory / f"m{number}", ports[2 * number], ports[2 * number + 1])
            for number in range(size)
        ]
        directory.mkdir(parents=True, exist_ok=True)
        self._stop_noise = threading.Event()
        self._noise: threading.Thread | None = None

    def start(self, *, noise: bool = False) -> None:
        for member in self.members:
            self.start_member(member)
        self.wait_ready()
        if noise:
            self._noise = threading.Thread(target=self._write_noise, daemon=True)
            self._noise.start()

    def start_member(self, member: EtcdMember) -> None:
        cluster = ",".join(f"{one.name}=http://{one.peer_address}" for one in self.members)
        member.start(cluster, self._flags)

    def wait_ready(self, members: Sequence[EtcdMember] | None = None) -> None:
        deadline = time.monotonic() + READY_SECONDS
        for member in members or self.members:
            while not member.is_ready():
                assert member.process is not None and member.process.poll() is None, f"{member.name} ended: see its log"
                assert time.monotonic() < deadline, f"{member.name} was not ready in {READY_SECONDS} s"
                threading.Event().wait(0.1)

    def close(self) -> None:
        self._stop_noise.set()
        if self._noise is not None:
            self._noise.join()
        for member in self.members:
            member.kill()

    def url(self, prefix: str = "test", members: Sequence[EtcdMember] | None = None) -> str:
        return f"etcd://{','.join(one.address for one in members or self.members)}/{prefix}"

    def leader(self) -> EtcdMember:
        """Return the member that leads now; waits for one."""
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            for member in self.members:
                with contextlib.suppress(OSError, ValueError):
                    if member.process is not None:
                        status = member.post("maintenance/status")
                        if status.get("leader", "0") == status["header"]["member_id"]:
                            return member
            threading.Event().wait(0.1)
        raise AssertionError("no member became leader")

    def _write_noise(self) -> None:
        while not self._stop_noise.wait(0.005):
            with contextlib.suppress(OSError, ValueError):
                self.members[0].post("kv/put", {"key": encoded(b"/somebody/else"), "value": ""})


@contextlib.contextmanager
def etcd_cluster(
    directory: Path, size: int, *, program: str = "", flags: Sequence[str] = (), noise: bool = False
) -> Iterator[EtcdCluster]:
    cluster = EtcdCluster(directory, size, program or programs()[0], flags)
    try:
        cluster.start(noise=noise)
        yield cluster
    finally:
        cluster.close()


@contextlib.asynccontextmanager
async def faulty_proxies(cluster: EtcdCluster) -> AsyncIterator[list[FaultyProxy]]:
    """Yield a proxy before the client port of each member."""
    proxies = [FaultyProxy(member.address) for member in cluster.members]
    try:
        for proxy in proxies:
            await proxy.start()
        yield proxies
    finally:
        for proxy in proxies:
            await proxy.close()


class PeerNetwork:
    """Proxies between the members of a cluster, which can cut one member off from the others.

    A member names itself in the header X-Server-From of the requests that it sends to others.
    """

    def __init__(self, cluster: EtcdCluster) -> None:
        self._cluster = cluster
        self._ids: dict[str, str] = {}
        """The id of each member, in hexadecimal, by its name."""
        self.away = ""
        """The name of the member that is cut off; empty: none."""
        self._proxies = {
            member.name: FaultyProxy(f"127.0.0.1:{member.peer_port}", may_pass=partial(self._may_pass, member.name))
            for member in cluster.members
        }

    async def start(self) -> None:
        """Start the proxies, then the members."""
        for member in self._cluster.members:
            proxy = self._proxies[member.name]
            await proxy.start()
            member.peer_address = proxy.address
        await asyncio.to_thread(self._cluster.start)
        for member in self._cluster.members:
            status = await asyncio.to_thread(member.post, "maintenance/status")
            self._ids[member.name] = f"{int(status['header']['member_id']):x}"

    def isolate(self, member: EtcdMember) -> None:
        self.away = member.name

    def heal(self) -> None:
        self.away = ""
        for proxy in self._proxies.values():
            proxy.thaw()

    async def close(self) -> None:
        self.heal()
        for proxy in self._proxies.values():
            await proxy.close()

    def _may_pass(self, target: str, first: str) -> bool:
        if not self.away:
            return True
        return self.away != target and f"x-server-from: {self._ids[self.away]}" not in first.lower()
