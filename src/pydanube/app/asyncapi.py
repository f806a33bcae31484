"""Describes an app: which topics it receives from and publishes to, through which subscriptions, with which schemas.

`describe` returns values; `asyncapi` returns a document of AsyncAPI 3, which tools render and generate code from.
"""

from __future__ import annotations

import json
import re
import typing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pydanube.model.schemas import SchemaFormat

from .handlers import ValueKind
from .subscribers import Subscriber
from .ticks import Tick

if TYPE_CHECKING:
    from .application import App

ASYNCAPI: Final = "3.0.0"

_FORMATS: Final = {
    SchemaFormat.JSON: "application/schema+json;version=draft-2020-12",
    SchemaFormat.AVRO: "application/vnd.apache.avro;version=1.9.0",
    SchemaFormat.PROTOBUF: "application/vnd.google.protobuf;version=3",
}
_CONTENT_TYPES: Final = {
    SchemaFormat.JSON: "application/json",
    SchemaFormat.AVRO: "application/vnd.apache.avro",
    SchemaFormat.PROTOBUF: "application/x-protobuf",
    SchemaFormat.STRING: "text/plain",
    SchemaFormat.NUMBER: "text/plain",
}


@dataclass(frozen=True, slots=True)
class HandlerDescription:
    """One handler, in words."""

    handler: str
    place: str
    summary: str
    topics: list[str]
    subscription: str
    type: str
    takes: str
    publishes_to: str
    returns: str
    schedule: str
    concurrency: int
    dead_letter_topic: str


def describe(app: App) -> list[HandlerDescription]:
    return [
        HandlerDescription(
            handler=spec.handler.name,
            place=spec.handler.place,
            summary=spec.handler.summary,
            topics=list(spec.topics),
            subscription=spec.subscription,
            type=spec.type,
            takes=_words(spec.handler.takes) if spec.schedule is None or spec.handler.takes.type is Tick else "",
            publishes_to="the caller" if spec.replies else spec.publish_to,
            returns="" if spec.handler.returns is None else _words(spec.handler.returns),
            schedule="" if spec.schedule is None else spec.schedule.text,
            concurrency=spec.concurrency,
            dead_letter_topic=spec.dead_letter_topic,
        )
        for spec in app.subscribers
    ]


def asyncapi(app: App, title: str, version: str = "1.0.0") -> dict[str, Any]:
    channels: dict[str, Any] = {}
    messages: dict[str, Any] = {}
    operations: dict[str, Any] = {}

    def refer(topic: str, kind: ValueKind) -> dict[str, Any]:
        """Add the channel of a topic and the message of a kind of values; return the references to both."""
        message = _message_name(kind)
        messages.setdefault(message, _message(kind))
        channel = _identifier(topic)
        described = channels.setdefault(channel, {"address": topic, "messages": {}})
        described["messages"][message] = {"$ref": f"#/components/messages/{message}"}
        place = f"#/channels/{channel}"
        return {"channel": {"$ref": place}, "messages": [{"$ref": f"{place}/messages/{message}"}]}

    for spec in app.subscribers:
        for index, topic in enumerate(spec.topics):
            name = spec.handler.name if not index else f"{spec.handler.name}.{index + 1}"
            operations[_identifier(name)] = _without_empty(
                {
                    "action": "receive",
                    **refer(topic, spec.handler.takes),
                    "summary": spec.handler.summary,
                    "x-danube": _extension(spec),
                }
            )
        if spec.replies and spec.handler.returns is not None:
            messages.setdefault(_message_name(spec.handler.returns), _message(spec.handler.returns))
            channels[_identifier(spec.topics[0])]["messages"]["reply"] = {
                "$ref": f"#/components/messages/{_message_name(spec.handler.returns)}"
            }
            operations[_identifier(spec.handler.name)]["reply"] = {
                "messages": [{"$ref": f"#/channels/{_identifier(spec.topics[0])}/messages/reply"}]
            }
        if spec.publishes is not None:
            operations[_identifier(f"{spec.handler.name}.publish")] = {
                "action": "send",
                **refer(spec.publish_to, spec.publishes),
            }
    return {
        "asyncapi": ASYNCAPI,
        "info": {"title": title, "version": version},
        "channels": channels,
        "operations": operations,
        "components": {"messages": messages},
    }


def _extension(spec: Subscriber) -> dict[str, Any]:
    schedule = "" if spec.schedule is None else spec.schedule.text
    return _without_empty(
        {
            "subscription": spec.subscription,
            "type": spec.type,
            "schedule": schedule,
            "deadLetterTopic": spec.dead_letter_topic,
        }
    )


def _message(kind: ValueKind) -> dict[str, Any]:
    definition = kind.definition
    if definition is None:
        content = "application/json" if kind.type is dict else "application/octet-stream"
        return {"contentType": content}
    content = _CONTENT_TYPES.get(definition.format, "application/octet-stream")
    schema_format = _FORMATS.get(definition.format)
    if schema_format is None:
        return {"contentType": content}
    schema = definition.text if definition.format is SchemaFormat.PROTOBUF else json.loads(definition.text)
    return {"contentType": content, "payload": {"schemaFormat": schema_format, "schema": schema}}


def _message_name(kind: ValueKind) -> str:
    return re.sub(r"\W", "", _name(kind.type))


def _words(kind: ValueKind) -> str:
    if kind.arrow:
        return f"pyarrow.{kind.arrow}"
    name = _name(kind.type)
    return f"list[{name}]" if kind.many else name


def _name(type_: Any) -> str:
    """Return the name of a class; of alternatives, all of them: A | B."""
    names = [one.__name__ if isinstance(one, type) else str(one) for one in typing.get_args(type_) or (type_,)]
    return " | ".join(names)


def _identifier(text: str) -> str:
    return re.sub(r"\W+", "_", text).strip("_")


def _without_empty(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value != ""}
