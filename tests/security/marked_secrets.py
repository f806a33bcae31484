"""Secrets that are easy to find again, and the search for them in everything that a broker and its commands leave.

A secret is given in as many forms as it may appear in: as it is, in Base64, as a URL has it. To have a further place
searched, add a function to `PLACES`: it returns what lies there, by name.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

MARK = "MarkedSecret"


def marked(what: str) -> str:
    """A secret that fits wherever one is taken: letters and digits, longer than 32 bytes."""
    return f"{MARK}Of{what}0123456789abcdef0123456789abcdef"


@dataclass
class World:
    """A broker process, what was given to it as secret, and what its callers were told."""

    data_dir: Path
    log: Path
    url: str
    http_port: int
    grpc_ports: tuple[int, ...]
    """Data and admin."""
    context: ssl.SSLContext
    environment: Mapping[str, str]
    """The one of the broker, with all its secrets."""
    secrets: dict[str, str] = field(default_factory=dict)
    """By what they are."""
    told: dict[str, bytes] = field(default_factory=dict)
    """Answers, errors and output, by what was asked."""
    allowed: dict[str, set[str]] = field(default_factory=dict)
    """By the name of a place: the secrets that belong there."""

    asked: int = 0

    def tell(self, name: str, *texts: object) -> None:
        self.told[name] = self.told.get(name, b"") + b"\n".join(_bytes(one) for one in texts)

    def request(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
        """Ask the HTTP listener, and keep everything it answers."""
        self.asked += 1  # an address that has not failed yet is answered at once
        source = (f"127.0.{1 + self.asked // 250}.{1 + self.asked % 250}", 0)
        connection = http.client.HTTPSConnection(
            "127.0.0.1", self.http_port, timeout=60, context=self.context, source_address=source
        )
        try:
            connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        self.tell(f"{method} {path}", str(answer.getheaders()), content)
        return answer.status, content

    def danube(
        self, *arguments: str, stdin: str = "", keeps_broker_settings: bool = False, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command and keep its output; the arguments of the processes that it starts are kept too."""
        base = self.environment if keeps_broker_settings else without_danube(self.environment)
        seen: set[bytes] = set()
        command = [sys.executable, "-m", "pydanube.cli", *arguments]
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**base, **variables},
        ) as process:
            while True:
                try:
                    out, err = process.communicate(stdin, timeout=0.05)
                    break
                except subprocess.TimeoutExpired:
                    arguments_of_family(process.pid, seen)
                    stdin = ""
        done = subprocess.CompletedProcess(command, process.returncode, out, err)
        self.tell(f"danube {' '.join(arguments)}", done.stdout, done.stderr)
        self.tell("arguments of processes", *sorted(seen))
        return done


def without_danube(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without what is of the broker; the home of the profiles stays that of the test."""
    kept = "DANUBE_CONFIG_HOME"
    return {name: value for name, value in environment.items() if name == kept or not name.startswith("DANUBE_")}


def _bytes(one: object) -> bytes:
    return one if isinstance(one, bytes) else str(one).encode(errors="replace")


def arguments_of_family(pid: int, seen: set[bytes]) -> None:
    """Collect the arguments of a process and of all that it started, as every user of the machine sees them."""
    try:
        seen.add(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" "))
        children = [
            int(one) for task in Path(f"/proc/{pid}/task").iterdir() for one in (task / "children").read_text().split()
        ]
    except OSError:
        return  # it has ended
    for child in children:
        arguments_of_family(child, seen)


# -- the places --------------------------------------------------------------------------------------------------------


def _logs(world: World) -> dict[str, bytes]:
    return {"log": world.log.read_bytes()}


def _told(world: World) -> dict[str, bytes]:
    return dict(world.told)


def _stored(world: World) -> dict[str, bytes]:
    found = [one for one in world.data_dir.rglob("*") if one.is_file()]
    return {f"file {one.relative_to(world.data_dir)}": one.read_bytes() for one in found}


PLACES: list[Callable[[World], dict[str, bytes]]] = [_logs, _told, _stored]


def forms(secret: str) -> list[bytes]:
    """How a secret may appear. Of one that is shorter in Base64 by its neighbours, the middle is enough."""
    assert len(secret) >= 20, "a short one is found by chance"
    encoded = [base64.b64encode(b"x" * shift + secret.encode()).decode()[4:-4] for shift in range(3)]
    return [one.encode() for one in (secret, quote(secret, safe=""), json.dumps(secret)[1:-1], *encoded)]


def leaks(world: World) -> list[str]:
    """Return every place that holds a secret which does not belong there."""
    found = []
    for place in PLACES:
        for name, content in place(world).items():
            for what, secret in world.secrets.items():
                if what not in world.allowed.get(name, ()) and any(one in content for one in forms(secret)):
                    found.append(f"{what} in {name}: ...{_around(content, secret)}")
    return found


def _around(content: bytes, secret: str) -> str:
    at = content.find(secret.encode())
    return content[max(0, at - 60) : at + 10].decode(errors="replace") if at >= 0 else "(encoded)"
