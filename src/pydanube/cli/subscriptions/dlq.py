"""`danube dlq`: lists, shows, redrives and drops dead-lettered messages."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from pydanube.cli.connecting import LEAVE_SECONDS, Stop, with_client
from pydanube.cli.messages import display as messages
from pydanube.cli.options import PLACE, SUBSCRIPTION, TOPIC, broker_options, confirm, examples, yes_option
from pydanube.cli.output import emit_json, fail, note, plural, shown_as_json, table, wants_json
from pydanube.cli.standard_streams import is_terminal
from pydanube.cli.synonyms import Group
from pydanube.model.names import TopicName

if TYPE_CHECKING:
    from pydanube.client import Client, DeadLetter, DeadLetters, Redriven

EXIT_INTERRUPTED: Final = 130
OTHERS_MAX: Final = 10_000
"""A list ends after this many messages that are not dead letters."""
WIDE_COLUMNS: Final = 110
"""From this terminal width on, a list shows the details."""

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


@click.group(
    cls=Group,
    epilog=examples(
        """
danube dlq list /default/orders-dlq
danube dlq show /default/orders-dlq 0:17
danube dlq redrive /default/orders-dlq 0:17
danube dlq redrive /default/orders-dlq --all --rate 100
danube dlq drop /default/orders-dlq 0:18
"""
    ),
)
def dlq() -> None:
    """List, show, redrive and drop dead letters.

    A subscription whose failure policy says so publishes messages that failed too often to a dead letter topic; see
    'danube subscriptions failure-policy --help'. TOPIC is that topic, not the one they came from.
    """


def filter_options(command: CommandT) -> CommandT:
    """Add the options that select letters by origin; their values are the arguments of `LetterFilter`."""
    for option in reversed(_FILTERS):
        command = option(command)
    return command


_FILTERS: Final = (
    click.option("--from-topic", type=TOPIC, metavar="TOPIC", help="Those that came from this topic."),
    click.option(
        "--from-subscription", type=SUBSCRIPTION, metavar="NAME", help="Those that failed for this subscription."
    ),
)


class LetterFilter:
    """Selects letters by their original topic and subscription."""

    def __init__(self, from_topic: TopicName | None, from_subscription: str | None) -> None:
        self._topic = None if from_topic is None else str(from_topic)
        self._subscription = from_subscription

    def __bool__(self) -> bool:
        return self._topic is not None or self._subscription is not None

    def __call__(self, letter: DeadLetter) -> bool:
        return self._topic in (None, letter.original_topic) and (
            self._subscription in (None, letter.original_subscription)
        )

    def __str__(self) -> str:
        topic = f" that came from {self._topic}" if self._topic is not None else ""
        return topic + (f" that failed for {self._subscription}" if self._subscription is not None else "")


@dlq.command(
    "list",
    epilog=examples(
        """
danube dlq list /default/orders-dlq
danube dlq list /default/dead --from-topic /default/orders --from-subscription billing
danube dlq list /default/orders-dlq -n 1000 --json | jq -r '.[].failure_reason' | sort | uniq -c
"""
    ),
)
@click.argument("topic", type=TOPIC)
@click.option("-n", "--count", type=click.IntRange(min=1), default=100, show_default=True, help="How many at most.")
@click.option("--redriven", is_flag=True, help="Also those that were sent back or dropped already.")
@filter_options
@broker_options
def list_(
    topic: TopicName, count: int, redriven: bool, from_topic: TopicName | None, from_subscription: str | None, url: str
) -> None:
    """List the letters that are left: where each came from, and why it failed."""
    where = LetterFilter(from_topic, from_subscription)
    letters, more = with_client(url, lambda client: _list(client, str(topic), count, redriven, where))
    if wants_json():
        emit_json([as_dict(letter) for letter in letters])
    elif letters:
        _table(letters)
    if more:
        note(more)


async def _list(
    client: Client, topic: str, count: int, redriven: bool, where: LetterFilter
) -> tuple[list[DeadLetter], str]:
    """Return at most `count` letters, and a note for the user."""
    letters: list[DeadLetter] = []
    others = 0
    async with aclosing(client.dead_letters(topic).listed(redriven=redriven)) as listed:
        async for letter in listed:
            if letter.is_letter and where(letter):
                letters.append(letter)
            elif not letter.is_letter:
                others += 1
            if len(letters) > count:
                return letters[:count], f"only the first {count:,} are shown; -n shows more"
            if others == OTHERS_MAX:
                break
    if letters:
        return letters, f"{plural(others, 'message')} there are no dead letters, and not shown" if others else ""
    return letters, await _empty_note(client, topic, where)


async def _empty_note(client: Client, topic: str, where: LetterFilter) -> str:
    """Return the note that there are no letters, with the dead letter topics of the topic's own subscriptions."""
    policies = [
        (await client.describe_subscription(topic, name)).failure_policy
        for name in await client.list_subscriptions(topic)
    ]
    others = sorted({one.dead_letter_topic for one in policies if one.dead_letter_topic})
    hint = f"; messages that die here go to {', '.join(others)}" if others else ""
    return f"no dead letters{where} are left in {topic}{hint}"


def _table(letters: Sequence[DeadLetter]) -> None:
    from rich.console import Console

    terminal = is_terminal(sys.stdout)
    wide = not terminal or Console(file=sys.stdout).width >= WIDE_COLUMNS
    columns: dict[str, Callable[[DeadLetter], object]] = {
        "letter": lambda letter: letter.place,
        "died": lambda letter: (
            f"{letter.message.append_time:%m-%d %H:%M:%S}"
            if terminal
            else letter.message.append_time.isoformat(sep=" ", timespec="seconds")
        ),
        "tries": lambda letter: "" if letter.attempts is None else letter.attempts,
        "from": lambda letter: letter.original_topic,
        "subscription": lambda letter: letter.original_subscription,
        **({"message": _origin, "key": lambda letter: letter.message.key or ""} if wide else {}),
        "reason": lambda letter: messages.beginning(letter.reason.encode()),
    }
    table(
        list(columns),
        [[cell(letter) for cell in columns.values()] for letter in letters],
        right=["letter", "message", "tries"],
        cut=["from", "subscription", "key", "reason"],
    )


def _origin(letter: DeadLetter) -> str:
    """Return PARTITION:OFFSET of the original message, as far as it is known."""
    partition, offset = letter.original_partition, letter.original_offset
    if offset is None:
        return ""
    return str(offset) if partition is None else f"{partition}:{offset}"


def as_dict(letter: DeadLetter) -> dict[str, Any]:
    return {
        "letter": letter.place,
        "message": messages.record(letter.message),
        "original_topic": letter.original_topic,
        "original_subscription": letter.original_subscription,
        "original_partition": letter.original_partition,
        "original_offset": letter.original_offset,
        "attempts": letter.attempts,
        "reason": letter.reason,
        "redriven": letter.redriven,
        "by_broker": letter.is_by_broker,
    }


@dlq.command("show", epilog=examples("danube dlq show /default/orders-dlq 0:17"))
@click.argument("topic", type=TOPIC)
@click.argument("place", type=PLACE)
@broker_options
def show(topic: TopicName, place: tuple[int, int], url: str) -> None:
    """Show everything about one letter. PLACE is PARTITION:OFFSET, as 'danube dlq list' shows it."""
    letter = with_client(url, lambda client: client.dead_letters(str(topic)).get(place))
    if shown_as_json(as_dict(letter)):
        return
    origin = f"{letter.original_topic or 'unknown'}, subscription {letter.original_subscription or 'unknown'}"
    more: list[tuple[str, object]] = [
        ("from", origin if not _origin(letter) else f"{origin}, message {_origin(letter)}"),
        *([] if letter.is_by_broker else [("written by", "a client, or a broker of an earlier release")]),
        ("attempts", "unknown" if letter.attempts is None else letter.attempts),
        ("reason", letter.reason or "none given"),
    ]
    messages.show(letter.message, more)


@dlq.command(
    "redrive",
    epilog=examples(
        """
danube dlq redrive /default/orders-dlq 0:17 0:18
danube dlq redrive /default/orders-dlq --all --rate 100 --yes
danube dlq redrive /default/dead --from-topic /default/orders --from-subscription billing --yes
danube dlq redrive /default/orders-dlq 0:17 --to /default/orders-repaired
"""
    ),
)
@click.argument("topic", type=TOPIC)
@click.argument("places", type=PLACE, nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All that are left.")
@filter_options
@click.option("--to", type=TOPIC, metavar="TOPIC", help="Send them there.  [default: where each came from]")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="At most this many letters a second.")
@yes_option
@broker_options
def redrive(
    topic: TopicName,
    places: tuple[tuple[int, int], ...],
    everything: bool,
    from_topic: TopicName | None,
    from_subscription: str | None,
    to: TopicName | None,
    rate: float | None,
    yes: bool,
    url: str,
) -> None:
    """Send letters back to the topics they came from: those at PLACES (PARTITION:OFFSET), or all that match.

    They arrive there as new messages, with the publish time they had, for every subscription. A letter counts as sent
    back once its topic has it. A letter whose topic is gone stays. Ctrl-C ends it in order, with exit code 130; the
    rest stays for the next time.
    """
    where = LetterFilter(from_topic, from_subscription)
    wanted = _check_choice(places, everything, where)
    if wanted is None:
        confirm(
            f"Send all letters of {topic}{where} back?", yes, verb="send them back", not_done="nothing was sent back"
        )
    target = None if to is None else str(to)

    def start(letters: DeadLetters, progress: Progress) -> Coroutine[Any, Any, Redriven]:
        return letters.redrive(wanted, where=where or None, to=target, rate=rate, progress=progress)

    _finish(url, str(topic), where, start, "sent back", "redriven")


@dlq.command(
    "drop",
    epilog=examples(
        """
danube dlq drop /default/orders-dlq 0:17 0:18
danube dlq drop /default/dead --from-topic /default/orders --yes
danube dlq drop /default/orders-dlq --all --yes
"""
    ),
)
@click.argument("topic", type=TOPIC)
@click.argument("places", type=PLACE, nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All that are left.")
@filter_options
@yes_option
@broker_options
def drop(
    topic: TopicName,
    places: tuple[tuple[int, int], ...],
    everything: bool,
    from_topic: TopicName | None,
    from_subscription: str | None,
    yes: bool,
    url: str,
) -> None:
    """Give letters up: those at PLACES (PARTITION:OFFSET), or all that match.

    They are no longer listed, and a redrive leaves them out. They stay stored until retention lets them go: 'danube dlq
    list --redriven' still has them.
    """
    where = LetterFilter(from_topic, from_subscription)
    wanted = _check_choice(places, everything, where)
    if wanted is None:
        confirm(f"Drop all letters of {topic}{where}?", yes, verb="drop them", not_done="nothing was dropped")

    def start(letters: DeadLetters, progress: Progress) -> Coroutine[Any, Any, Redriven]:
        return letters.drop(wanted, where=where or None, progress=progress)

    _finish(url, str(topic), where, start, "dropped", "dropped")


Place = tuple[int, int]
Progress = Callable[["Redriven"], None]
Start = Callable[["DeadLetters", Progress], Coroutine[Any, Any, "Redriven"]]


def _check_choice(places: tuple[Place, ...], everything: bool, where: LetterFilter) -> list[Place] | None:
    """Return the chosen places; None: all letters that match. Raises UsageError unless exactly one way is used."""
    if bool(places) == (everything or bool(where)):
        raise click.UsageError("say which letters: PARTITION:OFFSET ..., or --all, --from-topic, --from-subscription")
    return list(places) or None


def _finish(url: str, topic: str, where: LetterFilter, start: Start, verb: str, name: str) -> None:
    """Run the operation and print how far it got."""

    async def work(client: Client) -> tuple[Redriven, bool, str]:
        done, ended = await _run(client, topic, start, verb)
        idle = ended and not done.done and not done.stayed
        return done, ended, await _empty_note(client, topic, where) if idle else ""

    done, ended, nothing = with_client(url, work)
    if wants_json():
        told = {"topic": topic, name: done.done, "stayed": done.stayed, "interrupted": not ended}
        emit_json(told if ended else told | {"total": done.total})
    elif ended:
        click.echo(f"{verb} {plural(done.done, 'letter')} of {topic}")
    if nothing:
        note(nothing)
    if not ended:
        note(f"interrupted: {done.done:,} of {plural(done.total, 'letter')} {verb}; the same command does the rest")
        raise click.exceptions.Exit(EXIT_INTERRUPTED)
    if done.stayed:
        place, reason = next(iter(done.stayed.items()))
        fail(f"{plural(len(done.stayed), 'letter')} stayed; {place}: {reason}")


async def _run(client: Client, topic: str, start: Start, verb: str) -> tuple[Redriven, bool]:
    """Run the operation with a progress bar; return its state, and whether it reached the end."""
    from pydanube.cli.progress_line import Bar
    from pydanube.client import Redriven

    state, stop = Redriven(0), Stop()
    with Bar(verb) as bar:

        def progress(now: Redriven) -> None:
            nonlocal state
            state = now
            bar(now.done + len(now.stayed), now.total)
            if stop.asked:
                raise _Interrupted

        work = asyncio.get_running_loop().create_task(start(client.dead_letters(topic), progress))
        try:
            await stop.first(_ended(work))
            if not work.done():
                await asyncio.wait({work}, timeout=LEAVE_SECONDS)  # let it finish the letters that were sent
                work.cancel()
            return await work, True
        except (_Interrupted, asyncio.CancelledError):  # stopped by one or two signals
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            return state, False


class _Interrupted(Exception):
    """Raised after a step if a signal asked to stop."""


async def _ended(work: asyncio.Future[Redriven]) -> None:
    await asyncio.wait({work})
