"""The JSON Schema of what pydantic writes, which is not always what it would read.

A Decimal is read from numbers and texts, and always written as text. Computed fields are not written, because a reader
could not set them, and JSON inside text is written as text.
"""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

T = TypeVar("T")


class WrittenSchema(GenerateJsonSchema):
    """Generates schemas in serialization mode, for the JSON of `round_trip`."""

    def decimal_schema(self, schema: Any) -> JsonSchemaValue:
        """Return a schema that columns know, without the pattern of pydantic: it looks ahead, which is refused."""
        return {"type": "string", "format": "decimal"}

    def json_schema(self, schema: Any) -> JsonSchemaValue:
        return {"type": "string", "contentMediaType": "application/json"}

    def model_fields_schema(self, schema: Any) -> JsonSchemaValue:
        return super().model_fields_schema(_without_computed(schema))

    def dataclass_args_schema(self, schema: Any) -> JsonSchemaValue:
        return super().dataclass_args_schema(_without_computed(schema))

    def typed_dict_schema(self, schema: Any) -> JsonSchemaValue:
        return super().typed_dict_schema(_without_computed(schema))


def _without_computed(schema: Any) -> Any:
    return {**schema, "computed_fields": []}
