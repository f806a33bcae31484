"""Avro's rules: whether data of a writer's schema resolves to a reader's, by the specification.

Stricter than its text in one point: a logical type that the reader changes, or adds where not every value of the
writer has a meaning in it, is incompatible, because the values would be wrong or could not be read. Bytes read as text
are compatible, as the specification says, though only where they are UTF-8.

Pairs of types wait in a list: the path through two recursive schemas can be as long as the product of their sizes.
"""

from __future__ import annotations

from typing import Final

from pydanube.formats import ParsedSchema
from pydanube.model.schemas import Incompatibility

from .read import field_sources
from .schema import AvroSchema
from .types import (
    LOGICAL_RANGES,
    PROMOTIONS,
    Array,
    AvroType,
    EnumType,
    Fixed,
    Map,
    Named,
    Record,
    Union,
    choose_branch,
    extend_path,
    names_match,
    value_range,
)

PAIRS_MAX: Final = 100_000
"""How many pairs of types are compared; a definition that needs more is not found compatible."""

_LISTED_MAX: Final = 20


def find(reader: ParsedSchema, writer: ParsedSchema) -> list[Incompatibility]:
    """Return every reason why data of the writer may not be readable by the reader."""
    assert isinstance(reader, AvroSchema) and isinstance(writer, AvroSchema)
    return _Comparison().run(reader.root, writer.root)


class _Comparison:
    def __init__(self) -> None:
        self._reasons: list[Incompatibility] = []
        self._waiting: list[tuple[AvroType, AvroType, str]] = []
        self._records: set[tuple[str, str]] = set()

    def run(self, reader: AvroType, writer: AvroType) -> list[Incompatibility]:
        self._waiting.append((reader, writer, "$"))
        compared = 0
        while self._waiting:
            compared += 1
            if compared > PAIRS_MAX:
                self._refuse("$", f"cannot decide: more than {PAIRS_MAX} pairs of types have to be compared")
                break
            self._compare(*self._waiting.pop())
        return self._reasons

    def _refuse(self, path: str, reason: str) -> None:
        self._reasons.append(Incompatibility(path, reason[:500]))

    def _compare(self, reader: AvroType, writer: AvroType, path: str) -> None:
        if isinstance(writer, Union):
            self._waiting += [(reader, one, path) for one in reversed(writer.branches)]
        elif isinstance(reader, Union):
            branch = choose_branch(reader, writer)
            if branch is None:
                self._refuse(path, f"{writer.title} is not in the {reader.title}")
            else:
                self._waiting.append((branch, writer, path))
        else:
            self._compare_kinds(reader, writer, path)

    def _compare_kinds(self, reader: AvroType, writer: AvroType, path: str) -> None:
        match reader, writer:
            case Array(), Array():
                self._waiting.append((reader.items, writer.items, extend_path(path, "[]")))
            case Map(), Map():
                self._waiting.append((reader.values, writer.values, extend_path(path, "{}")))
            case Named(), Named() if reader.kind == writer.kind:
                self._compare_named(reader, writer, path)
            case _ if reader.kind == writer.kind or reader.kind in PROMOTIONS.get(writer.kind, frozenset()):
                self._compare_logical(reader, writer, path)
            case _:
                self._refuse(path, f"the type was {writer.title} and is {reader.title}")

    def _compare_named(self, reader: Named, writer: Named, path: str) -> None:
        if not names_match(reader, writer):
            self._refuse(path, f"the {writer.kind} was {writer.name} and is {reader.name}, without an alias for it")
        match reader, writer:
            case Record(), Record():
                self._compare_records(reader, writer, path)
            case EnumType(), EnumType():
                missing = [one for one in writer.symbols if one not in reader.known]
                if missing and reader.default is None:
                    self._refuse(path, f"the enum {reader.name} has no default and not the symbols {_listed(missing)}")
            case Fixed(), Fixed():
                if reader.size != writer.size:
                    self._refuse(path, f"the size of {reader.name} was {writer.size} and is {reader.size}")
                else:
                    self._compare_logical(reader, writer, path)

    def _compare_records(self, reader: Record, writer: Record, path: str) -> None:
        pair = (reader.name, writer.name)
        if pair in self._records:
            return
        self._records.add(pair)
        waiting = []
        for target, source in field_sources(reader, writer):
            at = extend_path(path, f".{target.name}")
            if source is not None:
                waiting.append((target.type, source.type, at))
            elif not target.has_default:
                self._refuse(at, "the field is not in the writer's schema and has no default")
        self._waiting += reversed(waiting)

    def _compare_logical(self, reader: AvroType, writer: AvroType, path: str) -> None:
        new, old = reader.logical, writer.logical
        if new is None or new.same(old):
            return
        if old is not None:
            self._refuse(path, f"the logical type was {_described(writer)} and is {_described(reader)}")
        elif not _covers(reader, writer):
            self._refuse(path, f"not every {writer.kind} is a {_described(reader)}, which it is now")


def _covers(reader: AvroType, writer: AvroType) -> bool:
    """Say whether every value of a type without a logical type has a meaning in the logical type of the reader."""
    assert reader.logical is not None
    if (reader.kind, reader.logical.name) in LOGICAL_RANGES and writer.kind in {"int", "long"}:
        (low, high), (least, greatest) = value_range(reader), value_range(writer)
        return low <= least and greatest <= high
    return isinstance(reader, Fixed) and reader.logical.name != "decimal"


def _described(avro_type: AvroType) -> str:
    logical = avro_type.logical
    assert logical is not None
    return f"decimal({logical.precision}, {logical.scale})" if logical.name == "decimal" else logical.name


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _LISTED_MAX} more" if len(names) > _LISTED_MAX else ""
    return ", ".join(one[:100] for one in names[:_LISTED_MAX]) + more
