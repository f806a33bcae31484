"""Runs several processes of one app: starts them, starts those again that die, and ends them together.

With `reload` it also starts them again when a Python file below the current directory changes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from pydanube.runtime.clock import SystemClock
from pydanube.runtime.retry import RetryBackoff
from pydanube.runtime.signals import StopSignals
from pydanube.runtime.telemetry import get_logger

log = get_logger(__name__)

EXIT_USAGE: Final = 2
"""A worker ends so when the app itself is wrong: another try would end in the same way."""

LOOK_SECONDS: Final = 0.5
"""How often it looks for workers that died and for files that changed. A signal is noticed at once."""

BACKOFF_SECONDS: Final = (0.5, 30.0)
STEADY_SECONDS: Final = 60.0
"""A worker that ran so long is started again without a wait."""

KILL_AFTER_SECONDS: Final = 10.0
"""How long after the end of its drain a worker is killed."""

_NOT_OURS: Final = frozenset({"__pycache__", "node_modules"})


class _Worker:
    """One process, and when to start it again."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._clock = SystemClock()
        self._backoff = RetryBackoff(*BACKOFF_SECONDS)
        self._start_at = 0.0
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._started_at = self._clock.monotonic()
        # A group of its own: Ctrl-C in a terminal reaches all of a group, and a worker would take the SIGTERM that
        # follows for the second signal, which cancels what runs.
        self.process = subprocess.Popen(self._command, process_group=0)  # noqa: S603  ourselves, with what the user gave

    def look(self) -> int | None:
        """Start the process again if it died and its wait is over. Returns its exit code when it has just ended."""
        if self.process is None:
            if self._clock.monotonic() >= self._start_at:
                self.start()
            return None
        status = self.process.poll()
        if status is None:
            return None
        self.process = None
        now = self._clock.monotonic()
        if now - self._started_at > STEADY_SECONDS:
            self._backoff.reset()
        self._start_at = now + self._backoff.next()
        return status

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()

    def wait(self, seconds: float) -> None:
        """Wait for the end of the process; kill it if that takes too long."""
        if self.process is not None:
            try:
                self.process.wait(seconds)
            except subprocess.TimeoutExpired:
                log.warning("app.worker_killed", pid=self.process.pid)
                self.process.kill()
                self.process.wait()
            self.process = None


def supervise(commands: Sequence[Sequence[str]], *, reload: bool, drain_seconds: float) -> int:
    """Run one worker for each command until a signal asks to stop. Returns the exit code for this process."""
    with StopSignals() as signals:
        workers = [_Worker(command) for command in commands]
        seen = dict(_python_files()) if reload else {}
        for worker in workers:
            worker.start()
        status = 0
        while not signals.stop.is_set() and not status:
            signals.wait(LOOK_SECONDS)
            if reload and (now := dict(_python_files())) != seen:
                changed = sorted(now.items() ^ seen.items())[0][0]
                log.info("app.reloading", changed=changed)
                seen = now
                _end(workers, drain_seconds, signals)
                for worker in workers:
                    worker.start()
            for worker in workers:
                ended = worker.look() if not reload else None
                if ended == EXIT_USAGE:
                    status = EXIT_USAGE
                elif ended is not None and not signals.stop.is_set():
                    log.warning("app.worker_died", status=ended)
        _end(workers, drain_seconds, signals)
    return status


def _end(workers: Sequence[_Worker], drain_seconds: float, signals: StopSignals) -> None:
    for worker in workers:
        worker.stop()
    left = drain_seconds + KILL_AFTER_SECONDS
    clock = SystemClock()
    deadline = clock.monotonic() + left
    while any(one.process is not None and one.process.poll() is None for one in workers):
        if signals.interrupt.is_set() or clock.monotonic() > deadline:
            break
        signals.wait(LOOK_SECONDS / 5)
    for worker in workers:
        worker.wait(0)


def _python_files() -> Iterator[tuple[str, float]]:
    """Yield the Python files below the current directory, and when they were changed."""
    for folder, folders, files in os.walk("."):
        folders[:] = [
            name
            for name in folders
            if name not in _NOT_OURS and not name.startswith(".") and not Path(folder, name, "pyvenv.cfg").exists()
        ]
        for name in files:
            if name.endswith(".py"):
                path = Path(folder, name)
                try:
                    yield str(path), path.stat().st_mtime
                except OSError:
                    continue  # it was deleted just now


def worker_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pydanube.cli", "app", "run", *arguments]
