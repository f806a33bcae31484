"""A broker as a reader of the documentation starts it: `danube serve`, as a process, on a directory of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PORTS = ("--port=0", "--grpc-port=0", "--admin-port=0", "--http-port=0")


@dataclass(frozen=True)
class Place:
    """Where a page or an example runs: a directory, a broker, and an environment in which `danube` is a command."""

    directory: Path
    address: str
    http_address: str
    environment: dict[str, str]


@contextmanager
def served(directory: Path) -> Iterator[Place]:
    environment = environment_of(directory)
    with _serving(directory, environment) as (address, http_address):
        work = directory / "work"
        work.mkdir()
        yield Place(work, address, http_address, {**environment, "DANUBE_URL": f"danube://{address}"})


def environment_of(directory: Path) -> dict[str, str]:
    """Return the environment of this process, with this checkout as the package and `danube` on the path."""
    commands = directory / "bin"
    commands.mkdir()
    for name, arguments in {"danube": "-m pydanube.cli ", "python": ""}.items():
        command = commands / name
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments}"$@"\n')
        command.chmod(0o755)
    ours = {name: value for name, value in os.environ.items() if not name.startswith("DANUBE_")}
    path = f"{commands}{os.pathsep}{os.environ['PATH']}"
    return {**ours, "PATH": path, "PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1", "COLUMNS": "200"}


@contextmanager
def _serving(directory: Path, environment: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Start a broker process and yield its native and HTTP address; it is stopped at the end of the block."""
    command = [sys.executable, "-m", "pydanube.cli", "serve", "--data-dir", str(directory / "data"), *PORTS]
    with (directory / "broker.log").open("w+b") as log:
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            assert process.stdout is not None
            ready = process.stdout.readline()
            assert ready.startswith("danube ready "), (directory / "broker.log").read_text()
            yield ready.split("native=")[1].split()[0], ready.split("http=")[1].strip()
            process.terminate()
            assert process.wait(120) == 0, (directory / "broker.log").read_text()
        finally:
            process.kill()
            process.communicate()
