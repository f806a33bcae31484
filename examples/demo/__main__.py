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
import signal
import sys
import tempfile
import time
from pathlib import Path

from audit import check, collect
from feed import Feed
from plot import draw
from processes import PIPELINE, Broker, Job, Trouble
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from story import Story, Watch
from summary import show

import pydanube
from pydanube.spark import java

SECONDS_MAX = 400
"""The time limit; a machine that needs longer is too busy for the demo."""

console = Console()


async def disaster(job: Job, story: Story, after_seconds: float) -> None:
    """Kill the pipeline with SIGKILL in the middle of its work, and start it again on the same checkpoints."""
    await asyncio.sleep(after_seconds)
    await story.watch.wait_until_feeding()
    begin = time.time()
    await job.kill()
    say("[bold red]kill -9[/]", "the pipeline is gone, JVM, workers and all; the feed goes on")
    done = story.watch.done
    await story.watch.wait_until_working(await job.start())
    story.killed = (begin, time.time())
    story.behind = len(story.feed.books.sent) - done
    say("[bold green]recovered[/]", f"by its checkpoints, after {story.away:.1f} s")


async def follow(watch: Watch, progress: Progress, total: int) -> None:
    """Show the progress bar of the messages that Spark has processed."""
    bar = progress.add_task("through Spark", total=total)
    while watch.done < total:
        progress.update(bar, completed=watch.done)
        await asyncio.sleep(0.1)
    progress.update(bar, completed=watch.done)


async def play(client: pydanube.Client, url: str, directory: Path, options: argparse.Namespace) -> Story:
    """Run the feed and the pipeline, with the kill in between, until everything is processed."""
    story = Story(Feed(client, options.rate, options.seconds))
    feed, watch = story.feed, story.watch
    await feed.open()
    async with Job(url, directory, watch.receive) as job, asyncio.TaskGroup() as group:
        listening = group.create_task(job.listen())
        await watch.wait_until_working(await job.start())
        say("[bold green]ready[/]", f"the pipeline; now {options.rate:,} orders a second for {options.seconds} s")
        begin = time.perf_counter()
        columns = TextColumn("  {task.description:<14}"), BarColumn(), MofNCompleteColumn()
        with Progress(*columns, console=console) as progress:
            published = progress.add_task("published", total=feed.total)
            following = group.create_task(follow(watch, progress, feed.total))
            trouble = group.create_task(disaster(job, story, options.seconds * 0.4))

            def told(count: int) -> None:
                progress.update(published, completed=count)
                story.published.append((time.time(), count))

            await feed.run(told)
            await trouble
            await feed.close()
            progress.update(published, completed=feed.total)
            await following
        await watch.wait_until_done(feed.total)
        story.seconds = time.perf_counter() - begin
        job.finish()
        await listening
    return story


async def main(options: argparse.Namespace) -> int:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    console.rule("danube: a live feed, a pipeline, kill -9, every row compared")
    found = java.find()
    with tempfile.TemporaryDirectory(prefix="danube-demo-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        async with asyncio.timeout(SECONDS_MAX), Broker(directory) as broker, pydanube.connect(broker.url) as client:
            say("[bold green]ready[/]", f"a broker at {broker.url}, data in {directory}")
            say("starting", f"examples/demo/{PIPELINE.name} with Spark on Java {found.version} from {found.origin} ...")
            story = await play(client, broker.url, directory, options)
            say("comparing", f"{len(story.feed.books.sent):,} orders with what became of them ...")
            story.results = await collect(client, directory)
            story.checks = check(story.feed.books, story.results)
    draw(story, options.plot)
    show(console, story, options.plot)
    return 0 if story.good else 1


def say(word: str, what: str) -> None:
    plain = word.partition("]")[2].partition("[")[0] or word
    console.print(f"  {word}{' ' * (10 - len(plain))}{what}", highlight=False)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python examples/demo", description="A live feed through Spark, exactly once."
    )
    parser.add_argument("--seconds", type=int, default=30, help="how long the feed lasts")
    parser.add_argument("--rate", type=int, default=5_000, help="messages a second")
    parser.add_argument("--plot", type=Path, default=Path("danube-demo.png"), help="where the picture goes")
    return parser.parse_args()


def run() -> int:
    try:
        return asyncio.run(main(arguments()))
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("interrupted: broker and Spark are stopped, their directory is gone")
        return 130
    except TimeoutError:
        console.print(f"[bold red]given up[/] after {SECONDS_MAX} s: this machine is too busy for the demo")
    except (pydanube.DanubeError, Trouble) as problem:
        console.print(f"[bold red]the demo cannot run:[/] {escape(str(problem))}", highlight=False)
    except ExceptionGroup as group:  # from one of the concurrent tasks
        for one in group.exceptions:
            console.print(f"[bold red]the demo failed:[/] {escape(str(one))}", highlight=False)
    return 1


if __name__ == "__main__":
    sys.exit(run())
