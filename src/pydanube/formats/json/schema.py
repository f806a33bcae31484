"""JSON Schema, drafts 2020-12 and 07: payloads are JSON texts.

A payload is decoded by msgspec and validated by jsonschema-rs, a batch at once: all its values are one list, whose
`items` are the schema. `format`, `contentEncoding` and `contentMediaType` are annotations, as 2020-12 has it.

What a payload may not be, whatever the schema says: not UTF-8, with a key twice in one object, NaN or infinity, nested
more than PAYLOAD_NESTING_MAX levels.

The library gets the graph of `documents`, in which every reference is resolved already, a regular expression
engine without backtracking, and a retriever that refuses.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final, NoReturn

import jsonschema_rs
import msgspec

from pydanube.formats.all_formats import AnyBytes, InvalidRow, ParsedSchema
from pydanube.model.errors import Invalid
from pydanube.model.limits import MESSAGE_BYTES_MAX
from pydanube.model.schemas import SchemaDefinition
from pydanube.model.text import one_line

from . import documents
from .documents import Graph, Node, bundle, has_infinite, nested_deeper_than

PAYLOAD_NESTING_MAX: Final = 256
"""Levels of a payload. The library has no limit of its own and overflows the stack at some ten thousand."""

_PATTERN_BYTES_MAX: Final = 64 * 1024 * 1024
"""What all regular expressions of a definition may take in memory when they are compiled."""

_EXPLAINED_WORK_MAX: Final = 1_000
_EXPLAINED_BYTES_MAX: Final = 64 * 1024
"""Up to here a failure is explained with all alternatives of the schema; the library takes a multiple of the time."""

LOOKS_MAX: Final = 50_000_000
"""The values of one payload, times the schemas that may look at each: some seconds, in which nothing else is done."""

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def parse(definition: SchemaDefinition, references: Mapping[str, SchemaDefinition]) -> JsonSchema:
    """Parse a JSON Schema. Raises Invalid with the place and the reason."""
    return JsonSchema(definition, documents.read(definition, references))


def compile_document(document: dict[str, Any], patterns: int = 1) -> jsonschema_rs.Validator:
    """Return the validator of a document of `bundle`. `patterns` says how many regular expressions share the memory."""
    share = _PATTERN_BYTES_MAX // max(patterns, 8)
    return jsonschema_rs.Draft202012Validator(
        document,
        validate_formats=False,
        pattern_options=jsonschema_rs.RegexOptions(size_limit=share, dfa_size_limit=share),
        retriever=_refuse_to_retrieve,
    )


def _refuse_to_retrieve(address: str) -> NoReturn:
    raise ValueError(f"{address} is not fetched")


class JsonSchema:
    """A JSON Schema that was read with the definitions it refers to. Immutable."""

    def __init__(self, definition: SchemaDefinition, graph: Graph) -> None:
        self._definition = definition
        self._graph = graph
        self._patterns = len(graph.patterns)
        self._light_bytes = LOOKS_MAX // max(1, graph.work)
        """A payload of at most this size has too few values to take too long."""
        self._is_light = self._light_bytes >= MESSAGE_BYTES_MAX // 2  # a value takes two bytes
        try:
            self._validator = compile_document(_rows_of(bundle(graph.root)), self._patterns)
        except (jsonschema_rs.ValidationError, ValueError) as error:
            raise self._explain_refusal(error) from None

    @property
    def definition(self) -> SchemaDefinition:
        return self._definition

    @property
    def root(self) -> Node:
        """The schema as a graph of nodes, which the comparison of schemas uses."""
        return self._graph.root

    @cached_property
    def canonical(self) -> bytes:
        first, *others = self._graph.documents
        canonical: Any = documents.canonical_document(first.schema, first.draft)
        if others:
            used = {one.name: documents.canonical_document(one.schema, one.draft) for one in others}
            canonical = {"schema": canonical, "references": used}
        return json.dumps(canonical, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()

    def check(self, payloads: Sequence[AnyBytes]) -> InvalidRow | None:
        if not self._is_light and max(map(len, payloads), default=0) > self._light_bytes:
            return self._find_invalid(payloads)
        try:
            values = list(map(_decode, payloads))
        except _UNREADABLE:
            return self._find_invalid(payloads)
        if not _may_be_deep(payloads) and self._validator.is_valid(values) and _have_unique_keys(values, payloads):
            return None
        return self._find_invalid(payloads)

    def decode(self, payload: AnyBytes, writer: ParsedSchema | None = None) -> Any:
        value = _read(payload)
        if not self._validator.is_valid([value]):
            raise Invalid(self._explain(value, len(payload)))
        return value

    def encode(self, value: Any) -> bytes:
        try:
            payload = _encode(value)
            if b"null" in payload and has_infinite(msgspec.to_builtins(value)):  # it writes NaN as null
                raise Invalid("the value has a number that JSON does not have: NaN or infinity")
        except OverflowError:
            payload = _encode_large(value)
        except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            raise Invalid(f"the value cannot be written as JSON: {one_line(error)}") from None
        self.decode(payload)
        return payload

    def _find_invalid(self, payloads: Sequence[AnyBytes]) -> InvalidRow | None:
        for row, payload in enumerate(payloads):
            try:
                self._check_looks(payload)
                self.decode(payload)
            except Invalid as error:
                return InvalidRow(row, error.message)
        return None

    def _check_looks(self, payload: AnyBytes) -> None:
        if self._is_light or len(payload) <= self._light_bytes:
            return
        data = bytes(payload)
        values = 1 + sum(map(data.count, (b",", b"[", b"{")))
        if values * self._graph.work > LOOKS_MAX:
            raise Invalid(
                f"the payload has about {values} values, and the schema looks at a value up to {self._graph.work} "
                f"times: that takes too long to be checked"
            )

    def _explain(self, value: Any, size: int) -> str:
        """Say why a value is not valid: the place and what is wrong there."""
        graph = self._graph
        plain = graph.recursive or graph.work > _EXPLAINED_WORK_MAX or size > _EXPLAINED_BYTES_MAX
        try:
            (self._plain_validator if plain else self._validator).validate([value])
        except jsonschema_rs.ValidationError as error:
            return one_line(f"{_show_path(error.instance_path[1:])}: {_reason(error)}")
        return "$: the value does not match the alternatives and conditions of the schema"

    @cached_property
    def _plain_validator(self) -> jsonschema_rs.Validator:
        """The schema without alternatives: the library takes exponential time to explain those in recursive schemas."""
        return compile_document(_rows_of(_without_alternatives(bundle(self._graph.root))), self._patterns)

    def _explain_refusal(self, error: Exception) -> Invalid:
        """Find the regular expression that is the reason, in the document as it was written."""
        for place, pattern in self._graph.patterns:
            try:
                compile_document({"pattern": pattern}, self._patterns)
            except (jsonschema_rs.ValidationError, ValueError):
                return Invalid(
                    f"{place}: the regular expression {one_line(pattern, 100)!r} is not valid, or too large, or has "
                    f"look-around or back-references, for which no matching in linear time is known"
                )
        return Invalid(f"the schema is not valid: {one_line(error)}")


def _rows_of(document: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a list, each item of which has the schema of `document`."""
    [schema] = document["allOf"]
    return {"$schema": document["$schema"], "$defs": document["$defs"], "items": schema}


def _without_alternatives(schema: Any) -> Any:
    """Return a schema of `bundle` that only has what every valid value must be."""
    if not isinstance(schema, dict):
        return schema
    made = {}
    for keyword, value in schema.items():
        if keyword in ("anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "contains"):
            continue
        if keyword in ("unevaluatedProperties", "unevaluatedItems", "minContains", "maxContains"):
            continue
        made[keyword] = documents.map_schemas(keyword, value, _without_alternatives)
    return made


def _read(payload: AnyBytes) -> Any:
    """Decode a payload on its own, with the checks that do not depend on the schema."""
    try:
        value = _decode(payload)
    except RecursionError:
        raise Invalid(f"the payload is nested more than {PAYLOAD_NESTING_MAX} levels deep") from None
    except UnicodeDecodeError as error:
        raise Invalid(f"the payload is not UTF-8: {error.reason}") from None
    except msgspec.DecodeError as error:
        raise Invalid(f"the payload is not JSON: {one_line(error)}") from None
    if len(payload) > 2 * PAYLOAD_NESTING_MAX and nested_deeper_than(PAYLOAD_NESTING_MAX, value):
        raise Invalid(f"the payload is nested more than {PAYLOAD_NESTING_MAX} levels deep")
    if not _have_unique_keys([value], [payload]):
        json.loads(bytes(payload), object_pairs_hook=documents.unique_keys)
    return value


def _may_be_deep(payloads: Sequence[AnyBytes]) -> bool:
    """Return whether a payload has enough brackets to be nested too deeply."""
    if max(map(len, payloads), default=0) <= 2 * PAYLOAD_NESTING_MAX:
        return False
    texts = map(bytes, payloads)
    return any(text.count(b"[") + text.count(b"{") > PAYLOAD_NESTING_MAX for text in texts)


def _have_unique_keys(values: list[Any], payloads: Sequence[AnyBytes]) -> bool:
    """Say whether no object of the payloads has a key twice; False also if that is only possible.

    The decoder keeps the last of equal keys. What it keeps is written again and has fewer colons then: one for each
    object member and those in texts, which are never escaped. A text that was sent with an escaped colon is not counted
    that way.
    """
    text = b"".join(payloads)
    try:
        return b"\\u003" not in text and _encode(values).count(b":") == text.count(b":")
    except OverflowError:  # integers of more than 64 bits
        return False


def _encode_large(value: Any) -> bytes:
    """Encode a value with integers of more than 64 bits."""
    try:
        builtins = msgspec.to_builtins(value)
        return json.dumps(builtins, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise Invalid(f"the value cannot be written as JSON: {one_line(error)}") from None


def _reason(error: jsonschema_rs.ValidationError) -> str:
    """Return what is wrong with a value; of `anyOf` and `oneOf`, what is wrong for each alternative."""
    alternatives = [one[0] for one in getattr(error.kind, "context", ()) if one][:8]
    if not alternatives:
        return error.message
    reasons = [
        one.message
        if one.instance_path == error.instance_path
        else f"{_show_path(one.instance_path[1:])}: {one.message}"
        for one in alternatives
    ]
    return f"no alternative of {error.kind.name} fits: {'; '.join(dict.fromkeys(reasons))}"


def _show_path(path: Sequence[str | int]) -> str:
    shown = "$"
    for part in path:
        shown += f"[{part}]" if isinstance(part, int) else f".{part}"
    return shown
