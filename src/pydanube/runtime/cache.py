"""Caches of bounded size: what was not used for the longest time is dropped first.

`Cache` keeps what its caller puts into it. `LoadingCache` loads what it does not have, once for all who ask for it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Iterator
from functools import partial
from typing import Generic, TypeVar

from pydanube.model.errors import Unavailable

from .tasks import Tasks, mark_retrieved

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Cache(Generic[Key, Value]):
    """Keeps what was used last, up to a total weight. What was put last stays, whatever its weight."""

    def __init__(self, weight_max: int) -> None:
        self._weight_max = weight_max
        self._kept: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self.weight = 0

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, key: Key) -> bool:
        return key in self._kept

    def values(self) -> Iterator[Value]:
        return (value for value, _ in self._kept.values())

    def get(self, key: Key) -> Value | None:
        found = self._kept.get(key)
        if found is None:
            return None
        self._kept.move_to_end(key)
        return found[0]

    def put(self, key: Key, value: Value, weight: int = 1) -> None:
        self.drop(key)
        self._kept[key] = value, weight
        self.weight += weight
        while self.weight > self._weight_max and len(self._kept) > 1:
            _, (_, dropped) = self._kept.popitem(last=False)
            self.weight -= dropped

    def drop(self, key: Key) -> None:
        """Drop the value of this key, if it has one."""
        found = self._kept.pop(key, None)
        if found is not None:
            self.weight -= found[1]


class LoadingCache(Generic[Key, Value]):
    """A cache that loads what it does not have; concurrent requests for one key share one load."""

    def __init__(self, tasks: Tasks, weight_max: int, weight_of: Callable[[Value], int] = lambda _: 1) -> None:
        self._tasks = tasks
        self._weight_of = weight_of
        self._kept: Cache[Key, Value] = Cache(weight_max)
        self._loading: dict[Key, asyncio.Future[Value]] = {}
        self.hits = 0
        self.misses = 0

    def __contains__(self, key: Key) -> bool:
        return key in self._kept or key in self._loading

    @property
    def weight(self) -> int:
        return self._kept.weight

    @property
    def loading(self) -> int:
        """The number of loads in progress."""
        return len(self._loading)

    async def get(self, key: Key, load: Callable[[], Awaitable[Value]]) -> Value:
        """Return the value for `key`, calling `load` if it is not cached. Raises what the load raises. Cancelled: the
        load continues for other callers."""
        found = self._kept.get(key)
        if found is not None:
            self.hits += 1
            return found
        self.misses += 1
        return await asyncio.shield(self.begin(key, load))

    def begin(self, key: Key, load: Callable[[], Awaitable[Value]]) -> asyncio.Future[Value]:
        """Start a load, unless one is in progress, and return its future."""
        loading = self._loading.get(key)
        if loading is None:
            loading = asyncio.get_running_loop().create_future()
            task = self._tasks.spawn(self._load(key, load, loading), f"load {key}")
            task.add_done_callback(partial(self._ended, key, loading))
            self._loading[key] = loading
        return loading

    def put(self, key: Key, value: Value) -> None:
        self._kept.put(key, value, self._weight_of(value))

    def drop(self, key: Key) -> None:
        """Drop the value of this key, if it has one; a load in progress goes on."""
        self._kept.drop(key)

    async def _load(self, key: Key, load: Callable[[], Awaitable[Value]], loading: asyncio.Future[Value]) -> None:
        """Load a value and pass it, or the exception, to all callers that wait for it."""
        try:
            value = await load()
        except Exception as error:
            loading.set_exception(error)
        else:
            self.put(key, value)
            loading.set_result(value)

    def _ended(self, key: Key, loading: asyncio.Future[Value], _task: asyncio.Task[None]) -> None:
        del self._loading[key]
        if not loading.done():  # the load was cancelled, perhaps before it began
            loading.set_exception(Unavailable("the broker is closing"))
        mark_retrieved(loading)  # what is loaded in advance may have no caller
