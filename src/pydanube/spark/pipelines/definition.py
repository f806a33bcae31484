"""A pipeline as its file defines it. Holding a `Pipeline` means that its names, references and options were checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from .file_places import Place, TextInFile

Action = Literal["drop", "dead-letter", "fail"]
DecodeErrors = Literal["fail", "null", "dead-letter"]
OutputMode = Literal["append", "update", "complete"]

UNDECODABLE: Final = "decodable"
"""The name of the rule `on_decode_error: dead-letter`, which is counted like an expectation."""

OBSERVED: Final = "expectations."
"""Begins the name of the metrics in which a query counts the expectations of a source or transform."""

CHECKED: Final = "checked"
"""The metric that counts all rows."""

LETTERS: Final = "dead-letters."
"""Begins the name of a query that writes dead letters: `dead-letters.orders`."""

TABLES: Final = {"delta": "danube-delta", "iceberg": "danube-iceberg"}
"""The names of table formats in pipeline files, and Spark's names of the data sources."""


@dataclass(frozen=True, slots=True)
class Watermark:
    """How long Spark waits for late rows."""

    column: str
    delay: str
    place: Place


@dataclass(frozen=True, slots=True)
class Source:
    """A stream of one or several topics."""

    name: str
    place: Place
    options: Mapping[str, str]
    """Options of the data source `danube`, such as `topic` and `startingOffsets`."""
    places: Mapping[str, Place]
    """The place of each option."""
    on_decode_error: DecodeErrors = "fail"
    dead_letter_topic: str = ""
    """For messages that cannot be decoded; set if `on_decode_error` is "dead-letter"."""
    watermark: Watermark | None = None

    @property
    def decoded(self) -> bool:
        return self.options.get("decode", "none").lower() != "none"


@dataclass(frozen=True, slots=True)
class Transform:
    """A table computed from others: by SQL, or by a function from data frames to a data frame."""

    name: str
    place: Place
    inputs: tuple[str, ...]
    sql: TextInFile | None = None
    function: TextInFile | None = None
    """``module:function``"""
    input_places: Mapping[str, Place] = field(default_factory=dict)
    watermark: Watermark | None = None


@dataclass(frozen=True, slots=True)
class Expectation:
    """A condition that every row of a source or transform should meet, and what happens to rows that do not."""

    name: str
    place: Place
    check: TextInFile
    action: Action
    topic: str = ""
    """The dead letter topic."""


@dataclass(frozen=True, slots=True)
class Sink:
    """Where the rows of a source or transform go: a streaming query with a checkpoint of its own."""

    name: str
    place: Place
    input: str
    input_place: Place
    format: str
    """As the file says it, such as "delta"."""
    mode: OutputMode
    options: Mapping[str, str]
    places: Mapping[str, Place]

    @property
    def spark_format(self) -> str:
        return TABLES.get(self.format, self.format)


@dataclass(frozen=True, slots=True)
class Trigger:
    """When micro-batches run."""

    kind: Literal["continuous", "interval", "available-now"] = "continuous"
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"every {self.seconds:g}s" if self.kind == "interval" else self.kind


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Everything a pipeline file says."""

    file: str
    name: str
    servers: str
    """Empty: the file names none."""
    checkpoint: str
    """An absolute path or a URL; each query has a directory in it."""
    trigger: Trigger
    master: str
    conf: Mapping[str, str]
    """Settings of Spark."""
    sources: Mapping[str, Source]
    transforms: Mapping[str, Transform]
    expectations: Mapping[str, tuple[Expectation, ...]]
    """By the source or transform whose rows are checked."""
    sinks: Mapping[str, Sink]
    places: Mapping[str, Place] = field(default_factory=dict)
    """Of the top-level keys."""
    directory: str = "."
    """Of the file; functions are imported from it, and relative paths begin there."""

    def inputs_of(self, name: str) -> tuple[str, ...]:
        return self.transforms[name].inputs if name in self.transforms else ()

    def needed(self, name: str) -> list[str]:
        """Return the source or transform `name` and everything it is computed from, inputs before what uses them."""
        ordered: dict[str, None] = {}

        def add(one: str) -> None:
            if one in ordered:
                return
            for before in self.inputs_of(one):
                add(before)
            ordered[one] = None

        add(name)
        return list(ordered)

    def has_letters(self, name: str) -> bool:
        """Return whether rows of the source or transform may become dead letters."""
        source = self.sources.get(name)
        undecodable = source is not None and source.on_decode_error == "dead-letter"
        return undecodable or any(one.action == "dead-letter" for one in self.expectations.get(name, ()))

    def letter_inputs(self) -> Iterator[str]:
        """Yield the sources and transforms that sinks use and whose rows may become dead letters."""
        used = dict.fromkeys(name for sink in self.sinks.values() for name in self.needed(sink.input))
        yield from (name for name in used if self.has_letters(name))

    def query_names(self) -> list[str]:
        """Return the names of all streaming queries, which are also their directories in the checkpoint."""
        return [*self.sinks, *(f"{LETTERS}{name}" for name in self.letter_inputs())]
