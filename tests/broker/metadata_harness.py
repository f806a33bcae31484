"""A metadata store that fails where a test says so, in every way in which a store can."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

from pydanube.metadata.store import Compare, Delete, KeyValue, MetadataStore, Put, TransactionResult
from pydanube.model.errors import Unavailable

Writes = Sequence[Put | Delete]
Concerns = Callable[[Writes], bool]


def puts(prefix: str) -> Concerns:
    """Transactions that write a key that begins so."""
    return lambda writes: any(isinstance(one, Put) and one.key.startswith(prefix) for one in writes)


def deletes(prefix: str) -> Concerns:
    """Transactions that delete a key that begins so."""
    return lambda writes: any(isinstance(one, Delete) and one.key.startswith(prefix) for one in writes)


class Fault:
    """What becomes of transactions, or of reads, of one kind."""

    def __init__(self, happens: Literal["before", "after", "never"], *, fails: bool, waits: bool, times: int) -> None:
        self.happens = happens
        """Whether the transaction is made before the caller is held up, after it, or never."""
        self.times = times
        """How many more calls it applies to; negative: all until `end`."""
        self.asked = asyncio.Event()
        """Set when a call met this fault."""
        self._fails = fails
        self._go_on = asyncio.Event()
        if not waits:
            self._go_on.set()

    def go_on(self) -> None:
        """Let the callers that are held up continue."""
        self._go_on.set()

    def end(self) -> None:
        """Apply to no further calls."""
        self.times = 0

    async def wait(self) -> None:
        self.asked.set()
        await self._go_on.wait()

    def answer(self) -> None:
        if self._fails:
            raise Unavailable("the metadata's disk hiccuped")


class FaultyStore:
    """Stands before the real store; `open_broker` puts it there. A fault is met once, unless it says otherwise."""

    def __init__(self) -> None:
        self._store: MetadataStore | None = None
        self._transactions: list[tuple[Concerns, Fault]] = []
        self._reads: list[tuple[str, Fault]] = []

    def before(self, store: MetadataStore) -> MetadataStore:
        """Stand before `store` and return itself: every method that it does not define is that of `store`."""
        self._store = store
        return cast(MetadataStore, self)

    @property
    def _real(self) -> MetadataStore:
        assert self._store is not None, "open_broker puts a store behind it"
        return self._store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    # -- faults --------------------------------------------------------------------------------------------------------

    def refuse(self, concerns: Concerns) -> Fault:
        """Such a transaction fails, and does not happen."""
        return self._fault(concerns, Fault("never", fails=True, waits=False, times=1))

    def refuse_all(self, concerns: Concerns) -> Fault:
        """Until it is ended."""
        return self._fault(concerns, Fault("never", fails=True, waits=False, times=-1))

    def lose_answer(self, concerns: Concerns) -> Fault:
        """Make such a transaction, and tell its caller that it failed."""
        return self._fault(concerns, Fault("before", fails=True, waits=False, times=1))

    def hold(self, concerns: Concerns) -> Fault:
        """Such a transaction waits, and then happens."""
        return self._fault(concerns, Fault("after", fails=False, waits=True, times=1))

    def hold_answer(self, concerns: Concerns, *, fails: bool = False) -> Fault:
        """Such a transaction happens, and whoever made it waits for the answer."""
        return self._fault(concerns, Fault("before", fails=fails, waits=True, times=1))

    def hold_refusal(self, concerns: Concerns) -> Fault:
        """Such a transaction waits, and then fails without having happened."""
        return self._fault(concerns, Fault("never", fails=True, waits=True, times=1))

    def hold_read(self, prefix: str) -> Fault:
        """A read of such a key, or of keys below it, waits."""
        fault = Fault("after", fails=False, waits=True, times=1)
        self._reads.append((prefix, fault))
        return fault

    def refuse_reads(self) -> Fault:
        """Until it is ended."""
        fault = Fault("never", fails=True, waits=False, times=-1)
        self._reads.append(("", fault))
        return fault

    def _fault(self, concerns: Concerns, fault: Fault) -> Fault:
        self._transactions.append((concerns, fault))
        return fault

    # -- the store -----------------------------------------------------------------------------------------------------

    async def get(self, key: str) -> KeyValue | None:
        await self._before_read(key)
        return await self._real.get(key)

    async def list(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> list[KeyValue]:
        await self._before_read(prefix)
        return await self._real.list(prefix, start_after=start_after, limit=limit)

    async def _before_read(self, key: str) -> None:
        fault = _first([one for prefix, one in self._reads if key.startswith(prefix)])
        if fault is not None:
            await fault.wait()
            fault.answer()

    async def transact(self, compares: Sequence[Compare], writes: Writes) -> TransactionResult:
        fault = _first([one for concerns, one in self._transactions if concerns(writes)])
        if fault is None:
            return await self._real.transact(compares, writes)
        result = TransactionResult(False, 0)
        if fault.happens == "before":
            result = await self._real.transact(compares, writes)
        await fault.wait()
        if fault.happens == "after":
            result = await self._real.transact(compares, writes)
        fault.answer()
        return result


def _first(faults: Sequence[Fault]) -> Fault | None:
    """The one that is met, which counts."""
    fault = next((one for one in faults if one.times), None)
    if fault is not None:
        fault.times -= 1
    return fault
