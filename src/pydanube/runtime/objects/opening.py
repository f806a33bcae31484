"""Opens a store by its URL and settings. Optional packages that a store needs are imported when it is opened.

    file:///DIRECTORY               memory:// and memory://NAME       s3://BUCKET/PREFIX, gs://..., az://CONTAINER/PREFIX
    redis://HOST:PORT/DB?prefix=    grpc://HOST:PORT (a plug-in)      opendal+SCHEME://...

Other packages add stores with the entry point group `pydanube.object_stores`: the name is the scheme, the object an
async function of the URL and the settings that returns an `ObjectStore`. The stores above cannot be replaced.
"""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Final, NamedTuple, cast

from pydanube.model.errors import Invalid

from .object_store import ObjectStore
from .store_address import StoreAddress

GROUP: Final = "pydanube.object_stores"
OPENDAL: Final = "opendal+"

Factory = Callable[[str, Mapping[str, str]], Awaitable[ObjectStore]]
_Opener = Callable[[StoreAddress, Mapping[str, str]], Awaitable[ObjectStore]]


class _KnownStore(NamedTuple):
    opener: str
    extra: str = ""
    package: str = ""


_STORES: Final = {
    "file": _KnownStore("local:open_local"),
    "memory": _KnownStore("memory:open_memory"),
    "s3": _KnownStore("cloud:open_s3", "cloud", "obstore"),
    "gs": _KnownStore("cloud:open_gcs", "cloud", "obstore"),
    "az": _KnownStore("cloud:open_azure", "cloud", "obstore"),
    "redis": _KnownStore("redis_store:open_redis", "redis", "redis"),
    "rediss": _KnownStore("redis_store:open_redis", "redis", "redis"),
    "grpc": _KnownStore("plugin:open_plugin", "grpc", "grpc"),
    "grpcs": _KnownStore("plugin:open_plugin", "grpc", "grpc"),
}
_THROUGH_OPENDAL: Final = _KnownStore("opendal_store:open_opendal", "opendal", "opendal")


async def open_store(url: str, settings: Mapping[str, str] | None = None) -> ObjectStore:
    """Open the store at this URL. Raises Invalid for an unknown URL or setting. The caller closes the store."""
    address = StoreAddress.parse(url)
    known = _THROUGH_OPENDAL if address.scheme.startswith(OPENDAL) else _STORES.get(address.scheme)
    if known is None:
        return await _open_external(address, settings or {})
    return await _opener(known, address.scheme)(address, settings or {})


async def peek_store(url: str, settings: Mapping[str, str] | None = None) -> ObjectStore | None:
    """Open the store at this URL for reading, and change nothing: a directory is neither created nor locked. Returns
    None if it is a directory that is not there. Raises as `open_store` does. The caller closes the store."""
    address = StoreAddress.parse(url)
    if address.scheme != "file":
        return await open_store(url, settings)
    from .local import peek_local

    return await peek_local(address, settings or {})


def check_url(url: str) -> str:
    """Return the URL unchanged if there is a store for it, without opening anything; otherwise raise Invalid."""
    address = StoreAddress.parse(url)
    if not address.scheme.startswith(OPENDAL) and address.scheme not in _STORES:
        _external(address)
    return url


def _opener(known: _KnownStore, scheme: str) -> _Opener:
    module, function = known.opener.split(":")
    try:
        return cast(_Opener, getattr(importlib.import_module(f"{__package__}.{module}"), function))
    except ModuleNotFoundError as error:
        if known.extra and not (error.name or "").startswith("pydanube"):
            raise Invalid(
                f"{scheme} stores need {error.name}, which is not installed: pip install 'pydanube[{known.extra}]'"
            ) from None
        raise


async def _open_external(address: StoreAddress, settings: Mapping[str, str]) -> ObjectStore:
    factory = cast(Factory, _external(address).load())
    return await factory(address.shown, settings)


def _external(address: StoreAddress) -> EntryPoint:
    found = [point for point in entry_points(group=GROUP) if point.name == address.scheme]
    if not found:
        known = ", ".join([*_STORES, f"{OPENDAL}SCHEME", *(point.name for point in entry_points(group=GROUP))])
        raise Invalid(f"no store has URLs that begin with {address.scheme[:40]!r}; known are {known}")
    return found[0]
