"""The Confluent Schema Registry API, over the registry of the broker (docs/http.md).

Paths, bodies, parameters and error codes are those of Confluent's Schema Registry, so that its clients and serializers
work unchanged. A subject here is a subject there; `id` here is the global id of a definition.

What it does not have: contexts (there is the default one only), the mode IMPORT, ids chosen by the client, metadata and
rule sets. A request for one of them is refused by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from http import HTTPStatus
from typing import Any, Final, Literal, TypeVar
from urllib.parse import unquote

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from pydanube.broker import Broker
from pydanube.core.access import Principal
from pydanube.model.errors import DanubeError, Invalid, NotFound, Refused
from pydanube.model.schemas import (
    Compatibility,
    Incompatibility,
    RegistryMode,
    SchemaDefinition,
    SchemaFormat,
    SchemaReference,
    SchemaVersion,
    parse_subject,
)
from pydanube.version import __version__

from . import errors
from .requests import flag, number, origin_of, principal_of, read_json

BASE: Final = "/schema-registry"
MEDIA_TYPE: Final = "application/vnd.schemaregistry.v1+json"
TYPES: Final = ["AVRO", "JSON", "PROTOBUF"]
_ALL_CONTEXTS: Final = ":*:"
_DEFAULT_CONTEXT: Final = ":.:"
_CONTEXT: Final = ":."
_VERSION_MAX: Final = 2**31 - 1
_ID_DIGITS_MAX: Final = 20

T = TypeVar("T")


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


# -- the application ---------------------------------------------------------------------------------------------------


class SchemaRegistry:
    """The ASGI application under BASE."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._schemas = broker.schemas
        handlers = {
            RegistryError: _registry_error,
            DanubeError: _danube_error,
            HTTPException: _http_error,
            ClientDisconnect: _client_gone,
            Exception: _unexpected_error,
        }
        routes = [self._audited(one) for one in self._make_routes()]
        self._routes = Starlette(routes=routes, exception_handlers=handlers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Route by the path as it was sent: a subject may have a slash, which is `%2F` there."""
        await self._routes({**scope, "path": scope["raw_path"].decode("ascii")}, receive, send)

    def _audited(self, route: Route) -> Route:
        """Return a route whose endpoint runs as an operation that the audit names."""
        endpoint, name = route.endpoint, f"schemaRegistry.{route.endpoint.__name__.lstrip('_')}"

        async def answer(request: Request) -> Response:
            with self._broker.audit.operation(origin_of(request), name), self._broker.freshness.checked():
                try:
                    response: Response = await endpoint(request)
                except RegistryError as error:
                    is_missing = error.code // 100 == HTTPStatus.NOT_FOUND
                    if is_missing and (doubt := self._broker.freshness.doubt(error.message)) is not None:
                        raise doubt from error
                    raise
                return response

        return Route(route.path, answer, methods=sorted(route.methods or ()))

    def _make_routes(self) -> list[Route]:
        subject, version = "/subjects/{subject}", "/subjects/{subject}/versions/{version}"
        return [
            Route("/", _nothing),
            Route("/contexts", _contexts),
            Route("/v1/metadata/version", _server_version),
            Route("/schemas/types", _types),
            Route("/schemas/ids/{id}", self._get_by_id),
            Route("/schemas/ids/{id}/schema", self._get_text_by_id),
            Route("/schemas/ids/{id}/subjects", self._subjects_of_id),
            Route("/schemas/ids/{id}/versions", self._versions_of_id),
            Route("/subjects", self._list_subjects),
            Route(subject, self._lookup, methods=["POST"]),
            Route(subject, self._delete_subject, methods=["DELETE"]),
            Route(f"{subject}/versions", self._list_versions),
            Route(f"{subject}/versions", self._register, methods=["POST"]),
            Route(version, self._get_version),
            Route(version, self._delete_version, methods=["DELETE"]),
            Route(f"{version}/schema", self._get_text),
            Route(f"{version}/referencedby", self._referenced_by),
            Route(f"/compatibility{subject}/versions", self._check, methods=["POST"]),
            Route(f"/compatibility{version}", self._check, methods=["POST"]),
            *_setting_routes("/config", self._get_config, self._set_config, self._delete_config),
            *_setting_routes("/mode", self._get_mode, self._set_mode, self._delete_mode),
        ]

    # -- schemas by id -------------------------------------------------------------------------------------------------

    async def _get_by_id(self, request: Request) -> Response:
        found = await self._by_id(request)
        return _answer(_schema(found, await self._text(request, found)))

    async def _get_text_by_id(self, request: Request) -> Response:
        found = await self._by_id(request)
        return Response(await self._text(request, found), media_type=MEDIA_TYPE)

    async def _subjects_of_id(self, request: Request) -> Response:
        places = await self._places_of_id(request)
        return _page(request, list(dict.fromkeys(name for name, _ in places)))

    async def _versions_of_id(self, request: Request) -> Response:
        places = await self._places_of_id(request)
        return _page(request, [SubjectVersion(*place) for place in places])

    async def _by_id(self, request: Request) -> SchemaVersion:
        try:
            return await self._schemas.by_global_id(principal_of(request), _id(request))
        except NotFound as error:
            raise RegistryError(Code.SCHEMA_NOT_FOUND, f"Schema not found: {error.message}") from None

    async def _places_of_id(self, request: Request) -> list[tuple[str, int]]:
        only = request.query_params.get("subject", "")
        try:
            places = await self._schemas.versions_of_global_id(
                principal_of(request), _id(request), flag(request, "deleted")
            )
        except NotFound as error:
            raise RegistryError(Code.SCHEMA_NOT_FOUND, f"Schema not found: {error.message}") from None
        return [place for place in places if only in ("", place[0])]

    # -- subjects and versions -----------------------------------------------------------------------------------------

    async def _list_subjects(self, request: Request) -> Response:
        principal, given = principal_of(request), request.query_params
        prefix = given.get("subjectPrefix", given.get("subject_prefix", "")).removeprefix(_ALL_CONTEXTS)
        only_deleted = flag(request, "deletedOnly", "deleted_only")
        found = await self._schemas.subjects(principal, prefix, only_deleted or flag(request, "deleted"))
        if only_deleted:
            live = set(await self._schemas.subjects(principal, prefix))
            found = [name for name in found if name not in live]
        return _page(request, found)

    async def _list_versions(self, request: Request) -> Response:
        principal, subject = principal_of(request), _subject(request)
        only_deleted = flag(request, "deletedOnly", "deleted_only")
        deleted = only_deleted or flag(request, "deleted")
        try:
            found = await self._schemas.versions(principal, subject, deleted)
        except NotFound:
            raise _no_subject(subject) from None
        if only_deleted:
            found = list((await self._schemas.describe(principal, subject)).deleted_versions)
        return _page(request, found)

    async def _get_version(self, request: Request) -> Response:
        found = await self._version(request)
        answer = _schema(found, await self._text(request, found))
        answer.subject, answer.version, answer.id = found.subject, found.version, found.global_id
        return _answer(answer)

    async def _get_text(self, request: Request) -> Response:
        found = await self._version(request)
        return Response(await self._text(request, found), media_type=MEDIA_TYPE)

    async def _referenced_by(self, request: Request) -> Response:
        principal, subject, version = principal_of(request), _subject(request), _version(request)
        try:
            found = await self._schemas.referenced_by(principal, subject, version)
        except NotFound as error:
            raise await self._missing(principal, subject, error, deleted=True) from None
        return _page(request, found)

    async def _register(self, request: Request) -> Response:
        principal, subject = principal_of(request), _subject(request)
        asked = await read_json(request, SchemaRequest)
        definition = await self._definition(asked, principal)
        version = asked.version if asked.version is not None and asked.version > 0 else None
        try:
            registered = await self._schemas.register(principal, subject, definition, version=version)
        except Invalid as error:
            raise _invalid_schema(error) from None
        except Refused as error:
            raise await self._why_not_registered(principal, subject, definition, error) from None
        return _answer({"id": registered.global_id, "version": registered.version})

    async def _lookup(self, request: Request) -> Response:
        principal, subject = principal_of(request), _subject(request)
        deleted = flag(request, "deleted", "lookupDeletedSubject")
        definition = await self._definition(await read_json(request, SchemaRequest), principal)
        try:
            found = await self._schemas.lookup(principal, subject, definition, deleted)
        except Invalid as error:
            raise _invalid_schema(error) from None
        except NotFound as error:
            missing = await self._missing(principal, subject, error, deleted)
            if missing.code is Code.VERSION_NOT_FOUND:
                missing = RegistryError(Code.SCHEMA_NOT_FOUND, "Schema not found")
            raise missing from None
        answer = _schema(found, await self._text(request, found))
        answer.subject, answer.version, answer.id = found.subject, found.version, found.global_id
        return _answer(answer)

    async def _delete_subject(self, request: Request) -> Response:
        principal, subject, permanent = principal_of(request), _subject(request), flag(request, "permanent")
        try:
            return _answer(await self._schemas.delete_subject(principal, subject, permanent))
        except NotFound:
            if not permanent and await self._exists(principal, subject, deleted=True):
                message = f"Subject '{subject}' was soft deleted. Set permanent=true to delete permanently"
                raise RegistryError(Code.SUBJECT_SOFT_DELETED, message) from None
            raise _no_subject(subject) from None
        except Refused as error:
            if permanent and await self._exists(principal, subject):
                message = f"Subject '{subject}' was not deleted first before being permanently deleted"
                raise RegistryError(Code.SUBJECT_NOT_SOFT_DELETED, message) from None
            versions = await self._schemas.versions(principal, subject, permanent)
            raise await self._why_kept(principal, subject, versions, error) from None

    async def _delete_version(self, request: Request) -> Response:
        principal, subject, version = principal_of(request), _subject(request), _version(request)
        permanent = flag(request, "permanent")
        try:
            return _answer(await self._schemas.delete_version(principal, subject, version, permanent))
        except NotFound as error:
            if not permanent and version in await self._deleted_versions(principal, subject):
                message = (
                    f"Subject '{subject}' Version {version} was soft deleted. Set permanent=true to delete permanently"
                )
                raise RegistryError(Code.VERSION_SOFT_DELETED, message) from None
            raise await self._missing(principal, subject, error, deleted=True) from None
        except Refused as error:
            if permanent and version not in await self._deleted_versions(principal, subject):
                message = (
                    f"Subject '{subject}' Version {version} was not deleted first before being permanently deleted"
                )
                raise RegistryError(Code.VERSION_NOT_SOFT_DELETED, message) from None
            raise await self._why_kept(principal, subject, [version], error) from None

    # -- compatibility -------------------------------------------------------------------------------------------------

    async def _check(self, request: Request) -> Response:
        principal, subject = principal_of(request), _subject(request)
        version = _version(request) if "version" in request.path_params else None
        definition = await self._definition(await read_json(request, SchemaRequest), principal)
        try:
            reasons = await self._schemas.check(principal, subject, definition, version)
        except Invalid as error:
            raise _invalid_schema(error) from None
        except NotFound as error:
            if version != "latest":
                raise await self._missing(principal, subject, error, deleted=False) from None
            reasons = []  # nothing to be incompatible with
        messages = [str(one) for one in reasons] if flag(request, "verbose") else msgspec.UNSET
        return _answer(CompatibilityAnswer(not reasons, messages))

    async def _get_config(self, request: Request) -> Response:
        subject = _subject_or_all(request)
        report = await self._schemas.compatibility(principal_of(request), subject)
        if subject is not None and report.own is None and not flag(request, "defaultToGlobal"):
            message = f"Subject '{subject}' does not have subject-level compatibility configured"
            raise RegistryError(Code.NO_SUBJECT_COMPATIBILITY, message)
        return _answer({"compatibilityLevel": _word(report.effective)})

    async def _set_config(self, request: Request) -> Response:
        subject = _subject_or_all(request)
        asked = await read_json(request, ConfigRequest)
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
        await self._schemas.set_compatibility(principal_of(request), subject, level)
        return _answer({"compatibility": _word(level)})

    async def _delete_config(self, request: Request) -> Response:
        principal, subject = principal_of(request), _subject_or_all(request)
        former = await self._schemas.compatibility(principal, subject)
        if subject is not None and former.own is None:
            raise _no_subject(subject)
        await self._schemas.set_compatibility(principal, subject, None)
        return _answer({"compatibilityLevel": _word(former.effective)})

    # -- modes ---------------------------------------------------------------------------------------------------------

    async def _get_mode(self, request: Request) -> Response:
        subject = _subject_or_all(request)
        report = await self._schemas.mode(principal_of(request), subject)
        if subject is not None and report.own is None and not flag(request, "defaultToGlobal"):
            message = f"Subject '{subject}' does not have subject-level mode configured"
            raise RegistryError(Code.NO_SUBJECT_MODE, message)
        return _answer({"mode": _word(report.effective)})

    async def _set_mode(self, request: Request) -> Response:
        subject = _subject_or_all(request)
        try:
            mode = RegistryMode.parse((await read_json(request, ModeRequest)).mode)
        except Invalid as error:
            raise RegistryError(Code.INVALID_MODE, f"Invalid mode: {error.message}") from None
        await self._schemas.set_mode(principal_of(request), subject, mode)
        return _answer({"mode": _word(mode)})

    async def _delete_mode(self, request: Request) -> Response:
        principal, subject = principal_of(request), _subject_or_all(request)
        former = await self._schemas.mode(principal, subject)
        if subject is not None and former.own is None:
            raise _no_subject(subject)
        await self._schemas.set_mode(principal, subject, None)
        return _answer({"mode": _word(former.effective)})

    # -- helpers -------------------------------------------------------------------------------------------------------

    async def _version(self, request: Request) -> SchemaVersion:
        principal, subject, version = principal_of(request), _subject(request), _version(request)
        deleted = flag(request, "deleted")
        try:
            return await self._schemas.get(principal, subject, version, deleted)
        except NotFound as error:
            raise await self._missing(principal, subject, error, deleted) from None

    async def _definition(self, asked: SchemaRequest, principal: Principal) -> SchemaDefinition:
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
            SchemaReference(one.name, one.subject, await self._reference_version(principal, one))
            for one in asked.references or ()
        ]
        return SchemaDefinition(chosen, asked.schema, tuple(references))

    async def _reference_version(self, principal: Principal, reference: Reference) -> int:
        """Return the version that a reference means; -1 is the latest."""
        if reference.version != -1:
            return reference.version
        try:
            return (await self._schemas.get(principal, reference.subject, "latest")).version
        except (NotFound, Invalid) as error:
            message = f"Invalid schema: reference '{reference.name}' cannot be resolved: {error.message}"
            raise RegistryError(Code.INVALID_SCHEMA, message) from None

    async def _text(self, request: Request, found: SchemaVersion) -> str:
        """Return the text of a definition: as it was registered, or a protobuf descriptor with `format=serialized`."""
        if request.query_params.get("format") != "serialized" or found.definition.format is not SchemaFormat.PROTOBUF:
            return found.definition.text
        from pydanube.formats.protobuf.schema import ParsedProtobuf  # its library is an extra

        parsed = await self._schemas.parsed(principal_of(request), found.subject, found.version)
        assert isinstance(parsed, ParsedProtobuf)
        return parsed.serialized

    async def _exists(self, principal: Principal, subject: str, deleted: bool = False) -> bool:
        try:
            await self._schemas.versions(principal, subject, deleted)
        except NotFound:
            return False
        return True

    async def _deleted_versions(self, principal: Principal, subject: str) -> tuple[int, ...]:
        """Return the deleted versions of a subject; none if it does not exist."""
        try:
            return (await self._schemas.describe(principal, subject)).deleted_versions
        except NotFound:
            return ()

    async def _missing(self, principal: Principal, subject: str, error: NotFound, deleted: bool) -> RegistryError:
        """Return which of the two is missing: the subject, or a version of it."""
        if await self._exists(principal, subject, deleted):
            return RegistryError(Code.VERSION_NOT_FOUND, f"Version not found: {error.message}")
        return _no_subject(subject)

    async def _why_not_registered(
        self, principal: Principal, subject: str, definition: SchemaDefinition, error: Refused
    ) -> Exception:
        """Return the code for a registration that was refused."""
        if type(error) is not Refused:  # Denied, Full and others have a status of their own
            return error
        if (await self._schemas.mode(principal, subject)).effective is RegistryMode.READONLY:
            return RegistryError(Code.NOT_PERMITTED, error.message)
        reasons = await self._reasons(principal, subject, definition)
        if not reasons:
            return RegistryError(Code.INVALID_SCHEMA, error.message)
        listed = "; ".join(map(str, reasons))
        message = (
            f"Schema being registered is incompatible with an earlier schema for subject '{subject}', "
            f"details: [{listed}]"
        )
        return RegistryError(Code.INCOMPATIBLE, message)

    async def _reasons(self, principal: Principal, subject: str, definition: SchemaDefinition) -> list[Incompatibility]:
        try:
            return await self._schemas.check(principal, subject, definition)
        except Refused:  # its library is not installed
            return []

    async def _why_kept(
        self, principal: Principal, subject: str, versions: Sequence[int | Literal["latest"]], error: Refused
    ) -> Exception:
        """Return the code for a deletion that was refused."""
        if type(error) is not Refused:
            return error
        for version in versions:
            if await self._schemas.referenced_by(principal, subject, version):
                return RegistryError(Code.REFERENCE_EXISTS, f"One or more references exist: {error.message}")
        return RegistryError(Code.NOT_PERMITTED, error.message)


def _setting_routes(path: str, get: Any, put: Any, delete: Any) -> list[Route]:
    """Return the routes of a setting, for all subjects and for one."""
    return [
        Route(one, handler, methods=[method])
        for one in (path, f"{path}/{{subject}}")
        for handler, method in ((get, "GET"), (put, "PUT"), (delete, "DELETE"))
    ]


async def _nothing(_request: Request) -> Response:
    """Answer clients that ask whether there is a registry."""
    return _answer({})


async def _contexts(request: Request) -> Response:
    return _page(request, ["."])


async def _server_version(_request: Request) -> Response:
    return _answer({"version": f"pydanube {__version__}"})


async def _types(_request: Request) -> Response:
    return _answer(TYPES)


def _id(request: Request) -> int:
    text = request.path_params["id"]
    if not (text.isascii() and text.isdecimal()):
        raise HTTPException(404)
    if len(text) > _ID_DIGITS_MAX:
        raise RegistryError(Code.SCHEMA_NOT_FOUND, "Schema not found: the id has more than 32 bits")
    return int(text)


def _subject(request: Request) -> str:
    name = unquote(request.path_params["subject"]).removeprefix(_DEFAULT_CONTEXT)
    if name.startswith(_CONTEXT):
        raise RegistryError(Code.NOT_PERMITTED, f"subject '{name}' names a context: there is the default one only")
    try:
        return parse_subject(name)
    except Invalid as error:
        raise RegistryError(Code.INVALID_SUBJECT, error.message) from None


def _subject_or_all(request: Request) -> str | None:
    return _subject(request) if "subject" in request.path_params else None


def _version(request: Request) -> int | Literal["latest"]:
    text = request.path_params["version"]
    if text in ("latest", "-1"):
        return "latest"
    if text.isascii() and text.isdecimal() and len(text) <= 10 and 1 <= int(text) <= _VERSION_MAX:
        return int(text)
    message = (
        f"The specified version '{text}' is not a valid version id: use a number from 1 to {_VERSION_MAX}, or latest"
    )
    raise RegistryError(Code.INVALID_VERSION, message)


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


def _word(word: SchemaFormat | Compatibility | RegistryMode) -> str:
    """Return a word as the API writes it: BACKWARD_TRANSITIVE."""
    return str(word).upper().replace("-", "_")


def _page(request: Request, found: Sequence[Any]) -> Response:
    """Answer a list, or a part of it."""
    offset, limit = max(0, number(request, "offset", 0)), number(request, "limit", -1)
    return _answer(found[offset:] if limit < 0 else found[offset : offset + limit])


def _answer(body: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(body), status, headers, MEDIA_TYPE)


def _no_subject(subject: str) -> RegistryError:
    return RegistryError(Code.SUBJECT_NOT_FOUND, f"Subject '{subject}' not found.")


def _invalid_schema(error: Invalid) -> RegistryError:
    return RegistryError(Code.INVALID_SCHEMA, f"Invalid schema: {error.message}")


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
    return _answer(Failure(50001, "the broker made a mistake with this request; its log has the details"), 500)
