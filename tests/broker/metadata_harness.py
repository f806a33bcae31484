"""A metadata store whose transactions and reads fail or wait where a test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

from pydanube.metadata.store import Compare, Delete, KeyValue, MetadataStore, Put, TransactionResult
from pydanube.model.errors import Unavailable

Writes = Sequence[Put | Delete]
Concerns = Callable[[Writes], bool]


def puts(prefix: str) -> Concerns:
    """Select the transactions that write a key with this prefix."""
    return lambda writes: any(isinstance(one, Put) and one.key.startswith(prefix) for one in writes)


def deletes(prefix: str) -> Concerns:
    """Select the transactions that delete a key with this prefix."""
    return lambda writes: any(isinstance(one, Delete) and one.key.startswith(prefix) for one in writes)


class Fault:
    """What happens to the transactions, or the reads, that a test selected."""

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
    """Wraps the real store, in `open_broker`. A fault applies to one call, unless it says otherwise."""

    def __init__(self) -> None:
        self._store: MetadataStore | None = None
        self._transactions: list[tuple[Concerns, Fault]] = []
        self._reads: list[tuple[str, Fault]] = []

    def before(self, store: MetadataStore) -> MetadataStore:
        """Wrap `store` and return this object: methods that are not defined here are those of `store`."""
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
        """Let the next such transaction fail without being made."""
        return self._fault(concerns, Fault("never", fails=True, waits=False, times=1))

    def refuse_all(self, concerns: Concerns) -> Fault:
        """Let all such transactions fail until `Fault.end`."""
        return self._fault(concerns, Fault("never", fails=True, waits=False, times=-1))

    def lose_answer(self, concerns: Concerns) -> Fault:
        """Make the next such transaction, and tell its caller that it failed."""
        return self._fault(concerns, Fault("before", fails=True, waits=False, times=1))

    def hold(self, concerns: Concerns) -> Fault:
        """Let the next such transaction wait until `Fault.go_on` before it is made."""
        return self._fault(concerns, Fault("after", fails=False, waits=True, times=1))

    def hold_answer(self, concerns: Concerns, *, fails: bool = False) -> Fault:
        """Make the next such transaction, and let its caller wait for the answer until `Fault.go_on`."""
        return self._fault(concerns, Fault("before", fails=fails, waits=True, times=1))

    def hold_refusal(self, concerns: Concerns) -> Fault:
        """Let the next such transaction wait until `Fault.go_on`, then fail without being made."""
        return self._fault(concerns, Fault("never", fails=True, waits=True, times=1))

    def hold_read(self, prefix: str) -> Fault:
        """Let the next read of a key or a prefix that begins with `prefix` wait until `Fault.go_on`."""
        fault = Fault("after", fails=False, waits=True, times=1)
        self._reads.append((prefix, fault))
        return fault

    def refuse_reads(self) -> Fault:
        """Let all reads fail until `Fault.end`."""
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
    """Return the first fault that still applies, and count it as used; None if there is none."""
    fault = next((one for one in faults if one.times), None)
    if fault is not None:
        fault.times -= 1
    return fault
