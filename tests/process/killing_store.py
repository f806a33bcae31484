"""A directory as a store that ends its process, as kill -9 does, at a step of an upload. Brought in by an entry point.

The environment says when: KILLING_STEP is `before`, `during`, `after` or `later`, KILLING_PUT the put that it is about
(the first of the process is 1), KILLING_MS how long `during` and `later` wait: gathering is over before a put, the
catalog, the release and the trim follow it.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from pydanube.runtime.objects import Buffer, ObjectInfo
from pydanube.runtime.objects.local import LocalStore


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_later() -> None:
    timer = threading.Timer(float(os.environ.get("KILLING_MS", "0")) / 1000, die)
    timer.daemon = True
    timer.start()


class KillingStore(LocalStore):
    puts = 0

    async def put(
        self, key: str, data: Buffer | Sequence[Buffer], *, create: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        if not key.startswith("segments/"):
            return await super().put(key, data, create=create, if_match=if_match)
        self.puts += 1
        step = os.environ.get("KILLING_STEP") if self.puts == int(os.environ.get("KILLING_PUT", "1")) else None
        if step == "before":
            die()
        if step == "during":
            die_later()
        info = await super().put(key, data, create=create, if_match=if_match)
        if step == "after":
            die()
        if step == "later":
            die_later()
        return info


async def open_killing(url: str, _settings: Mapping[str, str]) -> KillingStore:
    return await KillingStore.open(Path(urlsplit(url).path))
