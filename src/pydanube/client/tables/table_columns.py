"""The columns of a read: which there are, which were chosen, and where each one comes from.

Columns of messages come first, then the fields of the schema. A field keeps its name. If a message has a column of the
same name, that one gets an underscore in front (`_key`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from pydanube.model.errors import Invalid
from pydanube.model.text import did_you_mean

from .arrow_rows import ARROW_TYPES
from .read_types import COLUMNS, DECODED_COLUMNS

DECODE_ERROR: Final = "decode_error"


@dataclass(frozen=True, slots=True)
class TableColumns:
    """The columns that a table may have, by their names in the table."""

    messages: Mapping[str, str]
    """The columns of messages, and what each is called in `COLUMNS`."""
    fields: Mapping[str, pa.DataType] = field(default_factory=dict)
    """The fields of the schema, or nothing if payloads are not decoded."""
    keeps_errors: bool = False
    """Whether there is a column with the reasons why payloads could not be decoded."""

    @classmethod
    def of(cls, fields: Iterable[pa.Field] | None, keeps_errors: bool) -> TableColumns:
        """Return the columns of a topic; `fields` are those of its schema, None if payloads are not decoded."""
        if fields is None:
            return cls({name: name for name in COLUMNS})
        types = {one.name: one.type for one in fields}
        taken = {name.lower() for name in types}
        if keeps_errors and DECODE_ERROR in taken:
            raise Invalid(f'the schema has a field {DECODE_ERROR!r}, which errors="keep" needs: use "skip" or "raise"')
        messages: dict[str, str] = {}
        for name in COLUMNS:
            shown = name
            while shown in taken:
                shown = f"_{shown}"
            messages[shown] = name
        return cls(messages, types, keeps_errors)

    @property
    def types(self) -> dict[str, pa.DataType]:
        """All columns with their types."""
        errors = {DECODE_ERROR: pa.string()} if self.keeps_errors else {}
        return {**{shown: ARROW_TYPES[name] for shown, name in self.messages.items()}, **self.fields, **errors}

    def default(self) -> list[str]:
        """Return the columns that a table has if none were chosen."""
        if not self.fields:
            return list(self.messages)
        chosen = (*DECODED_COLUMNS, "payload") if self.keeps_errors else DECODED_COLUMNS
        first = [shown for shown, name in self.messages.items() if name in chosen]
        return [*first, *self.fields, *([DECODE_ERROR] if self.keeps_errors else [])]

    def choose(self, columns: Sequence[str] | None) -> list[str]:
        """Return the chosen columns; None: the default. Raises Invalid for one that there is not."""
        if columns is None:
            return self.default()
        if isinstance(columns, str):
            raise Invalid(f"columns is {columns!r}: give a list of names")
        types, chosen = self.types, list(columns)
        if not chosen:
            raise Invalid("columns is empty: name the columns to return, or leave it out")
        for name in chosen:
            if name not in types:
                raise Invalid(f"columns names {name!r}: {did_you_mean(str(name), types)}")
            if chosen.count(name) > 1:
                raise Invalid(f"columns names {name!r} more than once")
        return chosen
