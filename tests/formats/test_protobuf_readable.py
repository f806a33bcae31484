"""What is called compatible can be read: write with the old class, read with the new one.

Definitions are generated and changed at random. If the new one is said to read the old one, then every payload of the
old one is valid for the new one, and the fields that were not changed have the values that were written.
"""

from __future__ import annotations

import base64
from typing import Any

from google.protobuf import descriptor_pb2
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from pydanube.formats import parse_schema
from pydanube.formats.compatibility import find_incompatibilities
from pydanube.formats.protobuf.schema import ParsedProtobuf
from pydanube.model.schemas import SchemaDefinition, SchemaFormat

Field = descriptor_pb2.FieldDescriptorProto
OPTIONAL, REQUIRED, REPEATED = Field.LABEL_OPTIONAL, Field.LABEL_REQUIRED, Field.LABEL_REPEATED
SCALARS = [number for name, number in Field.Type.items() if name not in ("TYPE_GROUP", "TYPE_MESSAGE", "TYPE_ENUM")]
NAMED = {Field.TYPE_ENUM: [".M.E"], Field.TYPE_MESSAGE: [".M.N", ".M", ".M.FEntry"]}

types = st.one_of(
    st.sampled_from(SCALARS).map(lambda number: (number, "")),
    st.just((Field.TYPE_ENUM, ".M.E")),
    st.sampled_from(NAMED[Field.TYPE_MESSAGE]).map(lambda name: (Field.TYPE_MESSAGE, name)),
)


@st.composite
def fields(draw: Any, number: int, proto2: bool) -> Any:
    kind, type_name = draw(types)
    label = draw(st.sampled_from([OPTIONAL, OPTIONAL, REPEATED, REQUIRED if proto2 else OPTIONAL]))
    if type_name == ".M.FEntry":
        number, label = 6, REPEATED
    if type_name == ".M" and label == REQUIRED:
        label = OPTIONAL  # no message could ever be complete
    name = "f" if type_name == ".M.FEntry" else draw(st.sampled_from([f"a{number}", f"b{number}"]))
    return Field(name=name, number=number, label=label, type=kind, type_name=type_name or None)


@st.composite
def definitions(draw: Any, proto2: bool, old: Any = None) -> Any:
    """A file with the message M, its nested message N, enum E and map entry; similar to `old` if that is given."""
    file = descriptor_pb2.FileDescriptorProto(name="x", syntax="proto2" if proto2 else "proto3")
    message = file.message_type.add(name="M")
    before = {field.number: field for field in old.message_type[0].field} if old else {}
    used: dict[int, Any] = {}
    for number in range(1, 7):
        change = draw(st.sampled_from(["keep", "keep", "keep", "relabel", "change", "remove"]))
        if change in ("keep", "relabel") and number in before:
            used[number] = Field.FromString(before[number].SerializeToString())
            used[number].ClearField("oneof_index")
            if change == "relabel" and used[number].type_name not in (".M", ".M.FEntry"):
                used[number].label = draw(st.sampled_from([OPTIONAL, REPEATED, REQUIRED if proto2 else OPTIONAL]))
        elif change != "remove" and (change == "change" or not old):
            field = draw(fields(number, proto2))
            used[field.number] = field
    message.field.extend(used.values())
    if draw(st.booleans()) and (single := [one for one in message.field if one.label == OPTIONAL]):
        message.oneof_decl.add(name="o")
        for field in single[: draw(st.integers(1, 3))]:
            field.oneof_index = 0
    nested = message.nested_type.add(name="N")
    for number in range(1, draw(st.integers(1, 3))):
        nested.field.add(name=f"n{number}", number=number, label=OPTIONAL, type=draw(st.sampled_from(SCALARS[:6])))
    entry = message.nested_type.add(name="FEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=OPTIONAL, type=draw(st.sampled_from([5, 3, 9])))
    entry.field.add(name="value", number=2, label=OPTIONAL, type=draw(st.sampled_from([5, 3, 9, 12])))
    enum = message.enum_type.add(name="E")
    for number in range(draw(st.integers(1, 3))):
        enum.value.add(name=f"V{number}", number=number)
    return file


@st.composite
def pairs(draw: Any) -> tuple[Any, Any]:
    old_proto2, new_proto2 = draw(st.booleans()), draw(st.booleans())
    old = draw(definitions(old_proto2))
    new = draw(definitions(new_proto2, old if old_proto2 == new_proto2 else None))
    return old, new


def scalar(draw: Any, field: Any) -> Any:
    match field.type:
        case Field.TYPE_DOUBLE | Field.TYPE_FLOAT:
            return draw(st.floats(width=32, allow_nan=False))
        case Field.TYPE_STRING:
            return draw(st.text(max_size=5))
        case Field.TYPE_BYTES:
            return draw(st.binary(max_size=5))
        case Field.TYPE_BOOL:
            return draw(st.booleans())
        case Field.TYPE_INT32 | Field.TYPE_SINT32 | Field.TYPE_SFIXED32:
            return draw(st.integers(-(1 << 31), (1 << 31) - 1))
        case Field.TYPE_INT64 | Field.TYPE_SINT64 | Field.TYPE_SFIXED64:
            return draw(st.integers(-(1 << 63), (1 << 63) - 1))
        case Field.TYPE_UINT32 | Field.TYPE_FIXED32:
            return draw(st.integers(0, (1 << 32) - 1))
        case _:
            return draw(st.integers(0, (1 << 64) - 1))


def fill(draw: Any, message: Any, file: Any, name: str, depth: int = 0) -> None:
    """Set the fields of a message at random, the required ones always."""
    top = file.message_type[0]
    described = top if name == ".M" else next(one for one in top.nested_type if name.endswith(one.name))
    for field in described.field:
        if field.label != REQUIRED and (depth > 2 or not draw(st.booleans())):
            continue
        target = getattr(message, field.name)
        times = draw(st.integers(1, 3)) if field.label == REPEATED else 1
        for _ in range(times):
            if field.type_name == ".M.FEntry":
                key, value = (next(one for one in top.nested_type if one.name == "FEntry")).field
                target[scalar(draw, key)] = scalar(draw, value)
            elif field.type == Field.TYPE_MESSAGE:
                one = target.add() if field.label == REPEATED else target
                one.SetInParent()
                fill(draw, one, file, field.type_name, depth + 1)
            else:
                value = draw(st.sampled_from(top.enum_type[0].value)).number if field.type_name else scalar(draw, field)
                if field.label == REPEATED:
                    target.append(value)
                else:
                    setattr(message, field.name, value)


def unchanged(old: Any, new: Any) -> list[tuple[Any, Any]]:
    """The fields of both versions that have the same type and label, of types that did not change."""
    before, after = old.message_type[0], new.message_type[0]
    same_types = (
        old.syntax == new.syntax  # proto2 and proto3 do not write the same bytes for the same values
        and [one.SerializeToString() for one in before.nested_type]
        == [one.SerializeToString() for one in after.nested_type]
        and before.enum_type == after.enum_type
        and before.field == after.field
    )
    found = {field.number: field for field in after.field}
    return [
        (field, found[field.number])
        for field in before.field
        if field.number in found
        and (field.type, field.type_name, field.label)
        == (found[field.number].type, found[field.number].type_name, found[field.number].label)
        and (same_types or not field.type_name)
    ]


def parse(file: Any) -> ParsedProtobuf:
    text = base64.b64encode(file.SerializeToString()).decode()
    schema = parse_schema(SchemaDefinition(SchemaFormat.PROTOBUF, text))
    assert isinstance(schema, ParsedProtobuf)
    return schema


@settings(suppress_health_check=list(HealthCheck))
@given(pairs(), st.data())
def test_what_is_called_compatible_can_be_read(versions, data):
    old_file, new_file = versions
    old, new = parse(old_file), parse(new_file)
    reasons = find_incompatibilities(new, old)
    event("incompatible" if reasons else "compatible")
    if reasons:
        return
    for _ in range(3):
        written = old.message_at([0])()
        fill(data.draw, written, old_file, ".M")
        payload = old.encode(written)
        assert new.check([payload]) is None
        read = new.decode(payload, old)
        for was, now in unchanged(old_file, new_file):
            one, other = getattr(written, was.name), getattr(read, now.name)
            if was.type == Field.TYPE_MESSAGE and was.label != REPEATED:
                assert written.HasField(was.name) == read.HasField(now.name)
                if written.HasField(was.name):
                    assert one.SerializeToString(deterministic=True) == other.SerializeToString(deterministic=True)
            else:
                assert str(one) == str(other)
