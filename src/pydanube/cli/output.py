"""What commands print: tables for people, JSON for scripts, notes on stderr.

stdout carries results and nothing else. Text that came from outside is never able to move the cursor of a terminal.
"""

from __future__ import annotations

import base64
import io
import json
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Literal, NoReturn

import click

from .streams import is_terminal

Align = Literal["left", "right"]


def fail(message: str) -> NoReturn:
    """Leave with exit code 1 and this one line on stderr."""
    raise click.ClickException(message)


def note(message: str) -> None:
    """Something a person wants to know and a script does not."""
    click.echo(message, err=True)


def emit_json(value: Any, *, compact: bool = False) -> None:
    """One JSON document: indented, or on a line of its own where many follow each other."""
    click.echo(to_json(value, compact=compact))


def to_json(value: Any, *, compact: bool = False) -> str:
    return json.dumps(value, ensure_ascii=False, indent=None if compact else 2, default=str)


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    title: str = "",
    right: Iterable[str] = (),
    cut: Collection[str] = (),
) -> None:
    """A table on stdout. Columns named in `right` are numbers.

    Where there are columns to `cut`, every row takes one line of a terminal, and these give way. Piped output is never
    cut to a width.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    numbers = set(right)
    terminal = is_terminal(sys.stdout)
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
        click.echo(line.rstrip())


def fields(pairs: Iterable[tuple[str, object]]) -> None:
    """Name and value, one pair a line, values in one column."""
    shown = [(name, printable(str(value))) for name, value in pairs]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        click.echo(f"{name:<{width}}  {value}")


def printable(text: str) -> str:
    """Control characters, except tab, shown as escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in text)


def payload_text(payload: bytes, *, terminal: bool) -> str:
    """A payload as a line of text. Bytes that are not UTF-8 appear as \\xNN, on a terminal control characters too."""
    text = payload.decode("utf-8", errors="backslashreplace")
    if not terminal:
        return text
    return "\n".join(printable(line) for line in text.split("\n"))


def payload_json(payload: bytes) -> tuple[str, str]:
    """The payload and its "payload_encoding", such that every byte can be had back."""
    try:
        return payload.decode("utf-8"), "utf-8"
    except UnicodeDecodeError:
        return base64.b64encode(payload).decode(), "base64"


def number(value: float) -> str:
    """1234567.8 -> 1,234,568; small ones keep what matters."""
    if abs(value) >= 100 or abs(value) < 0.005 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:,.2f}"


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def span(seconds: float) -> str:
    """A duration for people, in its two largest units: 3d 4h, 12m 30s, 4.2s."""
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
    """1 message, 1,200 messages."""
    return f"{count:,} {noun}{'s' * (count != 1)}"
