"""Slices and markers that are damaged or missing: everything is served, or an error names the slice; never less."""

from __future__ import annotations

from pathlib import Path

import pytest
from broker_harness import open_broker
from stored_harness import client_of, markers, slices, stored_topic

from pydanube.model.errors import Corrupt
from pydanube.runtime.objects.memory import MemoryStore

ROWS = [(n, b"%d" % n) for n in range(6)]


async def _left_behind(directory: Path, objects: MemoryStore, crash: bool = True) -> None:
    async with open_broker(directory, objects=objects, crash=crash) as broker:
        client = await stored_topic(broker)
        producer = await client.producer()
        for n in range(6):
            await client.publish(producer, [b"%d" % n])


async def _read(directory: Path, objects: MemoryStore) -> list[tuple[int, bytes]]:
    async with open_broker(directory, objects=objects, crash=True) as broker:
        return await client_of(broker).read_all()


def _damaged(data: bytes, how: str) -> bytes:
    at = {"header": 20, "record": 70, "body": len(data) // 2, "end": len(data) - 1}
    if how == "cut":
        return data[: len(data) // 2]
    if how == "emptied":
        return b""
    flipped = bytearray(data)
    flipped[at[how]] ^= 4
    return bytes(flipped)


@pytest.mark.parametrize("how", ["header", "record", "body", "end", "cut", "emptied", "missing"])
async def test_a_damaged_slice_is_named_or_does_no_harm_and_can_be_put_back(tmp_path: Path, how: str) -> None:
    objects = MemoryStore()
    await _left_behind(tmp_path, objects, crash=False)  # sealed: the ends are known
    refused: list[tuple[str, str]] = []
    for key in await slices(objects):
        data = bytes(await objects.get(key))
        if how == "missing":
            await objects.delete([key])
        else:
            await objects.put(key, _damaged(data, how))
        try:
            assert await _read(tmp_path, objects) == ROWS
        except Corrupt as error:
            refused.append((str(int(key.rpartition("/")[2], 16)), error.message))
        await objects.put(key, data)
    assert refused or how == "end", "the last byte is padding"
    assert all(number in message for number, message in refused)
    assert await _read(tmp_path, objects) == ROWS


@pytest.mark.parametrize("how", ["header", "cut", "emptied", "missing"])
async def test_a_damaged_marker_is_named_or_does_no_harm(tmp_path: Path, how: str) -> None:
    objects = MemoryStore()
    await _left_behind(tmp_path, objects, crash=False)
    (key,) = await markers(objects)
    data = bytes(await objects.get(key))
    if how == "missing":
        await objects.delete([key])
    else:
        await objects.put(key, _damaged(data, how))
    try:
        assert await _read(tmp_path, objects) == ROWS
    except Corrupt:
        await objects.put(key, data)
        assert await _read(tmp_path, objects) == ROWS


@pytest.mark.parametrize("how", ["header", "cut", "missing"])
async def test_the_last_slices_of_a_killed_broker_are_named_when_damaged(tmp_path: Path, how: str) -> None:
    """Nobody has sealed the sequence yet: a slice that is damaged, or gone before others that say it counted, is no end
    of it."""
    objects = MemoryStore()
    await _left_behind(tmp_path, objects)
    keys = await slices(objects)
    middle = keys[len(keys) // 2]
    data = bytes(await objects.get(middle))
    if how == "missing":
        await objects.delete([middle])
    else:
        await objects.put(middle, _damaged(data, how))
    with pytest.raises(Corrupt):
        await _read(tmp_path, objects)
    await objects.put(middle, data)
    assert await _read(tmp_path, objects) == ROWS


async def test_the_last_slice_of_a_killed_broker_was_never_there_if_it_is_gone(tmp_path: Path) -> None:
    """Nothing is left that could say that it counted."""
    objects = MemoryStore()
    await _left_behind(tmp_path, objects)
    await objects.delete([(await slices(objects))[-1]])
    found = await _read(tmp_path, objects)
    assert found == ROWS[: len(found)]


async def test_objects_of_other_names_under_slices_do_no_harm(tmp_path: Path) -> None:
    objects = MemoryStore()
    await _left_behind(tmp_path, objects)
    (key, *_) = await slices(objects)
    foreign = ["slices/readme.txt", f"{key}.bak", f"{key.rpartition('/')[0]}/notes"]
    for name in foreign:
        await objects.put(name, bytes(100))
    async with open_broker(tmp_path, objects=objects, crash=True) as broker:
        assert await client_of(broker).read_all() == ROWS
        assert broker._tiers is not None
        await broker._tiers.slice_collector.collect()
    assert set(foreign) <= set(await slices(objects))
