"""Tables of records: in memory what is stored, changes that compare, and versions that a caller expects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from pydanube.metadata import EmbeddedStore, Put
from pydanube.metadata.packing import pack, version_of
from pydanube.metadata.record_table import RecordTable, named_table
from pydanube.model.errors import AlreadyExists, Conflict, Corrupt, NotFound
from pydanube.runtime.clock import SystemClock

PREFIX = "/colours/"


class Colour(msgspec.Struct, omit_defaults=True):
    red: int = 0
    green: int = 0


class Newer(Colour):
    blue: int = 0


class Colours:
    """A table, and what was taken from it."""

    def __init__(self, store: EmbeddedStore) -> None:
        self.known: dict[str, Colour] = {}
        self.table: RecordTable[str, Colour] = named_table(store, SystemClock(), Colour, PREFIX, self._take, "colour")

    def _take(self, name: str, record: Colour | None) -> None:
        if record is None:
            del self.known[name]
        else:
            self.known[name] = record


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[EmbeddedStore]:
    opened = await EmbeddedStore.open(tmp_path / "metadata.db", SystemClock())
    yield opened
    await opened.close()


async def test_a_record_is_in_memory_as_soon_as_it_is_stored(store: EmbeddedStore) -> None:
    here, later = Colours(store), Colours(store)
    await here.table.create("sky", Colour(1))
    await here.table.change("sky", lambda one: Colour(one.red, 7))
    await here.table.create("sea", Colour(3))
    await here.table.delete("sea")
    assert here.known == {"sky": Colour(1, 7)}
    await later.table.load()
    assert later.known == here.known
    assert await here.table.exists("sky") and not await here.table.exists("sea")


async def test_what_there_is_and_what_there_is_not_is_refused_by_name(store: EmbeddedStore) -> None:
    colours = Colours(store)
    await colours.table.create("sky", Colour(1))
    with pytest.raises(AlreadyExists, match="colour 'sky' exists"):
        await colours.table.create("sky", Colour(2))
    for refused in (colours.table.delete("sea"), colours.table.change("sea", lambda one: one)):
        with pytest.raises(NotFound, match="there is no colour 'sea'"):
            await refused
    with pytest.raises(NotFound, match="dry"):
        await colours.table.delete("sea", missing=NotFound("dry"))
    assert colours.known == {"sky": Colour(1)}


async def test_a_change_that_expects_another_version_is_not_made(store: EmbeddedStore) -> None:
    colours = Colours(store)
    await colours.table.create("sky", Colour(1))
    version = version_of(Colour(1))
    await colours.table.change("sky", lambda one: Colour(2), version)
    for refused in (
        colours.table.change("sky", lambda one: Colour(3), version),
        colours.table.set("sky", lambda one: Colour(3), version),
        colours.table.set("sea", lambda one: Colour(3), version),
        colours.table.delete("sky", version),
    ):
        with pytest.raises(Conflict, match=r"has changed since it had version .*: read it again"):
            await refused
    assert colours.known == {"sky": Colour(2)}


async def test_changes_of_two_brokers_at_once_are_both_made(store: EmbeddedStore) -> None:
    brokers = [Colours(store), Colours(store)]
    await asyncio.gather(
        *(one.table.set("sky", lambda former: Colour((former or Colour()).red + 1)) for one in brokers * 5)
    )
    found = await brokers[0].table.refresh("sky")
    assert found is not None and found.record == Colour(10)


async def test_fields_of_a_later_release_are_kept(store: EmbeddedStore) -> None:
    await store.transact([], [Put(f"{PREFIX}sky", pack(Newer(1, 2, 3)))])
    colours = Colours(store)
    await colours.table.load()
    changed = await colours.table.change("sky", lambda one: Colour(9, one.green))
    assert msgspec.msgpack.decode(changed.value, type=Newer) == Newer(9, 2, 3)


async def test_a_record_that_cannot_be_read_is_damage(store: EmbeddedStore) -> None:
    await store.transact([], [Put(f"{PREFIX}sky", b"?")])
    with pytest.raises(Corrupt, match="Colour cannot be read"):
        await Colours(store).table.load()
