"""Decodes payloads of the formats bytes, string and number to one Arrow column."""

from __future__ import annotations

import pyarrow as pa

from pydanube.model.errors import Invalid
from pydanube.model.schemas import SchemaFormat

from .columns import Decoded
from .nested_columns import decode_one_by_one
from .registry import ParsedSchema


class PlainColumnDecoder:
    """Decodes payloads that are bytes, UTF-8 text, or a number in decimal text."""

    def __init__(self, schema: ParsedSchema) -> None:
        self._schema = schema
        self._format = schema.definition.format

    def decode(self, payloads: pa.Array) -> Decoded:
        match self._format:
            case SchemaFormat.STRING:
                return self._decode_texts(payloads)
            case SchemaFormat.NUMBER:
                return self._decode_numbers(payloads)
        return Decoded(payloads, {})

    def _decode_texts(self, payloads: pa.Array) -> Decoded:
        texts = payloads.view(pa.string())
        try:
            texts.validate(full=True)
        except pa.ArrowInvalid:
            errors: dict[int, str] = {}
            values = decode_one_by_one(payloads.to_pylist(), self._schema.decode, errors, _explain)
            return Decoded(pa.array(values, pa.string()), errors)
        return Decoded(texts, {})

    def _decode_numbers(self, payloads: pa.Array) -> Decoded:
        texts = payloads.to_pylist()
        errors: dict[int, str] = {}
        values = decode_one_by_one(texts, lambda text: float(self._schema.decode(text)), errors, _explain)
        return Decoded(pa.array(values, pa.float64()), errors)


def _explain(error: Exception) -> str:
    if isinstance(error, Invalid):
        return error.message
    return f"the number does not fit a double: {error}"
