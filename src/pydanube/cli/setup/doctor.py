"""`danube doctor`: checks whether this machine is ready for a broker, and says how to fix what is not ok."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from pydanube.cli.options import config_option, examples, json_option
from pydanube.cli.output import fail, show, table
from pydanube.cli.setup import doctor_checks
from pydanube.cli.setup.config import load
from pydanube.cli.synonyms import Command

COLOURS: Final = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command(
    cls=Command,
    epilog=examples(
        """
danube doctor
danube doctor --data-dir /var/lib/danube     the disk the log will be on
danube doctor --config danube.toml           the disk, the ports and the object store of this file
danube doctor --json | jq '.findings[] | select(.status != "ok")'
"""
    ),
)
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the broker will keep its data.  [default: as configured, else ./danube-data]",
)
@click.option("--no-sync", is_flag=True, help="Do not measure how fast the disk syncs.")
@config_option
@json_option
def doctor(data_dir: Path | None, no_sync: bool, path: Path | None) -> None:
    """Check whether this machine is ready for a broker.

    Looks at Python, the platform, the disk and how fast it syncs, the ports, the object store (where storage.url names
    one), the extras and Java (for Spark only). What it looks at is what the configuration says: --config,
    the environment, defaults. A warning is something to know, a failure is something to fix; failures set exit code 1.
    """
    findings = list(_findings(data_dir, path, measure=not no_sync))
    failed = [finding for finding in findings if finding.status == "fail"]
    show({"ready": not failed, "findings": findings}, lambda: _show(findings))
    if failed:
        fail(f"{len(failed)} of {len(findings)} checks failed: {', '.join(finding.check for finding in failed)}")


def _findings(data_dir: Path | None, path: Path | None, *, measure: bool) -> Iterator[doctor_checks.Finding]:
    settings = load(path)
    log_directory = settings.log_directory if data_dir is None else data_dir
    yield doctor_checks.python_version()
    yield doctor_checks.system()
    yield from doctor_checks.disk(log_directory)
    if measure:
        yield doctor_checks.sync_speed(log_directory)
    server = settings.server
    ports = {"native": server.port}
    if settings.grpc.data:
        ports["grpc"] = server.grpc_port
    if settings.grpc.admin:
        ports["admin"] = server.admin_port
    if server.http:
        ports["http"] = server.http_port
    for listener, number in ports.items():
        yield doctor_checks.port(listener, number, server.host)
    storage = settings.storage
    if storage.url:
        yield from doctor_checks.object_store(storage.url, storage.options)
    for name, packages in doctor_checks.extras().items():
        yield doctor_checks.check_extra(name, packages)
    yield doctor_checks.java()


def _show(findings: list[doctor_checks.Finding]) -> None:
    from rich.text import Text

    table(
        ["status", "check", "found", "remedy"],
        [(Text(f.status, style=COLOURS[f.status]), f.check, f.detail, f.remedy) for f in findings],
    )
