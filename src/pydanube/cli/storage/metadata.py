"""`danube metadata`: the metadata store of a broker that is stopped."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pydanube.cli.options import config_option, examples, json_option
from pydanube.cli.output import fail, fields, note, plural, show, size
from pydanube.cli.synonyms import Group

if TYPE_CHECKING:
    from pydanube.metadata.opening import MetadataPlace
    from pydanube.server.copying import MetadataCopied


@click.group(
    cls=Group,
    epilog=examples(
        """
danube metadata copy --from ./danube-data --to etcd://10.0.0.1,10.0.0.2,10.0.0.3/danube
"""
    ),
)
def metadata() -> None:
    """Move the metadata of a broker that is stopped."""


@metadata.command(
    "copy",
    epilog=examples(
        """
danube metadata copy --from ./danube-data --to etcd://10.0.0.1,10.0.0.2,10.0.0.3/danube
danube serve --name broker-1 --data-dir ./danube-data --metadata etcd://10.0.0.1,10.0.0.2,10.0.0.3/danube --storage-url s3://bucket/danube
danube metadata copy --from etcd://10.0.0.1/danube --to ./metadata.db                          back to a file
"""
    ),
)
@click.option("--from", "source", required=True, metavar="PLACE", help="A data directory, a metadata.db, or etcd://...")
@click.option("--to", "target", required=True, metavar="PLACE", help="A metadata.db that does not exist, or etcd://...")
@config_option
@json_option
def copy(source: str, target: str, path: Path | None) -> None:
    """Copy metadata to an empty place, from SQLite to etcd or back, and compare the copy with its source.

    Stop the broker first, and all brokers of a cluster. The source stays as it is; the data directory refuses it once
    the broker was started on the copy. A copy in a file is for one broker, the one that began the cluster: it is
    refused while partitions are in the logs of others. User, password and TLS of an etcd are those of the settings
    (metadata.user, DANUBE_METADATA_PASSWORD, ...).
    """
    from pydanube.runtime.clock import SystemClock
    from pydanube.server.copying import copy_metadata

    taken, given = _place(source, path), _place(target, path)
    if isinstance(taken, Path) and not taken.exists():
        fail(f"there is no metadata in {source}: name a data directory, its metadata.db, or an etcd://...")
    if isinstance(given, Path) and any(one.exists() for one in (given, given.with_suffix(".journal"))):
        fail(f"{given} exists: copy to a place where there is nothing")
    copied = asyncio.run(copy_metadata(taken, given, SystemClock()))
    show(copied, lambda: _show(copied, isinstance(given, Path)))


def _place(text: str, path: Path | None) -> MetadataPlace:
    """Return the place that is meant: an etcd, a file, or the file in a data directory."""
    from pydanube.settings import Settings

    if "://" in text:
        return Settings.load(path, os.environ, {"metadata.url": text}).metadata_place
    return Path(text) / "metadata.db" if Path(text).is_dir() else Path(text)


def _show(copied: MetadataCopied, is_file: bool) -> None:
    fields(
        [
            ("from", f"{copied.source}, store {copied.succeeds} at revision {copied.revision}"),
            ("to", f"{copied.target}, store {copied.store_id}"),
            ("copied", f"{plural(copied.keys, 'key')}, {size(copied.bytes)}, and compared"),
        ]
    )
    if is_file:
        how = f"start broker {copied.broker!r} on its data directory, with DANUBE_METADATA_PATH={copied.target}"
    else:
        where = f"--metadata {copied.target} and a --storage-url"
        how = f"start the broker on its data directory, with --name {copied.broker}, {where}"
    note(f"{how}; do not start it on {copied.source} any more")
