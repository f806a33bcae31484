"""One connection to one broker, shared by every producer, consumer and reader that needs that broker.

Requests are pipelined: each has a correlation number, by which its answer is recognised; answers come in any order.

```
 client                                broker
 PREAMBLE, HELLO            ---->
                            <----      WELCOME             or ERROR / GOAWAY, and the connection ends
 REQUEST #7                 ---->
 PUBLISH #8 (batch)         ---->
                            <----      PUBLISHED #8
                            <----      RESPONSE #7  / ERROR #7
                            <----      DELIVER (handle)    pushed, within the credit the client gave
```

Invariants
    every request ends exactly once: with its answer, the broker's error, or Unavailable when the connection ends
    at most FETCHES_MAX fetches are unanswered, including those whose caller was cancelled
    the bytes of unanswered PUBLISH and STAGE frames stay within the broker's window, except for a single larger frame
    the listener of a handle is registered before any frame for the handle is read
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from typing import Final, TypeVar, cast

import msgspec

from pydanube.codec.batch import ByteBuffer
from pydanube.codec.native import frames, requests
from pydanube.codec.native.frames import Frame, FrameKind
from pydanube.model.errors import DanubeError, Invalid, Refused, Unavailable
from pydanube.runtime import network
from pydanube.runtime.clock import Clock
from pydanube.runtime.tasks import complete, ignore, mark_retrieved
from pydanube.runtime.telemetry import get_logger
from pydanube.runtime.tls_transport import TlsFailed
from pydanube.version import __version__

from .foreign_peer import FIRST_BYTES, NATIVE_PORT_HINT, ForeignPeer, describe_peer, greeting_length
from .pending_answers import (
    AckAnswer,
    Answer,
    Answerable,
    DeliveryListener,
    FetchAnswer,
    IgnoredAnswer,
    PublishListener,
    ReplyListener,
    WindowAnswer,
    fail,
)
from .servers import BrokerAddress

log = get_logger(__name__)

HANDSHAKE_SECONDS: Final = 5.0
REQUEST_SECONDS: Final = 30.0
"""How long a request waits for its answer before it raises Unavailable."""

FETCHES_MAX: Final = 512
"""Unanswered fetches of one connection; further ones wait in a queue. A broker refuses more than a configured number,
1,024 by default; half of that leaves room for brokers with a lower setting."""

CROWDED_FETCHES: Final = FETCHES_MAX // 2
CROWDED_WAIT_MS: Final = 250
"""When more fetches than CROWDED_FETCHES are unanswered, further ones wait at the broker only for CROWDED_WAIT_MS, so
that the next ones in the queue get their turn."""

SILENT_INTERVALS_MAX: Final = 4
"""Keep-alive intervals without a single byte before the connection is given up; a PING is sent after each."""

TICKS: Final = 5
"""Silence is counted in ticks, so many in a keep-alive interval."""

EARLY_PING_TICKS: Final = 2
"""Ticks of silence before the first PING: a broker that is well has answered it long before it counts as late."""

_FRAMING: Final = network.Framing(frame_length=greeting_length, header_bytes=frames.HEADER.size)
"""Until the broker has greeted; then frames of any size may come."""
_CORRELATIONS: Final = 0xFFFFFFFF

StructT = TypeVar("StructT", bound=msgspec.Struct)
T = TypeVar("T")


class PublishWindow:
    """Flow control for publishes: counts the unanswered bytes of one connection. `limit` 0: the broker set none.

    Invariants
        unanswered bytes stay within the window, except for a single batch larger than it, alone
        waiting callers get room in the order of asking; one for which there still is no room is not called
    """

    __slots__ = ("_outstanding", "_waiting", "limit")

    def __init__(self) -> None:
        self.limit = 0
        self._outstanding = 0
        self._waiting: dict[object, tuple[int, Callable[[], None]]] = {}

    def has_room(self, size: int) -> bool:
        return not self._outstanding or not self.limit or self._outstanding + size <= self.limit

    def take(self, size: int) -> None:
        self._outstanding += size

    def when_room(self, key: object, size: int, callback: Callable[[], None]) -> None:
        """Call `callback` once when there is room for `size` bytes. Each `key` waits at most once."""
        self._waiting.setdefault(key, (size, callback))

    def forget(self, key: object) -> None:
        self._waiting.pop(key, None)

    def give_back(self, size: int) -> None:
        """Return the bytes of a request that was answered."""
        self._outstanding -= size
        assert self._outstanding >= 0

    def call_waiting(self) -> None:
        """Call the waiting callers for which there is room now."""
        waiting = self._waiting
        while waiting:
            key = next(iter(waiting))
            size, callback = waiting[key]
            if not self.has_room(size):
                return
            del waiting[key]
            callback()

    def close(self) -> None:
        self._waiting.clear()


class KeepAlive:
    """Counts for how many ticks in a row no bytes moved, and reports each of them.

    Ticks are counted, not measured: an event loop that was blocked for a minute counts one silent tick, not many, and
    its connections stay open if the broker answers then.
    """

    __slots__ = ("_loop", "_moved", "_moved_at", "_silent", "_tick_s", "_ticks", "_timer")

    def __init__(self, tick_s: float, moved_at: Callable[[], float], silent: Callable[[int], None]) -> None:
        """`moved_at` returns when bytes moved last. `silent` is called after each tick in which none did, with the
        number of these ticks."""
        self._tick_s = tick_s
        self._moved_at = moved_at
        self._moved = moved_at()
        self._silent = silent
        self._ticks = 0
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(tick_s, self._tick)

    @property
    def silent_ticks(self) -> int:
        return self._ticks if self._moved == self._moved_at() else 0

    def stop(self) -> None:
        self._timer.cancel()

    def _tick(self) -> None:
        self._timer = self._loop.call_later(self._tick_s, self._tick)
        moved = self._moved_at()
        self._ticks = self._ticks + 1 if moved == self._moved else 0
        self._moved = moved
        if self._ticks:
            self._silent(self._ticks)


class Connection:
    """An open connection after the handshake. Made by `Connection.open`; belongs to the thread of the event loop."""

    def __init__(self, address: BrokerAddress, framed: network.FramedConnection) -> None:
        self.address = address
        self.welcome = requests.Welcome(version=0, broker="")
        self.lost: DanubeError | None = None
        """Why it ended; None while it can be used."""
        self.going_away = False
        """The broker sent GOAWAY: requests under way may finish, new ones should go to another broker."""
        self.window = PublishWindow()
        self._framed = framed
        self._loop = asyncio.get_running_loop()
        self._greeted: asyncio.Future[requests.Welcome] = self._loop.create_future()
        self._greeted.add_done_callback(mark_retrieved)  # `open` may be cancelled before it awaits this
        self._correlation = 0
        self._asked: dict[int, Answerable] = {}
        self._fetches: dict[int, asyncio.Future[FetchAnswer]] = {}
        self._fetch_places = asyncio.Semaphore(FETCHES_MAX)
        self._publishes: dict[int, tuple[PublishListener, object, int]] = {}
        self._consumers: dict[int, DeliveryListener] = {}
        self._on_lost: dict[object, Callable[[DanubeError], None]] = {}
        self.on_late: Callable[[], None] = ignore
        """Called now and then while the broker is late."""
        self._reason: DanubeError | None = None
        self._welcomed = False
        self._is_old = False
        """The last answer may have been old: the broker is past its session."""
        self._foreign = ""
        """What the peer is, if it is not a danube broker."""
        self._keep_alive: KeepAlive | None = None

    @classmethod
    async def open(
        cls,
        address: BrokerAddress,
        clock: Clock,
        timeout: float = HANDSHAKE_SECONDS,
        token: str = "",
        tls: ssl.SSLContext | None = None,
    ) -> Connection:
        """Connect, with `tls` encrypted, and exchange HELLO and WELCOME. `token`: the credentials to show; empty: none.

        Raises Unavailable, the error with which the broker refuses, or ForeignPeer if something else answers, or the
        certificate of the broker is not accepted. Cancelled, the connection is closed.
        """
        made: list[Connection] = []

        def handler(framed: network.FramedConnection) -> Connection:
            made.append(cls(address, framed))
            return made[0]

        try:
            framed = await network.connect(address.host, address.port, handler, _FRAMING, clock, timeout, tls)
        except TlsFailed as error:
            raise ForeignPeer(f"{address}: {error}") from None
        self = made[0]
        hello = requests.Hello(client=f"pydanube/{__version__}", features=sorted(requests.FEATURES))
        if token:
            hello.auth_scheme, hello.auth_data = requests.BEARER, token.encode()
        framed.send(frames.PREAMBLE, frames.encode(FrameKind.HELLO, requests.encode(hello)))
        try:
            async with asyncio.timeout(timeout):
                self.welcome = await self._greeted
        except TimeoutError:
            self._recognise_peer()
            framed.abort()
            if self._foreign:
                raise ForeignPeer(self._foreign) from None
            raise Unavailable(
                f"{address} accepted the connection and did not greet within {timeout:g} s: "
                f"it is not a danube broker, or it hangs; {NATIVE_PORT_HINT}"
            ) from None
        except BaseException as error:
            framed.abort()
            if self._foreign and isinstance(error, DanubeError):
                raise ForeignPeer(self._foreign) from None
            raise
        self.window.limit = self.welcome.publish_window_bytes
        if self.lost is None and self.welcome.keep_alive_ms > 0:
            tick_s = self.welcome.keep_alive_ms / 1_000 / TICKS
            self._keep_alive = KeepAlive(tick_s, lambda: framed.last_progress, self._silent)
        return self

    @property
    def last_received(self) -> float:
        """When bytes last arrived, in seconds of the clock's `monotonic`."""
        return self._framed.last_received

    @property
    def usable(self) -> bool:
        return self.lost is None and not self.going_away

    @property
    def is_late(self) -> bool:
        """Whether nothing was heard for a keep-alive interval, although a PING was sent in it. The broker may be busy,
        or gone."""
        return self._keep_alive is not None and self._keep_alive.silent_ticks >= TICKS

    def on_lost(self, key: object, callback: Callable[[DanubeError], None]) -> None:
        """Call `callback` once when the connection ends; raises if it has. `forget(key)` removes the callback."""
        if self.lost is not None:
            raise copy(self.lost)
        self._on_lost[key] = callback

    def forget(self, key: object) -> None:
        """Remove the callbacks that were registered under `key`, here and in the publish window."""
        self._on_lost.pop(key, None)
        self.window.forget(key)

    async def close(self) -> None:
        """Send the queued bytes, then close. Every unanswered request ends with Unavailable."""
        self._reason = self._reason or Unavailable("the client closed this connection")
        self._framed.close()
        await self._framed.wait_closed()

    # -- requests ----------------------------------------------------------------------------------------------------

    async def request(
        self,
        request: requests.Request,
        answer: type[StructT],
        on_answer: Callable[[StructT], None] | None = None,
        timeout: float = REQUEST_SECONDS,
        on_late: Callable[[StructT], None] | None = None,
        elsewhere: bool = False,
    ) -> StructT:
        """Send a request, wait for its answer and return it.

        elsewhere   any broker may answer it, and it may be repeated: `ask_elsewhere` ends it with Unavailable
        on_answer   called with the answer before the next frame is read
        on_late     called with an answer that comes after the caller was cancelled or the timeout passed; by default
                    such an answer is ignored
        """
        waiting: asyncio.Future[StructT] = self._loop.create_future()
        correlation = self._next_correlation()
        self._asked[correlation] = Answer(waiting, answer, on_answer, on_late, elsewhere)
        self._framed.send(frames.encode(FrameKind.REQUEST, requests.encode(request), correlation))
        return await self._answer(waiting, timeout, type(request).__name__)

    def ask_elsewhere(self, error: DanubeError) -> None:
        """End the requests that any broker may answer with this error. What this broker still answers is ignored."""
        for correlation in [number for number, asked in self._asked.items() if asked.elsewhere]:
            self._asked.pop(correlation).fail(error)

    def tell(self, request: requests.Request) -> None:
        """Send a request and ignore its answer. On a connection that ended it does nothing."""
        if self.lost is None:
            correlation = self._next_correlation()
            self._asked[correlation] = IgnoredAnswer()
            self._framed.send(frames.encode(FrameKind.REQUEST, requests.encode(request), correlation))

    async def fetch(self, fetch: requests.Fetch, timeout: float = REQUEST_SECONDS) -> FetchAnswer:
        """Read without a subscription; waits if too many fetches are unanswered. Cancelled, the answer is ignored."""
        await self._fetch_places.acquire()
        try:
            correlation = self._next_correlation()
        except DanubeError:
            self._fetch_places.release()  # the next one in the queue has to fail too
            raise
        if len(self._fetches) >= CROWDED_FETCHES:
            fetch = msgspec.structs.replace(fetch, wait_ms=min(fetch.wait_ms, CROWDED_WAIT_MS))
        waiting: asyncio.Future[FetchAnswer] = self._loop.create_future()
        self._fetches[correlation] = waiting
        self._framed.send(frames.encode(FrameKind.FETCH, requests.encode(fetch), correlation))
        return await self._answer(waiting, timeout + fetch.wait_ms / 1_000, "Fetch")

    async def _answer(self, waiting: asyncio.Future[T], timeout: float, what: str) -> T:
        deadline = self._loop.call_later(timeout, _give_up, waiting, what, self.address, timeout)
        try:
            return await waiting
        finally:
            deadline.cancel()

    # -- publishing --------------------------------------------------------------------------------------------------

    def publish(self, handle: int, batch: bytearray, listener: PublishListener, ticket: object) -> None:
        correlation = self._next_correlation()
        size = len(batch)
        self._publishes[correlation] = (listener, ticket, size)
        self.window.take(size)
        front = frames.encode_publish_front(correlation, handle, size)
        if (
            len(self._publishes) == 1
        ):  # nothing else is unanswered: send at once, without waiting to send several frames together
            self._framed.send_now(front, batch)
        else:
            self._framed.send(front, batch)

    async def stage(
        self, stage: requests.Stage, body: Sequence[ByteBuffer], timeout: float = REQUEST_SECONDS
    ) -> requests.Staged:
        """Store batches that stay invisible until they are committed. Waits for room in the publish window.

        The buffers must not change before the answer. Cancelled, the answer is ignored.
        """
        size = sum(map(len, body))
        while not self.window.has_room(size):
            await self._next_room(size)
        correlation = self._next_correlation()
        waiting: asyncio.Future[requests.Staged] = self._loop.create_future()
        answer = Answer(waiting, requests.Staged, None, None, elsewhere=True)
        self._asked[correlation] = WindowAnswer(answer, partial(self._stage_settled, size))
        self.window.take(size)
        self._framed.send(frames.encode_front(FrameKind.STAGE, requests.encode(stage), size, correlation), *body)
        return await self._answer(waiting, timeout, "Stage")

    async def _next_room(self, size: int) -> None:
        """Wait until there is room for `size` bytes; it may be gone again when this returns."""
        waiting: asyncio.Future[None] = self._loop.create_future()
        self.on_lost(waiting, partial(fail, waiting))
        self.window.when_room(waiting, size, partial(complete, waiting, None))
        try:
            await waiting
        finally:
            self.forget(waiting)

    def _stage_settled(self, size: int) -> None:
        self.window.give_back(size)
        if self.lost is None:
            self.window.call_waiting()

    # -- requests and replies ----------------------------------------------------------------------------------------

    def ask(self, ask: requests.Ask, payload: bytes, listener: ReplyListener) -> int:
        """Publish a request, and return the number by which `cancel` ends it. It ends by its last reply, or when the
        listener fails. Raises Refused if the broker is of a release without requests."""
        if requests.REQUEST_REPLY not in self.welcome.features:
            raise Refused(f"broker at {self.address} is of a release that has no requests: upgrade it")
        correlation = self._next_correlation()
        self._asked[correlation] = listener
        self._framed.send(*frames.encode_with_payload(FrameKind.ASK, requests.encode(ask), payload, correlation))
        return correlation

    def cancel(self, correlation: int) -> None:
        """Stop waiting for replies to a request, unless it has ended."""
        if self._asked.pop(correlation, None) is not None:
            self._framed.send(frames.encode(FrameKind.CANCEL, b"", correlation))

    def reply(self, reply: requests.Reply, payload: bytes) -> None:
        """Answer a request. The broker does not say whether the caller got the reply."""
        self._framed.send(*frames.encode_with_payload(FrameKind.REPLY, requests.encode(reply), payload))

    # -- consuming ---------------------------------------------------------------------------------------------------

    def listen(self, handle: int, listener: DeliveryListener) -> None:
        self._consumers[handle] = listener

    def stop_listening(self, handle: int) -> None:
        self._consumers.pop(handle, None)

    def give_credit(self, handle: int, messages: int, size: int) -> None:
        self._framed.send(frames.encode(FrameKind.CREDIT, frames.CREDIT.pack(handle, messages, size)))

    def ack(
        self,
        handle: int,
        ranges: list[tuple[int, int]] | frames.RangeTable,
        cumulative: bool = False,
        generation: int = frames.GENERATION_UNKNOWN,
        on_done: Callable[[DanubeError | None], None] | None = None,
    ) -> None:
        """Acknowledge offsets that were delivered under `generation`.

        on_done     called once with None when the acks are synced, or with the error if they were refused or the
                    connection ended
        """
        correlation = 0
        if on_done is not None:
            correlation = self._next_correlation()
            self._asked[correlation] = AckAnswer(on_done)
        flags = frames.FLAG_CUMULATIVE if cumulative else 0
        head = frames.encode_ack_head(handle, ranges, generation)
        self._framed.send(frames.encode(FrameKind.ACK, head, correlation, flags))

    def nack(self, nack: requests.Nack) -> None:
        """Ask for redelivery of offsets. There is no answer: offsets that are not acked are redelivered anyway."""
        self._framed.send(frames.encode(FrameKind.NACK, requests.encode(nack)))

    # -- what the transport calls ------------------------------------------------------------------------------------

    def frame_received(self, frame: memoryview) -> None:
        decoded = frames.decode(frame)
        match decoded.kind:
            case FrameKind.PUBLISHED:
                self._published(decoded)
            case FrameKind.DELIVER:
                head = frames.decode_deliver_head(decoded.head)
                listener = self._consumers.get(head.handle)
                if listener is not None:
                    listener.delivered(head, decoded.body)
            case FrameKind.RESPONSE:
                asked = self._asked.get(decoded.correlation)
                self._note_age(decoded.head)
                if asked is not None:
                    asked.succeed(decoded.head)
                    del self._asked[
                        decoded.correlation
                    ]  # not earlier: if the answer cannot be decoded, the request fails with the connection
            case FrameKind.FETCHED:
                self._fetched(decoded)
            case FrameKind.REPLIED:
                self._replied(decoded)
            case FrameKind.ERROR:
                self._failed(decoded)
            case FrameKind.PING:
                self._framed.send(frames.encode(FrameKind.PONG, bytes(decoded.head), decoded.correlation))
            case FrameKind.PONG:
                pass
            case _:
                self._announced(decoded)

    def _note_age(self, head: memoryview) -> None:
        """Warn of an answer that may be old, once until there is one that is not."""
        age_s = requests.decode(head, requests.AnswerAge).age_s if len(head) > 1 else 0
        if age_s and not self._is_old:
            log.warning("broker.answers_old", broker=str(self.address), age_s=age_s)
        self._is_old = bool(age_s)

    def stream_broken(self, error: DanubeError) -> None:
        self._recognise_peer()
        self._reason = Unavailable(f"broker at {self.address} sent what cannot be read: {error}")
        self._framed.abort()

    def writable_changed(self, writable: bool) -> None:
        """Do nothing: the bytes that wait to be sent are bounded by the publish window, the fetches and the acks."""

    def connection_lost(self, error: Exception | None) -> None:
        if self._keep_alive is not None:
            self._keep_alive.stop()
        self._recognise_peer()
        if isinstance(error, TlsFailed) and not self._welcomed:
            self._foreign = f"{self.address}: {error}"
        self.lost = self._reason or self._lost_error(error)
        fail(self._greeted, self.lost)
        asked, self._asked = self._asked, {}
        for one in asked.values():
            self._notify(one.fail, self.lost)
        fetches, self._fetches = self._fetches, {}
        for fetch in fetches.values():
            fail(fetch, self.lost)
            self._fetch_places.release()
        self._publishes.clear()
        self._consumers.clear()
        self.window.close()
        callbacks, self._on_lost = self._on_lost, {}
        for callback in callbacks.values():
            self._notify(callback, self.lost)

    def _lost_error(self, error: Exception | None) -> Unavailable:
        because = f": {error}" if error is not None else ""
        if self._welcomed:
            return Unavailable(f"connection to {self.address} was lost{because}")
        return Unavailable(
            f"{self.address} closed the connection before it greeted{because}: it is a broker that is starting or "
            f"stopping, or not a danube broker, for example a TLS server; {NATIVE_PORT_HINT}"
        )

    def _recognise_peer(self) -> None:
        """Before the greeting: note what the peer is, if its first bytes are not those of a danube broker."""
        if not self._welcomed and not self._foreign:
            described = describe_peer(self._framed.unread(FIRST_BYTES))
            if described:
                self._foreign = f"{self.address} is not a danube broker: {described} answered; {NATIVE_PORT_HINT}"

    def _notify(self, callback: Callable[[DanubeError], None], lost: DanubeError) -> None:
        """Call one listener; an exception it raises is reported and does not stop the other listeners."""
        try:
            callback(lost)
        except Exception as error:
            message = f"{callback!r} failed when the connection to {self.address} ended"
            self._loop.call_exception_handler({"message": message, "exception": error})

    # -- frames ------------------------------------------------------------------------------------------------------

    def _published(self, frame: Frame) -> None:
        _, base_offset, epoch = frames.unpack_head(frame.head, frames.PUBLISHED, frame.kind)
        entry = self._publish_answered(frame.correlation)
        if entry is not None:
            entry[0].published(entry[1], base_offset, bool(frame.flags & frames.FLAG_DUPLICATE), epoch)
        self.window.call_waiting()

    def _publish_answered(self, correlation: int) -> tuple[PublishListener, object, int] | None:
        entry = self._publishes.pop(correlation, None)
        if entry is not None:
            self.window.give_back(entry[2])
        return entry

    def _fetched(self, frame: Frame) -> None:
        next_offset, start, end, epoch = frames.unpack_head(frame.head, frames.FETCHED, frame.kind)
        waiting = self._fetch_answered(frame.correlation)
        if waiting is not None and not waiting.done():
            waiting.set_result(FetchAnswer(next_offset, start, end, frame.body, epoch))

    def _fetch_answered(self, correlation: int) -> asyncio.Future[FetchAnswer] | None:
        waiting = self._fetches.pop(correlation, None)
        if waiting is not None:
            self._fetch_places.release()
        return waiting

    def _replied(self, frame: Frame) -> None:
        is_last = bool(frame.flags & frames.FLAG_LAST)
        asked = self._asked.pop(frame.correlation, None) if is_last else self._asked.get(frame.correlation)
        if asked is not None:
            replied = requests.decode(frame.head, requests.Replied)
            payload = frames.payload_of(frame, replied.payload_bytes)
            cast(ReplyListener, asked).replied(replied.head, payload, is_last)

    def _failed(self, frame: Frame) -> None:
        error = requests.decode(frame.head, requests.Failure).error()
        if not self._greeted.done():
            self._reason = error
            fail(self._greeted, error)
        elif frame.correlation == 0:
            self._reason = Unavailable(f"broker at {self.address} ended the connection: {error}")
        elif (entry := self._publish_answered(frame.correlation)) is not None:
            entry[0].refused(entry[1], error)
            self.window.call_waiting()
        elif (asked := self._asked.pop(frame.correlation, None)) is not None:
            asked.fail(error)
        elif (fetch := self._fetch_answered(frame.correlation)) is not None:
            fail(fetch, error)

    def _announced(self, frame: Frame) -> None:
        match frame.kind:
            case FrameKind.WELCOME if not self._greeted.done():
                self._greeted.set_result(requests.decode(frame.head, requests.Welcome))
                self._welcomed = True
                self._framed.frame_length = frames.frame_length
            case FrameKind.GOAWAY:
                self.going_away = True
                if frame.head:
                    error = requests.decode(frame.head, requests.Failure).error()
                    self._reason = error
                    fail(self._greeted, error)
            case FrameKind.CONSUMER_CLOSED:
                failure = requests.decode(frame.head, requests.Failure)
                listener = self._consumers.pop(failure.handle, None)
                if listener is not None:
                    listener.closed(failure.error())
            case FrameKind.CONSUMER_CHANGED:
                changed = requests.decode(frame.head, requests.ConsumerChanged)
                listener = self._consumers.get(changed.handle)
                if listener is not None:
                    listener.changed(changed.ack_timeout_ms, changed.generation)
            case _:
                raise Invalid(f"a broker does not send {frame.kind.name} frames here")

    # -- inside ------------------------------------------------------------------------------------------------------

    def ping(self) -> None:
        self._framed.send(frames.encode(FrameKind.PING))

    def give_up(self, error: DanubeError) -> None:
        """End the connection at once; every unanswered request ends with this error."""
        self._reason = self._reason or error
        self._framed.abort()

    def _silent(self, ticks: int) -> None:
        if ticks >= SILENT_INTERVALS_MAX * TICKS:
            self.give_up(Unavailable(f"broker at {self.address} fell silent"))
            return
        if ticks == EARLY_PING_TICKS or ticks % TICKS == 0:
            self.ping()
        if ticks >= TICKS:
            self.on_late()

    def _next_correlation(self) -> int:
        if self.lost is not None:
            raise Unavailable(self.lost.message)
        while True:
            self._correlation = number = self._correlation % _CORRELATIONS + 1
            if number not in self._asked and number not in self._publishes and number not in self._fetches:
                return number


def _give_up(waiting: asyncio.Future[T], what: str, address: BrokerAddress, timeout: float) -> None:
    fail(waiting, Unavailable(f"broker at {address} did not answer {what} within {timeout:g} s"))
