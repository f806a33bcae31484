"""The rules of JSON Schema compatibility are those of compatibility/json.toml, and take bounded time."""

import json
import tomllib
from pathlib import Path

import pytest

from pydanube.formats import parse_schema
from pydanube.formats.compatibility import check_compatible, find_incompatibilities
from pydanube.model.schemas import Compatibility, SchemaDefinition, SchemaFormat

TABLE = tomllib.loads((Path(__file__).parent / "compatibility" / "json.toml").read_text())


def by_name(rows):
    return [pytest.param(row, id=row["name"]) for row in rows]


def parse(text, **references):
    return parse_schema(
        SchemaDefinition(SchemaFormat.JSON, text if isinstance(text, str) else json.dumps(text)),
        {name: SchemaDefinition(SchemaFormat.JSON, other) for name, other in references.items()},
    )


def reasons(reader, writer):
    return [str(one) for one in find_incompatibilities(reader, writer)]


@pytest.mark.parametrize("rule", by_name(TABLE["rule"]))
def test_a_rule_is_allowed_in_one_direction_and_refused_in_the_other(rule):
    wide, narrow = parse(rule["wide"]), parse(rule["narrow"])
    assert reasons(wide, narrow) == []
    assert reasons(narrow, wide) == rule["reasons"]


@pytest.mark.parametrize("pair", by_name(TABLE["pair"]))
def test_a_pair_has_the_reasons_that_the_table_gives(pair):
    assert reasons(parse(pair["second"]), parse(pair["first"])) == pair["reasons"]


def test_the_levels_choose_directions_and_versions():
    first, second, third = (parse({"type": "integer", "maximum": most}) for most in (1, 2, 3))
    earlier = [(1, third), (2, first)]
    assert check_compatible(Compatibility.BACKWARD, second, earlier) == []
    [reason] = check_compatible(Compatibility.BACKWARD_TRANSITIVE, second, earlier)
    assert reason.version == 1 and "maximum is 2" in reason.reason
    [reason] = check_compatible(Compatibility.FORWARD, second, earlier)
    assert reason.version == 2 and "maximum is 1" in reason.reason
    assert check_compatible(Compatibility.NONE, first, earlier) == []


def test_a_referenced_definition_counts_like_the_text_itself():
    text = '{"type": "object", "properties": {"a": {"$ref": "common.json#/$defs/x"}}}'
    old = parse(text, **{"common.json": '{"$defs": {"x": {"type": "integer"}}}'})
    new = parse(text, **{"common.json": '{"$defs": {"x": {"type": "number"}}}'})
    assert reasons(new, old) == []
    assert reasons(old, new) == ["$.a: the type number was allowed; now only integer is"]


def test_mutually_recursive_schemas_are_compared():
    def tree(leaf, name):
        return {
            "$ref": f"#/$defs/{name}",
            "$defs": {
                name: {"type": "object", "properties": {"next": {"$ref": "#/$defs/b"}, "leaf": leaf}},
                "b": {"anyOf": [{"type": "null"}, {"$ref": f"#/$defs/{name}"}]},
            },
        }

    old, new = parse(tree({"type": "integer"}, "a")), parse(tree({"type": "number"}, "node"))
    assert reasons(new, old) == []
    assert reasons(old, new) != []


def test_what_was_proved_in_an_attempt_that_failed_is_not_believed():
    def graph(value, first):
        node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/m"}, "value": value}}
        back = {"type": "object", "properties": {"back": {"$ref": "#/$defs/n"}}}
        root = {"type": "object", "properties": {"first": first, "second": {"$ref": "#/$defs/m"}}}
        return {**root, "$defs": {"n": node, "m": back}}

    old = parse(graph({"type": "string"}, {"$ref": "#/$defs/n"}))
    new = parse(graph({"type": "integer"}, {"anyOf": [{"$ref": "#/$defs/n"}, True]}))
    assert reasons(new, old) == ["$.second.back.value: the type string was allowed; now only integer is"]


def test_many_alternatives_beside_each_other_cannot_be_decided_in_bounded_time():
    def alternatives(count):
        each = [{"properties": {f"p{at}": {"const": value}}} for at in range(count) for value in range(9)]
        return {"type": "object", "allOf": [{"anyOf": each[9 * at : 9 * at + 9]} for at in range(count)]}

    [only] = find_incompatibilities(parse({**alternatives(12), "required": ["x"]}), parse(alternatives(12)))
    assert only.reason.startswith("cannot decide: the schemas need more than")


@pytest.mark.parametrize("count", [30, 3_000])
def test_long_chains_of_definitions_are_no_recursion_error(count):
    def chain(last):
        middle = {str(at): {"properties": {"a": {"$ref": f"#/$defs/{at + 1}"}}} for at in range(count)}
        return {"type": "object", "$ref": "#/$defs/0", "$defs": {**middle, str(count): last}}

    old, new = parse(chain({"type": "integer"})), parse(chain({"type": "number"}))
    [only] = find_incompatibilities(old, new)
    assert "only integer" in only.reason if count == 30 else only.reason.startswith("cannot decide")


def test_long_chains_of_references_are_no_recursion_error():
    def chain(last):
        middle = {str(at): {"$ref": f"#/$defs/{at + 1}"} for at in range(5_000)}
        return {"$ref": "#/$defs/0", "$defs": {**middle, "5000": last}}

    [only] = find_incompatibilities(parse(chain({"type": "integer"})), parse(chain({"type": "number"})))
    assert "only integer" in only.reason


def test_large_enums_of_objects_are_compared_by_their_values():
    old, new = (
        parse({"enum": [{"a": at} for at in range(1_000)]}),
        parse({"enum": [{"a": at} for at in range(1, 1_000)]}),
    )
    assert reasons(old, new) == []
    assert reasons(new, old) == ['$: was allowed and is not: {"a": 0}']


def test_large_enums_and_many_properties_are_compared():
    def wide(count, most):
        return {
            "type": "object",
            "additionalProperties": False,
            "properties": {f"p{at}": {"enum": [f"v{at}-{value}" for value in range(most)]} for at in range(count)},
        }

    assert reasons(parse(wide(300, 51)), parse(wide(300, 50))) == []
    assert len(reasons(parse(wide(300, 50)), parse(wide(300, 51)))) == 300
