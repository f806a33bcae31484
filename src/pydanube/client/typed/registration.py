"""The registration of a producer's schema, when the producer is opened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydanube.model.errors import NotFound, Refused
from pydanube.model.schemas import Binding, ValidationPolicy
from pydanube.runtime.telemetry import get_logger

from .value_type import ValueType
from .writer_schemas import SchemaRegistry

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Registration:
    """Registers a schema under a subject, or only looks it up there."""

    value_type: ValueType[Any]
    subject: str | None
    """None: the subject that the topic is bound to, or the name of the topic."""
    create: bool
    """False: the subject has to have the definition already."""
    registry: SchemaRegistry
    enforce: bool = False
    """Whether a topic that is not bound yet is bound with the policy "enforce"."""

    async def run(self, topic: str) -> tuple[str, int, int]:
        """Return the subject, the schema id and the version for the batches of a topic.

        Raises Refused if the topic is bound to another subject or the definition is not compatible with earlier
        versions, and NotFound if it is not registered and must not be. Cancelled, it may be registered.
        """
        definition = self.value_type.definition
        if definition.references:
            self.value_type.use_references(await self.registry.references_of(definition))
        binding = await self.registry.binding(topic)
        subject = self._choose_subject(topic, binding)
        schema_id, version = await self._find_version(subject)
        if self.enforce:
            await self._enforce(topic, subject, binding)
        return subject, schema_id, version

    async def _find_version(self, subject: str) -> tuple[int, int]:
        """Return the schema id and the version of the definition, which is registered if it may be."""
        definition = self.value_type.definition
        if self.create:
            registered = await self.registry.register(subject, definition)
            return registered.schema_id, registered.version
        try:
            found = await self.registry.lookup(subject, definition)
        except NotFound as error:
            raise NotFound(f"{error.message}; register_schema=False does not register it") from None
        return found.schema_id, found.version

    async def _enforce(self, topic: str, subject: str, binding: Binding | None) -> None:
        """Bind a topic that is not bound with the policy "enforce"; that of a topic that is bound stays."""
        if binding is None:
            await self.registry.bind(topic, subject, policy=ValidationPolicy.ENFORCE)
        elif binding.policy is not ValidationPolicy.ENFORCE:
            about = {"topic": topic, "subject": subject, "policy": str(binding.policy)}
            log.warning("producer.not_enforced", **about, advice="client.schemas.bind changes the policy of the topic")

    def _choose_subject(self, topic: str, binding: Binding | None) -> str:
        """Return the given subject, that of the binding, or the topic's name. A given one that differs from the binding
        is refused before it is registered: the subject would stay, though the broker does not open the producer."""
        if binding is None:
            return self.subject or topic
        if self.subject not in (None, binding.subject):
            raise Refused(
                f"topic {topic} is bound to subject {binding.subject!r}, not to {self.subject!r}: unbind it first, "
                f"with `danube schemas unbind {topic}`"
            )
        return binding.subject
