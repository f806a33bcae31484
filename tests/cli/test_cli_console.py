"""`danube console` and `danube serve --console` as processes: they say where they are, and end in order."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "pydanube.cli"]
NO_PORTS = ["--port=0", "--http-port=0", "--no-grpc", "--no-admin"]
SECONDS = 120


@pytest.mark.process
def test_a_broker_starts_its_console_and_takes_it_along_when_it_ends(tmp_path: Path) -> None:
    command = [*COMMAND, "serve", "--data-dir", str(tmp_path / "data"), *NO_PORTS, "--console", "--console-port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline().startswith("danube ready native=")
        found = re.fullmatch(r"danube console (http://127\.0\.0\.1:\d+)\n", running.stdout.readline())
        assert found is not None
        with urllib.request.urlopen(found[1], timeout=SECONDS) as page:
            assert b"All is well" in page.read()
        running.send_signal(signal.SIGTERM)
        assert running.wait(SECONDS) == 0
        assert running.stdout.read() == ""  # its end: the console, which has it too, is gone
