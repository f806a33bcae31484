"""Runs an app as a process of its own: finds it by ``module:app``, runs it until a signal, and drains it."""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Unpack

from pydanube.client.arguments import ConnectArguments
from pydanube.model.errors import Invalid
from pydanube.model.text import did_you_mean
from pydanube.runtime.signals import on_hangup, on_stop_signals
from pydanube.runtime.tasks import ignore
from pydanube.runtime.telemetry import get_logger

from .application import App
from .health import health_listener

log = get_logger(__name__)

OnReady = Callable[[int], object]
"""Called with the port of the health listener, 0 if there is none, when the app receives."""


def load_app(target: str) -> App:
    """Import ``module:app``, from the current directory or the path. Raises Invalid, which says what is wrong where."""
    name, colon, path = target.partition(":")
    if not (name and colon and path):
        raise Invalid(f"{target!r} names no app: write module:app, such as shop:app for app in shop.py")
    if name.endswith(".py"):
        raise Invalid(f"{target!r} names a file: write the module, {name.removesuffix('.py').replace('/', '.')}:{path}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(name)
    except Invalid:
        raise
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise Invalid(f"{name} cannot be imported: it needs {error.name}, which is not installed") from error
        raise Invalid(f"there is no module {name!r}: {here} has no {name.replace('.', '/')}.py") from error
    except Exception as error:  # whatever the module raises
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(place.filename).name}:{place.lineno}"
        raise Invalid(f"{name} cannot be imported: {type(error).__name__}: {error} ({where})") from error
    apps = [known for known, value in vars(found).items() if isinstance(value, App)]
    for attribute in path.split("."):
        found = getattr(found, attribute, None)
    if not isinstance(found, App):
        raise Invalid(f"{path!r} of {name} is not a pydanube.App: {did_you_mean(path, apps, 'its apps are')}")
    return found


async def serve(
    app: App,
    url: str | None = None,
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    on_ready: OnReady | None = None,
    **credentials: Unpack[ConnectArguments],
) -> None:
    """Run the app until SIGTERM, SIGINT or SIGHUP, then drain it; a second SIGTERM or SIGINT cancels what runs.

    `port` is that of health and metrics; None: no listener, 0: any.
    """
    stop, loop, task = asyncio.Event(), asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    is_ready = False

    def on_signal() -> None:
        if stop.is_set():
            task.cancel()
        stop.set()

    on_stop_signals(loop, on_signal)
    on_hangup(loop, stop.set)
    async with AsyncExitStack() as stack:
        chosen = 0
        if port is not None:
            listener = health_listener(host, port, lambda: is_ready, app.metrics)
            chosen = await stack.enter_async_context(listener)
        async with app.running(url, **credentials):
            is_ready = True
            if on_ready is not None:
                on_ready(chosen)
            await stop.wait()
            is_ready = False
            log.info("app.draining", seconds=app.drain_seconds)


def leave(status: int, drain_logs: Callable[[], None] = ignore) -> None:
    """End the process now if threads still run plain functions: Python would wait for them, without an end.

    `drain_logs` is called first, if what is logged is written by a thread."""
    if any(thread.name.startswith("danube-handler") and thread.is_alive() for thread in threading.enumerate()):
        log.warning("app.threads_abandoned")
        sys.stdout.flush()
        sys.stderr.flush()
        drain_logs()
        os._exit(status)
