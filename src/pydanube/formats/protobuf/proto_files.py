"""The files of a protobuf definition: loading, checking, resolving names, and the canonical form.

A file is a FileDescriptorProto. The functions here take files in the order of their imports, the definition last.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any, Final

from google.protobuf import (
    any_pb2,
    api_pb2,
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    message_factory,
    source_context_pb2,
    struct_pb2,
    timestamp_pb2,
    type_pb2,
    wrappers_pb2,
)
from google.protobuf.message import DecodeError

from pydanube.model.errors import Invalid
from pydanube.model.limits import PROTO_TEXT_BYTES_MAX
from pydanube.model.schemas import SchemaDefinition, SchemaFormat
from pydanube.model.text import one_line

from .proto_text import FIELD_NUMBER_MAX, NESTING_MAX, translate

FILES_MAX: Final = 100
"""How many files a definition may import, also indirectly."""

_Field: Final = descriptor_pb2.FieldDescriptorProto
_File: Final = descriptor_pb2.FileDescriptorProto

WELL_KNOWN: Final[dict[str, bytes]] = {
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


def check_required(message: Any) -> None:
    if not message.IsInitialized():
        raise Invalid(f"required fields are missing: {', '.join(message.FindInitializationErrors())}")


# ------------------------------------------------------------------------------------ loading files


def load(definition: SchemaDefinition, references: Mapping[str, SchemaDefinition]) -> list[Any]:
    """Return the file of a definition after all files it imports, each of them after those it imports."""
    *others, main = _read(definition)
    beside = {file.name: file for file in others}
    beside_references: dict[str, Any] = {}
    name = "definition.proto"
    while name in references or name in beside:
        name = f"_{name}"
    main.name = name
    text_bytes = _text_bytes(definition)
    loaded: dict[str, Any] = {}
    waiting: list[str] = []

    def add(file: Any) -> None:
        nonlocal text_bytes
        waiting.append(file.name)
        if len(waiting) + len(loaded) > FILES_MAX + 1:
            raise Invalid(f"the definition imports more than {FILES_MAX} files")
        for imported in file.dependency:
            if imported in loaded:
                continue
            if imported in waiting:
                cycle = [*waiting[waiting.index(imported) :], imported]
                raise Invalid(f"files import each other: {one_line(' -> '.join(cycle))}")
            if imported in WELL_KNOWN:
                add(_File.FromString(WELL_KNOWN[imported]))
            elif imported in beside:
                add(beside[imported])
            elif imported in references:
                text_bytes += _text_bytes(references[imported])
                if text_bytes > PROTO_TEXT_BYTES_MAX:
                    raise Invalid(
                        f"the definition and its references have more than {PROTO_TEXT_BYTES_MAX} bytes of .proto text"
                    )
                *others, file_of_reference = _referenced(imported, references[imported])
                beside_references.update((one.name, one) for one in others)
                add(file_of_reference)
            elif imported in beside_references:
                add(beside_references[imported])
            else:
                raise Invalid(f"{imported!r} is imported, but it is neither a reference nor a well-known type")
        waiting.pop()
        loaded[file.name] = file

    add(main)
    return list(loaded.values())


def _text_bytes(definition: SchemaDefinition) -> int:
    return 0 if _binary(definition.text) is not None else len(definition.text.encode())


def _referenced(name: str, definition: SchemaDefinition) -> list[Any]:
    """Return the files of a reference; the last one is the one that is imported."""
    if definition.format is not SchemaFormat.PROTOBUF:
        raise Invalid(f"the reference {name!r} is a schema of the format {definition.format}, not protobuf")
    try:
        files = _read(definition)
    except Invalid as error:
        raise Invalid(f"{name}: {error.message}") from None
    files[-1].name = name
    return files


def _read(definition: SchemaDefinition) -> list[Any]:
    """Return the files that the text of a definition has; the last one is the definition."""
    data = _binary(definition.text)
    if data is None:
        return [translate(definition.text)]
    try:
        file = _File.FromString(data)
        # Both messages begin with field 1. A descriptor set has no other, so as a file it has only a name.
        if any(field.name != "name" for field, _ in file.ListFields()):
            check_required(_strict_descriptor_class("FileDescriptorProto").FromString(data))
            return [file]
        files = list(descriptor_pb2.FileDescriptorSet.FromString(data).file)
        check_required(_strict_descriptor_class("FileDescriptorSet").FromString(data))
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
    file = _File.FromString(WELL_KNOWN["google/protobuf/descriptor.proto"])
    file.name = "strict.proto"
    pool = build_pool([verifying_utf8(file)])
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


def check_file(file: Any) -> None:
    """Check what the descriptor pool does not."""
    if file.syntax not in ("", "proto2", "proto3"):
        raise Invalid(f"the syntax {one_line(file.syntax)} is not supported: use proto2 or proto3")
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
    reserved = [(start, end - 1) for start, end in ranges]
    _check_overlap(name, reserved)
    for field, what in find_reserved(message.field, reserved, message.reserved_name):
        raise Invalid(f"{name}.{field}: {what} is reserved")
    for field in message.field:
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
    for used, what in find_reserved(enum.value, ranges, enum.reserved_name):
        raise Invalid(f"{name}.{used}: {what} is reserved")


def _check_overlap(name: str, ranges: list[tuple[int, int]]) -> None:
    for (start, end), (following, _) in pairwise(ranges):
        if following <= end:
            raise Invalid(f"{name}: the number {following} is in two ranges, one of which is {start} to {end}")


def find_reserved(
    used: Iterable[Any], ranges: Iterable[tuple[int, int]], names: Iterable[str]
) -> Iterator[tuple[str, str]]:
    """Yield the names of the fields or enum values that have a number in one of the ranges, which do not overlap, or
    one of the names, each with what of it is reserved."""
    ordered, reserved = sorted(ranges), set(names)
    position = 0
    for one in sorted(used, key=lambda one: int(one.number)):
        while position < len(ordered) and ordered[position][1] < one.number:
            position += 1
        if position < len(ordered) and ordered[position][0] <= one.number:
            yield one.name, f"the number {one.number}"
        if one.name in reserved:
            yield one.name, f"the name {one.name}"


def check_visible(files: Sequence[Any]) -> None:
    """Check that every file imports what it uses: the pool finds a type of any file that it has."""
    by_name = {file.name: file for file in files}
    homes: dict[str, str] = {}
    for file in files:
        package = f".{file.package}." if file.package else "."
        for name, _ in (*messages(file), *enums(file)):
            homes[package + name] = file.name
    for file in files:
        if file.name in WELL_KNOWN:
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


def build_pool(files: Sequence[Any]) -> Any:
    """Return a descriptor pool with the files, which resolves their type names and checks them."""
    pool = descriptor_pool.DescriptorPool()
    for file in files:
        try:
            pool.AddSerializedFile(file.SerializeToString())
        except TypeError as error:
            reason = one_line(str(error).removeprefix("Couldn't build proto file into descriptor pool: "))
            reason = _name_field(file, reason)
            raise Invalid(reason if file is files[-1] else f"{file.name}: {reason}") from None
    return pool


def _name_field(file: Any, reason: str) -> str:
    """Return the reason why a file is refused with the field that it is about, where the library does not say it."""
    for name, message in messages(file):
        numbers: dict[int, str] = {}
        for field in message.field:
            other = numbers.setdefault(field.number, field.name)
            if other != field.name:
                return one_line(f"{name}.{field.name}: the field {other} has the number {field.number} too")
    for field_name, used in _used_types(file):
        if used and f"'{used}'" in reason:
            return one_line(f"{field_name}: {reason}")
    return reason


def resolved(pool: Any, file: Any) -> Any:
    result = _File()
    pool.FindFileByName(file.name).CopyToProto(result)
    return result


def is_proto2(file: Any) -> bool:
    return file.syntax != "proto3" and file.name not in WELL_KNOWN


def verifying_utf8(file: Any) -> Any:
    """Return the file such that parsing verifies its strings.

    Protobuf verifies strings in proto3 and in editions, not in proto2. The result is a proto2 file written as edition
    2023, with the features that proto2 has otherwise.
    """
    if not is_proto2(file):
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


def canonical_file(file: Any) -> Any:
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
