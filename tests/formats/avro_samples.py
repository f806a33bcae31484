"""Random Avro schemas, changes to them, and random data, also in forms that libraries do not write."""

from __future__ import annotations

import json
import random
import struct
from typing import Any

from pydanube.formats.avro.schema import AvroSchema, parse
from pydanube.formats.avro.types import (
    Array,
    AvroType,
    EnumType,
    Fixed,
    Map,
    Record,
    Union,
    value_range,
)
from pydanube.model.schemas import SchemaDefinition, SchemaFormat


def avro(schema: Any, **references: Any) -> AvroSchema:
    """Parse a schema that is given as JSON has it; in the names of references `__` stands for a dot."""
    known = {name.replace("__", "."): _definition(one) for name, one in references.items()}
    return parse(_definition(schema), known)


def _definition(schema: Any) -> SchemaDefinition:
    return SchemaDefinition(SchemaFormat.AVRO, json.dumps(schema))


_PLAIN = ["null", "boolean", "int", "long", "float", "double", "bytes", "string"]
_LOGICAL: list[dict[str, Any]] = [
    {"type": "int", "logicalType": "date"},
    {"type": "int", "logicalType": "time-millis"},
    {"type": "long", "logicalType": "time-micros"},
    {"type": "long", "logicalType": "timestamp-millis"},
    {"type": "long", "logicalType": "timestamp-micros"},
    {"type": "long", "logicalType": "local-timestamp-micros"},
    {"type": "long", "logicalType": "timestamp-nanos"},
    {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 3},
    {"type": "string", "logicalType": "uuid"},
]


class SchemaMaker:
    """Makes random schemas. Names are counted, so that they differ."""

    def __init__(self, rnd: random.Random) -> None:
        self._rnd = rnd
        self._count = 0

    def make_record(self, depth: int = 3) -> dict[str, Any]:
        name = self._name("R")
        fields = [
            {"name": f"f{position}", "type": self.make_type(depth, [name])}
            for position in range(self._rnd.randint(1, 6))
        ]
        return {"type": "record", "name": name, "fields": fields}

    def make_type(self, depth: int, enclosing: list[str]) -> Any:
        kinds = ["plain"] * 4 + ["logical", "enum", "fixed"]
        if depth > 0:
            kinds += ["array", "map", "record", "union", "nullable", "recursive"]
        match self._rnd.choice(kinds):
            case "plain":
                return self._rnd.choice(_PLAIN)
            case "logical":
                return dict(self._rnd.choice(_LOGICAL))
            case "enum":
                return {"type": "enum", "name": self._name("E"), "symbols": ["A", "B", "C"][: self._rnd.randint(1, 3)]}
            case "fixed":
                return {"type": "fixed", "name": self._name("F"), "size": self._rnd.choice([1, 4, 16])}
            case "array":
                return {"type": "array", "items": self._with_bytes(self.make_type(depth - 1, enclosing))}
            case "map":
                return {"type": "map", "values": self.make_type(depth - 1, enclosing)}
            case "record":
                return self.make_record(depth - 1)
            case "nullable":
                return ["null", self._rnd.choice(["int", "string", self.make_record(depth - 1)])]
            case "recursive":
                return ["null", self._rnd.choice(enclosing)]
            case _:
                branches = self._rnd.sample(_PLAIN, self._rnd.randint(1, 4))
                return [*branches, self.make_record(depth - 1)]

    def _with_bytes(self, inner: Any) -> Any:
        return "string" if inner == "null" or (isinstance(inner, dict) and inner.get("type") == "record") else inner

    def _name(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"


_ADDED: list[tuple[Any, Any]] = [
    ("int", 7),
    ("bytes", "\u00ff\u0000"),
    (["null", "string"], None),
    (["string", "null"], "x"),
    ({"type": "array", "items": "int"}, [1]),
    ({"type": "int", "logicalType": "date"}, 3),
]


def change(rnd: random.Random, schema: Any) -> Any:
    """Return a schema like the given one with some of its parts changed, compatibly or not."""
    if isinstance(schema, list):
        changed = [change(rnd, one) for one in schema]
        names = [one for one in changed if isinstance(one, str)]
        nested = any(isinstance(one, list) for one in changed)
        return schema if nested or len(set(names)) < len(names) else changed
    if isinstance(schema, str):
        wider = {"int": ["long", "float", "double"], "long": ["double"], "float": ["double"], "string": ["bytes"]}
        choice = rnd.random()
        if choice < 0.25 and schema in wider:
            return rnd.choice(wider[schema])
        if choice < 0.3 and schema != "null" and schema in _PLAIN:
            return ["null", schema]
        return rnd.choice(_PLAIN) if choice > 0.98 else schema
    made = dict(schema)
    for key in ("items", "values"):
        if key in made:
            inner = change(rnd, made[key])
            made[key] = made[key] if inner == "null" else inner
    if "symbols" in made and rnd.random() < 0.3:
        made["symbols"] = rnd.choice([["A"], ["B", "A", "C", "D"]])
        made["default"] = "A"
    if "fields" in made:
        fields = [one | {"type": change(rnd, one["type"])} for one in made["fields"] if rnd.random() < 0.9]
        if rnd.random() < 0.4:
            kind, default = rnd.choice(_ADDED)
            fields.append({"name": "added", "type": kind, "default": default})
        if fields and rnd.random() < 0.3:
            fields[0] = fields[0] | {"name": "renamed", "aliases": [fields[0]["name"]]}
        rnd.shuffle(fields)
        made["fields"] = fields
    return made


def write_long(number: int, padding: int = 0) -> bytes:
    """Encode a zigzag varint; `padding` bytes more than needed, as far as there are ten."""
    number = ((number << 1) ^ (number >> 63)) & (2**64 - 1)
    data = bytearray()
    while number > 127:
        data.append(number & 127 | 128)
        number >>= 7
    data.append(number)
    for _ in range(min(padding, 10 - len(data))):
        data[-1] |= 128
        data.append(0)
    return bytes(data)


class DatumMaker:
    """Makes random valid data of a type. `odd` also uses long varints and blocks with their size."""

    def __init__(self, rnd: random.Random, *, odd: bool = False, ascii_bytes: bool = False) -> None:
        self._rnd = rnd
        self._odd = odd
        self._ascii_bytes = ascii_bytes

    def _long(self, number: int) -> bytes:
        return write_long(number, self._rnd.choice([0, 0, 1, 9]) if self._odd else 0)

    def _number(self, low: int, high: int) -> bytes:
        near = min(max(0, low), high)
        return self._long(self._rnd.choice([low, high, near, min(near + 100, high), self._rnd.randint(low, high)]))

    def make(self, avro_type: AvroType, depth: int = 0) -> bytes:
        rnd = self._rnd
        match avro_type:
            case Record():
                return b"".join(self.make(one.type, depth + 1) for one in avro_type.fields)
            case EnumType():
                return self._number(0, len(avro_type.symbols) - 1)
            case Fixed():
                return rnd.randbytes(avro_type.size)
            case Array():
                return self._blocks([self.make(avro_type.items, depth + 1) for _ in range(self._count(depth))])
            case Map():
                return self._blocks(
                    [self._text() + self.make(avro_type.values, depth + 1) for _ in range(self._count(depth))]
                )
            case Union():
                index = 0 if depth > 8 else rnd.randrange(len(avro_type.branches))
                return self._long(index) + self.make(avro_type.branches[index], depth + 1)
        match avro_type.kind:
            case "null":
                return b""
            case "boolean":
                return rnd.choice([b"\0", b"\1"])
            case "int" | "long":
                return self._number(*value_range(avro_type))
            case "float":
                return struct.pack("<f", rnd.choice([0.0, 1.5, float("inf")]))
            case "double":
                return struct.pack("<d", rnd.random())
            case "string" if avro_type.logical:
                return self._long(36) + b"12345678-1234-5678-1234-567812345678"
            case "string":
                return self._text()
        size = rnd.randint(0, 3)
        data = b"a" * size if self._ascii_bytes else rnd.randbytes(size)
        return self._long(size) + data

    def _count(self, depth: int) -> int:
        return 0 if depth > 8 else self._rnd.choice([0, 1, 2, 3])

    def _text(self) -> bytes:
        text = self._rnd.choice(["", "a", "hello", "Grüße", "日本", "a" * 70]).encode()
        return self._long(len(text)) + text

    def _blocks(self, items: list[bytes]) -> bytes:
        data = b""
        while items:
            count = self._rnd.randint(1, len(items))
            block = b"".join(items[:count])
            if self._odd and self._rnd.random() < 0.5:
                data += self._long(-count) + self._long(len(block)) + block
            else:
                data += self._long(count) + block
            items = items[count:]
        return data + self._long(0)


def damage(rnd: random.Random, data: bytes) -> bytes:
    """Return the bytes with a random change, which may leave them valid."""
    changed = bytearray(data)
    at = rnd.randrange(len(changed) + 1)
    match rnd.randrange(5):
        case 0:
            return bytes(changed[:at])
        case 1:
            return data + rnd.choice([b"\0", rnd.randbytes(3), data or b"\1"])
        case 2:
            changed[at:at] = rnd.randbytes(1)
        case 3:
            del changed[at : at + 1]
        case _:
            if changed:
                changed[at % len(changed)] = rnd.choice([0, 1, 2, 127, 128, 255, rnd.randrange(256)])
    return bytes(changed)
