"""`danube serve`: reads settings from the command line, the environment and a file, then runs the broker."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import click

from pydanube.cli.options import config_option, examples
from pydanube.cli.output import fail
from pydanube.cli.standard_streams import write_in_background
from pydanube.cli.synonyms import Command

from .console import check_console_extra

PORT = click.IntRange(0, 65_535)


@click.command(
    cls=Command,
    epilog=examples(
        """
danube serve                                    data in ./danube-data, on 127.0.0.1:6655
danube serve --data-dir /var/lib/danube
danube serve --port 0                           any free port; the readiness line says which
danube serve --host 0.0.0.0 --config danube.toml
danube serve --name a --metadata etcd://10.0.0.1,10.0.0.2,10.0.0.3/danube --storage-url s3://bucket/danube
DANUBE_LOGGING_LEVEL=debug danube serve         'danube config show' lists every setting
"""
    ),
)
@click.option(
    "--data-dir", type=click.Path(path_type=Path, file_okay=False), help="Where data is kept.  [default: ./danube-data]"
)
@click.option("--metadata", metavar="URL", help="An etcd for the metadata: etcd://host:2379,host:2379/prefix.")
@click.option("--storage-url", metavar="URL", help="Where history goes; brokers of one etcd share it.")
@click.option("--name", help="The name of this broker, unique in its cluster.  [default: broker-1]")
@click.option("--host", help="The address to listen on.  [default: 127.0.0.1]")
@click.option("--port", type=PORT, help="Native protocol; 0 chooses one.  [default: 6655]")
@click.option("--grpc-port", type=PORT, help="Danube gRPC API (extra `grpc`).  [default: 6650]")
@click.option("--admin-port", type=PORT, help="Danube gRPC admin API (extra `grpc`).  [default: 50051]")
@click.option("--http-port", type=PORT, help="HTTP: REST, metrics, health and the schema registry.  [default: 8650]")
@click.option("--no-grpc", is_flag=True, help="Open no listener for the Danube gRPC API.")
@click.option("--no-admin", is_flag=True, help="Open no listener for the Danube gRPC admin API.")
@click.option("--no-http", is_flag=True, help="Open no HTTP listener.")
@click.option("--console", "with_console", is_flag=True, help="Start 'danube console' too (extra `console`).")
@click.option("--console-port", type=PORT, default=8651, show_default=True, help="Its port; 0 chooses one.")
@config_option
def serve(
    data_dir: Path | None,
    metadata: str | None,
    storage_url: str | None,
    name: str | None,
    host: str | None,
    port: int | None,
    grpc_port: int | None,
    admin_port: int | None,
    http_port: int | None,
    no_grpc: bool,
    no_admin: bool,
    no_http: bool,
    with_console: bool,
    console_port: int,
    path: Path | None,
) -> None:
    """Start a broker.

    Needs no configuration. Prints one line on stdout when clients may come: "danube ready native=H:P grpc=H:P admin=H:P
    http=H:P", with port 0 for a listener that is off; logs go to stderr. SIGTERM, Ctrl-C and
    SIGHUP end it in order: what was published is answered and synced. A second SIGTERM or Ctrl-C ends it at once. Under
    nohup SIGHUP stays ignored. With TLS, a SIGHUP that is not the end of the terminal reads the certificates again.
    """
    write_in_background()
    from pydanube.runtime import telemetry
    from pydanube.server.server import run
    from pydanube.settings import Settings

    overrides = {
        "server.data_dir": data_dir,
        "metadata.url": metadata,
        "storage.url": storage_url,
        "server.name": name,
        "server.host": host,
        "server.port": port,
        "server.grpc_port": grpc_port,
        "server.admin_port": admin_port,
        "server.http_port": http_port,
        "server.http": False if no_http else None,
        "grpc.data": False if no_grpc else None,
        "grpc.admin": False if no_admin else None,
    }
    settings = Settings.load(path, os.environ, overrides)
    if with_console:
        check_console_extra()
        if not settings.server.http:
            raise click.UsageError("--console asks the HTTP listener, which is off (--no-http, server.http = false)")
    telemetry.configure(settings.logging.level, settings.logging.json)
    try:
        asyncio.run(run(settings, partial(_console, console_port)) if with_console else run(settings))
    except (asyncio.CancelledError, KeyboardInterrupt):
        fail("stopped at once; what was not acked may be lost, what was acked is not")
    except OSError as error:
        fail(_explain(error, settings.server.host, settings.server.data_dir))


@asynccontextmanager
async def _console(port: int, http_url: str) -> AsyncIterator[None]:
    """Run the console of a broker as a process of its own, which says on stdout where it is."""
    address = http_url.replace("0.0.0.0", "127.0.0.1").replace("[::]", "[::1]")  # noqa: S104 - not listened on
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pydanube.cli", "console", "--url", address, "--port", str(port)
    )
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


def _explain(error: OSError, host: str, data_dir: Path) -> str:
    """Return the message for a broker that could not start or could not shut down cleanly."""
    if isinstance(error, socket.gaierror):
        return f"host {host!r} is unknown here: use an address of this machine, for example --host 127.0.0.1"
    match error.errno:
        case errno.EADDRNOTAVAIL:
            return f"{host} is no address of this machine: use one that is, for example --host 127.0.0.1"
        case errno.ENOSPC:
            return f"disk full: free space where {data_dir} is, then start again; nothing that was acked is lost"
    return f"{(error.strerror or str(error)).lower()}: {error.filename or data_dir}"
