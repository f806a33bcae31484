"""Creates the first API key of a cluster, with which everything else is set up.

```
 <data_dir>/admin-key           the key, readable for the owner of the process only
 /security/first-key            which key that was; written with the key, in one transaction
```

Invariants
    at most one first key is ever made in a cluster: not again when all keys are revoked. A cluster that was restored
    from object storage has no keys and makes one again
    a key that is stored is in the file of the broker that made it
    the key is in no log line
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from pydanube.model.security import BoundSubject
from pydanube.runtime.clock import Clock
from pydanube.runtime.disk import Disk, replace_whole
from pydanube.runtime.telemetry import get_logger

from .api_keys import new_key
from .security_store import SecurityStore

log = get_logger(__name__)

FILE_NAME: Final = "admin-key"
ADMINISTRATOR: Final = "user:admin"


async def create_first_key(access: SecurityStore, clock: Clock, disk: Disk, directory: Path) -> None:
    """Create an API key for the administrator, unless the cluster has or had one. Raises what disk and store raise.

    The file is written first: if the broker dies before the key is stored, the next start writes another one.
    """
    if not await access.needs_first_key():
        return
    created, record = new_key(BoundSubject.parse(ADMINISTRATOR), clock.now_us(), comment="created at the first start")
    path = directory / FILE_NAME
    content = f"{created.secret}\n".encode()
    await asyncio.to_thread(replace_whole, disk, path, content, private=True)
    if await access.create_first_key(created.key.id, record):
        log.warning("auth.first_key_created", principal=ADMINISTRATOR, key_id=created.key.id, file=str(path))
    else:
        await asyncio.to_thread(disk.unlink, path)  # another broker was faster
