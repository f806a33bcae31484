"""The terminal as `danube top` uses it: taken over, redrawn, given back as it was."""

from __future__ import annotations

import asyncio
import os
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Self

from rich.console import Console
from rich.live import Live

from .streams import is_terminal
from .top_view import TopSnapshot, View


class Screen:
    """Call it with what to show."""

    def __init__(self, order: str, hint: str) -> None:
        self._order, self._hint = order, hint
        self._console = Console(file=sys.stdout, highlight=False)
        self._live = Live(console=self._console, screen=True, auto_refresh=False, vertical_overflow="crop")

    def __call__(self, snapshot: TopSnapshot) -> None:
        view = View(snapshot, self._order, self._hint, self._console.height)
        self._live.update(view, refresh=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()


@contextmanager
def on_key(key: bytes, pressed: Callable[[], None]) -> Iterator[None]:
    """Calls `pressed` when somebody presses the key; nothing that is typed shows. Without a keyboard, nothing."""
    if not is_terminal(sys.stdin):
        yield
        return
    keyboard, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    before = termios.tcgetattr(keyboard)

    def typed() -> None:
        try:
            characters = os.read(keyboard, 1024)
        except OSError:
            characters = b""
        if not characters:  # the terminal is gone, and whoever watched with it
            loop.remove_reader(keyboard)
            pressed()
        elif key in characters.lower():
            pressed()

    tty.setcbreak(keyboard)
    loop.add_reader(keyboard, typed)
    try:
        yield
    finally:
        loop.remove_reader(keyboard)
        with suppress(termios.error):
            termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
