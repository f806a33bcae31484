"""Which signals end a process in order: SIGTERM, Ctrl-C, and SIGHUP, the end of its terminal or session.

A process that was started to outlive its terminal (`nohup`) ignores SIGHUP from the start, and goes on ignoring it.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Protocol


class SignalLoop(Protocol):
    """The part of an event loop that handles signals."""

    def add_signal_handler(self, sig: int, callback: Callable[[], object]) -> None: ...


def on_stop_signals(loop: SignalLoop, stop: Callable[[], object]) -> None:
    """Call `stop` when a signal asks this process to end."""
    for number in (signal.SIGTERM, signal.SIGINT, *_hangup()):
        loop.add_signal_handler(number, stop)


def on_second_signal(loop: SignalLoop, give_up: Callable[[], object]) -> None:
    """Call `give_up` at the next signal of a user who does not want to wait.

    A second SIGHUP is none: the kernel and the shell both send one when a terminal is closed.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, give_up)


def _hangup() -> list[signal.Signals]:
    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [] if ignored else [signal.SIGHUP]
