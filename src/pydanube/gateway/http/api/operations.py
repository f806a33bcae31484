"""What an operation of the REST API is. The table of them yields the routes (`router`) and the document (`openapi`).

A module of an area (`topics`, `subscriptions`, ...) has a tuple `OPERATIONS`; `table` joins them. An operation names
its types: those of `model`, or a msgspec struct beside the operation where the model has none. `json_forms` says how
they look in JSON.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any, Final, Literal, NamedTuple
from urllib.parse import unquote

import msgspec
from starlette.requests import Request

from pydanube.broker import Broker
from pydanube.core.access import Principal
from pydanube.gateway.door import Caller
from pydanube.gateway.http.data.messages import PayloadForm
from pydanube.model.errors import Invalid
from pydanube.model.limits import NAME_CHARACTERS_MAX, PARTITIONS_MAX
from pydanube.model.names import TopicName, parse_namespace, parse_subscription
from pydanube.model.quotas import QuotaSubject
from pydanube.model.schemas import parse_subject
from pydanube.model.security import parse_binding_id, parse_key_id, parse_role_name
from pydanube.model.staging import QUERY_CHARACTERS_MAX, check_query

BASE: Final = "/api/v1"
TOPIC_PATH: Final = f"{BASE}/topics/{{namespace}}/{{topic}}"
JSON: Final = "application/json"

Schema = dict[str, Any]

Offset = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
PartitionIndex = Annotated[int, msgspec.Meta(ge=0, le=PARTITIONS_MAX - 1)]


@dataclass(slots=True)
class ApiCall:
    """One request, read and checked: what a handler works on."""

    broker: Broker
    caller: Caller
    path: Mapping[str, Any]
    """The parsed parameters of the path, by name."""
    query: Any
    """An instance of the operation's `query`."""
    body: Any
    """An instance of the operation's `body`; None if it has none."""
    given: frozenset[str]
    """The fields that the body has; those that are absent have their defaults in `body`."""
    request: Request

    @property
    def principal(self) -> Principal:
        return self.caller.principal

    @property
    def topic(self) -> TopicName:
        """The topic that the path names."""
        return TopicName(self.path["namespace"], self.path["topic"])

    @property
    def subscription(self) -> str:
        return str(self.path["subscription"])

    @property
    def if_match(self) -> str:
        """The entity tag that the caller expects; empty: any. See `etags`."""
        return str(self.request.headers.get("if-match", ""))


class Answer(NamedTuple):
    """What a handler returns if it chooses the status or adds headers."""

    value: object = None
    status: int = 0
    """0: the status of the operation."""
    headers: Mapping[str, str] = {}


class NoQuery(msgspec.Struct):
    """The query of an operation that has no parameters."""


class PayloadQuery(msgspec.Struct):
    """The query of an operation that shows messages."""

    payload: PayloadForm = "text"
    """How payloads are written: text (or payload_base64 if it is not UTF-8), json (as a value if it is one), base64."""


Handler = Callable[[ApiCall], Awaitable[object]]
Method = Literal["GET", "PUT", "POST", "PATCH", "DELETE"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation: a method and a path. Its handler returns a value of the type `reply`, an `Answer`, or a Starlette
    response, which is sent as it is."""

    method: Method
    path: str
    """As in OpenAPI; every `{name}` is a key of `PATH_PARAMETERS`. A value may contain `%2F`."""
    name: str
    """The operationId, in camelCase."""
    summary: str
    tag: str
    handler: Handler
    description: str = ""
    query: type = NoQuery
    body: Any = None
    """The type of the body in JSON. None: the operation takes no body, or reads it itself (`reads_body`)."""
    body_optional: bool = False
    body_example: Any = None
    reads_body: bool = False
    """Whether the handler reads the body from `ApiCall.request`."""
    body_media: Mapping[str, Schema] = field(default_factory=dict)
    """The media types of a body that the handler reads, with their schemas."""
    reply: Any = None
    """The type of the answer. None: there is no body, and the status is 204 unless `reply_media` is given."""
    reply_example: Any = None
    reply_media: Mapping[str, Schema] = field(default_factory=dict)
    """The media types of an answer that the handler writes itself, with their schemas."""
    status: int = 0
    """The status of success. 0: 200, or 204 without a reply."""
    other_statuses: Mapping[int, str] = field(default_factory=dict)
    """Other statuses of success, with what they mean."""
    errors: tuple[int, ...] = ()
    """The statuses of errors beyond those that every operation may have (`openapi.COMMON_ERRORS`)."""
    has_etag: bool = False
    """Whether the answer has an entity tag."""
    takes_if_match: bool = False
    """Whether the operation can be made conditional by If-Match."""
    takes_messages: bool = False
    """Whether it is a GET that delivers messages, which may acknowledge them or create a subscription. It has no HEAD,
    and a page of another origin may not send it."""
    native: tuple[type[Any], ...] = ()
    """The requests of the native protocol that the operation offers."""

    @property
    def success(self) -> int:
        return self.status or (200 if self.reply is not None or self.reply_media else 204)


# -- parameters of the path --------------------------------------------------------------------------------------------


class PathParameter(NamedTuple):
    """A parameter of a path: how its text is parsed, and how it is described."""

    parse: Callable[[str], Any]
    """Raises Invalid."""
    schema: Schema
    description: str
    example: Any


def whole_number(what: str, least: int, most: int) -> Callable[[str], int]:
    """Return a parser of whole numbers from `least` to `most`."""

    def parse(text: str) -> int:
        if text.isascii() and text.isdecimal() and len(text) <= len(str(most)) and least <= int(text) <= most:
            return int(text)
        raise Invalid(f"{what} {text[:40]!r} is not allowed: use a whole number from {least} to {most}")

    return parse


def number_parameter(what: str, least: int, most: int, description: str, example: int) -> PathParameter:
    schema = {"type": "integer", "minimum": least, "maximum": most}
    return PathParameter(whole_number(what, least, most), schema, description, example)


def _version(text: str) -> int:
    return -1 if text == "latest" else whole_number("version", 1, _INT32_MAX)(text)


def _consumer_id(text: str) -> str:
    if len(text) == 32 and all(one in "0123456789abcdef" for one in text):
        return text
    raise Invalid(f"{text[:40]!r} is not the id of a consumer: use that which opening it answered")


_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1

NAME_SCHEMA: Final[Schema] = {
    "type": "string",
    "minLength": 1,
    "maxLength": NAME_CHARACTERS_MAX,
    "pattern": r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$",
}
_SUBJECT_SCHEMA: Final[Schema] = {
    "type": "string",
    "minLength": 1,
    "maxLength": NAME_CHARACTERS_MAX,
    "pattern": r"^[A-Za-z0-9_.:/@+-]+$",
}
_KEY_ID_SCHEMA: Final[Schema] = {"type": "string", "pattern": "^[0-9a-f]{16}$"}
_RULE_NAME_SCHEMA: Final[Schema] = {
    "type": "string",
    "minLength": 1,
    "maxLength": NAME_CHARACTERS_MAX,
    "pattern": r"^[A-Za-z0-9_-][A-Za-z0-9_.-]*$",
}

PATH_PARAMETERS: Final[dict[str, PathParameter]] = {
    "namespace": PathParameter(parse_namespace, NAME_SCHEMA, "The namespace.", "default"),
    "topic": PathParameter(
        lambda text: TopicName.parse(f"/_/{text}").topic, NAME_SCHEMA, "The topic, without its namespace.", "orders"
    ),
    "subscription": PathParameter(parse_subscription, NAME_SCHEMA, "The subscription.", "billing"),
    "partition": number_parameter("partition", 0, PARTITIONS_MAX - 1, "The partition; 0 if there is one only.", 0),
    "offset": number_parameter("offset", 0, _INT64_MAX - 1, "The offset of the message.", 17),
    "broker": PathParameter(parse_namespace, NAME_SCHEMA, "The name of the broker.", "broker-1"),
    "subject": PathParameter(
        parse_subject, _SUBJECT_SCHEMA, "The subject. A slash in it is written `%2F`.", "orders-value"
    ),
    "version": PathParameter(
        _version,
        {"oneOf": [{"type": "integer", "minimum": 1, "maximum": _INT32_MAX}, {"const": "latest"}]},
        "The version of the subject, or `latest`.",
        1,
    ),
    "global_id": number_parameter("global id", 1, _INT64_MAX, "The number of a definition, over all subjects.", 1),
    "schema_id": number_parameter("schema id", 1, _INT64_MAX, "The number of a subject, which batches carry.", 1),
    "query": PathParameter(
        lambda text: check_query("query", text),
        {"type": "string", "minLength": 1, "maxLength": QUERY_CHARACTERS_MAX},
        "The name of the query. A slash in it is written `%2F`.",
        "orders-copy",
    ),
    "consumer": PathParameter(
        _consumer_id, {"type": "string", "pattern": "^[0-9a-f]{32}$"}, "The id of the consumer.", "0" * 32
    ),
    "webhook": PathParameter(parse_subscription, NAME_SCHEMA, "The name of the webhook, as in the settings.", "github"),
    "role": PathParameter(parse_role_name, _RULE_NAME_SCHEMA, "The name of the role.", "loader"),
    "binding": PathParameter(parse_binding_id, _RULE_NAME_SCHEMA, "The id of the binding.", "b-orders"),
    "key": PathParameter(
        parse_key_id, _KEY_ID_SCHEMA, "The id of the API key, which is no secret.", "5d3f1c0e7a0b4a51"
    ),
    "quota": PathParameter(
        QuotaSubject.parse,
        {"type": "string", "minLength": 2, "maxLength": 272},
        "The subject: `user:NAME`, `service_account:NAME` (`*`: all others of the type) or `namespace:NAME`.",
        "user:alice",
    ),
    "run": number_parameter("run", 1, _INT64_MAX, "The number of the upload.", 1),
}


@lru_cache(maxsize=4_096)  # the same topics again and again
def parse_segment(name: str, segment: str) -> Any:
    """Return the value of a parameter from its segment of the path as it was sent. Raises Invalid."""
    try:
        text = unquote(segment, errors="strict")
    except UnicodeDecodeError:
        raise Invalid(f"{name} {segment[:40]!r} is not UTF-8") from None
    return PATH_PARAMETERS[name].parse(text)
