"""Definitions and decoders of one worker process, kept from one task to the next.

A task gets the definitions that were registered when the query started. One that it does not have, because the version
was registered later, is looked up at the broker once per process.
"""

from __future__ import annotations

from typing import Final

from pydanube.client.blocking.client import BlockingClient
from pydanube.formats.columns import ColumnDecoder, column_decoder
from pydanube.model.errors import Denied, Invalid, NotFound, Refused
from pydanube.model.schemas import SchemaVersion
from pydanube.runtime.cache import Cache
from pydanube.spark import connections
from pydanube.spark.options import ReadOptions

from .typed_read import Definition, TopicForm, TypedRead, VersionKey, unbound_error

KEPT_MAX: Final = 200

_decoders: Cache[tuple[Definition, Definition], ColumnDecoder] = Cache(KEPT_MAX)
_looked_up: Cache[tuple[str, VersionKey | int], Definition] = Cache(KEPT_MAX)
"""By the cluster and the version or the global id."""


class WriterDefinitions:
    """Finds the decoder for what was written with a version. Used by one task."""

    def __init__(self, typed: TypedRead, options: ReadOptions) -> None:
        self._typed = typed
        self._options = options
        self._own: dict[VersionKey | int, ColumnDecoder | str] = {}
        self._topics: dict[str, TopicForm] = dict(typed.topics)

    def topic_form(self, topic: str) -> TopicForm:
        """Return how the payloads of a topic are written. A topic that was made after the query started is looked up.

        Raises Refused if it is not bound to the query's subject.
        """
        form = self._topics.get(topic)
        if form is None:
            with connections.client(
                self._options.servers, self._options.timeout_s, self._options.credentials
            ) as client:
                binding = client.schemas.binding(topic)
            if not self._options.subject:
                if binding is None:
                    raise unbound_error([topic])
                if binding.subject != self._typed.subject:
                    raise Refused(
                        f"{topic} is bound to subject {binding.subject!r}, and this query decodes with subject "
                        f"{self._typed.subject!r}"
                    )
            form = self._topics[topic] = TopicForm.of(binding)
        return form

    def find_decoder(self, written_with: VersionKey | int) -> ColumnDecoder | str:
        """Return the decoder for payloads of a version or, as an int, of a global id; or why there is none.

        (0, 0) stands for messages without a schema id, which are read with the query's own version.
        """
        found = self._own.get(written_with)
        if found is None:
            found = self._own[written_with] = self._make(written_with)
        return found

    def _make(self, written_with: VersionKey | int) -> ColumnDecoder | str:
        try:
            if written_with == (0, 0):
                writer = self._typed.reader
            else:
                known = None if isinstance(written_with, int) else self._typed.known.get(written_with)
                writer = known or self._look_up(written_with)
            return _decoder(self._typed.reader, writer)
        except (Invalid, NotFound, Denied) as error:
            return error.message

    def _look_up(self, written_with: VersionKey | int) -> Definition:
        with connections.client(self._options.servers, self._options.timeout_s, self._options.credentials) as client:
            key = (client.cluster, written_with)
            found = _looked_up.get(key)
            if found is None:
                version = _fetch(client, written_with)
                references = client.schemas.references_of(version.definition)
                found = Definition(version.definition, tuple(sorted(references.items())))
                _looked_up.put(key, found)
        return found


def _fetch(client: BlockingClient, written_with: VersionKey | int) -> SchemaVersion:
    if isinstance(written_with, int):
        return client.schemas.by_global_id(written_with)
    schema_id, version = written_with
    return client.schemas.get_by_id(schema_id, version or "latest")


def _decoder(reader: Definition, writer: Definition) -> ColumnDecoder:
    found = _decoders.get((reader, writer))
    if found is None:
        own = reader.parse()
        found = column_decoder(own, own if writer == reader else writer.parse())
        _decoders.put((reader, writer), found)
    return found
