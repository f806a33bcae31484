"""The checks of `danube doctor`: each returns ok, warn or fail, and warn and fail say what to do.

Checks change nothing, with three exceptions: the sync speed check writes a small file to the data directory and removes
it, the Java check may leave a start script in the user's cache directory, and the check of the object store puts one
small object and one of a few megabytes under `danube-doctor/`, and deletes them again.
"""

from __future__ import annotations

import asyncio
import errno
import os
import platform
import re
import shutil
import socket
import tempfile
import time
from collections.abc import Awaitable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeVar

from pydanube.cli.output import size
from pydanube.model.errors import AlreadyExists, DanubeError, NotFound, Refused
from pydanube.runtime.objects import ObjectStore, open_store
from pydanube.runtime.randomness import identity

T = TypeVar("T")

PURPOSES: Final = {
    "arrow": "topics and batches as Arrow tables",
    "auth": "tokens (JWT) and `danube certs`",
    "cloud": "object stores s3://, gs:// and az://",
    "console": "`danube console`, the broker in a browser",
    "etcd": "metadata of a cluster on etcd",
    "grpc": "the Danube gRPC API and storage plug-ins",
    "lakehouse": "Delta and Iceberg tables",
    "opendal": "object stores of opendal",
    "otel": "export of traces",
    "redis": "the object store redis://",
    "schemas": "schemas in Avro, JSON Schema and Protobuf",
    "sql": "`danube sql` without Spark",
    "spark": "the Spark data source and pipelines, with a Java runtime",
}
"""What each extra is for. Which extras there are, and what they need, is in the metadata of the package."""
_FOR_DEVELOPMENT: Final = {"demo", "dev", "test"}
DISK_FREE_FAIL: Final = 256 << 20
DISK_FREE_WARN: Final = 5 << 30
SYNC_WARN_MS: Final = 10.0
SYNC_TOO_FAST_MS: Final = 0.02
"""No disk completes a sync in less than this: the data went to memory, or the disk ignores syncs."""
_MEMORY_FILE_SYSTEMS: Final = {"tmpfs", "ramfs"}
_REMOTE_FILE_SYSTEMS: Final = {"nfs", "nfs4", "cifs", "smbfs", "fuse.sshfs", "9p"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    check: str
    status: Literal["ok", "warn", "fail"]
    detail: str
    remedy: str = ""


def python_version() -> Finding:
    """Report the Python version. Versions before 3.11 cannot import this module."""
    return Finding("python", "ok", f"{platform.python_version()} ({platform.python_implementation()})")


def system() -> Finding:
    detail = f"{platform.system()} {platform.release()} {platform.machine()}, {os.cpu_count() or 1} cores"
    if platform.system() == "Windows":
        return Finding("platform", "fail", detail, "run the broker on Linux or macOS; the client works here")
    return Finding("platform", "ok", detail)


def disk(directory: Path) -> Iterator[Finding]:
    """Check the free space and the type of the file system that will hold the log."""
    existing = nearest_existing(directory)
    free = shutil.disk_usage(existing).free
    kind = file_system(existing)
    where = f"{size(free)} free at {existing} ({kind or 'unknown file system'})"
    if free < DISK_FREE_FAIL:
        yield Finding("disk space", "fail", where, "free some space or choose another disk with --data-dir")
    elif free < DISK_FREE_WARN:
        yield Finding(
            "disk space", "warn", where, "publishes are refused when the disk is full; give the log more room"
        )
    else:
        yield Finding("disk space", "ok", where)
    if kind in _MEMORY_FILE_SYSTEMS:
        yield Finding("file system", "warn", f"{kind} lives in memory", "use a disk if data must survive the machine")
    elif kind in _REMOTE_FILE_SYSTEMS:
        yield Finding(
            "file system", "warn", f"{kind} is remote", "put the log on a local disk; syncs over a network are slow"
        )


def sync_speed(directory: Path, *, rounds: int = 100, write_bytes: int = 4096) -> Finding:
    """Measure how long one durable ack waits for the disk."""
    existing = nearest_existing(directory)
    if not os.access(existing, os.W_OK):
        return Finding("sync speed", "fail", f"{existing} is not writable", "give the broker's user the directory")
    taken = sorted(sync_times(existing, rounds=rounds, write_bytes=write_bytes))
    p50, p99 = taken[rounds // 2] / 1e6, taken[rounds * 99 // 100] / 1e6
    detail = f"p50 {p50:.2f} ms, p99 {p99:.2f} ms for {size(write_bytes)} ({rounds} syncs)"
    if p50 > SYNC_WARN_MS:
        return Finding("sync speed", "warn", detail, "durable acks wait for this disk; an SSD answers in under 1 ms")
    if p50 < SYNC_TOO_FAST_MS:
        return Finding("sync speed", "warn", detail, "too fast for a disk: syncs may not reach stable storage here")
    return Finding("sync speed", "ok", detail)


def sync_times(directory: Path, *, rounds: int, write_bytes: int) -> list[int]:
    """Return the nanoseconds of each write and fdatasync at the end of a file in `directory`."""
    sync = getattr(os, "fdatasync", os.fsync)
    block = bytes(write_bytes)
    taken: list[int] = []
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        for _ in range(rounds):
            begin = time.perf_counter_ns()
            file.write(block)
            sync(file.fileno())
            taken.append(time.perf_counter_ns() - begin)
    return taken


def port(listener: str, number: int, host: str = "127.0.0.1") -> Finding:
    """Check whether a listener can use its port. An address that is not of this machine fails; a port in use warns."""
    import asyncio

    from pydanube.runtime.network import check_free

    flag = "--port" if listener == "native" else f"--{listener}-port"
    try:
        asyncio.run(check_free(host, number))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            return Finding(
                f"port {number}", "fail", f"{listener}: {host}: {reason}", "set server.host to an address here"
            )
        return Finding(
            f"port {number}",
            "warn",
            f"{listener}: {host}:{number}: {reason}",
            f"a broker may be running already; otherwise free it or serve with {flag} 0",
        )
    return Finding(
        f"port {number}", "ok", f"{listener}: {'any free one' if number == 0 else f'{host}:{number} is free'}"
    )


def extras() -> dict[str, list[str]]:
    """Return the extras that users install, each with the packages it needs, as the metadata of this package has them.
    Empty if it runs from a directory and is not installed."""
    from importlib.metadata import PackageNotFoundError, metadata, requires

    try:
        names = metadata("pydanube").get_all("Provides-Extra", [])
        lines = requires("pydanube") or []
    except PackageNotFoundError:
        return {}
    found: dict[str, list[str]] = {name: [] for name in sorted(names) if name not in _FOR_DEVELOPMENT}
    for line in lines:
        needed = re.match(r"([\w.-]+).*;.*extra == ['\"]([\w-]+)['\"]", line)
        if needed and needed[2] in found:
            found[needed[2]].append(needed[1])
    return found


def check_extra(name: str, packages: list[str]) -> Finding:
    from importlib.metadata import PackageNotFoundError, version

    installed, missing = [], []
    for package in packages:
        try:
            installed.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            missing.append(package)
    if not missing:
        return Finding(f"extra {name}", "ok", ", ".join(installed))
    purpose = f"{PURPOSES[name]}: " if name in PURPOSES else ""
    return Finding(
        f"extra {name}",
        "warn",
        f"not installed (optional): {', '.join(missing)}",
        f"{purpose}pip install 'pydanube[{name}]'",
    )


def java() -> Finding:
    """Check for a Java runtime, which only Spark needs."""
    from pydanube.spark import java as spark_java

    try:
        found = spark_java.find()
    except Refused as refused:
        tried = refused.message.partition("(")[2].rpartition(").")[0]
        return Finding("java", "warn", f"none for Spark (optional): {tried}", spark_java.REMEDY)
    passed_over = f"; passed over {'; '.join(found.passed_over)}" if found.passed_over else ""
    return Finding("java", "ok", f"{found.version} from {found.origin}: {found.command}{passed_over}")


def nearest_existing(directory: Path) -> Path:
    """Return the directory, or its closest existing ancestor."""
    directory = directory.absolute()
    return next(path for path in (directory, *directory.parents) if path.is_dir())


def file_system(directory: Path) -> str:
    """Return the file system type from the kernel's mount table; empty if there is no such table."""
    try:
        mounts = Path("/proc/mounts").read_text(encoding="utf-8")
    except OSError:
        return ""
    real = str(directory.resolve())
    best, kind = "", ""
    for line in mounts.splitlines():
        _, mounted_at, found, *_ = line.split()
        inside = real == mounted_at or real.startswith(mounted_at.rstrip("/") + "/")
        if inside and len(mounted_at) >= len(best):
            best, kind = mounted_at, found
    return kind


# -- the object store --------------------------------------------------------------------------------------------------

STORE: Final = "object store"
STORE_PREFIX: Final = "danube-doctor/"
STORE_PROBE_BYTES: Final = 4 * 1024 * 1024
STORE_STEP_SECONDS: Final = 20.0
STORE_SLOW_BYTES_PER_S: Final = 5 * 1024 * 1024
STORE_SLOW_FIRST_S: Final = 1.0


class _Wrong(Exception):
    """The store does not do what the broker needs."""


def object_store(url: str, options: Mapping[str, str]) -> Iterator[Finding]:
    yield from asyncio.run(_store_findings(url, options))


async def _store_findings(url: str, options: Mapping[str, str]) -> list[Finding]:
    try:
        async with asyncio.timeout(STORE_STEP_SECONDS):
            store = await open_store(url, options)
    except (DanubeError, TimeoutError) as error:
        return [Finding(STORE, "fail", _explain(error), "check storage.url and storage.options")]
    async with store:
        return await check_store(store)


async def check_store(store: ObjectStore) -> list[Finding]:
    """Check whether the store works correctly, and how fast it is."""
    try:
        return [await _check_operations(store), await _check_speed(store)]
    except (DanubeError, TimeoutError) as error:
        remedy = "check the address, the credentials and that the bucket or directory exists"
        return [Finding(STORE, "fail", f"{store.url}: {_explain(error).removeprefix(f'{store.url}: ')}", remedy)]
    except _Wrong as error:
        remedy = "the broker needs create-only puts and reads that see what was put: use another store"
        return [Finding(STORE, "fail", f"{store.url}: {error}", remedy)]


async def _within(work: Awaitable[T]) -> T:
    async with asyncio.timeout(STORE_STEP_SECONDS):
        return await work


async def _check_operations(store: ObjectStore) -> Finding:
    """Check create-only puts, range reads, listing and deletion, which the broker needs."""
    key = f"{STORE_PREFIX}{identity()}"
    await _within(store.put(key, b"danube", create=True))
    try:
        try:
            await _within(store.put(key, b"again", create=True))
        except AlreadyExists:
            pass
        else:
            raise _Wrong("it lets a create-only put replace an object")
        if bytes(memoryview(await _within(store.get(key, 1, 4)))) != b"anu":
            raise _Wrong("a range read gives other bytes")
        if key not in await _within(_list_keys(store)):
            raise _Wrong("what was put is not in the listing")
    finally:
        await _within(store.delete([key]))
    try:
        await _within(store.head(key))
    except NotFound:
        if not store.capabilities.durable:
            return Finding(STORE, "warn", f"{store.url}: works, in memory only", "history ends with the process")
        return Finding(STORE, "ok", f"{store.url}: puts, create-only, ranges, listing and deleting work")
    raise _Wrong("what was deleted is still there")


async def _list_keys(store: ObjectStore) -> list[str]:
    return [info.key async for info in store.list(STORE_PREFIX)]


async def _check_speed(store: ObjectStore) -> Finding:
    key, content = f"{STORE_PREFIX}{identity()}", bytes(STORE_PROBE_BYTES)
    try:
        put_s = await _timed(store.put(key, content, create=True))
        get_s = await _timed(store.get(key))
        first_s = await _timed(store.get(key, 0, 1024))
    finally:
        await _within(store.delete([key]))
    up, down = STORE_PROBE_BYTES / put_s, STORE_PROBE_BYTES / get_s
    detail = f"{size(up)}/s up, {size(down)}/s down, {first_s * 1000:.1f} ms for a small read"
    if min(up, down) < STORE_SLOW_BYTES_PER_S or first_s > STORE_SLOW_FIRST_S:
        remedy = "the log grows while uploads cannot keep up, and old messages are slow to read: use a nearer store"
        return Finding("store speed", "warn", detail, remedy)
    return Finding("store speed", "ok", detail)


async def _timed(work: Awaitable[object]) -> float:
    begin = time.perf_counter()
    await _within(work)
    return max(1e-6, time.perf_counter() - begin)


def _explain(error: BaseException) -> str:
    return error.message if isinstance(error, DanubeError) else f"no answer within {STORE_STEP_SECONDS:g} s"
