"""Stages that are not committed expire, and idle queries are removed."""

from dataclasses import replace

import pytest
from broker_harness import TIERING, TOPIC
from staging_harness import Query, payloads, quiet, stages_in, staging_broker
from tiering_harness import FaultyObjectStore

from pydanube.core.access import ANONYMOUS
from pydanube.model.errors import Refused
from pydanube.model.topics import TopicConfig
from pydanube.runtime.objects.memory import MemoryStore
from waiting import until

DAY_S = 86_400


@pytest.fixture
async def aging(tmp_path, clock):
    objects = MemoryStore(clock=clock)
    async with staging_broker(
        tmp_path, objects, clock=clock, tiering=replace(TIERING, staged_query_keep_s=10 * DAY_S)
    ) as broker:
        await broker.create_topic(ANONYMOUS, TOPIC, TopicConfig())
        yield broker


async def test_an_uncommitted_stage_expires_and_a_later_commit_of_it_is_refused(aging, clock):
    query = Query(aging)
    old = await query.stage(0, {0: [b"old"]})
    clock.advance(DAY_S - 1)
    assert await aging.staging.expiry.expire_stages() == 0
    young = await query.stage(0, {0: [b"young"]})
    clock.advance(2)
    assert await aging.staging.expiry.expire_stages() == 1
    with pytest.raises(Refused, match="has expired"):
        await query.commit(0, old, young)
    assert await payloads(aging) == []
    assert await query.commit(0, young) == (False, True)


async def test_a_committed_stage_does_not_expire(tmp_path, clock):
    objects = FaultyObjectStore()
    async with staging_broker(tmp_path, objects, clock=clock) as broker:
        await broker.create_topic(ANONYMOUS, TOPIC, TopicConfig())
        stage = await Query(broker).stage(0, {0: [b"1"]})
        objects.fault = "unreadable"
        assert await Query(broker).commit(0, stage, wait_ms=0) == (False, False)
        clock.advance(10 * DAY_S)
        assert await broker.staging.expiry.expire_stages() == 0
        objects.fault = "none"

        async def is_there() -> bool:
            clock.advance(10)
            return await payloads(broker) == [b"1"]

        await until(is_there)


async def test_an_expiry_between_the_check_of_a_stage_and_the_decision_wins(aging, clock, monkeypatch):
    query = Query(aging)
    stage = await query.stage(0, {0: [b"1"]})
    clock.advance(2 * DAY_S)
    check = aging.staging._check_stages

    async def expire_meanwhile(*arguments):
        await check(*arguments)
        await aging.staging.expiry.expire_stages()

    monkeypatch.setattr(aging.staging, "_check_stages", expire_meanwhile)
    with pytest.raises(Refused, match="has expired"):
        await query.commit(0, stage)
    assert await payloads(aging) == []


async def test_a_decision_between_reading_and_writing_the_record_by_an_expiry_wins(aging, clock, monkeypatch):
    query = Query(aging)
    stage = await query.stage(0, {0: [b"1"]})
    clock.advance(2 * DAY_S)
    find = aging.staging.expiry.records.find_number

    async def commit_meanwhile(number):
        found = await find(number)
        monkeypatch.setattr(aging.staging.expiry.records, "find_number", find)
        await query.commit(0, stage)
        return found

    monkeypatch.setattr(aging.staging.expiry.records, "find_number", commit_meanwhile)
    await aging.staging.expiry.expire_stages()
    assert await query.commit(0, stage) == (True, True)
    assert await payloads(aging) == [b"1"]


async def test_a_query_is_remembered_longer_than_its_stages_and_then_forgotten(aging, clock):
    query = Query(aging)
    await query.write(0, {0: [b"1"]})
    await quiet(aging)
    clock.advance(9 * DAY_S)
    assert await aging.staging.expiry.forget_queries() == 0
    assert await query.commit(0) == (True, True)
    clock.advance(2 * DAY_S)
    assert await aging.staging.expiry.forget_queries() == 1
    assert await query.write(0, {0: [b"again"]}) == (False, True)
    assert await payloads(aging) == [b"1", b"again"]


async def test_stages_of_a_removed_query_are_deleted(aging, clock):
    query = Query(aging)
    await query.stage(0, {0: [b"1"]})
    clock.advance(11 * DAY_S)
    assert await aging.staging.expiry.forget_queries() == 1
    await aging.staging.expiry.expire_stages()
    assert await stages_in(aging._tiers.objects) == []


async def test_the_collection_of_orphans_leaves_stages_alone(aging, clock):
    stage = await Query(aging).stage(0, {0: [b"1"]})
    clock.advance(DAY_S / 2)
    await aging._tiers.collector.collect_orphans()
    assert await Query(aging).commit(0, stage) == (False, True)
