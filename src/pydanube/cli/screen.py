"""The terminal as `danube top` uses it: taken over, redrawn, given back as it was."""

from __future__ import annotations

import sys
from typing import Self

from rich.console import Console
from rich.live import Live

from .top_view import Snapshot, View


class Screen:
    """Call it with what to show."""

    def __init__(self, order: str, hint: str) -> None:
        self._order, self._hint = order, hint
        self._console = Console(file=sys.stdout, highlight=False)
        self._live = Live(console=self._console, screen=True, auto_refresh=False, vertical_overflow="crop")

    def __call__(self, snapshot: Snapshot) -> None:
        view = View(snapshot, self._order, self._hint, self._console.height)
        self._live.update(view, refresh=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()
