"""Checks that need a broker: whether topics exist, what they are bound to, and the columns of their schemas."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from pydanube.client.blocking.client import BlockingClient, connect_blocking
from pydanube.client.tables.read_types import DECODED_COLUMNS
from pydanube.formats.all_formats import parse_schema
from pydanube.model.errors import DanubeError, Invalid, NotFound, Unavailable
from pydanube.model.names import TopicName
from pydanube.model.schemas import SchemaVersion
from pydanube.model.text import did_you_mean
from pydanube.spark.credentials import BrokerCredentials
from pydanube.spark.options import ReadOptions

from .casts import field_column, message_column
from .definition import Pipeline, Source
from .file_places import Place, Problems
from .sql_checks import Columns

REACH_SECONDS: Final = 5.0
"""How long an unreachable broker is tried."""


def check_against_broker(pipeline: Pipeline, servers: str, problems: Problems) -> dict[str, Columns]:
    """Report what the broker does not know; return the columns of the sources that are decoded.

    `servers` are those of the pipeline. Raises Unavailable if no broker can be reached.
    """
    columns: dict[str, Columns] = {}
    clients: dict[tuple[str, BrokerCredentials], BlockingClient] = {}
    try:
        for name, source in pipeline.sources.items():
            address = source.options.get("servers") or servers
            credentials = ReadOptions.parse(source.options, "stream").credentials
            key = address, credentials
            if key not in clients:
                clients[key] = connect_blocking(address, timeout=REACH_SECONDS, **credentials.arguments()).open()
            columns |= _SourceCheck(clients[key], source, problems).run(name)
        return columns
    finally:
        for client in clients.values():
            client.close()


def fix_versions(pipeline: Pipeline, servers: str) -> Pipeline:
    """Return the pipeline with the schema version of every decoded source, so that all its queries read with the same
    one, also if another is registered while they start. Raises Invalid if there is none."""
    sources = dict(pipeline.sources)
    for name, source in pipeline.sources.items():
        if not source.decoded or "schemaVersion" in source.options:
            continue
        problems = Problems()
        address = source.options.get("servers") or servers
        credentials = ReadOptions.parse(source.options, "stream").credentials
        with connect_blocking(address, timeout=REACH_SECONDS, **credentials.arguments()) as client:
            version = _SourceCheck(client, source, problems).version()
        if problems:
            raise Invalid("\n".join(str(problem) for problem in problems.found))
        if version is not None:
            sources[name] = replace(source, options={**source.options, "schemaVersion": str(version.version)})
    return replace(pipeline, sources=sources)


@dataclass(frozen=True, slots=True)
class _SourceCheck:
    client: BlockingClient
    source: Source
    problems: Problems

    def run(self, name: str) -> dict[str, Columns]:
        topics = ReadOptions.parse(self.source.options, "stream").topics
        exist = [topic for topic in topics if self._exists(topic)]
        if not self.source.decoded or len(exist) < len(topics) or not (topics or "subject" in self.source.options):
            return {}
        try:
            version = self._version(exist)
            if version is None:
                return {}
            return {name: self._columns(version)}
        except Unavailable:
            raise
        except DanubeError as error:
            self.problems.add(self._at("decode"), f"source {name}: {error.message}")
            return {}

    def version(self) -> SchemaVersion | None:
        """Return the version that the source is read with; None: a pattern, whose topics are not known yet."""
        topics = ReadOptions.parse(self.source.options, "stream").topics
        return self._version(list(topics)) if topics or "subject" in self.source.options else None

    def _at(self, option: str) -> Place:
        return self.source.places.get(option, self.source.place)

    def _exists(self, topic: str) -> bool:
        try:
            self.client.describe_topic(topic)
            return True
        except NotFound:
            namespace = TopicName.parse(topic).namespace
            near = did_you_mean(topic, [one for one in self.client.list_topics() if one.startswith(f"/{namespace}/")])
            told = near if near.startswith("did") else f"create it with 'danube topics create {topic}'"
            self.problems.add(self._at("topic"), f"there is no topic {topic}: {told}")
            return False

    def _version(self, topics: list[str]) -> SchemaVersion | None:
        """Return the schema that the topics are read with; None if there is none, which is reported."""
        named = self.source.options.get("subject")
        subject, pinned = (named, 0) if named else self._bound_subject(topics)
        if not subject:
            return None
        try:
            self.client.schemas.describe(subject)
        except NotFound:
            told = did_you_mean(subject, self.client.schemas.subjects(), "there are")
            self.problems.add(self._at("subject"), f"there is no subject {subject!r}: {told}")
            return None
        chosen = int(self.source.options.get("schemaVersion", pinned))
        try:
            return self.client.schemas.get(subject, chosen or "latest")
        except NotFound:
            there = ", ".join(str(one) for one in self.client.schemas.versions(subject))
            told = f"subject {subject} has no version {chosen}: there are {there or 'none'}"
            self.problems.add(self._at("schemaVersion"), told)
            return None

    def _bound_subject(self, topics: list[str]) -> tuple[str, int]:
        """Return the subject of all topics, and the version that they are pinned to or 0; empty if there is none."""
        bound: dict[str, str] = {}
        pinned: set[int] = set()
        for topic in topics:
            binding = self.client.schemas.binding(topic)
            if binding is None:
                told = f"bind it with 'danube schemas bind {topic} SUBJECT', or name a 'subject' here"
                self.problems.add(self._at("topic"), f"topic {topic} is not bound to a subject: {told}")
                return "", 0
            bound[topic] = binding.subject
            pinned.add(binding.pinned_version)
        if len(set(bound.values())) > 1:
            told = ", ".join(f"{topic} to {subject}" for topic, subject in bound.items())
            self.problems.add(
                self._at("topic"), f"the topics are bound to different subjects ({told}): use one source each"
            )
            return "", 0
        return next(iter(bound.values()), ""), pinned.pop() if len(pinned) == 1 else 0

    def _columns(self, version: SchemaVersion) -> Columns:
        from pydanube.formats.columns import column_fields

        references = self.client.schemas.references_of(version.definition)
        fields = map(field_column, column_fields(parse_schema(version.definition, references)))
        chosen = self.source.options.get("columns", "")
        message = [one.strip().lower() for one in chosen.split(",")] if chosen else list(DECODED_COLUMNS)
        added = ["payload"] * ("payload" not in message) + ["decode_error"]
        added = added if self.source.on_decode_error == "null" else []
        return (*map(message_column, message), *fields, *map(message_column, added))
