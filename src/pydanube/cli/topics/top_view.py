"""The view of `danube top`: a line for each subscription, the worst first, fitted to the terminal."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pydanube.cli.output import plural, printable, size, span
from pydanube.cli.standard_streams import is_terminal
from pydanube.cli.topics.totals import TopicTotals
from pydanube.model.statistics import (
    PartitionStatistics,
    SubscriptionStatistics,
    SubscriptionSummary,
    TopicSummary,
)

if TYPE_CHECKING:
    from datetime import datetime

WIDE_COLUMNS: Final = 110
"""From this terminal width on, the details are shown."""
LATE_SECONDS: Final = 60.0
"""A backlog older than this is shown in yellow."""


@dataclass(frozen=True, slots=True)
class TopSnapshot:
    """The statistics of the topics at one moment."""

    time: datetime
    broker: str
    topics: Sequence[TopicTotals | TopicSummary]
    trouble: str = ""
    """Why the statistics are outdated; empty: they are current."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line: a subscription, or a topic without subscriptions."""

    topic: TopicTotals | TopicSummary
    subscription: SubscriptionStatistics | SubscriptionSummary | None

    @property
    def name(self) -> str:
        return self.subscription.name if self.subscription else ""

    @property
    def consumers(self) -> int:
        consumers = self.subscription.consumers if self.subscription else 0
        return consumers if isinstance(consumers, int) else len(consumers)

    @property
    def total(self) -> PartitionStatistics | TopicSummary:
        return total_of(self.topic)

    @property
    def health(self) -> str:
        return self.topic.total.health if isinstance(self.topic, TopicTotals) else self.topic.health

    def figure(self, name: str) -> float:
        return getattr(self.subscription, name) if self.subscription else 0

    @property
    def lost(self) -> float:
        return self.figure("dropped") + self.figure("expired") + self.figure("evicted")

    @property
    def abandoned(self) -> bool:
        """Whether there is a backlog and no consumer."""
        return self.figure("backlog") > 0 and self.consumers == 0

    @property
    def note(self) -> str:
        """What needs attention, in words."""
        if self.health != "ok":
            return self.health
        if isinstance(self.topic, TopicSummary) and not self.topic.open_partitions:
            return "not open"
        told = [f"{short(self.figure(what))} {what}" for what in ("blocked", "unmatched") if self.figure(what)]
        told += ["no consumer"] * self.abandoned
        told += [f"{short(self.lost)} lost"] * bool(self.lost)
        return ", ".join(told)

    @property
    def style(self) -> str:
        if self.health != "ok" or self.figure("blocked"):
            return "bold red"
        if self.abandoned or self.figure("unmatched") or self.figure("backlog_s") > LATE_SECONDS:
            return "yellow"
        idle = not (self.total.messages_per_s or self.figure("messages_per_s") or self.figure("backlog"))
        return "dim" if idle else ""


def _worst(row: Row) -> Any:
    trouble = row.health != "ok", row.figure("blocked") > 0, row.abandoned, row.figure("unmatched") > 0
    return *trouble, row.figure("backlog_s"), row.figure("backlog"), row.total.messages_per_s


ORDERS: Final[dict[str, Callable[[Row], Any]]] = {
    "worst": _worst,
    "backlog": lambda row: row.figure("backlog"),
    "age": lambda row: row.figure("backlog_s"),
    "in": lambda row: row.total.messages_per_s,
    "out": lambda row: row.figure("messages_per_s"),
    "unacked": lambda row: row.figure("unacked"),
    "redelivered": lambda row: row.figure("redelivered"),
    "name": lambda _: 0,
}
"""The descending sort key of each --sort; ties are sorted by name."""


def total_of(topic: TopicTotals | TopicSummary) -> PartitionStatistics | TopicSummary:
    """Return the numbers of a topic as a whole."""
    return topic.total if isinstance(topic, TopicTotals) else topic


def rows_of(topics: Sequence[TopicTotals | TopicSummary], order: str) -> list[Row]:
    rows = [Row(topic, one) for topic in topics for one in topic.subscriptions]
    rows += [Row(topic, None) for topic in topics if not topic.subscriptions]
    rows.sort(key=lambda row: (row.topic.topic, row.name))
    rows.sort(key=ORDERS[order], reverse=True)
    return rows


def short(value: float) -> str:
    """Format a number in at most five characters: 950, 9,500, 12.3k, 4.6M."""
    if value < 10_000:
        return f"{value:,.0f}" if value >= 10 or value < 0.05 or value == int(value) else f"{value:.1f}"
    for unit in "kMGT":
        value /= 1000
        if value < 999.95:
            return f"{value:.1f}{unit}" if value < 99.95 else f"{value:.0f}{unit}"
    return f"{value:.0f}T"


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    cell: Callable[[Row], str]
    wide: bool = False
    """Shown only on a wide terminal."""
    text: bool = False


COLUMNS: Final = (
    Column("topic", lambda row: row.topic.topic, text=True),
    Column("subscription", lambda row: row.name or "-", text=True),
    Column("type", lambda row: row.subscription.type if row.subscription else "", wide=True, text=True),
    Column("in/s", lambda row: short(row.total.messages_per_s)),
    Column("out/s", lambda row: short(row.figure("messages_per_s"))),
    Column("backlog", lambda row: short(row.figure("backlog"))),
    Column("oldest", lambda row: span(row.figure("backlog_s")) if row.figure("backlog") else ""),
    Column("unacked", lambda row: short(row.figure("unacked")), wide=True),
    Column("waiting", lambda row: short(row.figure("waiting") + row.figure("delayed")), wide=True),
    Column("again", lambda row: short(row.figure("redelivered")), wide=True),
    Column("cons", lambda row: str(row.consumers)),
    Column("note", lambda row: row.note, text=True),
)


@dataclass(frozen=True, slots=True)
class View:
    """A snapshot rendered for a screen, or as plain lines if there is no terminal."""

    snapshot: TopSnapshot
    order: str
    hint: str = ""
    height: int | None = None
    """The maximum number of lines; None: no limit."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = rows_of(self.snapshot.topics, self.order)
        head = [self._title(options.max_width), totals(self.snapshot), *self._trouble(), Text()]
        shown = rows
        if self.height is not None and len(head) + 1 + len(rows) > self.height:
            shown = rows[: max(1, self.height - len(head) - 2)]
        more = [Text(f"... {len(rows) - len(shown)} more", style="dim")] * (len(shown) < len(rows))
        body = [_table(shown, options.max_width)] if rows else [Text("no topics yet", style="dim")]
        yield Group(*head, *body, *more)

    def _title(self, width: int) -> Text:
        line = Text(no_wrap=True, overflow="ellipsis")
        line.append("danube top", style="bold")
        line.append(f"  {printable(self.snapshot.broker)}")
        right = f"{self.snapshot.time:%H:%M:%S} UTC" + (f"  {self.hint}" if self.hint else "")
        line.append(" " * max(2, width - line.cell_len - len(right)))
        line.append(right, style="dim")
        return line

    def _trouble(self) -> Sequence[Text]:
        if not self.snapshot.trouble:
            return []
        return [Text(printable(self.snapshot.trouble), style="bold red", no_wrap=True, overflow="ellipsis")]


def totals(snapshot: TopSnapshot) -> Text:
    """Return one line with the totals over all topics."""
    all_of = [total_of(topic) for topic in snapshot.topics]
    rows = [Row(topic, one) for topic in snapshot.topics for one in topic.subscriptions]
    told = [
        plural(len(all_of), "topic"),
        f"in {short(sum(one.messages_per_s for one in all_of))}/s ({size(sum(one.bytes_per_s for one in all_of))}/s)",
        f"out {short(sum(row.figure('messages_per_s') for row in rows))}/s",
        f"backlog {short(sum(row.figure('backlog') for row in rows))}",
        f"{sum(one.producers for one in all_of):,} prod",
        f"{sum(row.consumers for row in rows):,} cons",
    ]
    return Text("  ".join(told), no_wrap=True, overflow="ellipsis")


def _table(rows: Sequence[Row], width: int) -> Table:
    columns = [column for column in COLUMNS if width >= WIDE_COLUMNS or not column.wide]
    table = Table(box=None, expand=True, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold underline")
    for column in columns:
        if column.text:
            table.add_column(column.title, no_wrap=True, overflow="ellipsis", ratio=_RATIOS.get(column.title))
        else:
            table.add_column(column.title, justify="right", no_wrap=True, min_width=_WIDTHS.get(column.title, 6))
    for row in rows:
        table.add_row(*(Text(printable(column.cell(row))) for column in columns), style=row.style)
    return table


_RATIOS: Final = {"topic": 7, "subscription": 5, "note": 5}
_WIDTHS: Final = {"cons": 4, "again": 5, "in/s": 5, "out/s": 5}


# -- the live terminal -------------------------------------------------------------------------------------------------


class Screen:
    """The terminal, taken over in a `with` block. Call it with the snapshot to show."""

    def __init__(self, order: str, hint: str) -> None:
        self._order, self._hint = order, hint
        self._console = Console(file=sys.stdout, highlight=False)
        self._live = Live(console=self._console, screen=True, auto_refresh=False, vertical_overflow="crop")

    def __call__(self, snapshot: TopSnapshot) -> None:
        view = View(snapshot, self._order, self._hint, self._console.height)
        self._live.update(view, refresh=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()


@contextmanager
def on_key(key: bytes, pressed: Callable[[], None]) -> Iterator[None]:
    """Call `pressed` when the key is pressed, without echo. Does nothing if stdin is not a terminal."""
    if not is_terminal(sys.stdin):
        yield
        return
    import termios
    import tty

    keyboard, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    before = termios.tcgetattr(keyboard)

    def typed() -> None:
        try:
            characters = os.read(keyboard, 1024)
        except OSError:
            characters = b""
        if not characters:  # the terminal is gone
            loop.remove_reader(keyboard)
            pressed()
        elif key in characters.lower():
            pressed()

    tty.setcbreak(keyboard)
    loop.add_reader(keyboard, typed)
    try:
        yield
    finally:
        loop.remove_reader(keyboard)
        with suppress(termios.error):
            termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
