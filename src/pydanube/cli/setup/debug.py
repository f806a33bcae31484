"""`danube debug bundle`: one file with what a report of a problem needs.

Nothing in it is a secret: settings are shown as `danube config show` shows them, and of the environment only names.
What cannot be had (a broker that does not answer) is named in the bundle, and does not stop it.
"""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from zipfile import ZIP_DEFLATED, ZipFile

import click

from pydanube.cli.connecting import with_client
from pydanube.cli.credential_options import chosen_credentials
from pydanube.cli.options import config_option, examples, json_option, url_option
from pydanube.cli.output import note, show, size, to_json
from pydanube.cli.setup.config import load
from pydanube.cli.synonyms import Group
from pydanube.cli.tls_options import tls_options
from pydanube.model.errors import DanubeError
from pydanube.model.text import one_line
from pydanube.version import __version__

if TYPE_CHECKING:
    from pydanube.client import Client

TOPICS_MAX: Final = 1_000
LOG_LINES: Final = 2_000
SECONDS_MAX: Final = 20
METRICS_BYTES_MAX: Final = 64 << 20
UNIT: Final = "danube"
"""The unit, and the namespace of journald, of deploy/danube.service."""


@click.group(cls=Group, epilog=examples("danube debug bundle\ndanube debug bundle --log broker.log"))
def debug() -> None:
    """Collect what a report of a problem needs."""


@debug.command(
    "bundle",
    epilog=examples(
        """
danube debug bundle                                    writes danube-debug.zip
danube debug bundle report.zip --log /var/log/danube.log --config /etc/danube/danube.toml
danube serve 2> broker.log & danube debug bundle --log broker.log
"""
    ),
)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), default="danube-debug.zip")
@click.option(
    "--log",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="The log of the broker.  [default: that of the unit danube, if systemd has it]",
)
@click.option("--lines", type=click.IntRange(1, 1_000_000), default=LOG_LINES, show_default=True, help="Of the log.")
@click.option("--force", is_flag=True, help="Replace the file if it is there.")
@config_option
@url_option
@json_option
def bundle(file: Path, log: Path | None, lines: int, force: bool, path: Path | None, url: str) -> None:
    """Write versions, settings, state, metrics and the end of the log to one file.

    Secrets in settings are left out. Names of topics, subscriptions and principals, and addresses, are in it, but no
    payload of a message; look at it before you send it to somebody.
    """
    if file.exists() and not force:
        raise click.UsageError(f"{file} is there already: add --force to replace it, or name another")
    from pydanube.cli.setup.doctor_checks import check_extra, extras

    parts = _Parts()
    parts.add("versions.json", lambda: to_json(_versions()))
    parts.add("settings.json", lambda: to_json(_settings(path)))
    parts.add("extras.json", lambda: to_json([check_extra(*one) for one in extras().items()]))
    parts.add("status.json", lambda: to_json(_status(url)))
    parts.add("metrics.txt", lambda: _metrics(url))
    parts.add("log.txt", lambda: _log(log, lines))
    parts.write(file)
    told: dict[str, Any] = {
        "file": str(file),
        "bytes": file.stat().st_size,
        "files": sorted(parts.texts),
        "missing": parts.missing,
    }
    show(told, lambda: click.echo(f"wrote {file} ({size(told['bytes'])}): {', '.join(parts.texts)}"))
    for name, reason in parts.missing.items():
        note(f"without {name}: {reason}")


class _Parts:
    """The texts of a bundle by name, and why others are missing."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.missing: dict[str, str] = {}

    def add(self, name: str, collect: Callable[[], str]) -> None:
        try:
            self.texts[name] = collect()
        except (DanubeError, OSError, click.ClickException, subprocess.SubprocessError) as error:
            self.missing[name] = one_line(error)

    def write(self, file: Path) -> None:
        """Write a file that only its owner can read."""
        contents = {**self.texts, "missing.json": to_json(self.missing)}
        file.unlink(missing_ok=True)
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as opened, ZipFile(opened, "w", ZIP_DEFLATED) as archive:
            for name, text in contents.items():
                archive.writestr(name, text)


def _versions() -> dict[str, Any]:
    return {
        "danube": __version__,
        "python": sys.version,
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
        "packages": {one.name: one.version for one in sorted(distributions(), key=lambda one: one.name)},
        "variables": sorted(name for name in os.environ if name.startswith(("DANUBE_", "PYTHON"))),
    }


def _settings(path: Path | None) -> list[dict[str, Any]]:
    described = load(path).describe()
    return [{"key": one.key, "value": one.value, "source": one.source} for one in described]


def _status(url: str) -> dict[str, Any]:
    """Ask the broker what it is, and what it has."""
    from pydanube.model.json_values import as_json

    async def ask(client: Client) -> dict[str, Any]:
        page = await client.topic_page(limit=TOPICS_MAX)
        return {
            "broker": as_json(await client.describe_broker()),
            "cluster": as_json(await client.describe_cluster()),
            "topics": as_json(page.topics),
            "more_topics": bool(page.next),
        }

    return with_client(url, ask)


def _metrics(url: str) -> str:
    """Return the metrics of the broker, which its HTTP listener has."""

    async def ask(client: Client) -> str:
        from pydanube.client.connection.credentials import ClientCredentials
        from pydanube.client.connection.servers import BrokerAddress, parse_servers
        from pydanube.runtime.environment import client_tls
        from pydanube.runtime.http_get import NotHttp, http_get
        from pydanube.runtime.tls import client_context

        address = (await client.describe_broker()).addresses.http
        if not address:
            raise OSError("the broker has no HTTP listener")
        token = await ClientCredentials.choose(**chosen_credentials()).token()
        tls = client_context(client_tls(**tls_options())) if parse_servers(url).is_encrypted else None
        where = BrokerAddress.parse(address)
        try:
            async with asyncio.timeout(SECONDS_MAX):
                answer = await http_get(where.host, where.port, "/metrics", METRICS_BYTES_MAX, token, tls)
        except NotHttp as error:
            raise OSError(f"{address} did not answer as HTTP: {error}") from None
        if answer.status != 200:
            raise OSError(f"{address} answered {answer.status}")
        return answer.body.decode()

    return with_client(url, ask)


def _log(file: Path | None, lines: int) -> str:
    if file is not None:
        with file.open(errors="replace") as opened:
            return "".join(deque(opened, lines))
    journal = shutil.which("journalctl")
    if journal is None:
        raise OSError("name the log of the broker with --log")
    command = [journal, f"--namespace={UNIT}", f"--unit={UNIT}", f"--lines={lines}", "--no-pager", "--quiet"]
    told = subprocess.run(  # noqa: S603 (a fixed command)
        command, capture_output=True, text=True, errors="replace", timeout=SECONDS_MAX, check=True
    )
    if not told.stdout:
        raise OSError(f"systemd has no log of {UNIT}.service: name the log of the broker with --log")
    return told.stdout
