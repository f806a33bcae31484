"""`danube app`: runs services as processes, and describes them."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import click

from pydanube.cli.credential_options import chosen_credentials, show_to_children
from pydanube.cli.options import examples, json_option_with, optional_url_option
from pydanube.cli.output import emit_json, fail, table, wants_json
from pydanube.cli.standard_streams import write_lines_at_once, write_logs_in_background
from pydanube.cli.synonyms import Group
from pydanube.cli.tls_options import tls_options
from pydanube.model.errors import Invalid

if TYPE_CHECKING:
    from pydanube.app import App

WORKERS_MAX: Final = 256


@click.group(
    cls=Group,
    epilog=examples(
        """
danube app run shop:app
danube app describe shop:app
"""
    ),
)
def app() -> None:
    """Run and describe services made with pydanube.App.

    MODULE:APP names the app: shop:app is `app` of shop.py in the current directory, or of an installed package.
    """


@app.command(
    epilog=examples(
        """
danube app run shop:app
danube app run shop:app --workers 4 --port 9100         health and metrics on ports 9100 to 9103
danube app run shop:app --reload                        for development: starts again when a file changes
"""
    )
)
@click.argument("target", metavar="MODULE:APP")
@click.option("--workers", type=click.IntRange(1, WORKERS_MAX), default=1, show_default=True, help="Processes.")
@click.option("--reload", is_flag=True, help="Start again when a Python file below this directory changes.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    help="Health and metrics over HTTP; 0 chooses one, further workers take the ports behind it.  [default: none]",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address of health and metrics.")
@click.option("--drain", type=click.FloatRange(0), metavar="SECONDS", help="How long calls may take to end.")
@optional_url_option
def run(
    target: str, workers: int, reload: bool, port: int | None, host: str, drain: float | None, url: str | None
) -> None:
    """Run the handlers of an app until SIGTERM or Ctrl-C.

    Prints one line on stdout for each process when it receives: "danube app ready handlers=3 http=127.0.0.1:9100". Logs
    go to stderr; nothing waits for their reader. At the end nothing more is received, and calls that run may end within
    --drain seconds (30, or what the app says). A second signal cancels them. A worker that dies is started again.
    """
    from pydanube.app.serving import leave
    from pydanube.runtime import telemetry

    telemetry.configure()
    write_lines_at_once()
    drain_logs = write_logs_in_background()
    if workers > 1 or reload:
        _supervise(target, workers, reload, port, host, drain, url)
    else:
        _serve(_load(target), host, port, drain, url)
        leave(0, drain_logs)


@app.command(epilog=examples("danube app describe shop:app\ndanube app describe shop:app --json > asyncapi.json"))
@click.argument("target", metavar="MODULE:APP")
@json_option_with("Print a document of AsyncAPI 3 instead of a table.")
def describe(target: str) -> None:
    """Show the topics, subscriptions and schemas of an app. Needs no broker."""
    from pydanube.app.asyncapi import describe as described

    found = _load(target)
    if wants_json():
        emit_json(found.asyncapi(target))
        return
    table(
        ["handler", "receives", "subscription", "type", "takes", "publishes", "schedule"],
        [
            (
                one.handler,
                ", ".join(one.topics),
                one.subscription,
                one.type,
                one.takes,
                f"{one.returns} to {one.publishes_to}" if one.publishes_to else "",
                one.schedule,
            )
            for one in described(found)
        ],
    )


def _load(target: str) -> App:
    """Import the app. What is wrong with it is wrong usage: no further try can succeed."""
    from pydanube.app.serving import load_app

    try:
        return load_app(target)
    except Invalid as error:
        raise click.UsageError(error.message) from None


def _serve(found: App, host: str, port: int | None, drain: float | None, url: str | None) -> None:
    from pydanube.app.serving import serve

    def ready(chosen: int) -> None:
        listener = f" http={host}:{chosen}" if chosen else ""
        click.echo(f"danube app ready handlers={len(found.subscribers)}{listener}")

    if drain is not None:
        found.drain_seconds = drain
    chosen = {**chosen_credentials(), **tls_options()}
    try:
        asyncio.run(serve(found, url, host=host, port=port, on_ready=ready, **chosen))
    except (asyncio.CancelledError, KeyboardInterrupt):
        fail("stopped at once; messages that were in work are delivered again")


def _supervise(
    target: str, workers: int, reload: bool, port: int | None, host: str, drain: float | None, url: str | None
) -> None:
    from pydanube.app.application import DRAIN_SECONDS
    from pydanube.app.supervisor import supervise, worker_command

    show_to_children()
    options = ["--host", host]
    if drain is not None:
        options += ["--drain", str(drain)]
    if url is not None:
        options += ["--url", url]
    ports = [[] if port is None else ["--port", str(port and port + index)] for index in range(workers)]
    with suppress(KeyboardInterrupt):
        status = supervise(
            [worker_command(target, *options, *own) for own in ports],
            reload=reload,
            drain_seconds=DRAIN_SECONDS if drain is None else drain,
        )
        if status:
            raise click.exceptions.Exit(status)
