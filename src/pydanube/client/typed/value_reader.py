"""How one consumer or reader decodes batches: by its own schema and the schema that each batch was written with."""

from __future__ import annotations

import sys
from collections.abc import Callable
from copy import copy
from typing import Any, Final, Generic, NoReturn, TypeVar

from pydanube.model.errors import DanubeError, Invalid
from pydanube.model.text import one_line

from .value_type import ValueType
from .writer_schemas import VersionKey, WriterSchemas

T = TypeVar("T")

READINGS_MAX: Final = 1_000
"""How many writers' versions one consumer keeps the decoding functions of."""

Decode = Callable[[bytes], T]
"""Returns the value of a payload. It may raise any exception."""


class ValueReader(Generic[T]):
    """Finds the decoding function of each batch."""

    def __init__(self, value_type: ValueType[T], writers: WriterSchemas) -> None:
        self._value_type = value_type
        self._writers = writers
        self._decoders: dict[VersionKey, Decode[T]] = {}

    async def open(self) -> None:
        """Fetch what the schema refers to. Cancelled, nothing is left behind."""
        definition = self._value_type.definition
        if definition.references:
            self._value_type.use_references(await self._writers.registry.references_of(definition))

    def find_decoder(self, key: VersionKey) -> Decode[T] | None:
        """Return the decoding function for batches of a schema id and version; None: its schema is not fetched yet.

        A batch that was written without a schema is read as one of the reader's own schema. If the writer's schema
        cannot be fetched or cannot be read as the reader's, the function raises why.
        """
        decode = self._decoders.get(key)
        if decode is not None:
            return decode
        if not all(key):
            decode = self._value_type.decoder()
        else:
            writer = self._writers.find(key)
            if writer is None:
                return None
            if isinstance(writer, DanubeError):
                return failing(writer)  # not kept: it may succeed later
            try:
                decode = self._value_type.decoder_of(writer)
            except DanubeError as error:
                decode = failing(error)
        if len(self._decoders) >= READINGS_MAX:
            self._decoders.clear()
        self._decoders[key] = decode
        return decode

    def when_known(self, key: VersionKey, callback: Callable[[], None]) -> None:
        """Call back when `find_decoder` has a function for these batches."""
        self._writers.when_known(key, callback)


def failing(error: DanubeError) -> Decode[Any]:
    """Return a function that raises the error, whatever the payload is."""

    def fail(payload: bytes) -> NoReturn:
        raise copy(error)

    return fail


def decoding_error(error: Exception, topic: str, partition: int, offset: int) -> DanubeError:
    """Return the error of a message that cannot be decoded: of the same class, or Invalid if a library raised it."""
    named = copy(error) if isinstance(error, DanubeError) else Invalid(one_line(_reason(error)))
    named.message = f"message {offset} of {topic}[{partition}] cannot be decoded: {named.message}"
    named.args = (named.message,)
    return named


def _reason(error: Exception) -> str:
    """Return the text of an error; of pydantic's, which has several lines with addresses, each field and its fault."""
    pydantic_core = sys.modules.get("pydantic_core")
    if pydantic_core is None or not isinstance(error, pydantic_core.ValidationError):
        return str(error)
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, ('$', *one['loc'])))}: {one['msg']}" for one in faults)
