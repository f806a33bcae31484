"""Which signals end a process in order: SIGTERM, Ctrl-C, and SIGHUP, the end of its terminal or session.

A process that was started to outlive its terminal (`nohup`) ignores SIGHUP from the start, and goes on ignoring it. A
process that has something to read again may do so at a SIGHUP that is not the end of its terminal (`has_terminal`).

Python calls a handler in the main thread between any two of its instructions, also while that thread holds the lock of
an Event, a queue or a stream: a handler that wants the same lock waits for itself for ever. So a process with an event
loop handles signals on the loop, and any other one with `StopSignals`; `signal.signal` is called nowhere else.
"""

from __future__ import annotations

import faulthandler
import os
import select
import signal
from collections.abc import Callable
from types import FrameType
from typing import Protocol, Self, TextIO


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


class Flag:
    """Is set once. It has no lock as an Event has, so that a signal handler may set it."""

    __slots__ = ("_is_set",)

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set


class StopSignals:
    """Sets `stop` at the first SIGINT, SIGTERM or SIGHUP, and `interrupt` at the second SIGINT or SIGTERM; a third one
    raises KeyboardInterrupt wherever the main thread is. SIGHUP does not count for these: systemd can send it together
    with SIGTERM, and Python then calls the handler of SIGHUP first.

    A context manager for the main thread of a process without an event loop. The handlers only change flags. What is
    to be printed or ended is printed and ended by who waits with `wait`, which returns at once when a signal comes.
    """

    def __init__(self) -> None:
        self.stop = Flag()
        self.interrupt = Flag()
        self._asked = 0

    def __enter__(self) -> Self:
        self._pipe = os.pipe()
        for end in self._pipe:
            os.set_blocking(end, False)
        self._woken = select.poll()
        self._woken.register(self._pipe[0], select.POLLIN)
        self._descriptor_before = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        hangups = [] if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else [signal.SIGHUP]
        numbers = [signal.SIGINT, signal.SIGTERM, *hangups]
        self._handlers_before = {number: signal.signal(number, self._on_signal) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers_before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._descriptor_before)
        for end in self._pipe:
            os.close(end)

    def wait(self, seconds: float) -> None:
        """Wait for a signal, at most for `seconds`. One that came since the last call counts."""
        if self._woken.poll(seconds * 1000):
            os.read(self._pipe[0], 4096)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self.stop.set()
        if number == signal.SIGHUP:
            return
        self._asked += 1
        if self._asked == 2:
            self.interrupt.set()
        elif self._asked > 2:
            raise KeyboardInterrupt


def dump_threads_on_request(file: TextIO) -> None:
    """Let SIGUSR1 write to `file` where each thread of this process is, also when the main thread hangs."""
    faulthandler.register(signal.SIGUSR1, file)


def has_terminal() -> bool:
    """Return whether this process has a controlling terminal. After the terminal was closed it has none."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
