"""`danube bench`: measures one scenario or the whole suite, and prints a table or JSON."""

from __future__ import annotations

import asyncio
import signal
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import click

from pydanube.cli.credential_options import choose_broker, credential_options, show_to_children
from pydanube.cli.options import ACK_LEVEL, COMPRESSION, examples, json_option
from pydanube.cli.output import fail, note, show, table
from pydanube.cli.synonyms import Command


@click.command(
    cls=Command,
    epilog=examples(
        """
danube bench                                            100 B x 500, durable, with baselines
danube bench --verify --partitions 3 --producers 2      and check every message
danube bench --size 1000 --batch 100 --json             for scripts
danube bench --receive messages                         one Message object at a time, each acked
danube bench --latency --rate 1000 --ack-level written  p50, p99 and p99.9 instead of throughput
danube bench --topics 1000 --consumers 0                publish to a thousand topics in turn
danube bench --type key-shared --keys 1000 --consumers 4 --verify
danube bench --subscriptions 20 --consumers 2           twenty subscriptions, received by two processes
danube bench --non-reliable --latency                   a topic that stores nothing
danube bench --url danube://127.0.0.1:6655 --seconds 10 a broker that runs already
danube bench --suite                                    every target of the project, with a verdict
"""
    ),
)
@click.option("--size", type=int, default=100, show_default=True, help="Bytes of one message.")
@click.option("--batch", type=int, default=500, show_default=True, help="Messages of one batch.")
@click.option("--count", type=int, help="Messages to send.  [default: 1,000,000; with --latency 10 s of them]")
@click.option("--seconds", type=float, default=0.0, help="Send for this many seconds instead of a count.")
@click.option("--ack-level", type=ACK_LEVEL, default="durable", show_default=True, help="What an ack means.")
@click.option("--partitions", type=int, default=0, help="Partitions of each topic.  [default: plain topics]")
@click.option("--topics", type=int, default=1, show_default=True, help="Topics, published to in turn.")
@click.option("--producers", type=int, default=1, show_default=True, help="Producer processes.")
@click.option("--consumers", type=int, default=1, show_default=True, help="Consumer processes.")
@click.option(
    "--type",
    type=click.Choice(["exclusive", "shared", "failover", "key-shared"]),
    default="exclusive",
    show_default=True,
    help="Exclusive: each consumer receives everything. Other types: the consumers share it.",
)
@click.option(
    "--subscriptions",
    type=int,
    default=0,
    help="Subscriptions, spread over the consumers.  [default: exclusive one each, other types one]",
)
@click.option("--keys", type=int, help="Different keys of the messages.  [default: none; key-shared 1,000]")
@click.option("--non-reliable", is_flag=True, help="A topic that stores nothing and delivers at most once.")
@click.option(
    "--receive", type=click.Choice(["batches", "messages"]), default="batches", show_default=True, help="How."
)
@click.option("--compression", type=COMPRESSION, default="none", show_default=True, help="Of the batches.")
@click.option("--rate", type=float, default=0.0, help="Messages a second.  [default: as fast as acks come back]")
@click.option("--latency", is_flag=True, help="Send one by one at --rate (default 1,000/s) and take the time of each.")
@click.option("--verify", is_flag=True, help="Check that every message came once, in order, with its content.")
@click.option(
    "--baselines/--no-baselines", default=True, help="Measure the bare machine in the same run.  [default: on]"
)
@click.option("--suite", is_flag=True, help="Measure every target of the project instead of one scenario.")
@click.option("--full", is_flag=True, help="With --suite: also what takes minutes and gigabytes.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="With --suite: take medians.")
@credential_options
@click.option("--url", help="A broker that runs already.  [default: one of our own, on a free port]")
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where our broker and the disk baselines write.  [default: a temporary directory]",
)
@json_option
def bench(
    url: str | None,
    data_dir: Path | None,
    baselines: bool,
    suite: bool,
    full: bool,
    rounds: int,
    **options: Any,
) -> None:
    """Measure throughput and latency, with baselines and an integrity check.

    Producers, broker and consumers run as processes of their own. Beside them the same run measures what the machine
    does without a broker (loopback TCP, fdatasync, an asyncio echo, and a bare pipeline of three processes that moves,
    checks, writes and syncs the same batches), and shows results as ratios: they hold on a busy machine too.
    """
    url = choose_broker(click.get_current_context(), url, named_only=True)
    show_to_children()
    if data_dir is not None:
        data_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="danube-bench-", dir=data_dir) as name:
        if suite:
            _run(_suite(Path(name), rounds, full))
        else:
            _run(_scenario(Path(name), url, baselines, options))


def _run(work: Coroutine[Any, Any, None]) -> None:
    """Run `work`. SIGTERM ends it like Ctrl-C: no process and no directory is left behind."""

    async def until_told() -> None:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        await work

    try:
        asyncio.run(until_told())
    except asyncio.CancelledError:
        raise click.Abort from None


async def _scenario(directory: Path, url: str | None, baselines: bool, options: dict[str, Any]) -> None:
    from . import report
    from .runs import broker_for, measure, measure_baselines
    from .scenario import Scenario

    if options["count"] is not None and options["count"] < 1:
        raise click.UsageError("--count must be at least 1")
    if options["latency"]:
        options["rate"] = options["rate"] or 1000.0
        options["count"] = options["count"] or int(options["rate"] * (options["seconds"] or 10))
        options["seconds"] = 0.0
    options["count"] = 0 if options["seconds"] else options["count"] or 1_000_000
    if options["keys"] is None:
        options["keys"] = 1000 if options["type"] == "key-shared" else 0
    options["reliable"] = not options.pop("non_reliable")
    scenario = Scenario(**options)
    problem = scenario.problem()
    if problem is not None:
        raise click.UsageError(problem)
    async with broker_for(url, directory) as (address, broker):
        result = await measure(scenario, address, broker)
    if baselines:
        result.baselines = await measure_baselines(scenario, directory)
    show(result.to_dict(), lambda: report.show(result))
    if result.faults:
        fail("the integrity check failed: " + ", ".join(f"{count:,} {kind}" for kind, count in result.faults.items()))


async def _suite(directory: Path, rounds: int, full: bool) -> None:
    import msgspec

    from .report import BUSY_CORES
    from .suite import run

    verdicts = [
        verdict
        async for verdict in run(directory, rounds=rounds, full=full, says=lambda name: note(f"measuring: {name}"))
    ]
    show(
        [msgspec.to_builtins(verdict) for verdict in verdicts],
        lambda: table(
            ["scenario", "target", "measured", "ratio", "verdict"],
            [
                (v.name, v.target, v.measured, "" if v.ratio is None else f"{v.ratio:.2f}", _word(v.reached))
                for v in verdicts
            ],
            right=["ratio"],
        ),
    )
    busy = [detail["busiest_cores"] for v in verdicts for detail in v.details if "busiest_cores" in detail]
    if busy and max(busy) > BUSY_CORES:
        note(f"other programs kept up to {max(busy):.1f} cores busy meanwhile: run it again on a quiet machine")
    missed = [verdict.name for verdict in verdicts if not verdict.reached]
    if missed:
        fail(f"{len(missed)} of {len(verdicts)} targets were missed: {'; '.join(missed)}")


def _word(reached: bool) -> str:
    return "reached" if reached else "MISSED"
