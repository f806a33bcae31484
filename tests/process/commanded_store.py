"""A directory as a store that does what a file says: it is away, slow, or holds one put at a known place. By an entry
point.

The file is named in STORE_COMMANDS, and read at every request:

    away                    every request fails
    slow SECONDS            every request takes so much longer
    hold PLACE PREFIX       the first put of a key that begins with PREFIX stops at PLACE: `before` anything is written,
                            `during` (the bytes are written and synced, and have no name yet), or `after` (the object is
                            there, and its answer is not)

A put that is held renames the file to `.held` and waits until that is removed; everything else goes on meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from pydanube.model.errors import Unavailable
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.objects import Buffer, ObjectInfo
from pydanube.runtime.objects.local import LocalStore
from pydanube.runtime.objects.tree import Tree

POLL_S = 0.005


class StoreCommands:
    """The file, as a test writes it and as the store reads it."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._held = file.with_suffix(".held")

    # -- the test ------------------------------------------------------------------------------------------------------

    def give(self, command: str) -> None:
        """Give a command, in place of the one before; empty: the store is well."""
        written = self._file.with_suffix(".new")
        written.write_text(command)
        written.rename(self._file)

    @property
    def held_key(self) -> str:
        """Return the key whose put is held; empty: none is."""
        return self._held.read_text() if self._held.exists() else ""

    def let_go(self) -> None:
        self._held.unlink()

    # -- the store -----------------------------------------------------------------------------------------------------

    def words(self) -> list[str]:
        try:
            return self._file.read_text().split()
        except FileNotFoundError:
            return []

    def hold(self, place: str, key: str) -> None:
        """Hold a put if it is the one that is asked for. Called in a thread of the store."""
        match self.words():
            case ["hold", wanted, prefix] if wanted == place and key.startswith(prefix):
                claimed = self._file.with_suffix(f".{os.getpid()}")
                claimed.write_text(key)
                try:
                    self._file.unlink()
                except FileNotFoundError:  # another put was faster
                    claimed.unlink()
                    return
                claimed.rename(self._held)
                while self._held.exists():
                    time.sleep(POLL_S)


class HoldingTree(Tree):
    commands: StoreCommands

    def put(self, key: str, pieces: Sequence[Buffer], create: bool, if_match: str | None) -> ObjectInfo:
        self.commands.hold("before", key)
        info = super().put(key, pieces, create, if_match)
        self.commands.hold("after", key)
        return info

    def _link(self, temporary: Path, path: Path, key: str) -> None:
        self.commands.hold("during", key)
        super()._link(temporary, path, key)

    def _replace(self, file: int, temporary: Path, path: Path, key: str, if_match: str | None) -> None:
        self.commands.hold("during", key)
        super()._replace(file, temporary, path, key, if_match)


class CommandedStore(LocalStore):
    def __init__(self, root: Path, commands: StoreCommands) -> None:
        super().__init__(root, shared=True)
        self._commands = commands
        self._tree = tree = HoldingTree(root, SystemClock())
        tree.commands = commands

    async def _obey(self) -> None:
        match self._commands.words():
            case ["away"]:
                raise Unavailable(f"{self.url}: no route to the store")
            case ["slow", seconds]:
                await asyncio.sleep(float(seconds))

    async def put(
        self, key: str, data: Buffer | Sequence[Buffer], *, create: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        await self._obey()
        return await super().put(key, data, create=create, if_match=if_match)

    async def get(self, key: str, start: int = 0, end: int | None = None) -> memoryview:
        await self._obey()
        return await super().get(key, start, end)

    async def head(self, key: str) -> ObjectInfo:
        await self._obey()
        return await super().head(key)

    async def list(self, prefix: str = "", after: str = "") -> AsyncIterator[ObjectInfo]:
        await self._obey()
        async for info in super().list(prefix, after):
            yield info

    async def delete(self, keys: Sequence[str]) -> None:
        await self._obey()
        await super().delete(keys)


async def open_commanded(url: str, _settings: Mapping[str, str]) -> CommandedStore:
    return CommandedStore(Path(urlsplit(url).path), StoreCommands(Path(os.environ["STORE_COMMANDS"])))
