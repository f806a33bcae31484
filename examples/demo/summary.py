"""Prints the summary at the end of the demo."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from pathlib import Path

from rich.console import Console, Group
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from story import QUERIES, Story

REASONS = {"decodable": "damaged", "paid": "without a price", "in_time": "an hour late"}
"""What dead letters are, by the expectation that they do not meet."""


def show(console: Console, story: Story, picture: Path) -> None:
    facts = Table.grid(padding=(0, 2))
    facts.add_column(no_wrap=True)
    facts.add_column(style="bold", justify="right", no_wrap=True)
    for row in happened(story):
        facts.add_row(*row)
    checks = Table.grid(padding=(0, 2))
    for check in story.checks:
        checks.add_row("[bold red]FAILED[/]" if check.problem else "[green]verified[/]", check.text)
        if check.problem:
            checks.add_row("", f"[red]{escape(check.problem)}[/]")
    verdict = "exactly once" if story.good else "NOT exactly once: please report this"
    style = "green" if story.good else "red"
    console.print(
        Panel(Group(facts, "", checks), title=f"what happened: {verdict}", border_style=style), highlight=False
    )
    console.print(f"The windows, drawn: [bold]{picture}[/]", highlight=False)
    danube = command()
    console.print(
        "Try next:\n"
        f"  {danube} serve\n"
        f"  {danube} produce /default/orders -m hello     (in another terminal)\n"
        f"  {danube} sql 'select * from `/default/orders`'\n"
        "  examples/demo/orders.yaml                       the pipeline that you saw\n"
        "  docs/spark/pipelines.md                         what else such a file can say",
        highlight=False,
        markup=False,
    )


def happened(story: Story) -> list[tuple[str, str, str]]:
    """Return what happened, as rows of a word, a number and the rest of the sentence."""
    assert story.results is not None
    books, results, sent = story.feed.books, story.results, len(story.feed.books.sent)
    reasons = Counter(letter.wrong for _, letter in results.letters)
    sold: Counter[str] = Counter()
    for total in results.totals:
        sold[total.item] += total.quantity
    best, pieces = max(sold.items(), key=lambda one: one[1], default=("nothing", 0))
    revenue = sum(total.cents for total in results.totals) / 100
    windows = len({total.start for total in results.totals})
    late = sum(one.late for one in books.sent)
    return [
        ("sent", f"{sent:,}", f"orders in {story.seconds:.0f} s, {sent / story.seconds:,.0f} a second, kill included"),
        ("= table", f"{len(results.table):,}", f"orders in Delta, in {results.commits:,} commits"),
        (
            "+ dead letters",
            f"{len(results.letters):,}",
            ", ".join(f"{reasons[name]:,} {text}" for name, text in REASONS.items()),
        ),
        ("+ dropped", f"{len(books.dropped):,}", "orders of tills that are being tested"),
        ("", "", ""),
        ("kill -9", f"{story.away:.1f}", f"seconds without a pipeline, while {story.behind:,} orders waited for it"),
        ("late", f"{late:,}", "orders, by up to three seconds, and in the right window all the same"),
        ("windows", f"{windows:,}", f"with a revenue of {revenue:,.2f}; best seller: {best}, {pieces:,} of them"),
        ("Spark", f"{len(story.watch.batches):,}", f"micro-batches of {len(QUERIES)} queries"),
    ]


def command() -> str:
    """Return the `danube` command as the user can type it: on the PATH, or beside this Python."""
    beside = Path(sys.executable).with_name("danube")
    if shutil.which("danube") or not beside.exists():
        return "danube"
    return str(beside.relative_to(Path.cwd())) if beside.is_relative_to(Path.cwd()) else str(beside)
