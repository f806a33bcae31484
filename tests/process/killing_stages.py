"""A directory as a store that ends its process, as kill -9 does, at a step of a staged write. Brought in by an entry
point.

Everything durable that a staged write does is a step, once before and once after it: a stage put or deleted, a
transaction on its keys, a batch handed to a partition. The file named in KILLING_FILE holds a number and the kinds of
steps that count; the process dies at that step, counted from when the file was written (0: it does not). Or it holds
`at` and a step, as `.steps` beside it tells them. Of several brokers with one such file, the first that gets there
removes the file and dies alone.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from killing_store import die

from pydanube.broker.partitions.partition import Partition
from pydanube.broker.partitions.publish_queue import PublishDone
from pydanube.codec.batch import Batch
from pydanube.core.staging import STAGED_PRODUCER
from pydanube.metadata.embedded import EmbeddedStore
from pydanube.metadata.etcd.store import EtcdStore
from pydanube.metadata.store import Compare, Delete, MetadataStore, Put, TransactionResult
from pydanube.model.errors import DanubeError
from pydanube.model.messages import Published
from pydanube.runtime.objects import Buffer, ObjectInfo
from pydanube.runtime.objects.local import LocalStore

Transact = Callable[[Any, Sequence[Compare], Sequence[Put | Delete]], Awaitable[TransactionResult]]
DEATH = ", killed"
AT = "at "


class Steps:
    """Counts them."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._wish = ""
        self._left = 0
        self._kinds: list[str] = []

    def step(self, kind: str, what: str) -> None:
        wish = self._file.read_text() if self._file.exists() else ""
        if wish != self._wish:
            self._wish = wish
            number, *self._kinds = wish.split() if wish and not wish.startswith(AT) else ["0"]
            self._left = int(number)
        if not wish:
            return
        self._left -= kind in self._kinds
        is_reached = wish == AT + what or (self._left == 0 and kind in self._kinds)
        dies = is_reached and self._is_first()
        with self._file.with_suffix(".steps").open("a") as diary:
            diary.write(f"{what}{DEATH if dies else ''}\n")
        if dies:
            die()

    def _is_first(self) -> bool:
        """Remove the file; return whether it was there: of several brokers, one dies."""
        try:
            self._file.unlink()
        except FileNotFoundError:
            return False
        return True


class KillingStages(LocalStore):
    steps: Steps

    async def put(
        self, key: str, data: Buffer | Sequence[Buffer], *, create: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        if not key.startswith("stages/"):
            return await super().put(key, data, create=create, if_match=if_match)
        self.steps.step("put", "before a stage is put")
        info = await super().put(key, data, create=create, if_match=if_match)
        self.steps.step("put", "after a stage is put")
        return info

    async def delete(self, keys: Sequence[str]) -> None:
        ours = keys[0].startswith("stages/")
        if ours:
            self.steps.step("delete", "before stages are deleted")
        await super().delete(keys)
        if ours:
            self.steps.step("delete", "after stages are deleted")


def watch(steps: Steps) -> None:
    for store in (EmbeddedStore, EtcdStore):
        watch_transactions(store, steps)
    watch_partitions(steps)


def watch_transactions(store: type[EmbeddedStore | EtcdStore], steps: Steps) -> None:
    transact: Transact = store.transact

    async def watched_transact(
        self: MetadataStore, compares: Sequence[Compare], writes: Sequence[Put | Delete]
    ) -> TransactionResult:
        touched = sorted({one.key.split("/")[2] for one in writes if one.key.startswith("/staged/")})
        if not touched:
            return await transact(self, compares, writes)
        what = f"{type(writes[-1]).__name__.lower()} of {' and '.join(touched)}"
        steps.step("transact", f"before the {what}")
        result = await transact(self, compares, writes)
        steps.step("transact", f"after the {what}")
        return result

    setattr(store, "transact", watched_transact)  # noqa: B010 - as every instance of this process has it


def watch_partitions(steps: Steps) -> None:
    publish = Partition.publish

    def watched_publish(self: Partition, batch: Batch, done: PublishDone) -> None:
        ours = batch.header.producer_id & STAGED_PRODUCER

        def published(outcome: Published | DanubeError) -> None:
            steps.step("publish", "after a batch is stored")
            done(outcome)

        if ours:
            steps.step("publish", "before a batch is published")
        publish(self, batch, published if ours else done)

    setattr(Partition, "publish", watched_publish)  # noqa: B010


async def open_killing(url: str, _settings: Mapping[str, str]) -> KillingStages:
    store = await KillingStages.open(Path(urlsplit(url).path))
    store.steps = Steps(Path(os.environ["KILLING_FILE"]))
    watch(store.steps)
    return store
