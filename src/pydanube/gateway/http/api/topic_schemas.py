"""Operations on compatibility levels, and on which topic carries which schema."""

from __future__ import annotations

from typing import Final

import msgspec

from pydanube.codec.native import requests as wire
from pydanube.model.errors import NotFound
from pydanube.model.schemas import Binding, Compatibility

from .etags import expected_version, tagged
from .operations import BASE, Answer, ApiCall, Operation
from .topics import TOPIC_PATH

_SUBJECT: Final = f"{BASE}/schemas/{{subject}}"


class CompatibilityRequest(msgspec.Struct):
    level: Compatibility


class CompatibilitySetting(msgspec.Struct):
    """The level in force, and the one that the subject or the broker sets itself."""

    effective: Compatibility
    own: Compatibility | None = None
    """null: nothing is set, and the default applies."""


async def _compatibility(call: ApiCall) -> Answer:
    schemas, subject = call.broker.schemas, call.path.get("subject")
    own, effective = await schemas.compatibility(call.principal, subject)
    version = await schemas.compatibility_version(call.principal, subject)
    return tagged(CompatibilitySetting(effective, own), version)


async def _set_compatibility(call: ApiCall) -> Answer:
    subject, expected = call.path.get("subject"), expected_version(call)
    await call.broker.schemas.set_compatibility(call.principal, subject, call.body.level, expected)
    return await _compatibility(call)


async def _unset_compatibility(call: ApiCall) -> Answer:
    subject, expected = call.path.get("subject"), expected_version(call)
    await call.broker.schemas.set_compatibility(call.principal, subject, None, expected)
    return await _compatibility(call)


async def _binding(call: ApiCall) -> Answer:
    found = await call.broker.schemas.binding(call.principal, call.topic)
    if found is None:
        raise NotFound(f"topic {call.topic} is not bound to a subject")
    return tagged(found, (await call.broker.policies.get(call.principal, call.topic)).version)


async def _bind(call: ApiCall) -> Answer:
    await call.broker.schemas.bind(call.principal, call.topic, call.body, expected_version(call))
    return await _binding(call)


async def _unbind(call: ApiCall) -> None:
    await call.broker.schemas.unbind(call.principal, call.topic, expected_version(call))


_TAG: Final = "schemas"
_LEVEL: Final = CompatibilitySetting(Compatibility.BACKWARD)

OPERATIONS: Final = (
    *(
        operation
        for path, suffix, whose in (
            (f"{_SUBJECT}/compatibility", "", "of a subject"),
            (f"{BASE}/schema-compatibility", "Default", "that applies where a subject sets none"),
        )
        for operation in (
            Operation(
                method="GET",
                path=path,
                name=f"getCompatibility{suffix}",
                summary=f"Get the compatibility level {whose}",
                tag=_TAG,
                handler=_compatibility,
                reply=CompatibilitySetting,
                reply_example=_LEVEL,
                has_etag=True,
                native=(wire.GetCompatibility,),
            ),
            Operation(
                method="PUT",
                path=path,
                name=f"setCompatibility{suffix}",
                summary=f"Set the compatibility level {whose}",
                tag=_TAG,
                handler=_set_compatibility,
                body=CompatibilityRequest,
                body_example=CompatibilityRequest(Compatibility.FULL),
                reply=CompatibilitySetting,
                reply_example=CompatibilitySetting(Compatibility.FULL, Compatibility.FULL),
                has_etag=True,
                takes_if_match=True,
                native=(wire.SetCompatibility,),
            ),
            Operation(
                method="DELETE",
                path=path,
                name=f"unsetCompatibility{suffix}",
                summary=f"Unset the compatibility level {whose}",
                tag=_TAG,
                handler=_unset_compatibility,
                reply=CompatibilitySetting,
                reply_example=_LEVEL,
                has_etag=True,
                takes_if_match=True,
                native=(wire.SetCompatibility,),
            ),
        )
    ),
    Operation(
        method="GET",
        path=f"{TOPIC_PATH}/schema",
        name="getTopicSchema",
        summary="Get what schema a topic carries, and how that is checked",
        tag=_TAG,
        handler=_binding,
        reply=Binding,
        reply_example=Binding("orders-value"),
        has_etag=True,
        native=(wire.GetBinding,),
    ),
    Operation(
        method="PUT",
        path=f"{TOPIC_PATH}/schema",
        name="bindTopic",
        summary="Bind a topic to a subject, or change how that is checked",
        tag=_TAG,
        handler=_bind,
        body=Binding,
        body_example=Binding("orders-value"),
        reply=Binding,
        reply_example=Binding("orders-value"),
        has_etag=True,
        takes_if_match=True,
        native=(wire.BindTopic,),
    ),
    Operation(
        method="DELETE",
        path=f"{TOPIC_PATH}/schema",
        name="unbindTopic",
        summary="Let a topic carry anything again",
        tag=_TAG,
        handler=_unbind,
        takes_if_match=True,
        native=(wire.UnbindTopic,),
    ),
)
