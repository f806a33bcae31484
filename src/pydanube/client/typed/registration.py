"""The registration of a producer's schema, when the producer is opened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydanube.model.errors import NotFound, Refused

from .value_type import ValueType
from .writer_schemas import SchemaRegistry


@dataclass(frozen=True, slots=True)
class Registration:
    """Registers a schema under a subject, or only looks it up there."""

    value_type: ValueType[Any]
    subject: str | None
    """None: the subject that the topic is bound to, or the name of the topic."""
    create: bool
    """False: the subject has to have the definition already."""
    registry: SchemaRegistry

    async def run(self, topic: str) -> tuple[str, int, int]:
        """Return the subject, the schema id and the version for the batches of a topic.

        Raises Refused if the topic is bound to another subject or the definition is not compatible with earlier
        versions, and NotFound if it is not registered and must not be. Cancelled, it may be registered.
        """
        definition = self.value_type.definition
        if definition.references:
            self.value_type.use_references(await self.registry.references_of(definition))
        subject = await self._choose_subject(topic)
        if self.create:
            registered = await self.registry.register(subject, definition)
            return subject, registered.schema_id, registered.version
        try:
            found = await self.registry.lookup(subject, definition)
        except NotFound as error:
            raise NotFound(f"{error.message}; register_schema=False does not register it") from None
        return subject, found.schema_id, found.version

    async def _choose_subject(self, topic: str) -> str:
        """Return the given subject, that of the binding, or the topic's name. A given one that differs from the binding
        is refused before it is registered: the subject would stay, though the broker does not open the producer."""
        binding = await self.registry.binding(topic)
        if binding is None:
            return self.subject or topic
        if self.subject not in (None, binding.subject):
            raise Refused(
                f"topic {topic} is bound to subject {binding.subject!r}, not to {self.subject!r}: unbind it first, "
                f"with `danube schemas unbind {topic}`"
            )
        return binding.subject
