"""S3, Google Cloud Storage and Azure Blob Storage, through `obstore`.

A put is one request, never multipart, so it is atomic. Reads are range requests; obstore's streams are slow. obstore
repeats requests for a limited time. A repeated create may find the object of its own first attempt, so every object
has a mark of the put that made it, and a create that finds its own mark has succeeded.

Credentials come from the settings or, if there are none, from where the provider's own tools find them (environment,
instance metadata). They are removed from messages of obstore. `threads.py` says why blocking functions are used.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import obstore
from obstore import exceptions
from obstore.store import AzureStore, GCSStore, S3Store

from pydanube.model.errors import (
    AlreadyExists,
    DanubeError,
    Denied,
    Invalid,
    NotFound,
    Refused,
    Unauthenticated,
    Unavailable,
)
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.closing import Closing
from pydanube.runtime.randomness import identity

from .object_store import KEY_CHARACTERS_MAX, Buffer, Capabilities, ObjectInfo, check_key, check_range, joined
from .store_address import Secrets, StoreAddress, StoreOptions
from .threads import Threads

if TYPE_CHECKING:
    from obstore import ObjectMeta

T = TypeVar("T")
_Store: TypeAlias = S3Store | GCSStore | AzureStore

THREADS: Final = 16
"""How many requests run at the same time; each may hold the bytes of one range."""

MARK: Final = "danubeput"
"""The name of the object attribute with the mark of the put: letters only, as Azure requires."""

LIST_OBJECTS: Final = 500
DELETE_OBJECTS: Final = 1000
"""The most that S3 deletes with one request."""

_NOT_FOUND: Final = (exceptions.NotFoundError, FileNotFoundError)

RETRIES_MAX: Final = 10

_STATUS: Final = re.compile(r"status code: (\d{3})\b")
_BY_STATUS: Final[dict[str, type[DanubeError]]] = {
    "400": Invalid,
    "401": Unauthenticated,
    "403": Denied,
    "404": Unavailable,  # the bucket is missing: once it is created, requests work without a restart
    "405": Refused,
    "411": Refused,
    "413": Refused,
    "501": Refused,
}
"""For errors that obstore has no class for. Every other status becomes Unavailable."""

_ENVIRONMENT_SECRETS: Final = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_SAS_KEY",
    "AZURE_STORAGE_CLIENT_SECRET",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
)


class CloudStore(Closing):
    """A bucket or container, or one prefix of it."""

    capabilities = Capabilities(if_match=True, durable=True, shared=True)

    def __init__(self, url: str, store: _Store, prefix: str, secrets: Secrets, *, ordered: bool = True) -> None:
        self.url = url
        self._store = store
        self._prefix = f"{prefix}/" if prefix else ""
        self._secrets = secrets
        self._ordered = ordered
        self._clock = SystemClock()
        self._threads = Threads(THREADS, url)

    async def put(
        self, key: str, data: Buffer | Sequence[Buffer], *, create: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        path = self._path(key)
        whole = joined(data)
        mode: Any = (
            "create" if create else "overwrite" if if_match is None else await self._put_condition(key, if_match)
        )
        mark = identity()
        try:
            result = await self._run(obstore.put, path, whole, mode=mode, attributes={MARK: mark}, use_multipart=False)
            etag = result["e_tag"]
        except exceptions.AlreadyExistsError:
            etag = await self._own_etag(path, mark)
            if etag is None:
                raise AlreadyExists(f"object {key} exists already in {self.url}") from None
        except _NOT_FOUND as error:
            if if_match is None:
                raise self._unavailable(error) from None  # the bucket does not exist
            raise self._changed(key, if_match) from None
        except Exception as error:
            raise self._explained(error, key) from None
        if etag is None:
            return await self.head(key)
        return ObjectInfo(key, len(whole), _quoted(etag), self._clock.now_us())

    async def get(self, key: str, start: int = 0, end: int | None = None) -> memoryview:
        path = self._path(key)
        check_range(start, end)
        try:
            if end is None and start == 0:
                return await self._run(_whole, path)
            end = (await self.head(key)).size if end is None else end
            if start < end:
                return memoryview(await self._run(obstore.get_range, path, start=start, end=end))
        except exceptions.GenericError as error:
            # a range that begins at or after the end is an error to the provider
            if (await self.head(key)).size > start:
                raise self._explained(error, key) from None
            return memoryview(b"")
        except Exception as error:
            raise self._explained(error, key) from None
        await self.head(key)
        return memoryview(b"")

    async def head(self, key: str) -> ObjectInfo:
        path = self._path(key)
        try:
            return self._info(await self._run(obstore.head, path))
        except Exception as error:
            raise self._explained(error, key) from None

    async def list(self, prefix: str = "", after: str = "") -> AsyncIterator[ObjectInfo]:
        """List by whole path parts, as obstore does, from just before the prefix on, and leave out other keys.

        Servers that have directories may list `a/b` before `a-b`. With the setting `ordered_listing` false, all keys
        are sorted in memory; otherwise such an answer is refused.
        """
        self._threads.check_open()
        wanted = self._prefix + prefix
        last = ""
        if not self._ordered:
            found = [self._info(meta) async for meta in self._list(wanted, "") if meta["path"].startswith(wanted)]
            for info in sorted(found, key=lambda info: info.key):
                if info.key > after:
                    yield info
            return
        async for meta in self._list(wanted, max(self._prefix + after if after else "", _before(wanted))):
            if meta["path"].startswith(wanted):
                info = self._info(meta)
                if info.key <= last:
                    raise Refused(
                        f"{self.url} lists {info.key} after {last}, which is not the order of keys: "
                        f"set ordered_listing to false"
                    )
                last = info.key
                if info.key > after:
                    yield info
            elif meta["path"] > wanted:
                return

    async def _list(self, wanted: str, offset: str) -> AsyncIterator[ObjectMeta]:
        parts, _, _ = wanted.rpartition("/")
        try:
            pages = await self._run(obstore.list, parts or None, offset=offset or None, chunk_size=LIST_OBJECTS)
            while page := await self._threads.run(lambda: next(pages, None)):
                for meta in page:
                    yield meta
        except Exception as error:
            raise self._explained(error, wanted) from None

    async def delete(self, keys: Sequence[str]) -> None:
        paths = [self._path(key) for key in keys]
        for first in range(0, len(paths), DELETE_OBJECTS):
            await self._delete(paths[first : first + DELETE_OBJECTS])

    async def close(self) -> None:
        """Wait for running requests. obstore closes its connections when they are garbage-collected."""
        await self._threads.close()

    async def _delete(self, paths: Sequence[str]) -> None:
        """Delete with one request; if one object is missing, which is an error for some providers, one by one."""
        try:
            await self._run(obstore.delete, list(paths))
            return
        except _NOT_FOUND:
            pass
        except Exception as error:
            raise self._explained(error, paths[0]) from None
        for path in paths:
            try:
                await self._run(obstore.delete, path)
            except _NOT_FOUND:
                continue
            except Exception as error:
                raise self._explained(error, path) from None

    async def _put_condition(self, key: str, etag: str) -> dict[str, str]:
        """Return the condition of a put. Google compares generations, so the generation with this etag is looked up."""
        if not isinstance(self._store, GCSStore):
            return {"e_tag": etag}
        try:
            meta = await self._run(obstore.head, self._path(key))
        except Exception as error:
            explained = self._explained(error, key)
            raise (self._changed(key, etag) if isinstance(explained, NotFound) else explained) from None
        version = meta.get("version")
        if _quoted(meta["e_tag"] or "") != etag or version is None:
            raise self._changed(key, etag)
        return {"e_tag": etag, "version": version}

    async def _own_etag(self, path: str, mark: str) -> str | None:
        """Return the etag of the stored object if it has the mark of this put, else None."""
        try:
            answer = await self._run(obstore.get, path, options={"head": True})
        except Exception:
            return None  # unknown: the put is reported as AlreadyExists
        return answer.meta["e_tag"] if answer.attributes.get(MARK) == mark else None

    def _path(self, key: str) -> str:
        self._threads.check_open()
        path = self._prefix + check_key(key)
        if len(path) > KEY_CHARACTERS_MAX:
            raise Invalid(f"object key {key[:80]!r} is too long with the prefix of {self.url}")
        return path

    async def _run(self, work: Callable[..., T], *arguments: Any, **options: Any) -> T:
        return await self._threads.run(partial(work, self._store, *arguments, **options))

    def _info(self, meta: ObjectMeta) -> ObjectInfo:
        modified = meta["last_modified"]
        assert isinstance(modified, datetime)
        key = meta["path"][len(self._prefix) :]
        return ObjectInfo(key, meta["size"], _quoted(meta["e_tag"] or ""), round(modified.timestamp() * 1e6))

    def _changed(self, key: str, etag: str) -> Refused:
        return Refused(f"object {key} in {self.url} is not the one with etag {etag}")

    def _unavailable(self, error: Exception) -> Unavailable:
        return Unavailable(f"{self.url}: {self._secrets.scrub(_message(error))}")

    def _explained(self, error: Exception, key: str) -> DanubeError:
        match error:
            case DanubeError():
                return error
            case exceptions.NotFoundError() | FileNotFoundError():
                return NotFound(f"object {key} is not in {self.url}")
            case exceptions.PreconditionError():
                return Refused(f"object {key} in {self.url} has changed")
            case exceptions.PermissionDeniedError():
                return Denied(f"{self.url} does not allow it: {self._secrets.scrub(_message(error))}")
            case exceptions.UnauthenticatedError():
                return Unauthenticated(f"{self.url} does not know us: {self._secrets.scrub(_message(error))}")
            case exceptions.NotSupportedError() | exceptions.InvalidPathError():
                return Refused(f"{self.url}: {self._secrets.scrub(_message(error))}")
        status = _STATUS.search(str(error))
        kind = _BY_STATUS.get(status[1], Unavailable) if status else Unavailable
        return kind(f"{self.url}: {self._secrets.scrub(_message(error))}")


def _message(error: Exception) -> str:
    """Return the message of an error without obstore's debug output."""
    return str(error).partition("Debug source:")[0].strip()


def _whole(store: _Store, path: str) -> memoryview:
    return memoryview(obstore.get(store, path).bytes())


def _quoted(etag: str) -> str:
    """Add the quotes that Azure omits from etags in lists."""
    return etag if etag.endswith('"') or not etag else f'"{etag}"'


def _before(prefix: str) -> str:
    """Return a path before all keys that begin with `prefix`, and close to them; empty: list from the start."""
    if not prefix or prefix.endswith("/"):
        return ""
    candidate = f"{prefix[:-1]}{chr(ord(prefix[-1]) - 1)}zzzz"
    try:
        return check_key(candidate)
    except Invalid:
        return ""


# -- opening -----------------------------------------------------------------------------------------------------------


class _Settings(StoreOptions):
    """The settings that all three providers share, and those of one provider under obstore's names."""

    def __init__(self, scheme: str, given: Mapping[str, str]) -> None:
        super().__init__(scheme, given)
        self.config: dict[str, Any] = {}
        self._environment = [os.environ.get(name, "") for name in _ENVIRONMENT_SECRETS]

    def take(self, *names: str) -> None:
        self.config |= {name: value for name in names if (value := self.text(name))}

    def take_secrets(self, *names: str) -> None:
        self.config |= {name: value for name in names if (value := self.secret(name))}

    def take_flags(self, *names: str) -> None:
        self.config |= {name: True for name in names if self.flag(name)}

    @property
    def secrets(self) -> Secrets:
        return Secrets([*self._secrets, *self._environment])

    def open(self, kind: Any, bucket: str, address: StoreAddress) -> CloudStore:
        """Make the store. Nothing is sent yet: a missing bucket is noticed with the first request."""
        client = {
            "timeout": timedelta(seconds=self.seconds("timeout_s", 60)),
            "connect_timeout": timedelta(seconds=self.seconds("connect_timeout_s", 5)),
            "allow_http": self.flag("allow_http") or self.config.get("endpoint", "").startswith("http://"),
        }
        retry = {
            "max_retries": RETRIES_MAX,
            "retry_timeout": timedelta(seconds=self.seconds("retry_timeout_s", 30)),
            "backoff": {
                "init_backoff": timedelta(milliseconds=50),
                "max_backoff": timedelta(seconds=2),
                "base": 2,
            },
        }
        ordered = self.flag("ordered_listing", True)
        self.done()
        if not bucket:
            raise Invalid(f"a {address.scheme} URL names a bucket or container: {address.scheme}://NAME/PREFIX")
        try:
            store = kind(bucket, config=self.config, client_options=client, retry_config=retry)
        except Exception as error:
            raise Invalid(f"{address.shown} cannot be opened: {self.secrets.scrub(_message(error))}") from None
        return CloudStore(address.shown, store, address.prefix(), self.secrets, ordered=ordered)


async def open_s3(address: StoreAddress, settings: Mapping[str, str]) -> CloudStore:
    address.expect()
    options = _Settings(address.scheme, settings)
    options.take(
        "endpoint", "region", "server_side_encryption", "sse_kms_key_id", "role_arn", "web_identity_token_file"
    )
    options.take_secrets("access_key_id", "secret_access_key", "session_token")
    options.take_flags("virtual_hosted_style_request", "skip_signature", "unsigned_payload", "disable_bulk_delete")
    return options.open(S3Store, address.host, address)


async def open_gcs(address: StoreAddress, settings: Mapping[str, str]) -> CloudStore:
    address.expect()
    options = _Settings(address.scheme, settings)
    options.take("service_account", "application_credentials", "base_url")
    options.take_secrets("service_account_key", "bearer_token")
    options.take_flags("skip_signature")
    return options.open(GCSStore, address.host, address)


async def open_azure(address: StoreAddress, settings: Mapping[str, str]) -> CloudStore:
    address.expect()
    options = _Settings(address.scheme, settings)
    options.take("account_name", "endpoint", "client_id", "tenant_id", "authority_host", "federated_token_file")
    options.take_secrets("account_key", "sas_key", "client_secret", "token")
    options.take_flags("use_azure_cli", "skip_signature")
    return options.open(AzureStore, address.host, address)
