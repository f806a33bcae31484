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
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from typing import Any, Final, NoReturn

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from grpc import StatusCode

from pydanube.broker import UNREAD_SMALL_BYTES, ListenerMetrics
from pydanube.core.access import Principal
from pydanube.core.identity import NOBODY, Credentials
from pydanube.gateway.door import Caller, Door
from pydanube.gateway.unproven_work import UnprovenClient
from pydanube.model.addresses import split_host_port
from pydanube.model.errors import DanubeError, Full, Invalid, Unavailable, internal_error
from pydanube.runtime.budget import Budget
from pydanube.runtime.descriptor_sets import ProtobufSchema, ServiceMethod
from pydanube.runtime.network import counted_address
from pydanube.runtime.tasks import ignore
from pydanube.runtime.telemetry import get_logger

from .errors import Status, details_of, status_of
from .front import Peers
from .request_intake import RequestIntake

log = get_logger(__name__)

Answer = Callable[[Any, Any, ExitStack], Awaitable[bytes | None]]

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


class Call:
    """One running call, as a service sees it."""

    __slots__ = ("_peers", "caller", "context", "peer", "request_bytes")

    def __init__(self, context: Any, caller: Caller, peer: str, peers: Peers, request_bytes: int = 0) -> None:
        """`peers` knows the connections of clients."""
        self._peers = peers
        self.context = context
        self.caller = caller
        self.peer = peer
        """The address of the client as gRPC writes it: `ipv4:127.0.0.1:5000`."""
        self.request_bytes = request_bytes
        """The size of the serialized request."""

    @property
    def principal(self) -> Principal:
        return self.caller.principal

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
        self._peers.abort(self.context)


class CallLimits:
    """Counts running calls per client address and the bytes of their requests, and refuses new ones while draining."""

    def __init__(
        self, calls_per_address_max: int, door: Door, intake: RequestIntake, peers: Peers, *, is_open: bool = False
    ) -> None:
        """`peers` knows where calls come from. `is_open`: the services ask nobody who they are, and tell nothing of
        topics."""
        self.door = door
        self.peers = peers
        self.intake = intake
        self.is_open = is_open
        self._metrics = ListenerMetrics() if is_open else door.broker.metrics.listener(GRPC)
        self._per_address_max = calls_per_address_max
        self._addresses: Counter[str] = Counter()
        self.draining = False
        self.refused = 0
        self.refused_draining = 0

    @contextmanager
    def place(self, address: str) -> Iterator[None]:
        """Count a call while it runs. Raises Unavailable or Full if there may be no more."""
        if self.draining:
            self.refused_draining += 1
            raise Unavailable("this broker is shutting down: try again, or another broker")
        if self._addresses[address] >= self._per_address_max:
            self._count_refused()
            raise Full(f"address {address} has {self._per_address_max} calls, as many as it may have: end some first")
        self._addresses[address] += 1
        self._metrics.accepted += 1
        self._metrics.connections += 1
        try:
            yield
        finally:
            self._metrics.connections -= 1
            self._addresses[address] -= 1
            if self._addresses[address] <= 0:
                del self._addresses[address]

    @property
    def are_calls_running(self) -> bool:
        return bool(self._addresses)

    def reserve(self, size: int, caller: Principal) -> Callable[[], None]:
        """Count the bytes of a request, and return what gives them back. Raises Unavailable if there are too many, or
        too many of this caller."""
        if size < _COUNTED_BYTES_MIN:
            return ignore
        release = self.door.reserve(caller, size)
        if release is None:
            self._count_refused()
            raise Unavailable("this broker has too many unanswered requests: try again")
        return release

    @contextmanager
    def operation(self, caller: Caller, method: ServiceMethod, context: Any) -> Iterator[None]:
        """Surrounds what a call does: a client is told how old the answer may be."""
        if self.is_open:
            yield
            return
        if age_s := self.door.broker.freshness.age_s:
            context.set_trailing_metadata(((_AGE, str(age_s)),))
        with caller.operation(method.path.lstrip("/")):
            yield

    def _count_refused(self) -> None:
        self.refused += 1
        self._metrics.refused += 1

    def counted(self, call: Call, answer: bytes) -> bytes:
        """Return an answer; a large one counts as unread until the call ends, which is when gRPC has sent it. Raises
        Unavailable if no memory is free."""
        if len(answer) > UNREAD_SMALL_BYTES and not self.is_open:
            part = self.door.broker.unread.part(call.principal, _ANSWER_TIMES)
            part.check_may_take(len(answer))
            part.take(len(answer))
            part.watch(call.disconnect)
            call.context.add_done_callback(lambda _: part.close())
        return answer


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
        answer = _both_streams(method, function, limits)
    else:
        answer = _one_request(method, function, limits, listener)

    async def handle(requests: Any, context: Any) -> Any:
        try:
            with ExitStack() as left:
                return await answer(requests, context, left)
        except Exception as error:
            await _fail(context, method.path, error)

    kind = grpc.stream_stream_rpc_method_handler if method.reply_streams else grpc.stream_unary_rpc_method_handler
    return kind(handle, response_serializer=_serialize)


def _serialize(message: Any) -> bytes:
    if type(message) is bytes:
        return message
    serialized: bytes = message.SerializeToString()
    return serialized


def _one_request(method: ServiceMethod, function: Any, limits: CallLimits, listener: str) -> Answer:
    parse, is_generator = method.request.FromString, inspect.isasyncgenfunction(function)

    async def answer(_requests: Any, context: Any, left: ExitStack) -> bytes | None:
        peer = limits.peers.address(context)
        left.enter_context(limits.place(_address(peer)))
        caller = left.enter_context(await _enter(limits, context, peer, listener))
        data = await limits.intake.receive(context)
        release = limits.reserve(len(data), caller.principal)
        if method.reply_streams:
            release()  # what is parsed of it is small
        else:
            left.callback(release)
        call = Call(context, caller, peer, limits.peers, len(data))
        request = _parsed(parse, data, method)
        del data
        await caller.admit(_resource_of(request))
        with limits.operation(caller, method, context):
            if not method.reply_streams:
                return limits.counted(call, _serialize(await function(call, request)))
            work = _write_all(context, function(call, request)) if is_generator else function(call, request)
            await _while_believed(caller, work)
            return None

    return answer


def _both_streams(method: ServiceMethod, function: Any, limits: CallLimits) -> Answer:
    """Return what answers a method whose clients stream too, such as reflection: few at a time, each address with its
    share, and not for long. Whoever calls has not shown who it is, also when the call is over."""
    parse, streams = method.request.FromString, Budget(_BOTH_STREAMS_MAX)

    async def parsed(requests: AsyncIterator[bytes], context: Any, client: UnprovenClient) -> AsyncIterator[Any]:
        async for data in requests:
            _check_unproven(limits, context, client)
            yield _parsed(parse, data, method)

    async def answer(requests: AsyncIterator[bytes], context: Any, left: ExitStack) -> None:
        peer = limits.peers.address(context)
        address, host = _address(peer), _host(peer)[1]
        if not streams.take(1, address):
            raise Full(f"{method.path} has as many streams as it may have, or as {address} may: end some first")
        left.callback(streams.give_back, 1, address)
        client = limits.door.work.client(host, CALL_S)
        call = Call(context, limits.door.enter(GRPC, host, NOBODY, is_counted=False), peer, limits.peers)
        try:
            async with asyncio.timeout(_BOTH_STREAMS_S):
                replies = function(call, parsed(requests, context, client))
                await client.run(_write_all(context, replies))
        except TimeoutError:
            late = f"a stream of {method.path} lasts {_BOTH_STREAMS_S} seconds"
            raise Status(StatusCode.DEADLINE_EXCEEDED, late) from None

    return answer


def _check_unproven(limits: CallLimits, context: Any, client: UnprovenClient) -> None:
    """Raise Full, and end the connection of the call, if those at its address have cost too much already."""
    if refusal := client.refusal():
        limits.peers.disconnect(context)
        raise Full(refusal)


async def _enter(limits: CallLimits, context: Any, peer: str, listener: str) -> Caller:
    """Let in who calls. Raises Unauthenticated or Full."""
    door, host = limits.door, _host(peer)[1]
    client = door.work.client(host, CALL_S)
    if limits.is_open or not door.broker.security.is_required:
        _check_unproven(limits, context, client)
        return door.enter(listener, host, NOBODY, peer, is_counted=not limits.is_open)
    try:
        credentials = _credentials(limits, context)
        identity = await client.run(door.identify(listener, host, credentials, client))
    except DanubeError:
        _check_unproven(limits, context, client)
        raise
    return door.enter(listener, host, identity, peer)


def _credentials(limits: CallLimits, context: Any) -> Credentials:
    """Return what a call shows: the header `authorization: Bearer`, or the certificate of its connection."""
    given = [str(value) for name, value in context.invocation_metadata() or () if name == "authorization"]
    scheme, _, token = given[0].strip().partition(" ") if len(given) == 1 else ("", "", "")
    token = token.strip() if scheme.lower() == "bearer" else ""
    return Credentials(token, None if given else limits.peers.certificate(context))


async def _while_believed(caller: Caller, work: Coroutine[Any, Any, None]) -> None:
    """Do the work of a stream, and raise Unauthenticated when its caller's credentials end before it does."""
    task, ended = asyncio.current_task(), []
    assert task is not None

    def end(error: DanubeError) -> None:
        ended.append(error)
        task.cancel()

    caller.follow(end)
    try:
        await work
    except asyncio.CancelledError:
        if not ended or task.uncancel() > 0:  # the client is gone
            raise
        raise ended[0] from None


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
    # gRPC keeps the error for as long as the connection, and the frames of these hold what was received.
    error.__traceback__ = error.__cause__ = error.__context__ = None
    try:
        await context.abort(code, details_of(details))
    except grpc.aio.InternalError as gone:
        raise asyncio.CancelledError from gone
    raise AssertionError("abort raises")
