"""Compatibility of protobuf definitions: the table, and that what is called readable can be read."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from pydanube.formats import parse_schema
from pydanube.formats.compatibility import check_compatible, find_incompatibilities
from pydanube.formats.protobuf.compatibility import find_reuse
from pydanube.model.schemas import Compatibility, SchemaDefinition, SchemaFormat

RULES = tomllib.loads((Path(__file__).parent / "compatibility" / "protobuf.toml").read_text())["rule"]


def parse(text: str, imports: dict[str, str] | None = None, syntax: str = "proto3"):
    head = f'syntax = "{syntax}";\n'
    references = {name: SchemaDefinition(SchemaFormat.PROTOBUF, head + one) for name, one in (imports or {}).items()}
    return parse_schema(SchemaDefinition(SchemaFormat.PROTOBUF, head + text), references)


@pytest.mark.parametrize("rule", RULES, ids=[rule["name"] for rule in RULES])
def test_the_table_says_what_can_be_read(rule):
    syntax = rule.get("syntax", "proto3")
    old = parse(rule["old"], rule.get("old_imports"), syntax)
    new = parse(rule["new"], rule.get("new_imports"), syntax)
    assert [str(one) for one in find_incompatibilities(new, old)] == rule["backward"]
    assert [str(one) for one in find_incompatibilities(old, new)] == rule["forward"]
    assert [str(one) for one in find_reuse(new, old)] == rule.get("reuse", [])
    assert find_incompatibilities(old, old) == find_incompatibilities(new, new) == []


def test_the_levels_ask_in_their_direction_and_never_allow_what_was_reserved():
    old = parse("message M { reserved 2; string a = 1; }")
    new = parse("message M { bytes a = 1; int32 b = 2; }")
    reuse = "M.b: the number 2 was reserved (version 3)"
    forward = "M.a: for old readers, the type was bytes and is string (version 3)"

    def reasons(level: Compatibility) -> list[str]:
        return [str(one) for one in check_compatible(level, new, [(3, old)])]

    assert reasons(Compatibility.NONE) == []
    assert reasons(Compatibility.BACKWARD) == [reuse]
    assert reasons(Compatibility.FORWARD) == [reuse, forward]
    assert reasons(Compatibility.FULL_TRANSITIVE) == [reuse, forward]


def test_messages_without_end_are_compared_in_bounded_time():
    count = 500
    chain = "".join(f"message M{i} {{ M{(i + 1) % count} next = 1; %s = 2; }}" for i in range(count))
    found = find_incompatibilities(parse(chain.replace("%s", "string s")), parse(chain.replace("%s", "int32 s")))
    assert len(found) == count
    assert str(found[1]) == "M0.next.s: the type was int32 and is string"
    assert max(len(one.path) for one in found) < 300
