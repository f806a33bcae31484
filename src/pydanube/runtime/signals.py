"""Which signals end a process in order: SIGTERM, Ctrl-C, and SIGHUP, the end of its terminal or session.

A process that was started to outlive its terminal (`nohup`) ignores SIGHUP from the start, and goes on ignoring it. A
process that has something to read again may do so at a SIGHUP that is not the end of its terminal (`has_terminal`).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Protocol


class SignalLoop(Protocol):
    """The part of an event loop that handles signals."""

    def add_signal_handler(self, sig: int, callback: Callable[[], object]) -> None: ...


def on_stop_signals(loop: SignalLoop, stop: Callable[[], object]) -> None:
    """Call `stop` at every SIGTERM and SIGINT; may be called again with another function, for a second signal."""
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)


def on_hangup(loop: SignalLoop, stop: Callable[[], object]) -> None:
    """Call `stop` at every SIGHUP, unless this process ignores it.

    The kernel and the shell both send one when a terminal is closed: a second SIGHUP does not mean impatience.
    """
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        loop.add_signal_handler(signal.SIGHUP, stop)


def has_terminal() -> bool:
    """Return whether this process has a terminal that controls it. One whose terminal was closed has none any more."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
