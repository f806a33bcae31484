"""Names of staged queries: whose they are, in which namespaces they are taken, and how many there may be."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
from broker_harness import BrokerClient
from staging_harness import staging_broker
from test_dead_letters import bind

from pydanube.broker import Broker, SectionRequest, StageRequest
from pydanube.broker.registry.records import QUERIES, query_key
from pydanube.broker.staging import query_records
from pydanube.codec.batch import encode
from pydanube.core.access import ANONYMOUS, Principal
from pydanube.core.access_rules import AccessRules
from pydanube.metadata.store import Put
from pydanube.model.errors import Denied, Full, Refused
from pydanube.model.names import TopicName
from pydanube.model.topics import TopicConfig
from pydanube.operations.staging import CommitStages
from pydanube.runtime.objects.memory import MemoryStore

SHOP, BANK = TopicName.parse("/shop/sales"), TopicName.parse("/bank/sales")
SELLER, CASHIER, CLERK = Principal("seller"), Principal("cashier"), Principal("clerk")
"""The first two publish in /shop, the last one in /bank."""

BOTH = Principal("both")


@asynccontextmanager
async def tenants(directory, *, level: int = 2, objects: MemoryStore | None = None) -> AsyncIterator[Broker]:
    rules = AccessRules([ANONYMOUS.id])
    for who, place in ((SELLER, "/shop"), (CASHIER, "/shop"), (CLERK, "/bank"), (BOTH, "/shop"), (BOTH, "/bank")):
        bind(rules, who.id, "producer", place)
    async with staging_broker(directory, objects or MemoryStore(), authorizer=rules) as broker:
        if level > 1:
            await broker.upgrade.finish(ANONYMOUS)
        for topic in (SHOP, BANK):
            if broker._registry.find_topic(topic) is None:
                await broker.namespaces.create(ANONYMOUS, topic.namespace)
                await broker.topics.create(ANONYMOUS, topic, TopicConfig())
        yield broker


async def stage(broker: Broker, who: Principal, query: str, topic: TopicName, batch_id: int = 0) -> str:
    batch = encode([who.name.encode()], publish_times=1)
    request = StageRequest(query, "run", batch_id, 0, 0, 0, [SectionRequest(topic, 0, [len(batch)])])
    return await broker.staging.stage(who, request, memoryview(batch))


async def commit(broker: Broker, who: Principal, query: str, batch_id: int = 0, *stages: str) -> tuple[bool, bool]:
    asked = CommitStages(query=query, run="run", batch_id=batch_id, stages=list(stages), wait_ms=30_000)
    done = await broker.staging.commit(who, asked)
    return done.repeated, done.applied


async def write(broker: Broker, who: Principal, query: str, topic: TopicName, batch_id: int = 0) -> tuple[bool, bool]:
    return await commit(broker, who, query, batch_id, await stage(broker, who, query, topic, batch_id))


async def written(broker: Broker, topic: TopicName) -> list[bytes]:
    return [payload for _, payload in await BrokerClient(broker, topic).read_all()]


async def owners(broker: Broker, page: int = 10) -> list[tuple[str, str, str]]:
    """Return name, principal and namespace of all queries, read in pages."""
    found, after = [], ""
    while True:
        some = await broker.staging.queries(ANONYMOUS, after, page)
        found += [(one.query, one.owner, one.namespace) for one in some.queries]
        if not (after := some.next):
            return found


async def test_a_name_that_is_taken_in_another_namespace_is_free(tmp_path):
    async with tenants(tmp_path) as broker:
        assert await write(broker, SELLER, "nightly", SHOP) == (False, True)
        assert await write(broker, CLERK, "nightly", BANK) == (False, True)
        assert await write(broker, CLERK, "nightly", BANK) == (True, True)
        assert (await written(broker, SHOP), await written(broker, BANK)) == ([b"seller"], [b"clerk"])
        both = [("nightly", "user:clerk", "bank"), ("nightly", "user:seller", "shop")]
        assert await owners(broker) == await owners(broker, page=1) == both
        for who in (SELLER, CLERK):
            own = await broker.staging.queries(who, "", 1)
            assert ([one.owner for one in own.queries], own.next) == ([who.id], "")

        with pytest.raises(Refused, match="2 queries have the name 'nightly', of user:clerk, user:seller"):
            await broker.staging.forget(ANONYMOUS, "nightly")
        with pytest.raises(Denied):
            await broker.staging.forget(CLERK, "nightly", SELLER.id)
        await broker.staging.forget(ANONYMOUS, "nightly", CLERK.id)
        assert await owners(broker) == both[1:]
        await broker.staging.forget(SELLER, "nightly")
        assert await write(broker, CASHIER, "nightly", SHOP) == (False, True), "the name is free in the namespace"


async def test_in_one_namespace_a_name_is_of_one_principal(tmp_path):
    """Else a stream that has other credentials by now would begin anew, and publish its last batch twice."""
    async with tenants(tmp_path) as broker:
        await write(broker, SELLER, "nightly", SHOP)
        with pytest.raises(Denied, match="query 'nightly' of namespace 'shop' belongs to another principal"):
            await stage(broker, CASHIER, "nightly", SHOP)
        with pytest.raises(Denied):
            await commit(broker, CASHIER, "nightly")
        assert await owners(broker) == [("nightly", "user:seller", "shop")]


async def test_tasks_that_stage_for_two_namespaces_at_once_make_one_query(tmp_path):
    async with tenants(tmp_path) as broker:
        stages = await asyncio.gather(*(stage(broker, BOTH, "nightly", topic) for topic in (SHOP, BANK) * 3))
        assert await commit(broker, BOTH, "nightly", 0, *stages) == (False, True)
        assert len(await owners(broker)) == 1
        assert len(await written(broker, SHOP) + await written(broker, BANK)) == 6


async def test_an_older_broker_finds_no_name_that_it_would_misread(tmp_path):
    """At level 1 a name is one for all tenants, as it was."""
    async with tenants(tmp_path, level=1) as broker:
        await write(broker, SELLER, "nightly", SHOP)
        with pytest.raises(Denied):
            await stage(broker, CLERK, "nightly", BANK)
        keys = [one.key for one in await broker._registry._store.list("/staged/")]
        assert keys == [query_key("nightly")]


async def test_a_query_of_an_earlier_release_goes_on_where_it_was(tmp_path):
    """It keeps its number, and a stream resumed from an old checkpoint commits nothing twice."""
    objects = MemoryStore()
    async with tenants(tmp_path, level=1, objects=objects) as broker:
        for batch_id in range(3):
            await write(broker, SELLER, "nightly", SHOP, batch_id)
        (record,) = await broker._registry._store.list(QUERIES)
        former = msgspec.msgpack.decode(record.value)
        assert "namespace" not in former
    async with tenants(tmp_path, objects=objects) as broker:
        with pytest.raises(Denied):  # nobody knows whose namespace it is in
            await stage(broker, CLERK, "nightly", BANK)
        for batch_id in (1, 2):
            assert await write(broker, SELLER, "nightly", SHOP, batch_id) == (True, True)
        assert await write(broker, SELLER, "nightly", SHOP, 3) == (False, True)
        assert await written(broker, SHOP) == [b"seller"] * 4
        (record,) = await broker._registry._store.list(QUERIES)
        now = msgspec.msgpack.decode(record.value)
        assert (record.key, now["number"], now["namespace"]) == (query_key("nightly"), former["number"], "shop")
        assert await write(broker, CLERK, "nightly", BANK) == (False, True)
        with pytest.raises(Denied):
            await stage(broker, CASHIER, "nightly", SHOP)


async def test_one_principal_leaves_queries_for_others(tmp_path, monkeypatch):
    """Nor may the principals of one namespace make all of them. Queries that an earlier release made count."""
    monkeypatch.setattr(query_records, "STAGED_QUERIES_MAX", 24)
    async with tenants(tmp_path) as broker:
        await broker._registry._store.transact([], [Put(query_key("old"), old_record())])
        made = await make_all(broker, SELLER)
        assert made == 12, "it stops when 11 are left"
        made = await make_all(broker, CASHIER)
        assert made == 0, "the namespace has its share"
        made = await make_all(broker, CLERK)
        assert made == 6, "it stops when 5 are left"
        await commit(broker, ANONYMOUS, "of the administrator")
        assert len(await owners(broker, page=5)) == 20
        await broker.staging.forget(SELLER, "seller-0")
        await commit(broker, SELLER, "seller-9")  # one that there is
        with pytest.raises(Full, match="user:seller has 11 staged queries, and the 5 that may still"):
            await commit(broker, SELLER, "anew")


def old_record() -> bytes:
    return msgspec.msgpack.encode({"query": "old", "number": 1 << 40, "run": "run"})


async def make_all(broker: Broker, who: Principal) -> int:
    """Make queries until that is refused; return how many."""
    for number in range(1000):
        try:
            await commit(broker, who, f"{who.name}-{number}")
        except Full:
            return number
    raise AssertionError("there is no limit")
