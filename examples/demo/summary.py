"""Prints the summary at the end of the demo."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from story import Story


def show(console: Console, story: Story, picture: Path) -> None:
    books, batches = story.feed.books, story.watch.batches
    count = len(books.sent)
    revenue = sum(int(str(one.fields.get("cents", 0))) for one in books.counted if one.fields is not None)
    late, too_late = sum(one.late for one in books.sent), sum(one.too_late for one in books.sent)
    facts = Table.grid(padding=(0, 2))
    facts.add_row(
        "messages", f"{count:,} in {story.seconds:.0f} s: {count / story.seconds:,.0f} a second, kill included"
    )
    facts.add_row("untidy ones", f"{len(books.broken):,} broken, {late:,} some seconds late, {too_late:,} an hour late")
    facts.add_row("revenue", f"{revenue / 100:,.2f}")
    facts.add_row("Spark", f"{len(batches)} micro-batches, the largest of {max(batches.values()):,} messages")
    facts.add_row("Spark away", f"{story.away:.1f} s, while {story.behind:,} messages waited for it")
    for text, passed in story.checks:
        facts.add_row("[green]verified[/]" if passed else "[bold red]FAILED[/]", text)
    verdict = "exactly once" if story.good else "NOT exactly once: please report this"
    console.print(Panel(facts, title=f"what happened: {verdict}", border_style="green" if story.good else "red"))
    console.print(f"The windows, drawn: [bold]{picture}[/]", highlight=False)
    danube = command()
    console.print(
        "Try next:\n"
        f"  {danube} serve\n"
        f"  {danube} produce /default/orders -m hello     (in another terminal)\n"
        f"  {Path(sys.executable).name} examples/spark_first_query.py           a topic as a data frame\n"
        "  examples/demo/job.py                            the job that you saw\n"
        "  docs/spark/README.md                            every option",
        highlight=False,
        markup=False,
    )


def command() -> str:
    """Return the `danube` command as the user can type it: on the PATH, or beside this Python."""
    beside = Path(sys.executable).with_name("danube")
    if shutil.which("danube") or not beside.exists():
        return "danube"
    return str(beside.relative_to(Path.cwd())) if beside.is_relative_to(Path.cwd()) else str(beside)
