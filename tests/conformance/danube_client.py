"""Runs scenarios with the official Danube client, unmodified, in a process and a virtual environment of their own.

A scenario is an async function in a module of `scenarios/`. It gets a client, a `Steps` and keyword arguments, and what
it returns, as JSON, is the result. `run.py` there calls it. The environment is made by `make danube-client`, which
`make test` does too; DANUBE_CLIENT_PYTHON names the Python of another one.

DANUBE_CLIENT_PROGRAM names a program that runs the scenarios with another client instead, as that of tests/clients/rust
does: `make test-danube-clients`. Tests of scenarios that it does not have are skipped.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import pytest

RUN = Path(__file__).parent / "scenarios" / "run.py"
TIMEOUT_S = 300.0


def find_command() -> list[str] | None:
    """Return the command that runs scenarios; None if the official client is not installed."""
    program = os.environ.get("DANUBE_CLIENT_PROGRAM")
    if program:
        return [program]
    named = os.environ.get("DANUBE_CLIENT_PYTHON")
    python = Path(named) if named else Path(sys.prefix) / "danube-client" / "bin" / "python"
    return [str(python), str(RUN)] if python.exists() else None


class Scenario:
    """One running scenario. It says how far it is, and waits for what the test tells it."""

    def __init__(self, command: list[str], name: str, url: str, arguments: dict[str, Any]) -> None:
        """`name` is `module.function`."""
        environment = {one: value for one, value in os.environ.items() if not one.startswith(("PYTHON", "DANUBE"))}
        self._name = name
        self._process = subprocess.Popen(
            [*command, name, url, json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()

    def _next(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"scenario {self._name} has ended with code {self._process.wait(TIMEOUT_S)}: see its stderr"
        said = json.loads(line)
        if "missing" in said:
            pytest.skip(f"this client has no scenario {self._name}")
        return said

    def wait_for(self, step: str) -> Any:
        """Wait until the scenario has reached this step, the next one, and return what it says with it."""
        said = self._next()
        assert said.get("step") == step, f"scenario {self._name} said {said} instead of step {step!r}"
        return said["value"]

    def tell(self, word: str) -> None:
        """Let the scenario go on that waits for this word."""
        assert self._process.stdin is not None
        print(word, file=self._process.stdin, flush=True)

    def result(self) -> Any:
        """Wait for the end of the scenario and return its result. What fails in it fails here."""
        said = self._next()
        assert "result" in said, f"scenario {self._name} said {said} instead of its result"
        assert self._process.wait(TIMEOUT_S) == 0
        return said["result"]

    def kill(self) -> None:
        """Kill the process of the client with SIGKILL."""
        self._process.kill()
        self._process.wait(TIMEOUT_S)

    def freeze(self) -> None:
        """Stop the process of the client with SIGSTOP, until the end of the `with` block."""
        self._process.send_signal(signal.SIGSTOP)


class OfficialClient:
    """Runs scenarios against one broker."""

    def __init__(self, command: list[str], url: str) -> None:
        """`command` runs scenarios; `url` is that of the broker's gRPC listener."""
        self._command = command
        self.url = url

    def start(self, name: str, **arguments: Any) -> Scenario:
        """Start the scenario `module.function`; use it in a `with` block."""
        return Scenario(self._command, name, self.url, arguments)

    def run(self, name: str, **arguments: Any) -> Any:
        """Run the scenario to its end and return its result."""
        with self.start(name, **arguments) as scenario:
            return scenario.result()
