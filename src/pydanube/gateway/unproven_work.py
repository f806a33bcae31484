"""The processor time that clients cost before they have shown who they are, by address. All listeners count by this.

Whatever is done for a client that nobody knows yet is measured: handshakes of TLS, heads of requests, bodies of
webhooks, checks of credentials. A client that shows who it is gets back what it has cost. An address whose clients have
cost too much is refused new connections, and those that are open and have proved nothing are closed when they ask for
more, until the time has brought down what it has cost. A client whose handshake was let begin may finish it and show
who it is: otherwise many honest clients that come back together would refuse one another for ever.

Invariants
    the clients of an address that prove nothing take at most BURST_S of a processor, and SHARE of it from then on,
    besides what was begun before
    what the client of one address costs counts against no other, and against no principal
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from types import coroutine
from typing import Any, Final, TypeVar

from pydanube.runtime.clock import Clock, processor_time
from pydanube.runtime.network import counted_address

BURST_S: Final = 2.0
"""The processor time that an address may take at once."""

SHARE: Final = 0.1
"""The part of a processor that it may take all the time: 50 refused HELLOs or heads of requests take about 0.01 s."""

PROOF_S: Final = 0.002
"""What a client may take after its handshake to show who it is, whatever its address has cost: a head and a token."""

CONNECTION_S: Final = 0.0002
"""What it takes to accept a connection, which asyncio does and nobody measures."""

ADDRESSES_MAX: Final = 10_000
"""Addresses that are remembered; the one that cost something longest ago is forgotten first."""

T = TypeVar("T")


class UnprovenWork:
    """What clients have cost that have not shown who they are."""

    def __init__(
        self, clock: Clock, is_counted: Callable[[], bool], processor_time: Callable[[], float] = processor_time
    ) -> None:
        """`is_counted` returns whether clients have to show who they are; if not, they may take what they like.
        `processor_time` returns the seconds that this thread has used of a processor."""
        self.processor_time = processor_time
        self._clock = clock
        self._is_counted = is_counted
        self._of: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """By counted address: what its clients had cost, and when that was."""

    def client(self, address: str, spent_s: float = 0.0) -> UnprovenClient:
        """Return what measures the work for one client of this IP address, which has cost `spent_s` already."""
        made = UnprovenClient(self, counted_address(address))
        made.spend(spent_s)
        return made

    def add(self, address: str, seconds: float) -> None:
        """Count work for clients of a counted address; less than nothing: give it back."""
        if not self._is_counted():
            return
        self._of[address] = (max(0.0, self.cost(address) + seconds), self._clock.monotonic())
        self._of.move_to_end(address)
        if len(self._of) > ADDRESSES_MAX:
            self._of.popitem(last=False)

    def cost(self, address: str) -> float:
        """Return what counts against a counted address now."""
        found = self._of.get(address)
        return 0.0 if found is None else max(0.0, found[0] - (self._clock.monotonic() - found[1]) * SHARE)

    def refusal(self, address: str) -> str:
        """Return why a counted address may have no more done for it, or nothing."""
        over_s = self.cost(address) - BURST_S if address in self._of else 0.0
        if over_s <= 0:
            return ""
        wait_s = max(1, round(over_s / SHARE))
        return f"clients at address {address} have cost too much without showing who they are: wait {wait_s} s"


class UnprovenClient:
    """The work for one client, until it has shown who it is; over HTTP and gRPC, for each request."""

    __slots__ = ("_address", "_free_s", "_spent_s", "_work", "is_proved", "proofs")

    def __init__(self, work: UnprovenWork, address: str) -> None:
        self._work = work
        self._address = address
        self.is_proved = False
        self._spent_s = self._free_s = 0.0
        self.proofs = 0
        """How often the client has shown who it is."""

    def refusal(self) -> str:
        """Return why nothing more is done for this client, or nothing."""
        return "" if self.is_proved or self._free_s > 0 else self._work.refusal(self._address)

    def proved(self) -> None:
        """The client has shown who it is: what it cost counts no more, and what it costs is not measured."""
        self.is_proved = True
        self.proofs += 1
        if self._spent_s:
            self._work.add(self._address, -self._spent_s)
            self._spent_s = 0.0

    def begin(self) -> None:
        """The client has to show again who it is, with its next request."""
        self.is_proved = False
        self._spent_s = 0.0

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Count what this block costs; it awaits nothing."""
        if self.is_proved:
            yield
            return
        began = self._work.processor_time()
        try:
            yield
        finally:
            self.spend(self._work.processor_time() - began)

    @coroutine
    def run(self, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        """Await a coroutine and count what its steps cost until the client has shown who it is."""
        thrown: BaseException | None = None
        while True:
            is_measured, proofs = not self.is_proved, self.proofs
            began = self._work.processor_time() if is_measured else 0.0
            try:
                awaited = work.send(None) if thrown is None else work.throw(thrown)
            except StopIteration as done:
                result: T = done.value
                return result
            finally:
                if is_measured and proofs == self.proofs:
                    self.spend(self._work.processor_time() - began)
            thrown = None
            try:
                yield awaited
            except GeneratorExit:
                work.close()
                raise
            except BaseException as error:
                thrown = error

    def shook_hands(self, seconds: float) -> None:
        """Note what its handshake has cost, which is counted against its address already."""
        self._spent_s += seconds
        self._free_s = PROOF_S

    def spend(self, seconds: float) -> None:
        """Count what was done for the client, unless it has shown who it is."""
        if not self.is_proved:
            self._spent_s += seconds
            self._free_s -= seconds
            self._work.add(self._address, seconds)
