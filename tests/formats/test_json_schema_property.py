"""What is called compatible is compatible: random pairs of schemas, and values that the writer allows.

DANUBE_SEED chooses the pairs and DANUBE_SCHEMA_PAIRS how many. Most readers are the writer with a few changes, because
independent schemas are seldom compatible.
"""

import json
import os
import random

from pydanube.formats import parse_schema
from pydanube.formats.compatibility import find_incompatibilities
from pydanube.model.errors import Invalid
from pydanube.model.schemas import SchemaDefinition, SchemaFormat

PAIRS = int(os.environ.get("DANUBE_SCHEMA_PAIRS", "1200"))
NAMES = ("a", "b", "ab", "c")
PATTERNS = ("^a", "b$", "^[a-b]+$", "")
TYPES = ("null", "boolean", "object", "array", "number", "integer", "string")
SCALARS = [None, True, False, 0, 1, 2, 3, 4, 6, -1, -3, 0.5, 1.5, 2.5, "", "a", "b", "ab", "ba", "abc", "c"]
MAPS = ("properties", "patternProperties", "dependentSchemas")
LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
ONES = ("items", "contains", "not", "if", "then", "else", "propertyNames")
CLOSING = ("additionalProperties", "unevaluatedProperties", "unevaluatedItems")


class Generator:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def value(self, depth=3):
        draw = self.random.random()
        if depth == 0 or draw < 0.5:
            return self.random.choice(SCALARS)
        if draw < 0.7:
            return [self.value(depth - 1) for _ in range(self.random.randrange(4))]
        return {self.random.choice(NAMES): self.value(depth - 1) for _ in range(self.random.randrange(4))}

    def schema(self, depth):
        if depth == 0 or self.random.random() < 0.1:
            return self.random.choice([True, True, False, *({"type": one} for one in TYPES)])
        return self.keywords(depth)

    def keywords(self, depth):
        chosen = self.random.sample(
            [*sorted(self.plain()), *MAPS, *LISTS, *ONES, *CLOSING], self.random.randrange(1, 5)
        )
        return {keyword: self.keyword(keyword, depth) for keyword in chosen}

    def keyword(self, keyword, depth):
        choose, below = self.random.choice, self.random.randrange
        if keyword in MAPS:
            keys = PATTERNS if keyword == "patternProperties" else NAMES
            return {choose(keys): self.schema(depth - 1) for _ in range(below(4))}
        if keyword in LISTS:
            return [self.schema(depth - 1) for _ in range(below(1, 4))]
        if keyword in CLOSING and below(2):
            return False
        if keyword in ONES or keyword in CLOSING:
            return self.schema(depth - 1)
        return self.plain()[keyword]()

    def plain(self):
        choose, sample, below = self.random.choice, self.random.sample, self.random.randrange
        counts = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
        limits = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
        return {
            **dict.fromkeys((*counts, "minContains", "maxContains"), lambda: below(4)),
            **dict.fromkeys(limits, lambda: below(-3, 7)),
            "type": lambda: choose(TYPES) if below(2) else sample(TYPES, below(1, 4)),
            "enum": lambda: [self.value() for _ in range(below(1, 4))],
            "const": self.value,
            "multipleOf": lambda: choose([1, 2, 3, 0.5]),
            "pattern": lambda: choose(PATTERNS),
            "uniqueItems": lambda: choose([True, False]),
            "required": lambda: sample(NAMES, below(3)),
            "dependentRequired": lambda: {choose(NAMES): sample(NAMES, below(3))},
            "$ref": lambda: choose(["#/$defs/x", "#/$defs/y"]),
        }

    def changed(self, schema):
        if isinstance(schema, bool):
            return self.schema(1)
        made = dict(schema)
        keys = [key for key in schema if key != "$defs"]
        deeper = [key for key in keys if key in (*MAPS, *LISTS, *ONES, *CLOSING)]
        draw = self.random.random()
        if draw < 0.2 and keys:
            del made[self.random.choice(keys)]
        elif draw < 0.6 and deeper:
            key = self.random.choice(deeper)
            made[key] = self.changed_inside(made[key], key)
        elif draw < 0.7:
            made[self.random.choice(["anyOf", "oneOf"])] = [{key: made.pop(key) for key in keys}, self.schema(1)]
        elif draw < 0.8:
            made["allOf"] = [{key: made.pop(key) for key in keys}]
        else:
            made.update(self.keywords(2))
        return self.changed(made) if self.random.random() < 0.3 else made

    def changed_inside(self, value, key):
        if key in MAPS and value:
            name = self.random.choice(sorted(value))
            return {**value, name: self.changed(value[name])}
        if key in LISTS:
            at = self.random.randrange(len(value))
            return [*value[:at], self.changed(value[at]), *value[at + 1 :]]
        return value if key in MAPS else self.changed(value)

    def pair(self):
        definitions = {"x": self.schema(2), "y": self.schema(2)}
        writer = {**self.keywords(3), "$defs": definitions}
        reader = self.changed(writer) if self.random.random() < 0.8 else {**self.keywords(2), "$defs": definitions}
        if self.random.random() < 0.2:
            reader["$defs"] = {**definitions, "x": self.changed(definitions["x"])}
        return writer, reader


def parse(schema):
    return parse_schema(SchemaDefinition(SchemaFormat.JSON, json.dumps(schema)))


def test_what_the_writer_allows_is_allowed_by_a_compatible_reader():
    seed = int(os.environ.get("DANUBE_SEED", "15"))
    print(f"DANUBE_SEED={seed}")
    generator = Generator(seed)
    compatible = 0
    for number in range(PAIRS):
        written, read = generator.pair()
        values = [json.dumps(generator.value()).encode() for _ in range(30)]
        try:
            writer, reader = parse(written), parse(read)
        except Invalid as error:
            if "same value again" not in error.message:
                raise
            continue
        if find_incompatibilities(reader, writer):
            continue
        allowed = [value for value in values if writer.check([value]) is None]
        compatible += bool(allowed)
        wrong = reader.check(allowed)
        assert wrong is None, (number, written, read, allowed[wrong.row], wrong.reason)
    assert compatible > PAIRS // 10


def test_a_schema_is_compatible_with_itself_in_another_order():
    seed = int(os.environ.get("DANUBE_SEED", "16"))
    print(f"DANUBE_SEED={seed}")
    generator = Generator(seed)
    for _ in range(PAIRS // 10):
        schema, _ = generator.pair()
        try:
            writer, reader = parse(schema), parse({**dict(reversed(schema.items())), "title": "the same"})
        except Invalid as error:
            if "same value again" not in error.message:
                raise
            continue
        assert writer.canonical == reader.canonical
        assert find_incompatibilities(reader, writer) == []
