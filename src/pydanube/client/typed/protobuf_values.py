"""Objects of generated protobuf classes.

The registered definition is the class's file with everything it imports, as a descriptor set. The message of a schema
is the first one of its file, so the message of this class is put first.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any, Final

from pydanube.formats.all_formats import missing_library
from pydanube.model.errors import Invalid
from pydanube.model.schemas import SchemaDefinition, SchemaFormat
from pydanube.model.text import one_line

from .value_type import ValueType, not_a_value

try:
    from google.protobuf import descriptor_pb2
except ImportError as error:
    raise missing_library(error) from None

WELL_KNOWN: Final = "google/protobuf/"
"""Files of this folder are built in everywhere, and no part of definitions."""


class ProtobufValues(ValueType[Any]):
    """Values of one generated class."""

    def __init__(self, kind: Any) -> None:
        descriptor = kind.DESCRIPTOR
        if descriptor.containing_type is not None:
            raise Invalid(
                f"{descriptor.full_name} is nested in another message: the message of a schema stands at the top of "
                f"its file"
            )
        self._kind = kind
        self.definition = SchemaDefinition(SchemaFormat.PROTOBUF, _descriptor_set(descriptor))

    def encode(self, value: Any) -> bytes:
        if type(value) is not self._kind:
            raise not_a_value(value, self._kind)
        try:
            payload: bytes = value.SerializeToString()
        except Exception as error:  # EncodeError, and what a message of proto2 makes of text that is not UTF-8
            raise Invalid(f"the {self._kind.__name__} cannot be written: {one_line(error)}") from error
        return payload

    def decoder(self) -> Callable[[bytes], Any]:
        return self._decode

    def _decode(self, payload: bytes) -> Any:
        message = self._kind.FromString(payload)
        if not message.IsInitialized():
            raise Invalid(f"required fields are missing: {', '.join(message.FindInitializationErrors())}")
        return message


def _descriptor_set(descriptor: Any) -> str:
    """Return the file of a message, after those it imports, as a FileDescriptorSet in Base64."""
    files: dict[str, Any] = {}

    def add(file: Any) -> None:
        for imported in file.dependencies:
            if imported.name not in files and not imported.name.startswith(WELL_KNOWN):
                add(imported)
        written = files[file.name] = descriptor_pb2.FileDescriptorProto()
        file.CopyToProto(written)

    add(descriptor.file)
    own = files[descriptor.file.name]
    messages = sorted(own.message_type, key=lambda one: one.name != descriptor.name)
    del own.message_type[:]
    own.message_type.extend(messages)
    data = descriptor_pb2.FileDescriptorSet(file=files.values()).SerializeToString(deterministic=True)
    return base64.b64encode(data).decode()
