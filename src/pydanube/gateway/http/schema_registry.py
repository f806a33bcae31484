"""The Confluent Schema Registry API, over the registry of the broker (docs/http.md).

Paths, bodies, parameters and error codes are those of Confluent's Schema Registry, so that its clients and serializers
work unchanged. A subject here is a subject there; `id` here is the global id of a definition.

What it does not have: contexts (there is the default one only), the mode IMPORT, ids chosen by the client, metadata and
rule sets. A request for one of them is refused by name.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from enum import IntEnum
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import unquote

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from pydanube.broker import Broker
from pydanube.broker.handlers import carry_out
from pydanube.model.errors import DanubeError, Invalid, NotFound, Refused
from pydanube.model.schemas import (
    Compatibility,
    RegistryMode,
    SchemaDefinition,
    SchemaFormat,
    SchemaReference,
    SchemaVersion,
    parse_subject,
)
from pydanube.operations import AnswerT, Operation
from pydanube.operations import schemas as ops
from pydanube.version import __version__

from . import errors
from .requests import caller_of, flag, number, read_json

BASE: Final = "/schema-registry"
MEDIA_TYPE: Final = "application/vnd.schemaregistry.v1+json"
TYPES: Final = ["AVRO", "JSON", "PROTOBUF"]
_ALL_CONTEXTS: Final = ":*:"
_DEFAULT_CONTEXT: Final = ":.:"
_CONTEXT: Final = ":."
_VERSION_MAX: Final = 2**31 - 1
_ID_DIGITS_MAX: Final = 20


class Code(IntEnum):
    """Confluent's error codes. The first three digits are the HTTP status."""

    INCOMPATIBLE = 409
    SUBJECT_NOT_FOUND = 40401
    VERSION_NOT_FOUND = 40402
    SCHEMA_NOT_FOUND = 40403
    SUBJECT_SOFT_DELETED = 40404
    SUBJECT_NOT_SOFT_DELETED = 40405
    VERSION_SOFT_DELETED = 40406
    VERSION_NOT_SOFT_DELETED = 40407
    NO_SUBJECT_COMPATIBILITY = 40408
    NO_SUBJECT_MODE = 40409
    INVALID_SCHEMA = 42201
    INVALID_VERSION = 42202
    INVALID_COMPATIBILITY = 42203
    INVALID_MODE = 42204
    NOT_PERMITTED = 42205
    REFERENCE_EXISTS = 42206
    INVALID_SUBJECT = 42208


class RegistryError(Exception):
    """An error with a code of Confluent's API."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


# -- bodies ------------------------------------------------------------------------------------------------------------


class Failure(msgspec.Struct):
    error_code: int
    message: str


class Reference(msgspec.Struct):
    name: str
    subject: str
    version: int


class SchemaRequest(msgspec.Struct, rename="camel"):
    schema: str | None = None
    schema_type: str | None = None
    """Absent: AVRO."""
    references: list[Reference] | None = None
    id: int | None = None
    version: int | None = None
    metadata: Any = None
    rule_set: Any = None


class Schema(msgspec.Struct, rename="camel", omit_defaults=True):
    """A definition, with what is asked for beside it. Of Avro the type is left out."""

    schema: str
    subject: str | msgspec.UnsetType = msgspec.UNSET
    version: int | msgspec.UnsetType = msgspec.UNSET
    id: int | msgspec.UnsetType = msgspec.UNSET
    schema_type: str | msgspec.UnsetType = msgspec.UNSET
    references: list[Reference] = []


class SubjectVersion(msgspec.Struct):
    subject: str
    version: int


class CompatibilityAnswer(msgspec.Struct):
    is_compatible: bool
    messages: list[str] | msgspec.UnsetType = msgspec.UNSET


class ConfigRequest(msgspec.Struct, rename="camel"):
    compatibility: str | None = None
    compatibility_level: str | None = None
    normalize: bool | None = None
    """Ignored: definitions are always compared in their canonical form."""
    compatibility_group: str | None = None
    default_metadata: Any = None
    override_metadata: Any = None
    default_rule_set: Any = None
    override_rule_set: Any = None


class ModeRequest(msgspec.Struct):
    mode: str


# -- a request ---------------------------------------------------------------------------------------------------------


class Call:
    """One request, with what its path and its query name."""

    def __init__(self, broker: Broker, request: Request) -> None:
        self._broker = broker
        self.schemas = broker.schemas
        self.request = request
        self.principal = caller_of(request).principal

    @property
    def subject(self) -> str:
        name = unquote(self.request.path_params["subject"]).removeprefix(_DEFAULT_CONTEXT)
        if name.startswith(_CONTEXT):
            raise RegistryError(Code.NOT_PERMITTED, f"subject '{name}' names a context: there is the default one only")
        try:
            return parse_subject(name)
        except Invalid as error:
            raise RegistryError(Code.INVALID_SUBJECT, error.message) from None

    @property
    def subject_or_all(self) -> str:
        """The subject; empty: all of them."""
        return self.subject if "subject" in self.request.path_params else ""

    @property
    def version(self) -> int:
        """The version; -1: the latest."""
        text = self.request.path_params["version"]
        if text in ("latest", "-1"):
            return -1
        if text.isascii() and text.isdecimal() and len(text) <= 10 and 1 <= int(text) <= _VERSION_MAX:
            return int(text)
        message = (
            f"The specified version '{text}' is not a valid version id: use a number from 1 to {_VERSION_MAX}, "
            f"or latest"
        )
        raise RegistryError(Code.INVALID_VERSION, message)

    @property
    def id(self) -> int:
        text = self.request.path_params["id"]
        if not (text.isascii() and text.isdecimal()):
            raise HTTPException(404)
        if len(text) > _ID_DIGITS_MAX:
            raise RegistryError(Code.SCHEMA_NOT_FOUND, "Schema not found: the id has more than 32 bits")
        return int(text)

    def flag(self, *names: str) -> bool:
        return flag(self.request, *names)

    async def ask(self, operation: Operation[AnswerT]) -> AnswerT:
        """Have the broker carry out an operation."""
        return await carry_out(self._broker, caller_of(self.request).identity, operation)

    async def exists(self, deleted: bool = False) -> bool:
        try:
            await self.ask(ops.ListSchemaVersions(subject=self.subject, deleted=deleted))
        except NotFound:
            return False
        return True

    async def deleted_versions(self) -> tuple[int, ...]:
        """Return the deleted versions of the subject; none if it does not exist."""
        try:
            return (await self.ask(ops.DescribeSubject(subject=self.subject))).subject.deleted_versions
        except NotFound:
            return ()

    async def definition(self) -> tuple[SchemaDefinition, int]:
        """Read the definition in the body, and the version that it should get; 0: the next one."""
        asked = await read_json(self.request, SchemaRequest)
        _refuse_given(metadata=asked.metadata, ruleSet=asked.rule_set)
        if asked.id is not None and asked.id >= 0:
            raise RegistryError(
                Code.NOT_PERMITTED, "ids are given out here: leave id away (the mode IMPORT is missing)"
            )
        if not asked.schema:
            raise RegistryError(Code.INVALID_SCHEMA, "Empty schema")
        kind = asked.schema_type or "AVRO"
        try:
            chosen = SchemaFormat.parse(kind)
        except Invalid:
            message = f"Invalid schema type {kind}: use one of {', '.join(TYPES)}"
            raise RegistryError(Code.INVALID_SCHEMA, message) from None
        references = [
            SchemaReference(one.name, one.subject, await self._reference_version(one)) for one in asked.references or ()
        ]
        return SchemaDefinition(chosen, asked.schema, tuple(references)), max(0, asked.version or 0)

    async def _reference_version(self, reference: Reference) -> int:
        """Return the version that a reference means; -1 is the latest."""
        if reference.version != -1:
            return reference.version
        try:
            return (await self.ask(ops.GetSchema(subject=reference.subject))).schema.version
        except (NotFound, Invalid) as error:
            message = f"Invalid schema: reference '{reference.name}' cannot be resolved: {error.message}"
            raise RegistryError(Code.INVALID_SCHEMA, message) from None

    async def text(self, found: SchemaVersion) -> str:
        """Return the text of a definition: as it was registered, or a protobuf descriptor with `format=serialized`."""
        is_protobuf = found.definition.format is SchemaFormat.PROTOBUF
        if self.request.query_params.get("format") != "serialized" or not is_protobuf:
            return found.definition.text
        from pydanube.formats.protobuf.schema import ParsedProtobuf  # its library is an extra

        parsed = await self.schemas.parsed(self.principal, found.subject, found.version)
        assert isinstance(parsed, ParsedProtobuf)
        return parsed.serialized

    def page(self, found: Sequence[Any]) -> Sequence[Any]:
        """Return a list, or the part of it that is asked for."""
        offset, limit = max(0, number(self.request, "offset", 0)), number(self.request, "limit", -1)
        return found[offset:] if limit < 0 else found[offset : offset + limit]


# -- schemas by id -----------------------------------------------------------------------------------------------------


async def _by_id(call: Call) -> SchemaVersion:
    try:
        return await call.schemas.by_global_id(call.principal, call.id)
    except NotFound as error:
        raise _no_schema(error) from None


async def _get_by_id(call: Call) -> Schema:
    found = await _by_id(call)
    return _schema(found, await call.text(found))


async def _get_text_by_id(call: Call) -> Response:
    return _text(await call.text(await _by_id(call)))


async def _places_of_id(call: Call) -> list[tuple[str, int]]:
    only = call.request.query_params.get("subject", "")
    try:
        places = await call.schemas.versions_of_global_id(call.principal, call.id, call.flag("deleted"))
    except NotFound as error:
        raise _no_schema(error) from None
    return [place for place in places if only in ("", place[0])]


async def _subjects_of_id(call: Call) -> Sequence[str]:
    return call.page(list(dict.fromkeys(name for name, _ in await _places_of_id(call))))


async def _versions_of_id(call: Call) -> Sequence[SubjectVersion]:
    return call.page([SubjectVersion(*place) for place in await _places_of_id(call)])


# -- subjects and versions ---------------------------------------------------------------------------------------------


async def _list_subjects(call: Call) -> Sequence[str]:
    given = call.request.query_params
    prefix = given.get("subjectPrefix", given.get("subject_prefix", "")).removeprefix(_ALL_CONTEXTS)
    only_deleted = call.flag("deletedOnly", "deleted_only")
    found = await call.schemas.subjects(call.principal, prefix, only_deleted or call.flag("deleted"))
    if only_deleted:
        live = set(await call.schemas.subjects(call.principal, prefix))
        found = [name for name in found if name not in live]
    return call.page(found)


async def _list_versions(call: Call) -> Sequence[int]:
    subject, only_deleted = call.subject, call.flag("deletedOnly", "deleted_only")
    deleted = only_deleted or call.flag("deleted")
    try:
        found = (await call.ask(ops.ListSchemaVersions(subject=subject, deleted=deleted))).versions
    except NotFound:
        raise _no_subject(subject) from None
    return call.page(await call.deleted_versions() if only_deleted else found)


async def _version(call: Call) -> SchemaVersion:
    subject, version, deleted = call.subject, call.version, call.flag("deleted")
    try:
        return (await call.ask(ops.GetSchema(subject=subject, version=version, deleted=deleted))).schema
    except NotFound as error:
        raise await _missing(call, error, deleted) from None


async def _get_version(call: Call) -> Schema:
    found = await _version(call)
    return _placed(found, await call.text(found))


async def _get_text(call: Call) -> Response:
    return _text(await call.text(await _version(call)))


async def _referenced_by(call: Call) -> Sequence[int]:
    asked = ops.ListReferrers(subject=call.subject, version=call.version)
    try:
        return call.page((await call.ask(asked)).global_ids)
    except NotFound as error:
        raise await _missing(call, error, deleted=True) from None


async def _register(call: Call) -> dict[str, int]:
    subject = call.subject
    definition, version = await call.definition()
    try:
        registered = await call.schemas.register(call.principal, subject, definition, version=version or None)
    except Invalid as error:
        raise _invalid_schema(error) from None
    except Refused as error:
        raise await _why_not_registered(call, definition, error) from None
    return {"id": registered.global_id, "version": registered.version}


async def _lookup(call: Call) -> Schema:
    subject, deleted = call.subject, call.flag("deleted", "lookupDeletedSubject")
    definition, _ = await call.definition()
    try:
        found = (await call.ask(ops.LookUpSchema(subject=subject, definition=definition, deleted=deleted))).schema
    except Invalid as error:
        raise _invalid_schema(error) from None
    except NotFound as error:
        missing = await _missing(call, error, deleted)
        if missing.code is Code.VERSION_NOT_FOUND:
            missing = RegistryError(Code.SCHEMA_NOT_FOUND, "Schema not found")
        raise missing from None
    return _placed(found, await call.text(found))


async def _delete_subject(call: Call) -> list[int]:
    subject, permanent = call.subject, call.flag("permanent")
    try:
        return (await call.ask(ops.DeleteSchema(subject=subject, permanent=permanent))).versions
    except NotFound:
        if not permanent and await call.exists(deleted=True):
            message = f"Subject '{subject}' was soft deleted. Set permanent=true to delete permanently"
            raise RegistryError(Code.SUBJECT_SOFT_DELETED, message) from None
        raise _no_subject(subject) from None
    except Refused as error:
        if permanent and await call.exists():
            message = f"Subject '{subject}' was not deleted first before being permanently deleted"
            raise RegistryError(Code.SUBJECT_NOT_SOFT_DELETED, message) from None
        found = await call.ask(ops.ListSchemaVersions(subject=subject, deleted=permanent))
        raise await _why_kept(call, found.versions, error) from None


async def _delete_version(call: Call) -> int:
    subject, version, permanent = call.subject, call.version, call.flag("permanent")
    about = f"Subject '{subject}' Version {'latest' if version == -1 else version}"
    try:
        asked = ops.DeleteSchema(subject=subject, version=version, permanent=permanent)
        return (await call.ask(asked)).versions[0]
    except NotFound as error:
        if not permanent and version in await call.deleted_versions():
            message = f"{about} was soft deleted. Set permanent=true to delete permanently"
            raise RegistryError(Code.VERSION_SOFT_DELETED, message) from None
        raise await _missing(call, error, deleted=True) from None
    except Refused as error:
        if permanent and version not in await call.deleted_versions():
            message = f"{about} was not deleted first before being permanently deleted"
            raise RegistryError(Code.VERSION_NOT_SOFT_DELETED, message) from None
        raise await _why_kept(call, [version], error) from None


# -- compatibility and modes -------------------------------------------------------------------------------------------


async def _check(call: Call) -> CompatibilityAnswer:
    subject, version = call.subject, call.version if "version" in call.request.path_params else 0
    definition, _ = await call.definition()
    try:
        reasons = (await call.ask(ops.CheckSchema(subject=subject, definition=definition, version=version))).reasons
    except Invalid as error:
        raise _invalid_schema(error) from None
    except NotFound as error:
        if version != -1:
            raise await _missing(call, error, deleted=False) from None
        reasons = []  # nothing to be incompatible with
    messages = [str(one) for one in reasons] if call.flag("verbose") else msgspec.UNSET
    return CompatibilityAnswer(not reasons, messages)


async def _get_config(call: Call) -> dict[str, str]:
    subject = call.subject_or_all
    level = await call.ask(ops.GetCompatibility(subject=subject))
    if subject and level.own is None and not call.flag("defaultToGlobal"):
        message = f"Subject '{subject}' does not have subject-level compatibility configured"
        raise RegistryError(Code.NO_SUBJECT_COMPATIBILITY, message)
    return {"compatibilityLevel": _word(level.effective)}


async def _set_config(call: Call) -> dict[str, str]:
    subject = call.subject_or_all
    asked = await read_json(call.request, ConfigRequest)
    _refuse_given(
        compatibilityGroup=asked.compatibility_group,
        defaultMetadata=asked.default_metadata,
        overrideMetadata=asked.override_metadata,
        defaultRuleSet=asked.default_rule_set,
        overrideRuleSet=asked.override_rule_set,
    )
    try:
        level = Compatibility.parse(asked.compatibility or asked.compatibility_level or "")
    except Invalid as error:
        raise RegistryError(Code.INVALID_COMPATIBILITY, f"Invalid compatibility level: {error.message}") from None
    await call.ask(ops.SetCompatibility(subject=subject, level=level))
    return {"compatibility": _word(level)}


async def _delete_config(call: Call) -> dict[str, str]:
    subject = call.subject_or_all
    former = await call.ask(ops.GetCompatibility(subject=subject))
    if subject and former.own is None:
        raise _no_subject(subject)
    await call.ask(ops.SetCompatibility(subject=subject))
    return {"compatibilityLevel": _word(former.effective)}


async def _get_mode(call: Call) -> dict[str, str]:
    subject = call.subject_or_all
    report = await call.schemas.mode(call.principal, subject or None)
    if subject and report.own is None and not call.flag("defaultToGlobal"):
        message = f"Subject '{subject}' does not have subject-level mode configured"
        raise RegistryError(Code.NO_SUBJECT_MODE, message)
    return {"mode": _word(report.effective)}


async def _set_mode(call: Call) -> dict[str, str]:
    subject = call.subject_or_all
    try:
        mode = RegistryMode.parse((await read_json(call.request, ModeRequest)).mode)
    except Invalid as error:
        raise RegistryError(Code.INVALID_MODE, f"Invalid mode: {error.message}") from None
    await call.schemas.set_mode(call.principal, subject or None, mode)
    return {"mode": _word(mode)}


async def _delete_mode(call: Call) -> dict[str, str]:
    subject = call.subject_or_all
    former = await call.schemas.mode(call.principal, subject or None)
    if subject and former.own is None:
        raise _no_subject(subject)
    await call.schemas.set_mode(call.principal, subject or None, None)
    return {"mode": _word(former.effective)}


async def _nothing(_call: Call) -> dict[str, str]:
    """Answer clients that ask whether there is a registry."""
    return {}


async def _contexts(call: Call) -> Sequence[str]:
    return call.page(["."])


async def _server_version(_call: Call) -> dict[str, str]:
    return {"version": f"pydanube {__version__}"}


async def _types(_call: Call) -> list[str]:
    return TYPES


# -- which error it is -------------------------------------------------------------------------------------------------


async def _missing(call: Call, error: NotFound, deleted: bool) -> RegistryError:
    """Return which of the two is missing: the subject, or a version of it."""
    if await call.exists(deleted):
        return RegistryError(Code.VERSION_NOT_FOUND, f"Version not found: {error.message}")
    return _no_subject(call.subject)


async def _why_not_registered(call: Call, definition: SchemaDefinition, error: Refused) -> Exception:
    """Return the code for a registration that was refused."""
    if type(error) is not Refused:  # Denied, Full and others have a status of their own
        return error
    subject = call.subject
    if (await call.schemas.mode(call.principal, subject)).effective is RegistryMode.READONLY:
        return RegistryError(Code.NOT_PERMITTED, error.message)
    try:
        reasons = await call.schemas.check(call.principal, subject, definition)
    except Refused:  # its library is not installed
        reasons = []
    if not reasons:
        return RegistryError(Code.INVALID_SCHEMA, error.message)
    listed = "; ".join(map(str, reasons))
    message = (
        f"Schema being registered is incompatible with an earlier schema for subject '{subject}', details: [{listed}]"
    )
    return RegistryError(Code.INCOMPATIBLE, message)


async def _why_kept(call: Call, versions: Sequence[int], error: Refused) -> Exception:
    """Return the code for a deletion that was refused."""
    if type(error) is not Refused:
        return error
    for version in versions:
        if (await call.ask(ops.ListReferrers(subject=call.subject, version=version))).global_ids:
            return RegistryError(Code.REFERENCE_EXISTS, f"One or more references exist: {error.message}")
    return RegistryError(Code.NOT_PERMITTED, error.message)


def _no_subject(subject: str) -> RegistryError:
    return RegistryError(Code.SUBJECT_NOT_FOUND, f"Subject '{subject}' not found.")


def _no_schema(error: NotFound) -> RegistryError:
    return RegistryError(Code.SCHEMA_NOT_FOUND, f"Schema not found: {error.message}")


def _invalid_schema(error: Invalid) -> RegistryError:
    return RegistryError(Code.INVALID_SCHEMA, f"Invalid schema: {error.message}")


def _refuse_given(**given: object) -> None:
    """Refuse what this registry does not have."""
    for name, value in given.items():
        if value is not None:
            raise RegistryError(Code.NOT_PERMITTED, f"{name} is not supported by this registry: leave it away")


def _schema(found: SchemaVersion, text: str) -> Schema:
    definition = found.definition
    references = [Reference(one.name, one.subject, one.version) for one in definition.references]
    kind = msgspec.UNSET if definition.format is SchemaFormat.AVRO else _word(definition.format)
    return Schema(text, schema_type=kind, references=references)


def _placed(found: SchemaVersion, text: str) -> Schema:
    answer = _schema(found, text)
    answer.subject, answer.version, answer.id = found.subject, found.version, found.global_id
    return answer


def _word(word: SchemaFormat | Compatibility | RegistryMode) -> str:
    """Return a word as the API writes it: BACKWARD_TRANSITIVE."""
    return str(word).upper().replace("-", "_")


def _text(text: str) -> Response:
    return Response(text, media_type=MEDIA_TYPE)


def _answer(body: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(body), status, headers, MEDIA_TYPE)


# -- the table ---------------------------------------------------------------------------------------------------------

_SUBJECT: Final = "/subjects/{subject}"
_OF_VERSION: Final = f"{_SUBJECT}/versions/{{version}}"

ROUTES: Final[tuple[tuple[str, str, Callable[[Call], Awaitable[object]]], ...]] = (
    ("GET", "/", _nothing),
    ("GET", "/contexts", _contexts),
    ("GET", "/v1/metadata/version", _server_version),
    ("GET", "/schemas/types", _types),
    ("GET", "/schemas/ids/{id}", _get_by_id),
    ("GET", "/schemas/ids/{id}/schema", _get_text_by_id),
    ("GET", "/schemas/ids/{id}/subjects", _subjects_of_id),
    ("GET", "/schemas/ids/{id}/versions", _versions_of_id),
    ("GET", "/subjects", _list_subjects),
    ("POST", _SUBJECT, _lookup),
    ("DELETE", _SUBJECT, _delete_subject),
    ("GET", f"{_SUBJECT}/versions", _list_versions),
    ("POST", f"{_SUBJECT}/versions", _register),
    ("GET", _OF_VERSION, _get_version),
    ("DELETE", _OF_VERSION, _delete_version),
    ("GET", f"{_OF_VERSION}/schema", _get_text),
    ("GET", f"{_OF_VERSION}/referencedby", _referenced_by),
    ("POST", f"/compatibility{_SUBJECT}/versions", _check),
    ("POST", f"/compatibility{_OF_VERSION}", _check),
    *(
        (method, path, handler)
        for name, handlers in (
            ("config", (_get_config, _set_config, _delete_config)),
            ("mode", (_get_mode, _set_mode, _delete_mode)),
        )
        for path in (f"/{name}", f"/{name}/{{subject}}")
        for method, handler in zip(("GET", "PUT", "DELETE"), handlers, strict=True)
    ),
)
"""What answers a method and a path. What it returns is the body, unless it is a response; its name is in the audit."""


class SchemaRegistry:
    """The ASGI application under BASE."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        handlers = {
            RegistryError: _registry_error,
            DanubeError: _danube_error,
            HTTPException: _http_error,
            ClientDisconnect: _client_gone,
            Exception: _unexpected_error,
        }
        self._routes = Starlette(routes=[self._route(*one) for one in ROUTES], exception_handlers=handlers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Route by the path as it was sent: a subject may have a slash, which is `%2F` there."""
        await self._routes({**scope, "path": scope["raw_path"].decode("ascii")}, receive, send)

    def _route(self, method: str, path: str, handler: Callable[[Call], Awaitable[object]]) -> Route:
        name = f"schemaRegistry.{handler.__name__.lstrip('_')}"

        async def answer(request: Request) -> Response:
            freshness = self._broker.freshness
            with caller_of(request).operation(name):
                try:
                    body = await handler(Call(self._broker, request))
                except RegistryError as error:
                    is_missing = error.code // 100 == HTTPStatus.NOT_FOUND
                    if is_missing and (doubt := freshness.doubt(error.message)) is not None:
                        raise doubt from error
                    raise
                return body if isinstance(body, Response) else _answer(body)

        return Route(path, answer, methods=[method])


# -- errors ------------------------------------------------------------------------------------------------------------


async def _registry_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RegistryError)
    status = error.code if error.code < 1000 else error.code // 100
    return _answer(Failure(error.code, error.message), status)


async def _danube_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, DanubeError)
    return respond(error)


def respond(error: DanubeError) -> Response:
    """Answer an error that has no code of its own in this API: its status, and behind it 01, as there."""
    status = errors.status_of(error)
    headers = errors.headers_of(error)
    if status == HTTPStatus.UNAUTHORIZED:
        headers["www-authenticate"] = 'Basic realm="danube", Bearer'
    return _answer(Failure(status * 100 + 1, error.message), status, headers)


async def _http_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _answer(Failure(error.status_code, error.detail), error.status_code, errors.headers_of(error))


async def _client_gone(_request: Request, _error: Exception) -> Response:
    """Return an answer that is not sent: the client left before its body was complete."""
    return Response(status_code=400)


async def _unexpected_error(_request: Request, _error: Exception) -> Response:
    return _answer(Failure(50001, errors.MISTAKE), 500)
