"""The schemas that messages were written with, fetched once for all consumers and readers of a client.

Invariants
    a version is asked for once, however many batches and consumers wait for it
    a failure is kept for FAILURE_SECONDS, so that a topic full of unknown versions does not cost a request per batch
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from pydanube.model.errors import DanubeError
from pydanube.model.schemas import Binding, RegisteredVersion, SchemaDefinition, SchemaVersion, ValidationPolicy
from pydanube.runtime.clock import Clock
from pydanube.runtime.tasks import Tasks

from .value_type import WriterSchema

FAILURE_SECONDS: Final = 5.0
SCHEMAS_MAX: Final = 10_000
"""How many versions are cached, far more than a program uses. When it is reached, the cache starts empty again."""

VersionKey = tuple[int, int]
"""A schema id and a version, as batches carry them."""


class SchemaRegistry(Protocol):
    """What this package needs of the registry; see `client.schemas`."""

    async def register(self, subject: str, definition: SchemaDefinition) -> RegisteredVersion: ...

    async def lookup(self, subject: str, definition: SchemaDefinition) -> SchemaVersion: ...

    async def references_of(self, definition: SchemaDefinition) -> dict[str, SchemaDefinition]: ...

    async def get_by_id(self, schema_id: int, version: int) -> SchemaVersion: ...

    async def binding(self, topic: str) -> Binding | None: ...

    async def bind(self, topic: str, subject: str, *, policy: ValidationPolicy) -> None: ...


class WriterSchemas:
    """A client's cache of writers' schemas."""

    def __init__(self, registry: SchemaRegistry, clock: Clock) -> None:
        self.registry = registry
        self._clock = clock
        self._tasks = Tasks()
        self._known: dict[VersionKey, WriterSchema] = {}
        self._failures: dict[VersionKey, tuple[DanubeError, float]] = {}
        """What a fetch failed with, and until when that is the answer."""
        self._waiting: dict[VersionKey, list[Callable[[], None]]] = {}

    def find(self, key: VersionKey) -> WriterSchema | DanubeError | None:
        """Return the schema, or why it could not be fetched; None: it has to be fetched first."""
        known = self._known.get(key)
        if known is not None:
            return known
        failure = self._failures.get(key)
        if failure is not None and self._clock.monotonic() < failure[1]:
            return failure[0]
        return None

    def when_known(self, key: VersionKey, callback: Callable[[], None]) -> None:
        """Fetch a version, and call back when `find` has an answer. After `close` there are no calls."""
        if (waiting := self._waiting.get(key)) is not None:
            waiting.append(callback)
            return
        self._waiting[key] = [callback]
        self._tasks.spawn(self._fetch(key), f"fetch schema {key[0]} version {key[1]}")

    async def _fetch(self, key: VersionKey) -> None:
        try:
            found = await self.registry.get_by_id(*key)
            schema = WriterSchema(found.definition, await self.registry.references_of(found.definition))
            if len(self._known) >= SCHEMAS_MAX:
                self._known.clear()
            self._known[key] = schema
        except DanubeError as error:
            if len(self._failures) >= SCHEMAS_MAX:
                self._failures.clear()
            self._failures[key] = (error, self._clock.monotonic() + FAILURE_SECONDS)
        for callback in self._waiting.pop(key):
            callback()

    async def close(self) -> None:
        """Cancel what is being fetched; nothing runs afterwards."""
        await self._tasks.close()
