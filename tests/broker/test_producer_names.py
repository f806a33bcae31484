"""Names of producers are forgotten once nobody has used them for as long as what they sent is remembered."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from broker_harness import TOPIC, BrokerClient
from two_brokers import TwoBrokers, two_brokers

from pydanube.broker.producers.names import KEPT_S_MIN
from pydanube.broker.registry.records import PRODUCERS, ProducerRecord
from pydanube.core.access import ANONYMOUS
from pydanube.metadata.packing import pack, unpack
from pydanube.metadata.store import Put, list_all
from pydanube.runtime.clock import ManualClock
from waiting import until

KEPT_S = 2 * 24 * 3600


@asynccontextmanager
async def remembering(directory: Path, clock: ManualClock) -> AsyncIterator[TwoBrokers]:
    """A topic with partition 0 at broker a and partition 1 at broker b."""
    async with two_brokers(directory, clock=clock) as pair:
        await pair.create(TOPIC, 2, b=[1])
        await pair.a.policies.set(ANONYMOUS, TOPIC, {"deduplication_s": KEPT_S})
        record = pair.a._registry.topic(TOPIC)
        await until(lambda: pair.b._registry.topic(TOPIC) == record)
        yield pair


async def names(pair: TwoBrokers) -> dict[str, ProducerRecord]:
    found = [one async for one in list_all(pair.store, PRODUCERS)]
    return {bytes.fromhex(one.key.rpartition("/")[2]).decode(): unpack(one.value, ProducerRecord) for one in found}


async def pass_time(pair: TwoBrokers, clock: ManualClock, seconds: float, step: float = KEPT_S / 10) -> None:
    while seconds > 0:
        clock.advance(min(step, seconds))
        seconds -= step
        await pair.b._lifetimes.round()
        await pair.a._lifetimes.round()


async def test_names_that_are_not_used_are_forgotten_and_others_stay(tmp_path: Path, clock: ManualClock) -> None:
    async with remembering(tmp_path, clock) as pair:
        a, b = BrokerClient(pair.a, TOPIC), BrokerClient(pair.b, TOPIC)
        for n in range(150):  # more than one transaction takes
            (await a.producer(f"once-{n}")).close()
        await a.producer("open at a")
        elsewhere = await b.producer("open at b", partition=1)
        returns = await a.producer("returns")
        returns.close()
        await pass_time(pair, clock, 0.9 * KEPT_S)
        assert len(await names(pair)) == 153
        again = await a.producer("returns")
        assert (again.producer_id, again.producer_epoch) == (returns.producer_id, 1)
        again.close()
        await pass_time(pair, clock, 0.2 * KEPT_S)
        assert sorted(await names(pair)) == ["open at a", "open at b", "returns"]
        elsewhere.close()
        await pass_time(pair, clock, 1.1 * KEPT_S)
        assert list(await names(pair)) == ["open at a"]
        assert (await a.producer("returns")).producer_id not in (returns.producer_id, 0)


async def test_names_stay_while_an_owner_of_the_topic_does_not_answer(tmp_path: Path, clock: ManualClock) -> None:
    async with remembering(tmp_path, clock) as pair:
        (await BrokerClient(pair.a, TOPIC).producer("once")).close()
        pair.table.unreachable.add("b")
        await pass_time(pair, clock, 2 * KEPT_S)
        assert list(await names(pair)) == ["once"]
        pair.table.unreachable.clear()
        await pass_time(pair, clock, KEPT_S / 10)
        assert not await names(pair)


async def test_a_name_of_an_earlier_release_grows_old_from_the_first_look_on(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with remembering(tmp_path, clock) as pair:
        (await BrokerClient(pair.a, TOPIC).producer("once")).close()
        (one,) = [one async for one in list_all(pair.store, PRODUCERS)]
        earlier = msgspec.structs.replace(unpack(one.value, ProducerRecord), used_at=0)
        await pair.store.transact([], [Put(one.key, pack(earlier))])
        await pass_time(pair, clock, 0.9 * KEPT_S)
        assert list(await names(pair)) == ["once"]
        await pass_time(pair, clock, 0.3 * KEPT_S)
        assert not await names(pair)


async def test_names_stay_for_a_day_whatever_the_policy_says(tmp_path: Path, clock: ManualClock) -> None:
    async with remembering(tmp_path, clock) as pair:
        await pair.a.policies.set(ANONYMOUS, TOPIC, {"deduplication_s": 1})
        (await BrokerClient(pair.a, TOPIC).producer("once")).close()
        await pass_time(pair, clock, 0.95 * KEPT_S_MIN)
        assert list(await names(pair)) == ["once"]
        await pass_time(pair, clock, 0.15 * KEPT_S_MIN)
        assert not await names(pair)
