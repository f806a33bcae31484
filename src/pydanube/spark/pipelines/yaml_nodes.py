"""Reads YAML into nodes that know their places. Nothing is constructed: there are only mappings, lists and scalars.

Refused, with the place: what is not YAML, a key that is there twice, tags such as ``!!python/object``, merge keys
(``<<``), and files that are too large or nested too deeply. Aliases (``*name``) are followed, and every use counts
against NODES_MAX, so that a small file cannot become a large one.

``${NAME}`` and ``${NAME:-default}`` in scalars are replaced by variables, except in SQL; ``$${`` stands for ``${``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import yaml

from pydanube.model.text import did_you_mean

from .file_places import Place, Problems, TextInFile

FILE_BYTES_MAX: Final = 1 << 20
NODES_MAX: Final = 20_000
DEPTH_MAX: Final = 20

_TAGS: Final = "tag:yaml.org,2002:"
_SCALARS: Final = frozenset({"str", "int", "float", "bool", "null", "timestamp", "value"})
_VARIABLE: Final = re.compile(r"\$(\$\{)|\$\{([^}]*)\}")
_NAME: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)
_TRUE: Final = frozenset({"yes", "true", "on"})


@dataclass(frozen=True, slots=True)
class Scalar:
    """A single value, as it was written."""

    text: str
    kind: str
    """str, int, float, bool, null or timestamp, as YAML reads it."""
    place: Place
    source: TextInFile

    @property
    def value(self) -> str:
        """The value as text; a boolean is always "true" or "false"."""
        return str(self.text.lower() in _TRUE).lower() if self.kind == "bool" else self.text


@dataclass(frozen=True, slots=True)
class Sequence:
    items: tuple[Node, ...]
    place: Place


@dataclass(frozen=True, slots=True)
class Mapped:
    """A mapping: the value of each key, and the place of the key."""

    place: Place
    values: Mapping[str, Node] = field(default_factory=dict)
    keys: Mapping[str, Place] = field(default_factory=dict)


Node = Scalar | Sequence | Mapped


def kind_of(node: Node) -> str:
    """Return what a node is, in words for an error message."""
    match node:
        case Mapped():
            return "a mapping"
        case Sequence():
            return "a list"
    return "empty" if node.kind == "null" and not node.text else repr(node.text)


def read_yaml(text: str, file: str, problems: Problems) -> Node | None:
    """Parse the text of `file`. Returns None if it cannot be read; the reasons are added to `problems`."""
    start = Place(file, 1, 1)
    if len(text) > FILE_BYTES_MAX:
        problems.add(start, f"the file is larger than {FILE_BYTES_MAX >> 20} MiB, which no pipeline needs")
        return None
    if (found := yaml.reader.Reader.NON_PRINTABLE.search(text)) is not None:
        before = text[: found.start()]
        place = Place(file, before.count("\n") + 1, found.start() - before.rfind("\n"))
        problems.add(place, f"this is not YAML: the character U+{ord(found[0]):04X} cannot be printed: leave it out")
        return None
    loader = yaml.SafeLoader(text)
    try:
        root = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = Place(file, mark.line + 1, mark.column + 1) if mark else start
        problems.add(place, f"this is not YAML: {_yaml_problem(error)}")
        return None
    except yaml.YAMLError as error:
        problems.add(start, f"this is not YAML: {' '.join(str(error).split())}")
        return None
    except RecursionError:
        problems.add(start, f"this is nested more than {DEPTH_MAX} levels deep, which no pipeline needs")
        return None
    finally:
        loader.dispose()
    if root is None:
        problems.add(start, "the file is empty: a pipeline has at least name, checkpoint, sources and sinks")
        return None
    return _Reader(text, file, problems).read(root, 0)


def _yaml_problem(error: yaml.MarkedYAMLError) -> str:
    said = error.problem or str(error)
    if "found character '\\t'" in said:
        return "a tab cannot indent a line: use spaces"
    if "mapping values are not allowed here" in said:
        return "a colon is not allowed here: put the value in quotes, or begin a new line"
    return f"{error.context}, {said}" if error.context else said


class _Reader:
    """Turns PyYAML's nodes into ours."""

    def __init__(self, text: str, file: str, problems: Problems) -> None:
        self._lines = text.splitlines()
        self._file = file
        self._problems = problems
        self._count = 0

    def read(self, node: yaml.Node, depth: int) -> Node | None:
        place = self._place(node)
        self._count += 1
        if depth > DEPTH_MAX:
            self._problems.add(place, f"this is nested more than {DEPTH_MAX} levels deep, which no pipeline needs")
            return None
        if self._count > NODES_MAX:
            if self._count > NODES_MAX + 1:
                return None
            self._problems.add(place, f"aliases make this larger than {NODES_MAX:,} values, which no pipeline needs")
            return None
        tag = node.tag.removeprefix(_TAGS)
        if isinstance(node, yaml.MappingNode) and tag == "map":
            return self._mapping(node, place, depth)
        if isinstance(node, yaml.SequenceNode) and tag == "seq":
            items = [self.read(one, depth + 1) for one in node.value[: NODES_MAX + 1 - self._count]]
            return Sequence(tuple(one for one in items if one is not None), place)
        if isinstance(node, yaml.ScalarNode) and tag in _SCALARS:
            return Scalar(node.value, tag, place, self._text_in_file(node, place))
        shown = node.tag.replace(_TAGS, "!!")
        self._problems.add(place, f"the tag {shown!r} is not allowed: write plain values, lists and mappings")
        return None

    def _mapping(self, node: yaml.MappingNode, place: Place, depth: int) -> Mapped:
        values: dict[str, Node] = {}
        keys: dict[str, Place] = {}
        for key, value in node.value:
            at = self._place(key)
            if not isinstance(key, yaml.ScalarNode):
                self._problems.add(at, "a key must be a plain word: this is a list or a mapping")
                continue
            if key.tag == f"{_TAGS}merge":
                self._problems.add(at, "merge keys (<<) are not supported: write the keys, or use an alias for a value")
                continue
            if key.value in keys:
                self._problems.add(at, f"the key {key.value!r} is there twice, first in line {keys[key.value].line}")
                continue
            keys[key.value] = at
            read = self.read(value, depth + 1)
            if read is not None:
                values[key.value] = read
            if self._count > NODES_MAX:
                break
        return Mapped(place, values, keys)

    def _place(self, node: yaml.Node) -> Place:
        mark = node.start_mark
        return Place(self._file, mark.line + 1, mark.column + 1)

    def _text_in_file(self, node: yaml.ScalarNode, place: Place) -> TextInFile:
        if node.style == "|":
            return self._block(node, place)
        if node.start_mark.line != node.end_mark.line or node.style == ">":
            return TextInFile(node.value, place, None)
        begin = Place(place.file, place.line, place.column + (1 if node.style in ("'", '"') else 0))
        return TextInFile(node.value, begin)

    def _block(self, node: yaml.ScalarNode, place: Place) -> TextInFile:
        """Return the text of a literal block, which begins in the line after its indicator."""
        body = self._lines[place.line : node.end_mark.line + 1]
        indent = next((len(line) - len(line.lstrip(" ")) for line in body if line.strip()), 0)
        return TextInFile(node.value, Place(place.file, place.line + 1, indent + 1), indent)


def substitute(node: Node, variables: Mapping[str, str], problems: Problems, verbatim: frozenset[str]) -> Node:
    """Return the node with variables replaced in all scalars, except in the values of the keys in `verbatim`."""
    match node:
        case Scalar():
            text = _substituted(node, variables, problems)
            if text == node.text:
                return node
            return replace(node, text=text, kind=_resolved(text), source=TextInFile(text, node.place, None))
        case Sequence():
            return replace(node, items=tuple(substitute(one, variables, problems, verbatim) for one in node.items))
    values = {
        key: value if key in verbatim else substitute(value, variables, problems, verbatim)
        for key, value in node.values.items()
    }
    return replace(node, values=values)


def _substituted(node: Scalar, variables: Mapping[str, str], problems: Problems) -> str:
    def one(found: re.Match[str]) -> str:
        if found[1]:
            return "${"
        named = _NAME.fullmatch(found[2])
        if named is None:
            problems.add(node.place, f"{found[0]!r} is no variable: write ${{NAME}} or ${{NAME:-default}}")
            return ""
        default: str | None = named[2]
        if (value := variables.get(named[1], default)) is None:
            near = did_you_mean(named[1], [name for name in variables if name.isupper()][:200])
            told = f" ({near})" if near.startswith("did") else ""
            problems.add(
                node.place, f"the variable {named[1]} is not set{told}: set it, or write ${{{named[1]}:-default}}"
            )
            return ""
        return value

    return _VARIABLE.sub(one, node.text)


def _resolved(text: str) -> str:
    """Return what YAML would read a plain scalar as."""
    loader: Any = yaml.SafeLoader("")
    return str(loader.resolve(yaml.ScalarNode, text, (True, False))).removeprefix(_TAGS)
