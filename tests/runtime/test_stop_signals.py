"""A process without an event loop that waits for a signal is woken by it at once, however long it would wait."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

HOURS = 3600.0
"""Far beyond the time limit of the test: only the signal ends the wait."""

WAITS = f"""
from pydanube.runtime.signals import StopSignals

with StopSignals() as signals:
    print("ready", flush=True)
    while not signals.stop.is_set():
        signals.wait({HOURS})
    print("stopping", flush=True)
    while not signals.interrupt.is_set():
        signals.wait({HOURS})
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_wait_ends_with_the_first_signal_and_with_the_second(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE, text=True) as waiting:
        assert waiting.stdout is not None
        for told in ("ready\n", "stopping\n"):
            assert waiting.stdout.readline() == told
            waiting.send_signal(number)
        assert waiting.wait(120) == 0
