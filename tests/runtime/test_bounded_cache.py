"""What a cache keeps, and what concurrent callers of a loading cache share."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydanube.model.errors import Corrupt, Unavailable
from pydanube.runtime.cache import Cache, LoadingCache
from pydanube.runtime.tasks import Tasks


class Store:
    """Loads values when it is told to, and counts the loads."""

    def __init__(self) -> None:
        self.loads = 0
        self.failure: Exception | None = None
        self.may_go_on = asyncio.Event()

    async def load(self) -> str:
        self.loads += 1
        await self.may_go_on.wait()
        if self.failure is not None:
            raise self.failure
        return "loaded"


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["get", "put", "drop"]), st.integers(1, 60)), max_size=60))
def test_a_cache_keeps_what_was_used_last_up_to_its_weight(steps: list[tuple[int, str, int]]) -> None:
    cache: Cache[int, int] = Cache(100)
    model: OrderedDict[int, int] = OrderedDict()
    for key, step, weight in steps:
        if step == "get":
            assert cache.get(key) == model.get(key)
            if key in model:
                model.move_to_end(key)
            continue
        cache.drop(key)
        model.pop(key, None)
        if step == "put":
            cache.put(key, weight, weight)
            model[key] = weight
            while sum(model.values()) > 100:
                model.popitem(last=False)
        assert list(cache.values()) == list(model.values())
        assert (cache.weight, len(cache)) == (sum(model.values()), len(model))


def test_the_value_that_was_put_last_stays_whatever_its_weight() -> None:
    cache: Cache[str, int] = Cache(10)
    cache.put("small", 1, 1)
    cache.put("large", 2, 1_000)
    assert ("small" in cache, cache.get("large")) == (False, 2)


async def test_concurrent_callers_share_one_load_and_later_ones_what_it_brought() -> None:
    async with Tasks() as tasks:
        cache: LoadingCache[str, str] = LoadingCache(tasks, 10)
        store = Store()
        asking = [asyncio.create_task(cache.get("key", store.load)) for _ in range(3)]
        await asyncio.sleep(0)
        assert cache.loading == 1
        asking.pop().cancel()  # the load goes on for the others
        store.may_go_on.set()
        assert await asyncio.gather(*asking) == ["loaded", "loaded"]
        assert await cache.get("key", store.load) == "loaded"
        assert (store.loads, cache.hits, cache.misses) == (1, 1, 3)


@pytest.mark.parametrize("failure", [Corrupt("damaged"), ZeroDivisionError()])
async def test_a_failure_is_raised_to_all_who_wait_and_the_next_caller_loads_again(failure: Exception) -> None:
    async with Tasks() as tasks:
        cache: LoadingCache[str, str] = LoadingCache(tasks, 10)
        store = Store()
        store.failure = failure
        store.may_go_on.set()
        asked = await asyncio.gather(*(cache.get("key", store.load) for _ in range(2)), return_exceptions=True)
        assert asked == [failure, failure]
        store.failure = None
        assert await cache.get("key", store.load) == "loaded"


async def test_a_load_that_its_owner_ends_is_unavailable_and_none_begins_afterwards() -> None:
    tasks = Tasks()
    cache: LoadingCache[str, str] = LoadingCache(tasks, 10)
    store = Store()
    asking = asyncio.create_task(cache.get("key", store.load))
    await asyncio.sleep(0)
    await tasks.close()
    for waiting in (asking, cache.get("key", store.load)):
        with pytest.raises(Unavailable):
            await waiting
    assert cache.loading == 0
