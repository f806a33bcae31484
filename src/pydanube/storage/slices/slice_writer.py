"""Puts what `stored` partitions append into the object store, as slices, and calls back when they count.

Invariants
    from its first attempt a number is bound to its bytes: every retry sends the same bytes
    after a lost answer, the slice is read back to see which broker wrote it
    `done` is called once for each record, in the order of `append`, after its slice counts; or with an error, once the
    sequence is sealed: then nothing that was not called back counts
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from typing import Final, NamedTuple

from pydanube.codec.slice import (
    HEADER_BYTES,
    SliceKind,
    SliceRecord,
    decode_slice_header,
    encode_slice,
    slice_key,
)
from pydanube.codec.wal import ByteBuffer
from pydanube.core.meters import Meter
from pydanube.core.slice_sequence import SliceSequence
from pydanube.model.errors import AlreadyExists, Corrupt, DanubeError, NotFound, NotOwner, Unavailable
from pydanube.model.settings.sections import SliceSettings
from pydanube.runtime.clock import Clock
from pydanube.runtime.objects import ObjectStore
from pydanube.runtime.randomness import identity
from pydanube.runtime.retry import RetryBackoff
from pydanube.runtime.tasks import Tasks, outcome_of
from pydanube.runtime.telemetry import get_logger

from .sealing import seal

log = get_logger(__name__)

Done = Callable[[DanubeError | None], None]

RETRY_S: Final = 0.1
RETRY_S_MAX: Final = 2.0
"""The first and the longest pause after a failed put."""

PROOF_S: Final = 1.0
"""How long it is believed that the sequence is not sealed. So long an owner without a session may deliver what its
successor delivers too."""


class SliceWriter:
    """The slices of this broker, under one incarnation. All methods are called on the event loop."""

    def __init__(
        self, objects: ObjectStore, incarnation: int, settings: SliceSettings, clock: Clock, tasks: Tasks
    ) -> None:
        self.incarnation = incarnation
        self._objects = objects
        self._clock = clock
        self._tasks = tasks
        self._sequence = SliceSequence(settings)
        self._writer = int(identity()[:16], 16)
        self._gathered: list[SliceRecord] = []
        self._gathered_done: list[Done] = []
        self._waiting: dict[int, list[Done]] = {}
        """By number: the callers that wait until the slice counts."""
        self._is_scheduled = False
        self._timer_at = inf
        self._ended: DanubeError | None = None
        self._proven_until = -inf
        self._progress_at = -inf
        """When a slice counted last, or left while none was on its way."""
        self.on_sealed: Callable[[], None] = lambda: None
        """Called once when another broker has sealed the sequence, or uses it: every partition that uses it must be
        closed."""
        self.is_taken_over = False
        """Whether that was called."""
        self.meter = Meter()
        """Puts per second, failed ones too: stores charge for them all."""
        self.puts = 0
        self.put_bytes = 0
        self.put_failures = 0
        self.failure: DanubeError | None = None
        """Why the last put failed; None when it succeeded."""

    @property
    def trouble(self) -> str:
        """Why nothing counts that is published now, in one sentence; empty after a put that succeeded."""
        return f"slices cannot be put: {self.failure.message}" if self.failure is not None else ""

    @property
    def next_number(self) -> int:
        """The number of the slice that the next record goes to, or a later one."""
        return self._sequence.next_number

    @property
    def counted_end(self) -> int:
        return self._sequence.counted_end

    @property
    def waiting_bytes(self) -> int:
        return self._sequence.waiting_bytes

    def append(self, record: SliceRecord, done: Done, delay_s: float = 0.0) -> int:
        """Add a record to the next slice, and return the number of that. `done` is called once the slice counts. The
        slice may wait for `delay_s` for something more urgent. The body must not change until `done` was called.

        Raises Unavailable when too much waits, and NotOwner when the sequence is sealed.
        """
        if (refused := self.refusal(record.size)) is not None:
            raise refused
        number = self._sequence.add(record.size, self._clock.monotonic() + delay_s)
        self._gathered.append(record)
        self._gathered_done.append(done)
        self._schedule()
        return number

    def refusal(self, size: int) -> DanubeError | None:
        """Return why a record of this size cannot be appended now; None if it can."""
        if self._ended is not None:
            return self._ended
        if self._sequence.has_room(size):
            return None
        reason = f": {self.failure.message}" if self.failure is not None else ""
        return Unavailable(f"{self._objects.url} does not keep up with what is published{reason}; send it again")

    def when_counted(self, done: Done) -> None:
        """Call `done` once everything appended so far counts, or with an error once the sequence is sealed."""
        if self._ended is not None:
            done(self._ended)
        elif self._gathered:
            self._gathered_done.append(done)
            self._sequence.add(0, self._clock.monotonic())
            self._schedule()
        elif self._waiting:
            self._waiting[max(self._waiting)].append(done)
        else:
            done(None)

    async def flush(self) -> None:
        """Wait until everything appended so far counts. Raises NotOwner once the sequence is sealed."""
        await outcome_of(self.when_counted)

    async def close(self) -> None:
        """Wait until everything counts, then seal the sequence. Cancelled or failed: the broker that takes the
        partitions seals it."""
        if self._ended is not None:
            return
        await self.flush()
        self._end(NotOwner("the broker is stopping: look the owner up again"))
        await seal(self._objects, self.incarnation, self._sequence.counted_end, self.incarnation)

    async def is_free(self) -> bool:
        """Return whether the sequence is surely not sealed at this moment, for any partition: between what counts and
        the next number there is no marker. Raises what the store raises if that cannot be told."""
        numbers = range(self._sequence.counted_end, self._sequence.next_number + 1)
        for number, is_marker in zip(numbers, await asyncio.gather(*map(self._is_marker, numbers)), strict=True):
            if is_marker:
                self._seal_found(number)
                return False
        return self._ended is None

    async def _is_marker(self, number: int) -> bool:
        try:
            found = await self._objects.get(slice_key(self.incarnation, number), 0, HEADER_BYTES)
        except NotFound:
            return False
        return decode_slice_header(found, self.incarnation, number).kind == SliceKind.MARKER

    async def prove(self) -> None:
        """Find out whether the sequence is free; if it is, `is_proven` is true until PROOF_S after this moment."""
        asked = self._clock.boot_time()
        if await self.is_free():
            self._proven_until = asked + PROOF_S

    def is_proven(self) -> bool:
        """Return whether the sequence was free a moment ago: a broker that takes a partition of this one seals it
        first. The clock also counts while the machine sleeps."""
        return self._ended is None and self._clock.boot_time() < self._proven_until

    @property
    def stuck_s(self) -> float:
        """Seconds since a slice counted last, while slices are being put; 0 if none is."""
        return self._clock.monotonic() - self._progress_at if self._waiting and self._ended is None else 0.0

    @property
    def is_ended(self) -> bool:
        """Whether nothing can be appended any more."""
        return self._ended is not None

    def abandon(self, error: DanubeError) -> None:
        """Append nothing any more, because the incarnation is over. Callers that wait get `error`: what is on its way
        may be stored, and then the taker finds it."""
        if self._ended is None:
            self._end(error)

    # -- putting -------------------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        """Look for slices that are due at the end of this turn of the loop, so that what it appends goes together."""
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._send_due)

    def _send_due(self) -> None:
        self._is_scheduled = False
        while self._ended is None and (due := self._sequence.due_at()) < inf:
            now = self._clock.monotonic()
            if due > now:
                self._wake_at(due, now)
                return
            self._leave(now)

    def _wake_at(self, due: float, now: float) -> None:
        if due < self._timer_at:
            self._timer_at = due
            self._tasks.spawn(self._sleep_until(due, now), "slice waiting")

    async def _sleep_until(self, due: float, now: float) -> None:
        """Look for slices that are due at that time."""
        await self._clock.sleep(due - now)
        if self._timer_at == due:
            self._timer_at = inf
        self._send_due()

    def _leave(self, now: float) -> None:
        if not self._waiting:
            self._progress_at = now
        number = self._sequence.take(now)
        records, self._gathered = self._gathered, []
        self._waiting[number], self._gathered_done = self._gathered_done, []
        pieces = encode_slice(self.incarnation, number, self._writer, records, self._sequence.counted_end)
        self._tasks.spawn(self._put(_Slice(number, pieces)), f"slice {number}")

    async def _put(self, leaving: _Slice) -> None:
        """Put one slice, as often as it takes. Cancelled: it may be stored or not."""
        backoff = RetryBackoff(RETRY_S, RETRY_S_MAX)
        while self._ended is None:
            try:
                is_stored = await self._put_once(leaving)
            except Corrupt as error:
                log.error("slices.unusable", incarnation=self.incarnation, number=leaving.number, error=error.message)
                self._taken_over(error)
                return
            except DanubeError as error:
                if self.failure is None:
                    log.warning("slice.not_put", number=leaving.number, error=error.message)
                self.failure = error
                self.put_failures += 1
                await self._clock.sleep(backoff.next())
                continue
            self.failure = None
            if is_stored:
                self._put_done(leaving)
            else:
                self._seal_found(leaving.number)
            return

    async def _put_once(self, leaving: _Slice) -> bool:
        """Return whether the slice is stored; False: there is a marker in its place."""
        key = slice_key(self.incarnation, leaving.number)
        self.puts += 1
        self.meter.mark(self._clock.now_us(), 1, leaving.size)
        try:
            await self._objects.put(key, leaving.pieces, create=True)
        except AlreadyExists:
            found = decode_slice_header(await self._objects.get(key, 0, HEADER_BYTES), self.incarnation, leaving.number)
            if found.kind == SliceKind.MARKER:
                return False
            if found.writer != self._writer:
                raise Corrupt(
                    f"{key} in {self._objects.url} was written by another process under this incarnation"
                ) from None
        return True

    def _put_done(self, leaving: _Slice) -> None:
        self.put_bytes += leaving.size
        if self._ended is not None:  # the callers that waited were told that it is not known
            return
        for number in self._sequence.stored(leaving.number):
            self._progress_at = self._clock.monotonic()
            for done in self._waiting.pop(number):
                done(None)
        self._send_due()

    def _seal_found(self, number: int) -> None:
        """Take note that another broker has sealed the sequence."""
        if self._ended is not None:
            return
        self._sequence.sealed(number)
        log.warning("slices.taken_over", incarnation=self.incarnation, end=number)
        self._taken_over(NotOwner("the partitions of this broker were taken over: look the owner up again"))

    def _taken_over(self, error: DanubeError) -> None:
        self._end(error)
        self.is_taken_over = True
        self.on_sealed()

    def _end(self, error: DanubeError) -> None:
        self._ended = error
        waiting = [done for number in sorted(self._waiting) for done in self._waiting[number]] + self._gathered_done
        self._waiting, self._gathered, self._gathered_done = {}, [], []
        for done in waiting:
            done(error)


class _Slice(NamedTuple):
    number: int
    pieces: list[ByteBuffer]

    @property
    def size(self) -> int:
        return sum(map(len, self.pieces))
