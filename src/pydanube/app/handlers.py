"""Handlers: what the annotations of a function say about its messages, and how it is called.

A parameter is one of these, whatever its name and place:

    Order, list[Order]              the value of the message; those of a batch. One parameter at most
    pyarrow.Table, .RecordBatch     a batch as columns
    Message, Message[Order]         the message itself; ReceivedBatch for a handler of batches
    Client                          the client that the app runs with
    Depends(function)               what the function returns or yields, as a default or in Annotated

A parameter with any other default keeps it. A plain `def` runs in a thread.
"""

from __future__ import annotations

import asyncio
import inspect
import types
import typing
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, cast

import msgspec

from pydanube.client.client import Client
from pydanube.client.consuming.messages import Message, ReceivedBatch
from pydanube.client.typed.schema_sources import value_type_of
from pydanube.model.errors import Invalid
from pydanube.model.schemas import SchemaDefinition

Function = Callable[..., Any]
Received = Message[Any] | ReceivedBatch[Any]
Call = Callable[[Any, Any], Awaitable[Any]]
"""Calls a handler with the value of what was received, and with what was received."""

_ARROW: Final = {"Table", "RecordBatch"}


@dataclass(frozen=True, slots=True)
class Depends:
    """A parameter that another function provides.

    ```python
    async def bill(order: Order, books: Books = Depends(open_books)) -> None: ...
    ```

    The function may have such parameters itself, and may be a generator: what is behind its `yield` runs when the
    handler has ended. It is called on the event loop.
    """

    function: Function
    scope: Literal["message", "app"] = "message"
    """How long the value is used: for one call of the handler, or as long as the app runs."""


@dataclass(frozen=True, slots=True)
class ValueKind:
    """What a function takes or returns: values of one type, singly or as a list; or the columns of a batch."""

    type: Any
    many: bool = False
    arrow: str = ""
    """The class of pyarrow, or empty."""

    @property
    def schema(self) -> Any:
        """What the client takes as `schema`: None for bytes and for JSON without a schema."""
        return None if self.arrow or self.type in (bytes, dict) else self.type

    @property
    def definition(self) -> SchemaDefinition | None:
        """The schema of the messages; None for bytes and for JSON without a schema."""
        return None if self.schema is None else value_type_of(self.schema).definition

    def decode(self, received: Received) -> Any:
        """Return the value, or the list of values, of what was received. Raises Invalid, and errors of the registry."""
        if self.arrow:
            import pyarrow

            columns = cast("ReceivedBatch[Any]", received).to_arrow()
            return columns if self.arrow == "RecordBatch" else pyarrow.Table.from_batches([columns])
        if self.type is dict:
            if isinstance(received, ReceivedBatch):
                return [_json_object(payload) for payload in received.payloads]
            return _json_object(received.payload)
        return received.values() if isinstance(received, ReceivedBatch) else received.value()

    def encode(self, value: Any) -> Any:
        """Return what the producer of this kind of values sends."""
        return msgspec.json.encode(value) if self.type is dict else value


_decode_object: Final = msgspec.json.Decoder(dict[str, Any]).decode


def _json_object(payload: bytes) -> dict[str, Any]:
    try:
        return _decode_object(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid(f"the payload is not a JSON object: {error}") from None


@dataclass(frozen=True, slots=True)
class _Plan:
    """How one function is called: which of its parameters gets what."""

    function: Function
    values: tuple[str, ...] = ()
    received: tuple[str, ...] = ()
    clients: tuple[str, ...] = ()
    dependencies: tuple[tuple[str, _Plan, str], ...] = ()
    """Name, plan and scope."""

    @property
    def takes_message(self) -> bool:
        """Whether the function, or one that it depends on, takes what was received."""
        return bool(self.received) or any(plan.takes_message for _, plan, _ in self.dependencies)

    @property
    def is_simple(self) -> bool:
        return not self.clients and not self.dependencies


@dataclass(slots=True)
class Context:
    """What the calls of one running app share."""

    client: Client
    threads: Executor
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    """Ends what dependencies of the scope "app" have opened."""
    shared: dict[Function, asyncio.Future[Any]] = field(default_factory=dict)


class Handler:
    """A function with what its annotations say. Raises Invalid, which names the function and its line."""

    def __init__(self, function: Function, names: Mapping[str, Any] | None = None) -> None:
        """`names`: what annotations may refer to besides the globals of the function."""
        self.function = function
        self.name = f"{_module_of(function)}.{function.__qualname__}".replace("<locals>.", "")
        self.place = place_of(function)
        self.takes = ValueKind(bytes)
        self._names = names
        self._has_value = False
        self._takes_batch: bool | None = None
        try:
            if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
                raise Invalid("it yields: a handler returns its result, several messages as a list")
            self._plan = self._planned(function, is_handler=True)
            self.returns = self._returned()
            if self.takes.schema is not None:
                value_type_of(self.takes.schema)
        except Invalid as error:
            raise self.error(error.message) from None

    def error(self, message: str) -> Invalid:
        return Invalid(f"{self.name} ({self.place}): {message}")

    @property
    def takes_batch(self) -> bool:
        return bool(self._takes_batch)

    @property
    def summary(self) -> str:
        """The first paragraph of the docstring, in one line."""
        return " ".join((inspect.getdoc(self.function) or "").partition("\n\n")[0].split())

    # -- reading annotations -----------------------------------------------------------------------------------------

    def _planned(self, function: Function, *, is_handler: bool = False) -> _Plan:
        hints = _hints(function, self._names)
        found: dict[str, list[str]] = {"values": [], "received": [], "clients": []}
        dependencies: list[tuple[str, _Plan, str]] = []
        for name, parameter in inspect.signature(function).parameters.items():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise Invalid(f"parameter *{name} of {function.__name__} cannot be filled: name the parameters")
            hint = hints.get(name, inspect.Parameter.empty)
            depends = _depends(parameter.default, hint)
            kind = typing.get_origin(hint) or hint
            if depends is not None:
                plan = self._planned(depends.function)
                if depends.scope == "app" and plan.takes_message:
                    raise Invalid(f"{plan.function.__name__} of scope 'app' is called once: it cannot take a message")
                dependencies.append((name, plan, depends.scope))
            elif kind is Message or kind is ReceivedBatch:
                self._set_batch(kind is ReceivedBatch, name)
                self._use_message_type(hint)
                found["received"].append(name)
            elif kind is Client:
                found["clients"].append(name)
            elif parameter.default is not parameter.empty:
                continue
            elif hint is parameter.empty:
                raise Invalid(f"parameter {name!r} has no annotation: say what it is, such as bytes or a dataclass")
            elif not is_handler or self._has_value:
                raise Invalid(
                    f"parameter {name!r} of {function.__name__} is unknown: there is one for the value of the message, "
                    "and others are Message, Client or Depends(...), or have a default"
                )
            else:
                self._has_value = True
                self.takes = value_kind(hint)
                self._set_batch(bool(self.takes.many or self.takes.arrow), name)
                found["values"].append(name)
        return _Plan(function, **{each: tuple(names) for each, names in found.items()}, dependencies=(*dependencies,))

    def _set_batch(self, is_batch: bool, name: str) -> None:
        if self._takes_batch not in (None, is_batch):
            raise Invalid(f"parameter {name!r} is {'' if is_batch else 'not '}a batch, another one is the opposite")
        self._takes_batch = is_batch

    def _use_message_type(self, hint: Any) -> None:
        """Take the type of `Message[Order]`, for a handler without a parameter for the value."""
        arguments = typing.get_args(hint)
        if arguments and arguments[0] is not Any and not self._has_value:
            self.takes = value_kind(arguments[0])

    def _returned(self) -> ValueKind | None:
        """Return what the function returns; None if it says nothing, or that there is nothing."""
        hint = _hints(self.function, self._names).get("return")
        if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
            left = [one for one in typing.get_args(hint) if one is not type(None)]
            hint = typing.Union[tuple(left)]  # noqa: UP007
        return None if hint in (None, type(None)) else _kind_or_none(hint)

    # -- calling -----------------------------------------------------------------------------------------------------

    def bind(self, context: Context) -> Call:
        """Return the function that calls the handler."""
        plan = self._plan
        call = self.function if inspect.iscoroutinefunction(self.function) else self._in_thread(context.threads)
        if plan.is_simple and len(plan.values) + len(plan.received) == 1:
            return (lambda value, _: call(value)) if plan.values else (lambda _, received: call(received))
        return partial(_call, plan, call, context)

    def _in_thread(self, threads: Executor) -> Function:
        async def call(*values: Any, **named: Any) -> Any:
            run = partial(copy_context().run, self.function, *values, **named)
            result = await asyncio.get_running_loop().run_in_executor(threads, run)
            return await result if inspect.isawaitable(result) else result  # of a plain wrapper of an async function

        return call


async def _call(plan: _Plan, call: Function, context: Context, value: Any, received: Any) -> Any:
    async with AsyncExitStack() as stack:
        arguments = await _arguments(plan, context, value, received, stack, {})
        return await call(**arguments)


async def _arguments(
    plan: _Plan, context: Context, value: Any, received: Any, stack: AsyncExitStack, made: dict[Function, Any]
) -> dict[str, Any]:
    arguments = (
        dict.fromkeys(plan.values, value)
        | dict.fromkeys(plan.received, received)
        | dict.fromkeys(plan.clients, context.client)
    )
    for name, dependency, scope in plan.dependencies:
        function = dependency.function
        if scope == "app":
            arguments[name] = await _shared(dependency, context)
        else:
            if function not in made:
                inner = await _arguments(dependency, context, value, received, stack, made)
                made[function] = await _provide(function, inner, stack)
            arguments[name] = made[function]
    return arguments


async def _shared(plan: _Plan, context: Context) -> Any:
    """Return what the function provides for the whole app: it is called once, also if several handlers wait for it."""
    found = context.shared.get(plan.function)
    if found is None:
        found = context.shared[plan.function] = asyncio.get_running_loop().create_future()
        try:
            arguments = await _arguments(plan, context, None, None, context.stack, {})
            found.set_result(await _provide(plan.function, arguments, context.stack))
        except BaseException:
            del context.shared[plan.function]  # the next message tries again
            found.cancel()
            raise
    return await asyncio.shield(found)


async def _provide(function: Function, arguments: dict[str, Any], stack: AsyncExitStack) -> Any:
    if inspect.isasyncgenfunction(function):
        return await stack.enter_async_context(asynccontextmanager(function)(**arguments))
    if inspect.isgeneratorfunction(function):
        return stack.enter_context(contextmanager(function)(**arguments))
    provided = function(**arguments)
    return await provided if inspect.isawaitable(provided) else provided


def value_kind(hint: Any) -> ValueKind:
    """Return what an annotation stands for. Raises Invalid if it cannot be a schema."""
    found = _kind_or_none(hint)
    if found is None:
        raise Invalid(
            f"{hint!r} cannot be a schema: use bytes, str, int, float, dict, a dataclass, a msgspec Struct, a pydantic "
            "model or a protobuf message, or a list of one of them"
        )
    if found.schema is not None:
        value_type_of(found.schema)
    return found


def _kind_or_none(hint: Any) -> ValueKind | None:
    if getattr(hint, "__module__", "").partition(".")[0] == "pyarrow" and hint.__name__ in _ARROW:
        return ValueKind(bytes, arrow=hint.__name__)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _kind_or_none(arguments[0])
    if origin is list and len(arguments) == 1:
        one = _kind_or_none(arguments[0])
        return None if one is None or one.many else ValueKind(one.type, many=True)
    if origin is dict:
        return ValueKind(dict)
    if origin in (typing.Union, types.UnionType) and type(None) not in arguments:
        return ValueKind(hint)
    return ValueKind(hint) if isinstance(hint, type) and hint not in (list, object) else None


def _depends(default: Any, hint: Any) -> Depends | None:
    if isinstance(default, Depends):
        return default
    marks = typing.get_args(hint)[1:] if typing.get_origin(hint) is typing.Annotated else ()
    return next((mark for mark in marks if isinstance(mark, Depends)), None)


def _hints(function: Function, names: Mapping[str, Any] | None) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, localns=dict(names or {}), include_extras=True)
    except Exception as error:  # NameError, and whatever an annotation raises
        raise Invalid(f"its annotations cannot be read: {error}") from None


def check_hook(function: Function, what: str, parameters: str) -> None:
    """Raise Invalid, with its place, for a function that cannot be awaited with these parameters."""
    name = getattr(function, "__qualname__", type(function).__name__).replace("<locals>.", "")
    if not inspect.iscoroutinefunction(function) and not inspect.iscoroutinefunction(type(function).__call__):
        raise Invalid(f"{name} ({place_of(function)}): {what} is an async function: write async def")
    try:
        inspect.signature(function).bind(*parameters.split(", "))
    except TypeError as error:
        raise Invalid(f"{name} ({place_of(function)}): {what} is called with ({parameters}): {error}") from None


def _module_of(function: Function) -> str:
    """Return the name of the module; of a program that was started, the name of its file."""
    if function.__module__ != "__main__":
        return function.__module__
    return Path(function.__code__.co_filename).stem


def place_of(function: Function) -> str:
    """Return the file and line of a function."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{Path(code.co_filename).name}:{code.co_firstlineno}" if code is not None else "unknown place"
