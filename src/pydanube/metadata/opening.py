"""Opens the metadata store that the settings name: a SQLite file of one broker, or an etcd of a cluster."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from pydanube.model.errors import Refused
from pydanube.runtime.clock import Clock

from .embedded import EmbeddedStore
from .etcd.place import EtcdPlace
from .store import MetadataStore

MetadataPlace = Path | EtcdPlace
"""Where metadata is. As text it names the place in messages, without a password."""


async def open_metadata(place: MetadataPlace, clock: Clock, *, create: bool = True) -> MetadataStore:
    """Open the store, which the caller closes; raises as the `open` of each implementation does. `create` False: in an
    etcd, nothing is written before the first transaction that writes. When cancelled, nothing stays open."""
    if isinstance(place, Path):
        return await EmbeddedStore.open(place, clock)
    if not _has_grpcio():
        raise Refused(f"{place} needs packages that are not installed: pip install 'pydanube[etcd]'")
    from .etcd.store import EtcdStore  # imports grpcio, which is an extra

    return await EtcdStore.open(place, clock, create=create)


def _has_grpcio() -> bool:
    try:
        return all(importlib.util.find_spec(name) is not None for name in ("grpc", "google.protobuf"))
    except ModuleNotFoundError:  # there is not even a package `google`
        return False
