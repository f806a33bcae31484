"""Staged writes: invisible until committed, then published exactly once."""

import asyncio

import msgspec
import pytest
from broker_harness import TOPIC, BrokerClient, open_broker
from staging_harness import Query, payloads, quiet, staged_keys, stages_in, staging_broker
from tiering_harness import FaultyObjectStore

from pydanube.broker import SectionRequest, StageRequest
from pydanube.codec.batch import Batch, encode
from pydanube.core.access import ANONYMOUS, Action
from pydanube.core.staging import STAGED_PRODUCER, QueryRecord
from pydanube.model.errors import Corrupt, Denied, Invalid, NotFound, Refused, StaleEpoch, Unavailable
from pydanube.model.limits import CONTROL_BYTES_MAX
from pydanube.model.names import TopicName
from pydanube.model.positions import EARLIEST
from pydanube.model.topics import TopicConfig
from pydanube.operations.staging import CommitStages
from pydanube.runtime.objects.memory import MemoryStore
from waiting import until


@pytest.fixture
async def objects() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
async def broker(tmp_path, objects):
    async with staging_broker(tmp_path, objects) as broker:
        await broker.topics.create(ANONYMOUS, TOPIC, TopicConfig(partitions=3))
        yield broker


# -- committing ----------------------------------------------------------------------------------------------------


async def test_stages_of_a_commit_are_published_in_the_order_in_which_they_are_named(broker):
    query = Query(broker)
    late = await query.stage(0, {0: [b"3", b"4"], 2: [b"x"]})
    early = await query.stage(0, {0: [b"1", b"2"]})
    assert await payloads(broker) == []
    assert await query.commit(0, early, late) == (False, True)
    assert await payloads(broker) == [b"1", b"2", b"3", b"4"]
    assert await payloads(broker, 1) == []
    assert await payloads(broker, 2) == [b"x"]


async def test_a_stage_that_no_commit_names_is_never_published(broker):
    query = Query(broker)
    await query.stage(0, {0: [b"lost attempt"]}, attempt=1)
    good = await query.stage(0, {0: [b"good attempt"]}, attempt=2)
    await query.commit(0, good)
    assert await payloads(broker) == [b"good attempt"]


async def test_a_commit_that_is_repeated_changes_nothing(broker):
    query = Query(broker)
    stage = await query.stage(0, {0: [b"1"]})
    assert await query.commit(0, stage) == (False, True)
    assert await query.commit(0, stage) == (True, True)
    other = await query.stage(0, {0: [b"another try"]})
    assert await query.commit(0, other) == (True, True)
    assert await payloads(broker) == [b"1"]


async def test_a_commit_without_stages_advances_the_batch_id(broker):
    query = Query(broker)
    assert await query.commit(5) == (False, True)
    assert await query.commit(5) == (True, True)
    assert await query.write(4, {0: [b"too late"]}) == (True, True)
    assert await payloads(broker) == []


async def test_a_published_commit_leaves_no_keys_and_no_objects(broker, objects):
    query = Query(broker)
    for batch_id in range(3):
        await query.write(batch_id, {0: [b"%d" % batch_id], 1: [b"x"]}, {2: [b"y"]})
    await quiet(broker)
    assert await payloads(broker) == [b"0", b"1", b"2"]
    assert await stages_in(objects) == []
    assert await staged_keys(broker) == []


async def test_batches_of_a_query_are_published_in_order_without_waiting_for_them(broker):
    query = Query(broker)
    for batch_id in range(20):
        stage = await query.stage(batch_id, {0: [b"%d" % batch_id]})
        while True:
            try:
                await query.commit(batch_id, stage, wait_ms=0)
                break
            except Unavailable:
                await asyncio.sleep(0.001)
    await quiet(broker)
    assert await payloads(broker) == [b"%d" % number for number in range(20)]


async def test_a_commit_of_three_hundred_partitions_arrives_everywhere(tmp_path, objects):
    async with staging_broker(tmp_path, objects) as broker:
        await broker.topics.create(ANONYMOUS, TOPIC, TopicConfig(partitions=300))
        query = Query(broker)
        rows = [{index: [b"%d-%d" % (part, index)] for index in range(300)} for part in range(3)]
        assert await query.write(0, *rows) == (False, True)
        for index in range(300):
            assert await payloads(broker, index) == [b"%d-%d" % (part, index) for part in range(3)]
        await quiet(broker)
        assert await staged_keys(broker) == []
        assert await stages_in(objects) == []


async def test_what_is_published_is_signed_by_the_query(broker):
    await Query(broker).write(41, {0: [b"1", b"2"]}, {0: [b"3"]})
    fetched = await BrokerClient(broker).fetch(EARLIEST)
    headers = [Batch.open(view, stamped=True).header for view in fetched.batches]
    assert all(one.producer_id & STAGED_PRODUCER and one.producer_epoch == 42 for one in headers)
    assert [one.first_sequence for one in headers] == [0, 2]


async def test_a_producer_cannot_publish_with_the_id_of_a_query(broker):
    await Query(broker).write(0, {0: [b"1"]})
    fetched = await BrokerClient(broker).fetch(EARLIEST)
    producer_id = Batch.open(fetched.batches[0], stamped=True).header.producer_id
    with pytest.raises(Refused, match="never given out"):
        await BrokerClient(broker).producer(producer_id=producer_id, epoch=100)


async def test_many_small_batches_and_large_ones_are_published_whole(broker):
    query = Query(broker)
    small = [b"%d" % number for number in range(300)]
    large = [b"x" * 900_000 + b"%d" % number for number in range(12)]
    stages = [await query.stage(0, {0: small}, per_batch=1), await query.stage(0, {0: large, 1: [b"1"]}, per_batch=1)]
    await query.commit(0, *stages)
    assert await payloads(broker) == small + large


# -- runs ----------------------------------------------------------------------------------------------------------


async def test_a_run_that_was_followed_by_another_can_neither_stage_nor_commit(broker):
    old, new = Query(broker, run="old"), Query(broker, run="new")
    stage = await old.stage(0, {0: [b"old"]})
    fresh = await new.stage(0, {0: [b"new"]})
    with pytest.raises(StaleEpoch, match="'new'"):
        await old.commit(0, stage)
    with pytest.raises(StaleEpoch, match="'new'"):
        await old.stage(0, {0: [b"old"]})
    await new.commit(0, fresh)
    assert await payloads(broker) == [b"new"]


async def test_a_new_run_that_commits_what_is_committed_fences_the_old_one(broker):
    old, new = Query(broker, run="old"), Query(broker, run="new")
    await old.write(0, {0: [b"old"]})
    assert await new.commit(0) == (True, True)
    with pytest.raises(StaleEpoch):
        await old.write(1, {0: [b"old"]})
    assert await new.write(1, {0: [b"new"]}) == (False, True)


async def test_of_concurrent_commits_of_a_batch_exactly_one_is_published_completely(broker):
    queries = [Query(broker, run=f"run {number}") for number in range(8)]

    async def write(number: int) -> bool:
        rows = {index: [b"%d" % number] for index in range(3)}
        try:
            return not (await queries[number].write(0, rows)).repeated
        except StaleEpoch:
            return False

    won = await asyncio.gather(*[write(number) for number in range(8)])
    assert sum(won) == 1
    winner = b"%d" % won.index(True)
    assert [await payloads(broker, index) for index in range(3)] == [[winner]] * 3


async def test_queries_do_not_fence_each_other(broker):
    one, other = Query(broker, "one"), Query(broker, "other")
    await one.write(0, {0: [b"1"]})
    await other.write(0, {0: [b"2"]})
    await one.write(1, {0: [b"3"]})
    assert await payloads(broker) == [b"1", b"2", b"3"]


# -- what is refused -----------------------------------------------------------------------------------------------


async def test_a_commit_that_names_an_unknown_stage_publishes_nothing(broker):
    query = Query(broker)
    good = await query.stage(0, {0: [b"1"]})
    with pytest.raises(Refused, match="not there"):
        await query.commit(0, good, "00000000001-0-0-0-0123456789ab")
    assert await query.commit(0, good) == (False, True)


async def test_a_stage_counts_for_its_own_batch_and_query_only(broker):
    query = Query(broker)
    stage = await query.stage(0, {0: [b"1"]})
    with pytest.raises(Refused, match="not there"):
        await query.commit(1, stage)
    with pytest.raises(Refused, match="not there"):
        await Query(broker, "other").commit(0, stage)


async def test_a_broker_without_object_storage_refuses_stages_and_names_the_setting(tmp_path):
    async with open_broker(tmp_path) as broker:
        await broker.start()
        with pytest.raises(Refused, match=r"storage\.url"):
            await Query(broker).stage(0, {0: [b"1"]})


async def test_only_reliable_topics_take_stages(broker):
    await broker.topics.create(ANONYMOUS, TopicName.parse("/default/fleeting"), TopicConfig(reliable=False))
    with pytest.raises(Invalid, match="not reliable"):
        await Query(broker, topic=TopicName.parse("/default/fleeting")).stage(0, {0: [b"1"]})


async def test_stages_for_what_does_not_exist_are_refused_by_name(broker):
    with pytest.raises(NotFound, match="/default/nowhere"):
        await Query(broker, topic=TopicName.parse("/default/nowhere")).stage(0, {0: [b"1"]})
    with pytest.raises(NotFound, match="no partition 3"):
        await Query(broker).stage(0, {3: [b"1"]})


async def test_a_topic_with_an_exclusive_producer_refuses_stages(broker):
    await BrokerClient(broker).producer(access="exclusive")
    with pytest.raises(Refused, match="exclusive"):
        await Query(broker).stage(0, {0: [b"1"]})


async def test_a_message_that_is_too_large_is_refused_before_it_is_stored(broker, objects):
    with pytest.raises(Invalid, match="message_bytes_max"):
        await Query(broker).stage(0, {0: [b"x" * (1 << 20 | 1)]})
    assert await stages_in(objects) == []


async def stage_bytes(broker, batches: list[bytes], lengths: list[int] | None = None, **changes) -> str:
    body = b"".join(one + bytes(-len(one) % 64) for one in batches)
    sections = [SectionRequest(TOPIC, 0, lengths if lengths is not None else [len(one) for one in batches])]
    request = StageRequest("query", "run", 0, 0, 0, 0, sections)._replace(**changes)
    return await broker.staging.stage(ANONYMOUS, request, memoryview(body))


@pytest.mark.parametrize(
    ("batches", "lengths", "changes", "error"),
    [
        ([encode([b"1"], publish_times=1, first_sequence=4)], None, {}, "carries a sequence"),
        ([encode([b"1"], publish_times=1)], [1], {}, "does not fit"),
        ([encode([b"1"], publish_times=1)], [10**9], {}, "does not fit"),
        ([encode([b"1"], publish_times=1)], [-1], {}, "does not fit"),
        ([encode([b"1"], publish_times=1)], [], {}, "without batches"),
        ([encode([b"1"], publish_times=1), bytes(64)], None, {}, "does not fit"),
        ([encode([b"1"], publish_times=1)], None, {"sections": []}, "without batches"),
        ([encode([b"1"], publish_times=1)], None, {"sections": [SectionRequest(TOPIC, 0, [192])] * 2}, "two sections"),
        ([encode([b"1"], publish_times=1)], None, {"query": ""}, "query"),
        ([encode([b"1"], publish_times=1)], None, {"run": "\n"}, "run"),
        ([encode([b"1"], publish_times=1)], None, {"batch_id": -1}, "batch id"),
        ([encode([b"1"], publish_times=1)], None, {"task": -1}, "task"),
    ],
)
async def test_an_invalid_stage_is_refused_and_leaves_nothing(broker, objects, batches, lengths, changes, error):
    with pytest.raises(Invalid, match=error):
        await stage_bytes(broker, [bytes(one) for one in batches], lengths, **changes)
    assert await stages_in(objects) == []


async def test_a_damaged_batch_is_refused(broker, objects):
    batch = encode([b"1"], publish_times=1)
    batch[-1] ^= 1
    with pytest.raises(Corrupt, match="checksum"):
        await stage_bytes(broker, [bytes(batch)])
    assert await stages_in(objects) == []


class OnlyReading:
    def check(self, principal, action, resource) -> None:
        if action is Action.PRODUCE:
            raise Denied(f"{principal} may not {action} {resource}")


async def test_staging_and_committing_need_the_right_to_publish(tmp_path, objects):
    async with staging_broker(tmp_path, objects, authorizer=OnlyReading()) as broker:
        await broker.topics.create(ANONYMOUS, TOPIC, TopicConfig())
        with pytest.raises(Denied, match="may not produce /default/orders"):
            await Query(broker).stage(0, {0: [b"1"]})
    async with staging_broker(tmp_path, objects) as broker:
        stage = await Query(broker).stage(0, {0: [b"1"]})
    async with staging_broker(tmp_path, objects, authorizer=OnlyReading()) as broker:
        with pytest.raises(Denied, match="may not produce /default/orders"):
            await Query(broker).commit(0, stage)
        assert await payloads(broker) == []


async def test_a_commit_for_a_topic_that_was_deleted_meanwhile_publishes_nothing(broker):
    gone = TopicName.parse("/default/gone")
    await broker.topics.create(ANONYMOUS, gone, TopicConfig())
    stages = [await Query(broker).stage(0, {0: [b"1"]}), await Query(broker, topic=gone).stage(0, {0: [b"2"]})]
    await broker.topics.delete(ANONYMOUS, gone)
    await broker.topics.create(ANONYMOUS, gone, TopicConfig())
    with pytest.raises(Refused, match="/default/gone was deleted"):
        await Query(broker).commit(0, *stages)
    assert await payloads(broker) == await payloads(broker, topic=gone) == []


async def test_a_wait_that_is_negative_is_invalid(broker):
    asked = CommitStages(query="query", run="run", batch_id=0, stages=[], wait_ms=-1)
    with pytest.raises(Invalid, match="wait_ms"):
        await broker.staging.commit(ANONYMOUS, asked)


# -- queries -------------------------------------------------------------------------------------------------------


async def test_queries_are_listed_in_order_page_by_page(broker):
    for name in ("b", "ä", "a", "c/d"):
        await Query(broker, name).write(3, {0: [b"1"]})
    await quiet(broker)
    found, after = [], ""
    while True:
        page = await broker.staging.queries(ANONYMOUS, after, 3)
        found += page.queries
        if not (after := page.next):
            break
    assert [(one.query, one.run, one.last_batch_id, one.pending) for one in found] == [
        (name, "run", 3, 0) for name in ("a", "b", "c/d", "ä")
    ]
    assert all(one.last_commit_at for one in found)


async def test_a_page_of_queries_with_the_longest_names_fits_an_answer(broker):
    book = broker.staging._records
    for number in range(400):
        query = f"{number:03}" + "\U0001f30a" * 197
        await book.replace(await book.new(ANONYMOUS, query, query, ""), QueryRecord(query, number + 1, query))
    found, after, pages = [], "", 0
    while after or not pages:
        page = await broker.staging.queries(ANONYMOUS, after, 1000)
        assert len(msgspec.msgpack.encode(page)) < CONTROL_BYTES_MAX * 3 // 4
        found += page.queries
        after = page.next
        pages += 1
    assert [one.query[:3] for one in found] == [f"{number:03}" for number in range(400)]
    assert pages == 2


async def test_a_query_that_is_forgotten_begins_anew(broker, objects):
    query = Query(broker)
    await query.write(0, {0: [b"1"]})
    await query.stage(1, {0: [b"never"]})
    await quiet(broker)
    await broker.staging.forget(ANONYMOUS, "query")
    assert await stages_in(objects) == []
    assert (await broker.staging.queries(ANONYMOUS, "", 10)).queries == []
    assert await query.write(0, {0: [b"2"]}) == (False, True)
    assert await payloads(broker) == [b"1", b"2"]


async def test_an_unknown_query_cannot_be_forgotten(broker):
    with pytest.raises(NotFound, match="danube queries list"):
        await broker.staging.forget(ANONYMOUS, "nobody")


async def test_a_waiting_commit_returns_when_the_broker_drains(tmp_path):
    objects = FaultyObjectStore()
    async with staging_broker(tmp_path, objects) as broker:
        await broker.topics.create(ANONYMOUS, TOPIC, TopicConfig())
        stage = await Query(broker).stage(0, {0: [b"1"]})
        objects.fault = "unreadable"
        waiting = asyncio.ensure_future(Query(broker).commit(0, stage, wait_ms=60_000))
        await until(lambda: broker.staging.decisions._by_query)
        broker.drain()
        async with asyncio.timeout(60):
            assert await waiting == (False, False)
