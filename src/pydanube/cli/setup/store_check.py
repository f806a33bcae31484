"""The object store checks of `danube doctor`: reachable, correct, and fast enough.

They put one small object and one of a few megabytes under `danube-doctor/`, and delete them again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Iterator, Mapping
from typing import Final, TypeVar

from pydanube.cli.output import size
from pydanube.cli.setup.checks import Finding
from pydanube.model.errors import AlreadyExists, DanubeError, NotFound
from pydanube.runtime.objects import ObjectStore, open_store
from pydanube.runtime.randomness import identity

CHECK: Final = "object store"
PREFIX: Final = "danube-doctor/"
PROBE_BYTES: Final = 4 * 1024 * 1024
STEP_SECONDS: Final = 20.0
SLOW_BYTES_PER_S: Final = 5 * 1024 * 1024
SLOW_FIRST_S: Final = 1.0

T = TypeVar("T")


class _Wrong(Exception):
    """The store does not do what the broker needs."""


def findings(url: str, options: Mapping[str, str]) -> Iterator[Finding]:
    yield from asyncio.run(_findings(url, options))


async def _findings(url: str, options: Mapping[str, str]) -> list[Finding]:
    try:
        async with asyncio.timeout(STEP_SECONDS):
            store = await open_store(url, options)
    except (DanubeError, TimeoutError) as error:
        return [Finding(CHECK, "fail", _explain(error), "check storage.url and storage.options")]
    async with store:
        return await check_store(store)


async def check_store(store: ObjectStore) -> list[Finding]:
    """Check whether the store works correctly, and how fast it is."""
    try:
        return [await _check_operations(store), await _check_speed(store)]
    except (DanubeError, TimeoutError) as error:
        remedy = "check the address, the credentials and that the bucket or directory exists"
        return [Finding(CHECK, "fail", f"{store.url}: {_explain(error).removeprefix(f'{store.url}: ')}", remedy)]
    except _Wrong as error:
        remedy = "the broker needs create-only puts and reads that see what was put: use another store"
        return [Finding(CHECK, "fail", f"{store.url}: {error}", remedy)]


async def _within(work: Awaitable[T]) -> T:
    async with asyncio.timeout(STEP_SECONDS):
        return await work


async def _check_operations(store: ObjectStore) -> Finding:
    """Check create-only puts, range reads, listing and deletion, which the broker needs."""
    key = f"{PREFIX}{identity()}"
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
            return Finding(CHECK, "warn", f"{store.url}: works, in memory only", "history ends with the process")
        return Finding(CHECK, "ok", f"{store.url}: puts, create-only, ranges, listing and deleting work")
    raise _Wrong("what was deleted is still there")


async def _list_keys(store: ObjectStore) -> list[str]:
    return [info.key async for info in store.list(PREFIX)]


async def _check_speed(store: ObjectStore) -> Finding:
    key, content = f"{PREFIX}{identity()}", bytes(PROBE_BYTES)
    try:
        put_s = await _timed(store.put(key, content, create=True))
        get_s = await _timed(store.get(key))
        first_s = await _timed(store.get(key, 0, 1024))
    finally:
        await _within(store.delete([key]))
    up, down = PROBE_BYTES / put_s, PROBE_BYTES / get_s
    detail = f"{size(up)}/s up, {size(down)}/s down, {first_s * 1000:.1f} ms for a small read"
    if min(up, down) < SLOW_BYTES_PER_S or first_s > SLOW_FIRST_S:
        remedy = "the log grows while uploads cannot keep up, and old messages are slow to read: use a nearer store"
        return Finding("store speed", "warn", detail, remedy)
    return Finding("store speed", "ok", detail)


async def _timed(work: Awaitable[object]) -> float:
    begin = time.perf_counter()
    await _within(work)
    return max(1e-6, time.perf_counter() - begin)


def _explain(error: BaseException) -> str:
    return error.message if isinstance(error, DanubeError) else f"no answer within {STEP_SECONDS:g} s"
