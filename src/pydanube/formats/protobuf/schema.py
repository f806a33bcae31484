"""The format protobuf: definitions are `.proto` text, or a descriptor in Base64; payloads are serialized messages.

A descriptor is a FileDescriptorSet, whose last file is the definition and comes after everything it imports, or one
FileDescriptorProto, which is what the Confluent clients register. A definition imports only its references, the other
files of its set, and the well-known types `google/protobuf/*.proto`, which are built in. Nothing is ever looked up
anywhere else.

Every schema has a descriptor pool of its own, where its names cannot clash with those of another schema or of the
process. The payload's message is the first one of the file. With Confluent's framing the payload says which one it is,
by the position of the message in the file, after the five bytes that the caller has removed:

    count | index ... | serialized message      count and indexes are zigzag varints; one byte 0 stands for [0]

What is valid: unknown fields are. Truncated data, a string that is not UTF-8 (proto2 too, where protobuf itself does
not look) and a missing required field are not.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

from google.protobuf import descriptor_pb2, json_format, message_factory
from google.protobuf.message import DecodeError, EncodeError, Message

from pydanube.formats.all_formats import AnyBytes, InvalidRow, ParsedSchema
from pydanube.model.errors import Invalid
from pydanube.model.schemas import SchemaDefinition
from pydanube.model.text import one_line

from .proto_files import (
    WELL_KNOWN,
    build_pool,
    canonical_file,
    check_file,
    check_required,
    check_visible,
    is_proto2,
    load,
    messages,
    resolved,
    verifying_utf8,
)
from .proto_text import NESTING_MAX

_INDEXES_MAX: Final = NESTING_MAX

_Field: Final = descriptor_pb2.FieldDescriptorProto


def parse(definition: SchemaDefinition, references: Mapping[str, SchemaDefinition]) -> ParsedProtobuf:
    """Return the schema of a definition. Raises Invalid with the place and the reason."""
    files = load(definition, references)
    for file in files:
        if file.name not in WELL_KNOWN:
            check_file(file)
    return ParsedProtobuf(definition, files)


class ParsedProtobuf:
    """A protobuf definition with everything it imports, in a descriptor pool of its own."""

    def __init__(self, definition: SchemaDefinition, files: Sequence[Any]) -> None:
        """`files` are FileDescriptorProtos, each after those it imports; the last one is the definition."""
        self.definition = definition
        self._pool = build_pool(files)
        self.files: Final = tuple(resolved(self._pool, file) for file in files)
        """The files with all type names resolved. The definition is the last one; the others are its imports."""
        check_visible(self.files)
        proto2 = [file for file in files if is_proto2(file)]
        self._checking_pool = build_pool([verifying_utf8(file) for file in files]) if proto2 else self._pool
        self._required = any(
            field.label == _Field.LABEL_REQUIRED
            for file in proto2
            for _, message in messages(file)
            for field in message.field
        )
        self._classes: dict[tuple[int, ...], Any] = {}
        self._checkers: dict[tuple[int, ...], Any] = {}

    @property
    def file(self) -> Any:
        """The FileDescriptorProto of the definition itself. Its name has no meaning."""
        return self.files[-1]

    @cached_property
    def canonical(self) -> bytes:
        """The definition and what it imports, in the canonical order of both, without what has no meaning."""
        imports = sorted((one for one in self.files[:-1] if one.name not in WELL_KNOWN), key=lambda one: str(one.name))
        result = descriptor_pb2.FileDescriptorSet(file=[canonical_file(one) for one in (*imports, self.file)])
        result.file[-1].ClearField("name")
        serialized: bytes = result.SerializeToString(deterministic=True)
        return serialized

    @cached_property
    def serialized(self) -> str:
        """The FileDescriptorProto of the definition in Base64: what the Confluent API calls the format `serialized`."""
        return base64.b64encode(self.file.SerializeToString(deterministic=True)).decode()

    def message_at(self, indexes: Sequence[int]) -> Any:
        """Return the class of the message at a path of positions: `[1, 0]` is the first one nested in the second."""
        return self._class(tuple(indexes), self._classes, self._pool)

    def check(self, payloads: Sequence[AnyBytes]) -> InvalidRow | None:
        try:
            parsed = self._checker((0,))
        except Invalid as error:  # there is no message
            return InvalidRow(0, error.message) if payloads else None
        for row, payload in enumerate(payloads):
            try:
                message = parsed(payload)
                if self._required:
                    check_required(message)
            except (DecodeError, Invalid) as error:
                return InvalidRow(row, one_line(error))
        return None

    def check_framed(self, payloads: Sequence[AnyBytes]) -> InvalidRow | None:
        """Like `check`, for payloads of Confluent's framing without their first five bytes."""
        for row, payload in enumerate(payloads):
            try:
                indexes, data = split_message_indexes(payload)
                message = self._checker(indexes)(data)
                if self._required:
                    check_required(message)
            except (DecodeError, Invalid) as error:
                return InvalidRow(row, one_line(error))
        return None

    def decode(self, payload: AnyBytes, writer: ParsedSchema | None = None) -> Any:
        """Return the payload as a message of this schema. Fields that only the writer knows are unknown fields."""
        return self._decode((0,), payload)

    def decode_framed(self, payload: AnyBytes) -> Any:
        """Return the message of a payload in Confluent's framing without its first five bytes.

        The indexes are positions in the writer's file, so this is the schema that the payload was written with.
        """
        return self._decode(*split_message_indexes(payload))

    def to_json(self, message: Any) -> Any:
        """Return a decoded message in the form of protobuf's JSON, with the field names of the definition."""
        try:
            return json_format.MessageToDict(message, preserving_proto_field_name=True, descriptor_pool=self._pool)
        except (json_format.Error, TypeError, ValueError, KeyError) as error:
            raise Invalid(f"the message cannot be written as JSON: {one_line(error)}") from None

    def encode(self, value: Any) -> bytes:
        """Return the payload of a message of the first message type, or of a dict in the form of protobuf's JSON."""
        first = self.message_at((0,)).DESCRIPTOR.full_name
        if isinstance(value, Message) and value.DESCRIPTOR.full_name != first:
            raise Invalid(f"a message {value.DESCRIPTOR.full_name} is not a value of a schema whose message is {first}")
        return self._encode((0,), value)

    def encode_framed(self, value: Any) -> bytes:
        """Return the payload with its message indexes, without the first five bytes of Confluent's framing.

        `value` is a message of any message type of the file, or a dict of the first.
        """
        indexes = self._indexes_of(value.DESCRIPTOR.full_name) if isinstance(value, Message) else (0,)
        return join_message_indexes(indexes) + self._encode(indexes, value)

    def _decode(self, indexes: tuple[int, ...], payload: AnyBytes) -> Any:
        try:
            if self._checking_pool is not self._pool:
                self._checker(indexes)(payload)
            message = self.message_at(indexes).FromString(payload)
            if self._required:
                check_required(message)
        except DecodeError as error:
            raise Invalid(one_line(error)) from None
        return message

    def _encode(self, indexes: tuple[int, ...], value: Any) -> bytes:
        kind = self.message_at(indexes)
        try:
            if isinstance(value, Mapping):
                value = json_format.ParseDict(dict(value), kind(), descriptor_pool=self._pool)
            elif not isinstance(value, Message):
                raise Invalid(f"a {type(value).__name__} is not a value of a protobuf schema: use a message or a dict")
            payload: bytes = value.SerializeToString()
            if not isinstance(value, kind):
                self._decode(indexes, payload)  # a class of another pool, which may have another definition
        except (json_format.Error, EncodeError, TypeError, ValueError, AttributeError) as error:
            raise Invalid(one_line(error)) from None
        return payload

    def _checker(self, indexes: tuple[int, ...]) -> Callable[[AnyBytes], Any]:
        """Return the function that parses one payload and raises DecodeError."""
        found: Any = self._class(indexes, self._checkers, self._checking_pool).FromString
        return found  # type: ignore[no-any-return]

    def _class(self, indexes: tuple[int, ...], known: dict[tuple[int, ...], Any], pool: Any) -> Any:
        found = known.get(indexes)
        if found is None:
            found = known[indexes] = message_factory.GetMessageClass(pool.FindMessageTypeByName(self._name_at(indexes)))
        return found

    def _name_at(self, indexes: tuple[int, ...]) -> str:
        """Return the full name of the message at a path of positions."""
        nested: Any = self.file.message_type
        if not nested:
            raise Invalid("the definition has no message")
        names = [self.file.package] if self.file.package else []
        for index in indexes:
            if not 0 <= index < len(nested) or nested[index].options.map_entry:
                break
            names.append(nested[index].name)
            nested = nested[index].nested_type
        else:
            if indexes:
                return ".".join(names)
        raise Invalid(f"the definition has no message with the indexes {list(indexes)[:_INDEXES_MAX]}")

    def _indexes_of(self, full_name: str) -> tuple[int, ...]:
        name = full_name.removeprefix(f"{self.file.package}.") if self.file.package else full_name
        indexes: list[int] = []
        nested: Any = self.file.message_type
        for part in name.split("."):
            index = next((index for index, one in enumerate(nested) if one.name == part), None)
            if index is None:
                raise Invalid(f"the definition has no message {full_name}")
            indexes.append(index)
            nested = nested[index].nested_type
        return tuple(indexes)


# ------------------------------------------------------------------------------------ message indexes


def split_message_indexes(payload: AnyBytes) -> tuple[tuple[int, ...], AnyBytes]:
    """Return the message indexes that a payload of Confluent's framing begins with, and the serialized message."""
    if len(payload) > 0 and payload[0] == 0:
        return (0,), payload[1:]
    count, position = _read_varint(payload, 0)
    if not 0 < count <= _INDEXES_MAX:
        raise Invalid(f"the payload begins with {count} message indexes, which is not between 0 and {_INDEXES_MAX}")
    indexes = []
    for _ in range(count):
        index, position = _read_varint(payload, position)
        indexes.append(index)
    return tuple(indexes), payload[position:]


def join_message_indexes(indexes: Sequence[int]) -> bytes:
    """Return the bytes of message indexes in Confluent's framing."""
    if tuple(indexes) == (0,):
        return b"\0"
    return b"".join(_varint(number << 1) for number in (len(indexes), *indexes))


def _read_varint(payload: AnyBytes, position: int) -> tuple[int, int]:
    """Return a zigzag varint of at most 32 bits and the position after it."""
    value = 0
    for shift in range(0, 35, 7):
        if position >= len(payload):
            raise Invalid("the message indexes that the payload begins with are cut off")
        byte = payload[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position
    raise Invalid("the message indexes that the payload begins with are too large")


def _varint(value: int) -> bytes:
    result = bytearray()
    while value > 0x7F:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    result.append(value)
    return bytes(result)
