"""Services that only `opendal` supports: `opendal+SCHEME://BUCKET/ROOT`, with the settings of opendal's service.

opendal reports what a service can do. A service without create-only puts, or without anything else the broker needs,
is refused when it is opened. So are two services that report too much: `fs` writes in place, and `memory` has no etags.

opendal returns less than the other stores: the result of a put needs a second request, and lists are unordered, so they
are sorted in memory. Nothing is retried here; callers retry after Unavailable. `threads.py` says why blocking functions
are used.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final, TypeVar

import opendal.config
from opendal import Operator, exceptions
from opendal.layers import TimeoutLayer

from pydanube.model.errors import AlreadyExists, DanubeError, Denied, Invalid, NotFound, Refused, Unavailable
from pydanube.model.text import did_you_mean
from pydanube.runtime.closing import Closing

from .object_store import Buffer, Capabilities, ObjectInfo, check_key, check_range, joined
from .store_address import Secrets, StoreAddress
from .threads import Threads

T = TypeVar("T")

THREADS: Final = 16
REQUEST_SECONDS: Final = 60.0
IO_SECONDS: Final = 30.0

_MINIMUM: Final = {
    "write_with_if_not_exists": "create without replacing",
    "read": "read",
    "stat": "tell sizes",
    "list": "list",
    "list_with_recursive": "list below directories",
    "delete": "delete",
}
_REFUSED: Final = {
    "fs": "it writes in place, so a crash leaves half an object: use file:///DIRECTORY",
    "memory": "it tells no etags: use memory://",
}


class OpendalStore(Closing):
    """A service of opendal, or one root in it."""

    def __init__(self, url: str, operator: Operator, secrets: Secrets) -> None:
        self.url = url
        self._operator = operator
        self._secrets = secrets
        self._if_match = bool(operator.capability().write_with_if_match)
        self._threads = Threads(THREADS, url)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(if_match=self._if_match, durable=True, shared=True)

    async def put(
        self, key: str, data: Buffer | Sequence[Buffer], *, create: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        """See `ObjectStore.put`. The result describes the object as it is found after the put, which may be that of
        another put in between."""
        self._check(key)
        condition: dict[str, Any] = {"if_not_exists": True} if create else {}
        if if_match is not None:
            if not self._if_match:
                raise Refused(f"{self.url} cannot compare etags")
            condition["if_match"] = if_match
        try:
            await self._run(self._operator.write, key, bytes(joined(data)), **condition)
        except (exceptions.ConditionNotMatch, exceptions.AlreadyExists, exceptions.Conflict):
            if create:
                raise AlreadyExists(f"object {key} exists already in {self.url}") from None
            raise self._changed(key, if_match) from None
        except exceptions.NotFound:
            if if_match is not None:
                raise self._changed(key, if_match) from None
            raise Unavailable(f"{self.url} is not there") from None
        except OPENDAL_ERRORS as error:
            raise self._explained(error, key) from None
        return await self.head(key)

    async def get(self, key: str, start: int = 0, end: int | None = None) -> memoryview:
        self._check(key)
        check_range(start, end)
        failed: Exception | None = None
        try:
            if end is not None and start < end:
                return memoryview(await self._run(self._operator.read, key, offset=start, size=end - start))
        except (exceptions.RangeNotSatisfied, exceptions.Unexpected) as error:
            failed = error  # raised for a range that ends after the object, and for other errors
        except OPENDAL_ERRORS as error:
            raise self._explained(error, key) from None
        size = (await self.head(key)).size
        if failed is not None and end is not None and end <= size:
            raise self._explained(failed, key)
        end = size if end is None else min(end, size)
        if start >= end:
            return memoryview(b"")
        try:
            return memoryview(await self._run(self._operator.read, key, offset=start, size=end - start))
        except OPENDAL_ERRORS as error:
            raise self._explained(error, key) from None

    async def head(self, key: str) -> ObjectInfo:
        self._check(key)
        try:
            return _info(key, await self._run(self._operator.stat, key))
        except OPENDAL_ERRORS as error:
            raise self._explained(error, key) from None

    async def list(self, prefix: str = "", after: str = "") -> AsyncIterator[ObjectInfo]:
        directory = prefix[: prefix.rfind("/") + 1]
        try:
            entries = await self._run(lambda: list(self._operator.list(directory, recursive=True)))
        except exceptions.NotFound:
            return
        except OPENDAL_ERRORS as error:
            raise self._explained(error, prefix) from None
        wanted = {entry.path: entry for entry in entries if entry.path.startswith(prefix) and entry.path > after}
        for key in sorted(wanted):
            if key.endswith("/"):
                continue
            metadata = wanted[key].metadata
            if metadata.etag is None and metadata.last_modified is None:
                yield await self.head(key)
            else:
                yield _info(key, metadata)

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._check(key)
        for key in keys:
            try:
                await self._run(self._operator.delete, key)
            except exceptions.NotFound:
                continue
            except OPENDAL_ERRORS as error:
                raise self._explained(error, key) from None

    async def close(self) -> None:
        """Wait for running requests. opendal closes its connections when they are garbage-collected."""
        await self._threads.close()

    def _check(self, key: str) -> None:
        check_key(key)
        self._threads.check_open()

    async def _run(self, work: Callable[..., T], *arguments: Any, **options: Any) -> T:
        return await self._threads.run(partial(work, *arguments, **options))

    def _changed(self, key: str, etag: str | None) -> Refused:
        return Refused(f"object {key} in {self.url} is not the one with etag {etag}")

    def _explained(self, error: Exception, key: str) -> DanubeError:
        match error:
            case exceptions.NotFound() | exceptions.IsADirectory() | exceptions.NotADirectory():
                return NotFound(f"object {key} is not in {self.url}")
            case exceptions.PermissionDenied():
                return Denied(f"{self.url} does not allow it: {self._secrets.scrub(error)}")
            case exceptions.Unsupported() | exceptions.ConfigInvalid():
                return Refused(f"{self.url}: {self._secrets.scrub(error)}")
        return Unavailable(f"{self.url}: {self._secrets.scrub(error)}")


OPENDAL_ERRORS: Final = (
    exceptions.Error,
    exceptions.Unexpected,
    exceptions.Unsupported,
    exceptions.ConfigInvalid,
    exceptions.NotFound,
    exceptions.PermissionDenied,
    exceptions.IsADirectory,
    exceptions.NotADirectory,
    exceptions.AlreadyExists,
    exceptions.ConditionNotMatch,
    exceptions.RateLimited,
    exceptions.RangeNotSatisfied,
    exceptions.Conflict,
)
"""All exceptions of opendal; they have no common base class."""


def _info(key: str, metadata: Any) -> ObjectInfo:
    modified: datetime | None = metadata.last_modified
    modified_us = 0 if modified is None else round(modified.timestamp() * 1e6)
    etag = metadata.etag or metadata.version or f"{modified_us:x}-{metadata.content_length:x}"
    return ObjectInfo(key, metadata.content_length, etag, modified_us)


def _known_settings(service: str) -> set[str]:
    """Return the settings of a service, from opendal's type descriptions; empty if there is no such service."""
    for kind in vars(opendal.config).values():
        names = getattr(kind, "__annotations__", {})
        if f"Literal[{service!r}]" in str(names.get("scheme", "")).replace('"', "'"):
            return set(names) - {"scheme"}
    return set()


async def open_opendal(address: StoreAddress, settings: Mapping[str, str]) -> OpendalStore:
    address.expect()
    service = address.scheme.partition("+")[2]
    known = _known_settings(service)
    if not known:
        raise Invalid(f"opendal has no service {service[:40]!r}")
    if service in _REFUSED:
        raise Refused(f"opendal's {service} does not do what the broker needs: {_REFUSED[service]}")
    for name in sorted(settings):
        if name not in known:
            hint = did_you_mean(name, sorted(known), "it has:")
            raise Invalid(f"opendal's {service} has no setting {name!r}: {hint}")
    options = {**_from_address(address, service, known), **settings}
    secrets = Secrets(value for name, value in settings.items() if name not in ("region", "endpoint", "root"))
    try:
        operator = Operator(service, **options).layer(TimeoutLayer(timeout=REQUEST_SECONDS, io_timeout=IO_SECONDS))
    except Exception as error:
        raise Invalid(f"{address.shown} cannot be opened: {secrets.scrub(error)}") from None
    can = operator.capability()
    lacking = [what for name, what in _MINIMUM.items() if not getattr(can, name)]
    if lacking:
        raise Refused(f"opendal's {service} does not do what the broker needs: it cannot {', '.join(lacking)}")
    return OpendalStore(address.shown, operator, secrets)


def _from_address(address: StoreAddress, service: str, known: set[str]) -> dict[str, str]:
    """Return the settings in the URL: the host is the bucket or container of the service, the path is the root."""
    options: dict[str, str] = {}
    if address.host:
        name = next((name for name in ("bucket", "container", "filesystem") if name in known), None)
        if name is None or address.port is not None:
            raise Invalid(f"opendal's {service} has no bucket: write opendal+{service}:///ROOT and give settings")
        options[name] = address.host
    if address.path:
        options["root"] = f"/{address.path}"
    return options
