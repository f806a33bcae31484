"""Opens a store by its URL and settings. What a store needs beyond the plain install is imported when it is opened.

    file:///DIRECTORY               memory:// and memory://NAME       s3://BUCKET/PREFIX, gs://..., az://CONTAINER/PREFIX
    redis://HOST:PORT/DB?prefix=    grpc://HOST:PORT (a plug-in)      opendal+SCHEME://...

Other packages bring stores of their own by the entry point group `pydanube.object_stores`: the name is the scheme, the
object an async function of the URL and the settings that returns an `ObjectStore`. Ours cannot be replaced.
"""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Final, NamedTuple, cast

from pydanube.model.errors import Invalid

from .address import StoreAddress
from .store import ObjectStore

GROUP: Final = "pydanube.object_stores"
OPENDAL: Final = "opendal+"

Factory = Callable[[str, Mapping[str, str]], Awaitable[ObjectStore]]
_Opener = Callable[[StoreAddress, Mapping[str, str]], Awaitable[ObjectStore]]


class _Known(NamedTuple):
    opener: str
    extra: str = ""
    package: str = ""


_STORES: Final = {
    "file": _Known("local:open_local"),
    "memory": _Known("memory:open_memory"),
    "s3": _Known("cloud:open_s3", "cloud", "obstore"),
    "gs": _Known("cloud:open_gcs", "cloud", "obstore"),
    "az": _Known("cloud:open_azure", "cloud", "obstore"),
    "redis": _Known("redis_store:open_redis", "redis", "redis"),
    "rediss": _Known("redis_store:open_redis", "redis", "redis"),
    "grpc": _Known("plugin:open_plugin", "grpc", "grpc"),
    "grpcs": _Known("plugin:open_plugin", "grpc", "grpc"),
}
_THROUGH_OPENDAL: Final = _Known("opendal_store:open_opendal", "opendal", "opendal")


async def open_store(url: str, settings: Mapping[str, str] | None = None) -> ObjectStore:
    """The store at this URL. Invalid for a URL or a setting that means nothing; whoever opens it closes it."""
    address = StoreAddress.parse(url)
    known = _THROUGH_OPENDAL if address.scheme.startswith(OPENDAL) else _STORES.get(address.scheme)
    if known is None:
        return await _open_foreign(address, settings or {})
    return await _opener(known, address.scheme)(address, settings or {})


def check_url(url: str) -> str:
    """A URL that some store has, as it came; nothing is opened. Raises Invalid."""
    address = StoreAddress.parse(url)
    if not address.scheme.startswith(OPENDAL) and address.scheme not in _STORES:
        _foreign(address)
    return url


def _opener(known: _Known, scheme: str) -> _Opener:
    module, function = known.opener.split(":")
    try:
        return cast(_Opener, getattr(importlib.import_module(f"{__package__}.{module}"), function))
    except ModuleNotFoundError as error:
        if known.extra and not (error.name or "").startswith("pydanube"):
            raise Invalid(
                f"{scheme} stores need {error.name}, which is not installed: pip install 'pydanube[{known.extra}]'"
            ) from None
        raise


async def _open_foreign(address: StoreAddress, settings: Mapping[str, str]) -> ObjectStore:
    factory = cast(Factory, _foreign(address).load())
    return await factory(address.shown, settings)


def _foreign(address: StoreAddress) -> EntryPoint:
    found = [point for point in entry_points(group=GROUP) if point.name == address.scheme]
    if not found:
        known = ", ".join([*_STORES, f"{OPENDAL}SCHEME", *(point.name for point in entry_points(group=GROUP))])
        raise Invalid(f"no store has URLs that begin with {address.scheme[:40]!r}; known are {known}")
    return found[0]
