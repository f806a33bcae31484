"""`danube serve`: the readiness line, the signals, and settings that are wrong."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path

import pytest

from pydanube import connect, connect_blocking

pytestmark = pytest.mark.process
PORTS = ("--port=0", "--grpc-port=0", "--admin-port=0", "--http-port=0")


def test_the_readiness_line_names_all_doors_and_is_all_of_stdout(serve, tmp_path: Path):
    running = serve(tmp_path / "data")
    door = r"127\.0\.0\.1"
    line = rf"danube ready native={door}:[1-9]\d* grpc={door}:[1-9]\d* admin={door}:[1-9]\d* http={door}:[1-9]\d*\n"
    assert re.fullmatch(line, running.ready_line)
    assert running.end() == 0
    assert running.process.stdout.read() == ""


def test_a_signal_ends_it_in_order_and_the_directory_opens_again(serve, tmp_path: Path):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        assert serve(tmp_path / "data").end(number) == 0


def test_the_end_of_a_terminal_ends_it_in_order_although_it_is_told_twice(serve, tmp_path: Path):
    running = serve(tmp_path / "data")
    running.process.send_signal(signal.SIGHUP)
    assert running.end(signal.SIGHUP) == 0
    assert "broker.stopped" in running.logs.read_text()


def test_a_broker_that_was_started_to_ignore_sighup_runs_on(serve, tmp_path: Path):
    former = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does; the broker inherits it
    try:
        running = serve(tmp_path / "data")
    finally:
        signal.signal(signal.SIGHUP, former)
    running.process.send_signal(signal.SIGHUP)
    with socket.create_connection(("127.0.0.1", int(running.url.rpartition(":")[2])), timeout=60):
        assert running.process.poll() is None
    assert running.end() == 0


def test_listening_beyond_this_machine_without_authentication_is_warned_of(serve, tmp_path: Path):
    running = serve(tmp_path / "data", "--host", "0.0.0.0")
    running.end()
    assert "warning" in running.logs.read_text()
    quiet = serve(tmp_path / "other")
    quiet.end()
    assert "warning" not in quiet.logs.read_text()


SMALL_BUFFER = """
from pydanube.cli import main
from pydanube.runtime.background_file import BackgroundFile

BackgroundFile.__init__.__kwdefaults__["waiting_bytes_max"] = 20_000
main()
"""
"""`danube`, with a buffer for logs that is soon full."""


class LogPipe:
    """A pipe for the logs of a broker, which is full of what another process wrote."""

    def __init__(self) -> None:
        self._reading, self.writing = os.pipe()
        self.filled = fcntl.fcntl(self.writing, fcntl.F_GETPIPE_SZ)
        assert os.write(self.writing, bytes(self.filled)) == self.filled

    def lines(self) -> Iterator[str]:
        """Read what the broker logs, until it ends."""
        os.close(self.writing)
        with os.fdopen(self._reading, "rb") as pipe:
            assert pipe.read(self.filled) == bytes(self.filled)
            for line in pipe:
                yield line.decode()


@pytest.fixture
def start_unread() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start brokers whose logs nobody reads; none outlives the test."""
    started: list[subprocess.Popen[str]] = []

    def start(
        tmp_path: Path, stderr: int, stdout: int = subprocess.PIPE, program: tuple[str, str] = ("-m", "pydanube.cli")
    ) -> subprocess.Popen[str]:
        command = [sys.executable, *program, "serve", "--data-dir", str(tmp_path / "data"), *PORTS]
        started.append(subprocess.Popen(command, stdout=stdout, stderr=stderr, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait(timeout=120)


def url_of(process: subprocess.Popen[str]) -> str:
    assert select.select([process.stdout], [], [], 60)[0], "the broker does not start"
    return "danube://" + re.search(r"native=(\S+)", process.stdout.readline())[1]


def test_a_broker_whose_logs_nobody_reads_works_and_ends(start_unread, tmp_path: Path):
    logs = LogPipe()
    process = start_unread(tmp_path, logs.writing)
    with connect_blocking(url_of(process)) as client, client.producer("/default/orders") as producer:
        assert producer.send(b"x").offset == 0
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=120) == 0


async def test_lines_that_did_not_fit_are_counted_once_the_logs_are_read_again(start_unread, tmp_path: Path):
    logs = LogPipe()
    process = start_unread(tmp_path, logs.writing, program=("-c", SMALL_BUFFER))
    changes = 200
    async with connect(url_of(process)) as client:
        await client.create_topic("/default/orders")
        await asyncio.gather(*(client.set_policies("/default/orders", retention_bytes=1 << 40) for _ in range(changes)))
        lines = logs.lines()
        logged = await asyncio.to_thread(lambda: list(takewhile(lambda line: "log.lines_lost" not in line, lines)))
        await client.delete_topic("/default/orders")
    assert "broker.started" in "".join(logged)
    process.send_signal(signal.SIGTERM)
    rest = "".join(lines)
    assert "topic.deleted" in rest and "broker.stopped" in rest and "log.lines_lost" not in rest
    kept = sum("policies.changed" in line for line in logged)
    assert 0 < kept < changes
    assert process.wait(timeout=120) == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_a_readiness_line_that_cannot_be_written_is_logged(start_unread, tmp_path: Path):
    with Path("/dev/full").open("w") as full:
        process = start_unread(tmp_path, subprocess.PIPE, full.fileno())
    told = next(line for line in process.stderr if "stdout." in line)
    assert "no space left on device" in told
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=120) == 0


def refused(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pydanube.cli", "serve", *arguments], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1, done
    assert done.stdout == ""
    return done.stderr.splitlines()[-1]


def test_one_broker_per_directory(serve, tmp_path: Path):
    serve(tmp_path / "data")
    assert str(tmp_path / "data") in refused("--data-dir", str(tmp_path / "data"), *PORTS)


def test_a_port_in_use_is_one_clear_line(serve, tmp_path: Path):
    running = serve(tmp_path / "data")
    port = running.url.rpartition(":")[2]
    assert port in refused("--data-dir", str(tmp_path / "other"), *PORTS, "--port", port)
    assert not (tmp_path / "other").exists()


def test_a_port_in_use_leaves_an_existing_directory_alone(serve, tmp_path: Path):
    running = serve(tmp_path / "data")
    serve(tmp_path / "other").end()
    before = {path: path.stat() for path in (tmp_path / "other").rglob("*")}
    told = refused("--data-dir", str(tmp_path / "other"), *PORTS, "--port", running.url.rpartition(":")[2])
    assert "server.port (command line)" in told
    after = {path: path.stat() for path in (tmp_path / "other").rglob("*")}
    assert {path: (one.st_mtime_ns, one.st_size) for path, one in after.items()} == {
        path: (one.st_mtime_ns, one.st_size) for path, one in before.items()
    }


def test_a_port_in_use_names_where_it_was_set(serve, tmp_path: Path):
    port = serve(tmp_path / "data").url.rpartition(":")[2]
    (tmp_path / "danube.toml").write_text(f"[server]\nport = {port}\n")
    told = refused("--data-dir", str(tmp_path / "other"), *PORTS[1:], "--config", str(tmp_path / "danube.toml"))
    assert f"server.port (file {tmp_path / 'danube.toml'})" in told


def test_a_wrong_setting_is_named(tmp_path: Path):
    (tmp_path / "danube.toml").write_text("[server]\nprot = 1\n")
    assert "prot" in refused("--config", str(tmp_path / "danube.toml"), "--data-dir", str(tmp_path / "data"))


def test_a_port_that_is_none_is_wrong_usage():
    done = subprocess.run(
        [sys.executable, "-m", "pydanube.cli", "serve", "--port", "70000"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--host", "nohost.invalid"], "host 'nohost.invalid' is unknown here"),
        (["--host", "192.0.2.1"], "192.0.2.1 is no address of this machine"),
    ],
)
def test_a_door_that_cannot_be_opened_is_one_line_with_the_remedy(tmp_path, arguments, message):
    ended = subprocess.run(
        [sys.executable, "-m", "pydanube.cli", "serve", "--data-dir", str(tmp_path / "d"), *PORTS, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 1
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("option", "listener"),
    [
        ("--port", "native"),
        ("--grpc-port", "gRPC"),
        ("--admin-port", "gRPC admin"),
        ("--http-port", "HTTP"),
    ],
)
def test_a_port_that_is_taken_says_whose_it_is_and_how_to_choose_another(tmp_path, option, listener):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        ended = subprocess.run(
            [sys.executable, "-m", "pydanube.cli", "serve", "--data-dir", str(tmp_path / "d"), *PORTS, option, port],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert ended.returncode == 1
    assert f"127.0.0.1:{port} is taken" in ended.stderr
    assert f"for the {listener} listener; choose another with {option} (0 takes a free one)" in ended.stderr
    assert not (tmp_path / "d").exists()
    assert "Traceback" not in ended.stderr


def test_a_taken_grpc_port_that_nobody_asked_for_leaves_a_broker_without_grpc(tmp_path):
    with socket.socket() as data, socket.socket() as admin:
        for taken, port in ((data, 6650), (admin, 50051)):
            with contextlib.suppress(OSError):  # somebody else has it, which is as good
                taken.bind(("127.0.0.1", port))
                taken.listen()
        command = [sys.executable, "-m", "pydanube.cli", "serve", "--data-dir", str(tmp_path / "d")]
        with (tmp_path / "log").open("w") as log:
            broker = subprocess.Popen(
                [*command, "--port=0", "--http-port=0"], stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert broker.stdout is not None
        with broker:
            ready = broker.stdout.readline()
            broker.terminate()
        refused = [*command, "--port=0", "--http-port=0", "--grpc-port=6650"]
        asked = subprocess.run(refused, capture_output=True, text=True, timeout=120, check=False)
    assert "grpc=127.0.0.1:0 admin=127.0.0.1:0 " in ready
    logged = (tmp_path / "log").read_text()
    assert logged.count("grpc.port_taken") == 2
    assert "choose another with --grpc-port" in logged
    assert (asked.returncode, "127.0.0.1:6650 is taken" in asked.stderr) == (1, True)


def test_without_http_there_is_no_such_listener(serve, tmp_path: Path):
    running = serve(tmp_path / "data", "--no-http")
    assert "http=127.0.0.1:0\n" in running.ready_line
    assert running.end() == 0


def test_without_grpc_there_are_no_such_listeners(serve, tmp_path: Path):
    running = serve(tmp_path / "data", "--no-grpc", "--no-admin")
    assert "grpc=127.0.0.1:0 admin=127.0.0.1:0 " in running.ready_line
    assert running.end() == 0


def test_health_is_answered_on_the_http_port_of_the_readiness_line(serve, tmp_path: Path):
    running = serve(tmp_path / "data")
    address = running.ready_line.split("http=")[1].strip()
    for path, status in (("healthz", "ok"), ("readyz", "ready")):
        with urllib.request.urlopen(f"http://{address}/{path}", timeout=60) as answer:
            assert json.load(answer) == {"status": status}
    assert running.end() == 0
    assert "warning" not in running.logs.read_text()
