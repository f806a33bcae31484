"""Operations on the schema registry: subjects and their versions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

import msgspec

from pydanube.codec.native import requests as wire
from pydanube.model.limits import NAME_CHARACTERS_MAX, SCHEMA_TAGS_MAX
from pydanube.model.paging import NamePage, PageQuery, page_of_names
from pydanube.model.schemas import (
    Compatibility,
    Incompatibility,
    RegisteredVersion,
    RegistryMode,
    SchemaDefinition,
    SchemaFormat,
    SchemaVersion,
    SubjectDescription,
)

from .operations import BASE, Answer, ApiCall, Operation

_SCHEMAS: Final = f"{BASE}/schemas"
_SUBJECT: Final = f"{_SCHEMAS}/{{subject}}"
_VERSION: Final = f"{_SUBJECT}/versions/{{version}}"
_REASONS_MAX: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectQuery(PageQuery):
    prefix: Annotated[str, msgspec.Meta(max_length=NAME_CHARACTERS_MAX)] = ""
    """Only subjects that begin with this."""
    deleted: bool = False
    """Also those that are deleted."""


class DeletedQuery(msgspec.Struct):
    deleted: bool = False
    """Also find what is deleted."""


class PermanentQuery(msgspec.Struct):
    permanent: bool = False
    """Remove for good what is deleted already."""


class CheckQuery(msgspec.Struct):
    version: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] | None = None
    """Compare with this version only; absent: with those that the level asks for."""
    level: Compatibility | None = None
    """The level that takes the place of the subject's."""


class VersionNumbers(msgspec.Struct):
    versions: list[int]


class CheckResult(msgspec.Struct):
    """Whether a definition may be registered, and every reason why not."""

    compatible: bool
    reasons: list[Incompatibility]
    left_out: int = 0
    """How many reasons more there are."""


class Tags(msgspec.Struct):
    tags: Annotated[
        list[Annotated[str, msgspec.Meta(max_length=NAME_CHARACTERS_MAX)]], msgspec.Meta(max_length=SCHEMA_TAGS_MAX)
    ]


# -- subjects and versions ---------------------------------------------------------------------------------------------


async def _list(call: ApiCall) -> NamePage:
    asked: SubjectQuery = call.query
    return page_of_names(await call.broker.schemas.subjects(call.principal, asked.prefix, asked.deleted), asked)


async def _describe(call: ApiCall) -> SubjectDescription:
    return await call.broker.schemas.describe(call.principal, call.path["subject"])


async def _delete_subject(call: ApiCall) -> VersionNumbers:
    subject, permanent = call.path["subject"], call.query.permanent
    return VersionNumbers(await call.broker.schemas.delete_subject(call.principal, subject, permanent))


async def _versions(call: ApiCall) -> VersionNumbers:
    found = await call.broker.schemas.versions(call.principal, call.path["subject"], call.query.deleted)
    return VersionNumbers(found)


async def _register(call: ApiCall) -> Answer:
    registered = await call.broker.schemas.register(call.principal, call.path["subject"], call.body)
    return Answer(registered, 201 if registered.is_new else 200)


async def _get(call: ApiCall) -> SchemaVersion:
    path = call.path
    return await call.broker.schemas.get(call.principal, path["subject"], path["version"], call.query.deleted)


async def _delete_version(call: ApiCall) -> VersionNumbers:
    path, permanent = call.path, call.query.permanent
    schemas = call.broker.schemas
    return VersionNumbers([await schemas.delete_version(call.principal, path["subject"], path["version"], permanent)])


async def _set_tags(call: ApiCall) -> None:
    path = call.path
    await call.broker.schemas.set_tags(call.principal, path["subject"], path["version"], call.body.tags)


async def _referrers(call: ApiCall) -> wire.GlobalIds:
    path = call.path
    return wire.GlobalIds(await call.broker.schemas.referenced_by(call.principal, path["subject"], path["version"]))


async def _check(call: ApiCall) -> CheckResult:
    asked: CheckQuery = call.query
    reasons = await call.broker.schemas.check(
        call.principal, call.path["subject"], call.body, asked.version, asked.level
    )
    return CheckResult(not reasons, reasons[:_REASONS_MAX], max(0, len(reasons) - _REASONS_MAX))


async def _look_up(call: ApiCall) -> SchemaVersion:
    subject, deleted = call.path["subject"], call.query.deleted
    return await call.broker.schemas.lookup(call.principal, subject, call.body, deleted)


async def _by_global_id(call: ApiCall) -> SchemaVersion:
    return await call.broker.schemas.by_global_id(call.principal, call.path["global_id"])


async def _by_schema_id(call: ApiCall) -> SchemaVersion:
    path = call.path
    return await call.broker.schemas.get_by_id(call.principal, path["schema_id"], path["version"])


# -- the table ---------------------------------------------------------------------------------------------------------

_TAG: Final = "schemas"
_DEFINITION: Final = SchemaDefinition(SchemaFormat.JSON, '{"type": "object"}')
_FOUND: Final = SchemaVersion("orders-value", 1, 1, 1, _DEFINITION, "5d41402abc4b2a76")
_DESCRIBED: Final = SubjectDescription(
    "orders-value", 1, SchemaFormat.JSON, (1,), (), None, Compatibility.BACKWARD, RegistryMode.READWRITE
)

OPERATIONS: Final = (
    Operation(
        method="GET",
        path=_SCHEMAS,
        name="listSubjects",
        summary="List subjects",
        tag=_TAG,
        handler=_list,
        query=SubjectQuery,
        reply=NamePage,
        reply_example=NamePage(["orders-value"]),
        native=(wire.ListSubjects,),
    ),
    Operation(
        method="GET",
        path=_SUBJECT,
        name="describeSubject",
        summary="Describe a subject without its definitions",
        tag=_TAG,
        handler=_describe,
        reply=SubjectDescription,
        reply_example=_DESCRIBED,
        native=(wire.DescribeSubject,),
    ),
    Operation(
        method="DELETE",
        path=_SUBJECT,
        name="deleteSubject",
        summary="Delete all versions of a subject",
        tag=_TAG,
        handler=_delete_subject,
        query=PermanentQuery,
        reply=VersionNumbers,
        reply_example=VersionNumbers([1]),
        native=(wire.DeleteSchema,),
    ),
    Operation(
        method="GET",
        path=f"{_SUBJECT}/versions",
        name="listSchemaVersions",
        summary="List the versions of a subject",
        tag=_TAG,
        handler=_versions,
        query=DeletedQuery,
        reply=VersionNumbers,
        reply_example=VersionNumbers([1]),
        native=(wire.ListSchemaVersions,),
    ),
    Operation(
        method="POST",
        path=f"{_SUBJECT}/versions",
        name="registerSchema",
        summary="Make a definition the next version of a subject",
        description="A definition that the subject has already is found, and nothing changes: the status is 200 then.",
        tag=_TAG,
        handler=_register,
        body=SchemaDefinition,
        body_example=_DEFINITION,
        reply=RegisteredVersion,
        reply_example=RegisteredVersion(1, 1, 1, True, "5d41402abc4b2a76"),
        status=201,
        other_statuses={200: "The subject had this definition already."},
        native=(wire.RegisterSchema,),
    ),
    Operation(
        method="POST",
        path=f"{_SUBJECT}/check",
        name="checkSchema",
        summary="Check whether a definition may be registered",
        tag=_TAG,
        handler=_check,
        query=CheckQuery,
        body=SchemaDefinition,
        body_example=_DEFINITION,
        reply=CheckResult,
        reply_example=CheckResult(True, []),
        native=(wire.CheckSchema,),
    ),
    Operation(
        method="POST",
        path=f"{_SUBJECT}/lookup",
        name="lookUpSchema",
        summary="Find the version of a subject that has a definition",
        tag=_TAG,
        handler=_look_up,
        query=DeletedQuery,
        body=SchemaDefinition,
        body_example=_DEFINITION,
        reply=SchemaVersion,
        reply_example=_FOUND,
        native=(wire.LookUpSchema,),
    ),
    Operation(
        method="GET",
        path=_VERSION,
        name="getSchema",
        summary="Get one version of a subject",
        tag=_TAG,
        handler=_get,
        query=DeletedQuery,
        reply=SchemaVersion,
        reply_example=_FOUND,
        native=(wire.GetSchema,),
    ),
    Operation(
        method="DELETE",
        path=_VERSION,
        name="deleteSchemaVersion",
        summary="Delete one version of a subject",
        tag=_TAG,
        handler=_delete_version,
        query=PermanentQuery,
        reply=VersionNumbers,
        reply_example=VersionNumbers([1]),
        native=(wire.DeleteSchema,),
    ),
    Operation(
        method="PUT",
        path=f"{_VERSION}/tags",
        name="setSchemaTags",
        summary="Replace the tags of a version",
        tag=_TAG,
        handler=_set_tags,
        body=Tags,
        body_example=Tags(["reviewed"]),
        native=(wire.SetSchemaTags,),
    ),
    Operation(
        method="GET",
        path=f"{_VERSION}/referrers",
        name="listReferrers",
        summary="List the global ids of the versions that refer to a version",
        tag=_TAG,
        handler=_referrers,
        reply=wire.GlobalIds,
        reply_example=wire.GlobalIds([2]),
        native=(wire.ListReferrers,),
    ),
    Operation(
        method="GET",
        path=f"{BASE}/schema-ids/global/{{global_id}}",
        name="getSchemaByGlobalId",
        summary="Get the definition with a global id",
        tag=_TAG,
        handler=_by_global_id,
        reply=SchemaVersion,
        reply_example=_FOUND,
        native=(wire.GetSchema,),
    ),
    Operation(
        method="GET",
        path=f"{BASE}/schema-ids/subject/{{schema_id}}/versions/{{version}}",
        name="getSchemaBySchemaId",
        summary="Get the version that a batch with this schema id and version was written with",
        tag=_TAG,
        handler=_by_schema_id,
        reply=SchemaVersion,
        reply_example=_FOUND,
        native=(wire.GetSchema,),
    ),
)
