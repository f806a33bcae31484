"""`danube storage restore`: creates a data directory from an object store, without a broker."""

from __future__ import annotations

import asyncio
import os
import tomllib
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pydanube.model.positions import datetime_from_micros

from .options import STORE_OPTION, config_option, examples, json_option
from .output import emit_json, fail, fields, note, plural, size

if TYPE_CHECKING:
    from pydanube.broker.tiering.disaster_recovery import Restored, RestoreProgress
    from pydanube.settings import Settings


@click.command(
    "restore",
    epilog=examples(
        """
danube storage restore --data-dir /var/lib/danube --store file:///mnt/danube-objects
danube storage restore --data-dir ./new --store s3://bucket/prefix --option region=eu-central-1
danube storage restore --config danube.toml                 directory and store as the broker has them
danube serve --data-dir /var/lib/danube                     afterwards, with the same store
"""
    ),
)
@click.option("--data-dir", type=click.Path(path_type=Path, file_okay=False), help="An empty directory, or none yet.")
@click.option("--store", "url", metavar="URL", help="The store that has the history.  [default: storage.url]")
@click.option(
    "--option", "options", type=STORE_OPTION, multiple=True, metavar="NAME=VALUE", help="A setting of the store."
)
@click.option(
    "--options-file",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Settings of the store, a TOML table of text: the place for credentials.",
)
@config_option
@json_option
def restore(
    data_dir: Path | None,
    url: str | None,
    options: tuple[tuple[str, str], ...],
    options_file: Path | None,
    path: Path | None,
    as_json: bool,
) -> None:
    """Make a data directory from an object store alone: topics, policies, subscriptions, schemas and history.

    For the day a disk is lost. It takes the newest manifest in the store and the segments that continue it. What was
    not uploaded when the disk went is lost. It only reads the store: the restored broker takes it over when it starts,
    and should the old one still run, it stops writing there. A directory that is not empty is refused.
    """
    from pydanube.settings import Settings

    given = {**read_store_options(options_file), **dict(options)}
    overrides = {"server.data_dir": data_dir, "storage.url": url, "storage.options": given or None}
    settings = Settings.load(path, os.environ, overrides)
    report = asyncio.run(_restore(settings))
    if as_json:
        emit_json(asdict(report))
    else:
        _show(report, settings)
    if report.missing:
        fail(f"{plural(len(report.missing), 'object')} of the catalog are not in the store; first {report.missing[0]}")


async def _restore(settings: Settings) -> Restored:
    from pydanube.restoring import restore as rebuild

    from .progress import Bar

    with Bar("restoring") as bar:

        def progress(state: RestoreProgress) -> None:
            bar(state.done, state.total)

        return await rebuild(settings, progress)


def _show(report: Restored, settings: Settings) -> None:
    fields(
        [
            ("cluster", report.cluster),
            ("manifest", f"{report.manifest}, written {datetime_from_micros(report.manifest_us).isoformat()}"),
            ("topics", f"{report.topics:,} with {plural(report.partitions, 'partition')}"),
            ("subscriptions", f"{report.subscriptions:,}"),
            ("schemas", plural(report.subjects, "subject")),
            ("history", f"{plural(report.messages, 'message')}, {size(report.bytes)} in {report.segments:,} segments"),
            ("after the manifest", f"{plural(len(report.added), 'object')} continue it"),
            ("left out", plural(len(report.left_out), "object")),
        ]
    )
    if report.left_out:
        note("what was left out is deleted after a day and the grace period; --json lists it")
    for one in report.damaged_manifests:
        note(f"manifest {one} is damaged: an older one was taken")
    click.echo(f"restored; start it with 'danube serve --data-dir {settings.server.data_dir}' and the same store")


def read_store_options(path: Path | None) -> dict[str, str]:
    """Read the settings of a store from a TOML table of strings."""
    if path is None:
        return {}
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        fail(f"{path} is not TOML")
    wrong = [name for name, value in table.items() if not isinstance(value, str)]
    if wrong:
        fail(f"{path}: {wrong[0]} is not text")
    return table
