"""`danube certs create`: an authority, a broker's certificate and a client's, to try TLS out."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from pydanube.cli.options import examples
from pydanube.cli.synonyms import Group
from pydanube.model.errors import Refused


@click.group(cls=Group, epilog=examples("danube certs create --name broker.example"))
def certs() -> None:
    """Create certificates for development."""


@certs.command(
    epilog=examples(
        """
danube certs create > danube.toml                         for 127.0.0.1, ::1 and localhost, in ./danube-certs
danube certs create --directory certs --name broker.example --name 10.0.0.1
"""
    )
)
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("danube-certs"),
    show_default=True,
    help="Where the files go; none of them may exist.",
)
@click.option("--name", "names", multiple=True, metavar="NAME", help="Another host name or address of the broker.")
def create(directory: Path, names: tuple[str, ...]) -> None:
    """Create an authority, a certificate for brokers and one for clients, valid for a year.

    They are for development: the key of the authority lies beside them. Prints the settings of the broker as TOML, for
    `danube serve --config FILE`, and in comments what clients need. Needs the extra `auth`.
    """
    try:
        from pydanube.cli.security.certificate_files import make_certificates
    except ModuleNotFoundError:
        raise Refused("certificates are made with `cryptography`: pip install 'pydanube[auth]'") from None
    from pydanube.runtime.clock import SystemClock

    files = make_certificates(("localhost", "127.0.0.1", "::1", *names), SystemClock().now_us())
    existing = [name for name in files if (directory / name).exists()]
    if existing:
        raise Refused(
            f"{directory / existing[0]} exists and is not overwritten: choose another --directory, or remove it"
        )
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        _write_new(directory / name, content)
    click.echo(_settings(directory.absolute()))


def _write_new(path: Path, content: bytes) -> None:
    """Create a file, keys for their owner only. Raises FileExistsError."""
    mode = 0o600 if path.name.endswith("-key.pem") else 0o644
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)


def _settings(directory: Path) -> str:
    """Return the settings of a broker with these certificates as TOML, and how clients reach it as comments."""
    return f"""\
[tls]
cert_file = {json.dumps(f"{directory}/broker.pem")}
key_file = {json.dumps(f"{directory}/broker-key.pem")}
client_ca_file = {json.dumps(f"{directory}/ca.pem")}
# client_certificates = "required"

# Clients connect to danubes://HOST:PORT, or https://HOST:PORT, with
#   --tls-ca-file {directory}/ca.pem
# and where client certificates are required also with
#   --tls-cert-file {directory}/client.pem --tls-key-file {directory}/client-key.pem"""
