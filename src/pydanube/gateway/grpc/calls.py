"""Turns the methods of a service class into handlers of gRPC calls.

A service is a class with one async method per rpc, named like the rpc in snake case:

    async def create_producer(self, call: Call, request: Any) -> Any         unary; returns the reply
    async def receive_messages(self, call: Call, request: Any) -> None       a stream: `await call.write(message)`
    def watch(self, call: Call, request: Any) -> AsyncIterator[Any]          or an async generator, which yields them
    def reflect(self, call: Call, requests: AsyncIterator[Any]) -> ...       where the client streams too

`request` is a message of the schema; replies are messages, or bytes that are serialized already. A method raises
DanubeError, which errors.py maps to a status, or Status. Its task is cancelled when the client goes away.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any, Final, NoReturn, Protocol

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from grpc import StatusCode

from pydanube.broker import UNREAD_SMALL_BYTES, Broker, ListenerMetrics
from pydanube.broker.security.audit_operations import UNAUDITED, AuditedOperation, Origin, Unaudited
from pydanube.broker.security.security import Security
from pydanube.core.access import ANONYMOUS, Principal
from pydanube.core.identity import NOBODY, Credentials, Identity
from pydanube.gateway.publish_memory import PublishShare
from pydanube.gateway.unproven_work import UnprovenClient, UnprovenWork
from pydanube.model.addresses import split_host_port
from pydanube.model.errors import DanubeError, Full, Invalid, Unavailable, internal_error
from pydanube.runtime.budget import Budget
from pydanube.runtime.descriptor_sets import ProtobufSchema, ServiceMethod
from pydanube.runtime.network import counted_address
from pydanube.runtime.telemetry import get_logger

from .errors import Status, details_of, status_of
from .front import Peers
from .request_intake import RequestIntake

log = get_logger(__name__)

Handler = Callable[[Any, Any], Awaitable[Any]]

GRPC: Final = "grpc"
ADMIN: Final = "admin"

_WORD: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


_AGE: Final = "danube-age"
"""In the trailing metadata, if the broker may have missed changes: for how many seconds."""

_COUNTED_BYTES_MIN: Final = 4_096
"""Smaller requests, such as acks, are not counted in memory: the number of calls limits them."""


CALL_S: Final = 0.0005
"""What a call costs before its handler runs, and when it is refused, which gRPC does and nobody measures."""

_BOTH_STREAMS_MAX: Final = 16
_BOTH_STREAMS_S: Final = 60

_ANSWER_TIMES: Final = 2
"""In the memory of what clients have not received, an answer takes this many times its size: itself and gRPC's copy."""


class Memory(Protocol):
    """Where the bytes of unanswered requests are counted, together with those of other listeners."""

    def reserve(self, size: int, principal: str = "") -> PublishShare | None: ...
    def release(self, size: int, share: PublishShare) -> None: ...


class Call:
    """One running call, as a service sees it."""

    __slots__ = ("_peers", "context", "peer", "principal", "request_bytes")

    def __init__(
        self,
        context: Any,
        request_bytes: int,
        principal: Principal = ANONYMOUS,
        peer: str = "",
        peers: Peers | None = None,
    ) -> None:
        """`peers` knows the connections of clients."""
        self._peers = peers
        self.context = context
        self.peer = peer
        """The address of the client as gRPC writes it: `ipv4:127.0.0.1:5000`."""
        self.request_bytes = request_bytes
        """The size of the serialized request."""
        self.principal = principal

    @property
    def client(self) -> str:
        """The IP address of the client."""
        return _host(self.peer)[1]

    async def open_stream(self) -> None:
        """Tell the client that its stream is open. Otherwise the first message does, and clients that wait for it, as
        that for Rust does, can do nothing else on a quiet topic."""
        await self.context.send_initial_metadata(())

    async def write(self, message: Any) -> None:
        """Send one message of a stream, serialized or not. Returns when gRPC has taken it: a client that does not read
        makes this wait."""
        await self.context.write(message)

    def disconnect(self) -> None:
        """End the client's connection: gRPC keeps what it has taken of a message for as long as that is open."""
        if self._peers is not None:
            self._peers.abort(self.context)


class CallLimits:
    """Counts running calls per client address and the bytes of their requests, and refuses new ones while draining."""

    def __init__(
        self,
        calls_per_address_max: int,
        memory: Memory,
        intake: RequestIntake,
        work: UnprovenWork,
        peers: Peers | None = None,
        broker: Broker | None = None,
    ) -> None:
        """`work` is what callers cost before they have shown who they are, and `peers` knows where calls come from.
        `broker` finds out who calls and what that may use; None: the services are open to everybody."""
        self.work = work
        self.peers = peers or Peers()
        self.intake = intake
        self.security = None if broker is None else broker.security
        self._broker = broker
        self._metrics = ListenerMetrics() if broker is None else broker.metrics.listener("grpc")
        self._per_address_max = calls_per_address_max
        self._addresses: Counter[str] = Counter()
        self._memory = memory
        self.draining = False
        self.refused = 0
        self.refused_draining = 0

    def enter(self, address: str) -> None:
        """Count a call; raises Unavailable or Full, and counts nothing, if there may be no more."""
        if self.draining:
            self.refused_draining += 1
            raise Unavailable("this broker is shutting down: try again, or another broker")
        if self._addresses[address] >= self._per_address_max:
            self._count_refused()
            raise Full(f"address {address} has {self._per_address_max} calls, as many as it may have: end some first")
        self._addresses[address] += 1
        self._metrics.accepted += 1
        self._metrics.connections += 1

    def audited(
        self, listener: str, method: ServiceMethod, peer: str, caller: Identity
    ) -> AuditedOperation | Unaudited:
        """Return what a call runs in."""
        if self._broker is None or not self._broker.audit.is_on:
            return UNAUDITED
        origin = Origin(listener, _host(peer)[1], caller.principal.id, caller.method)
        return self._broker.audit.operation(origin, method.path.lstrip("/"))

    @contextmanager
    def fresh(self, context: Any) -> Iterator[None]:
        """Surrounds a call: a client is told how old the answer may be."""
        if self._broker is None:
            yield
            return
        if age_s := self._broker.freshness.age_s:
            context.set_trailing_metadata(((_AGE, str(age_s)),))
        with self._broker.freshness.checked():
            yield

    @property
    def are_calls_running(self) -> bool:
        return bool(self._addresses)

    def leave(self, address: str) -> None:
        self._metrics.connections -= 1
        self._addresses[address] -= 1
        if self._addresses[address] <= 0:
            del self._addresses[address]

    def reserve(self, size: int, caller: Principal) -> Callable[[], None]:
        """Count the bytes of a request, and return what gives them back. Raises Unavailable if there are too many, or
        too many of this caller."""
        if size < _COUNTED_BYTES_MIN:
            return _nothing
        is_known = self.security is not None and self.security.is_required and not caller.is_broker
        share = self._memory.reserve(size, caller.id if is_known else "")
        if share is None:
            self._count_refused()
            raise Unavailable("this broker has too many unanswered requests: try again")
        return partial(self._memory.release, size, share)

    def _count_refused(self) -> None:
        self.refused += 1
        self._metrics.refused += 1

    def connect(self, principal: Principal, peer: str) -> Callable[[], None] | None:
        """Count the connection that a call came on for its principal, and return what ends that; None: there are no
        quotas. Raises Full."""
        if self._broker is None or not self._broker.throttle.is_active:
            return None
        return self._broker.throttle.connect(principal, peer)

    async def admit(self, caller: Identity, request: Any) -> None:
        """Wait until the rates of quotas allow the call. Raises Full, and Unauthenticated if the caller's credentials
        have ended: it may also have taken its time to send the request."""
        if self._broker is None:
            return
        if self._broker.throttle.is_active:
            await self._broker.throttle.request(caller.principal, _resource_of(request))
        self._broker.security.check_believed(caller)

    def counted(self, call: Call, answer: bytes) -> bytes:
        """Return an answer; a large one counts as unread until the call ends, which is when gRPC has sent it. Raises
        Unavailable if no memory is free."""
        if self._broker is not None and len(answer) > UNREAD_SMALL_BYTES:
            part = self._broker.unread.part(call.principal, _ANSWER_TIMES)
            part.check_may_take(len(answer))
            part.take(len(answer))
            part.watch(call.disconnect)
            call.context.add_done_callback(lambda _: part.close())
        return answer


def _nothing() -> None:
    """Give nothing back: nothing was counted."""


def snake_case(rpc: str) -> str:
    """`CreateProducer` is `create_producer`."""
    return _WORD.sub("_", rpc).lower()


def service_handler(
    schema: ProtobufSchema, name: str, service: object, limits: CallLimits, listener: str = GRPC
) -> Any:
    """Return the generic handler of the service `name`. A method that `service` lacks answers UNIMPLEMENTED. `listener`
    is named in the audit."""
    handlers = {}
    for rpc, method in schema.methods(name).items():
        function = getattr(service, snake_case(rpc), None)
        has_it = function is not None
        handlers[rpc] = _handler(method, function, limits, listener) if has_it else _missing(method.path)
    return grpc.method_handlers_generic_handler(name, handlers)


class UnknownMethods(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    """The last handler of a listener: answers calls of services and methods that it does not have."""

    def __init__(self, advice: str) -> None:
        self._advice = advice

    def service(self, handler_call_details: Any) -> Any:
        return _missing(handler_call_details.method, self._advice)


def _missing(path: str, advice: str = "this broker does not implement it") -> Any:
    async def refuse(_requests: Any, context: Any) -> None:
        await context.abort(StatusCode.UNIMPLEMENTED, details_of(f"no method {path}: {advice}"))

    return grpc.stream_stream_rpc_method_handler(refuse)


def _handler(method: ServiceMethod, function: Any, limits: CallLimits, listener: str) -> Any:
    """Return the handler of one method. To gRPC every request is a stream: it is received when we ask for it."""
    if method.request_streams:
        assert method.reply_streams, f"{method.path}: streams of requests with one reply are not supported"
        handle = _both_streams(method, function, limits)
        return grpc.stream_stream_rpc_method_handler(handle, response_serializer=_serialize)
    if method.reply_streams:
        handle = _stream(method, function, limits, listener)
        return grpc.stream_stream_rpc_method_handler(handle, response_serializer=_serialize)
    handle = _unary(method, function, limits, listener)
    return grpc.stream_unary_rpc_method_handler(handle, response_serializer=_serialize)


def _serialize(message: Any) -> bytes:
    if type(message) is bytes:
        return message
    serialized: bytes = message.SerializeToString()
    return serialized


def _unary(method: ServiceMethod, function: Any, limits: CallLimits, listener: str) -> Handler:
    parse, intake = method.request.FromString, limits.intake

    async def handle(_requests: Any, context: Any) -> Any:
        address, entered, release, disconnect = "", False, _nothing, None
        data: bytes | None
        call: Call | None
        request: Any
        try:
            peer = limits.peers.address(context)
            address = _address(peer)
            limits.enter(address)
            entered = True
            identity = await _authenticate(limits, context, peer, listener)
            disconnect = limits.connect(identity.principal, peer)
            data = await intake.receive(context)
            release = limits.reserve(len(data), identity.principal)
            call = Call(context, len(data), identity.principal, peer, limits.peers)
            request = _parsed(parse, data, method)
            await limits.admit(identity, request)
            with limits.audited(listener, method, peer, identity), limits.fresh(context):
                return limits.counted(call, _serialize(await function(call, request)))
        except Exception as error:
            data = call = request = None  # gRPC keeps the error, and with it this frame, for as long as the connection
            await _fail(context, method.path, error)
        finally:
            if entered:
                limits.leave(address)
            release()
            if disconnect is not None:
                disconnect()

    return handle


def _stream(method: ServiceMethod, function: Any, limits: CallLimits, listener: str) -> Handler:
    parse, is_generator = method.request.FromString, inspect.isasyncgenfunction(function)

    async def handle(_requests: Any, context: Any) -> None:
        address, entered, disconnect = "", False, None
        call: Call | None
        request: Any
        try:
            peer = limits.peers.address(context)
            address = _address(peer)
            limits.enter(address)
            entered = True
            identity = await _authenticate(limits, context, peer, listener)
            disconnect = limits.connect(identity.principal, peer)
            data = await limits.intake.receive(context)
            limits.reserve(len(data), identity.principal)()  # what is parsed of it is small
            call = Call(context, len(data), identity.principal, peer, limits.peers)
            request = _parsed(parse, data, method)
            del data
            await limits.admit(identity, request)
            with limits.audited(listener, method, peer, identity), limits.fresh(context):
                work = _write_all(context, function(call, request)) if is_generator else function(call, request)
                follow = identity is not NOBODY
                await (_while_believed(limits.security, identity, work, listener, call.client) if follow else work)
        except Exception as error:
            call = request = None  # as above
            await _fail(context, method.path, error)
        finally:
            if entered:
                limits.leave(address)
            if disconnect is not None:
                disconnect()

    return handle


def _both_streams(method: ServiceMethod, function: Any, limits: CallLimits) -> Handler:
    """Return the handler of a method whose clients stream too, such as reflection: few at a time, each address with its
    share, and not for long. Whoever calls has not shown who it is, also when the call is over."""
    parse, streams = method.request.FromString, Budget(_BOTH_STREAMS_MAX)

    async def parsed(requests: AsyncIterator[bytes], context: Any, client: UnprovenClient) -> AsyncIterator[Any]:
        async for data in requests:
            _check_unproven(limits, context, client)
            yield _parsed(parse, data, method)

    async def handle(requests: AsyncIterator[bytes], context: Any) -> None:
        address, has_place = "", False
        try:
            peer = limits.peers.address(context)
            address = _address(peer)
            if not (has_place := streams.take(1, address)):
                raise Full(f"{method.path} has as many streams as it may have, or as {address} may: end some first")
            client = limits.work.client(_host(peer)[1], CALL_S)
            async with asyncio.timeout(_BOTH_STREAMS_S):
                replies = function(Call(context, 0), parsed(requests, context, client))
                await client.run(_write_all(context, replies))
        except TimeoutError:
            late = Status(StatusCode.DEADLINE_EXCEEDED, f"a stream of {method.path} lasts {_BOTH_STREAMS_S} seconds")
            await _fail(context, method.path, late)
        except Exception as error:
            await _fail(context, method.path, error)
        finally:
            if has_place:
                streams.give_back(1, address)

    return handle


def _check_unproven(limits: CallLimits, context: Any, client: UnprovenClient) -> None:
    """Raise Full, and end the connection of the call, if those at its address have cost too much already."""
    if refusal := client.refusal():
        limits.peers.disconnect(context)
        raise Full(refusal)


async def _authenticate(limits: CallLimits, context: Any, peer: str, listener: str) -> Identity:
    """Return who calls, by the header `authorization: Bearer` or its certificate. Raises Unauthenticated or Full."""
    security, client = limits.security, limits.work.client(_host(peer)[1], CALL_S)
    if security is None or not security.is_required:
        _check_unproven(limits, context, client)
        return NOBODY
    try:
        identity = await client.run(_identify(limits, security, context, peer, listener))
    except DanubeError:
        _check_unproven(limits, context, client)
        raise
    client.proved()
    return identity


async def _identify(limits: CallLimits, security: Security, context: Any, peer: str, listener: str) -> Identity:
    given = [str(value) for name, value in context.invocation_metadata() or () if name == "authorization"]
    scheme, _, token = given[0].strip().partition(" ") if len(given) == 1 else ("", "", "")
    token = token.strip() if scheme.lower() == "bearer" else ""
    certificate = None if given else limits.peers.certificate(context)
    return await security.authenticate(Credentials(token, certificate), _host(peer)[1], listener)


async def _while_believed(
    security: Security | None, identity: Identity, work: Coroutine[Any, Any, None], listener: str, address: str
) -> None:
    """Do the work of a stream, and raise Unauthenticated when its identity ends before it does."""
    assert security is not None
    task, ended = asyncio.current_task(), []
    assert task is not None

    def end(error: DanubeError) -> None:
        ended.append(error)
        task.cancel()

    session = security.sessions.open(identity, end, listener, address)
    try:
        await work
    except asyncio.CancelledError:
        if not ended or task.uncancel() > 0:  # the client is gone
            raise
        raise ended[0] from None
    finally:
        security.sessions.close(session)


async def _write_all(context: Any, replies: AsyncIterator[Any]) -> None:
    async for reply in replies:
        await context.write(reply)


def _resource_of(request: Any) -> str:
    """Return the topic that a request is about, as rules of access name it; empty: none."""
    topic = getattr(request, "topic_name", "") or getattr(request, "topic", "")
    if not topic and hasattr(request, "msg_id"):
        topic = request.msg_id.topic_name
    return topic if isinstance(topic, str) else ""


def _parsed(parse: Callable[[bytes], Any], data: bytes, method: ServiceMethod) -> Any:
    try:
        return parse(data)
    except DecodeError:
        name = method.request.DESCRIPTOR.full_name
        raise Invalid(f"the request of {method.path} is not a message {name}") from None


@lru_cache(maxsize=4_096)
def _host(peer: str) -> tuple[str, str]:
    """Return the kind of a client's address, and it without its port: of `ipv6:[::1]:5000` (which may be escaped) that
    is `::1`."""
    kind, _, rest = peer.replace("%5B", "[").replace("%5D", "]").partition(":")
    return kind, split_host_port(rest)[0]


def _address(peer: str) -> str:
    """Return the address under which the client is counted."""
    kind, host = _host(peer)
    return counted_address(host) if kind in ("ipv4", "ipv6") else kind


async def _fail(context: Any, path: str, error: Exception) -> NoReturn:
    """End the call with the status of an error. An exception that is no error of ours is logged.

    Raises CancelledError if the client is gone: gRPC has failed to send to it, and has not cancelled this task yet.
    """
    if isinstance(error, grpc.aio.AbortError):  # the service has chosen a status with context.abort
        raise error
    if isinstance(error, grpc.aio.InternalError):
        raise asyncio.CancelledError from error
    if isinstance(error, DanubeError):
        code, details = status_of(error), error.message
    elif isinstance(error, Status):
        code, details = error.code, error.details
    else:
        log.error("grpc.call_crashed", method=path, exc_info=error)
        code = StatusCode.INTERNAL
        details = internal_error(path, error).message
    error.__traceback__ = None  # its frames hold what was received
    try:
        await context.abort(code, details_of(details))
    except grpc.aio.InternalError as gone:
        raise asyncio.CancelledError from gone
    raise AssertionError("abort raises")
