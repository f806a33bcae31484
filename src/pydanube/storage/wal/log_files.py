"""The log's directory: file names, and the manifest that says which files make up the log.

```
MANIFEST                the oldest and the newest file of the log
wal-0000000007.log      file of generation 7
wal-0000000007.idx      its index, once it is closed; can be made again from the file
spare-0000000003.log    a released file, waiting to be used again
DURABLE                 up to where the log was synced when it was last written (see `mark`)
LOCK                    held by the running process, with its number
*.tmp                   left over from a crash; removed at the next start
```
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from pydanube.codec.wal import LogManifest, NodeIdentity, decode_manifest, encode_manifest
from pydanube.model.errors import Corrupt, Refused
from pydanube.runtime.disk import Disk, read_whole, replace_whole

MANIFEST: Final = "MANIFEST"
LOCK: Final = "LOCK"
DURABLE: Final = "DURABLE"
_FILE: Final = re.compile(r"(wal|spare)-(\d{10})\.(log|idx)")


def log_path(directory: Path, generation: int) -> Path:
    return directory / f"wal-{generation:010d}.log"


def index_path(directory: Path, generation: int) -> Path:
    return directory / f"wal-{generation:010d}.idx"


def spare_path(directory: Path, generation: int) -> Path:
    return directory / f"spare-{generation:010d}.log"


def generations(names: list[str], kind: str, suffix: str) -> list[int]:
    """Return the generations of the files `KIND-NUMBER.SUFFIX` among `names`, ascending."""
    matches = (_FILE.fullmatch(name) for name in names)
    return sorted(int(match[2]) for match in matches if match and match[1] == kind and match[3] == suffix)


def read_manifest(disk: Disk, directory: Path) -> LogManifest | None:
    path = directory / MANIFEST
    if not disk.exists(path):
        return None
    try:
        return decode_manifest(read_whole(disk, path))
    except Corrupt as error:
        raise Corrupt(f"{path} {error.message}: put back a copy of it (see docs/log.md, 'Damage')") from None
    except Refused as error:
        raise Refused(f"{path}: {error.message}: start the release that wrote it") from None


def write_manifest(disk: Disk, directory: Path, identity: NodeIdentity, oldest: int, newest: int) -> None:
    replace_whole(disk, directory / MANIFEST, encode_manifest(identity, oldest, newest))
