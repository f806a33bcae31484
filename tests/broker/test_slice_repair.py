"""Slices that are damaged for good: what they held is given up by consent, and everything else is served."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from broker_harness import open_broker
from stored_harness import client_of, markers, slices, stored_topic

from pydanube.broker import Broker
from pydanube.codec.slice import parse_slice_key, slice_key
from pydanube.core.access import ANONYMOUS
from pydanube.model.errors import Corrupt, Invalid, Refused
from pydanube.model.storage import SliceLoss
from pydanube.runtime.objects.memory import MemoryStore

ORDERS, OTHER = "/default/orders", "/default/other"
FOREIGN = b"this is somebody's file, and much longer than the header of a slice is: 64 bytes"


async def left_behind(directory: Path, objects: MemoryStore, crash: bool = True) -> list[str]:
    """Publish 0 to 5 to one topic, and one message to another, each in a slice of its own; return the slices that
    hold a message, in that order."""
    async with open_broker(directory, objects=objects, crash=crash) as broker:
        client, other = await stored_topic(broker), await stored_topic(broker, "other")
        producer, others = await client.producer(), await other.producer()
        holding: list[str] = []
        for n in range(6):
            holding += await _put_by(objects, client.publish(producer, [b"%d" % n]))
        return holding + await _put_by(objects, other.publish(others, [b"other"]))


async def _put_by(objects: MemoryStore, publishing: object) -> list[str]:
    before = set(await slices(objects))
    await publishing  # type: ignore[misc]
    return sorted(set(await slices(objects)) - before)[-1:]


async def repaired(broker: Broker, key: str, accept_loss: bool = True) -> list[SliceLoss]:
    return (await broker.storage.repair_slice(ANONYMOUS, key, accept_loss)).losses


@asynccontextmanager
async def waiting(directory: Path, objects: MemoryStore, key: str) -> AsyncIterator[Broker]:
    """Open a broker, where the topic waits for the object, which the error names."""
    async with open_broker(directory, objects=objects, crash=True) as broker:
        with pytest.raises(Corrupt, match=key):
            await client_of(broker).read_all()
        yield broker


@pytest.mark.parametrize("crash", [True, False])
@pytest.mark.parametrize("damage", [FOREIGN, b"", None], ids=["foreign", "emptied", "missing"])
async def test_what_follows_a_damaged_slice_is_served_and_the_loss_is_exact(
    tmp_path: Path, damage: bytes | None, crash: bool
) -> None:
    objects = MemoryStore()
    key = (await left_behind(tmp_path, objects, crash))[2]
    await (objects.delete([key]) if damage is None else objects.put(key, damage))
    async with waiting(tmp_path, objects, key) as broker:
        with pytest.raises(Refused, match=rf"{ORDERS} partition 0 from offset 2 on, at most up to 2;.*--accept-loss"):
            await repaired(broker, key, accept_loss=False)
        with pytest.raises(Corrupt, match=key):
            await client_of(broker).read_all()
        assert SliceLoss(ORDERS, 0, 2, 3) in await repaired(broker, key)
        client = client_of(broker)
        assert await client.read_all() == [(n, b"%d" % n) for n in (0, 1, 3, 4, 5)]
        assert await client_of(broker, "other").read_all() == [(0, b"other")]
        await client.publish(await client.producer("next"), [b"next"])
    async with open_broker(tmp_path, objects=objects, crash=True) as broker:
        found = await client_of(broker).read_all()
        assert found == [*((n, b"%d" % n) for n in (0, 1, 3, 4, 5)), (6, b"next")]


async def test_offsets_that_a_last_slice_may_have_held_are_never_given_out_again(tmp_path: Path) -> None:
    objects = MemoryStore()
    key = (await left_behind(tmp_path, objects))[5]
    await objects.put(key, FOREIGN)
    async with waiting(tmp_path, objects, key) as broker:
        losses = {one.topic: one for one in await repaired(broker, key)}
        lost = losses[ORDERS]
        assert lost.start == 5 < lost.end
        client = client_of(broker)
        kept = [(n, b"%d" % n) for n in range(5)]
        assert await client.read_all() == kept
        await client.publish(await client.producer("next"), [b"next"])
        assert await client.read_all() == [*kept, (lost.end, b"next")]
    for _ in range(2):  # also taken over again, with a gap between what is in slices
        async with open_broker(tmp_path, objects=objects, crash=True) as broker:
            assert await client_of(broker).read_all() == [*kept, (lost.end, b"next")]


async def test_a_foreign_object_in_the_place_of_the_next_slice_is_replaced(tmp_path: Path) -> None:
    objects = MemoryStore()
    await left_behind(tmp_path, objects)
    incarnation, number = parse_slice_key((await slices(objects))[-1]) or (0, 0)
    key = slice_key(incarnation, number + 1)
    await objects.put(key, FOREIGN)
    async with waiting(tmp_path, objects, key) as broker:
        with pytest.raises(Refused, match="from offset 6 on"):
            await repaired(broker, key, accept_loss=False)
        await repaired(broker, key)
        assert await client_of(broker).read_all() == [(n, b"%d" % n) for n in range(6)]


async def test_a_damaged_marker_is_made_again_without_a_loss(tmp_path: Path) -> None:
    objects = MemoryStore()
    await left_behind(tmp_path, objects, crash=False)
    async with open_broker(tmp_path, objects=objects, crash=True) as broker:
        await client_of(broker).read_all()  # the record names the end from here on
    (key, *_) = await markers(objects)
    data = bytes(await objects.get(key))
    await objects.put(key, FOREIGN)
    async with open_broker(tmp_path, objects=objects, crash=True) as broker:
        assert await repaired(broker, key, accept_loss=False) == []
    assert len(await objects.get(key)) == len(data)
    assert key in await markers(objects)


async def test_what_needs_no_repair_is_refused(tmp_path: Path) -> None:
    objects = MemoryStore()
    (first, *_) = await left_behind(tmp_path, objects)
    incarnation, _ = parse_slice_key(first) or (0, 0)
    async with open_broker(tmp_path, objects=objects, crash=True) as broker:
        with pytest.raises(Refused, match="is sound"):
            await repaired(broker, first)
        with pytest.raises(Refused, match="there is no object"):
            await repaired(broker, slice_key(incarnation, 1000))
        with pytest.raises(Invalid, match="not the path of a slice"):
            await repaired(broker, "segments/a.seg")
        client = client_of(broker)
        await client.publish(await client.producer("next"), [b"next"])
        own = (await slices(objects))[-1]
        await objects.put(own, FOREIGN)
        with pytest.raises(Refused, match="lives and has in its log"):
            await repaired(broker, own)
        assert bytes(await objects.get(own)) == FOREIGN
