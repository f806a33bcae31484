"""`danube storage`: object stores.

`serve`, which offers a store over gRPC, and `restore`, which needs no broker, are here; the rest is in admin.py.
"""

from __future__ import annotations

import asyncio
import os
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pydanube.cli.options import STORE_OPTION, config_option, examples, json_option
from pydanube.cli.output import fail, fields, note, plural, show, size
from pydanube.cli.standard_streams import write_in_background
from pydanube.cli.storage.admin import gc, repair_slice, segments, upload, usage, verify
from pydanube.cli.synonyms import Group
from pydanube.model.addresses import host_port, is_loopback
from pydanube.model.positions import datetime_from_micros

if TYPE_CHECKING:
    from pydanube.broker.tiering.disaster_recovery import Restored, RestoreProgress
    from pydanube.settings import Settings

PORT = click.IntRange(0, 65_535)
DEFAULT_PORT = 6680


_setting_option = click.option(
    "--option", "options", type=STORE_OPTION, multiple=True, metavar="NAME=VALUE", help="A setting of the store."
)
_settings_file_option = click.option(
    "--options-file",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Settings of the store, a TOML table of text: the place for credentials.",
)


@click.group(
    cls=Group,
    epilog=examples(
        """
danube storage usage                            what is uploaded, what waits
danube storage segments /default/orders
danube storage verify                           read everything, report damage
danube storage upload                           before maintenance
danube storage gc --dry-run
danube storage restore --data-dir ./new --store s3://bucket/prefix
danube storage serve --store s3://bucket/prefix --options-file s3.toml --host 0.0.0.0
"""
    ),
)
def storage() -> None:
    """Serve and look after object stores.

    A broker moves history from its log to an object store, as segments. 'usage', 'segments', 'upload', 'verify', 'gc'
    and 'repair-slice' ask a broker; 'restore' makes a data directory from a store alone; 'serve' puts a store behind
    gRPC.
    """


for _command in (usage, segments, upload, verify, gc, repair_slice):
    storage.add_command(_command)


@storage.command(
    "serve",
    epilog=examples(
        """
danube storage serve --store file:///var/lib/danube-objects
danube storage serve --store memory:// --port 0         any free port; the readiness line says which
danube storage serve --store s3://bucket/prefix --option region=eu-central-1 --options-file secrets.toml
DANUBE_STORAGE_TOKEN=... danube storage serve --store file:///data --host 0.0.0.0 --tls-key k.pem --tls-cert c.pem
"""
    ),
)
@click.option("--store", "url", required=True, metavar="URL", help="The store: file:///DIR, s3://BUCKET/PREFIX, ...")
@_setting_option
@_settings_file_option
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=PORT, default=DEFAULT_PORT, show_default=True, help="0 chooses one.")
@click.option("--tls-key", type=click.Path(path_type=Path, dir_okay=False, exists=True), help="Private key, PEM.")
@click.option("--tls-cert", type=click.Path(path_type=Path, dir_okay=False, exists=True), help="Certificates, PEM.")
@click.option(
    "--token", envvar="DANUBE_STORAGE_TOKEN", default="", help="Asked of clients; better given by DANUBE_STORAGE_TOKEN."
)
def serve(
    url: str,
    options: tuple[tuple[str, str], ...],
    options_file: Path | None,
    host: str,
    port: int,
    tls_key: Path | None,
    tls_cert: Path | None,
    token: str,
) -> None:
    """Put a store behind gRPC: the storage plug-in.

    Brokers use it as grpc://HOST:PORT (grpcs:// with a certificate). Prints one line on stdout when they may come:
    "danube storage ready grpc=H:P store=URL"; logs go to stderr. SIGTERM and Ctrl-C end it in order.
    """
    from pydanube.runtime import telemetry

    if (tls_key is None) != (tls_cert is None):
        raise click.UsageError("--tls-key and --tls-cert are given together")
    settings = {**read_store_options(options_file), **dict(options)}
    certificate = (tls_key.read_bytes(), tls_cert.read_bytes()) if tls_key and tls_cert else None
    telemetry.configure("info")
    write_in_background()
    try:
        asyncio.run(_serve(url, settings, host, port, certificate, token))
    except OSError as error:
        fail(str(error))


async def _serve(
    url: str, settings: dict[str, str], host: str, port: int, certificate: tuple[bytes, bytes] | None, token: str
) -> None:
    from pydanube.runtime.objects import open_store
    from pydanube.runtime.signals import on_hangup, on_stop_signals
    from pydanube.runtime.telemetry import get_logger

    try:
        from pydanube.runtime.objects.plugin_server import PluginServer
    except ModuleNotFoundError as error:
        fail(f"the plug-in needs {error.name}, which is not installed: pip install 'pydanube[grpc]'")
    stop = asyncio.Event()
    on_stop_signals(asyncio.get_running_loop(), stop.set)
    on_hangup(asyncio.get_running_loop(), stop.set)
    async with await open_store(url, settings) as store:
        server = PluginServer(store, token=token)
        bound = await server.start(host, port, certificate=certificate)
        try:
            if not token and not is_loopback(host):
                advice = "anyone who reaches this address may read and delete every object: set DANUBE_STORAGE_TOKEN"
                get_logger(__name__).warning("storage.unprotected", host=host, advice=advice)
            click.echo(f"danube storage ready grpc={host_port(host, bound)} store={store.url}")
            await stop.wait()
        finally:
            await server.close()


@storage.command(
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
@_setting_option
@_settings_file_option
@config_option
@json_option
def restore(
    data_dir: Path | None,
    url: str | None,
    options: tuple[tuple[str, str], ...],
    options_file: Path | None,
    path: Path | None,
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
    show(report, lambda: _show(report, settings))
    if report.missing:
        fail(f"{plural(len(report.missing), 'object')} of the catalog are not in the store; first {report.missing[0]}")


async def _restore(settings: Settings) -> Restored:
    from pydanube.cli.progress_line import Bar
    from pydanube.server.restoring import restore as rebuild

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
