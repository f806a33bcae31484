"""`danube dlq`: messages that failed too often, looked at and sent back to where they came from."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from pydanube.model.names import TopicName

from . import messages
from .options import PLACE, TOPIC, confirm, examples, json_option, url_option, yes_option
from .output import emit_json, fail, note, plural, table
from .session import LEAVE_SECONDS, Stop, with_client

if TYPE_CHECKING:
    from pydanube.client import Client, DeadLetter, Redriven

EXIT_INTERRUPTED: Final = 130


@click.group(
    epilog=examples(
        """
danube dlq list /default/orders-dlq
danube dlq show /default/orders-dlq 0:17
danube dlq redrive /default/orders-dlq 0:17
danube dlq redrive /default/orders-dlq --all --rate 100
"""
    )
)
def dlq() -> None:
    """List, show and redrive dead letters.

    A subscription whose failure policy says so publishes messages that failed too often to a dead letter topic; see
    'danube subscriptions failure-policy --help'. TOPIC is that topic, not the one they came from.
    """


@dlq.command(
    "list",
    epilog=examples(
        """
danube dlq list /default/orders-dlq
danube dlq list /default/orders-dlq -n 1000 --json | jq -r '.[].failure_reason' | sort | uniq -c
"""
    ),
)
@click.argument("topic", type=TOPIC)
@click.option("-n", "--count", type=click.IntRange(min=1), default=100, show_default=True, help="How many at most.")
@click.option("--redriven", is_flag=True, help="Also those that were sent back already.")
@url_option
@json_option
def list_(topic: TopicName, count: int, redriven: bool, url: str, as_json: bool) -> None:
    """List the letters that are left: where each came from, and why it failed."""
    found = with_client(url, lambda client: client.dead_letters(str(topic)).first(count + 1, redriven=redriven))
    letters = found[:count]
    if as_json:
        emit_json([as_dict(letter) for letter in letters])
    elif letters:
        _table(letters)
    if len(found) > count:
        note(f"only the first {count:,} are shown; -n shows more")


def _table(letters: Sequence[DeadLetter]) -> None:
    columns = ["letter", "died", "from", "subscription", "offset", "attempts", "key", "reason"]
    table(
        columns,
        [
            (
                letter.place,
                letter.message.append_time.isoformat(sep=" ", timespec="seconds"),
                letter.original_topic or "unknown",
                letter.original_subscription,
                "" if letter.original_offset is None else letter.original_offset,
                "" if letter.attempts is None else letter.attempts,
                letter.message.key or "",
                messages.beginning(letter.reason.encode()),
            )
            for letter in letters
        ],
        right=["letter", "offset", "attempts"],
    )


def as_dict(letter: DeadLetter) -> dict[str, Any]:
    return messages.record(letter.message) | {
        "letter": letter.place,
        "id": letter.id,
        "original_topic": letter.original_topic,
        "original_subscription": letter.original_subscription,
        "original_offset": letter.original_offset,
        "attempts": letter.attempts,
        "failure_reason": letter.reason,
        "redriven": letter.redriven,
    }


@dlq.command("show", epilog=examples("danube dlq show /default/orders-dlq 0:17"))
@click.argument("topic", type=TOPIC)
@click.argument("place", type=PLACE)
@url_option
@json_option
def show(topic: TopicName, place: tuple[int, int], url: str, as_json: bool) -> None:
    """Show everything about one letter. PLACE is PARTITION:OFFSET, as 'danube dlq list' shows it."""
    letter = with_client(url, lambda client: client.dead_letters(str(topic)).get(place))
    if as_json:
        emit_json(as_dict(letter))
        return
    origin = f"{letter.original_topic or 'unknown'}, subscription {letter.original_subscription or 'unknown'}"
    more: list[tuple[str, object]] = [
        ("from", origin if letter.original_offset is None else f"{origin}, offset {letter.original_offset}"),
        ("attempts", "unknown" if letter.attempts is None else letter.attempts),
        ("reason", letter.reason or "none given"),
    ]
    messages.show(letter.message, more)


@dlq.command(
    "redrive",
    epilog=examples(
        """
danube dlq redrive /default/orders-dlq 0:17 0:18
danube dlq redrive /default/orders-dlq --all --rate 100
"""
    ),
)
@click.argument("topic", type=TOPIC)
@click.argument("places", type=PLACE, nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All that are left.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="At most so many letters a second.")
@yes_option
@url_option
@json_option
def redrive(
    topic: TopicName,
    places: tuple[tuple[int, int], ...],
    everything: bool,
    rate: float | None,
    yes: bool,
    url: str,
    as_json: bool,
) -> None:
    """Send letters back to the topics they came from: those at PLACES (PARTITION:OFFSET), or --all.

    They arrive there as new messages, for every subscription. A letter counts as sent back once its topic has it. A
    letter whose topic is gone stays. Ctrl-C ends it in order; the rest stays for the next time.
    """
    if bool(places) == everything:
        raise click.UsageError("say which letters: PARTITION:OFFSET ..., or --all")
    if everything and sys.stdin.isatty():
        confirm(f"Send all letters of {topic} back?", yes, not_done="nothing was sent back")
    wanted = None if everything else list(places)
    done, ended = with_client(url, lambda client: _redrive(client, str(topic), wanted, rate))
    if as_json:
        told = {"topic": str(topic), "redriven": done.done, "stayed": done.stayed, "interrupted": not ended}
        emit_json(told if ended else told | {"total": done.total})
    elif ended:
        click.echo(f"sent back {plural(done.done, 'letter')} of {topic}")
    if not ended:
        note(f"interrupted: {done.done:,} of {plural(done.total, 'letter')} sent back; the same command does the rest")
        raise click.exceptions.Exit(EXIT_INTERRUPTED)
    if done.stayed:
        place, reason = next(iter(done.stayed.items()))
        fail(f"{plural(len(done.stayed), 'letter')} stayed; {place}: {reason}")


async def _redrive(
    client: Client, topic: str, places: list[tuple[int, int]] | None, rate: float | None
) -> tuple[Redriven, bool]:
    """How far it got, and whether to the end."""
    from pydanube.client import Redriven

    from .progress import Bar

    state, stop = Redriven(0), Stop()
    with Bar("sent back") as bar:

        def progress(now: Redriven) -> None:
            nonlocal state
            state = now
            bar(now.done + len(now.stayed), now.total)
            if stop.asked:
                raise _Enough

        redriving = client.dead_letters(topic).redrive(places, rate=rate, progress=progress)
        work = asyncio.get_running_loop().create_task(redriving)
        await stop.first(_ended(work))
        if not work.done():
            await asyncio.wait({work}, timeout=LEAVE_SECONDS)  # what was sent is settled before it ends
            work.cancel()
        try:
            return await work, True
        except (_Enough, asyncio.CancelledError):
            return state, False


class _Enough(Exception):
    """It was told to stop, and a step is done."""


async def _ended(work: asyncio.Future[Redriven]) -> None:
    await asyncio.wait({work})
