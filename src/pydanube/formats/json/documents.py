"""Reads JSON Schema documents: syntax, limits, references, and one form for both drafts.

`read` makes a graph of nodes of a definition and of those it refers to. A node is a boolean or a dict of the keywords
of draft 2020-12 that decide about validity; draft-07 is translated. Where a document has a reference, the node has the
node that it means: {"$ref": <node>}. Nothing else of a reference is left, so that no library can follow one.

What is checked here, so that the time and memory of everything behind it are bounded
    the nesting of the text, the length of enums
    references: every one is resolved in the document or in a registered definition, or refused by name
    no schema applies itself to the same value, directly or indirectly
    how often a schema looks at one value (allOf of allOf of ... doubles with each level)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from math import isfinite
from typing import Any, Final, NoReturn
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from pydanube.model.errors import Invalid
from pydanube.model.schemas import SchemaDefinition, SchemaFormat
from pydanube.model.text import one_line

Node = dict[str, Any] | bool

DRAFT_2020_12: Final = "https://json-schema.org/draft/2020-12/schema"
DRAFT_07: Final = "http://json-schema.org/draft-07/schema"
_DRAFTS: Final = {
    DRAFT_2020_12: DRAFT_2020_12,
    DRAFT_07: DRAFT_07,
    "https://json-schema.org/draft-07/schema": DRAFT_07,
}

NESTING_MAX: Final = 128
"""Levels of a definition's JSON. The libraries take about twice that many."""

ENUM_VALUES_MAX: Final = 10_000
ENUM_OBJECTS_MAX: Final = 1_000
"""Values of one enum, and of one with objects or arrays, which are compared with a payload one by one."""

WORK_MAX: Final = 10_000
"""How many schemas may look at one value of a payload, which is a few milliseconds."""

_NODES_MAX: Final = 250_000
"""Nodes of a graph, each as often as it is inside another one that a reference leads to."""

_PLAIN: Final = (
    "type",
    "enum",
    "const",
    "multipleOf",
    "maximum",
    "exclusiveMaximum",
    "minimum",
    "exclusiveMinimum",
    "maxLength",
    "minLength",
    "pattern",
    "maxItems",
    "minItems",
    "uniqueItems",
    "maxProperties",
    "minProperties",
    "required",
)
_PLAIN_2020: Final = (*_PLAIN, "dependentRequired")
_ONE: Final = ("additionalProperties", "contains", "propertyNames", "not", "if", "then", "else")
_ONE_2020: Final = (*_ONE, "items", "unevaluatedProperties", "unevaluatedItems")
_TYPES: Final = ("array", "boolean", "integer", "null", "number", "object", "string")
_LISTS: Final = ("allOf", "anyOf", "oneOf")
_LISTS_2020: Final = (*_LISTS, "prefixItems")
_MAPS: Final = ("properties", "patternProperties")
_MAPS_2020: Final = (*_MAPS, "dependentSchemas")

_NO_EFFECT: Final[Mapping[str, Any]] = {
    "minLength": 0,
    "minItems": 0,
    "minProperties": 0,
    "uniqueItems": False,
    "minContains": 1,
    "required": [],
    "dependentRequired": {},
    "properties": {},
    "patternProperties": {},
    "dependentSchemas": {},
}
_SAID_TO_PEOPLE: Final = ("title", "description", "$comment", "examples")


def read_text(text: str) -> Any:
    """Return the value of JSON text. Raises Invalid for bad syntax, duplicate keys, NaN and too deep nesting.

    A float without a fraction becomes an int, because JSON Schema makes no difference between 1 and 1.0.
    """
    try:
        value = json.loads(
            text, object_pairs_hook=unique_keys, parse_constant=_refuse_constant, parse_float=_read_float
        )
    except Invalid:
        raise
    except RecursionError:
        raise Invalid(f"the definition is nested more than {NESTING_MAX} levels deep") from None
    except ValueError as error:
        raise Invalid(f"the definition is not JSON: {error}") from None
    if nested_deeper_than(NESTING_MAX, value):
        raise Invalid(f"the definition is nested more than {NESTING_MAX} levels deep")
    return value


def nested_deeper_than(levels: int, value: Any) -> bool:
    """Return whether `value` has more than `levels` levels of nested lists and dicts."""
    level = [value]
    for _ in range(levels):
        inner: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                inner += one.values()
            elif isinstance(one, list):
                inner += one
        if not inner:
            return False
        level = inner
    return any(isinstance(one, dict | list) for one in level)


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    read = dict(pairs)
    if len(read) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise Invalid(f"the key {twice!r} is there twice in one object")
    return read


def _refuse_constant(word: str) -> NoReturn:
    raise Invalid(f"the definition is not JSON: {word} is not a number")


def _read_float(digits: str) -> float | int:
    number = float(digits)
    if not isfinite(number):
        raise Invalid(f"the number {digits[:40]} is out of range")
    return int(number) if number.is_integer() and abs(number) <= 2**53 else number


def canonical_document(document: Any, draft: str) -> Any:
    """Return the document without what does not change its meaning: texts for people, the order of sets, what is the
    default anyway. Keywords that are not known stay."""
    cleaned = _clean(document)
    return {**cleaned, "$schema": draft} if isinstance(cleaned, dict) else cleaned


def _clean(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    cleaned: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword in _SAID_TO_PEOPLE or keyword == "$schema":
            continue
        if keyword in _NO_EFFECT and value == _NO_EFFECT[keyword] and type(value) is type(_NO_EFFECT[keyword]):
            continue
        if keyword in ("required", "enum", "type") and isinstance(value, list):
            distinct = {json.dumps(one, sort_keys=True): one for one in value}
            value = [distinct[text] for text in sorted(distinct)]
            if keyword == "type" and len(value) == 1:
                value = value[0]
        else:
            value = map_schemas(keyword, value, _clean)
        cleaned[keyword] = value
    return cleaned


def map_schemas(keyword: str, value: Any, change: Callable[[Any], Any]) -> Any:
    """Return the value of a keyword with each schema in it changed, and other values as they are."""
    if keyword in _LISTS_2020 and isinstance(value, list):
        return [change(one) for one in value]
    if keyword in (*_MAPS_2020, "$defs", "definitions", "dependencies") and isinstance(value, dict):
        return {key: change(one) for key, one in value.items()}
    if keyword in (*_ONE_2020, "additionalItems"):
        return [change(one) for one in value] if isinstance(value, list) else change(value)
    return value


@dataclass(slots=True)
class Document:
    """One definition, and where its identifiers lead: absolute addresses of embedded schemas and of anchors."""

    name: str
    schema: Any
    draft: str
    resources: dict[str, Any] = field(default_factory=dict)
    anchors: dict[tuple[str, str], Any] = field(default_factory=dict)
    bases: dict[int, str] = field(default_factory=dict)
    """The address that references in a schema start from, by the identity of the schema."""


@dataclass(frozen=True, slots=True)
class Graph:
    """What `read` found."""

    root: Node
    documents: tuple[Document, ...]
    """The definition itself, then those that it uses."""
    patterns: tuple[tuple[str, str], ...]
    """The place and text of every regular expression."""
    work: int
    """How many schemas look at one value of a payload, at most."""
    recursive: bool


def read(definition: SchemaDefinition, references: Mapping[str, SchemaDefinition]) -> Graph:
    """Read a definition and those it refers to. Raises Invalid with the place and the reason."""
    reader = _Reader(references)
    root = reader.read(definition)
    work, recursive = _measure(root, reader.places)
    return Graph(root, tuple(reader.documents.values()), tuple(reader.patterns), work, recursive)


class _Reader:
    """Makes the graph. Schemas that references lead to are built after the schema with the reference, not inside it:
    chains of references may be long."""

    def __init__(self, references: Mapping[str, SchemaDefinition]) -> None:
        self._references = references
        self._nodes: dict[int, Node] = {}
        self._waiting: list[tuple[Document, Any, str, str, dict[str, Any]]] = []
        self.documents: dict[str, Document] = {}
        self.patterns: list[tuple[str, str]] = []
        self.places: dict[int, str] = {}

    def read(self, definition: SchemaDefinition) -> Node:
        document = self._open("", definition)
        root = self._target(document, document.schema, "", "#")
        while self._waiting:
            of, schema, base, place, node = self._waiting.pop()
            node.update(self._build(of, schema, base, place))
        return root

    def _open(self, name: str, definition: SchemaDefinition) -> Document:
        if definition.format is not SchemaFormat.JSON:
            raise Invalid(
                f"the reference {name!r} is a schema of the format {definition.format}, not {SchemaFormat.JSON}"
            )
        try:
            schema = read_text(definition.text)
            if not isinstance(schema, dict | bool):
                raise Invalid("a JSON Schema is an object or a boolean")
            document = Document(name, schema, _find_draft(schema), {"": schema})
            _check_meta(schema, document.draft, "#")
            _index(document, schema, "", "#")
        except Invalid as error:
            raise Invalid(f"in the reference {name!r}: {error.message}") if name else error from None
        self.documents[name] = document
        return document

    def _target(self, document: Document, schema: Any, base: str, place: str) -> Node:
        """Return the node of a schema, which is built later if it is new."""
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise Invalid(f"{place}: the reference leads to a {type(schema).__name__}, not to a schema")
        node = self._nodes.get(id(schema))
        if node is None:
            made: dict[str, Any] = {}
            node = self._nodes[id(schema)] = made
            if id(schema) not in document.bases:  # it is where the draft knows no schema
                _check_meta(schema, document.draft, place)
            self._waiting.append((document, schema, base, place, made))
        self.places.setdefault(id(node), f"{document.name}{place}")
        return node

    def _build(self, document: Document, schema: Any, base: str, place: str) -> dict[str, Any]:
        """Return the keywords of a schema that is a dict."""
        modern = document.draft == DRAFT_2020_12
        base = document.bases.get(id(schema), base)
        node: dict[str, Any] = {}
        if "$ref" in schema:
            node["$ref"] = self._resolve(document, schema["$ref"], base, place)
            if not modern:
                return node  # draft-07 ignores what stands beside a reference
        for keyword in ("$dynamicRef", "$recursiveRef"):
            if keyword in schema:
                raise Invalid(f"{place}: {keyword} {str(schema[keyword])[:100]!r} is not supported: use $ref")

        def build(inner: Any, *where: str) -> Node:
            return self._inline(document, inner, base, "/".join((place, *where)))

        for keyword in _PLAIN_2020 if modern else _PLAIN:
            if keyword in schema:
                node[keyword] = schema[keyword]
        if isinstance(schema.get("format"), str):
            node["format"] = schema["format"]  # which types of columns follow from
        if "pattern" in node:
            self.patterns.append((place, node["pattern"]))
        for pattern in schema.get("patternProperties", ()):
            self.patterns.append((place, pattern))
        values = node.get("enum", ())
        compound = any(isinstance(one, dict | list) for one in values)
        most = ENUM_OBJECTS_MAX if compound else ENUM_VALUES_MAX
        if len(values) > most:
            of = " with objects or arrays" if compound else ""
            raise Invalid(f"{place}: an enum{of} has {len(values)} values and may have {most}")
        for keyword in _ONE_2020 if modern else _ONE:
            if keyword in schema:
                node[keyword] = build(schema[keyword], keyword)
        for keyword in _LISTS_2020 if modern else _LISTS:
            if keyword in schema:
                node[keyword] = [build(one, keyword, str(at)) for at, one in enumerate(schema[keyword])]
        for keyword in _MAPS_2020 if modern else _MAPS:
            if keyword in schema:
                node[keyword] = {name: build(one, keyword, name) for name, one in schema[keyword].items()}
        if modern and "contains" in schema:
            for keyword in ("minContains", "maxContains"):
                if keyword in schema:
                    node[keyword] = schema[keyword]
        if not modern:
            _translate(schema, node, build)
        if "if" not in node:
            node.pop("then", None)
            node.pop("else", None)
        for keyword, default in _NO_EFFECT.items():
            if keyword in node and node[keyword] == default and type(node[keyword]) is type(default):
                del node[keyword]
        return node

    def _inline(self, document: Document, schema: Any, base: str, place: str) -> Node:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise Invalid(f"{place}: a schema is an object or a boolean")
        node = self._nodes.get(id(schema))
        if node is None:
            made: dict[str, Any] = {}
            node = self._nodes[id(schema)] = made
            made.update(self._build(document, schema, base, place))
        return node

    def _resolve(self, document: Document, reference: Any, base: str, place: str) -> Node:
        """Return the node that a reference means."""
        if not isinstance(reference, str):
            raise Invalid(f"{place}: $ref is not a text")
        where = f"{place}: $ref {reference[:200]!r}"
        address, fragment = _join(base, reference)
        if reference.startswith("#"):
            address, fragment = base, reference[1:]
        if address != base and address not in document.resources:
            name = next((one for one in (reference.partition("#")[0], address) if one in self._references), None)
            if name is None:
                raise Invalid(f"{where} {_why_unknown(address)}")
            document = self.documents.get(name) or self._open(name, self._references[name])
            address = document.bases.get(id(document.schema), "")
        resource = document.resources[address]
        fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            if (address, fragment) not in document.anchors:
                raise Invalid(f"{where} names an anchor that does not exist")
            found = document.anchors[address, fragment]
            return self._target(document, found, address, f"#{fragment}")
        found, base = _follow(document, resource, address, fragment, where)
        return self._target(document, found, base, f"#{fragment}")


def _find_draft(schema: Any) -> str:
    named = schema.get("$schema", DRAFT_2020_12) if isinstance(schema, dict) else DRAFT_2020_12
    draft = _DRAFTS.get(named.removesuffix("#")) if isinstance(named, str) else None
    if draft is None:
        raise Invalid(f"$schema {str(named)[:200]!r} is not supported: use {DRAFT_2020_12} or {DRAFT_07}#")
    return draft


def _check_meta(schema: Any, draft: str, place: str) -> None:
    """Check a schema against the schema of its draft, which the library has in it."""
    import jsonschema_rs

    if isinstance(schema, bool):
        return
    try:
        json.dumps(schema, ensure_ascii=False).encode()  # the library takes only whole characters
        jsonschema_rs.meta.validate({**schema, "$schema": draft})
    except UnicodeEncodeError:
        raise Invalid("a text has half a surrogate pair") from None
    except jsonschema_rs.ValidationError as error:
        path = "/".join((place, *map(str, error.instance_path)))
        reason = error.message
        if error.instance_path[-1:] == ["type"] and error.kind.name == "anyOf":
            reason = f"{json.dumps(error.instance)} is not a type: use {', '.join(_TYPES)} or a list of some of them"
        raise Invalid(f"{path}: {one_line(reason)}") from None
    except ValueError as error:
        raise Invalid(f"{place}: {one_line(error)}") from None


def _index(document: Document, schema: Any, base: str, place: str) -> None:
    """Note the addresses and anchors of a schema and of those inside it."""
    if not isinstance(schema, dict):
        return
    modern = document.draft == DRAFT_2020_12
    if "$schema" in schema and place != "#" and _find_draft(schema) != document.draft:
        raise Invalid(f"{place}: $schema is another draft than that of the document")
    identifier = schema.get("$id") if modern or "$ref" not in schema else None
    if isinstance(identifier, str):
        if not modern and identifier.startswith("#"):
            _note(document.anchors, (base, identifier[1:]), schema, f"{place}: the anchor {identifier!r}")
        else:
            base, _ = _join(base, identifier)
            if base:
                _note(document.resources, base, schema, f"{place}: $id {base[:200]!r}")
    if modern and isinstance(schema.get("$anchor"), str):
        _note(document.anchors, (base, schema["$anchor"]), schema, f"{place}: the anchor {schema['$anchor']!r}")
    document.bases[id(schema)] = base
    for keyword, value in schema.items():
        inner: list[Any] = []
        map_schemas(keyword, value, inner.append)
        for one in inner:
            _index(document, one, base, f"{place}/{keyword}")


def _note(table: dict[Any, Any], key: Any, schema: Any, what: str) -> None:
    if key in table and table[key] is not schema:
        raise Invalid(f"{what} is there twice")
    table[key] = schema


def _join(base: str, reference: str) -> tuple[str, str]:
    """Return the absolute form of a reference, and its fragment. It is only a name: nothing is ever fetched."""
    try:
        address, fragment = urldefrag(urljoin(base, reference))
        urlsplit(address)
    except ValueError:
        raise Invalid(f"{reference[:200]!r} is not an address") from None
    return address, fragment


def _why_unknown(address: str) -> str:
    scheme = urlsplit(address).scheme
    if scheme:
        return f"leads to {address[:200]!r}: nothing is fetched by {scheme}: register it and name it as a reference"
    return "is not in this document and not among its references"


def _follow(document: Document, schema: Any, base: str, pointer: str, where: str) -> tuple[Any, str]:
    """Follow a JSON pointer; return what is there, and the address that references in it start from."""
    for part in pointer.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(schema, dict) and key in schema:
            schema = schema[key]
        elif isinstance(schema, list) and key.isascii() and key.isdigit() and len(key) < 10 and int(key) < len(schema):
            schema = schema[int(key)]
        else:
            raise Invalid(f"{where} leads nowhere: there is no {key[:100]!r}")
        base = document.bases.get(id(schema), base)
    return schema, base


def _translate(schema: dict[str, Any], node: dict[str, Any], build: Any) -> None:
    """Add the keywords of draft-07 that have other names in 2020-12."""
    items = schema.get("items")
    if isinstance(items, list):
        node["prefixItems"] = [build(one, "items", str(at)) for at, one in enumerate(items)]
        if "additionalItems" in schema:
            node["items"] = build(schema["additionalItems"], "additionalItems")
        if not items:
            del node["prefixItems"]
    elif items is not None:
        node["items"] = build(items, "items")
    for name, needed in schema.get("dependencies", {}).items():
        if isinstance(needed, list):
            node.setdefault("dependentRequired", {})[name] = needed
        else:
            node.setdefault("dependentSchemas", {})[name] = build(needed, "dependencies", name)


def _in_place(node: dict[str, Any]) -> Iterator[Node]:
    """Give the schemas that a node applies to the same value."""
    for keyword in _LISTS:
        yield from node.get(keyword, ())
    for keyword in ("$ref", "not", "if", "then", "else"):
        if keyword in node:
            yield node[keyword]
    yield from node.get("dependentSchemas", {}).values()


def _inside(node: dict[str, Any]) -> Iterator[Node]:
    """Give the schemas that a node applies to what is in the value."""
    for keyword in ("properties", "patternProperties"):
        yield from node.get(keyword, {}).values()
    yield from node.get("prefixItems", ())
    for keyword in ("additionalProperties", "unevaluatedProperties", "propertyNames", "items", "contains"):
        if keyword in node:
            yield node[keyword]
    if "unevaluatedItems" in node:
        yield node["unevaluatedItems"]


def _find_targets(node: Node, same_value: bool, found: list[tuple[dict[str, Any], bool]]) -> int:
    """Add each node that a reference under `node` leads to, and whether it is applied to the same value. Return how
    many nodes were looked at."""
    if isinstance(node, bool):
        return 1
    target = node.get("$ref")
    if isinstance(target, dict):
        found.append((target, same_value))
    size = 1
    for inner in _in_place(node):
        if inner is not target:
            size += _find_targets(inner, same_value, found)
    for inner in _inside(node):
        size += _find_targets(inner, False, found)
    return size


def _measure(root: Node, places: Mapping[int, str]) -> tuple[int, bool]:
    """Check how references lead from node to node; return the work that one value takes, and whether there is
    recursion."""
    if isinstance(root, bool):
        return 1, False
    targets: dict[int, list[tuple[dict[str, Any], bool]]] = {}
    waiting = [root]
    size = 0
    while waiting:
        node = waiting.pop()
        if id(node) not in targets:
            found: list[tuple[dict[str, Any], bool]] = []
            size += _find_targets(node, True, found)
            if size > _NODES_MAX:
                raise Invalid(f"the definition has more than {_NODES_MAX} schemas in those that references lead to")
            targets[id(node)] = found
            waiting += [target for target, _ in found]
    try:
        same_value = {node: {id(to) for to, same in them if same} for node, them in targets.items()}
        tuple(TopologicalSorter(same_value).static_order())
    except CycleError as error:
        around = ", ".join(dict.fromkeys(places[one] for one in error.args[1]))
        raise Invalid(f"{one_line(around)}: the schema applies itself to the same value again and again") from None
    return _measure_work(root, targets, places)


def _measure_work(
    root: dict[str, Any], targets: dict[int, list[tuple[dict[str, Any], bool]]], places: Mapping[int, str]
) -> tuple[int, bool]:
    """Count how many schemas look at a value, depth first. A schema inside itself counts once, because the library
    remembers what it found out about a value."""
    work: dict[int, int] = {}
    open_nodes = {id(root)}
    recursive = False
    stack = [(root, iter(targets[id(root)]))]
    while stack:
        node, rest = stack[-1]
        target = next((to for to, _ in rest), None)
        if target is None:
            stack.pop()
            open_nodes.discard(id(node))
            work[id(node)] = _count(node, work)
            if work[id(node)] > WORK_MAX:
                raise Invalid(f"{places[id(node)]}: one value has to be looked at more than {WORK_MAX} times")
        elif id(target) in open_nodes:
            recursive = True
        elif id(target) not in work:
            open_nodes.add(id(target))
            stack.append((target, iter(targets[id(target)])))
    return work[id(root)], recursive


def _count(node: Node, work: Mapping[int, int]) -> int:
    if isinstance(node, bool):
        return 1
    count = 1 + (work.get(id(node["$ref"]), 1) if "$ref" in node else 0)
    count += sum(_count(inner, work) for inner in _in_place(node) if inner is not node.get("$ref"))
    # Different names and positions are different values.
    apart = [list(node.get("properties", {}).values()), node.get("prefixItems", [])]
    for values in apart:
        count += max((_count(inner, work) for inner in values), default=0)
    others = {key: value for key, value in node.items() if key not in ("properties", "prefixItems")}
    return count + sum(_count(inner, work) for inner in _inside(others))


def bundle(*nodes: Node) -> dict[str, Any]:
    """Return a document for the library: one schema that all `nodes` together make. Its references stay in it."""
    numbers: dict[int, int] = {}
    waiting: list[dict[str, Any]] = []
    definitions: dict[str, Any] = {}

    def export(node: Node) -> Any:
        if isinstance(node, bool):
            return node
        made: dict[str, Any] = {}
        for keyword, value in node.items():
            if keyword == "$ref":
                if isinstance(value, bool):
                    made["allOf"] = [*made.get("allOf", ()), value]
                    continue
                if id(value) not in numbers:
                    numbers[id(value)] = len(numbers)
                    waiting.append(value)
                made["$ref"] = f"#/$defs/{numbers[id(value)]}"
            elif keyword == "format":
                continue  # an annotation
            elif keyword == "allOf":
                made["allOf"] = [*made.get("allOf", ()), *map(export, value)]
            else:
                made[keyword] = map_schemas(keyword, value, export)
        return made

    exported = [export(node) for node in nodes]
    while waiting:
        node = waiting.pop()
        definitions[str(numbers[id(node)])] = export(node)
    return {"$schema": DRAFT_2020_12, "$defs": definitions, "allOf": exported}


def has_infinite(value: Any) -> bool:
    """Return whether a value, or one inside its lists and dicts, is NaN or infinite, which JSON cannot say."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, float) and not isfinite(one):
            return True
        if isinstance(one, dict):
            waiting += one.values()
        elif isinstance(one, list | tuple | set | frozenset):
            waiting += one
    return False
