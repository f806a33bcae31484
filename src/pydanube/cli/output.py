"""The output of commands: tables for people, JSON for scripts, notes on stderr.

stdout carries only results. Control characters in text from outside are escaped, so that they cannot affect a terminal.
"""

from __future__ import annotations

import base64
import io
import json
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final, NoReturn, TextIO

import click

from .standard_streams import is_terminal

JSON: Final = "pydanube.cli.json"
"""Where the context of a command has whether --json was given."""


def fail(message: str) -> NoReturn:
    """End the command with exit code 1 and `message` on stderr."""
    raise click.ClickException(message)


def note(message: str) -> None:
    """Print a note for people on stderr."""
    click.echo(message, err=True)


def wants_json() -> bool:
    """Return whether the command was given --json, the `json_option` of options.py."""
    return bool(click.get_current_context().meta.get(JSON))


def show(value: Any, text: str | Callable[[], object]) -> None:
    """Print a result: with --json the value, otherwise the text or what the function prints."""
    if shown_as_json(value):
        return
    if callable(text):
        text()
    else:
        click.echo(text)


def shown_as_json(value: Any) -> bool:
    """Print the value and return True with --json; otherwise return False."""
    if wants_json():
        emit_json(value)
    return wants_json()


def emit_json(value: Any, *, compact: bool = False) -> None:
    """Print a JSON document: indented, or `compact` on one line, for streams of documents."""
    click.echo(to_json(value, compact=compact))


def to_json(value: Any, *, compact: bool = False) -> str:
    """Return a value as JSON, those of the model as REST has them."""
    from pydanube.model.json_values import as_json

    return json.dumps(as_json(value), ensure_ascii=False, indent=None if compact else 2)


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    title: str = "",
    right: Iterable[str] = (),
    cut: Collection[str] = (),
    file: TextIO | None = None,
) -> None:
    """Print a table, or write it to `file`. Columns named in `right` are right-aligned.

    If there are columns to `cut`, every row takes one line of a terminal, and these columns are shortened. Piped output
    is never shortened.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    numbers = set(right)
    terminal = file is None and is_terminal(sys.stdout)
    if title:
        click.secho(title, bold=True)
    view = Table(box=box.SIMPLE_HEAD if terminal else None)
    view.pad_edge = terminal
    for column in columns:
        fixed = not terminal or (bool(cut) and column not in cut)
        view.add_column(column, justify="right" if column in numbers else "left", overflow="fold", no_wrap=fixed)
    for row in rows:
        cells = [cell if isinstance(cell, Text) else Text(printable(str(cell))) for cell in row]
        for cell in cells if cut and terminal else ():
            cell.no_wrap, cell.overflow = True, "ellipsis"
        view.add_row(*cells)
    if terminal:
        Console(file=sys.stdout, highlight=False).print(view)
        return
    text = io.StringIO()
    Console(file=text, width=10_000, highlight=False).print(view)
    for line in text.getvalue().splitlines():
        click.echo(line.rstrip(), file=file)


def fields(pairs: Iterable[tuple[str, object]]) -> None:
    """Print one name and value per line, with the values aligned."""
    shown = [(name, printable(str(value))) for name, value in pairs]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        click.echo(f"{name:<{width}}  {value}")


def printable(text: str) -> str:
    """Return the text with control characters, except tab, as escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in text)


def payload_text(payload: bytes, *, terminal: bool) -> str:
    """Return a payload as text. Bytes that are not UTF-8 appear as \\xNN, on a terminal control characters too."""
    text = payload.decode("utf-8", errors="backslashreplace")
    if not terminal:
        return text
    return "\n".join(printable(line) for line in text.split("\n"))


def payload_json(payload: bytes) -> tuple[str, str]:
    """Return the payload as text and its "payload_encoding", without losing a byte."""
    try:
        return payload.decode("utf-8"), "utf-8"
    except UnicodeDecodeError:
        return base64.b64encode(payload).decode(), "base64"


def number(value: float) -> str:
    """Format a number: 1234567.8 becomes 1,234,568; small numbers keep two decimals."""
    if abs(value) >= 100 or abs(value) < 0.005 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:,.2f}"


def size(count: float) -> str:
    """Format a number of bytes, such as 1.5 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def span(seconds: float) -> str:
    """Format a duration in its two largest units: 3d 4h, 12m 30s, 4.2s."""
    if seconds < 59.5:
        rounded = round(seconds, 1) if seconds < 10 else round(seconds)
        return f"{rounded:g}s"
    whole = round(seconds)
    for (large, unit), (small, rest) in _SPANS:
        if whole >= large:
            left = whole % large // small
            return f"{whole // large}{unit} {left}{rest}" if left else f"{whole // large}{unit}"
    raise AssertionError(seconds)


_SPANS = (((86_400, "d"), (3_600, "h")), ((3_600, "h"), (60, "m")), ((60, "m"), (1, "s")))


def plural(count: int, noun: str) -> str:
    """Format a count with its noun: 1 message, 1,200 messages."""
    return f"{count:,} {noun}{'s' * (count != 1)}"
