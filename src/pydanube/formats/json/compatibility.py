"""Whether every value that one JSON Schema allows is allowed by another.

`find` tries to prove it, keyword by keyword; whatever it cannot prove is an Incompatibility. Where the keywords give no
definite answer, the reason begins with "cannot decide".

How it proves
    The writer is a list of fragments that are all true of a value: a schema, those it refers to and those in its allOf.
    Each fragment of the reader must follow from them.
    If it does not follow at once, it must follow from each of the writer's alternatives (anyOf, oneOf, if/then/else,
    several types).
    A writer with finitely many values (enum, const, booleans, null) is decided by trying them with the validator.
    A recursive schema comes back to a pair of fragments that is being proved already, one level deeper in the value:
    there it may be taken for granted, because values are finite.

The time is bounded: after STEPS_MAX comparisons the answer is that it cannot be decided.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import jsonschema_rs

from pydanube.model.schemas import Incompatibility
from pydanube.model.text import one_line

from .documents import Node, bundle
from .schema import JsonSchema, compile_document

STEPS_MAX: Final = 20_000
_LEVELS_MAX: Final = 40
"""How deep in a value fragments are compared."""

_VALUES_SHOWN: Final = 10
_ALL: Final = frozenset({"null", "boolean", "object", "array", "number", "string"})
_UNDECIDED: Final = "cannot decide"

Fragment = dict[str, Any]
"""A node without $ref and allOf."""
Writer = tuple[Fragment, ...]
Problem = tuple[str, str]
"""A path and a reason."""


def find(reader: JsonSchema, writer: JsonSchema) -> list[Incompatibility]:
    """Return every reason why a value that `writer` allows may not be allowed by `reader`."""
    if reader.canonical == writer.canonical:
        return []
    comparison = _Comparison()
    try:
        problems = comparison.compare(writer.root, reader.root)
    except _TooLarge:
        problems = [("$", f"{_UNDECIDED}: the schemas need more than {STEPS_MAX} comparisons")]
    except RecursionError:
        problems = [("$", f"{_UNDECIDED}: the schemas are nested too deeply")]
    return [Incompatibility(path, one_line(reason)) for path, reason in dict.fromkeys(problems)]


class _TooLarge(Exception):
    """The comparison takes too long."""


@dataclass(slots=True)
class _Facts:
    """What follows from the fragments of a writer about the value itself."""

    types: frozenset[str] = _ALL
    values: list[Any] | None = None
    required: frozenset[str] = frozenset()
    never: bool = False
    tightest: dict[str, Any] = field(default_factory=dict)
    """The strictest of minLength, maximum and so on."""


_LARGEST: Final = ("minLength", "minItems", "minProperties", "minimum", "exclusiveMinimum")
_SMALLEST: Final = ("maxLength", "maxItems", "maxProperties", "maximum", "exclusiveMaximum")


class _Comparison:
    """One comparison of two schemas, with what was found out so far."""

    def __init__(self) -> None:
        self._steps = 0
        self._fragments: dict[int, tuple[Node, Writer | None]] = {}
        self._made: dict[Any, Fragment] = {}
        self._kept: list[Any] = []
        self._facts: dict[frozenset[int], _Facts] = {}
        self._open: set[Any] = set()
        self._proved: dict[Any, None] = {}
        self._validators: dict[Any, tuple[Any, jsonschema_rs.Validator]] = {}

    def compare(self, writer: Node, reader: Node) -> list[Problem]:
        return self._follows(self._flatten(writer), reader, "$", 0)

    # -- fragments

    def _flatten(self, node: Node) -> Writer | None:
        """Return the fragments of a node; None: it allows nothing."""
        while isinstance(node, dict) and node.keys() == {"$ref"}:  # a chain may be longer than the stack
            self._step()
            node = node["$ref"]
        if isinstance(node, bool):
            return () if node else None
        known = self._fragments.get(id(node))
        if known is not None:
            return known[1]
        self._step()
        found: dict[int, Fragment] = {}
        flat: Writer | None = ()
        inner = [*([node["$ref"]] if "$ref" in node else []), *node.get("allOf", ())]
        for one in inner:
            parts = self._flatten(one)
            if parts is None:
                flat = None
                break
            found.update((id(part), part) for part in parts)
        if flat is not None:
            found.update((id(part), part) for part in self._simplify(node, tuple(found.values())))
            flat = tuple(found.values())
        self._fragments[id(node)] = (node, flat)
        return flat

    def _simplify(self, node: Fragment, beside: Writer) -> list[Fragment]:
        """Return the fragments of a node without its $ref and allOf, whose fragments are `beside`.

        unevaluatedProperties and unevaluatedItems become additionalProperties and items where that is the same.
        Otherwise the node stays whole, because they depend on everything beside them.
        """
        own = {key: value for key, value in node.items() if key not in ("$ref", "allOf")}
        parts = []
        for keyword, closing in (("unevaluatedProperties", "additionalProperties"), ("unevaluatedItems", "items")):
            if keyword not in own:
                continue
            unclear = ("anyOf", "oneOf", "not", "if", "dependentSchemas", "contains", closing)
            if any(name in part for part in (own, *beside) for name in unclear):
                return [node]
            if any(keyword in part for part in beside):
                return [node]
            closed: Fragment = {closing: own.pop(keyword)}
            if closing == "items":
                ahead = max(len(part.get("prefixItems", ())) for part in (own, *beside))
                closed.update({"prefixItems": [True] * ahead} if ahead else {})
            else:
                for names in ("properties", "patternProperties"):
                    closed[names] = {name: True for part in (own, *beside) for name in part.get(names, ())}
            parts.append(closed)
        if own:
            parts.append(node if own.keys() == node.keys() else own)
        self._kept += parts
        return parts

    def _make(self, key: Any, fragment: Fragment) -> Fragment:
        """Return the fragment of this key, so that the same question has the same fragments again."""
        return self._made.setdefault(key, fragment)

    def _both(self, first: Writer | None, *others: Node) -> Writer | None:
        """Return the fragments of all together."""
        if first is None:
            return None
        found = {id(part): part for part in first}
        for node in others:
            parts = self._flatten(node)
            if parts is None:
                return None
            found.update((id(part), part) for part in parts)
        return tuple(found.values())

    def _step(self, steps: int = 1) -> None:
        self._steps += steps
        if self._steps > STEPS_MAX:
            raise _TooLarge

    def _is_same(self, first: Fragment, second: Fragment) -> bool:
        """Say whether two fragments are written alike, with what their references lead to."""
        seen: set[tuple[int, int]] = set()
        waiting: list[tuple[Any, Any]] = [(first, second)]
        same = True
        while waiting and same:
            one, other = waiting.pop()
            if one is other or (id(one), id(other)) in seen:
                continue
            if isinstance(one, dict) and isinstance(other, dict):
                seen.add((id(one), id(other)))
                same = one.keys() == other.keys()
                waiting += [(one[key], other[key]) for key in one] if same else []
            elif isinstance(one, list) and isinstance(other, list):
                same = len(one) == len(other)
                waiting += zip(one, other, strict=False)
            else:
                same = type(one) is type(other) and one == other
        self._step(len(seen) // 20)
        return same

    # -- what follows

    def _follows(self, writer: Writer | None, reader: Node, path: str, level: int) -> list[Problem]:
        """Return why not every value of `writer` is one of `reader`; empty: every one is."""
        if writer is None or reader is True:
            return []
        facts = self._gather(writer)
        if facts.never:
            return []
        fragments = self._flatten(reader)
        if fragments is None:
            return [(path, "nothing is allowed here any more")]
        problems: list[Problem] = []
        for fragment in fragments:
            problems += self._implies(writer, facts, fragment, path, level)
        return problems

    def _implies(self, writer: Writer, facts: _Facts, reader: Fragment, path: str, level: int) -> list[Problem]:
        """The same for one fragment of the reader."""
        if any(part is reader for part in writer):
            return []
        key = (frozenset(map(id, writer)), id(reader))
        if key in self._open or key in self._proved:
            return []
        self._step()
        if level > _LEVELS_MAX:
            return [(path, f"{_UNDECIDED}: more than {_LEVELS_MAX} levels deep")]
        if any(self._is_same(part, reader) for part in writer):
            return []
        self._open.add(key)
        before = len(self._proved)
        try:
            problems = self._prove(writer, facts, reader, path, level)
        finally:
            self._open.discard(key)
        if problems:
            while len(self._proved) > before:  # what was proved meanwhile may have taken this one for granted
                self._proved.popitem()
        else:
            self._proved[key] = None
        return problems

    def _prove(self, writer: Writer, facts: _Facts, reader: Fragment, path: str, level: int) -> list[Problem]:
        if facts.values is not None:
            problems = self._try_values(facts.values, reader, path)
            listed = any("enum" in part or "const" in part for part in writer)
            by_type = [] if listed else _compare_types(facts, reader, path)
            return by_type if problems and by_type else problems
        problems = self._by_keyword(writer, facts, reader, path, level)
        if not problems:
            return []
        for branches in self._alternatives(writer, facts):
            problems = []
            for branch in branches:
                if branch is not None and not (its := self._gather(branch)).never:
                    problems += self._implies(branch, its, reader, path, level)
        return problems

    def _alternatives(self, writer: Writer, facts: _Facts) -> Iterator[list[Writer | None]]:
        """Give the first set of alternatives of a writer, each with everything else that is true of the value."""
        for part in writer:
            for keyword in ("anyOf", "oneOf"):
                if keyword in part:
                    rest = self._without(part, keyword)
                    others = tuple(one for one in writer if one is not part)
                    yield [self._both(others, rest, one) for one in part[keyword]]
                    return
            if "if" in part:
                rest = self._without(part, "if", "then", "else")
                others = tuple(one for one in writer if one is not part)
                unless = self._make(("not", id(part["if"])), {"not": part["if"]})
                yield [
                    self._both(others, rest, part["if"], part.get("then", True)),
                    self._both(others, rest, unless, part.get("else", True)),
                ]
                return
        if 1 < len(facts.types) < len(_ALL):
            yield [self._both(writer, self._make(("type", one), {"type": one})) for one in sorted(facts.types)]

    def _without_values(self, part: Fragment) -> Node:
        """Return a fragment without its enum and const, which are compared here: in the library, one by one."""
        if "enum" not in part and "const" not in part:
            return part
        rest = {key: value for key, value in part.items() if key not in ("enum", "const")}
        return self._make((id(part), "values"), rest) if rest else True

    def _without(self, part: Fragment, *keywords: str) -> Node:
        bound = ("$ref", "allOf", "unevaluatedProperties", "unevaluatedItems")  # they mean something else without it
        rest = {key: value for key, value in part.items() if key not in keywords and key not in bound}
        return self._make((id(part), keywords), rest) if rest else True

    def _try_values(self, values: Sequence[Any], reader: Fragment, path: str) -> list[Problem]:
        self._step(len(values) // 100)
        listed = {_text(value) for value in _values_of(reader)} if "enum" in reader or "const" in reader else None
        rest = self._without_values(reader)
        bad = [
            value
            for value in values
            if (listed is not None and _text(value) not in listed) or not self._is_valid(value, rest)
        ]
        if not bad:
            return []
        shown = ", ".join(json.dumps(value) for value in bad[:_VALUES_SHOWN])
        more = f" and {len(bad) - _VALUES_SHOWN} more" if len(bad) > _VALUES_SHOWN else ""
        return [(path, f"was allowed and is not: {shown}{more}")]

    def _is_valid(self, value: Any, *nodes: Node) -> bool:
        if nodes == (True,):
            return True
        key = tuple(map(id, nodes))
        if key not in self._validators:
            document = bundle(*nodes)
            self._step(1 + len(json.dumps(document)) // 1000)
            self._validators[key] = (nodes, compile_document(document))
        return self._validators[key][1].is_valid(value)

    # -- facts

    def _gather(self, writer: Writer) -> _Facts:
        key = frozenset(map(id, writer))
        if key not in self._facts:
            self._facts[key] = self._gather_new(writer)
        return self._facts[key]

    def _gather_new(self, writer: Writer) -> _Facts:
        facts = _Facts()
        for part in writer:
            if "type" in part:
                facts.types = _intersect_types(facts.types, _types_of(part))
            facts.required |= frozenset(part.get("required", ()))
            for keywords, tighter in ((_LARGEST, max), (_SMALLEST, min)):
                for keyword in keywords:
                    if keyword in part:
                        limit = part[keyword]
                        facts.tightest[keyword] = tighter(facts.tightest.get(keyword, limit), limit)
        listing = next((part for part in writer if "enum" in part or "const" in part), None)
        values = _values_of(listing) if listing is not None else None
        if values is None and facts.types <= {"null", "boolean"}:
            possible: dict[str, list[Any]] = {"null": [None], "boolean": [False, True]}
            values = [value for one in sorted(facts.types) for value in possible[one]]
        if values is not None:
            self._step(len(values) // 100)
            parts = [self._without_values(part) if part is listing else part for part in writer]
            facts.values = [value for value in values if all(self._is_valid(value, part) for part in parts)]
        facts.never = not facts.types or facts.values == [] or _is_empty_range(facts)
        return facts

    # -- one keyword of the reader after the other

    def _by_keyword(self, writer: Writer, facts: _Facts, reader: Fragment, path: str, level: int) -> list[Problem]:
        problems = _compare_types(facts, reader, path)
        if "enum" in reader or "const" in reader:
            word = "enum" if "enum" in reader else "const"
            problems.append((path, f"values outside of {word} were allowed"))
        if facts.types & {"number", "integer"}:
            problems += _compare_numbers(writer, facts, reader, path)
        if "string" in facts.types:
            problems += _compare_strings(writer, facts, reader, path)
        if "array" in facts.types:
            problems += self._compare_arrays(writer, facts, reader, path, level)
        if "object" in facts.types:
            problems += self._compare_objects(writer, facts, reader, path, level)
        return problems + self._compare_combinators(writer, reader, path, level)

    def _compare_arrays(self, writer: Writer, facts: _Facts, reader: Fragment, path: str, level: int) -> list[Problem]:
        problems = list(_compare_limits(facts, reader, path, ("minItems", "maxItems"), "items"))
        most = facts.tightest.get("maxItems")
        unique = (most is not None and most <= 1) or any(part.get("uniqueItems") for part in writer)
        if reader.get("uniqueItems") and not unique:
            problems.append((path, "uniqueItems was added"))
        if "items" in reader or "prefixItems" in reader:
            ahead = max(len(part.get("prefixItems", ())) for part in (*writer, reader))
            for at in range(ahead + 1):
                if most is not None and at >= most:
                    break
                known = self._both((), *(_item(part, at) for part in writer))
                where = f"{path}[{at}]" if at < ahead else f"{path}[]"
                problems += self._follows(known, _item(reader, at), where, level + 1)
        if "contains" in reader:
            problems += self._compare_contains(writer, reader, path, level)
        if reader.get("unevaluatedItems", True) is not True:
            problems.append((path, f"{_UNDECIDED}: unevaluatedItems beside alternatives"))
        return problems

    def _compare_contains(self, writer: Writer, reader: Fragment, path: str, level: int) -> list[Problem]:
        theirs = [part for part in writer if "contains" in part]
        least, most = reader.get("minContains", 1), reader.get("maxContains")
        wanted = reader["contains"]
        problems: list[Problem] = []
        if least > 0 and not any(
            part.get("minContains", 1) >= least
            and not self._follows(self._flatten(part["contains"]), wanted, path, level + 1)
            for part in theirs
        ):
            problems.append((path, "contains asks for items that did not have to be there"))
        if most is not None and not any(
            part.get("maxContains", most + 1) <= most
            and not self._follows(self._flatten(wanted), part["contains"], path, level + 1)
            for part in theirs
        ):
            problems.append((path, "maxContains limits items that could be there more often"))
        return problems

    def _compare_objects(self, writer: Writer, facts: _Facts, reader: Fragment, path: str, level: int) -> list[Problem]:
        missing = [name for name in reader.get("required", ()) if name not in facts.required]
        problems = [(_member(path, name), "is required and could be absent") for name in missing]
        problems += self._compare_sizes(writer, facts, reader, path)
        problems += self._compare_properties(writer, reader, path, level)
        for name, needed in reader.get("dependentRequired", {}).items():
            given = facts.required | {one for part in writer for one in part.get("dependentRequired", {}).get(name, ())}
            missing = [one for one in needed if one not in given]
            if missing and not self._is_forbidden(writer, name):
                problems.append((_member(path, name), f"needs {', '.join(missing)} beside it, which could be absent"))
        for name, schema in reader.get("dependentSchemas", {}).items():
            present = self._make(("required", name), {"required": [name]})
            also = [part["dependentSchemas"][name] for part in writer if name in part.get("dependentSchemas", ())]
            if not self._is_forbidden(writer, name):
                problems += self._follows(self._both(writer, present, *also), schema, path, level)
        if "propertyNames" in reader:
            problems += self._compare_names(writer, reader, path, level)
        if reader.get("unevaluatedProperties", True) is not True:
            problems.append((path, f"{_UNDECIDED}: unevaluatedProperties beside alternatives"))
        return problems

    def _compare_sizes(self, writer: Writer, facts: _Facts, reader: Fragment, path: str) -> Iterable[Problem]:
        least, most = facts.tightest.get("minProperties"), facts.tightest.get("maxProperties")
        names = _closed_names(writer)
        if names is not None:
            most = len(names) if most is None else min(most, len(names))
        implied = {"minProperties": max(least or 0, len(facts.required)), "maxProperties": most}
        tightest = {key: value for key, value in implied.items() if value is not None}
        return _compare_limits(
            _Facts(tightest=tightest), reader, path, ("minProperties", "maxProperties"), "properties"
        )

    def _compare_properties(self, writer: Writer, reader: Fragment, path: str, level: int) -> list[Problem]:
        if not any(key in reader for key in ("properties", "patternProperties", "additionalProperties")):
            return []
        problems: list[Problem] = []
        names = dict.fromkeys(name for part in (reader, *writer) for name in part.get("properties", ()))
        for name in names:
            wanted = self._property(reader, name)
            known = self._both((), *(self._property(part, name) for part in writer))
            found = self._follows(known, wanted, _member(path, name), level + 1)
            if found and known == () and name in reader.get("properties", ()):
                found = [(_member(path, name), "was added, and any value was allowed under this name before")]
            elif found and wanted is False and name not in reader.get("properties", ()):
                found = [(_member(path, name), "was removed, and no other properties are allowed")]
            problems += found
        for pattern, schema in reader.get("patternProperties", {}).items():
            known = self._both((), *(self._other_property(part, pattern, ()) for part in writer))
            problems += self._follows(known, schema, f"{path}./{pattern}/", level + 1)
        if reader.get("additionalProperties", True) is not True:
            ruled_out = tuple(sorted(reader.get("patternProperties", ())))
            known = self._both((), *(self._other_property(part, None, ruled_out) for part in writer))
            found = self._follows(known, reader["additionalProperties"], f"{path}.*", level + 1)
            if found and known == () and reader["additionalProperties"] is False:
                found = [(f"{path}.*", "properties that are not named were allowed and are not")]
            problems += found
        return problems

    def _property(self, part: Fragment, name: str) -> Node:
        """Return what a fragment says about the property of this name."""
        patterns = part.get("patternProperties", {})
        self._step(len(patterns) // 10)
        found = [schema for pattern, schema in patterns.items() if self._matches(pattern, name)]
        if name in part.get("properties", ()):
            found.append(part["properties"][name])
        if not found:
            additional: Node = part.get("additionalProperties", True)
            return additional
        if len(found) == 1:
            only: Node = found[0]
            return only
        return self._make(("all", *map(id, found)), {"allOf": found})

    def _other_property(self, part: Fragment, pattern: str | None, ruled_out: tuple[str, ...]) -> Node:
        """Return what a fragment says about properties that it does not name: those that match `pattern`, or those that
        match none of `ruled_out`."""
        patterns = part.get("patternProperties", {})
        if pattern is not None and pattern in patterns:
            named: Node = patterns[pattern]
            return named
        additional: Node = part.get("additionalProperties", True)
        possible = [schema for text, schema in patterns.items() if text not in ruled_out]
        if not possible:
            return additional
        return self._make(("any", id(part), pattern, ruled_out), {"anyOf": [*possible, additional]})

    def _matches(self, pattern: str, name: str) -> bool:
        return self._is_valid(name, self._make(("pattern", pattern), {"pattern": pattern}))

    def _is_forbidden(self, writer: Writer, name: str) -> bool:
        return any(self._flatten(self._property(part, name)) is None for part in writer)

    def _compare_names(self, writer: Writer, reader: Fragment, path: str, level: int) -> list[Problem]:
        wanted = reader["propertyNames"]
        names = _closed_names(writer)
        if names is not None:
            bad = [name for name in sorted(names) if not self._is_valid(name, wanted)]
            return [(_member(path, name), "is a name that propertyNames does not allow") for name in bad]
        text = self._make(("type", "string"), {"type": "string"})
        known = self._both((text,), *(part.get("propertyNames", True) for part in writer))
        return self._follows(known, wanted, f"{path}.*", level + 1)

    def _compare_combinators(self, writer: Writer, reader: Fragment, path: str, level: int) -> list[Problem]:
        problems: list[Problem] = []
        if "anyOf" in reader and not any(not self._follows(writer, one, path, level) for one in reader["anyOf"]):
            problems.append((path, f"{_UNDECIDED}: no alternative of anyOf takes all that was allowed"))
        if "oneOf" in reader and not self._is_in_one(writer, reader["oneOf"], path, level):
            problems.append((path, f"{_UNDECIDED}: not exactly one alternative of oneOf takes all that was allowed"))
        if "not" in reader and not self._excludes(writer, reader["not"], path, level):
            problems.append((path, f"{_UNDECIDED}: `not` may exclude what was allowed"))
        if "if" in reader:
            unless = self._make(("not", id(reader["if"])), {"not": reader["if"]})
            both = self._follows(self._both(writer, reader["if"]), reader.get("then", True), path, level)
            both += self._follows(self._both(writer, unless), reader.get("else", True), path, level)
            problems += [(where, f"{reason} (if/then/else)") for where, reason in both]
        return problems

    def _is_in_one(self, writer: Writer, branches: Sequence[Node], path: str, level: int) -> bool:
        for at, branch in enumerate(branches):
            if not self._follows(writer, branch, path, level):
                others = [one for other, one in enumerate(branches) if other != at]
                return all(self._excludes(writer, one, path, level) for one in others)
        return False

    def _excludes(self, writer: Writer, node: Node, path: str, level: int) -> bool:
        """Say whether it is certain that no value of the writer is one of `node`."""
        refused = [part["not"] for part in writer if "not" in part]
        if any(not self._follows(self._flatten(node), one, path, level) for one in refused):
            return True
        return self._is_disjoint(self._both(writer, node), level)

    def _is_disjoint(self, together: Writer | None, level: int) -> bool:
        """Say whether it is certain that no value has all these fragments."""
        if together is None:
            return True
        self._step()
        facts = self._gather(together)
        if facts.never:
            return True
        if level > _LEVELS_MAX:
            return False
        if facts.types == {"object"}:
            for name in facts.required:
                member = self._both((), *(self._property(part, name) for part in together))
                if self._is_disjoint(member, level + 1):
                    return True
        for branches in self._alternatives(together, facts):
            return all(self._is_disjoint(branch, level + 1) for branch in branches)
        return False


# -- without the state of a comparison


def _types_of(part: Fragment) -> frozenset[str]:
    named = part["type"]
    types = frozenset([named] if isinstance(named, str) else named)
    return types - {"integer"} if "number" in types else types


def _intersect_types(first: frozenset[str], second: frozenset[str]) -> frozenset[str]:
    both = first & second
    numbers = {"number", "integer"}
    if not both & numbers and first & numbers and second & numbers:
        both |= {"integer"}
    return both


def _compare_types(facts: _Facts, reader: Fragment, path: str) -> list[Problem]:
    if "type" not in reader:
        return []
    allowed = _types_of(reader)
    extra = facts.types - allowed - ({"integer"} if "number" in allowed else frozenset())
    if not extra:
        return []
    return [(path, f"the type {', '.join(sorted(extra))} was allowed; now only {', '.join(sorted(allowed))} is")]


def _values_of(part: Fragment) -> list[Any]:
    """Return the values of const and enum, of both if it has both."""
    if "const" not in part:
        return list(part["enum"])
    if "enum" in part and _text(part["const"]) not in map(_text, part["enum"]):
        return []
    return [part["const"]]


def _text(value: Any) -> str:
    """Return a text that is the same for equal values only."""
    return json.dumps(value, sort_keys=True)


def _is_empty_range(facts: _Facts) -> bool:
    """Say whether the only possible type is a number, and none is in the range."""
    if not facts.types <= {"number", "integer"}:
        return False
    low, open_low = _lower(facts)
    high, open_high = _upper(facts)
    if low is None or high is None:
        return False
    return bool(low > high or (low == high and (open_low or open_high)))


def _lower(facts: _Facts) -> tuple[Any, bool]:
    """Return the lower limit of numbers and whether it is excluded itself."""
    low, above = facts.tightest.get("minimum"), facts.tightest.get("exclusiveMinimum")
    return (above, True) if above is not None and (low is None or above >= low) else (low, False)


def _upper(facts: _Facts) -> tuple[Any, bool]:
    high, below = facts.tightest.get("maximum"), facts.tightest.get("exclusiveMaximum")
    return (below, True) if below is not None and (high is None or below <= high) else (high, False)


def _compare_numbers(writer: Writer, facts: _Facts, reader: Fragment, path: str) -> Iterator[Problem]:
    low, open_low = _lower(facts)
    high, open_high = _upper(facts)
    if "minimum" in reader and (low is None or low < reader["minimum"]):
        yield path, f"minimum is {reader['minimum']}, and smaller numbers were allowed"
    if "exclusiveMinimum" in reader:
        limit = reader["exclusiveMinimum"]
        if low is None or low < limit or (low == limit and not open_low):
            yield path, f"exclusiveMinimum is {limit}, and smaller or equal numbers were allowed"
    if "maximum" in reader and (high is None or high > reader["maximum"]):
        yield path, f"maximum is {reader['maximum']}, and larger numbers were allowed"
    if "exclusiveMaximum" in reader:
        limit = reader["exclusiveMaximum"]
        if high is None or high > limit or (high == limit and not open_high):
            yield path, f"exclusiveMaximum is {limit}, and larger or equal numbers were allowed"
    if "multipleOf" in reader:
        wanted = reader["multipleOf"]
        given = [part["multipleOf"] for part in writer if "multipleOf" in part]
        if "number" not in facts.types:
            given.append(1)
        whole = isinstance(wanted, int)
        if not any(one == wanted or (whole and isinstance(one, int) and one % wanted == 0) for one in given):
            yield path, f"multipleOf is {wanted}, and other numbers were allowed"


def _compare_strings(writer: Writer, facts: _Facts, reader: Fragment, path: str) -> Iterator[Problem]:
    yield from _compare_limits(facts, reader, path, ("minLength", "maxLength"), "characters")
    if "pattern" in reader:
        given = [part["pattern"] for part in writer if "pattern" in part]
        shown = one_line(reader["pattern"], 80)
        if not given:
            yield path, f"the pattern {shown!r} was added"
        elif reader["pattern"] not in given:
            yield path, f"{_UNDECIDED}: the pattern {one_line(given[0], 80)!r} was changed to {shown!r}"


def _compare_limits(
    facts: _Facts, reader: Fragment, path: str, keywords: tuple[str, str], what: str
) -> Iterator[Problem]:
    least, most = keywords
    if reader.get(least, 0) > (facts.tightest.get(least) or 0):
        yield path, f"{least} is {reader[least]}, and fewer {what} were allowed"
    if most in reader and (facts.tightest.get(most) is None or facts.tightest.get(most) > reader[most]):
        yield path, f"{most} is {reader[most]}, and more {what} were allowed"


def _closed_names(writer: Writer) -> set[str] | None:
    """Return the only names that properties can have; None: there are others."""
    for part in writer:
        if part.get("additionalProperties") is False and "patternProperties" not in part:
            return {name for name, schema in part.get("properties", {}).items() if schema is not False}
    return None


def _item(part: Fragment, at: int) -> Node:
    """Return what a fragment says about the item at a position."""
    ahead = part.get("prefixItems", ())
    found: Node = ahead[at] if at < len(ahead) else part.get("items", True)
    return found


def _member(path: str, name: str) -> str:
    return f"{path}.{name}" if name.isidentifier() else f"{path}[{json.dumps(name)}]"
