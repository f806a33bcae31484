"""Protobuf: whether messages written with one definition can be read with another.

The rules are those of the protobuf language guide ("Updating A Message Type"), and where the guide says "be careful",
those of the Confluent registry. They are about serialized messages, not about JSON or generated code.

Messages and enums are compared by their name in the package, so the package may change. Fields are compared by number.
Extensions are not compared: to a reader without them they are unknown fields.

    allowed                                                  refused
    a field is added, removed, renamed                       a field gets another number
    int32 uint32 int64 uint64 bool, one for another          any other change of the type
    sint32 sint64; fixed32 sfixed32; fixed64 sfixed64        bool read as an enum, and the reverse
    an enum read as int32 uint32 int64 uint64, and reverse   these read as a closed enum (proto2)
    string read as bytes                                     bytes read as string: need not be UTF-8
    a message read as bytes                                  bytes read as a message
    single to repeated, and reverse, of strings, bytes       of numbers, bools and enums, whose repeated form is packed
      and messages (the last one is read, messages merge)
    packed to unpacked, and reverse
    a map to repeated entries, and reverse                   other messages in place of entries
    required written, optional read                          required read, and not always written
    one field becomes the only known field of a oneof        several become one, or one joins others
    a field leaves a oneof                                   a field of a oneof that the reader has not
    a value of an open enum is added, removed, renamed       of a closed enum (proto2), if the reader has it not;
                                                             a name gets another number
    a message is added to the reader                         a message the reader has not
    messages change their order, or the file they are in     the first message, which is the payload, is another one

A number that does not fit the reader's type is truncated, as the guide says.

`find_reuse` is about the history, not about a reader and a writer: what was reserved stays so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, Final

from google.protobuf import descriptor_pb2

from pydanube.formats import ParsedSchema
from pydanube.model.schemas import Incompatibility

from .proto_files import enums, find_reserved, messages
from .schema import ParsedProtobuf

_PATH_CHARACTERS_MAX: Final = 200

_Field: Final = descriptor_pb2.FieldDescriptorProto
_MESSAGE: Final = _Field.TYPE_MESSAGE
_ENUM: Final = _Field.TYPE_ENUM
_STRING: Final = _Field.TYPE_STRING
_BYTES: Final = _Field.TYPE_BYTES

_INTEGERS: Final = frozenset({_Field.TYPE_INT32, _Field.TYPE_UINT32, _Field.TYPE_INT64, _Field.TYPE_UINT64})
_SAME_ENCODING: Final = (
    _INTEGERS | {_Field.TYPE_BOOL},
    frozenset({_Field.TYPE_SINT32, _Field.TYPE_SINT64}),
    frozenset({_Field.TYPE_FIXED32, _Field.TYPE_SFIXED32}),
    frozenset({_Field.TYPE_FIXED64, _Field.TYPE_SFIXED64}),
    _INTEGERS | {_ENUM},
)
_READ_AS: Final = frozenset({(_BYTES, _STRING), (_BYTES, _MESSAGE)})
"""Pairs of a reader's and a writer's type that are readable in this direction only."""


def find(reader: ParsedSchema, writer: ParsedSchema) -> list[Incompatibility]:
    """Return every reason why messages written with `writer` may not be readable with `reader`."""
    return list(_Comparison(_Types(reader), _Types(writer)).run())


def find_reuse(new: ParsedSchema, old: ParsedSchema) -> list[Incompatibility]:
    """Return every field and enum value of `new` whose number or name `old` reserved, because of earlier data."""
    return list(_find_reuse(_Types(new), _Types(old)))


class _Types:
    """The messages and enums of a schema and of what it imports, by name in the package of the schema."""

    def __init__(self, schema: ParsedSchema) -> None:
        assert isinstance(schema, ParsedProtobuf)
        self._package = f"{schema.file.package}." if schema.file.package else ""
        self.messages: dict[str, Any] = {}
        self.enums: dict[str, Any] = {}
        self.closed: set[str] = set()
        for file in schema.files:
            package = f"{file.package}." if file.package else ""
            for name, message in messages(file):
                self.messages[self.name(package + name)] = message
            for name, enum in enums(file):
                self.enums[self.name(package + name)] = enum
                if file.syntax != "proto3":
                    self.closed.add(self.name(package + name))
        self.own = [name for name, message in messages(schema.file) if not message.options.map_entry]
        """The messages of the definition itself."""
        self.first = schema.file.message_type[0].name if schema.file.message_type else None

    def name(self, type_name: str) -> str:
        """Return a full name without the package of the schema."""
        return type_name.removeprefix(".").removeprefix(self._package)


class _Comparison:
    """Compares the messages of a reader and of a writer, each pair once, with a list of pairs to do."""

    def __init__(self, reader: _Types, writer: _Types) -> None:
        self._reader = reader
        self._writer = writer
        self._seen: set[tuple[str, str]] = set()
        self._waiting: deque[tuple[str, str, str]] = deque()

    def run(self) -> Iterator[Incompatibility]:
        reader, writer = self._reader, self._writer
        if writer.first is not None and reader.first != writer.first:
            yield Incompatibility(
                "$", f"the first message, which is the payload, was {writer.first} and is {reader.first or 'none'}"
            )
        for name in writer.own:
            if name not in reader.messages:
                yield Incompatibility(name, "the message was removed")
                continue
            self._compare_later(name, name, name)
            while self._waiting:
                yield from self._compare_messages(*self._waiting.popleft())

    def _compare_later(self, path: str, reader: str, writer: str) -> None:
        if (reader, writer) not in self._seen:
            self._seen.add((reader, writer))
            self._waiting.append((path if len(path) <= _PATH_CHARACTERS_MAX else reader, reader, writer))

    def _compare_messages(self, path: str, reader: str, writer: str) -> Iterator[Incompatibility]:
        read, written = self._reader.messages[reader], self._writer.messages[writer]
        fields = {field.number: field for field in read.field}
        names = {field.name: field for field in read.field}
        known = {field.number for field in written.field}
        for field in written.field:
            other = fields.get(field.number)
            if other is not None:
                yield from self._compare_fields(f"{path}.{field.name}", other, field)
            elif field.name in names and names[field.name].number not in known:
                yield Incompatibility(
                    f"{path}.{field.name}", f"the number was {field.number} and is {names[field.name].number}"
                )
        writes_required = {field.number for field in written.field if field.label == _Field.LABEL_REQUIRED}
        for field in read.field:
            if field.label == _Field.LABEL_REQUIRED and field.number not in writes_required:
                yield Incompatibility(f"{path}.{field.name}", "the field is required, and was not written always")
        yield from _compare_oneofs(path, read, written)

    def _compare_fields(self, path: str, read: Any, written: Any) -> Iterator[Incompatibility]:
        maps = self._is_map(self._reader, read), self._is_map(self._writer, written)
        if not _types_match(read.type, written.type):
            yield Incompatibility(path, f"the type was {_type_name(written)} and is {_type_name(read)}")
            return
        if (read.label == _Field.LABEL_REPEATED) != (written.label == _Field.LABEL_REPEATED) and (
            written.type not in (_STRING, _BYTES, _MESSAGE) or any(maps)
        ):
            was, now = ("repeated", "single") if written.label == _Field.LABEL_REPEATED else ("single", "repeated")
            yield Incompatibility(path, f"the field of {_type_name(written)} was {was} and is {now}")
        if read.type == _ENUM != written.type and self._reader.name(read.type_name) in self._reader.closed:
            yield Incompatibility(path, f"a number need not be a value of the closed enum {_type_name(read)}")
        if read.type != written.type or read.type not in (_MESSAGE, _ENUM):
            return
        now, was = self._reader.name(read.type_name), self._writer.name(written.type_name)
        if now != was and not any(maps):
            yield Incompatibility(path, f"the type was {was} and is {now}")
        elif read.type == _ENUM:
            yield from self._compare_enums(path, now)
        elif maps[0] != maps[1] and not self._is_entry(now, was):
            yield Incompatibility(
                path, "a map was exchanged for messages that do not have a key with the number 1 and a value with 2"
            )
        else:
            many = "[]" if written.label == _Field.LABEL_REPEATED else ""
            self._compare_later(f"{path}{many}", now, was)

    def _is_map(self, types: _Types, field: Any) -> bool:
        return field.type == _MESSAGE and bool(types.messages[types.name(field.type_name)].options.map_entry)

    def _is_entry(self, reader: str, writer: str) -> bool:
        """Return whether both messages have the fields of a map's entry and no others."""
        both = self._reader.messages[reader], self._writer.messages[writer]
        return all(
            {field.number for field in message.field} == {1, 2}
            and all(field.label == _Field.LABEL_OPTIONAL for field in message.field)
            for message in both
        )

    def _compare_enums(self, path: str, name: str) -> Iterator[Incompatibility]:
        if (name, "") in self._seen:
            return
        self._seen.add((name, ""))
        read, written = self._reader.enums[name], self._writer.enums[name]
        numbers = {value.number for value in read.value}
        names = {value.name: value.number for value in read.value}
        for value in written.value:
            if names.get(value.name, value.number) != value.number:
                yield Incompatibility(path, f"{name}.{value.name} was {value.number} and is {names[value.name]}")
            elif value.number not in numbers and name in self._reader.closed:
                yield Incompatibility(
                    path, f"{name}.{value.name} = {value.number} is not a value of the reader's closed enum"
                )


def _type_name(field: Any) -> str:
    if field.type in (_MESSAGE, _ENUM):
        return str(field.type_name.removeprefix("."))
    return str(_Field.Type.Name(field.type)).removeprefix("TYPE_").lower()


def _types_match(reader: int, writer: int) -> bool:
    return (
        reader == writer
        or (reader, writer) in _READ_AS
        or any(reader in group and writer in group for group in _SAME_ENCODING)
    )


def _compare_oneofs(path: str, read: Any, written: Any) -> Iterator[Incompatibility]:
    read_fields = {field.number: field for field in read.field}
    oneof_of = {field.number: _oneof(written, field) for field in written.field}
    for index, names in _oneofs(read).items():
        shared = [number for number in names if number in oneof_of]
        sources = {oneof_of[number] for number in shared}
        if len(shared) > 1 and (len(sources) > 1 or None in sources):
            fields = ", ".join(names[number] for number in shared)
            yield Incompatibility(
                f"{path}.{read.oneof_decl[index].name}",
                f"only one of {fields} can be set, which could be set together",
            )
    for index, names in _oneofs(written).items():
        kept = {_oneof(read, read_fields[number]) for number in names if number in read_fields} - {None}
        for number, name in names.items():
            if number not in read_fields and kept:
                oneof = written.oneof_decl[index].name
                yield Incompatibility(
                    f"{path}.{name}", f"the field was removed from the oneof {oneof}, which then seems not to be set"
                )


def _oneof(message: Any, field: Any) -> str | None:
    """Return the oneof of a field; one that stands for `optional` in proto3 is none."""
    if not field.HasField("oneof_index") or field.proto3_optional:
        return None
    return str(message.oneof_decl[field.oneof_index].name)


def _oneofs(message: Any) -> dict[int, dict[int, str]]:
    """Return the fields of each oneof, by the position of the oneof: the name by the number."""
    result: dict[int, dict[int, str]] = {}
    for field in message.field:
        if _oneof(message, field) is not None:
            result.setdefault(field.oneof_index, {})[field.number] = field.name
    return result


def _find_reuse(new: _Types, old: _Types) -> Iterator[Incompatibility]:
    for name, message in new.messages.items():
        before = old.messages.get(name)
        if before is not None:
            ranges = [(one.start, one.end - 1) for one in before.reserved_range]
            for field, what in find_reserved(message.field, ranges, before.reserved_name):
                yield Incompatibility(f"{name}.{field}", f"{what} was reserved")
    for name, enum in new.enums.items():
        before = old.enums.get(name)
        if before is not None:
            ranges = [(one.start, one.end) for one in before.reserved_range]
            for value, what in find_reserved(enum.value, ranges, before.reserved_name):
                yield Incompatibility(f"{name}.{value}", f"{what} was reserved")
