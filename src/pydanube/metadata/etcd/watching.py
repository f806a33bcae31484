"""One watch on etcd: a stream of its own, opened again at another member whenever it is lost.

etcd keeps the newest value of a key when its history up to a revision R is compacted, and lets watches begin at R
itself, where a deletion may be missing already. Here a compaction of R drops the events of R too. So a watch from
revision N asks etcd for N - 1 on and leaves out what is before N: etcd refuses exactly those that begin at or before R.

Invariants
    after a loss the watch goes on with the first revision of which not all events were yielded
    a compacted watch raises Compacted; it is never resumed at a newer revision
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from pydanube.metadata.store import Compacted, Event
from pydanube.model.errors import DanubeError, Unavailable
from pydanube.runtime.clock import Clock
from pydanube.runtime.telemetry import get_logger

from . import errors
from .client import PAUSE_SECONDS, EtcdClient, EtcdStream, MemberFailed
from .rpc import WATCH, WatchCreateRequest, WatchRequest

log = get_logger(__name__)

CREATED_SECONDS: Final = 5.0
"""How long a member may take to begin a watch."""


class Watches:
    """All watches of a store, so that closing the store ends them."""

    def __init__(self, client: EtcdClient, clock: Clock, to_event: Callable[[Any], Event]) -> None:
        """`to_event` turns an Event message of etcd into an event of the store."""
        self._client = client
        self._clock = clock
        self._to_event = to_event
        self._streams: set[EtcdStream] = set()
        self._closed = asyncio.Event()

    def close(self) -> None:
        """End all watches with Unavailable."""
        self._closed.set()
        for stream in self._streams:
            stream.cancel()

    async def watch(self, start: bytes, end: bytes, from_revision: int) -> AsyncIterator[Event]:
        """Yield the events of the keys in [start, end) from a revision on. When cancelled or closed early, nothing is
        left behind."""
        wanted = max(1, from_revision)
        failed = 0
        while True:
            if self._closed.is_set():
                raise Unavailable("the metadata store has been closed")
            stream = None
            try:
                stream = await self._client.open_stream(WATCH)
                self._streams.add(stream)
                watched = _Watched(stream, self._client, self._to_event, wanted)
                await watched.begin(start, end)
                while True:
                    events, upto = await watched.receive()
                    failed = 0
                    for event in events:
                        yield event
                    wanted = upto + 1
            except MemberFailed as lost:
                failed += 1
                log.info("etcd.watch_lost", revision=wanted, reason=str(lost))
            finally:
                if stream is not None:
                    self._streams.discard(stream)
                    stream.cancel()
            if failed % len(self._client.place.members) == 0:
                await self._clock.sleep(PAUSE_SECONDS)


class _Watched:
    """A watch on one stream."""

    def __init__(self, stream: EtcdStream, client: EtcdClient, to_event: Callable[[Any], Event], wanted: int) -> None:
        self._stream = stream
        self._client = client
        self._to_event = to_event
        self._wanted = wanted
        self._held: list[Event] = []
        """Events of a revision of which more may follow."""

    async def begin(self, start: bytes, end: bytes) -> None:
        create = WatchCreateRequest(
            key=start, range_end=end, start_revision=max(1, self._wanted - 1), progress_notify=True, fragment=True
        )
        try:
            async with asyncio.timeout(CREATED_SECONDS):
                await self._stream.send(WatchRequest(create_request=create))
                await self._receive()
        except TimeoutError:
            raise self._stream.fail("it did not begin a watch in time") from None

    async def receive(self) -> tuple[list[Event], int]:
        """Return the events of whole revisions, and the revision up to which all are known now."""
        while True:
            reply = await self._receive()
            for message in reply.events:
                event = self._to_event(message)
                if event.revision >= self._wanted:
                    self._held.append(event)
            if reply.fragment:
                newest = self._held[-1].revision if self._held else 0
                ready = [event for event in self._held if event.revision < newest]
                self._held = [event for event in self._held if event.revision == newest]
            else:
                ready, self._held = self._held, []
            if ready:
                self._wanted = ready[-1].revision + 1
                return ready, ready[-1].revision
            if not reply.events and not reply.created and reply.header.revision >= self._wanted:
                self._wanted = reply.header.revision + 1  # a progress notification
                return [], reply.header.revision

    async def _receive(self) -> Any:
        reply = await self._stream.receive()
        if not reply.canceled:
            return reply
        if reply.compact_revision:
            raise Compacted(
                f"revision {self._wanted} has been compacted away (up to {reply.compact_revision}): list again"
            )
        raise self._cancelled(reply.cancel_reason.removeprefix("etcdserver: "))

    def _cancelled(self, reason: str) -> DanubeError | MemberFailed:
        """Return the error for a watch that etcd has ended."""
        if any(one in reason for one in errors.NEW_TOKEN):
            self._client.forget_token()
            return MemberFailed(reason)
        if "permission denied" in reason:
            return errors.refusal(self._client.place, reason, denied=True)
        return self._stream.fail(reason or "the watch was ended")
