"""Who has the slices has the `stored` partitions: an owner goes on without a session, and stops once it is sealed."""

from __future__ import annotations

from pathlib import Path

import pytest
from broker_harness import TOPIC, created, open_broker
from cluster_harness import Node, World, open_world
from crc32c import crc32c
from stored_harness import STORED, sequences, slices, stored_topic
from tiering_harness import FaultyObjectStore

from pydanube.broker import Broker
from pydanube.broker.partitions import slice_takeover
from pydanube.codec.slice import SliceRecord, encode_marker, encode_slice, slice_key
from pydanube.codec.wal import RecordKind
from pydanube.core.access import ANONYMOUS
from pydanube.model.errors import DanubeError, NotFound, NotOwner, Refused, Unavailable
from pydanube.model.settings.sections import SliceSettings
from pydanube.model.topics import TopicConfig
from pydanube.runtime.clock import ManualClock
from pydanube.runtime.objects.memory import MemoryStore
from pydanube.runtime.tasks import Tasks
from pydanube.storage.slices import SliceWriter, seal
from pydanube.storage.slices.slice_writer import PROOF_S
from waiting import until


async def started(world: World, objects: MemoryStore) -> Node:
    a = await world.start("a", objects=objects)
    await a.client.create(ack_level=STORED)
    return a


def writer_of(node: Node) -> SliceWriter:
    assert node.broker._slices is not None
    found = node.broker._slices.current
    assert found is not None
    return found


async def test_publishes_are_answered_while_the_session_cannot_be_renewed(world):
    a = await started(world, MemoryStore())
    producer = await a.client.producer("p")
    await a.client.publish(producer, [b"0"], sequence=0)
    a.member.is_held = False
    assert (await a.client.publish(producer, [b"1"], sequence=1)).base_offset == 1
    assert (await a.client.publish(producer, [b"1"], sequence=1)).duplicate


async def test_deliveries_and_acks_go_on_while_the_slices_are_proven_free(tmp_path: Path) -> None:
    clock, objects = ManualClock(), FaultyObjectStore()
    async with open_world(tmp_path, clock) as world:
        a = await started(world, objects)
        producer, sink = await a.client.producer(), await a.client.subscribe()
        await a.client.publish(producer, [b"0"])
        assert await sink.wait_for(1) == [(0, b"0")]
        a.member.is_held = False
        partition = await world_partition(a)
        assert not partition.ownership.holds(), "nothing was proven yet"
        await writer_of(a).prove()
        assert partition.ownership.holds()
        await a.client.publish(producer, [b"1"])
        assert await sink.wait_for(2) == [(0, b"0"), (1, b"1")]
        await sink.ack((0, 2))
        objects.fault = "unreadable"
        clock.advance(PROOF_S)
        assert not partition.ownership.holds()
        await a.client.publish(producer, [b"2"])
        assert len(sink.received) == 2, "it cannot tell whether it still has the partition"
        with pytest.raises(Unavailable):
            await writer_of(a).prove()
        assert not partition.ownership.holds()
        objects.fault = "none"
        a.member.is_held = True


async def world_partition(node: Node):
    found = node.broker._partitions.find(node.broker._registry.topic(TOPIC).topic_id, 0)
    assert found is not None
    return found


async def test_the_proof_is_made_again_and_again_while_the_session_is_in_doubt(world):
    a = await started(world, MemoryStore())
    producer, sink = await a.client.producer(), await a.client.subscribe()
    await a.client.publish(producer, [b"0"])
    a.member.is_held = False
    await until(writer_of(a).is_proven)
    await a.client.publish(producer, [b"1"])
    assert await sink.wait_for(2) == [(0, b"0"), (1, b"1")]


async def test_a_partition_that_is_not_open_stays_closed_without_a_session(world):
    a = await started(world, MemoryStore())
    await a.client.publish(await a.client.producer(), [b"0"])
    other = await created(a.broker, TOPIC.parse("/default/other"), ack_level=STORED)
    a.member.is_held = False
    await until(writer_of(a).is_proven)
    with pytest.raises(Unavailable):
        await other.fetch()
    assert len((await a.client.fetch()).batches) == 1


async def test_a_sealed_owner_closes_its_stored_partitions_and_no_others(world):
    objects = MemoryStore()
    a = await started(world, objects)
    durable = await created(a.broker, TOPIC.parse("/default/durable"))
    kept = await durable.producer()
    producer, sink = await a.client.producer(), await a.client.subscribe()
    await a.client.publish(producer, [b"0"])
    await sink.wait_for(1)
    await seal(objects, a.member.session.incarnation, 0, 99)
    a.member.is_held = False
    await until(lambda: sink.error is not None)
    assert isinstance(sink.error, NotOwner), "the proof found the marker"
    assert not writer_of(a).is_proven()
    a.member.is_held = True
    with pytest.raises(NotOwner):
        await a.client.publish(producer, [b"1"])
    await durable.publish(kept, [b"x"])


async def test_a_publish_under_a_seal_is_refused_and_its_partition_closed(world):
    objects = MemoryStore()
    a = await started(world, objects)
    producer = await a.client.producer()
    await a.client.publish(producer, [b"0"])
    end = await seal(objects, a.member.session.incarnation, 0, 99)
    with pytest.raises(NotOwner):
        await a.client.publish(producer, [b"1"])
    assert [one for one in await slices(objects) if one >= slice_key(a.member.session.incarnation, end)] == []
    assert a.broker._partitions.find(a.broker._registry.topic(TOPIC).topic_id, 0) is None


@pytest.mark.parametrize("found", ["a marker", "garbage"])
async def test_a_session_whose_slices_cannot_be_used_is_given_up(world, found):
    """It lives, and nobody took its partitions: under the next session they go on."""
    objects = MemoryStore()
    a = await started(world, objects)
    producer = await a.client.producer("p")
    await a.client.publish(producer, [b"0"], sequence=0)
    former = writer_of(a)
    key = slice_key(former.incarnation, former.next_number)
    marker = encode_marker(former.incarnation, former.next_number, 99)
    await objects.put(key, marker if found == "a marker" else b"x" * 200)
    with pytest.raises(DanubeError):
        await a.client.publish(producer, [b"1"], sequence=1)
    with pytest.raises(Unavailable, match="takes a new session"):
        await a.client.come_back(producer, "p")
    assert former.incarnation in a.member.given_up
    await world.sessions.end("a")
    await world.sessions.begin("a")
    await objects.put(key, marker)
    again = await a.client.come_back(producer, "p")
    assert (await a.client.publish(again, [b"1"], sequence=1)).base_offset == 1
    assert [payload for _, payload in await a.client.read_all()] == [b"0", b"1"]


async def test_a_lost_session_is_never_reused(world):
    """Its slices end at once: what is on its way is answered with an error, and the next session has others."""
    objects = FaultyObjectStore()
    a = await started(world, objects)
    producer = await a.client.producer("p")
    await a.client.publish(producer, [b"0"], sequence=0)
    former = writer_of(a)
    objects.fault = "hanging"
    waiting = a.client.publish(producer, [b"1"], sequence=1)
    await objects.waiting.wait()
    await world.sessions.end("a")
    with pytest.raises(NotOwner):
        await waiting
    assert former.is_ended
    objects.fault = "none"
    objects.answer.set()
    await world.sessions.begin("a")
    again = await a.client.come_back(producer, "p")
    answer = await a.client.publish(again, [b"1"], sequence=1)
    assert answer.base_offset == 1
    assert writer_of(a) is not former
    assert writer_of(a).incarnation > former.incarnation
    assert [payload for _, payload in await a.client.read_all()] == [b"0", b"1"]


async def test_a_marker_behind_a_missing_slice_is_found(tmp_path: Path) -> None:
    """A partition that begins behind slices that were never stored is sealed behind them."""
    objects, tasks = FaultyObjectStore(), Tasks()
    one = SliceWriter(objects, 7, SliceSettings(), ManualClock(), tasks)
    assert await one.is_free()
    one._sequence.next_number = 3  # slices 0 to 2 are on their way
    await seal(objects, 7, 2, 9)
    assert not await one.is_free()
    await tasks.close()


# -- ends of sequences -------------------------------------------------------------------------------------------------


async def test_each_partition_gets_the_end_that_its_own_slices_have() -> None:
    """Slice 2 was never stored. A partition that begins behind it does not decide where the others end."""
    objects, tasks = MemoryStore(), Tasks()
    entry = SliceRecord(RecordKind.DATA, 1, 0, 1, b"x", crc32c(b"x"))
    for number in (0, 1, 3):
        await objects.put(slice_key(7, number), encode_slice(7, number, 1, [entry], min(number, 2)))
    own = SliceWriter(objects, 9, SliceSettings(), ManualClock(), tasks)
    takeover = slice_takeover.SliceTakeover(objects, lambda: own, tasks, ManualClock())
    assert await takeover._sealed_end(7, 4) == 4
    assert await takeover._sealed_end(7, 0) == 2
    assert await takeover._sealed_end(7, 1) == 2
    assert await takeover._sealed_end(7, 3) == 4
    await tasks.close()


# -- stores ------------------------------------------------------------------------------------------------------------


async def test_a_stored_topic_on_an_unfit_store_is_refused_by_name_and_nothing_changes(tmp_path: Path) -> None:
    objects = FaultyObjectStore("careless")
    async with open_broker(tmp_path, objects=objects) as broker:
        with pytest.raises(Refused, match=f"{objects.url} cannot keep topics of the ack level `stored`"):
            await stored_topic(broker)
        with pytest.raises(NotFound):
            await broker.topics.describe(ANONYMOUS, TOPIC)
        await broker.topics.create(ANONYMOUS, TOPIC, TopicConfig())


async def test_a_stored_topic_without_an_object_store_is_refused(broker):
    with pytest.raises(Refused, match=r"storage\.url"):
        await stored_topic(broker)


async def _healths(broker: Broker) -> list[str]:
    """Return what descriptions, statistics and lists say of the topic and of the broker."""
    described = await broker.topics.describe(ANONYMOUS, TOPIC)
    counted = await broker.statistics.topic(ANONYMOUS, TOPIC)
    summaries = [one async for chunk in broker.statistics.all(ANONYMOUS) for one in chunk]
    (cluster,) = broker.cluster.describe(ANONYMOUS).brokers
    healths = [one.health for one in (*described.partitions, *counted.partitions, *summaries)]
    return [*healths, cluster.state, broker.describe(ANONYMOUS).state]


async def test_a_store_that_takes_no_slices_shows_in_all_that_describes_the_topic(tmp_path: Path) -> None:
    objects = FaultyObjectStore()
    async with open_broker(tmp_path, objects=objects, crash=True) as broker:
        client = await stored_topic(broker)
        producer = await client.producer()
        await client.publish(producer, [b"0"])
        assert set(await _healths(broker)) == {"ok"}
        objects.fault = "away"
        waiting = client.publish(producer, [b"1"])
        await until(lambda: "slices cannot be put" in broker.describe(ANONYMOUS).state)
        found = await _healths(broker)
        assert all(one.startswith("slices cannot be put: ") for one in found), found
        objects.fault = "none"
        await waiting
        assert set(await _healths(broker)) == {"ok"}


async def test_no_partition_begins_while_slices_cannot_be_put(tmp_path: Path) -> None:
    """What counts at its broker may lie far behind what is stored, and deleted."""
    objects = FaultyObjectStore()
    async with open_broker(tmp_path, objects=objects, crash=True) as broker:
        client, other = await stored_topic(broker), await stored_topic(broker, "other")
        producer, others = await client.producer(), await other.producer()
        await client.publish(producer, [b"0"])
        objects.fault = "away"
        waiting = client.publish(producer, [b"1"])
        await until(lambda: "slices cannot be put" in broker.describe(ANONYMOUS).state)
        with pytest.raises(Unavailable, match="slices cannot be put"):
            await other.publish(others, [b"x"])
        assert [found for found in await sequences(broker._store) if not found], "its record names no slices"
        objects.fault = "none"
        await waiting
        await other.publish(others, [b"x"])
