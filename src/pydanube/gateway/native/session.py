"""One client's session on the native listener: handshake, publishing, consuming, flow control.

```
 PREAMBLE --8 bytes--> HELLO --HELLO frame, credentials--> SERVING --drain()--> DRAINING --> closed
     \\________________ bad bytes, limits, silence: ERROR (correlation 0), then closed ________/
```

Invariants
    no frame behind HELLO is handled before the client's credentials are accepted
    every REQUEST, PUBLISH, STAGE and FETCH gets exactly one answer while the connection lives (`asks` for ASK)
    unanswered PUBLISH and STAGE frames stay within the window, or are one frame; a client that sends more is closed
    a client is not read from while its session holds too much (requests, unread answers, memory)
    a consumer is paused exactly while the connection is not writable
    a mistake of a client ends at most its own connection, and leaves nothing behind in the broker
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Final

from pydanube.broker import (
    UNREAD_STALLED_S,
    Broker,
    Consumer,
    Producer,
    PublishDone,
    Published,
    close_calls,
)
from pydanube.broker.security.audit_operations import TrafficSessions
from pydanube.codec.batch.header import unpacked_bytes
from pydanube.codec.native import frames
from pydanube.codec.native.frames import PREAMBLE, PROTOCOL_VERSION, Frame, FrameKind
from pydanube.codec.native.requests import (
    BEARER,
    FEATURES,
    AnyRequest,
    Authenticate,
    Done,
    Failure,
    Fetch,
    Hello,
    Nack,
    Reply,
    Welcome,
    decode,
    decode_request,
    encode,
)
from pydanube.core.access import ANONYMOUS, Principal
from pydanube.core.identity import NO_CREDENTIALS, NOBODY, Credentials, Identity
from pydanube.gateway import peer_certificates
from pydanube.gateway.door import Caller, Door
from pydanube.gateway.publish_memory import PauseReason, PublishShare
from pydanube.gateway.unproven_work import UnprovenClient
from pydanube.model.errors import DanubeError, Denied, Full, Invalid, Refused, Unauthenticated, Unavailable
from pydanube.model.failure import DELAY_MS_MAX
from pydanube.model.limits import FRAME_BYTES_MAX, NACKED_MESSAGES_MAX
from pydanube.model.settings.sections import LimitSettings
from pydanube.runtime.clock import Clock
from pydanube.runtime.network import FramedConnection
from pydanube.runtime.tasks import Tasks
from pydanube.runtime.telemetry import get_logger

from . import requests
from .answer_share import AnswerShare, DeliveryShare
from .asks import Asks
from .chunks import Chunks
from .delivery import DeliverySink
from .fetches import Fetches

log = get_logger(__name__)

PEER_PREFIX: Final = "broker "
"""What the `client` of a HELLO begins with that another broker sends."""

VERSION_MIN: Final = 1
"""The oldest protocol version spoken here; the newest is PROTOCOL_VERSION."""

KEEP_ALIVE_PINGS: Final = 3
"""A silent client gets this many PING frames before its keep-alive is over and it is disconnected."""

NACKED_AT_ONCE: Final = 1_000
"""Each nack costs some microseconds: after a frame with more than this, other sessions get their turn."""

LISTENER: Final = "native"

QUIET_S: Final = 0.2
"""While draining, a session is done when nothing is in flight and the client sent nothing for this time."""

_DONE: Final = encode(Done())


@dataclass(frozen=True, slots=True)
class ListenerResources:
    """What all sessions of a listener share."""

    door: Door
    settings: LimitSettings
    clock: Clock
    tasks: Tasks
    on_closed: Callable[[Session], None]

    @property
    def broker(self) -> Broker:
        return self.door.broker


class Session:
    """One client, from its first byte to its last."""

    def __init__(self, resources: ListenerResources, connection: FramedConnection, unproven: UnprovenClient) -> None:
        """`unproven` measures what the session costs before its client is welcomed."""
        self.connection = connection
        self.broker = resources.broker
        self.settings = resources.settings
        self.principal = ANONYMOUS
        self.producers: dict[int, Producer] = {}
        self.consumers: dict[int, Consumer] = {}
        self.is_closed = False
        self.welcomed = False
        self.draining = False
        self.client = ""
        self.since = resources.clock.monotonic()
        self._unproven = unproven
        self._resources = resources
        self._receive: Callable[[memoryview], None] = self._receive_preamble
        self._handles = count(1)
        self._pause_reasons = 0
        self._publishes = 0
        self.publish_bytes = 0
        self.publish_share = PublishShare()
        self._requests = 0
        self._traffic = TrafficSessions()
        self._fetches = Fetches(
            connection,
            resources.broker,
            resources.settings,
            resources.tasks,
            self._traffic,
        )
        self._answers = AnswerShare(resources.broker.unread, connection)
        self.unread = DeliveryShare(resources.broker.unread, connection, self._fetches.memory, self._answers)
        """What was delivered to consumers and waits until the client reads."""
        self._publish_memory = resources.door.publish_memory
        self._asks = Asks(self, resources.broker, resources.tasks, self._publish_memory, self._answers)
        self._features: list[str] = []
        self._chunks = Chunks()
        self._last_ping = 0.0
        self._turn = 0
        self._caller: Caller | None = None
        self._authenticating: asyncio.Task[None] | None = None

    @property
    def caller(self) -> Caller:
        """The client, once it is welcomed."""
        assert self._caller is not None
        return self._caller

    @property
    def identity(self) -> Identity:
        """Who the client is, and how that was established."""
        return self.caller.identity

    def operation(self, name: str) -> AbstractContextManager[object]:
        """Return what surrounds an operation; see `Caller.operation`."""
        return self.caller.operation(name, self._traffic)

    @property
    def _is_broker(self) -> bool:
        """Whether the client is another broker; without authentication, whether it says so."""
        says_so = self.client.startswith(PEER_PREFIX)
        return self.principal.is_broker or (says_so and not self.broker.security.is_required)

    @property
    def in_flight(self) -> int:
        """Publishes, requests and fetches that have no answer yet."""
        return self._publishes + self._requests + len(self._fetches)

    # -- called by the connection --------------------------------------------------------------------------------------

    def frame_received(self, frame: memoryview) -> None:
        self._receive(frame)

    def stream_broken(self, error: DanubeError) -> None:
        self.broker.metrics.listener("native").invalid += 1
        self.end(error)

    def writable_changed(self, writable: bool) -> None:
        self._fetches.writable_changed(writable)
        self._answers.refresh()
        self.unread.refresh()
        if not writable:
            for consumer in self.consumers.values():
                consumer.pause()
            return
        self.resume_for(PauseReason.ANSWERS)
        self._turn += 1
        order = list(self.consumers.values())
        first = self._turn % len(order) if order else 0
        for consumer in order[first:] + order[:first]:  # start with another consumer each time, so that none starves
            if not self.connection.writable:
                break
            consumer.resume()

    def connection_lost(self, error: Exception | None) -> None:
        log.debug("native.disconnected", peer=self.connection.peer, client=self.client, error=str(error or ""))
        self._tear_down()
        self._resources.on_closed(self)

    # -- handshake -----------------------------------------------------------------------------------------------------

    def _receive_preamble(self, frame: memoryview) -> None:
        if bytes(frame) != PREAMBLE:
            raise Invalid(f"this is a Danube port: a connection begins with {PREAMBLE!r}, not with {bytes(frame)!r}")
        self.connection.frame_length = frames.frame_length
        self._receive = self._receive_hello

    def _receive_hello(self, frame: memoryview) -> None:
        with self._unproven.measured():
            self._handle_hello(frame)

    def _handle_hello(self, frame: memoryview) -> None:
        kind, _, correlation, head, _ = frames.decode(frame)
        if kind is not FrameKind.HELLO:
            raise Invalid(f"the first frame is HELLO, not {kind.name}")
        hello = decode(head, Hello)
        version = _common_version(hello)
        credentials = self._credentials(hello.auth_scheme, hello.auth_data)
        self.client = hello.client[:200]
        self._features = sorted(FEATURES.intersection(hello.features))
        if credentials == NO_CREDENTIALS and not self.broker.security.is_required:
            self._unproven.proved()
            self._greet(version, correlation, NOBODY)
            return
        self.pause_for(PauseReason.AUTHENTICATION)  # what the client sends behind HELLO waits for WELCOME
        work = self._authenticate(credentials, version, correlation)
        self._authenticating = self._resources.tasks.spawn(work, "native authentication")

    def _credentials(self, scheme: str, data: bytes) -> Credentials:
        """Return what the client shows. Raises Unauthenticated for a scheme that is not known."""
        if scheme not in ("", BEARER):
            error = f"authentication scheme {scheme[:40]!r} is not offered here: use {BEARER!r}, or none"
            self.broker.security.refused(LISTENER, self.connection.peer[0], "the authentication scheme is not known")
            raise Unauthenticated(error)
        token = data.decode("ascii", "replace") if scheme else ""
        return Credentials(token, peer_certificates.of_connection(self.connection))

    async def _authenticate(self, credentials: Credentials, version: int, correlation: int) -> None:
        """Find out who the client is, and welcome it or end the session. Cancelled: the session has ended."""
        try:
            address = self.connection.peer[0]
            proof = self._resources.door.identify(LISTENER, address, credentials, self._unproven)
            identity = await self._unproven.run(proof)
        except DanubeError as error:
            self.end(error)
        except Exception as error:  # a bug: it ends this connection and nothing else
            self.end(requests.crashed("authentication", error))
        else:
            self._greet(version, correlation, self._with_broker_name(identity))
            self.resume_for(PauseReason.AUTHENTICATION)

    def _with_broker_name(self, identity: Identity) -> Identity:
        """Return the identity of a broker that has shown the cluster token under the name that its HELLO gives."""
        words = self.client.removeprefix(PEER_PREFIX).split()
        if not identity.principal.is_broker or not self.client.startswith(PEER_PREFIX) or not words:
            return identity
        return replace(identity, principal=replace(identity.principal, name=words[0]))

    def _greet(self, version: int, correlation: int, identity: Identity) -> None:
        self._authenticating = None
        door, is_peer = self._resources.door, self.client.startswith(PEER_PREFIX)
        is_counted = self.broker.security.is_required or not is_peer  # else everybody could say that it is a broker
        try:
            self._caller = door.enter(LISTENER, self.connection.peer[0], identity, is_counted=is_counted)
        except DanubeError as error:
            self.end(error)
            return
        self._receive = self._receive_frame
        self.principal = identity.principal
        if user := door.share_of(self.principal):
            self.publish_share = door.publish_memory.share_of(user)
            self.connection.budget_users = (user,)
        self.unread.owner = self._fetches.memory.owner = self._answers.owner = self.broker.unread.bytes_of(
            self.principal
        )
        self._caller.follow(self.end)
        self.welcomed = True
        self.connection.frame_bytes_max = FRAME_BYTES_MAX
        self._send(FrameKind.WELCOME, encode(self._welcome(version)), correlation)
        log.debug("native.connected", peer=self.connection.peer, client=self.client, principal=self.principal.id)

    def _welcome(self, version: int) -> Welcome:
        return Welcome(
            version=version,
            broker=self.broker.node,
            cluster=self.broker.cluster_id,
            features=self._features,
            frame_bytes_max=FRAME_BYTES_MAX,
            publish_window_bytes=self.settings.publish_window_bytes,
            keep_alive_ms=self.settings.keep_alive_ms,
            credentials_ms=self._credentials_ms(),
        )

    def _credentials_ms(self) -> int:
        """Return for how much longer the client is believed; 0: for good."""
        ends_at = self.identity.expires_at_us
        return max(1, (ends_at - self._resources.clock.now_us()) // 1_000) if ends_at else 0

    async def reauthenticate(self, scheme: str, data: bytes) -> int:
        """Go on under newer credentials of the same principal; return for how many milliseconds they are believed, 0:
        for good. If they are refused, the former ones stay in force."""
        credentials = self._credentials(scheme, data)
        identity = await self.broker.security.authenticate(credentials, self.connection.peer[0], LISTENER)
        identity = self._with_broker_name(identity)
        if self.is_closed:
            raise Unavailable("the connection was closed")
        if identity.principal.id != self.principal.id:
            raise Denied(f"this connection is of {self.principal.id}: connect anew to be somebody else")
        if identity.principal != self.principal:
            self._change_principal(identity.principal)
        self.caller.renew(identity)
        return self._credentials_ms()

    def _change_principal(self, principal: Principal) -> None:
        """Go on with other groups than before: what is open may be allowed no longer."""
        self.principal = principal
        for producer in self.producers.values():
            producer.principal = principal
        for consumer in self.consumers.values():
            consumer.renew(principal)
        self.broker.review_access()

    # -- frames after the handshake ------------------------------------------------------------------------------------

    def _receive_frame(self, frame: memoryview) -> None:
        received = frames.decode(frame)
        action = _ACTIONS.get(received.kind)
        if action is None:
            raise Invalid(f"a welcomed client does not send {received.kind.name}")
        if received.kind is not FrameKind.PUBLISH:
            self._chunks.count_other(len(frame))
        action(self, received)
        if not self.connection.writable and self.connection.queued_bytes > self.settings.answers_bytes_max:
            self.pause_for(PauseReason.ANSWERS)

    def _publish(self, frame: Frame) -> None:
        (handle,) = frames.unpack_head(frame.head, frames.PUBLISH, FrameKind.PUBLISH)
        correlation, batch_bytes = _needed_correlation(frame), len(frame.body)
        if self.publish_bytes and self.publish_bytes + batch_bytes > self.settings.publish_window_bytes:
            raise self._window_exceeded(batch_bytes)
        producer = self.producers.get(handle)
        if producer is None or self.draining:
            self._chunks.count_other(batch_bytes)
            self.fail(
                correlation, _shutting_down() if producer else requests.unknown_handle("producer", handle), handle
            )
            return
        self._publishes += 1
        self._publish_memory.take(self, batch_bytes)
        if self._publishes >= self.settings.publishes_in_flight_max:
            self.pause_for(PauseReason.PUBLISHES)
        is_logged = producer.partition.is_logged
        batch = self._chunks.keep_for_log(frame.body) if is_logged else self._chunks.keep_outside_log(frame.body)
        done = partial(self._published, correlation, handle, batch_bytes, is_logged and batch is not frame.body)
        plain_bytes = unpacked_bytes(batch)
        if plain_bytes and not self.broker.decompression.take(plain_bytes):
            self.pause_for(PauseReason.DECOMPRESSION)  # so that no later batch overtakes this one
            self.broker.decompression.wait(plain_bytes, partial(self._publish_after_wait, producer, batch, done))
            return
        self._publish_now(producer, batch, done)

    def _publish_after_wait(self, producer: Producer, batch: memoryview, done: PublishDone) -> None:
        if self.is_closed:
            done(Unavailable("the connection was closed"))
            return
        self._publish_now(producer, batch, done)
        self.resume_for(PauseReason.DECOMPRESSION)

    def _publish_now(self, producer: Producer, batch: memoryview, done: PublishDone) -> None:
        try:
            self.broker.batches.publish(self.principal, producer, batch, done)
        except Exception as error:  # the broker answers through `done`: what it raises is a bug
            done(error if isinstance(error, DanubeError) else requests.crashed("publish", error))

    def _published(
        self, correlation: int, handle: int, size: int, copied: bool, result: Published | DanubeError
    ) -> None:
        self._publishes -= 1
        self._publish_memory.give_back(self, size)
        self.resume_for(PauseReason.PUBLISHES)
        is_stored = not (isinstance(result, DanubeError) or result.duplicate)
        self._chunks.count_published(size, is_copy=copied, is_stored=is_stored)
        if isinstance(result, DanubeError):
            self.fail(correlation, result, handle)
        else:
            base_offset, owner_epoch, duplicate = result
            answer = frames.encode_published(correlation, handle, base_offset, owner_epoch, duplicate)
            if self._publishes:
                self.connection.send(answer)
            else:
                self.connection.send_now(answer)  # no other answer follows that could share the system call

    def _window_exceeded(self, size: int) -> Invalid:
        return Invalid(
            f"{self.publish_bytes + size} bytes of unanswered batches overrun the publish window of "
            f"{self.settings.publish_window_bytes}: wait for answers"
        )

    def _stage(self, frame: Frame) -> None:
        correlation, size = _needed_correlation(frame), len(frame.body)
        if self.publish_bytes and self.publish_bytes + size > self.settings.publish_window_bytes:
            raise self._window_exceeded(size)
        if self.draining:
            self.fail(correlation, _shutting_down())
            return
        self._publishes += 1
        self._publish_memory.take(self, size)
        if self._publishes >= self.settings.publishes_in_flight_max:
            self.pause_for(PauseReason.PUBLISHES)
        self._resources.tasks.spawn(self._staged(correlation, frame), "native stage")

    async def _staged(self, correlation: int, frame: Frame) -> None:
        await self._answer_with(correlation, self._perform_stage(frame), "stage")
        self._publishes -= 1
        self._publish_memory.give_back(self, len(frame.body))
        self.resume_for(PauseReason.PUBLISHES)

    async def _perform_stage(self, frame: Frame) -> bytes:
        with self.operation("Stage"):
            return await requests.stage(self, frame.head, frame.body)

    def _credit(self, frame: Frame) -> None:
        handle, messages, size_bytes = frames.unpack_head(frame.head, frames.CREDIT, FrameKind.CREDIT)
        if messages < 0 or size_bytes < 0:
            raise Invalid("CREDIT is given, never taken back: both numbers must be 0 or more")
        consumer = self.consumers.get(handle)
        if consumer is not None:  # it may have been closed while the frame was on its way
            consumer.credit(messages, size_bytes)

    def _ack(self, frame: Frame) -> None:
        handle, ranges, generation = frames.decode_ack_head(frame.head)
        cumulative = bool(frame.flags & frames.FLAG_CUMULATIVE)
        if cumulative and len(ranges) != 1:
            raise Invalid(f"a cumulative ACK has one range, not {len(ranges)}")
        done = partial(self._acked, frame.correlation, handle) if frame.correlation else None
        consumer = self.consumers.get(handle)
        if consumer is not None:
            consumer.ack(ranges, cumulative, done, _known_generation(generation))
        elif done is not None:
            done(requests.unknown_handle("consumer", handle))

    def _nack(self, frame: Frame) -> None:
        nack = decode(frame.head, Nack)
        if any(start < 0 or end <= start for start, end in nack.ranges):
            raise Invalid("NACK holds a range that is empty or negative")
        messages = sum([end - start for start, end in nack.ranges])
        if messages > NACKED_MESSAGES_MAX:
            raise Invalid(f"NACK names more than {NACKED_MESSAGES_MAX} messages: send several")
        if not -1 <= nack.delay_ms <= DELAY_MS_MAX:
            raise Invalid(f"NACK: a delay of {nack.delay_ms} ms is out of range: use -1 to {DELAY_MS_MAX}")
        consumer = self.consumers.get(nack.handle)
        if consumer is not None:  # it may have been closed while the frame was on its way
            delay_ms = nack.delay_ms if nack.delay_ms >= 0 else None
            generation = _known_generation(nack.generation)
            if nack.reject:
                consumer.reject(nack.ranges, nack.reason, generation)
            else:
                consumer.nack(nack.ranges, delay_ms, nack.reason, nack.timeout, generation)
            if messages > NACKED_AT_ONCE:  # the frames behind this one wait for the next turn of the loop
                self.pause_for(PauseReason.TURN)
                asyncio.get_running_loop().call_soon(self.resume_for, PauseReason.TURN)

    def _acked(self, correlation: int, handle: int, error: DanubeError | None) -> None:
        if error is None:
            self._send(FrameKind.RESPONSE, _DONE, correlation)
        else:
            self.fail(correlation, error, handle)

    def _asked(self, frame: Frame) -> None:
        """Begin what is answered when it is done, or with what is wrong with it."""
        correlation = _needed_correlation(frame)
        try:
            if self.draining:
                raise _shutting_down()
            _ASKED[frame.kind](self, correlation, frame)
        except DanubeError as error:
            self.fail(correlation, error)

    def _request(self, correlation: int, frame: Frame) -> None:
        request = decode_request(frame.head)
        self._requests += 1
        if self._requests >= self.settings.requests_in_flight_max:
            self.pause_for(PauseReason.REQUESTS)
        self._resources.tasks.spawn(self._answer(correlation, request), "native request")

    async def _answer(self, correlation: int, request: AnyRequest) -> None:
        self.broker.note_client("" if self.client.startswith(PEER_PREFIX) else self.connection.peer[0])
        await self._answer_with(correlation, self._perform(request), "request")
        self._requests -= 1
        self.resume_for(PauseReason.REQUESTS)

    async def _perform(self, request: AnyRequest) -> bytes:
        """Carry out a request, once the client has read earlier answers and the rates of quotas allow it."""
        if not isinstance(request, Authenticate):
            await self._fetches.until_writable()
            if self.is_closed:
                raise Unavailable("the connection was closed")
            await self.caller.admit(requests.resource_of(request), self)
        # What another broker asks for its own callers, it has recorded itself.
        is_recorded = self._is_broker and (request.for_brokers or request.is_share)
        with self.operation("" if is_recorded else type(request).__name__):
            answer = await requests.perform(self, request)
            self._answers.check_may_take(len(answer))
            return answer

    async def _answer_with(self, correlation: int, work: Awaitable[bytes], what: str) -> None:
        """Await `work` and send its result, or its error, as the answer.

        Cancelled: no answer is sent; this happens only when the broker shuts down.
        """
        try:
            answer = await work
        except DanubeError as error:
            self.fail(correlation, error)
        except Exception as error:  # a bug: it fails this request and nothing else
            self.fail(correlation, requests.crashed(what, error))
        else:
            self._send(FrameKind.RESPONSE, answer, correlation)
            self._answers.answered(0, len(answer))

    def _fetch(self, correlation: int, frame: Frame) -> None:
        self._fetches.start(self.caller, correlation, decode(frame.head, Fetch))

    def _ask(self, correlation: int, frame: Frame) -> None:
        self._asks.ask(correlation, frame)

    def _cancel(self, frame: Frame) -> None:
        self._asks.cancel(_needed_correlation(frame))

    def _reply(self, frame: Frame) -> None:
        reply = decode(frame.head, Reply)
        payload = frames.payload_of(frame, reply.payload_bytes)
        self.broker.inboxes.deliver(reply.inbox, reply.head, payload)

    def _ping(self, frame: Frame) -> None:
        self._send(FrameKind.PONG, b"", frame.correlation)

    def _ignore(self, _frame: Frame) -> None:
        """Do nothing: receiving the frame was enough."""

    # -- handles -------------------------------------------------------------------------------------------------------

    def new_handle(self) -> int:
        if len(self.producers) + len(self.consumers) >= self.settings.handles_max:
            raise Full(f"this connection has {self.settings.handles_max} producers and consumers: open another one")
        return next(self._handles)

    def new_sink(self) -> DeliverySink:
        return DeliverySink(self.connection, self.new_handle(), self._consumer_closed, self.unread)

    def add_producer(self, handle: int, producer: Producer) -> None:
        self._close_if_disconnected(producer)
        self.producers[handle] = producer

    def add_consumer(self, sink: DeliverySink, consumer: Consumer) -> None:
        if sink.error is not None:  # the broker closed it before it was registered here
            raise sink.error
        self._close_if_disconnected(consumer)
        self.consumers[sink.handle] = consumer
        if not self.connection.writable:
            consumer.pause()

    def _close_if_disconnected(self, opened: Producer | Consumer) -> None:
        if self.is_closed:
            opened.close()
            raise Unavailable("the connection was closed meanwhile")

    def _consumer_closed(self, handle: int) -> None:
        self.consumers.pop(handle, None)

    # -- timeouts ------------------------------------------------------------------------------------------------------

    def check_timeouts(self, now: float) -> None:
        """Send a PING to a silent client, end the session of a dead one, release unused receive buffers."""
        connection, settings, keep_alive = self.connection, self.settings, self.settings.keep_alive_ms / 1000
        if connection.is_closing:
            return
        connection.copy_stalled_output(now)
        if connection.is_full or self.unread.bytes:
            self.unread.refresh()
        if not self.welcomed:
            if now - self.since > settings.handshake_timeout_ms / 1000:
                self.end(Unavailable(f"no HELLO came within {settings.handshake_timeout_ms} ms"))
        elif now - self._last_activity(now) > keep_alive:
            self.end(Unavailable(f"nothing was heard for {keep_alive:g} s"))
        elif connection.frame_since and now - connection.frame_since > settings.frame_timeout_ms / 1000:
            self.end(Unavailable(f"a frame did not arrive whole within {settings.frame_timeout_ms} ms"))
        elif self._keeps_memory_from_others(now):
            log.info("native.ended", peer=connection.peer, client=self.client, reason="it does not read its answers")
            connection.abort()
        elif now - connection.last_received > keep_alive / KEEP_ALIVE_PINGS:
            connection.release_idle_memory()
            if now - self._last_ping > keep_alive / KEEP_ALIVE_PINGS:
                self._last_ping = now
                self._send(FrameKind.PING)

    def _keeps_memory_from_others(self, now: float) -> bool:
        """Whether others wait for memory, and the client has read nothing of what it was sent for some time."""
        holds = self._fetches.memory.bytes + self._answers.bytes + self.unread.bytes
        is_stalled = self.connection.queued_bytes and now - self.connection.last_sent > UNREAD_STALLED_S
        return bool(holds and is_stalled and self.broker.unread.is_awaited)

    def _last_activity(self, now: float) -> float:
        if self.connection.is_reading:
            return self.connection.last_received
        if self._pause_reasons & PauseReason.ANSWERS:
            return self.connection.last_sent
        # This side does not read at the moment, so it would not notice that the peer is gone.
        return 0.0 if self.connection.peer_has_hung_up else now

    # -- pausing, ending -----------------------------------------------------------------------------------------------

    def pause_for(self, reason: int) -> None:
        """Stop reading from the client until every reason is gone."""
        self._pause_reasons |= reason
        self.connection.pause_reading()

    def resume_for(self, reason: int) -> None:
        if self._pause_reasons & reason:
            self._pause_reasons &= ~reason
            if not self._pause_reasons:
                self.connection.resume_reading()

    def drain(self) -> None:
        """Send GOAWAY, refuse new requests, and still answer what is in flight."""
        self.draining = True
        if self.welcomed:
            self._send(FrameKind.GOAWAY, encode(Failure.of(_shutting_down())))
        self._fetches.cancel(_shutting_down())

    def extend_timeouts(self, late_s: float, now: float) -> None:
        """Extend the client's timeouts by `late_s`, a time in which the busy event loop read from no client."""
        self.since = min(now, self.since + late_s)
        self.connection.excuse(late_s, now)

    def drained(self, now: float) -> bool:
        return self.in_flight == 0 and now - self.connection.last_received > QUIET_S

    def end(self, error: DanubeError | None = None) -> None:
        """Send the error, then close. From here on nothing of this client is left in the broker."""
        if self.connection.is_closing:
            return
        if error is not None:
            log.info("native.ended", peer=self.connection.peer, client=self.client, reason=error.message[:200])
            self.fail(0, error)
        self.connection.close()
        self._tear_down()

    def fail(self, correlation: int, error: DanubeError, handle: int = 0) -> None:
        self.connection.send(requests.error_frame(correlation, error, handle))

    def _send(self, kind: FrameKind, head: bytes = b"", correlation: int = 0) -> None:
        self.connection.send(frames.encode(kind, head, correlation))

    def _tear_down(self) -> None:
        self.is_closed = True
        if self._authenticating is not None:
            self._authenticating.cancel()
        if self._caller is not None:
            self._caller.leave()
        self._fetches.close(Unavailable("the connection was closed"))
        self._asks.close()
        self._answers.close()
        self.unread.close()
        closing = [*close_calls(self.consumers.values()), *(producer.close for producer in self.producers.values())]
        self.consumers.clear()
        self.producers.clear()
        for close in closing:
            try:
                close()
            except Exception as error:  # the other producers and consumers must still be closed
                requests.crashed("close", error)
        self._traffic.end_all()


def _common_version(hello: Hello) -> int:
    """Return the newest protocol version that both sides speak. Raises Refused, with both ranges, if there is none."""
    if hello.version_min > PROTOCOL_VERSION or hello.version_max < VERSION_MIN:
        raise Refused(
            f"protocol versions {hello.version_min}..{hello.version_max} are not spoken here: "
            f"this broker speaks {VERSION_MIN}..{PROTOCOL_VERSION}"
        )
    if hello.version_min > hello.version_max:
        raise Invalid(f"protocol versions {hello.version_min}..{hello.version_max} are no range")
    return min(hello.version_max, PROTOCOL_VERSION)


def _needed_correlation(frame: Frame) -> int:
    if frame.correlation == 0:
        raise Invalid(f"{frame.kind.name} needs a correlation number: 0 cannot be answered")
    return frame.correlation


def _known_generation(generation: int) -> int | None:
    return None if generation == frames.GENERATION_UNKNOWN else generation


def _shutting_down() -> Unavailable:
    return Unavailable("the broker is shutting down")


_ACTIONS: Final[dict[FrameKind, Callable[[Session, Frame], None]]] = {
    FrameKind.PUBLISH: Session._publish,
    FrameKind.STAGE: Session._stage,
    FrameKind.ACK: Session._ack,
    FrameKind.NACK: Session._nack,
    FrameKind.CREDIT: Session._credit,
    FrameKind.FETCH: Session._asked,
    FrameKind.REQUEST: Session._asked,
    FrameKind.ASK: Session._asked,
    FrameKind.CANCEL: Session._cancel,
    FrameKind.REPLY: Session._reply,
    FrameKind.PING: Session._ping,
    FrameKind.PONG: Session._ignore,
    FrameKind.GOAWAY: Session._ignore,
}
"""The frames that a client may send after the handshake."""

_ASKED: Final[dict[FrameKind, Callable[[Session, int, Frame], None]]] = {
    FrameKind.FETCH: Session._fetch,
    FrameKind.REQUEST: Session._request,
    FrameKind.ASK: Session._ask,
}
