"""What one broker has for its `stored` partitions: the slices that it writes, and those of former owners that it reads.

A broker writes one sequence of slices for each incarnation: a broker alone has one for each start, a broker of a
cluster one for each session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from pydanube.broker.cluster.membership import MembershipListener
from pydanube.broker.cluster.node_records import INCARNATION_COUNTER
from pydanube.broker.context import BrokerContext
from pydanube.metadata.id_counters import take_ids
from pydanube.metadata.request_groups import JoinedTransactions
from pydanube.model.cluster import BrokerSession
from pydanube.model.errors import DanubeError, NotOwner, Unavailable
from pydanube.model.storage import SliceLoss
from pydanube.runtime.objects import ObjectStore
from pydanube.runtime.randomness import identity
from pydanube.runtime.telemetry import get_logger
from pydanube.storage.segments.catalog import Catalog
from pydanube.storage.segments.recovered_upload import RecoveredUpload
from pydanube.storage.slices import SliceWriter, check_store, probe_store
from pydanube.storage.slices.slice_writer import PROOF_S

from .slice_repair import SliceRepair
from .slice_takeover import SliceTakeover
from .sliced_log import SlicedLog
from .unlisted_bytes import UnlistedBytes

log = get_logger(__name__)

PROBE_S: Final = 3.0
"""How long a probe of the store may take."""

PROVE_EVERY_S: Final = 0.5
"""Twice in the time for which a proof is good, so that one late answer does not interrupt deliveries."""


class SliceCounts(NamedTuple):
    """What one broker put as slices."""

    puts: int = 0
    """Requests to the store, failed ones too."""
    put_bytes: int = 0
    put_failures: int = 0
    puts_per_s: float = 0.0
    waiting_bytes: int = 0
    unlisted_bytes: int = 0
    """Bytes of messages that are in slices and in no segment that the catalog lists."""
    is_failing: bool = False


class BrokerSlices:
    """The slices of one broker."""

    def __init__(
        self, context: BrokerContext, objects: ObjectStore, segment_bytes: int, unlisted: UnlistedBytes
    ) -> None:
        store, clock, tasks = context.store, context.clock, context.tasks
        self._objects = objects
        self._store = store
        self._membership = membership = context.cluster.membership
        self._log = context.writer
        self._clock = clock
        self._tasks = tasks
        self._settings = context.settings.slices
        self.unlisted = unlisted
        self._writer: SliceWriter | None = None
        self._incarnation = 0
        """Of a broker alone: taken from the store when it is first needed."""
        self._is_checked = False
        self._is_proving = False
        self.is_lost = False
        """This broker has lost the store: it opens no `stored` partition until that is over."""
        self._lost_incarnation = -1
        """The incarnation whose slices were ended for that."""
        self._former = SliceCounts()
        """What was put by the writers of earlier sessions."""
        membership.subscribe(MembershipListener(lost=self._session_lost))
        self.on_sealed: Callable[[SliceWriter], None] = lambda _writer: None
        """Called when another broker has sealed a sequence of this one: its partitions must be closed."""
        self._numbering = asyncio.Lock()  # partitions that are opened together share one incarnation
        self.takeover = SliceTakeover(objects, self.writer, tasks, clock)
        self._repair = SliceRepair(context, objects)
        begin = store.transact if membership.is_alone else JoinedTransactions(store.transact, tasks).transact
        self.upload = RecoveredUpload(objects, Catalog(store, begin), identity(), clock, segment_bytes)

    async def start(self) -> None:
        """Make sure that slices can be written: the store was proven fit, and there is an incarnation.

        Raises Refused if the store cannot keep `stored` topics, and Unavailable if that cannot be told now, or if the
        slices of this session cannot be used any more: then another session begins.
        """
        if self.is_lost:
            raise self._lost_store()
        await self.check()
        if not self._membership.is_alone:
            self._give_up_session()
        else:
            async with self._numbering:
                if not self._incarnation or self._is_over():
                    self._incarnation = (await take_ids(self._store, INCARNATION_COUNTER, 1))[0]

    def _give_up_session(self) -> None:
        """Let another session begin if the slices of the present one were sealed or damaged although it lives, or ended
        because the store was lost: none of its `stored` partitions could be opened again."""
        writer, session = self._writer, self._membership.session
        is_over = (writer is not None and writer.is_taken_over) or self._lost_incarnation == session.incarnation
        if writer is not None and is_over and writer.incarnation == session.incarnation:
            self._membership.give_up(session.incarnation)
            raise Unavailable(f"broker {session.name!r} takes a new session, because its slices were sealed: try again")

    @property
    def stuck_s(self) -> float:
        """For how long slices are on their way and none of them has counted; 0 if none is."""
        return self._writer.stuck_s if self._writer is not None else 0.0

    async def is_reachable(self) -> bool:
        """Return whether an object can be put into the store now."""
        try:
            async with asyncio.timeout(PROBE_S):
                await probe_store(self._objects)
        except (TimeoutError, DanubeError) as error:
            log.debug("store.not_reached", error=str(error) or "no answer")
            return False
        return True

    def lose(self) -> None:
        """End the slices, unfinished: what waits for them is not acked, and nothing is from now on."""
        self.is_lost = True
        if self._writer is not None and not self._writer.is_ended:
            self._lost_incarnation = self._writer.incarnation
            self._writer.abandon(self._lost_store())

    def found(self) -> int:
        """The store is there again. Return the incarnation whose slices were ended meanwhile; -1: none was."""
        self.is_lost = False
        return self._lost_incarnation

    def _lost_store(self) -> Unavailable:
        name = self._membership.session.name
        return Unavailable(f"broker {name!r} has lost the object store {self._objects.url}: try again, another has it")

    def _is_over(self) -> bool:
        """Return whether the writer of the present incarnation can append nothing any more."""
        writer = self._writer
        return writer is not None and writer.is_ended and writer.incarnation == self._incarnation

    async def check(self) -> None:
        """Raise Refused if the store cannot keep `stored` topics, and Unavailable if that cannot be told now. A store
        that was found fit is not asked again."""
        if not self._is_checked:
            await check_store(self._objects)
            self._is_checked = True

    def writer(self) -> SliceWriter:
        """Return the writer of this broker's present incarnation; after `start`."""
        incarnation = self._incarnation or self._membership.session.incarnation
        if not incarnation:
            raise Unavailable("this broker has no session yet: try again")
        if self._writer is None or self._writer.incarnation != incarnation:
            made = SliceWriter(self._objects, incarnation, self._settings, self._clock, self._tasks)
            made.on_sealed = lambda: self.on_sealed(made)
            if self._writer is not None:
                self._former = self.counts()._replace(puts_per_s=0.0, waiting_bytes=0, is_failing=False)
                self._writer.abandon(NotOwner("this broker has a new session: look the owner up again"))
            self._writer = made
            self._begin_proving()
        return self._writer

    def _session_lost(self, session: BrokerSession) -> None:
        """End the slices of a session that is over: they are never used again, whatever is on its way."""
        if self._writer is not None and self._writer.incarnation == session.incarnation:
            self._writer.abandon(NotOwner(f"the session of broker {session.name!r} has ended: look the owner up again"))

    def _begin_proving(self) -> None:
        if not self._is_proving and not self._membership.is_alone:
            self._is_proving = True
            self._tasks.spawn(self._keep_proving(), "slices proving")

    async def _keep_proving(self) -> None:
        """While the session may be over, look whether the slices are still this broker's. Whether they are decides if
        it may deliver. Runs until cancelled."""
        while True:
            await self._clock.sleep(PROVE_EVERY_S)
            if not self._membership.holds() and self._writer is not None and not self._writer.is_ended:
                try:
                    async with asyncio.timeout(PROOF_S):
                        await self._writer.prove()
                except (TimeoutError, DanubeError) as error:
                    log.debug("slices.unproven", error=str(error))

    @property
    def current(self) -> SliceWriter | None:
        """The writer, if anything was ever written."""
        return self._writer

    def counts(self) -> SliceCounts:
        """Return what was put since the start of this broker, and what waits now."""
        if (writer := self._writer) is None:
            return self._former._replace(unlisted_bytes=self.unlisted.total)
        former, now_us = self._former, self._clock.now_us()
        return SliceCounts(
            former.puts + writer.puts,
            former.put_bytes + writer.put_bytes,
            former.put_failures + writer.put_failures,
            writer.meter.rates(now_us)[0],
            0 if writer.is_ended else writer.waiting_bytes,
            self.unlisted.total,
            not writer.is_ended and writer.failure is not None,
        )

    async def repair(self, key: str, accept_loss: bool) -> list[SliceLoss]:
        """See SliceRepair.repair."""
        own = self._writer.incarnation if self._writer is not None and not self._writer.is_ended else -1
        return await self._repair.repair(key, own, accept_loss)

    def open_partition(self) -> SlicedLog:
        """Return the log of a partition that this broker took."""
        return SlicedLog(self._log, self.writer(), self._settings.state_interval_ms / 1000, self.unlisted)

    @property
    def trouble(self) -> str:
        """Why publishes to `stored` topics wait, in one sentence; empty while they do not."""
        if self.is_lost:
            return self._lost_store().message
        return self._writer.trouble if self._writer is not None and not self._writer.is_ended else ""

    async def close(self) -> None:
        """Seal the own sequence, once everything counts. Raises what the store raises; a taker seals it then."""
        if self._writer is not None:
            await self._writer.close()
