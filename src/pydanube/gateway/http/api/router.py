"""Routes of the REST API: finds the operation of a request, reads its parameters and body, and sends its answer.

A path is matched segment by segment as it was sent, so that a name may contain an encoded slash. Nothing of an
operation happens before all of its parameters and its body are read and checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, get_args, get_origin

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pydanube.broker import Broker
from pydanube.gateway.http.requests import caller_of
from pydanube.model.errors import Invalid
from pydanube.model.json_values import dump, fields_of, has_fields

from . import json_forms
from .operations import JSON, Answer, ApiCall, NoQuery, Operation, parse_segment

_SHOWN_CHARACTERS_MAX: Final = 100
"""How much of a wrong value an error message repeats."""

_NO_STORE: Final = {"cache-control": "no-store"}


class Router:
    """The ASGI application of a table of operations."""

    def __init__(self, broker: Broker, operations: tuple[Operation, ...]) -> None:
        self._broker = broker
        self._root = _Node()
        for operation in operations:
            self._root.add(_Endpoint(operation))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. Raises what the operation raises, and HTTPException for a path or method without one."""
        request = Request(scope, receive, send)
        endpoint, values = self._find(request)
        with caller_of(request).operation(endpoint.operation.name) as audited:
            response = await endpoint.answer(self._broker, request, values)
            audited.settle()  # the answer may be a stream that goes on for days
            await response(scope, receive, send)

    def _find(self, request: Request) -> tuple[_Endpoint, list[str]]:
        path = request.scope["raw_path"].decode("ascii", "replace")
        node, values = self._root, []
        for segment in path.split("/")[1:]:
            known = node.literals.get(segment)
            if known is None:
                known = node.parameter
                values.append(segment)
            if known is None:
                raise _nothing_at(path, node)
            node = known
        if not node.endpoints:
            raise _nothing_at(path, node)
        method = "GET" if request.method == "HEAD" else request.method
        endpoint = node.endpoints.get(method)
        if endpoint is None or (request.method == "HEAD" and endpoint.operation.takes_messages):
            allowed = ", ".join(sorted(node.endpoints))
            text = f"{request.method} is not possible at {node.template}: use {allowed}"
            raise HTTPException(405, text, {"allow": allowed})
        return endpoint, values


class _Node:
    """The operations below one beginning of a path."""

    def __init__(self, template: str = "") -> None:
        self.template = template
        self.literals: dict[str, _Node] = {}
        self.parameter: _Node | None = None
        self.endpoints: dict[str, _Endpoint] = {}

    def add(self, endpoint: _Endpoint) -> None:
        node = self
        for segment in endpoint.operation.path.split("/")[1:]:
            below = _Node(f"{node.template}/{segment}")
            if segment.startswith("{"):
                node.parameter = node.parameter or below
                node = node.parameter
            else:
                node = node.literals.setdefault(segment, below)
        method = endpoint.operation.method
        assert method not in node.endpoints, f"{method} {endpoint.operation.path} is there twice"
        node.endpoints[method] = endpoint


class _Endpoint:
    """One operation with the forms of its types."""

    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        path = operation.path.split("/")
        self._parameters = [one[1:-1] for one in path if one.startswith("{")]
        self._query_words = _words_of(operation.query)
        self._query = None if operation.query is NoQuery else json_forms.form_of(operation.query)
        self._no_query: Any = None
        """What a request without a query has; handlers do not change it."""
        self._query_names = [one.name for one in fields_of(operation.query)]
        self._body = None if operation.body is None else json_forms.form_of(operation.body)
        self._body_words = {} if operation.body is None else _words_of(operation.body)
        self._decoder = None if self._body is None else msgspec.json.Decoder(self._body.type)

    async def answer(self, broker: Broker, request: Request, segments: list[str]) -> Response:
        operation = self.operation
        if operation.takes_messages and (refusal := request.app.state.origins.refusal(request.headers)) is not None:
            raise refusal
        path = {name: parse_segment(name, one) for name, one in zip(self._parameters, segments, strict=True)}
        query = self._read_query(request)
        self._check_if_match(request)
        body, given = (None, frozenset[str]()) if operation.reads_body else await self._read_body(request)
        if request.client is not None:
            broker.note_client(request.client.host)
        call = ApiCall(broker, caller_of(request), path, query, body, given, request)
        return self._respond(await operation.handler(call))

    def _respond(self, value: object) -> Response:
        if isinstance(value, Response):
            return value
        answer = value if isinstance(value, Answer) else Answer(value)
        status, headers = answer.status or self.operation.success, {**_NO_STORE, **answer.headers}
        if self.operation.reply is None and answer.value is None:
            return Response(None, status, headers)
        return Response(msgspec.json.encode(dump(answer.value)), status, headers, JSON)

    def _read_query(self, request: Request) -> Any:
        if self._no_query is not None and not request.scope["query_string"]:
            return self._no_query
        query = self._parse_query(request)
        if not request.scope["query_string"]:
            self._no_query = query
        return query

    def _parse_query(self, request: Request) -> Any:
        given: dict[str, str] = {}
        for name, value in request.query_params.multi_items():
            if name not in self._query_names:
                known = ", ".join(self._query_names)
                hint = f"use {known}" if known else "this operation has none"
                raise Invalid(f"query parameter {name[:_SHOWN_CHARACTERS_MAX]!r} is unknown: {hint}")
            if name in given:
                raise Invalid(f"query parameter {name!r} is given twice")
            given[name] = value
        if self._query is None:
            return NoQuery()
        try:
            read = msgspec.convert(given, self._query.type, strict=False)
        except msgspec.ValidationError as error:
            raise Invalid(f"a query parameter is not what is expected: {_explain(error, self._query_words)}") from None
        assert self._query.load is not None
        return self._query.load(read)

    def _check_if_match(self, request: Request) -> None:
        """Refuse a condition that would not be looked at."""
        given = request.headers.get("if-match")
        if given is not None and not self.operation.takes_if_match:
            raise Invalid("this operation cannot be made conditional: leave the header If-Match away")
        if given is not None and not given.strip():  # a tag that got lost, not the wish to write in any case
            raise Invalid("the header If-Match is empty: send the entity tag of an answer, or *")

    async def _read_body(self, request: Request) -> tuple[Any, frozenset[str]]:
        content = await request.body()
        if self._decoder is None or self._body is None:
            if content:
                raise Invalid("this operation takes no body")
            return None, frozenset()
        if not content:
            if self.operation.body_optional:
                content = b"{}"
            else:
                raise Invalid("this operation needs a body in JSON")
        _check_media_type(request)
        try:
            read = self._decoder.decode(content)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Invalid(f"the body is not what is expected here: {_explain(error, self._body_words)}") from None
        except RecursionError:
            raise Invalid("the body is nested too deeply") from None
        load = self._body.load
        return read if load is None else load(read), json_forms.given_fields(read)


def _check_media_type(request: Request) -> None:
    kind = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
    if kind != JSON and not (kind.startswith("application/") and kind.endswith("+json")):
        raise HTTPException(415, f"the body is {kind[:_SHOWN_CHARACTERS_MAX]!r}: send the header Content-Type: {JSON}")


def _nothing_at(path: str, last: _Node) -> HTTPException:
    """Return the error for a path that goes on after `last` with something unknown, or ends there."""
    names = sorted(last.literals)
    if last.parameter is not None:
        names.append(last.parameter.template.rpartition("/")[2])
    known = f"{last.template}/ goes on with {', '.join(names)}; " if names else ""
    return HTTPException(404, f"there is nothing at {path[:_SHOWN_CHARACTERS_MAX]}: {known}/docs shows every path")


def _words_of(kind: Any) -> dict[str, tuple[str, ...]]:
    """Return the fields of a type, and which words are allowed for each; none: it is not one of some words."""
    if not has_fields(kind):
        return {}
    return {one.name: _words_in(json_forms.form_of(one.type).type) for one in fields_of(kind)}


def _words_in(form: Any) -> tuple[str, ...]:
    if get_origin(form) is Literal:
        return get_args(form)
    return tuple(word for one in get_args(form) for word in _words_in(one))


def _explain(error: Exception, fields: Mapping[str, tuple[str, ...]]) -> str:
    """Return what msgspec says, and what is allowed instead if that is about a field of the object itself."""
    text = str(error)
    problem, _, place = text.partition(" - at ")
    if not place and "unknown field" in problem and fields:
        return f"{text}: use {', '.join(fields)}"
    words = fields.get(place.strip("`").removeprefix("$."), ())
    return f"{text}: use {', '.join(words)}" if words and "enum value" in problem else text
