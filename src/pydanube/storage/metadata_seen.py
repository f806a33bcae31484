"""Metadata must not be older than the log and the data directory, which record the revisions that they have seen.

```
METADATA_REVISION    a JSON object and, on the second line, its CRC32C in hexadecimal:
                     {"store_id":"5f0c...","revision":1234,"mark":1200,"etcd":["cdf818194e3a8c32",7]}
                     earlier releases wrote no etcd, before that no mark, and before that the revision alone, in digits
```

`mark` is the revision at which this broker last wrote the key of its log, which no other broker writes. An
older copy has an older version of that key, also when its revision has risen past the one that was seen. `etcd` is the
generation of an etcd, by which a start says that it was made anew.

An older copy of the metadata would give out ids and offsets a second time, and would not know the newest ledgers.
Revisions of two stores cannot be compared; a store records which stores it succeeds, and up to which revision.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from pydanube.codec.wal import MetadataStamp, checked_line, with_checksum
from pydanube.metadata.opening import MetadataPlace
from pydanube.metadata.store import NO_GENERATION, Generation, KeyValue, StoreIdentity
from pydanube.model.errors import Corrupt, Refused
from pydanube.runtime.disk import Disk, read_whole, replace_whole

REVISION_FILE: Final = "METADATA_REVISION"
ANY_STORE: Final = ""
"""Stands for the store's id where an earlier release wrote none."""


class _SeenFile(msgspec.Struct, omit_defaults=True):
    store_id: str
    revision: int
    mark: int = 0
    """0: none was written."""
    etcd: Generation = NO_GENERATION


def encode_seen(seen: MetadataStamp, mark: int = 0, etcd: Generation = NO_GENERATION) -> bytes:
    return with_checksum(msgspec.json.encode(_SeenFile(*seen, mark, etcd)))


def decode_seen(content: bytes) -> MetadataStamp:
    """Return what was written, in the form of any release. Raises Corrupt."""
    written = _decode(content)
    return MetadataStamp(written.store_id, written.revision)


def _decode(content: bytes) -> _SeenFile:
    if content.isdigit() and len(content) < 20:
        return _SeenFile(ANY_STORE, int(content))
    try:
        return msgspec.json.decode(checked_line(content), type=_SeenFile)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"cannot be read: {error}") from None


def read_seen(disk: Disk, directory: Path) -> MetadataStamp | None:
    """Return what the data directory has seen of its metadata; None when it has seen nothing yet. Raises Corrupt."""
    found = _read(disk, directory)
    return None if found is None else MetadataStamp(found.store_id, found.revision)


def read_mark(disk: Disk, directory: Path, store_id: str) -> int:
    """Return the revision of this store at which the broker wrote its own key last; 0: it is not known. Raises
    Corrupt."""
    found = _read(disk, directory)
    return found.mark if found is not None and found.store_id == store_id else 0


def read_generation(disk: Disk, directory: Path) -> Generation:
    """Return the generation of the etcd that was seen last. Raises Corrupt."""
    found = _read(disk, directory)
    return NO_GENERATION if found is None else found.etcd


def _read(disk: Disk, directory: Path) -> _SeenFile | None:
    path = directory / REVISION_FILE
    if not disk.exists(path):
        return None
    try:
        return _decode(read_whole(disk, path))
    except Corrupt as error:
        raise Corrupt(
            f"{path} {error.message}: put back a copy of it; or remove it, if the metadata is surely the newest (the "
            f"log still refuses metadata that is older than itself)"
        ) from None


def write_seen(
    disk: Disk, directory: Path, seen: MetadataStamp, mark: int = 0, etcd: Generation = NO_GENERATION
) -> None:
    replace_whole(disk, directory / REVISION_FILE, encode_seen(seen, mark, etcd))


def lacks_mark(own: KeyValue | None, mark: int) -> str:
    """Return why metadata is older than the last write of this broker, or an empty text. `own` is the key of the
    broker in that metadata, `mark` the revision at which the broker wrote it last."""
    found = 0 if own is None else own.mod_revision
    return f"it has what this broker wrote at revision {found}, and not what it wrote at {mark}" if found < mark else ""


def refuse_older(
    store: StoreIdentity, revision: int, seen: Mapping[str, int], where: Path, metadata: MetadataPlace
) -> None:
    """Raise Refused when the store at `metadata` is at a lower revision than `where` has seen, or is another store."""
    known = {store.store_id: revision}
    for former in store.succeeds:
        known[former.store_id] = max(former.revision, known.get(former.store_id, 0))
    for store_id, wanted in seen.items():
        found = max(known.values()) if store_id == ANY_STORE else known.get(store_id)
        if found is None:
            raise Refused(
                f"{where} depends on metadata store {store_id}, and {metadata} is store {store.store_id}, which does "
                f"not succeed it: put back the metadata of this data directory"
            )
        if found < wanted:
            raise Refused(
                f"{metadata} is older than {where}: it knows revision {found} of its store, and {where} has seen "
                f"revision {wanted}; put back the newest copy of the metadata, or without one restore from the object "
                f"store with `danube storage restore`"
            )
