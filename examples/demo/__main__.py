"""The demo, one to two minutes: a broker, a live feed, a pipeline on Spark that is killed and recovers, and an audit.

    python examples/demo            (or: make demo)

A broker is started on a temporary directory. Orders with a schema flow to a topic, several thousand a second, while
the pipeline of orders.yaml in a process of its own decodes them, checks them, and writes a Delta table, a topic with
the totals of every two seconds, and dead letters. In the middle it is killed without warning and started again; the
feed goes on. At the end every row is compared with what was sent.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from audit import check, collect
from feed import LAST, Feed
from phases import Phases, first_of
from plot import draw
from processes import PIPELINE, STOP_SECONDS, Broker, Job, Process, Trouble
from rich.console import Console
from story import Story, Watch
from summary import show

import pydanube
from pydanube.spark import java

BROKER_SECONDS_MAX = 120
END_SECONDS_MAX = 120
SPARK_SECONDS_MAX = 600
"""The limits of the phases, at least ten times what a quiet machine needs: they catch what hangs."""

console = Console()


async def disaster(job: Job, story: Story, phases: Phases, after_seconds: float) -> None:
    """Kill the pipeline with SIGKILL in the middle of its work, and start it again on the same checkpoints."""
    await asyncio.sleep(after_seconds)
    begin = time.time()
    await job.kill()
    phases.say("[bold red]kill -9[/]", "the pipeline is gone, JVM, workers and all; the feed goes on")
    done = story.watch.done
    async with phases.phase("the pipeline again", SPARK_SECONDS_MAX, job):
        await story.watch.wait_until_working(await job.start())
    story.killed = (begin, time.time())
    story.behind = len(story.feed.books.sent) - done
    phases.say("[bold green]recovered[/]", f"by its checkpoints, after {story.away:.1f} s")


async def follow(watch: Watch, job: Job, phases: Phases, total: int, seconds_max: float) -> None:
    """Show how many messages Spark has processed, until it is all of them."""
    async with phases.phase("through Spark", seconds_max, job, total) as told:
        while watch.done < total:
            told(watch.done)
            await asyncio.sleep(0.1)


async def play(feed: Feed, broker: Broker, job: Job, story: Story, phases: Phases, options: argparse.Namespace) -> None:
    """Run the feed and the pipeline, with the kill in between, until everything is processed."""
    async with asyncio.TaskGroup() as group:
        listening, watching = group.create_task(job.listen()), group.create_task(broker.watch())
        async with phases.phase("Spark and first batch", SPARK_SECONDS_MAX, job):
            await story.watch.wait_until_working(await job.start())
        phases.say(
            "[bold green]ready[/]", f"the pipeline; now {options.rate:,} orders a second for {options.seconds} s"
        )
        begin = time.perf_counter()
        seconds_max = options.seconds + SPARK_SECONDS_MAX
        group.create_task(follow(story.watch, job, phases, feed.total, seconds_max * 2))
        trouble = group.create_task(disaster(job, story, phases, options.kill_after))
        async with phases.phase("published", seconds_max, broker, feed.total) as told:

            def published(count: int) -> None:
                told(count)
                story.published.append((time.time(), count))

            await feed.run(published)
        await trouble
        for _ in range(LAST):
            async with phases.phase("the last orders", SPARK_SECONDS_MAX, job):
                await story.watch.wait_until_done(len(feed.books.sent))
            async with phases.phase("one more order", BROKER_SECONDS_MAX, broker):
                await feed.send_last()
        async with phases.phase("the last batch", SPARK_SECONDS_MAX, job):
            await story.watch.wait_until_done(feed.total)
        story.seconds = time.perf_counter() - begin
        async with phases.phase("end of the pipeline", END_SECONDS_MAX, job):
            job.finish()
            await listening
        watching.cancel()


async def main(options: argparse.Namespace) -> None:
    stop_on_signals()
    console.rule("danube: a live feed, a pipeline, kill -9, every row compared")
    found = java.find()
    with workplace() as directory:
        async with Phases(console) as phases, Broker(directory) as broker:
            async with phases.phase("start of the broker", BROKER_SECONDS_MAX, broker):
                url = await broker.start()
            phases.say("[bold green]ready[/]", f"a broker at {url}, data in {directory}")
            spark = f"Spark on Java {found.version} from {found.origin}"
            phases.say("starting", f"examples/demo/{PIPELINE.name} with {spark} ...")
            async with pydanube.connect(url) as client:
                story = Story(Feed(client, options.rate, options.seconds))
                async with phases.phase("topic and schema", BROKER_SECONDS_MAX, broker):
                    await story.feed.open()
                async with Job(url, directory, story.watch.receive) as job:
                    await play(story.feed, broker, job, story, phases, options)
                phases.say("comparing", f"{len(story.feed.books.sent):,} orders with what became of them ...")
                async with phases.phase("reading all rows", BROKER_SECONDS_MAX, broker):
                    story.results = await collect(client, directory)
            story.checks = check(story.feed.books, story.results)
        draw(story, options.plot)
        show(console, story, options.plot)
        if not story.good:
            raise Trouble("not every row was there exactly once")


def stop_on_signals() -> None:
    """End the demo in order at the first signal; what is still there then is killed, whatever the demo waits for."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    numbers = signal.SIGINT, signal.SIGTERM, signal.SIGHUP

    def stop() -> None:
        for number in numbers:
            loop.add_signal_handler(number, lambda: None)
        loop.call_later(STOP_SECONDS + 2, lambda: [one.kill_now() for one in Process.started])
        task.cancel()

    for number in numbers:
        loop.add_signal_handler(number, stop)


@contextmanager
def workplace() -> Iterator[Path]:
    """Make a directory for the logs and the data. It is kept when something went wrong, and else deleted."""
    directory = Path(tempfile.mkdtemp(prefix="danube-demo-"))
    failed = False
    try:
        yield directory
    except Exception:
        failed = True
        console.print(f"Everything is kept in [bold]{directory}[/]", highlight=False)
        raise
    finally:
        if not failed:
            shutil.rmtree(directory, ignore_errors=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python examples/demo", description="A live feed through Spark, exactly once."
    )
    parser.add_argument("--seconds", type=int, default=30, help="how long the feed lasts")
    parser.add_argument("--kill-after", type=float, help="seconds from the start of the feed to the kill -9")
    parser.add_argument("--rate", type=int, default=5_000, help="messages a second")
    parser.add_argument("--plot", type=Path, default=Path("danube-demo.png"), help="where the picture goes")
    chosen = parser.parse_args()
    if chosen.kill_after is None:
        chosen.kill_after = chosen.seconds * 0.4
    if chosen.seconds < 1 or chosen.rate < 1 or not 0 <= chosen.kill_after < chosen.seconds:
        parser.error("the feed needs a second and a message at least, and the kill comes while it lasts")
    return chosen


def run() -> int:
    try:
        asyncio.run(main(arguments()))
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("interrupted: broker and Spark are stopped, their directory is gone")
        return 130
    except (pydanube.DanubeError, Trouble, ExceptionGroup) as problem:  # a group: from one of the concurrent tasks
        console.print(f"[bold red]the demo failed:[/] {first_of(problem)}", highlight=False)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(run())
