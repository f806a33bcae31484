"""The OpenAPI 3.1 document of the REST API, made from the table of operations and the types of the model."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from functools import cache
from typing import Any, Final, NamedTuple

import msgspec

from pydanube.gateway.http.errors import PROBLEM, Problem
from pydanube.model.failure import DELAY_MS_MAX, FailurePolicy
from pydanube.model.json_values import NO_DEFAULT, as_json, attributes_of, fields_of
from pydanube.model.limits import NAME_CHARACTERS_MAX, PARTITIONS_MAX, SCHEMA_BYTES_MAX, SCHEMA_REFERENCES_MAX
from pydanube.model.paging import AFTER_CHARACTERS_MAX, FILTER_CHARACTERS_MAX, PAGE_MAX, PageQuery
from pydanube.model.policies import FIELDS, SEGMENT_BYTES_MAX, Policies
from pydanube.model.schemas import Binding, SchemaDefinition, SchemaReference
from pydanube.model.topics import TopicConfig
from pydanube.version import __version__

from . import json_forms
from .operations import JSON, PATH_PARAMETERS, NoQuery, Operation, Schema

_REFERENCE: Final = "#/components/schemas/{name}"

ERRORS: Final[dict[int, str]] = {
    400: "The request is wrong (`Invalid`): the detail names what, and what is allowed.",
    401: "Credentials are missing or wrong (`Unauthenticated`).",
    403: "The caller may not do this (`Denied`), or a page of another origin sent the request.",
    404: "What the path names does not exist (`NotFound`).",
    408: "The body did not arrive in time.",
    409: "The state of the system says no (`Refused`, `AlreadyExists`, `Held`, `StaleEpoch`).",
    412: "The state is another one than If-Match expects (`Conflict`): read it again.",
    413: "The body is too large.",
    415: "The body is of a media type that is not read here.",
    426: "This is for WebSockets.",
    421: "Another broker owns this (`NotOwner`, with its address), or the header Host names another server.",
    429: "A limit is reached (`Full`): wait, or raise it.",
    431: "The request line and the headers are too long.",
    500: "The broker made a mistake, or stored data is damaged (`Corrupt`).",
    502: "The responder answered the request with an error (`RequestFailed`).",
    504: "No reply to the request came in time.",
    503: "The broker cannot do this now (`Unavailable`): send the same request again, later.",
}

COMMON_ERRORS: Final = (400, 401, 403, 421, 429, 431, 500, 503)
BODY_ERRORS: Final = (408, 413, 415)

TAGS: Final[dict[str, str]] = {
    "brokers": "The brokers, their addresses and their health.",
    "namespaces": "Namespaces and their policies.",
    "topics": "Topics, their partitions, policies and statistics.",
    "subscriptions": "Subscriptions: where they stand, and what happens to messages that fail.",
    "dead letters": "Messages that failed too often, and sending them back.",
    "schemas": "The schema registry, and which topic carries which schema.",
    "storage": "Object storage: usage, segments, uploads, verification.",
    "staged queries": "Queries that write in transactions, such as those of Spark.",
    "access": "Roles, bindings and API keys: who may do what.",
    "data": "Publishing and consuming.",
}

_DESCRIPTION: Final = """\
Everything that can be administered in a pydanube broker, and publishing and consuming (`data`). Not in this document:
`/metrics` for Prometheus, `/healthz` and `/readyz`, and the Confluent Schema Registry API at `/schema-registry`.

Errors are problem details (RFC 9457). A list is answered in pages: `next` of an answer is the `after` of the next
request, and is empty on the last page. Times are microseconds since 1970 unless their name ends in a unit; those
of messages are text such as `2026-01-31T12:00:00Z`. Unknown fields and query parameters are refused by name.
"""


def document(operations: tuple[Operation, ...]) -> dict[str, Any]:
    """Return the document of these operations."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _describe(operation)
    used = {one.tag for one in operations}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "pydanube",
            "version": __version__,
            "description": _DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": name, "description": text} for name, text in TAGS.items() if name in used],
        "paths": paths,
        "components": {"schemas": _schemas(operations), "responses": _error_responses()},
    }


def _describe(operation: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "tags": [operation.tag],
        "responses": _responses(operation),
    }
    if operation.description:
        described["description"] = operation.description
    if parameters := [*_path_parameters(operation), *_query_parameters(operation), *_headers(operation)]:
        described["parameters"] = parameters
    if body := _request_body(operation):
        described["requestBody"] = body
    return described


# -- parameters and bodies ---------------------------------------------------------------------------------------------


def _path_parameters(operation: Operation) -> list[dict[str, Any]]:
    names = [one[1:-1] for one in operation.path.split("/") if one.startswith("{")]
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": PATH_PARAMETERS[name].description,
            "schema": PATH_PARAMETERS[name].schema,
            "example": PATH_PARAMETERS[name].example,
        }
        for name in names
    ]


def _query_parameters(operation: Operation) -> list[dict[str, Any]]:
    if operation.query is NoQuery:
        return []
    schema = _schema_of_object(operation.query)
    required = schema.get("required", ())
    found = []
    for name, one in schema["properties"].items():
        shown = _without_null({key: value for key, value in one.items() if key != "description"})
        parameter = {"name": name, "in": "query", "required": name in required, "schema": shown}
        if "description" in one:
            parameter["description"] = one["description"]
        found.append(parameter)
    return found


def _without_null(schema: Schema) -> Schema:
    """Return the schema of a query parameter that may be absent: there is no null in a query."""
    others = [one for one in schema.get("anyOf", ()) if one != {"type": "null"}]
    if len(others) != 1:
        return schema
    return {**{key: value for key, value in schema.items() if key != "anyOf"}, **others[0]}


def _headers(operation: Operation) -> list[dict[str, Any]]:
    if not operation.takes_if_match:
        return []
    text = "Carry the operation out only if the entity tag is still this one; otherwise it is refused with 412."
    schema = {"type": "string", "maxLength": 200}
    return [{"name": "If-Match", "in": "header", "required": False, "description": text, "schema": schema}]


def _request_body(operation: Operation) -> dict[str, Any] | None:
    if operation.reads_body:
        content: dict[str, dict[str, Any]] = {kind: {"schema": schema} for kind, schema in operation.body_media.items()}
        if operation.body_example is not None:
            content[JSON]["example"] = _example(operation.body_example)
        return {"required": not operation.body_optional, "content": content}
    if operation.body is None:
        return None
    media: dict[str, Any] = {"schema": _reference(operation.body)}
    if operation.body_example is not None:
        media["example"] = _example(operation.body_example)
    return {"required": not operation.body_optional, "content": {JSON: media}}


# -- answers -----------------------------------------------------------------------------------------------------------


def statuses(operation: Operation) -> set[int]:
    """Return every status that the operation may answer."""
    return {operation.success, *operation.other_statuses, *_error_statuses(operation)}


def _error_statuses(operation: Operation) -> set[int]:
    found = {*COMMON_ERRORS, *operation.errors}
    if operation.body is not None or operation.reads_body or operation.method in ("POST", "PUT", "PATCH"):
        found.update(BODY_ERRORS)
    if "{" in operation.path:
        found.add(404)
    if operation.method != "GET":
        found.add(409)
    if operation.takes_if_match:
        found.add(412)
    return found


def _responses(operation: Operation) -> dict[str, Any]:
    success: dict[str, Any] = {"description": "Done." if operation.success == 204 else "The answer."}
    if operation.reply is not None:
        media: dict[str, Any] = {"schema": _reference(operation.reply)}
        if operation.reply_example is not None:
            media["example"] = _example(operation.reply_example)
        success["content"] = {JSON: media}
    elif operation.reply_media:
        success["content"] = {media: {"schema": schema} for media, schema in operation.reply_media.items()}
    if operation.has_etag:
        text = "The entity tag of the state, for If-Match."
        success["headers"] = {"ETag": {"description": text, "schema": {"type": "string"}}}
    found = {str(operation.success): success}
    for status, text in operation.other_statuses.items():
        found[str(status)] = {**success, "description": text}
    for status in sorted(_error_statuses(operation)):
        found[str(status)] = {"$ref": f"#/components/responses/{_response_name(status)}"}
    return found


def _example(value: object) -> Any:
    return as_json(value)


def _response_name(status: int) -> str:
    return f"Problem{status}"


def _error_responses() -> dict[str, Any]:
    found = {}
    for status, text in ERRORS.items():
        title = text.partition("`")[2].partition("`")[0] or "HTTP"
        example = {"title": title, "status": status, "detail": "what is wrong, and what to do about it"}
        content = {PROBLEM: {"schema": {"$ref": _REFERENCE.format(name="Problem")}, "example": example}}
        found[_response_name(status)] = {"description": text, "content": content}
    return found


# -- schemas -----------------------------------------------------------------------------------------------------------


def _reference(kind: Any) -> Schema:
    json_forms.form_of(kind)
    name = json_forms.name_of(kind)
    assert json_forms.components[name] is kind, "bodies and answers are objects"
    return {"$ref": _REFERENCE.format(name=name)}


def _schemas(operations: tuple[Operation, ...]) -> dict[str, Schema]:
    """Return the schemas of all types, with the descriptions and defaults of the model."""
    kinds = [kind for one in operations for kind in (one.body, one.reply) if kind is not None]
    forms = [json_forms.form_of(kind).type for kind in kinds]
    _, found = msgspec.json.schema_components([*forms, Problem], ref_template=_REFERENCE)
    for name, schema in found.items():
        _simplify(schema)
        _complete(schema, json_forms.components.get(name, Problem))
    return dict(sorted(found.items()))


def _schema_of_object(kind: Any) -> Schema:
    form = json_forms.form_of(kind).type
    _, found = msgspec.json.schema_components([form], ref_template=_REFERENCE)
    schema: Schema = found[kind.__name__]
    _simplify(schema)
    _complete(schema, kind)
    return schema


def _complete(schema: Schema, kind: Any) -> None:
    """Add what msgspec does not see in the type: its docstring, those of its fields, and its defaults."""
    whole, by_field = docstrings_of(kind)
    if whole:
        schema["description"] = whole
    attributes = attributes_of(kind)
    for one in fields_of(kind):
        field = schema["properties"][one.name]
        _add_limits(field, limits_of(kind, one.name))
        if attributes[one.name] in by_field:
            field["description"] = by_field[attributes[one.name]]
        if one.default not in (NO_DEFAULT, msgspec.UNSET):
            default = _example(one.default)
            if default is not None:
                field["default"] = default


def _simplify(schema: Any) -> None:
    """Describe tuples as arrays of a length, because many tools do not know `prefixItems`; and leave out limits that
    every number has."""
    if isinstance(schema, list):
        for one in schema:
            _simplify(one)
    elif isinstance(schema, dict):
        if (schema.get("minimum"), schema.get("maximum")) == (-(2**63), 2**63 - 1):
            del schema["minimum"], schema["maximum"]
            schema["format"] = "int64"
        items = schema.get("prefixItems")
        if items is not None:
            del schema["prefixItems"]
            kinds = [one for place, one in enumerate(items) if one not in items[:place]]
            schema["items"] = kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
            schema.update({"minItems": len(items), "maxItems": len(items)})
        for one in schema.values():
            _simplify(one)


def _add_limits(field: Schema, limits: Schema) -> None:
    """Add the limits of the model to the schema of a field, which may be null as well."""
    target = next((one for one in field.get("anyOf", ()) if one != {"type": "null"}), field)
    target.update(limits)


class Docstrings(NamedTuple):
    """The docstring of a class, and those that stand below its fields; empty where there is no source."""

    whole: str
    fields: dict[str, str]


@cache
def docstrings_of(kind: type) -> Docstrings:
    kind = vars(kind).get(json_forms.DECLARED, kind)
    found = _classes(kind.__module__).get(kind.__name__)
    base = kind.__base__
    fields = dict(docstrings_of(base).fields) if base not in (None, object, tuple, msgspec.Struct) else {}
    if found is None:
        return Docstrings("", fields)
    last = ""
    for statement in found.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            last = statement.target.id
            continue
        if last and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            fields[last] = _in_json(str(statement.value.value))
        last = ""
    return Docstrings(_in_json(ast.get_docstring(found) or ""), fields)


@cache
def _classes(module: str) -> dict[str, ast.ClassDef]:
    """Return the classes of a module, by name. A module is parsed once, because that takes milliseconds."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError):
        return {}
    return {one.name: one for one in tree.body if isinstance(one, ast.ClassDef)}


def _in_json(docstring: str) -> str:
    """Return a docstring in the words of JSON."""
    return re.sub(r"\bNone\b", "null", inspect.cleandoc(docstring))


_DELAY: Final = {"minimum": 0, "maximum": DELAY_MS_MAX}
_VERSION: Final = {"minimum": 0, "maximum": 2**31 - 1}
_SUBJECT: Final = {"minLength": 1, "maxLength": NAME_CHARACTERS_MAX, "pattern": "^[A-Za-z0-9_.:/@+-]+$"}


def _policy_limits(name: str) -> dict[str, Any]:
    if name == "backlog_action":
        return {}
    least = -1 if name.startswith("retention_") else 0
    return {"minimum": least, "maximum": SEGMENT_BYTES_MAX if name == "segment_bytes" else 2**53 - 1}


def _orders(*names: str) -> dict[str, Any]:
    return {"enum": [*names, *(f"-{name}" for name in names)]}


def limits_of(kind: type, name: str) -> dict[str, Any]:
    """Return the limits of a field, which a class may have from its base."""
    found = (_LIMITS.get((one, name)) for one in kind.__mro__)
    return next((one for one in found if one is not None), {})


_LIMITS: Final[dict[tuple[type, str], dict[str, Any]]] = {
    (PageQuery, "filter"): {"maxLength": FILTER_CHARACTERS_MAX},
    (PageQuery, "sort"): _orders("name"),
    (PageQuery, "limit"): {
        "minimum": 1,
        "maximum": PAGE_MAX,
        "description": "The most entries of one page.",
    },
    (PageQuery, "after"): {"maxLength": AFTER_CHARACTERS_MAX},
    (TopicConfig, "partitions"): {"minimum": 0, "maximum": PARTITIONS_MAX},
    (FailurePolicy, "redeliveries_max"): {"minimum": 0, "maximum": 2**16 - 1},
    (FailurePolicy, "ack_timeout_ms"): _DELAY,
    (FailurePolicy, "delay_ms"): _DELAY,
    (FailurePolicy, "delay_max_ms"): _DELAY,
    (FailurePolicy, "dead_letter_topic"): {"maxLength": 2 * NAME_CHARACTERS_MAX + 2},
    (SchemaDefinition, "text"): {"maxLength": SCHEMA_BYTES_MAX},
    (SchemaDefinition, "references"): {"maxItems": SCHEMA_REFERENCES_MAX},
    (SchemaReference, "subject"): _SUBJECT,
    (SchemaReference, "version"): _VERSION,
    (Binding, "subject"): _SUBJECT,
    (Binding, "pinned_version"): _VERSION,
    (Binding, "minimum_version"): _VERSION,
    **{(Policies, name): _policy_limits(name) for name in FIELDS},
}
