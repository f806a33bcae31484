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
import binascii
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from google.protobuf import (
    any_pb2,
    api_pb2,
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    json_format,
    message_factory,
    source_context_pb2,
    struct_pb2,
    timestamp_pb2,
    type_pb2,
    wrappers_pb2,
)
from google.protobuf.message import DecodeError, EncodeError, Message

from pydanube.model.errors import Invalid
from pydanube.model.limits import PROTO_TEXT_BYTES_MAX
from pydanube.model.schemas import SchemaDefinition, SchemaFormat

from .proto_text import FIELD_NUMBER_MAX, NESTING_MAX, translate

if TYPE_CHECKING:
    from .parsed import AnyBytes, InvalidRow, ParsedSchema

FILES_MAX: Final = 100
"""How many files a definition may import, also indirectly."""

_INDEXES_MAX: Final = NESTING_MAX
_REASON_CHARACTERS_MAX: Final = 300

_Field: Final = descriptor_pb2.FieldDescriptorProto
_File: Final = descriptor_pb2.FileDescriptorProto

_WELL_KNOWN: Final[dict[str, bytes]] = {
    module.DESCRIPTOR.name: module.DESCRIPTOR.serialized_pb
    for module in (
        any_pb2,
        api_pb2,
        descriptor_pb2,
        duration_pb2,
        empty_pb2,
        field_mask_pb2,
        source_context_pb2,
        struct_pb2,
        timestamp_pb2,
        type_pb2,
        wrappers_pb2,
    )
}

_MAP_KEYS: Final = frozenset(
    number
    for name, number in _Field.Type.items()
    if name not in ("TYPE_DOUBLE", "TYPE_FLOAT", "TYPE_BYTES", "TYPE_MESSAGE", "TYPE_ENUM", "TYPE_GROUP")
)
_NOT_PACKABLE: Final = frozenset({_Field.TYPE_STRING, _Field.TYPE_BYTES, _Field.TYPE_MESSAGE, _Field.TYPE_GROUP})


def parse(definition: SchemaDefinition, references: Mapping[str, SchemaDefinition]) -> ParsedProtobuf:
    """Return the schema of a definition. Raises Invalid with the place and the reason."""
    files = _load(definition, references)
    for file in files:
        if file.name not in _WELL_KNOWN:
            _check_file(file)
    return ParsedProtobuf(definition, files)


class ParsedProtobuf:
    """A protobuf definition with everything it imports, in a descriptor pool of its own."""

    def __init__(self, definition: SchemaDefinition, files: Sequence[Any]) -> None:
        """`files` are FileDescriptorProtos, each after those it imports; the last one is the definition."""
        self.definition = definition
        self._pool = _build_pool(files)
        self.files: Final = tuple(_resolved(self._pool, file) for file in files)
        """The files with all type names resolved. The definition is the last one; the others are its imports."""
        _check_visible(self.files)
        proto2 = [file for file in files if _is_proto2(file)]
        self._checking_pool = _build_pool([_verifying_utf8(file) for file in files]) if proto2 else self._pool
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
        imports = sorted((one for one in self.files[:-1] if one.name not in _WELL_KNOWN), key=lambda one: str(one.name))
        result = descriptor_pb2.FileDescriptorSet(file=[_canonical_file(one) for one in (*imports, self.file)])
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
        from .parsed import InvalidRow

        try:
            parsed = self._checker((0,))
        except Invalid as error:  # there is no message
            return InvalidRow(0, error.message) if payloads else None
        for row, payload in enumerate(payloads):
            try:
                message = parsed(payload)
                if self._required:
                    _check_required(message)
            except (DecodeError, Invalid) as error:
                return InvalidRow(row, _reason(error))
        return None

    def check_framed(self, payloads: Sequence[AnyBytes]) -> InvalidRow | None:
        """Like `check`, for payloads of Confluent's framing without their first five bytes."""
        from .parsed import InvalidRow

        for row, payload in enumerate(payloads):
            try:
                indexes, data = split_message_indexes(payload)
                message = self._checker(indexes)(data)
                if self._required:
                    _check_required(message)
            except (DecodeError, Invalid) as error:
                return InvalidRow(row, _reason(error))
        return None

    def decode(self, payload: AnyBytes, writer: ParsedSchema | None = None) -> Any:
        """Return the payload as a message of this schema. Fields that only the writer knows are unknown fields."""
        return self._decode((0,), payload)

    def decode_framed(self, payload: AnyBytes) -> Any:
        """Return the message of a payload in Confluent's framing without its first five bytes.

        The indexes are positions in the writer's file, so this is the schema that the payload was written with.
        """
        return self._decode(*split_message_indexes(payload))

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
                _check_required(message)
        except DecodeError as error:
            raise Invalid(_reason(error)) from None
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
            raise Invalid(_reason(error)) from None
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


def _check_required(message: Any) -> None:
    if not message.IsInitialized():
        raise Invalid(f"required fields are missing: {', '.join(message.FindInitializationErrors())}")


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= _REASON_CHARACTERS_MAX else text[: _REASON_CHARACTERS_MAX - 3] + "..."


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


# ------------------------------------------------------------------------------------ loading files


def _load(definition: SchemaDefinition, references: Mapping[str, SchemaDefinition]) -> list[Any]:
    """Return the file of a definition after all files it imports, each of them after those it imports."""
    *others, main = _read(definition)
    beside = {file.name: file for file in others}
    name = "definition.proto"
    while name in references or name in beside:
        name = f"_{name}"
    main.name = name
    text_bytes = _text_bytes(definition)
    loaded: dict[str, Any] = {}
    waiting: list[str] = []

    def load(file: Any) -> None:
        nonlocal text_bytes
        waiting.append(file.name)
        if len(waiting) + len(loaded) > FILES_MAX + 1:
            raise Invalid(f"the definition imports more than {FILES_MAX} files")
        for imported in file.dependency:
            if imported in loaded:
                continue
            if imported in waiting:
                cycle = [*waiting[waiting.index(imported) :], imported]
                raise Invalid(f"files import each other: {_reason(Exception(' -> '.join(cycle)))}")
            if imported in _WELL_KNOWN:
                load(_File.FromString(_WELL_KNOWN[imported]))
            elif imported in beside:
                load(beside[imported])
            elif imported in references:
                text_bytes += _text_bytes(references[imported])
                if text_bytes > PROTO_TEXT_BYTES_MAX:
                    raise Invalid(
                        f"the definition and its references have more than {PROTO_TEXT_BYTES_MAX} bytes of .proto text"
                    )
                load(_referenced(imported, references[imported]))
            else:
                raise Invalid(f"{imported!r} is imported, but it is neither a reference nor a well-known type")
        waiting.pop()
        loaded[file.name] = file

    load(main)
    return list(loaded.values())


def _text_bytes(definition: SchemaDefinition) -> int:
    return 0 if _binary(definition.text) is not None else len(definition.text.encode())


def _referenced(name: str, definition: SchemaDefinition) -> Any:
    if definition.format is not SchemaFormat.PROTOBUF:
        raise Invalid(f"the reference {name!r} is a schema of the format {definition.format}, not protobuf")
    try:
        file = _read(definition)[-1]
    except Invalid as error:
        raise Invalid(f"{name}: {error.message}") from None
    file.name = name
    return file


def _read(definition: SchemaDefinition) -> list[Any]:
    """Return the files that the text of a definition has; the last one is the definition."""
    data = _binary(definition.text)
    if data is None:
        return [translate(definition.text)]
    try:
        file = _File.FromString(data)
        # Both messages begin with field 1. A descriptor set has no other, so as a file it has only a name.
        if any(field.name != "name" for field, _ in file.ListFields()):
            _check_required(_strict_descriptor_class("FileDescriptorProto").FromString(data))
            return [file]
        files = list(descriptor_pb2.FileDescriptorSet.FromString(data).file)
        _check_required(_strict_descriptor_class("FileDescriptorSet").FromString(data))
    except DecodeError:
        raise Invalid("the Base64 text is neither a FileDescriptorSet nor a FileDescriptorProto") from None
    if not files:
        raise Invalid("the descriptor set has no file")
    if len({one.name for one in files}) < len(files):
        raise Invalid("the descriptor set has two files of one name")
    return files


@cache
def _strict_descriptor_class(name: str) -> Any:
    """Return a class of descriptor.proto that verifies strings, which the one of protobuf does not."""
    file = _File.FromString(_WELL_KNOWN["google/protobuf/descriptor.proto"])
    file.name = "strict.proto"
    pool = _build_pool([_verifying_utf8(file)])
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"google.protobuf.{name}"))


def _binary(text: str) -> bytes | None:
    """Return the bytes of a text in Base64, or None. A `.proto` text is never Base64: it has a `;` or a `{`."""
    try:
        return base64.b64decode("".join(text.split()), validate=True) or None
    except (binascii.Error, ValueError):
        return None


# ----------------------------------------------------------------------------------------- checking


def messages(file: Any) -> Iterator[tuple[str, Any]]:
    """Yield every message of a file with its name in the package, nested ones too: `Order`, `Order.Item`."""
    waiting = [(message.name, message) for message in reversed(file.message_type)]
    while waiting:
        name, message = waiting.pop()
        yield name, message
        waiting += [(f"{name}.{nested.name}", nested) for nested in reversed(message.nested_type)]


def enums(file: Any) -> Iterator[tuple[str, Any]]:
    """Yield every enum of a file with its name in the package."""
    yield from ((enum.name, enum) for enum in file.enum_type)
    for name, message in messages(file):
        yield from ((f"{name}.{enum.name}", enum) for enum in message.enum_type)


def _check_file(file: Any) -> None:
    """Check what the descriptor pool does not."""
    if file.syntax not in ("", "proto2", "proto3"):
        raise Invalid(f"the syntax {_reason(Exception(file.syntax))} is not supported: use proto2 or proto3")
    for name, message in messages(file):
        if name.count(".") >= NESTING_MAX:
            raise Invalid(f"messages nest more than {NESTING_MAX} deep")
        _check_message(name, message)
        for field in message.extension:
            _check_field(f"{name}.{field.name}", field, file)
        for field in message.field:
            _check_field(f"{name}.{field.name}", field, file)
    for field in file.extension:
        _check_field(field.name, field, file)
    for name, enum in enums(file):
        _check_enum(name, enum)


def _check_message(name: str, message: Any) -> None:
    if message.options.message_set_wire_format:
        raise Invalid(f"{name}: message_set_wire_format is not supported")
    if message.options.map_entry:
        _check_map_entry(name, message)
    ranges = sorted((one.start, one.end) for one in (*message.reserved_range, *message.extension_range))
    for start, end in ranges:
        if not 0 < start < end <= FIELD_NUMBER_MAX + 1:
            raise Invalid(f"{name}: the range {start} to {end - 1} has no field numbers")
    _check_overlap(name, [(start, end - 1) for start, end in ranges])
    reserved = [(start, end - 1) for start, end in ranges]
    names = set(message.reserved_name)
    for field, number in _in_ranges([(field, field.number) for field in message.field], reserved):
        raise Invalid(f"{name}.{field.name}: the number {number} is reserved")
    for field in message.field:
        if field.name in names:
            raise Invalid(f"{name}.{field.name}: the name is reserved")
        if 19000 <= field.number <= 19999:
            raise Invalid(f"{name}.{field.name}: the numbers 19000 to 19999 are reserved for protobuf itself")


def _check_map_entry(name: str, entry: Any) -> None:
    fields = {field.number: field for field in entry.field}
    plain = len(entry.field) == 2 and not (entry.nested_type or entry.oneof_decl or entry.extension_range)
    if not plain or fields.keys() != {1, 2} or fields[1].type not in _MAP_KEYS:
        raise Invalid(f"{name} is not the entry of a map")
    if any(field.label != _Field.LABEL_OPTIONAL for field in entry.field):
        raise Invalid(f"{name} is not the entry of a map")


def _check_field(path: str, field: Any, file: Any) -> None:
    if field.type == _Field.TYPE_GROUP and field.HasField("type"):
        raise Invalid(f"{path}: groups are not supported: use a message")
    if field.options.packed and (field.label != _Field.LABEL_REPEATED or field.type in _NOT_PACKABLE):
        raise Invalid(f"{path}: only a repeated field of numbers can be packed")
    if field.HasField("extendee") and file.syntax == "proto3" and not _extends_options(field.extendee):
        raise Invalid(f"{path}: proto3 has extensions only for options")


def _extends_options(extendee: str) -> bool:
    return extendee.lstrip(".").startswith("google.protobuf.") and extendee.endswith("Options")


def _check_enum(name: str, enum: Any) -> None:
    names: dict[int, str] = {}
    for value in enum.value:
        first = names.setdefault(value.number, value.name)
        if first != value.name and not enum.options.allow_alias:
            raise Invalid(
                f"{name}.{value.name}: {first} has the number {value.number} too; set allow_alias to permit it"
            )
    ranges = sorted((one.start, one.end) for one in enum.reserved_range)
    _check_overlap(name, ranges)
    for value, number in _in_ranges([(value, value.number) for value in enum.value], ranges):
        raise Invalid(f"{name}.{value.name}: the number {number} is reserved")
    reserved = set(enum.reserved_name)
    for value in enum.value:
        if value.name in reserved:
            raise Invalid(f"{name}.{value.name}: the name is reserved")


def _check_overlap(name: str, ranges: list[tuple[int, int]]) -> None:
    for (start, end), (following, _) in pairwise(ranges):
        if following <= end:
            raise Invalid(f"{name}: the number {following} is in two ranges, one of which is {start} to {end}")


def _in_ranges(numbered: list[tuple[Any, int]], ranges: list[tuple[int, int]]) -> Iterator[tuple[Any, int]]:
    """Yield what has a number in one of the ranges, which are in ascending order and do not overlap."""
    position = 0
    for one, number in sorted(numbered, key=lambda pair: pair[1]):
        while position < len(ranges) and ranges[position][1] < number:
            position += 1
        if position < len(ranges) and ranges[position][0] <= number:
            yield one, number


def _check_visible(files: Sequence[Any]) -> None:
    """Check that every file imports what it uses: the pool finds a type of any file that it has."""
    by_name = {file.name: file for file in files}
    homes: dict[str, str] = {}
    for file in files:
        package = f".{file.package}." if file.package else "."
        for name, _ in (*messages(file), *enums(file)):
            homes[package + name] = file.name
    for file in files:
        if file.name in _WELL_KNOWN:
            continue
        visible = {file.name}
        waiting = list(file.dependency)
        while waiting:
            imported = waiting.pop()
            if imported not in visible:
                visible.add(imported)
                waiting += [by_name[imported].dependency[index] for index in by_name[imported].public_dependency]
        for user, used in _used_types(file):
            if used in homes and homes[used] not in visible:
                raise Invalid(f"{user} uses {used[1:]} of {homes[used]}, which is not imported")


def _used_types(file: Any) -> Iterator[tuple[str, str]]:
    for name, message in messages(file):
        for field in (*message.field, *message.extension):
            yield f"{name}.{field.name}", field.type_name
            yield f"{name}.{field.name}", field.extendee
    for field in file.extension:
        yield field.name, field.type_name
        yield field.name, field.extendee


# -------------------------------------------------------------------------------------------- pools


def _build_pool(files: Sequence[Any]) -> Any:
    """Return a descriptor pool with the files, which resolves their type names and checks them."""
    pool = descriptor_pool.DescriptorPool()
    for file in files:
        try:
            pool.AddSerializedFile(file.SerializeToString())
        except TypeError as error:
            reason = _reason(Exception(str(error).removeprefix("Couldn't build proto file into descriptor pool: ")))
            raise Invalid(reason if file is files[-1] else f"{file.name}: {reason}") from None
    return pool


def _resolved(pool: Any, file: Any) -> Any:
    result = _File()
    pool.FindFileByName(file.name).CopyToProto(result)
    return result


def _is_proto2(file: Any) -> bool:
    return file.syntax != "proto3" and file.name not in _WELL_KNOWN


def _verifying_utf8(file: Any) -> Any:
    """Return the file such that parsing verifies its strings.

    Protobuf verifies strings in proto3 and in editions, not in proto2. The result is a proto2 file written as edition
    2023, with the features that proto2 has otherwise.
    """
    if not _is_proto2(file):
        return file
    result = _File()
    result.CopyFrom(file)
    result.syntax, result.edition = "editions", descriptor_pb2.EDITION_2023
    features = result.options.features
    features.enum_type = descriptor_pb2.FeatureSet.CLOSED
    features.repeated_field_encoding = descriptor_pb2.FeatureSet.EXPANDED
    features.json_format = descriptor_pb2.FeatureSet.LEGACY_BEST_EFFORT
    features.utf8_validation = descriptor_pb2.FeatureSet.VERIFY
    for _, message in messages(result):
        for field in message.field:
            field.options.ClearField("packed")  # readers accept both
            if field.label == _Field.LABEL_REQUIRED:
                field.label = _Field.LABEL_OPTIONAL
                field.options.features.field_presence = descriptor_pb2.FeatureSet.LEGACY_REQUIRED
    return result


# ------------------------------------------------------------------------------------ canonical form


def _canonical_file(file: Any) -> Any:
    """Return a copy without what does not change the meaning: source positions, and the order of what is numbered.

    The order of messages is kept, because Confluent's framing names a message by its position.
    """
    result = _File()
    result.CopyFrom(file)
    result.ClearField("source_code_info")
    if result.syntax == "proto2":
        result.ClearField("syntax")
    _sort_imports(result)
    _sort(result.enum_type, lambda enum: enum.name)
    _sort(result.extension, lambda field: (field.extendee, field.number))
    for field in result.extension:
        _canonical_field(field, proto3=result.syntax == "proto3")
    for _, message in messages(result):
        _canonical_message(message, proto3=result.syntax == "proto3")
    for _, enum in enums(result):
        _canonical_enum(enum)
    return result


def _sort(repeated: Any, key: Callable[[Any], Any]) -> None:
    """Sort a repeated field of messages in place."""
    ordered = sorted(repeated, key=key)
    copies = [type(one).FromString(one.SerializeToString()) for one in ordered]
    del repeated[:]
    repeated.extend(copies)


def _sort_imports(file: Any) -> None:
    public = {file.dependency[index] for index in file.public_dependency}
    weak = {file.dependency[index] for index in file.weak_dependency}
    names = sorted(file.dependency)
    for kind in ("dependency", "public_dependency", "weak_dependency"):
        file.ClearField(kind)
    file.dependency.extend(names)
    file.public_dependency.extend(index for index, name in enumerate(names) if name in public)
    file.weak_dependency.extend(index for index, name in enumerate(names) if name in weak)


def _canonical_message(message: Any, *, proto3: bool) -> None:
    _sort_oneofs(message)
    _sort(message.field, lambda field: field.number)
    _sort(message.extension, lambda field: (field.extendee, field.number))
    _sort(message.enum_type, lambda enum: enum.name)
    _sort(message.reserved_range, lambda one: one.start)
    _sort(message.extension_range, lambda one: one.start)
    message.reserved_name[:] = sorted(message.reserved_name)
    for field in (*message.field, *message.extension):
        _canonical_field(field, proto3=proto3)
    _drop_empty_options(message)


def _sort_oneofs(message: Any) -> None:
    """Sort the oneofs by name; those that stand for `optional` in proto3 stay behind the others."""
    synthetic = {field.oneof_index for field in message.field if field.proto3_optional}
    order = sorted(
        range(len(message.oneof_decl)), key=lambda index: (index in synthetic, message.oneof_decl[index].name)
    )
    copies = [
        type(message.oneof_decl[index]).FromString(message.oneof_decl[index].SerializeToString()) for index in order
    ]
    del message.oneof_decl[:]
    message.oneof_decl.extend(copies)
    positions = {index: position for position, index in enumerate(order)}
    for field in message.field:
        if field.HasField("oneof_index"):
            field.oneof_index = positions[field.oneof_index]


def _canonical_field(field: Any, *, proto3: bool) -> None:
    """Drop what is the default anyway: the JSON name, `packed`, `deprecated = false`."""
    if field.json_name == _json_name(field.name):
        field.ClearField("json_name")
    packable = field.label == _Field.LABEL_REPEATED and field.type not in _NOT_PACKABLE
    if field.options.HasField("packed") and field.options.packed is (proto3 and packable):
        field.options.ClearField("packed")
    _drop_empty_options(field)


def _canonical_enum(enum: Any) -> None:
    """Sort the values by number, but for the first one, which is the default."""
    first = enum.value[0].name
    _sort(enum.value, lambda value: (value.name != first, value.number))
    _sort(enum.reserved_range, lambda one: one.start)
    enum.reserved_name[:] = sorted(enum.reserved_name)
    for value in enum.value:
        _drop_empty_options(value)
    _drop_empty_options(enum)


def _drop_empty_options(owner: Any) -> None:
    for flag in ("deprecated", "allow_alias"):
        if flag in owner.options.DESCRIPTOR.fields_by_name and not getattr(owner.options, flag):
            owner.options.ClearField(flag)
    if not owner.options.ByteSize():
        owner.ClearField("options")


def _json_name(name: str) -> str:
    """Return the JSON name that protobuf gives a field by itself: `order_id` is `orderId`."""
    head, *rest = name.split("_")
    return head + "".join(part[:1].upper() + part[1:] for part in rest)
