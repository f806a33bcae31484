"""Requests from this broker to the others of its cluster, over the native protocol.

```
 request(), publish() ─► Link of that broker's incarnation ─► PeerConnection, opened when first needed
                          └ its session is over: Unavailable     └ it breaks: all that wait get Unavailable
```

Invariants
    there is at most one connection to each incarnation of a broker, and none to an incarnation that is over
    every call ends within its deadline: with the answer, the other broker's error, or Unavailable that names the broker
    unanswered batches stay within the window that the other broker granted, except for a single larger one
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

import msgspec

from pydanube.broker.cluster.membership import Membership, MembershipListener
from pydanube.codec.native import frames
from pydanube.codec.native import requests as wire
from pydanube.codec.native.frames import Frame, FrameKind
from pydanube.model.addresses import split_host_port
from pydanube.model.cluster import BrokerSession
from pydanube.model.errors import DanubeError, Full, Invalid, NotFound, NotOwner, Unavailable
from pydanube.model.limits import CONTROL_BYTES_MAX, MIB
from pydanube.model.messages import Published
from pydanube.model.names import TopicName
from pydanube.model.replies import InboxAddress, ReplyHead
from pydanube.operations import CALL_SECONDS
from pydanube.runtime import network
from pydanube.runtime.clock import Clock
from pydanube.runtime.tasks import Tasks, complete
from pydanube.runtime.telemetry import get_logger
from pydanube.runtime.tls_transport import TlsFailed
from pydanube.version import __version__

from .session import PEER_PREFIX

log = get_logger(__name__)

REQUESTS_MAX: Final = 64
"""Unanswered requests of one connection; more wait. A listener reads no further while it has as many of a peer."""

GREETING_SECONDS: Final = 1.0
"""How long a broker that starts waits for a process that may have its name already. A machine that is gone does not
answer at all, and its broker starts so much later."""

HANDLES_MAX: Final = 1_000
"""Partitions of one broker that batches are forwarded to at a time; the one unused longest gives way."""

HANDLE_IDLE_SECONDS: Final = 60.0
"""A handle that forwarded nothing for so long is closed."""

REPLIES_WAITING_MAX: Final = 1_000
"""Replies that wait for a connection to one broker; more are dropped."""

REPLIES_UNSENT_BYTES_MAX: Final = 32 * MIB
"""While so much is not sent to another broker, replies to it are dropped."""

SILENT_INTERVALS_MAX: Final = 3
"""Intervals without a single byte, each begun with a PING, before a connection is given up."""

_CORRELATIONS: Final = 0xFFFFFFFF
_FRAMING: Final = network.Framing(frame_length=frames.frame_length, header_bytes=frames.HEADER.size)

AnswerT = TypeVar("AnswerT", bound=msgspec.Struct)
T = TypeVar("T")


@dataclass(eq=False)
class NativePeers:
    """The other brokers of the cluster: broker.cluster.peers.Peers over native connections.

    `tasks` owns the attempts to connect; close the peers before it. `token`: the cluster token that this broker shows
    to the others; empty: none. `tls` returns the context of the next connection; None: connections are not encrypted.
    """

    membership: Membership
    clock: Clock
    tasks: Tasks
    token: str = ""
    tls: Callable[[], ssl.SSLContext] | None = None

    def __post_init__(self) -> None:
        self._links: dict[str, _Link] = {}
        self.membership.subscribe(MembershipListener(left=self._left))

    async def request(self, broker: str, request: wire.Request, answer: type[AnswerT]) -> AnswerT:
        head = wire.encode(request)
        if len(head) > CONTROL_BYTES_MAX:
            raise Full(f"a request of {len(head)} bytes to broker {broker!r} is too large: a frame takes less")
        link = self._link(broker)
        what = str(type(request).__struct_config__.tag)
        return await link.call(what, request.seconds, lambda connection: connection.request(head, answer))

    async def publish(self, broker: str, topic: TopicName, partition: int, batch: memoryview) -> Published:
        link, copied = self._link(broker), bytes(batch)  # a caller that was cancelled may change its batch
        return await link.call("a batch", CALL_SECONDS, lambda connection: connection.publish(topic, partition, copied))

    def reply(self, inbox: InboxAddress, head: ReplyHead, payload: bytes) -> None:
        session = self.membership.find(inbox.broker)
        if session is not None and session.incarnation == inbox.incarnation:
            self._link(inbox.broker).reply(wire.encode(wire.Reply(str(inbox), len(payload), head)), payload)

    def close(self) -> None:
        """End all connections. Calls under way and later ones fail with Unavailable."""
        links, self._links = self._links, {}
        for link in links.values():
            link.end(Unavailable("this broker is closing"))

    def _link(self, name: str) -> _Link:
        session = self.membership.find(name)
        if session is None:
            raise Unavailable(f"broker {name!r} has no session: wait until it is back")
        link = self._links.get(name)
        if link is None or link.session.incarnation != session.incarnation:
            if link is not None:
                link.end(_over(link.session))
            own = self.membership.session
            link = self._links[name] = _Link(session, own, self.clock, self.tasks, self.token, self.tls)
        return link

    def _left(self, session: BrokerSession) -> None:
        link = self._links.get(session.name)
        if link is not None and link.session.incarnation == session.incarnation:
            del self._links[session.name]
            link.end(_over(session))


@dataclass(eq=False)
class _Link:
    """One incarnation of another broker, and the connection to it."""

    session: BrokerSession
    own: BrokerSession
    clock: Clock
    tasks: Tasks
    token: str
    tls: Callable[[], ssl.SSLContext] | None

    def __post_init__(self) -> None:
        self._connection: PeerConnection | None = None
        self._connecting: asyncio.Future[PeerConnection | DanubeError] | None = None
        self._over: DanubeError | None = None
        self._replies_waiting = 0

    async def call(self, what: str, seconds: float, act: Callable[[PeerConnection], Awaitable[T]]) -> T:
        try:
            async with asyncio.timeout(seconds):
                return await act(await self._connected())
        except TimeoutError:
            name, address = self.session.name, self.session.peer_address
            raise Unavailable(f"broker {name!r} at {address} did not answer {what} within {seconds:g} s") from None

    def reply(self, head: bytes, payload: bytes) -> None:
        """Send a reply, now or as soon as there is a connection; drop it where that is not possible."""
        if self._connection is not None and self._connection.is_usable:
            self._connection.reply(head, payload)
        elif self._replies_waiting < REPLIES_WAITING_MAX:
            self._replies_waiting += 1
            self.tasks.spawn(self._reply_later(head, payload), f"reply to {self.session.name}")

    async def _reply_later(self, head: bytes, payload: bytes) -> None:
        try:
            async with asyncio.timeout(CALL_SECONDS):
                (await self._connected()).reply(head, payload)
        except (TimeoutError, DanubeError) as error:
            log.debug("peer.reply_dropped", broker=self.session.name, error=str(error))
        finally:
            self._replies_waiting -= 1

    async def _connected(self) -> PeerConnection:
        """Return an open connection. Callers that come while one is opened wait for the same attempt."""
        if self._over is not None:
            raise Unavailable(self._over.message)
        if self._connection is not None and self._connection.is_usable:
            return self._connection
        if self._connecting is None:
            self._connecting = asyncio.get_running_loop().create_future()
            self.tasks.spawn(self._connect(self._connecting), f"peer connection to {self.session.name}")
        found = await asyncio.shield(self._connecting)
        if isinstance(found, DanubeError):
            raise Unavailable(found.message)
        return found

    async def _connect(self, connecting: asyncio.Future[PeerConnection | DanubeError]) -> None:
        outcome: PeerConnection | DanubeError = Unavailable("this broker is closing")
        try:
            tls = None if self.tls is None else self.tls()
            opening = PeerConnection.open(self.session, self.own, self.clock, self.token, tls)
            outcome = self._connection = await opening
        except DanubeError as error:
            outcome = Unavailable(f"broker {self.session.name!r} cannot be reached: {error.message}")
        finally:
            self._connecting = None
            if not connecting.done():
                connecting.set_result(outcome)
        if self._over is not None and self._connection is not None:
            self._connection.abort(self._over)

    def end(self, reason: DanubeError) -> None:
        """Fail every call, now and later."""
        self._over = reason
        if self._connecting is not None and not self._connecting.done():
            self._connecting.set_result(reason)
        if self._connection is not None:
            self._connection.abort(reason)


async def is_living(
    session: BrokerSession, clock: Clock, token: str = "", tls: Callable[[], ssl.SSLContext] | None = None
) -> bool:
    """Return whether the broker of this session greets at its address, within GREETING_SECONDS. Asked before this
    broker has opened a listener, so that it cannot meet itself."""
    try:
        async with asyncio.timeout(GREETING_SECONDS):
            context = None if tls is None else tls()
            connection = await PeerConnection.open(session, session, clock, token, context)
    except (TimeoutError, DanubeError):
        return False
    connection.abort(Unavailable("this broker wanted to know whether the other one lives"))
    return True


def _over(session: BrokerSession) -> Unavailable:
    return Unavailable(f"the session of broker {session.name!r} is over: wait until it is back")


@dataclass(slots=True)
class _Handle:
    """A partition at the other broker that takes batches of any producer."""

    number: int
    used_at: float
    unanswered: int = 0


@dataclass(slots=True)
class _Batch:
    """A batch that has no answer yet."""

    answered: asyncio.Future[Published]
    handle: _Handle
    size: int


class PeerConnection:
    """An open connection to another broker, after the handshake."""

    def __init__(
        self, session: BrokerSession, own: BrokerSession, clock: Clock, framed: network.FramedConnection
    ) -> None:
        self._session = session
        self._own = own
        self._clock = clock
        self._framed = framed
        self._loop = asyncio.get_running_loop()
        self._greeted: asyncio.Future[wire.Welcome] = self._loop.create_future()
        self._lost: DanubeError | None = None
        self._reason: DanubeError | None = None
        self._going_away = False
        self._correlation = 0
        self._places = asyncio.Semaphore(REQUESTS_MAX)
        self._asked: dict[int, Callable[[memoryview | DanubeError], None]] = {}
        self._batches: dict[int, _Batch] = {}
        self._window_bytes = 0
        self._takes_replies = False
        """Whether the other broker is of a release that knows the frame REPLY."""
        self._unanswered_bytes = 0
        self._want_room: list[asyncio.Future[None]] = []
        self._handles: dict[tuple[TopicName, int], asyncio.Future[_Handle]] = {}
        self._silent = 0
        self._received_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    async def open(
        cls,
        session: BrokerSession,
        own: BrokerSession,
        clock: Clock,
        token: str = "",
        tls: ssl.SSLContext | None = None,
    ) -> PeerConnection:
        """Connect and exchange HELLO and WELCOME. Raises Unavailable, or the error with which the broker refuses.
        Cancelled, the connection is closed."""
        made: list[PeerConnection] = []

        def handler(framed: network.FramedConnection) -> PeerConnection:
            made.append(cls(session, own, clock, framed))
            return made[0]

        host, port = _split(session.peer_address)
        try:
            framed = await network.connect(host, port, handler, _FRAMING, clock, CALL_SECONDS, tls)
        except TlsFailed as error:
            raise Unavailable(f"{session.peer_address}: {error}") from None
        self = made[0]
        hello = wire.Hello(client=f"{PEER_PREFIX}{own.name} pydanube/{__version__}", features=sorted(wire.FEATURES))
        if token:
            hello.auth_scheme, hello.auth_data = wire.BEARER, token.encode()
        framed.send(frames.PREAMBLE, frames.encode(FrameKind.HELLO, wire.encode(hello)))
        try:
            async with asyncio.timeout(CALL_SECONDS):
                welcome = await self._greeted
            if welcome.broker != session.name:
                raise Unavailable(f"at {session.peer_address} is broker {welcome.broker!r}")
        except TimeoutError:
            framed.abort()
            raise Unavailable(f"{session.peer_address} did not greet within {CALL_SECONDS:g} s") from None
        except BaseException:
            framed.abort()
            raise
        self._window_bytes = welcome.publish_window_bytes
        self._takes_replies = wire.REQUEST_REPLY in welcome.features
        if self._lost is None and welcome.keep_alive_ms > 0:
            self._watch_silence(welcome.keep_alive_ms / 1_000)
        return self

    @property
    def is_usable(self) -> bool:
        return self._lost is None and not self._going_away

    def abort(self, reason: DanubeError) -> None:
        """Close now: every call that waits fails with `reason`."""
        self._reason = self._reason or reason
        self._framed.abort()

    # -- calls ---------------------------------------------------------------------------------------------------------

    async def request(self, head: bytes, answer: type[AnswerT]) -> AnswerT:
        """Send a request and return its answer, or raise the error that came instead. Cancelled, the answer is
        ignored."""
        async with self._places:
            waiting: asyncio.Future[AnswerT] = self._loop.create_future()
            correlation = self._next_correlation()
            self._asked[correlation] = partial(_answer, waiting, answer)
            self._framed.send(frames.encode(FrameKind.REQUEST, head, correlation))
            try:
                return await waiting
            finally:
                self._asked.pop(correlation, None)

    def reply(self, head: bytes, payload: bytes) -> None:
        """Send a reply, unless the other broker does not know them or does not read what it is sent."""
        if self._takes_replies and self._framed.queued_bytes + len(payload) <= REPLIES_UNSENT_BYTES_MAX:
            self._framed.send(*frames.encode_with_payload(FrameKind.REPLY, head, payload))

    async def publish(self, topic: TopicName, partition: int, batch: bytes) -> Published:
        """Have the partition append a batch. A handle that was opened for an earlier batch may belong to a partition
        that was closed since: then the batch is sent once more, over a new handle."""
        key = topic, partition
        is_known = key in self._handles
        try:
            return await self._publish_once(key, batch)
        except NotOwner:
            if not is_known:
                raise
        return await self._publish_once(key, batch)

    async def _publish_once(self, key: tuple[TopicName, int], batch: bytes) -> Published:
        opened = self._handles.get(key)
        if opened is None:
            opened = await self._open_handle(key)
        handle = await asyncio.shield(opened)
        while self._unanswered_bytes and self._unanswered_bytes + len(batch) > self._window_bytes > 0:
            waiting: asyncio.Future[None] = self._loop.create_future()
            self._want_room.append(waiting)
            await waiting
        correlation = self._next_correlation()
        sent = _Batch(self._loop.create_future(), handle, len(batch))
        self._batches[correlation] = sent
        self._unanswered_bytes += sent.size
        handle.unanswered += 1
        self._framed.send(frames.encode_publish_front(correlation, handle.number, sent.size), batch)
        try:
            return await sent.answered
        except (NotOwner, NotFound):
            self._close_handle(key, opened)
            raise

    async def _open_handle(self, key: tuple[TopicName, int]) -> asyncio.Future[_Handle]:
        """Open a handle for a partition; callers that come meanwhile wait for the same future."""
        opened: asyncio.Future[_Handle] = self._loop.create_future()
        self._handles[key] = opened
        asked = wire.OpenForwarder(topic=str(key[0]), partition=key[1], broker=self._own.name, proof=self._own.proof)
        request = wire.encode(asked)
        try:
            answer = await self.request(request, wire.ProducerOpened)
        except BaseException as error:
            del self._handles[key]
            is_ours = isinstance(error, DanubeError)
            opened.set_exception(error if is_ours else Unavailable(f"opening {key[0]}[{key[1]}] was cancelled"))
            opened.exception()  # marked as retrieved: perhaps nobody else waits
            raise
        opened.set_result(_Handle(answer.handle, self._clock.monotonic()))
        self._close_idle_handles()
        return opened

    def _close_handle(self, key: tuple[TopicName, int], opened: asyncio.Future[_Handle]) -> None:
        """Forget a handle, and tell the other broker so without waiting for its answer."""
        if self._handles.get(key) is not opened:
            return
        del self._handles[key]
        if self._lost is None:
            request = wire.encode(wire.CloseProducer(handle=opened.result().number))
            self._framed.send(frames.encode(FrameKind.REQUEST, request, self._next_correlation()))

    def _close_idle_handles(self) -> None:
        now = self._clock.monotonic()
        idle = [
            (handle.used_at, key)
            for key, opened in self._handles.items()
            if opened.done() and not (handle := opened.result()).unanswered
        ]
        idle.sort(key=lambda one: one[0])
        over = len(self._handles) - HANDLES_MAX
        for index, (used_at, key) in enumerate(idle):
            if index < over or now - used_at > HANDLE_IDLE_SECONDS:
                self._close_handle(key, self._handles[key])

    # -- what the transport calls --------------------------------------------------------------------------------------

    def frame_received(self, frame: memoryview) -> None:
        received = frames.decode(frame)
        match received.kind:
            case FrameKind.RESPONSE:
                if (answered := self._asked.get(received.correlation)) is not None:
                    answered(received.head)
            case FrameKind.PUBLISHED:
                _, base_offset, epoch = frames.unpack_head(received.head, frames.PUBLISHED, received.kind)
                is_duplicate = bool(received.flags & frames.FLAG_DUPLICATE)
                self._batch_answered(received.correlation, Published(base_offset, epoch, is_duplicate))
            case FrameKind.ERROR:
                self._failed(received)
            case FrameKind.PING:
                self._framed.send(frames.encode(FrameKind.PONG, bytes(received.head), received.correlation))
            case FrameKind.PONG:
                pass
            case FrameKind.WELCOME if not self._greeted.done():
                self._greeted.set_result(wire.decode(received.head, wire.Welcome))
            case FrameKind.GOAWAY:
                self._going_away = True
            case _:
                raise Invalid(f"a broker does not send {received.kind.name} frames to another")

    def stream_broken(self, error: DanubeError) -> None:
        self.abort(Unavailable(f"broker {self._session.name!r} sent what cannot be read: {error.message}"))

    def writable_changed(self, writable: bool) -> None:
        """Do nothing: what waits to be sent is bounded by the requests and the window."""

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        because = f": {error}" if error is not None else ""
        self._lost = self._reason or Unavailable(f"the connection to broker {self._session.name!r} was lost{because}")
        if not self._greeted.done():
            self._greeted.set_exception(self._lost)
            self._greeted.exception()
        for answered in list(self._asked.values()):
            answered(copy(self._lost))
        for correlation in list(self._batches):
            self._batch_answered(correlation, copy(self._lost))
        self._wake_waiting()

    # -- frames --------------------------------------------------------------------------------------------------------

    def _failed(self, frame: Frame) -> None:
        error = wire.decode(frame.head, wire.Failure).error()
        if not self._greeted.done():
            self._greeted.set_exception(error)
            self._greeted.exception()
        elif frame.correlation == 0:
            name = self._session.name
            self._reason = Unavailable(f"broker {name!r} ended the connection: {error.message}")
        elif (answered := self._asked.get(frame.correlation)) is not None:
            answered(error)
        else:
            self._batch_answered(frame.correlation, error)

    def _batch_answered(self, correlation: int, result: Published | DanubeError) -> None:
        batch = self._batches.pop(correlation, None)
        if batch is None:
            return
        self._unanswered_bytes -= batch.size
        batch.handle.unanswered -= 1
        batch.handle.used_at = self._clock.monotonic()
        complete(batch.answered, result)
        self._wake_waiting()

    def _wake_waiting(self) -> None:
        """Have those that wait for room in the window look again."""
        waiting, self._want_room = self._want_room, []
        for one in waiting:
            if not one.done():
                one.set_result(None)

    # -- silence -------------------------------------------------------------------------------------------------------

    def _watch_silence(self, interval_s: float) -> None:
        """Send a PING when nothing came for an interval, and give up after a few. Intervals are counted, not measured:
        a loop that was blocked for a minute counts one."""
        if self._received_at != self._framed.last_received:
            self._received_at, self._silent = self._framed.last_received, 0
        else:
            self._silent += 1
            if self._silent > SILENT_INTERVALS_MAX:
                self.abort(Unavailable(f"broker {self._session.name!r} fell silent"))
                return
            self._framed.send(frames.encode(FrameKind.PING))
        self._close_idle_handles()
        self._timer = self._loop.call_later(interval_s, self._watch_silence, interval_s)

    def _next_correlation(self) -> int:
        if self._lost is not None:
            raise Unavailable(self._lost.message)
        while True:
            self._correlation = number = self._correlation % _CORRELATIONS + 1
            if number not in self._asked and number not in self._batches:
                return number


def _answer(waiting: asyncio.Future[AnswerT], kind: type[AnswerT], found: memoryview | DanubeError) -> None:
    """Complete a request. An answer that cannot be read raises, which ends the connection and fails the request."""
    complete(waiting, found if isinstance(found, DanubeError) else wire.decode(found, kind))


def _split(address: str) -> tuple[str, int]:
    host, port = split_host_port(address)
    if host and port and port.isdecimal():
        return host, int(port)
    raise Unavailable(f"{address!r} is no address of a native listener")
