"""danube_schema.SchemaRegistry: the broker's schema registry, on both listeners.

A definition is bytes here and text in the registry. The format protobuf also allows a serialized descriptor set: it is
kept in Base64, which is how the registry knows one, with a newline behind it as the mark that it came as bytes. So
every definition is returned exactly as it was registered.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import replace
from typing import Any, Final, Literal

from pydanube.broker import Broker
from pydanube.model.errors import Invalid, NotFound
from pydanube.model.schemas import (
    Binding,
    Compatibility,
    SchemaDefinition,
    SchemaFormat,
    SchemaVersion,
    ValidationPolicy,
    VersionNotes,
)
from pydanube.operations.schemas import BindTopic, SetCompatibility
from pydanube.runtime.clock import MICROSECONDS

from .calls import Call
from .messages import REGISTRY
from .resources import BrokerService, ListenerResources
from .topics import topic_of

FORMATS: Final = {
    "avro": SchemaFormat.AVRO,
    "json_schema": SchemaFormat.JSON,
    "jsonschema": SchemaFormat.JSON,
    "json": SchemaFormat.JSON,
    "protobuf": SchemaFormat.PROTOBUF,
    "proto": SchemaFormat.PROTOBUF,
    "bytes": SchemaFormat.BYTES,
    "string": SchemaFormat.STRING,
    "number": SchemaFormat.NUMBER,
    "int64": SchemaFormat.NUMBER,
    "int": SchemaFormat.NUMBER,
    "float": SchemaFormat.NUMBER,
    "double": SchemaFormat.NUMBER,
}
"""How clients write the type of a schema."""

_ERRORS_MAX: Final = 500
"""The most reasons in the answer of a compatibility check."""


class SchemaRegistry(BrokerService):
    """The registry service."""

    def __init__(self, broker: Broker, resources: ListenerResources) -> None:
        super().__init__(broker, resources)
        self._schemas = broker.schemas

    async def register_schema(self, call: Call, request: Any) -> Any:
        definition = definition_of(request.schema_type, request.schema_definition)
        notes = VersionNotes(request.description, request.created_by, tuple(request.tags))
        registered = await self._schemas.register(call.principal, request.subject, definition, notes)
        return REGISTRY["RegisterSchemaResponse"](
            schema_id=registered.schema_id,
            version=registered.version,
            is_new_version=registered.is_new,
            fingerprint=registered.fingerprint,
        )

    async def get_schema(self, call: Call, request: Any) -> Any:
        version: int | Literal["latest"] = request.version if request.HasField("version") else "latest"
        return await self._answer(call, await self._schemas.get_by_id(call.principal, request.schema_id, version))

    async def get_latest_schema(self, call: Call, request: Any) -> Any:
        return await self._answer(call, await self._schemas.get(call.principal, request.subject))

    async def _answer(self, call: Call, found: SchemaVersion) -> Any:
        notes = await self._schemas.notes(call.principal, found.subject, found.version)
        level = (await self._schemas.compatibility(call.principal, found.subject)).effective
        return REGISTRY["GetSchemaResponse"](
            schema_id=found.schema_id,
            version=found.version,
            subject=found.subject,
            schema_type=type_name(found.definition.format),
            schema_definition=definition_bytes(found.definition),
            description=notes.description,
            created_at=found.created_at // MICROSECONDS,
            created_by=notes.created_by,
            tags=found.tags,
            fingerprint=found.fingerprint,
            compatibility_mode=mode_name(level),
        )

    async def list_versions(self, call: Call, request: Any) -> Any:
        reply = REGISTRY["ListVersionsResponse"]()
        for number in await self._schemas.versions(call.principal, request.subject):
            found = await self._schemas.get(call.principal, request.subject, number, deleted=True)
            notes = await self._schemas.notes(call.principal, request.subject, number)
            reply.versions.add(
                version=number,
                created_at=found.created_at // MICROSECONDS,
                created_by=notes.created_by,
                description=notes.description,
                fingerprint=found.fingerprint,
                schema_id=found.schema_id,
            )
        return reply

    async def list_subjects(self, call: Call, _request: Any) -> Any:
        reply = REGISTRY["ListSubjectsResponse"]()
        for name in await self._schemas.subjects(call.principal):
            about = await self._schemas.describe(call.principal, name)
            latest = await self._schemas.get(call.principal, name)
            reply.subjects.add(
                subject=name,
                schema_type=type_name(about.format),
                latest_version=latest.version,
                compatibility_mode=mode_name(about.effective_compatibility),
                schema_id=about.schema_id,
                tags=latest.tags,
            )
        return reply

    async def check_compatibility(self, call: Call, request: Any) -> Any:
        definition = definition_of(request.schema_type, request.new_schema_definition)
        level = Compatibility.parse(request.compatibility_mode) if request.HasField("compatibility_mode") else None
        reasons = await self._schemas.check(call.principal, request.subject, definition, level=level)
        errors = [str(reason) for reason in reasons[:_ERRORS_MAX]]
        if len(reasons) > _ERRORS_MAX:
            errors.append(f"and {len(reasons) - _ERRORS_MAX} more")
        return REGISTRY["CheckCompatibilityResponse"](is_compatible=not errors, errors=errors)

    async def delete_schema_version(self, call: Call, request: Any) -> Any:
        await self._schemas.delete_version(call.principal, request.subject, request.version)
        message = f"version {request.version} of subject {request.subject!r} is deleted"
        return REGISTRY["DeleteSchemaVersionResponse"](success=True, message=message)

    async def set_compatibility_mode(self, call: Call, request: Any) -> Any:
        await self._schemas.describe(call.principal, request.subject)  # must exist
        level = Compatibility.parse(request.compatibility_mode)
        await self._do(call, SetCompatibility(subject=request.subject, level=level))
        message = f"subject {request.subject!r} has the compatibility mode {mode_name(level)}"
        return REGISTRY["SetCompatibilityModeResponse"](success=True, message=message)

    # -- topics --------------------------------------------------------------------------------------------------------

    async def configure_topic_schema(self, call: Call, request: Any) -> Any:
        topic = await topic_of(self._broker, call.principal, request.topic_name)
        policy, payloads = ValidationPolicy.parse(request.validation_policy), request.enable_payload_validation
        former = await self._schemas.binding(call.principal, topic)
        if former is not None and former.subject == request.schema_subject:
            binding = replace(former, policy=policy, validate_payloads=payloads)
        else:
            binding = Binding(request.schema_subject, policy, payloads)
        await self._do(call, BindTopic(topic=topic, binding=binding))
        message = f"topic {topic} has the subject {binding.subject!r} with the policy {policy}"
        return REGISTRY["ConfigureTopicSchemaResponse"](success=True, message=message)

    async def update_topic_validation_policy(self, call: Call, request: Any) -> Any:
        topic = await topic_of(self._broker, call.principal, request.topic_name)
        binding = replace(
            await self._bound(call, topic),
            policy=ValidationPolicy.parse(request.validation_policy),
            validate_payloads=request.enable_payload_validation,
        )
        await self._do(call, BindTopic(topic=topic, binding=binding))
        message = f"topic {topic} has the policy {binding.policy}"
        return REGISTRY["UpdateTopicValidationPolicyResponse"](success=True, message=message)

    async def get_topic_schema_config(self, call: Call, request: Any) -> Any:
        binding = await self._bound(call, await topic_of(self._broker, call.principal, request.topic_name))
        about = await self._schemas.describe(call.principal, binding.subject)
        return REGISTRY["GetTopicSchemaConfigResponse"](
            schema_subject=binding.subject,
            validation_policy=str(binding.policy),
            enable_payload_validation=binding.validate_payloads,
            schema_id=about.schema_id,
        )

    async def _bound(self, call: Call, topic: Any) -> Binding:
        binding = await self._schemas.binding(call.principal, topic)
        if binding is None:
            raise NotFound(f"topic {topic} has no schema: configure one with ConfigureTopicSchema first")
        return binding


def type_name(format: SchemaFormat) -> str:  # noqa: A002 - the domain's word
    """Return how clients write a format."""
    return "json_schema" if format is SchemaFormat.JSON else str(format)


def mode_name(level: Compatibility) -> str:
    """Return how clients write a compatibility level: `backward_transitive`."""
    return str(level).replace("-", "_")


def definition_of(schema_type: str, definition: bytes) -> SchemaDefinition:
    """Return the definition that a client sent. Raises Invalid for an unknown type, and for bytes that are no text."""
    format = FORMATS.get(schema_type.lower())  # noqa: A001 - the domain's word
    if format is None:
        raise Invalid(f"schema type {schema_type!r} is unknown: use one of {', '.join(FORMATS)}")
    try:
        text = definition.decode()
        if format is not SchemaFormat.PROTOBUF or _is_text(text):
            return SchemaDefinition(format, text)
    except UnicodeDecodeError:
        if format is not SchemaFormat.PROTOBUF:
            raise Invalid(f"the definition of a schema of the type {schema_type} must be text in UTF-8") from None
    return SchemaDefinition(format, base64.b64encode(definition).decode() + "\n")


def _is_text(text: str) -> bool:
    """Return whether a text has no control characters but white space: a descriptor set has some."""
    return all(character >= " " or character in "\t\n\r\f\v" for character in text[:1_000])


def definition_bytes(definition: SchemaDefinition) -> bytes:
    """Return the definition as it was sent to `definition_of`."""
    if definition.format is SchemaFormat.PROTOBUF and definition.text.endswith("\n"):
        try:
            return base64.b64decode(definition.text[:-1], validate=True)
        except (binascii.Error, ValueError):
            pass
    return definition.text.encode()
