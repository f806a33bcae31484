"""Keeps a producer, a consumer or a reader in contact with the broker that owns its partition.

```
 look up the owner ──► connect ──► attempt ──► success
        ▲                            │
        │                            ├─ NotOwner, Unavailable, Full: may succeed later or at another broker
        └── wait (backoff) ◄─────────┘
                                     └─ any other error: raised to the caller, the loop ends
```

`OwnerRetry` is that loop for one kind of attempt; a reader uses it for every fetch. `OwnerSession` uses the loop to
hold an open handle (of a producer or a consumer) and to open it again after its connection ended.

Invariants
    a session has at most one handle, and at most one task that tries to open one
    a handle that the broker gave out is closed again, also when the answer came after the caller was cancelled
    an owner that answers with a lower epoch than the client has seen is refused, as if it had answered NotOwner
    NotOwner and every other failure updates the route, so that the next attempt goes to the present owner
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from pydanube.codec.native import requests
from pydanube.model.errors import DanubeError, NotOwner
from pydanube.runtime.retry import RetryBackoff
from pydanube.runtime.tasks import Tasks, ignore
from pydanube.runtime.telemetry import get_logger

from .connection import Connection
from .observing import PartitionHook, PartitionWatch
from .routing import Brokers, worth_retrying

log = get_logger(__name__)

CLOSE_SECONDS: Final = 2.0
"""How long closing a handle waits for the broker's answer. The broker forgets it anyway when the connection ends."""

T = TypeVar("T")
OpenedT = TypeVar("OpenedT", bound=requests.ProducerOpened | requests.ConsumerOpened)
OpenedT_contra = TypeVar("OpenedT_contra", contravariant=True)


def _always() -> bool:
    return True


class OwnerRetry:
    """Calls the owner of one partition until it succeeds, with a growing wait between attempts."""

    def __init__(self, brokers: Brokers, topic: str, partition: int, backoff: RetryBackoff) -> None:
        self._brokers = brokers
        self._topic = topic
        self._partition = partition
        self._backoff = backoff
        self._unproven = False

    async def run(
        self,
        attempt: Callable[[Connection], Awaitable[T]],
        *,
        wanted: Callable[[], bool] = _always,
        on_failure: Callable[[DanubeError], None] = ignore,
    ) -> T | None:
        """Connect to the owner and call `attempt` with the connection until it succeeds; return its result.

        wanted      asked before each attempt; when it returns False the loop ends and returns None
        on_failure  called with the error of each failed attempt

        Raises the error that no later attempt can cure. Waits first when `succeeded` was not called since the last run:
        sessions that open and end without any use must not follow each other at full speed. Cancelled, it stops.
        """
        if self._unproven:
            await self._brokers.clock.sleep(self._backoff.next())
        self._unproven = True
        while wanted():
            try:
                return await attempt(await self._brokers.owner(self._topic, self._partition))
            except DanubeError as error:
                on_failure(error)
                self._brokers.moved(self._topic, self._partition, error.owner if isinstance(error, NotOwner) else "")
                if not worth_retrying(error):
                    raise
            await self._brokers.clock.sleep(self._backoff.next())
        return None

    def succeeded(self) -> None:
        """Note that the owner did something useful: the next wait is the shortest one again."""
        self._unproven = False
        self._backoff.reset()

    def next_wait(self) -> float:
        """Return the seconds to wait before the next attempt, which grow with each call."""
        return self._backoff.next()


class SessionUser(Protocol[OpenedT_contra]):
    """What a producer or a consumer of one partition implements to hold an `OwnerSession`."""

    @property
    def what(self) -> str:
        """ "producer" or "consumer", for logs and task names."""

    def open_request(self) -> requests.Request:
        """Return the request that opens the handle."""

    def close_request(self, handle: int) -> requests.Request:
        """Return the request that closes the handle."""

    def session_wanted(self) -> bool:
        """Return whether the session should still be opened; asked before each attempt of `reopen`."""

    def session_opened(self, connection: Connection, opened: OpenedT_contra) -> None:
        """Use the new handle. Called before the connection reads its next frame."""

    def session_lost(self, error: DanubeError) -> None:
        """Handle the end of the connection, and of the handle with it; call `reopen` if another is needed."""

    def open_failed(self, error: DanubeError) -> None:
        """Handle the failure of one attempt of `reopen`, which may be repeated."""

    def reopen_ended(self, error: DanubeError | None) -> None:
        """`reopen` is over: the session is open, is not wanted any more, or cannot be opened because of `error`."""


class OwnerHandle(NamedTuple):
    """An open handle at a broker. The broker counts it as live until it is given back."""

    connection: Connection
    number: int
    close_request: requests.Request

    def give_back(self) -> None:
        """Tell the broker to close the handle, without waiting for the answer."""
        self.connection.tell(self.close_request)


class OwnerSession(Generic[OpenedT]):
    """The handle of one producer or consumer at the owner of one partition."""

    def __init__(
        self,
        brokers: Brokers,
        tasks: Tasks,
        user: SessionUser[OpenedT],
        opened_type: type[OpenedT],
        topic: str,
        partition: int,
        backoff: RetryBackoff,
        hook: PartitionHook | None = None,
    ) -> None:
        self.handle: OwnerHandle | None = None
        self.watch = PartitionWatch(brokers.metrics, hook, topic, partition)
        self.retry = OwnerRetry(brokers, topic, partition, backoff)
        self.epoch = brokers.epochs.of(topic, partition)
        """The highest epoch of the partition's owner that the client has seen."""
        self._brokers = brokers
        self._tasks = tasks
        self._user = user
        self._opened_type = opened_type
        self._topic = topic
        self._partition = partition
        self._opening: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Find the owner and open a handle there. One attempt. Cancelled, no handle stays behind."""
        await self.open_at(await self._brokers.owner(self._topic, self._partition))

    async def open_at(self, connection: Connection, request: requests.Request | None = None) -> None:
        """Open a handle at this broker, in place of the present one. One attempt. Cancelled, no handle stays behind.

        request     sent instead of the user's `open_request`
        """
        opened = await connection.request(
            self._user.open_request() if request is None else request,
            self._opened_type,
            partial(self._opened, connection),
            on_late=lambda opened: connection.tell(self._user.close_request(opened.handle)),
        )
        self._brokers.check_epoch(self._topic, self._partition, opened.owner_epoch, connection)

    def reopen(self) -> None:
        """Open a handle in the background and keep trying for as long as the user wants it."""
        if self._opening is None:
            self._opening = self._tasks.spawn(
                self._reopen(), f"open {self._user.what} {self._topic}[{self._partition}]"
            )

    def stale_answer(self, epoch: int) -> NotOwner:
        """Return the error for an answer of the present owner with a lower epoch than was seen, and avoid that
        broker."""
        broker: object = "an earlier address"
        if self.handle is not None:
            broker = self.handle.connection.address
            self._brokers.avoid(self.handle.connection.address)
        return self.epoch.refusal(epoch, broker)

    def release(self, error: DanubeError | None = None) -> OwnerHandle | None:
        """Leave the session and return its handle, which the caller gives back (or the broker has closed already, with
        `error`)."""
        self.watch.revoked(error)
        return self._leave()

    def _leave(self) -> OwnerHandle | None:
        handle, self.handle = self.handle, None
        if handle is not None:
            handle.connection.forget(self)
        return handle

    def detach(self, error: DanubeError | None = None) -> OwnerHandle | None:
        """Stop `reopen`, leave the session and return its handle, which the caller gives back. `error` is why, unless
        the client wants it so."""
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None
        return self.release(error)

    async def close(self, handle: OwnerHandle | None) -> None:
        """Close a handle that `detach` returned and wait for the broker a moment; its refusal is only logged."""
        if handle is not None and handle.connection.usable:
            try:
                await handle.connection.request(handle.close_request, requests.Done, timeout=CLOSE_SECONDS)
            except DanubeError as error:
                event = f"{self._user.what}.close_failed"
                log.debug(event, topic=self._topic, partition=self._partition, error=error.message)

    def _opened(self, connection: Connection, opened: OpenedT) -> None:
        if not self.epoch.accepts(opened.owner_epoch):  # `open_at` raises the error
            connection.tell(self._user.close_request(opened.handle))
            return
        former = self._leave()
        if former is not None:
            former.give_back()
        connection.on_lost(self, self._lost)
        self.handle = OwnerHandle(connection, opened.handle, self._user.close_request(opened.handle))
        self._user.session_opened(connection, opened)
        self.watch.assigned(connection.address)

    def _lost(self, error: DanubeError) -> None:
        self.handle = None
        self.watch.disconnected(error)
        self._user.session_lost(error)

    async def _reopen(self) -> None:
        failure: DanubeError | None = None
        try:
            await self.retry.run(self.open_at, wanted=self._user.session_wanted, on_failure=self._user.open_failed)
        except DanubeError as error:
            failure = error
        finally:
            if self._opening is asyncio.current_task():
                self._opening = None
        if failure is not None:
            self.watch.revoked(failure)
        self._user.reopen_ended(failure)
