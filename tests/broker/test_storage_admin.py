"""Object storage as an administrator sees it: usage, segments, uploads on demand, verification, collection."""

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from broker_harness import TOPIC, BrokerClient, created, open_broker, open_topic
from storage_harness import OTHER, SMALL, WAL, collected, filled, keys, uploaded, usage, verified
from tiering_harness import FaultyObjectStore

from pydanube.broker import Broker
from pydanube.broker.tiering import administration
from pydanube.core.access import ANONYMOUS, Action, Principal
from pydanube.metadata.store import Delete
from pydanube.model.errors import Denied, Full, Invalid, NotFound, Refused, Unavailable
from pydanube.model.names import TopicName
from pydanube.model.positions import EARLIEST, Position
from pydanube.model.storage import StorageCollected, StoragePlace, StorageVerified, added_up
from pydanube.runtime.clock import ManualClock
from pydanube.runtime.objects.memory import MemoryStore
from pydanube.storage.segments.catalog import segment_key


@pytest.fixture
def objects() -> FaultyObjectStore:
    return FaultyObjectStore()


@pytest.fixture
async def broker(request: pytest.FixtureRequest, tmp_path: Path, objects: FaultyObjectStore) -> AsyncIterator[Broker]:
    clock = request.getfixturevalue("clock") if "clock" in request.fixturenames else None
    async with open_broker(tmp_path, wal=WAL, objects=objects, tiering=SMALL, clock=clock) as opened:
        yield opened


async def test_usage_says_what_is_uploaded_and_what_waits(broker, clock, objects):
    client = await created(broker, partitions=2)
    await filled(client, 40)
    assert (await uploaded(broker)).failure == ""
    await filled(client, 1, partition=1)
    clock.advance(90)
    status, (first, second) = await usage(broker)
    assert (status.url, status.uploads, status.refusing, status.garbage) == (objects.url, "ok", "", 0)
    assert status.objects_made == first.segments >= 2
    assert (first.topic, first.partition, first.messages, first.uploaded_end) == (str(TOPIC), 0, 4000, 4000)
    assert (first.waiting_messages, first.waiting_bytes, first.waiting_s) == (0, 0, 0)
    assert first.uploaded_bytes > 400_000
    assert (second.segments, second.waiting_messages, second.waiting_s) == (0, 100, 90)
    assert second.waiting_bytes > 10_000
    total = added_up("", [first, second])
    assert (total.messages, total.waiting_messages, total.waiting_s) == (4000, 100, 90)
    assert await usage(broker, TOPIC) == (status, [first, second])
    assert await usage(broker, TopicName.parse("/default/orders")) == (status, [first, second])


async def test_the_uploads_of_a_principal_leave_some_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(administration, "RUNS_MAX", 6)
    objects, (eve, bob) = FaultyObjectStore(), (Principal("eve"), Principal("bob"))
    async with open_broker(tmp_path, wal=WAL, objects=objects, tiering=SMALL) as broker:
        for topic in (TOPIC, OTHER):
            client = await created(broker, topic)
            objects.fault = "hanging"
            await filled(client, 1)
        for _ in range(2):
            await broker.storage.upload(eve, TOPIC)
        with pytest.raises(Full, match="user:eve has 2 uploads under way"):
            await broker.storage.upload(eve, TOPIC)
        await broker.storage.upload(bob, OTHER)
        objects.fault = "none"
        objects.answer.set()


async def test_a_long_history_is_counted_in_parts(broker, objects, monkeypatch):
    for client in (BrokerClient(broker), BrokerClient(broker, OTHER)):
        await client.create()
        for _ in range(4):
            await filled(client, 1)
            await uploaded(broker)
    _, whole = await usage(broker)
    assert [one.segments for one in whole] == [4, 4]
    monkeypatch.setattr(administration, "COUNTED_MAX", 1)
    pages = broker._tiers.catalog.pages
    monkeypatch.setattr(broker._tiers.catalog, "pages", lambda *place: pages(*place, size=1))
    _, parts = await usage(broker)
    assert len(parts) > 8
    for one in whole:
        mine = [part for part in parts if part.topic == one.topic]
        assert sum(part.segments for part in mine) == 4
        assert sum(part.messages for part in mine) == one.messages


async def test_usage_says_since_when_uploads_fail_and_whether_publishes_are_refused(
    tmp_path: Path, objects: FaultyObjectStore
):
    clock = ManualClock()
    tiering = replace(SMALL, log_bytes_max=1 << 18)
    async with open_broker(tmp_path, wal=WAL, objects=objects, tiering=tiering, clock=clock) as broker:
        client = await created(broker)
        await filled(client, 10)
        objects.fault = Unavailable("no route to the store")
        began = clock.now_us()
        state = await uploaded(broker)
        assert ("no route" in state.failure, state.partitions_left, state.left_bytes > 0) == (True, 1, True)
        with pytest.raises(Unavailable):
            await filled(client, 100)
        clock.advance(60)
        await uploaded(broker)
        status, (about,) = await usage(broker)
        assert (status.uploads, status.failing_since) == ("failing", began)
        assert "no route" in status.failure
        assert "log_bytes_max" in status.refusing
        assert about.waiting_s == 60
        objects.fault = Refused("it is somebody else's")
        await uploaded(broker)
        assert (await usage(broker))[0].uploads == "refused"
        objects.fault = "none"
        assert (await uploaded(broker)).failure == ""
        assert (await usage(broker))[0].uploads == "ok"


async def test_one_topic_is_uploaded_and_others_are_left_alone(broker, objects):
    for client in (BrokerClient(broker), BrokerClient(broker, OTHER)):
        await client.create()
        await filled(client, 3)
    state = await uploaded(broker, OTHER)
    assert (state.done, state.left_bytes, state.partitions_left) == (True, 0, 0)
    assert state.total_bytes > 30_000
    mine, other = (await usage(broker))[1]
    assert (mine.messages, other.messages) == (0, 300)
    with pytest.raises(NotFound):
        await broker.storage.upload_state(ANONYMOUS, state.run + 1)
    with pytest.raises(NotFound):
        await broker.storage.upload(ANONYMOUS, TopicName.parse("/default/nowhere"))


async def test_an_upload_that_is_done_by_others_while_it_waits_has_not_failed(tmp_path: Path):
    objects = FaultyObjectStore()
    async with open_topic(tmp_path, wal=WAL, objects=objects, tiering=SMALL) as client:
        await filled(client, 3)
        await client.broker._tiers.check_ours()
        uploader, asked = client.broker._tiers.uploader, asyncio.Event()
        objects.fault = "hanging"
        others = asyncio.create_task(uploader.round(everything=True))
        await objects.waiting.wait()
        turn = uploader.round

        def asked_for(**wishes):
            asked.set()
            return turn(**wishes)

        uploader.round = asked_for
        uploading = asyncio.create_task(uploaded(client.broker))
        await asked.wait()
        objects.answer.set()
        assert await others == 1
        state = await uploading
        assert (state.failure, state.left_bytes, state.partitions_left) == ("", 0, 0)
        assert (objects.puts, len(await keys(objects))) == (2, 1), "a claim and an object"


async def test_segments_are_listed_by_offset_and_time_page_by_page(broker, clock, objects):
    client = await created(broker)
    times = []
    for _ in range(5):
        clock.advance(10)
        times.append(clock.now_us())
        await filled(client, 1)
        await uploaded(broker)

    async def firsts(start: Position, most: int = 1000) -> tuple[list[int], int]:
        page = await broker.storage.segments(ANONYMOUS, TOPIC, 0, start, most)
        return [one.first_offset for one in page.segments], page.next_offset

    assert await firsts(EARLIEST) == ([0, 100, 200, 300, 400], -1)
    assert await firsts(EARLIEST, 2) == ([0, 100], 200)
    assert await firsts(Position("offset", 200), 2) == ([200, 300], 400)
    assert await firsts(Position("offset", 350)) == ([300, 400], -1)
    assert await firsts(Position("time", times[3])) == ([300, 400], -1)
    assert await firsts(Position("time", times[4] + 1)) == ([], -1)
    assert await firsts(Position("latest")) == ([], -1)
    (one,) = (await broker.storage.segments(ANONYMOUS, TOPIC, 0, Position("offset", 450), 1)).segments
    assert (one.end_offset, one.messages, one.first_time, one.object in await keys(objects)) == (
        500,
        100,
        times[4],
        True,
    )
    with pytest.raises(NotFound, match="no partition 1"):
        await broker.storage.segments(ANONYMOUS, TOPIC, 1, EARLIEST, 1)


@pytest.mark.parametrize("bytes_max", [1, 10_000, 1 << 30])
async def test_intact_segments_are_verified_completely_in_steps_of_any_size(
    tmp_path: Path, objects: FaultyObjectStore, bytes_max: int
):
    async with open_broker(tmp_path, wal=WAL, objects=objects, tiering=replace(SMALL, segment_bytes=1 << 22)) as broker:
        for client in (BrokerClient(broker), BrokerClient(broker, OTHER)):
            await client.create(partitions=2)
            await filled(client, 200)
        await uploaded(broker)
        found = await verified(broker, bytes_max=bytes_max)
        assert (found.segments, found.messages, found.damages) == (2, 40_000, [])
        assert found.bytes >= sum([one.size async for one in objects.list("segments/")]) - 1000
        assert (await verified(broker, OTHER, bytes_max)).messages == 20_000


async def test_each_damage_is_reported_with_object_and_offsets_and_nothing_is_changed(
    tmp_path: Path, objects: FaultyObjectStore
):
    async with open_topic(tmp_path, wal=WAL, objects=objects, tiering=SMALL) as client:
        for _ in range(6):
            await filled(client, 2)
            await uploaded(client.broker)
        batch, head, footer, short, gone, sound = await keys(objects)
        for key, at in ((batch, 5000), (head, 20), (footer, -70)):
            whole = bytearray(await objects.get(key))
            whole[at] ^= 1
            await objects.put(key, whole)
        await objects.put(short, bytes(await objects.get(short))[:-64])
        await objects.delete([gone])
        before = {key: bytes(await objects.get(key)) for key in await keys(objects)}
        found = await verified(client.broker)
        assert [(one.object, one.first_offset, one.end_offset, one.kind) for one in found.damages] == [
            (batch, 0, 200, "damaged"),
            (head, 200, 400, "damaged"),
            (footer, 400, 600, "damaged"),
            (short, 600, 800, "damaged"),
            (gone, 800, 1000, "missing"),
        ]
        assert "batch of offset" in found.damages[0].detail
        assert all(one.object in one.detail for one in found.damages)
        assert (found.segments, {key: bytes(await objects.get(key)) for key in await keys(objects)}) == (6, before)
        assert sound in before


async def test_bytes_between_batches_count_too(tmp_path: Path, objects: FaultyObjectStore):
    async with open_topic(tmp_path, wal=WAL, objects=objects, tiering=SMALL) as client:
        await filled(client, 2)
        await uploaded(client.broker)
        (segment,) = (await client.broker.storage.segments(ANONYMOUS, TOPIC, 0, EARLIEST, 1)).segments
        whole = bytearray(await objects.get(segment.object))
        assert whole[64 + segment.bytes - 1] == 0
        whole[64 + segment.bytes - 1] = 1
        await objects.put(segment.object, whole)
        (damage,) = (await verified(client.broker)).damages
        assert "checksum" in damage.detail


@pytest.mark.parametrize("lost", [100, 200, 300])
async def test_a_hole_in_the_catalog_is_damage(broker, objects, lost):
    client = await created(broker)
    for _ in range(3):
        await filled(client, 1)
        await uploaded(broker)
    topic_id = (await broker.topics.describe(ANONYMOUS, TOPIC)).topic_id
    await broker.storage._store.transact([], [Delete(segment_key(topic_id, 0, lost))])
    (damage,) = (await verified(broker)).damages
    assert (damage.first_offset, damage.end_offset, damage.kind, damage.object) == (lost - 100, lost, "missing", "")


async def test_what_retention_took_is_not_missed(broker, clock, objects):
    client = await created(broker)
    for _ in range(3):
        await filled(client, 1)
        await uploaded(broker)
        clock.advance(100)
    await broker.policies.set(ANONYMOUS, TOPIC, {"retention_s": 150})
    await broker._lifetimes.round()
    found = await verified(broker)
    assert (found.segments, found.damages) == (1, [])
    status, _ = await usage(broker)
    assert status.garbage == 2
    await broker.policies.set(ANONYMOUS, TOPIC, {"retention_s": 0})
    await broker._lifetimes.round()
    assert await verified(broker) == StorageVerified()


async def test_garbage_is_counted_first_and_goes_after_the_grace(broker, clock, objects):
    client = await created(broker)
    await filled(client, 3)
    await uploaded(broker)
    await broker.topics.delete(ANONYMOUS, TOPIC)
    assert await collected(broker) == StorageCollected(looked_at=1, waiting=1)
    clock.advance(3601)
    assert await collected(broker, dry_run=True) == StorageCollected(looked_at=1, deleted=1)
    assert len(await keys(objects)) == 1
    assert (await collected(broker)).deleted == 1
    assert await keys(objects) == []
    assert await collected(broker) == StorageCollected()


async def test_orphans_go_and_what_is_needed_or_young_or_in_its_grace_stays(
    tmp_path: Path, objects: FaultyObjectStore, monkeypatch: pytest.MonkeyPatch
):
    clock = ManualClock()
    tiering = replace(SMALL, grace_s=60)
    async with open_broker(tmp_path, wal=WAL, objects=objects, tiering=tiering, clock=clock) as broker:
        for client in (BrokerClient(broker), BrokerClient(broker, OTHER)):
            await client.create()
            await filled(client, 3)
            await uploaded(broker, client.topic)
        needed, leaving = await keys(objects)
        for number in range(3):
            await objects.put(f"segments/shared/00000000/orphan-{number}.seg", b"x" * 10)
        assert (await collected(broker, orphans=True)).deleted == 0
        modified = {info.key: info.modified_us async for info in objects.list("segments/")}
        clock.set_wall(max(modified.values()) + 599_000_000)
        assert (await collected(broker, orphans=True)).waiting == 3
        clock.set_wall(max(modified.values()) + 601_000_000)
        await broker.topics.delete(ANONYMOUS, OTHER)
        assert await collected(broker, orphans=True, dry_run=True) == StorageCollected(5, 3, 30)
        monkeypatch.setattr(administration, "STEP_S", 0.0)  # every step ends after its first object
        assert await collected(broker, orphans=True) == StorageCollected(5, 3, 30)
        assert await keys(objects) == [needed, leaving]


async def test_a_deletion_that_was_cut_short_is_finished(broker, clock, objects):
    client = await created(broker)
    await filled(client, 3)
    await uploaded(broker)
    await broker._registry.delete_topic(TOPIC)
    assert (await collected(broker)).waiting == 1
    clock.advance(3601)
    assert (await collected(broker)).deleted == 1


class AskedFor:
    """An authorizer that refuses everything while it is `on`, and records what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Action, str]] = []
        self.on = False

    def check(self, principal: Principal, action: Action, resource: str) -> None:
        if self.on:
            self.asked.append((action, resource))
            raise Denied(f"{principal} may not {action} {resource}")

    def allows(self, principal: Principal, action: Action, resource: str) -> bool:
        return not self.on


async def test_the_authorizer_is_asked_before_anything_else(tmp_path: Path, objects: FaultyObjectStore):
    authorizer = AskedFor()
    async with open_broker(tmp_path, objects=objects, tiering=SMALL, authorizer=authorizer) as broker:
        authorizer.on = True
        storage, place = broker.storage, StoragePlace()
        calls = [
            lambda topic: storage.upload(ANONYMOUS, topic),
            lambda topic: storage.verify(ANONYMOUS, topic, place, 1),
        ]
        for call in calls:
            for topic in (None, TOPIC):
                with pytest.raises(Denied):
                    await call(topic)
        seen = await storage.usage(ANONYMOUS, None, place)
        assert (seen.status.url, seen.status.uploads, seen.partitions) == ("", "hidden", [])
        for call in (
            storage.usage(ANONYMOUS, TOPIC, place),
            storage.segments(ANONYMOUS, TOPIC, 0, EARLIEST, 1),
            storage.upload_state(ANONYMOUS, 1),
            storage.collect(ANONYMOUS, False, False, ""),
        ):
            with pytest.raises(Denied):
                await call
        assert [resource for _, resource in authorizer.asked] == ["/", str(TOPIC)] * 2 + [str(TOPIC)] * 2 + ["/", "/"]
        assert {action for action, _ in authorizer.asked} == {Action.DESCRIBE, Action.READ, Action.ADMINISTER}


@pytest.mark.parametrize(
    "place", [StoragePlace(partition=-1), StoragePlace(offset=-1), StoragePlace(byte=-1), StoragePlace(crc=1 << 32)]
)
async def test_an_invalid_place_to_continue_is_refused(tmp_path: Path, objects: FaultyObjectStore, place: StoragePlace):
    async with open_broker(tmp_path, objects=objects, tiering=SMALL) as broker:
        with pytest.raises(Invalid):
            await broker.storage.usage(ANONYMOUS, None, place)


@pytest.mark.parametrize("objects", [None])
async def test_a_broker_without_object_storage_says_so(broker):
    with pytest.raises(Refused, match="no object storage"):
        await broker.storage.usage(ANONYMOUS, None, StoragePlace())


async def test_nothing_is_collected_in_the_store_of_another_cluster(broker, clock, objects):
    await objects.put("danube-cluster", b"somebody else")
    await objects.put("segments/shared/00000000/theirs-00000001.seg", b"all they have")
    clock.advance(10**9)
    for orphans in (False, True):
        with pytest.raises(Refused, match="somebody else"):
            await broker.storage.collect(ANONYMOUS, orphans, False, "")
        await broker._tiers._collect(orphans)
    assert len(await keys(objects)) == 1


async def test_what_is_on_its_way_into_the_catalog_is_no_orphan_however_long_it_takes(broker, clock, objects):
    client = await created(broker)
    await filled(client, 3)
    there, go_on = asyncio.Event(), asyncio.Event()

    class Slow(MemoryStore):
        async def put(self, key, *arguments, **options):
            info = await objects.put(key, *arguments, **options)
            if key.startswith("segments/"):
                there.set()
                await go_on.wait()
            return info

    broker._tiers.uploader._objects = Slow()
    uploading = asyncio.create_task(uploaded(broker))
    await there.wait()
    clock.advance(10**9)
    assert (await collected(broker, orphans=True)).deleted == 0
    go_on.set()
    assert (await uploading).failure == ""
    assert (await verified(broker)).damages == []


async def test_segments_that_are_merged_while_they_are_verified_are_not_missed(
    tmp_path: Path, objects: FaultyObjectStore
):
    tiering = replace(SMALL, segment_bytes=1 << 20)
    async with open_broker(tmp_path, wal=WAL, objects=objects, tiering=tiering) as broker:
        client = await created(broker)
        for _ in range(60):
            await filled(client, 1)
            await uploaded(broker)
        step = await broker.storage.verify(ANONYMOUS, None, StoragePlace(), 1)
        steps = 0
        while step.next is not None:
            assert step.verified.damages == []
            if steps % 7 == 3:
                await broker._tiers.merger.round()
            step = await broker.storage.verify(ANONYMOUS, None, step.next, 1)
            steps += 1
        assert broker._tiers.merger.merged > 0
        found = await verified(broker)
        assert (found.messages, found.damages) == (6000, [])
        assert found.segments < 60


class Shaky(MemoryStore):
    """A store of which, while it is `shaky`, about every fifth read fails."""

    chance = random.Random(4)
    shaky = False

    async def get(self, key, start=0, end=None):
        if self.shaky and self.chance.random() < 0.2:
            raise Unavailable("no route to the store")
        return await super().get(key, start, end)


async def test_a_verification_gets_on_with_a_store_that_fails_now_and_then(broker):
    objects = Shaky()
    client = await created(broker)
    await filled(client, 300)
    await uploaded(broker)
    segments = (await broker.storage.segments(ANONYMOUS, TOPIC, 0, EARLIEST, 1000)).segments
    lost = segments[4]
    await broker._tiers._store.transact([], [Delete(segment_key(1, 0, lost.end_offset))])
    objects.shaky = True
    found, place, failures = StorageVerified(), StoragePlace(), 0
    async with asyncio.timeout(60):
        while place is not None:
            try:
                step = await broker.storage.verify(ANONYMOUS, None, place, 1 << 30)
            except Unavailable:
                failures += 1
            else:
                found, place = found.plus(step.verified), step.next
    assert found.segments == len(segments) - 1
    assert [(one.kind, one.first_offset) for one in found.damages] == [("missing", lost.first_offset)]
    assert failures < 50
