"""`danube console`: the broker in a browser."""

from __future__ import annotations

import importlib.util
from typing import Final
from urllib.parse import urlsplit

import click

from pydanube.cli.options import examples
from pydanube.cli.output import fail
from pydanube.cli.synonyms import Command
from pydanube.model.addresses import host_port
from pydanube.runtime.environment import URL_VARIABLE

HTTP_PORT: Final = 8650


@click.command(
    cls=Command,
    epilog=examples(
        """
danube console                                                  for the broker of this machine
danube console --url http://a:8650,http://b:8650  whichever answers
danube console --host 0.0.0.0 --allowed-host console.example.com
"""
    ),
)
@click.option(
    "--url",
    envvar=URL_VARIABLE,
    default=f"http://127.0.0.1:{HTTP_PORT}",
    show_default=True,
    help="HTTP addresses of brokers, separated by commas. Of danube://HOST, HTTP is asked for at port 8650.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65_535), default=8651, show_default=True, help="0 chooses one.")
@click.option(
    "--allowed-host",
    "allowed_hosts",
    multiple=True,
    metavar="NAME",
    help="A name by which browsers reach the console, such as that of a proxy; may be repeated.",
)
@click.option("--ca", metavar="FILE", help="Certificates that sign those of the brokers.")
def console(url: str, host: str, port: int, allowed_hosts: tuple[str, ...], ca: str | None) -> None:
    """Show a broker in a browser.

    Prints one line on stdout when browsers may come: "danube console http://127.0.0.1:8651". It asks the REST API, so
    it runs anywhere that reaches the broker's HTTP port, and shows what the person who signs in may see; with
    authentication that takes an API key or a token. Put a proxy with TLS in front where it listens for others.
    """
    check_console_extra()
    from pydanube.console.server import ConsoleSettings, run

    addresses = [_http_address(one) for one in url.split(",") if one.strip()]
    try:
        run(
            ConsoleSettings(addresses, host, port, allowed_hosts, ca),
            lambda address: click.echo(f"danube console {address}"),
        )
    except OSError as error:
        fail(f"the console cannot listen on {host_port(host, port)}: {error.strerror or error}")


def check_console_extra() -> None:
    """End the command with the remedy if the console cannot run."""
    if missing := [name for name in ("httpx2", "jinja2") if importlib.util.find_spec(name) is None]:
        fail(f"the console needs {' and '.join(missing)}: pip install 'pydanube[console]'")


def _http_address(text: str) -> str:
    parts = urlsplit(text.strip() if "://" in text else f"http://{text.strip()}")
    if not parts.hostname:
        raise click.UsageError(f"{text!r} is not an address: write it as http://HOST:{HTTP_PORT}")
    if parts.scheme in ("http", "https"):
        return f"{parts.scheme}://{parts.netloc}"
    return f"http://{host_port(parts.hostname, HTTP_PORT)}"
