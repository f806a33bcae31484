"""The schema registry: subjects and their versions, compatibility levels, and which topic carries which schema."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from pydanube.model.errors import NotFound
from pydanube.model.limits import NAME_CHARACTERS_MAX, SCHEMA_TAGS_MAX
from pydanube.model.names import TopicName
from pydanube.model.paging import NamePage
from pydanube.model.schemas import (
    Binding,
    Compatibility,
    Incompatibility,
    RegisteredVersion,
    RegistryMode,
    SchemaDefinition,
    SchemaFormat,
    SchemaVersion,
    SubjectDescription,
    parse_subject,
)
from pydanube.model.security import CLUSTER, Action, subject_resource

from .operation import Done, Needs, Operation, Rest, on_topic
from .paging import After, Filter, NameOrder, PageLimit

_Prefix = Annotated[str, Meta(extra_json_schema={"maxLength": NAME_CHARACTERS_MAX})]
_Tag = Annotated[str, Meta(extra_json_schema={"maxLength": NAME_CHARACTERS_MAX})]
_Version = Annotated[int, Meta(extra_json_schema={"minimum": -1, "maximum": 2**31 - 1})]

_rest = partial(Rest, tag="schemas")
_SUBJECT: Final = "/schemas/{subject}"
_VERSION: Final = f"{_SUBJECT}/versions/{{version}}"
_LEVEL: Final = f"{_SUBJECT}/compatibility"
_DEFAULT_LEVEL: Final = "/schema-compatibility"
_TOPIC: Final = "/topics/{namespace}/{topic}/schema"
_DEFINITION: Final = SchemaDefinition(SchemaFormat.JSON, '{"type": "object"}')
_TEXT: Final = {"format": "json", "text": _DEFINITION.text}


def _on_subject(action: Action) -> Needs:
    """Return the need of an operation whose field `subject` names the subject, or is empty for the default of all."""
    return Needs(
        action,
        lambda operation: subject_resource(parse_subject(operation.subject)) if operation.subject else CLUSTER,
    )


class SchemaRegistered(msgspec.Struct):
    """The version that has the definition."""

    registered: RegisteredVersion


class Incompatibilities(msgspec.Struct, omit_defaults=True):
    """Every reason why a definition may not be registered; none: it may be."""

    reasons: list[Incompatibility]
    left_out: int = 0
    """How many more there are than fit the answer."""


class Schema(msgspec.Struct):
    """One version of a subject."""

    schema: SchemaVersion


class SchemaVersions(msgspec.Struct):
    """Numbers of versions."""

    versions: list[int]


class Subject(msgspec.Struct):
    """A subject without its definitions."""

    subject: SubjectDescription


class CompatibilityLevel(msgspec.Struct, omit_defaults=True):
    """The level in force, and the one that the subject or the broker sets itself."""

    effective: Compatibility
    own: Compatibility | None = None
    """None: nothing is set, and the default applies."""
    version: str = ""


class GlobalIds(msgspec.Struct):
    """The numbers of definitions, over all subjects."""

    global_ids: list[int]


class TopicBinding(msgspec.Struct, omit_defaults=True):
    """None: the topic is not bound to a subject."""

    binding: Binding | None = None
    version: str = ""
    """The version of the topic, for `expected`; brokers of earlier releases send none."""

    @property
    def bound(self) -> Binding:
        """The binding. Raises NotFound if there is none."""
        if self.binding is None:
            raise NotFound("the topic is not bound to a subject")
        return self.binding


_FOUND: Final = Schema(SchemaVersion("orders-value", 1, 1, 1, _DEFINITION, "5d41402abc4b2a76"))
_BOUND: Final = TopicBinding(Binding("orders-value"))


# -- subjects and versions ---------------------------------------------------------------------------------------------


class RegisterSchema(Operation[SchemaRegistered], tag="schema.register"):
    """Make a definition the next version of a subject.

    A definition that the subject has already is found, and nothing changes: the status is 200 then.
    """

    rest = _rest(
        "POST",
        f"{_SUBJECT}/versions",
        body=("definition", SchemaDefinition),
        example=_TEXT,
        answer=SchemaRegistered(RegisteredVersion(1, 1, 1, True, "5d41402abc4b2a76")),
        shows="registered",
        made="is_new",
    )
    subject: str
    definition: SchemaDefinition


class CheckSchema(Operation[Incompatibilities], tag="schema.check"):
    """List the reasons why a definition may not be registered."""

    rest = _rest(
        "POST",
        f"{_SUBJECT}/check",
        body=("definition", SchemaDefinition),
        example=_TEXT,
        answer=Incompatibilities([Incompatibility("$.price", "the type was int and is string", 1)]),
    )
    subject: str
    definition: SchemaDefinition
    version: _Version = 0
    """Compare with this version only (-1: the latest); 0: with those that the level asks for."""
    level: Compatibility | None = None
    """The level that takes the place of the subject's."""


class LookUpSchema(Operation[Schema], tag="schema.lookup"):
    """Find the version of a subject that has a definition."""

    rest = _rest(
        "POST",
        f"{_SUBJECT}/lookup",
        body=("definition", SchemaDefinition),
        example=_TEXT,
        answer=_FOUND,
        shows="schema",
    )
    subject: str
    definition: SchemaDefinition
    deleted: bool = False
    """Also find what is deleted."""


class GetSchema(Operation[Schema], tag="schema.get"):
    """Get a version by its subject, by its schema id, or by its global id.

    By id, deleted versions are found as well.
    """

    rest = (
        _rest(
            "GET",
            _VERSION,
            summary="Get one version of a subject",
            hides=("schema_id", "global_id"),
            answer=_FOUND,
            shows="schema",
        ),
        _rest(
            "GET",
            "/schema-ids/global/{global_id}",
            name="getSchemaByGlobalId",
            summary="Get the definition with a global id",
            hides=("subject", "version", "schema_id", "deleted"),
            answer=_FOUND,
            shows="schema",
        ),
        _rest(
            "GET",
            "/schema-ids/subject/{schema_id}/versions/{version}",
            name="getSchemaBySchemaId",
            summary="Get the version that a batch with this schema id and version was written with",
            hides=("subject", "global_id", "deleted"),
            answer=_FOUND,
            shows="schema",
        ),
    )
    subject: str = ""
    version: int = 0
    """0 and -1: the latest."""
    schema_id: int = 0
    global_id: int = 0
    deleted: bool = False
    """Also find what is deleted."""


class ListSubjects(Operation[NamePage], tag="schema.subjects"):
    """List subjects."""

    rest = _rest(
        "GET",
        "/schemas",
        names={"limit": "count", "after": "page"},
        hides=("after",),
        defaults={"count": 100},
        answer=NamePage(["orders-value"]),
    )
    prefix: _Prefix = ""
    """Only subjects that begin with this."""
    deleted: bool = False
    """Also those that are deleted."""
    after: str = ""
    """Only names behind this one."""
    count: PageLimit = 1000
    """The most entries of one page."""
    filter: Filter = ""
    """A glob (`*`, `?`, `[...]`) that must match the whole name; without any of these, a part of the name."""
    sort: NameOrder = "name"
    """`name`, ascending; with a `-` before it, descending."""
    page: After = ""
    """The token of the page before; empty: the first page."""


class ListSchemaVersions(Operation[SchemaVersions], tag="schema.versions"):
    """List the versions of a subject."""

    rest = _rest("GET", f"{_SUBJECT}/versions", answer=SchemaVersions([1]))
    subject: str
    deleted: bool = False
    """Also those that are deleted."""


class DescribeSubject(Operation[Subject], tag="schema.describe"):
    """Describe a subject without its definitions."""

    rest = _rest(
        "GET",
        _SUBJECT,
        answer=Subject(
            SubjectDescription(
                "orders-value", 1, SchemaFormat.JSON, (1,), (), None, Compatibility.BACKWARD, RegistryMode.READWRITE
            )
        ),
        shows="subject",
    )
    subject: str


class DeleteSchema(Operation[SchemaVersions], tag="schema.delete"):
    """Delete one version of a subject or all, and list those that were deleted."""

    needs = _on_subject(Action.DELETE)
    is_repeatable = False
    rest = (
        _rest(
            "DELETE",
            _SUBJECT,
            name="deleteSubject",
            summary="Delete all versions of a subject",
            hides=("version",),
            answer=SchemaVersions([1]),
        ),
        _rest(
            "DELETE",
            _VERSION,
            name="deleteSchemaVersion",
            summary="Delete one version of a subject",
            answer=SchemaVersions([1]),
        ),
    )
    subject: str
    version: int = 0
    """0: all; -1: the latest."""
    permanent: bool = False
    """Remove for good what is deleted already."""


class SetSchemaTags(Operation[Done], tag="schema.tags"):
    """Replace the tags of a version."""

    needs = _on_subject(Action.ADMINISTER)
    rest = _rest("PUT", f"{_VERSION}/tags", example={"tags": ["reviewed"]})
    subject: str
    version: int
    tags: Annotated[list[_Tag], Meta(extra_json_schema={"maxItems": SCHEMA_TAGS_MAX})]


class ListReferrers(Operation[GlobalIds], tag="schema.referenced_by"):
    """List the global ids of the versions that refer to a version."""

    rest = _rest("GET", f"{_VERSION}/referrers", answer=GlobalIds([2]))
    subject: str
    version: int


# -- compatibility -----------------------------------------------------------------------------------------------------


class GetCompatibility(Operation[CompatibilityLevel], tag="schema.compatibility"):
    """Get the compatibility level of a subject, or the one that applies where a subject sets none."""

    rest = (
        _rest(
            "GET",
            _LEVEL,
            summary="Get the compatibility level of a subject",
            answer=CompatibilityLevel(Compatibility.BACKWARD),
            has_etag=True,
        ),
        _rest(
            "GET",
            _DEFAULT_LEVEL,
            name="getCompatibilityDefault",
            summary="Get the compatibility level that applies where a subject sets none",
            hides=("subject",),
            answer=CompatibilityLevel(Compatibility.BACKWARD),
            has_etag=True,
        ),
    )
    subject: str = ""
    """Empty: the default of the broker."""


_change_level = partial(
    _rest,
    then=lambda asked: GetCompatibility(subject=asked.subject),
    answer=CompatibilityLevel(Compatibility.FULL),
    has_etag=True,
)
_set_level = partial(_change_level, "PUT", takes={"level": Compatibility}, example={"level": "full"})


class SetCompatibility(Operation[CompatibilityLevel], tag="schema.set_compatibility"):
    """Set or unset the compatibility level of a subject, or the one that applies where a subject sets none."""

    needs = _on_subject(Action.ADMINISTER)
    rest = (
        _set_level(_LEVEL, summary="Set the compatibility level of a subject"),
        _change_level(
            "DELETE",
            _LEVEL,
            name="unsetCompatibility",
            summary="Unset the compatibility level of a subject",
            hides=("level",),
        ),
        _set_level(
            _DEFAULT_LEVEL,
            name="setCompatibilityDefault",
            summary="Set the compatibility level that applies where a subject sets none",
            hides=("subject",),
        ),
        _change_level(
            "DELETE",
            _DEFAULT_LEVEL,
            name="unsetCompatibilityDefault",
            summary="Unset the compatibility level that applies where a subject sets none",
            hides=("subject", "level"),
        ),
    )
    subject: str = ""
    """Empty: the default of the broker."""
    level: Compatibility | None = None
    """None: the default applies again."""
    expected: str = ""


# -- topics ------------------------------------------------------------------------------------------------------------


class GetBinding(Operation[TopicBinding], tag="schema.binding"):
    """Get what schema a topic carries, and how that is checked."""

    needs = on_topic(Action.DESCRIBE)
    rest = _rest("GET", _TOPIC, name="getTopicSchema", answer=_BOUND, shows="bound", has_etag=True)
    topic: TopicName


class BindTopic(Operation[Done], tag="schema.bind"):
    """Bind a topic to a subject, or change how that is checked."""

    needs = on_topic(Action.ADMINISTER)
    rest = _rest(
        "PUT",
        _TOPIC,
        body=("binding", Binding),
        example={"subject": "orders-value"},
        then=lambda asked: GetBinding(topic=asked.topic),
        answer=_BOUND,
        shows="bound",
        has_etag=True,
    )
    topic: TopicName
    binding: Binding
    expected: str = ""


class UnbindTopic(Operation[Done], tag="schema.unbind"):
    """Let a topic carry anything again."""

    needs = on_topic(Action.ADMINISTER)
    is_repeatable = False
    rest = _rest("DELETE", _TOPIC)
    topic: TopicName
    expected: str = ""


SchemaOperation = (
    RegisterSchema
    | CheckSchema
    | LookUpSchema
    | GetSchema
    | ListSubjects
    | ListSchemaVersions
    | DescribeSubject
    | DeleteSchema
    | SetSchemaTags
    | ListReferrers
    | GetCompatibility
    | SetCompatibility
    | GetBinding
    | BindTopic
    | UnbindTopic
)
