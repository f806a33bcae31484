"""The members of an etcd: which one is used, deadlines, authentication.

One member is used for everything until a request to it fails; then the next one in the order of the URL is. Requests
that only read are repeated at other members until their time is over. A request that writes is repeated only if it was
certainly not executed; otherwise the caller learns that it is in doubt.

Before the first request over a new connection a member is asked for the store's record: a member that cannot be
reached is noticed before anything is sent to it, and so is one that belongs to another cluster than the others.

An etcd that was put back to an older copy under its users shows a lower revision than before. A member may lag behind
the others, so only a linearizable read tells: one that was sent after a revision was seen shows that or a later one.
A new connection is asked before anything else is sent over it, and from then on nothing is sent any more.

Invariants
    every request has a deadline, and every message carries `hasleader`: a member without a leader refuses it
    a request that writes is never sent again when it may have been executed
    once an etcd has shown a lower revision than before, every call raises that, and no answer of it is used
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from copy import copy
from typing import Any, Final

import grpc

from pydanube.metadata.store import Generation
from pydanube.model.errors import DanubeError, NotFound, Refused, Unavailable
from pydanube.runtime.clock import Clock
from pydanube.runtime.descriptor_sets import ServiceMethod
from pydanube.runtime.telemetry import get_logger

from . import errors
from .errors import Verdict, judge, text_of
from .place import EtcdPlace, TlsFiles, older_copy
from .rpc import AUTHENTICATE, RANGE, TXN, AuthenticateRequest, RangeRequest

log = get_logger(__name__)

ATTEMPT_SECONDS: Final = 5.0
"""The deadline of one attempt: longer than an election of a leader takes, which is one to two seconds."""

CONNECT_SECONDS: Final = 3.0
"""The deadline of a new connection."""

PAUSE_SECONDS: Final = 0.2
"""The pause after all members have failed."""

RECEIVED_BYTES_MAX: Final = 16 * 1024 * 1024
"""The largest reply. Listings that would be larger are asked for in smaller parts."""

_OPTIONS: Final = (
    ("grpc.max_receive_message_length", RECEIVED_BYTES_MAX),
    ("grpc.keepalive_time_ms", 6_000),  # etcd closes connections that ping more often than every 5 s
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.ping_timeout_ms", 3_000),  # of other pings than those above, which wait for them: a minute by default
    ("grpc.http2.bdp_probe", 0),  # pings whenever something is received
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),  # a write that is in doubt must not be repeated
)


_LINEARIZABLE: Final = (RANGE, TXN)
"""Requests whose answers show a revision that is at least that of everything that was answered before."""


class MemberFailed(Exception):
    """A member could not be prepared or lost a stream. The message says why; nothing was executed for the caller."""


class _Member:
    def __init__(self, address: str, open_channel: Callable[[str], Any]) -> None:
        self.address = address
        self._open_channel = open_channel
        self._channel: Any = None
        self.is_checked = False
        self.is_foreign = False
        """It belongs to another etcd cluster than the member that was used first."""
        self.is_failing = False
        """It failed and was not reached since then: this was logged."""
        self.lock = asyncio.Lock()

    @property
    def channel(self) -> Any:
        if self._channel is None:
            self._channel = self._open_channel(self.address)
        return self._channel

    @property
    def is_ready(self) -> bool:
        return self.is_checked and self.channel.get_state() is grpc.ChannelConnectivity.READY

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close()


class EtcdClient:
    """Sends requests to one member of an etcd at a time. Created on the event loop that uses it."""

    def __init__(self, place: EtcdPlace, clock: Clock) -> None:
        self.place = place
        self._clock = clock
        self._members = [_Member(address, _channels(place.tls)) for address in place.members]
        self._current = 0
        self._token = ""
        self._cluster_id = 0
        self.revision_seen = self._term_seen = 0
        """The highest revision, and the highest term, that a linearizable request has shown."""
        self.refusal: DanubeError | None = None
        """Why nothing is sent any more."""
        self._is_refused = asyncio.Event()

    def refuse(self, why: DanubeError) -> None:
        """Send nothing any more: every later call raises `why`."""
        if self.refusal is None:
            log.error("etcd.older_copy", reason=why.message)
            self.refusal = why
            self._is_refused.set()

    async def refused(self) -> DanubeError:
        """Wait until nothing is sent any more; return why."""
        await self._is_refused.wait()
        assert self.refusal is not None
        return self.refusal

    def _check_refused(self) -> None:
        if self.refusal is not None:
            raise copy(self.refusal)

    @property
    def generation(self) -> Generation:
        """The life of the etcd that answers."""
        return Generation(f"{self._cluster_id:x}", self._term_seen)

    def _check_header(self, header: Any, revision_seen: int, term_seen: int) -> None:
        """Check what a linearizable request has shown that was sent when this had been seen. Raises Unavailable."""
        self._check_refused()
        revision, term = header.revision, header.raft_term
        if revision < revision_seen:
            self.refuse(older_copy(self.place, f"it is at revision {revision}, and was at {self.revision_seen}"))
        elif term < term_seen:
            shown = f"it is in term {term}, and was in {self._term_seen}, as after a restore from a snapshot"
            self.refuse(older_copy(self.place, shown))
        self._check_refused()
        self.revision_seen, self._term_seen = max(self.revision_seen, revision), max(self._term_seen, term)

    async def close(self) -> None:
        """Close all connections. Requests that are in progress fail."""
        for member in self._members:
            await member.close()

    async def call(self, method: ServiceMethod, request: Any, *, reads: bool = False) -> Any:
        """Send a request and return the reply. `reads`: it changes nothing, so it may be sent again.

        Raises grpc.aio.AioRpcError for a final answer of etcd, and Unavailable when no member answered in time; unless
        `reads`, the request may have been executed then. When cancelled, it may have been executed.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.place.timeout_s
        failed = 0
        why = ""
        while (left := deadline - loop.time()) > 0:
            member = self._members[self._current]
            self._check_refused()
            try:
                await self._prepare(member, left)
                attempt = min(ATTEMPT_SECONDS, max(0.1, deadline - loop.time()))
                seen, term = self.revision_seen, self._term_seen
                reply = await _unary(member, method)(request, timeout=attempt, metadata=self.metadata)
                if method in _LINEARIZABLE:
                    self._check_header(reply.header, seen + _has_put(method, request, reply), term)
                return reply
            except MemberFailed as lost:
                why = str(lost)
            except grpc.aio.AioRpcError as error:
                why = f"{member.address}: {text_of(error)}"
                verdict = judge(error)
                if verdict is Verdict.FINAL:
                    raise
                if verdict is Verdict.NEW_TOKEN:
                    self._token = ""
                    await self._clock.sleep(PAUSE_SECONDS / 10)
                    continue
                if verdict is Verdict.IN_DOUBT and not reads:
                    self._move_on(member, why)
                    raise Unavailable(f"{self.place} did not answer, and may have written or not: {why}") from None
            self._move_on(member, why)
            failed += 1
            if failed % len(self._members) == 0:
                await self._clock.sleep(min(PAUSE_SECONDS, max(0.0, deadline - loop.time())))
        raise Unavailable(f"{self.place} cannot be used: {why}: start etcd, or correct --metadata (metadata.url)")

    async def open_stream(self, method: ServiceMethod) -> EtcdStream:
        """Open a stream to the member in use. Raises MemberFailed if it cannot be used; the next call takes another."""
        self._check_refused()
        member = self._members[self._current]
        try:
            await self._prepare(member, CONNECT_SECONDS)
        except MemberFailed as lost:
            self._move_on(member, str(lost))
            raise
        streaming = member.channel.stream_stream(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.reply.FromString,
        )
        return EtcdStream(self, member, streaming(metadata=self.metadata))

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        token = (("token", self._token),) if self._token else ()
        return (("hasleader", "true"), *token)

    async def _prepare(self, member: _Member, seconds: float) -> None:
        """Make sure that the member is connected, belongs to this cluster, and that there is a token.

        Raises MemberFailed when another member should be tried, and a DanubeError when none can help.
        """
        if member.is_ready and bool(self._token) == bool(self.place.user):
            return
        async with member.lock:
            if member.is_ready and bool(self._token) == bool(self.place.user):
                return
            seconds = min(CONNECT_SECONDS, seconds)
            try:
                if self.place.user and not self._token:
                    await self._authenticate(member, seconds)
                request = RangeRequest(key=self.place.store_key, keys_only=True, serializable=True)
                seen, term = self.revision_seen, self._term_seen
                reply = await _unary(member, RANGE)(request, timeout=seconds, metadata=self.metadata)
                if reply.header.revision < seen:  # it lags behind, or was put back to an older copy
                    request.serializable = False
                    reply = await _unary(member, RANGE)(request, timeout=seconds, metadata=self.metadata)
                    self._check_cluster(member, reply.header.cluster_id)
                    self._check_header(reply.header, seen, term)
            except grpc.aio.AioRpcError as error:
                if judge(error) is Verdict.FINAL:
                    denied = error.code() is grpc.StatusCode.PERMISSION_DENIED
                    raise errors.refusal(self.place, text_of(error), denied=denied) from None
                if judge(error) is Verdict.NEW_TOKEN:
                    self._token = ""
                raise MemberFailed(f"{member.address}: {text_of(error)}") from None
            self._check_cluster(member, reply.header.cluster_id)
            member.is_checked, member.is_failing = True, False

    async def _authenticate(self, member: _Member, seconds: float) -> None:
        request = AuthenticateRequest(name=self.place.user, password=self.place.password)
        try:
            reply = await _unary(member, AUTHENTICATE)(request, timeout=seconds)
        except grpc.aio.AioRpcError as error:
            if errors.NOT_ENABLED not in text_of(error):
                raise
            raise Refused(
                f"{self.place} knows no users, and metadata.user is {self.place.user!r}: remove it, or enable "
                f"authentication in etcd"
            ) from None
        self._token = reply.token

    def _check_cluster(self, member: _Member, cluster_id: int) -> None:
        member.is_foreign = bool(self._cluster_id) and cluster_id != self._cluster_id
        if not member.is_foreign:
            self._cluster_id = cluster_id
            return
        if all(one.is_foreign for one in self._members):  # so it is not a mistake in the list of members
            shown = f"all members belong to etcd cluster {cluster_id:x}, and belonged to {self._cluster_id:x}"
            self.refuse(older_copy(self.place, shown))
            self._check_refused()
        raise MemberFailed(
            f"{member.address} belongs to another etcd cluster ({cluster_id:x}) than the member used before "
            f"({self._cluster_id:x}): name members of one cluster only"
        )

    def _move_on(self, member: _Member, why: str) -> None:
        """Use the next member, unless that was done already."""
        member.is_checked = False  # its next connection may lead to something else
        if self._members[self._current] is member:
            self._current = (self._current + 1) % len(self._members)
        if not member.is_failing:
            member.is_failing = True
            log.warning("etcd.member_failed", member=member.address, reason=why)

    def stream_failed(self, member: _Member, why: str) -> None:
        self._move_on(member, why)

    def forget_token(self) -> None:
        self._token = ""


class EtcdStream:
    """A bidirectional stream of messages with one member."""

    def __init__(self, client: EtcdClient, member: _Member, call: Any) -> None:
        self._client = client
        self._member = member
        self._call = call
        self.is_cancelled = False

    async def send(self, request: Any) -> None:
        """Send a message. Raises MemberFailed when the stream is lost, and Unavailable when it was cancelled here."""
        try:
            await self._call.write(request)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, asyncio.CancelledError) as error:
            raise self._lost(error) from None

    async def receive(self) -> Any:
        """Return the next message. Raises as `send` does."""
        try:
            reply = await self._call.read()
        except (grpc.aio.AioRpcError, asyncio.CancelledError) as error:
            raise self._lost(error) from None
        if reply is grpc.aio.EOF:
            raise self._lost(None)
        return reply

    def cancel(self) -> None:
        self.is_cancelled = True
        self._call.cancel()

    def fail(self, why: str) -> MemberFailed:
        """Give the stream up, and use another member; return the error to raise."""
        self._call.cancel()
        self._client.stream_failed(self._member, why)
        return MemberFailed(f"{self._member.address}: {why}")

    def _lost(self, error: BaseException | None) -> BaseException:
        """Return the error to raise: gRPC reports a stream that is cancelled locally as a CancelledError too."""
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and (task is None or task.cancelling()):
            return error
        if self.is_cancelled:
            return Unavailable("the metadata store has been closed")
        if isinstance(error, grpc.aio.AioRpcError):
            if judge(error) is Verdict.NEW_TOKEN:
                self._client.forget_token()
                return MemberFailed(text_of(error))
            return self.fail(text_of(error))
        return self.fail("the stream ended")


def _has_put(method: ServiceMethod, request: Any, reply: Any) -> bool:
    """Return whether a request has put something, and has a revision of its own."""
    return method is TXN and reply.succeeded and any(one.HasField("request_put") for one in request.success)


def _unary(member: _Member, method: ServiceMethod) -> Any:
    return member.channel.unary_unary(
        method.path, request_serializer=method.request.SerializeToString, response_deserializer=method.reply.FromString
    )


def _channels(tls: TlsFiles | None) -> Callable[[str], Any]:
    """Return what opens a channel to an address. Raises NotFound for a file of `tls` that cannot be read."""
    if tls is None:
        return lambda address: grpc.aio.insecure_channel(address, options=_OPTIONS)
    try:
        ca, key, certificate = (
            None if path is None else path.read_bytes() for path in (tls.ca, tls.key, tls.certificate)
        )
    except OSError as error:
        raise NotFound(f"{error.filename}, which TLS to etcd needs, cannot be read: {error.strerror}") from None
    credentials = grpc.ssl_channel_credentials(ca, key, certificate)
    return lambda address: grpc.aio.secure_channel(address, credentials, options=_OPTIONS)


def danube_error(place: EtcdPlace, error: Any) -> DanubeError:
    """Return the error for a final answer to a request."""
    return errors.refusal(place, text_of(error), denied=error.code() is grpc.StatusCode.PERMISSION_DENIED)
