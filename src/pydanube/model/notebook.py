"""What notebooks show of messages, batches, rows and descriptions, as HTML.

Everything in it comes from users and producers, so every text is escaped, and long ones are shortened.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from html import escape
from typing import Any, Final

CHARACTERS_SHOWN: Final = 200
ROWS_SHOWN: Final = 20


def html_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], more: str = "") -> str:
    """Return a table with a title, a row of names, and `more` below it."""
    head = "".join(f"<th>{_cell(name)}</th>" for name in columns)
    body = "".join("<tr>" + "".join(f"<td>{_cell(value)}</td>" for value in row) + "</tr>" for row in rows)
    below = f"<p>{escape(more)}</p>" if more else ""
    return (
        f"<table><caption>{escape(title)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}"
    )


def html_fields(title: str, values: Mapping[str, object]) -> str:
    """Return a table with a row for each name and its value."""
    body = "".join(f"<tr><th>{escape(name)}</th><td>{_cell(value)}</td></tr>" for name, value in values.items())
    return f"<table><caption>{escape(title)}</caption><tbody>{body}</tbody></table>"


def description_html(described: Any) -> str:
    """Return the fields of a description; lists of descriptions, such as partitions, are tables below."""
    plain: dict[str, object] = {}
    tables: list[str] = []
    for name, value in _values(described).items():
        if isinstance(value, list) and value and _names(value[0]):
            shown = [list(_values(one).values()) for one in value[:ROWS_SHOWN]]
            left = len(value) - len(shown)
            tables.append(html_table(name, _names(value[0]), shown, f"and {left} more" if left else ""))
        else:
            plain[name] = value
    return html_fields(type(described).__name__, plain) + "".join(tables)


def _names(described: object) -> list[str]:
    """Return the names of the fields of a dataclass or a struct; none for other values."""
    if is_dataclass(described):
        return [one.name for one in fields(described)]
    return list(getattr(described, "__struct_fields__", ()))


def _values(described: object) -> dict[str, object]:
    return {name: getattr(described, name) for name in _names(described)}


def _cell(value: object) -> str:
    """Return a value as escaped text: bytes as text if they are UTF-8, and nothing for None."""
    match value:
        case None:
            return ""
        case bytes():
            cut = value[: 4 * CHARACTERS_SHOWN + 1]
            text = cut.decode("utf-8", "backslashreplace")
        case list() | tuple() if all(isinstance(one, str) for one in value):
            text = ", ".join(value)
        case _:
            text = str(value)
    return escape(text if len(text) <= CHARACTERS_SHOWN else text[:CHARACTERS_SHOWN] + "…")
