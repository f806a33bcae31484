"""`danube top`: rates and backlogs, live in a terminal, once as text, or as JSON per interval."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import click

from pydanube.cli.connecting import Stop, with_client
from pydanube.cli.options import DURATION, TOPIC, broker_options, examples
from pydanube.cli.output import emit_json, span, table, wants_json
from pydanube.cli.standard_streams import is_terminal, need_stdout
from pydanube.cli.synonyms import Command
from pydanube.cli.topics.totals import TopicTotals, sum_topic
from pydanube.model.errors import Invalid, NotFound, Unavailable
from pydanube.model.names import TopicName
from pydanube.model.positions import datetime_from_micros

if TYPE_CHECKING:
    from pydanube.cli.topics.top_view import TopSnapshot
    from pydanube.client import Client
    from pydanube.model.statistics import TopicSummary

QUESTIONS_AT_ONCE: Final = 32
INTERVAL_SECONDS_MIN: Final = 0.1
SORTS: Final = ("worst", "backlog", "age", "in", "out", "unacked", "redelivered", "name")


@click.command(
    cls=Command,
    epilog=examples(
        """
danube top
danube top /default/orders /default/clicks --interval 1 --sort unacked
danube top --once                                           a table, once
danube top --json --interval 10 >> figures.jsonl            one JSON document a line, until Ctrl-C
"""
    ),
)
@click.argument("topics", type=TOPIC, nargs=-1)
@click.option("--interval", "-i", type=DURATION, default="2", show_default=True, help="Seconds between two looks.")
@click.option("--once", is_flag=True, help="Look once.")
@click.option("--sort", "order", type=click.Choice(SORTS), default="worst", show_default=True, help="What comes first.")
@broker_options
def top(topics: tuple[TopicName, ...], interval: float, once: bool, order: str, url: str) -> None:
    """Watch topics and subscriptions: rates, backlogs, redeliveries.

    In a terminal the view stays until q or Ctrl-C (exit code 0); otherwise it is printed once. The worst come first:
    blocked, then without consumers, then by the age of the backlog. 'in' is what is published to the topic, 'out'
    what the subscription delivers, 'oldest' the age of its first message that is not acked; with 110 columns and more
    also 'again', how many were redelivered. Without TOPICS it shows those that the broker has open, and says which are
    not; with TOPICS it opens them.
    """
    if interval < INTERVAL_SECONDS_MIN:
        raise click.BadParameter(f"use {INTERVAL_SECONDS_MIN:g} seconds or more", param_hint="--interval")
    need_stdout()
    names = [str(topic) for topic in topics]
    live = is_terminal(sys.stdout) and not once and not wants_json()
    with_client(url, lambda client: _watch(client, names, interval, order, live, once or not (live or wants_json())))


async def _watch(client: Client, names: Sequence[str], interval: float, order: str, live: bool, once: bool) -> None:
    stop = Stop()
    with _screen(order, interval, stop) if live else nullcontext(_json if wants_json() else _text(order)) as show:
        async for snapshot in _snapshots(client, names, interval, stop):
            show(snapshot)
            if once:
                return


async def _snapshots(client: Client, names: Sequence[str], interval: float, stop: Stop) -> AsyncIterator[TopSnapshot]:
    """Yield one snapshot per interval until the stop. After the first one, an unreachable broker is asked again."""
    last: TopSnapshot | None = None
    while not stop.asked:
        try:
            current = await stop.first(snapshot(client, names))
        except Unavailable as error:
            if last is None:
                raise
            current = replace(last, trouble=error.message)
        if current is None:
            return
        last = current
        yield current
        await stop.first(asyncio.sleep(interval))


async def snapshot(client: Client, names: Sequence[str]) -> TopSnapshot:
    """Return a snapshot of the named topics, which must exist, in full; or of all topics, with what the broker has of
    them in memory: that takes one request for thousands of them, and opens none."""
    from pydanube.cli.topics.top_view import TopSnapshot
    from pydanube.runtime.clock import SystemClock

    broker = await client.describe_broker()
    found = await _in_full(client, names, wanted=True) if names else await _summaries(client)
    return TopSnapshot(datetime_from_micros(SystemClock().now_us()), f"{broker.node} {broker.version}", found)


async def _summaries(client: Client) -> Sequence[TopicTotals | TopicSummary]:
    try:
        return await client.topic_summaries()
    except Invalid:  # a broker of an earlier release
        return await _in_full(client, await client.list_topics(), wanted=False)


async def _in_full(client: Client, names: Sequence[str], *, wanted: bool) -> list[TopicTotals]:
    found: list[TopicTotals] = []
    for at in range(0, len(names), QUESTIONS_AT_ONCE):
        some = names[at : at + QUESTIONS_AT_ONCE]
        found += [one for one in await asyncio.gather(*(_figures(client, name, wanted) for name in some)) if one]
    return found


async def _figures(client: Client, name: str, wanted: bool) -> TopicTotals | None:
    try:
        return sum_topic(await client.topic_statistics(name))
    except NotFound:
        if wanted:
            raise
        return None  # deleted since they were listed


@contextmanager
def _screen(order: str, interval: float, stop: Stop) -> Iterator[Callable[[TopSnapshot], None]]:
    """Take over the whole terminal, and restore it at the end."""
    from pydanube.cli.topics.top_view import Screen, on_key

    with Screen(order, f"every {span(interval)}, q ends") as screen, on_key(b"q", stop.ask):
        yield screen


def _json(snapshot: TopSnapshot) -> None:
    told = {"time": snapshot.time.isoformat(), "broker": snapshot.broker, "topics": snapshot.topics}
    emit_json(told | ({"trouble": snapshot.trouble} if snapshot.trouble else {}), compact=True)
    sys.stdout.flush()


def _text(order: str) -> Callable[[TopSnapshot], None]:
    from rich.console import Console

    from pydanube.cli.topics.top_view import COLUMNS, View, rows_of, totals

    def show(snapshot: TopSnapshot) -> None:
        if is_terminal(sys.stdout):
            Console(file=sys.stdout, highlight=False).print(View(snapshot, order))
            return
        click.echo(totals(snapshot).plain)
        rows = [[column.cell(row) for column in COLUMNS] for row in rows_of(snapshot.topics, order)]
        table([column.title for column in COLUMNS], rows, right=[one.title for one in COLUMNS if not one.text])

    return show
