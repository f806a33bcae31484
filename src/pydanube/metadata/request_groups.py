"""Sends requests to the metadata store together that are made at the same time.

A broker that opens a thousand partitions makes thousands of small requests at once. A request costs both sides more
than what is in it, so those that would have to wait for each other go together.

```
 few requests on their way ─► what is asked for in one turn of the loop leaves at its end
 many                      ─► what is asked for waits for the next answer, but at most WAIT_S
```

Transactions that are joined have one revision. So this is for callers to which that makes no difference.

Invariants of joined transactions
    they are independent: none writes a key that another of them compares or writes. So all of their comparisons are
    made as if they came one after the other, in any order
    if the joined transaction is not made, each is sent alone: one whose comparison fails harms no other
    a transaction whose outcome is in doubt is not sent again
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from copy import copy
from typing import Any, Final, Generic, TypeVar

from pydanube.model.errors import DanubeError, Unavailable
from pydanube.model.limits import METADATA_OPERATIONS_MAX
from pydanube.runtime.tasks import Tasks

from .store import Compare, Delete, Put, TransactionResult

SENT_AT_ONCE: Final = 4
"""While so many requests are on their way, the next ones wait to go together."""

WAIT_S: Final = 0.02
"""How long a request waits at most, also while the store does not answer: little beside the deadline of a request."""

JOINED_BYTES_MAX: Final = 256 << 10
"""Of keys and values in one joined transaction; a larger one goes alone."""

Answer = TypeVar("Answer")
Transact = Callable[[Sequence[Compare], Sequence[Put | Delete]], Coroutine[Any, Any, TransactionResult]]


class Asked(Generic[Answer]):
    """A request and the future of its answer."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)

    def succeed(self, answer: Answer) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)


AskedT = TypeVar("AskedT", bound=Asked[Any])


class Group(ABC, Generic[AskedT]):
    """Requests that are sent together."""

    def __init__(self) -> None:
        self.members: list[AskedT] = []

    @abstractmethod
    def add(self, asked: AskedT) -> bool:
        """Add a request; return whether it fits. The first one always does."""

    @abstractmethod
    async def send(self) -> None:
        """Send the requests, and answer each of them, unless this is cancelled."""


class Joining(Generic[AskedT]):
    """Requests of one kind on their way to the store. Used on one event loop."""

    def __init__(self, tasks: Tasks, begin: Callable[[], Group[AskedT]]) -> None:
        """`begin` returns an empty group."""
        self._tasks = tasks
        self._begin = begin
        self._waiting: deque[AskedT] = deque()
        self._on_their_way = 0
        self._timer: asyncio.Handle | None = None

    def ask(self, asked: AskedT) -> None:
        """Have a request sent, perhaps together with others."""
        self._waiting.append(asked)
        if self._timer is not None:
            return
        loop = asyncio.get_running_loop()
        if self._on_their_way < SENT_AT_ONCE:
            self._timer = loop.call_soon(self._leave)
        else:
            self._timer = loop.call_later(WAIT_S, self._leave)

    def _leave(self) -> None:
        """Send everything that waits, in as few requests as possible."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiting:
            group = self._begin()
            while self._waiting and (self._waiting[0].answer.done() or group.add(self._waiting[0])):
                self._waiting.popleft()
            if group.members:
                self._spawn(group)

    def _spawn(self, group: Group[AskedT]) -> None:
        self._on_their_way += 1
        try:
            self._tasks.spawn(self._send(group), "metadata requests")
        except Unavailable as error:  # the broker is closing
            self._on_their_way -= 1
            for one in group.members:
                one.fail(copy(error))

    async def _send(self, group: Group[AskedT]) -> None:
        """Send a group. Cancelled: callers that still wait get an error that says that the outcome is not known."""
        try:
            await group.send()
        finally:
            self._on_their_way -= 1
            for one in group.members:
                one.fail(Unavailable("the broker is closing: the outcome is not known"))
            if self._waiting and self._on_their_way < SENT_AT_ONCE:
                self._leave()


class _Transaction(Asked[TransactionResult]):
    def __init__(self, compares: Sequence[Compare], writes: Sequence[Put | Delete]) -> None:
        super().__init__()
        self.compares = compares
        self.writes = writes

    @property
    def size(self) -> int:
        expected = sum(len(one.expected) for one in self.compares if isinstance(one.expected, bytes))
        values = sum(len(one.value) for one in self.writes if isinstance(one, Put))
        return expected + values + sum(len(one.key) for one in (*self.compares, *self.writes))


class _Independent(Group[_Transaction]):
    """Transactions of which none writes what another compares or writes."""

    def __init__(self, transact: Transact) -> None:
        super().__init__()
        self._transact = transact
        self._compares: dict[Compare, None] = {}
        self._writes: list[Put | Delete] = []
        self._compared: set[str] = set()
        self._written: set[str] = set()
        self._bytes = 0

    def add(self, asked: _Transaction) -> bool:
        compares = [one for one in asked.compares if one not in self._compares]
        compared, written = {one.key for one in asked.compares}, {one.key for one in asked.writes}
        size = self._bytes + asked.size
        is_independent = written.isdisjoint(self._compared | self._written) and compared.isdisjoint(self._written)
        operations = max(len(self._compares) + len(compares), len(self._writes) + len(asked.writes))
        fits = operations <= METADATA_OPERATIONS_MAX and size <= JOINED_BYTES_MAX
        if self.members and not (is_independent and fits):
            return False
        self.members.append(asked)
        self._compares.update(dict.fromkeys(compares))
        self._writes += asked.writes
        self._compared |= compared
        self._written |= written
        self._bytes = size
        return True

    async def send(self) -> None:
        if len(self.members) == 1 or not await self._is_made():
            await asyncio.gather(*map(self._send_alone, self.members))

    async def _is_made(self) -> bool:
        """Make all of them in one transaction; return False if nothing was made."""
        try:
            result = await self._transact(list(self._compares), self._writes)
        except Unavailable as error:  # they may have been made
            for one in self.members:
                one.fail(copy(error))
            return True
        except DanubeError:  # about one of them, which hears it when it is sent alone
            return False
        if result.succeeded:
            for one in self.members:
                one.succeed(result)
        return result.succeeded

    async def _send_alone(self, asked: _Transaction) -> None:
        if asked.answer.done():
            return
        try:
            asked.succeed(await self._transact(asked.compares, asked.writes))
        except DanubeError as error:
            asked.fail(error)


class JoinedTransactions:
    """Makes transactions together that are asked for at the same time."""

    def __init__(self, transact: Transact, tasks: Tasks) -> None:
        """`transact` makes one transaction, as `MetadataStore.transact` does."""
        self._joining = Joining(tasks, lambda: _Independent(transact))

    async def transact(self, compares: Sequence[Compare], writes: Sequence[Put | Delete]) -> TransactionResult:
        """See `MetadataStore.transact`; other transactions may have the same revision. Cancelled: all of it may happen
        or nothing."""
        asked = _Transaction(compares, writes)
        self._joining.ask(asked)
        return await asked.answer
