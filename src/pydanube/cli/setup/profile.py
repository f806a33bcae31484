"""`danube profile`: names for brokers and the credentials that they take."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from pydanube.cli.options import NAMESPACE, Parsed, examples, json_option
from pydanube.cli.output import emit_json, note, show, table, wants_json
from pydanube.cli.standard_streams import is_terminal
from pydanube.cli.synonyms import Group
from pydanube.client.profiles import Profile, Profiles, check_name
from pydanube.model.errors import Invalid

NAME = Parsed("name", check_name)


@click.group(
    cls=Group,
    epilog=examples(
        """
danube profile add prod --url danubes://broker.example:6655 --token-file /run/secrets/danube
danube profile add shop --url danube://127.0.0.1:6655 --namespace shop      orders means /shop/orders
danube profile use prod
danube --profile prod topics list
"""
    ),
)
def profile() -> None:
    """Name brokers and their credentials, for --profile."""


def _from_stdin(_context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Return the secret on stdin. One on the command line is refused, and not repeated."""
    if value is None:
        return None
    name = parameter.opts[0]
    if value != "-":
        raise click.UsageError(
            f"a secret on the command line is in the history of the shell, and other users can see it: write {name} - "
            f"and give it on stdin, and replace the one that was given here"
        )
    if is_terminal(sys.stdin):
        return str(click.prompt(name.lstrip("-"), hide_input=True, err=True))
    return sys.stdin.read()


@profile.command(
    epilog=examples(
        """
danube profile add local --url danube://127.0.0.1:6655
danube profile add prod --url danubes://broker.example:6655 --token-file /run/secrets/danube
danube profile add ops --url danubes://broker.example:6655 --tls-ca-file ca.pem --api-key - < admin-key
"""
    )
)
@click.argument("name", type=NAME)
@click.option("--url", required=True, help="Where the broker is, as in --url of other commands.")
@click.option(
    "--token-file", type=click.Path(path_type=Path, dir_okay=False), help="The file that holds a token or an API key."
)
@click.option("--token", metavar="-", callback=_from_stdin, help="Keep the token that is on stdin.")
@click.option("--api-key", metavar="-", callback=_from_stdin, help="Keep the API key that is on stdin.")
@click.option(
    "--tls-ca-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Authorities (PEM) that the broker's certificate must come from.",
)
@click.option(
    "--tls-cert-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="The certificate (PEM) to show, where the broker asks for one.",
)
@click.option(
    "--tls-key-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="The private key (PEM) of --tls-cert-file.",
)
@click.option("--namespace", type=NAMESPACE, help="Of topics named without one.  [default: default]")
@click.option("--replace", is_flag=True, help="Also if there is a profile of this name.")
@json_option
def add(
    name: str,
    url: str,
    token_file: Path | None,
    token: str | None,
    api_key: str | None,
    namespace: str | None,
    replace: bool,
    **tls: Path | None,
) -> None:
    """Add a profile: where a broker is, and how to show it who you are.

    Profiles are in ~/.config/danube/profiles.toml (XDG_CONFIG_HOME, DANUBE_CONFIG_HOME), which only you may be able to
    read. Files are read by each command; a token or an API key on stdin is kept in the file.
    """
    files = {key: str(path.absolute()) for key, path in tls.items() if path is not None}
    if ("tls_cert_file" in files) != ("tls_key_file" in files):
        raise click.UsageError("--tls-cert-file and --tls-key-file belong together: give both or none")
    profiles = Profiles.load()
    added = Profile(url, _checked(url, token_file, token, api_key), files, namespace or "")
    profiles.add(name, added, replace=replace)
    profiles.save()
    if wants_json():
        emit_json({"profile": name, "file": str(profiles.path)})
    else:
        click.echo(f"added profile {name}")
        note(f"'danube profile use {name}' makes commands use it, and --profile {name} one command")


def _checked(url: str, token_file: Path | None, token: str | None, api_key: str | None) -> dict[str, str]:
    """Return the credentials of a profile, after a check of them and of the URL."""
    from pydanube.client.connection.credentials import check_token
    from pydanube.client.connection.servers import parse_servers

    secrets = {"token": token, "api_key": api_key}
    credentials = {} if token_file is None else {"token_file": str(token_file.absolute())}
    try:
        parse_servers(url)
        credentials |= {key: check_token(value) for key, value in secrets.items() if value is not None}
    except Invalid as error:
        raise click.UsageError(error.message) from None
    if len(credentials) > 1:
        raise click.UsageError("--token-file, --token and --api-key exclude each other: give one of them")
    return credentials


@profile.command(epilog=examples("danube profile use prod"))
@click.argument("name", type=NAME)
@json_option
def use(name: str) -> None:
    """Make commands use a profile unless something else is said."""
    profiles = Profiles.load()
    profiles.use(name)
    profiles.save()
    show({"profile": name, "current": True}, f"commands use profile {name}")


@profile.command("list", epilog=examples("danube profile list\ndanube profile list --json"))
@json_option
def list_() -> None:
    """List the profiles, without their secrets."""
    profiles = Profiles.load()
    rows = [(name, profiles.by_name[name]) for name in sorted(profiles.by_name)]
    show(
        [
            {
                "profile": name,
                "url": one.url,
                "credentials": one.how,
                **one.tls_files,
                **({"namespace": one.namespace} if one.namespace else {}),
                "current": name == profiles.current,
            }
            for name, one in rows
        ],
        lambda: table(
            ["profile", "url", "credentials", "namespace", "in use"],
            [
                (name, one.url, one.how or "-", one.namespace or "-", "yes" if name == profiles.current else "")
                for name, one in rows
            ],
        ),
    )


@profile.command(epilog=examples("danube profile remove prod"))
@click.argument("name", type=NAME)
@json_option
def remove(name: str) -> None:
    """Remove a profile, and the credentials that it keeps."""
    profiles = Profiles.load()
    profiles.remove(name)
    profiles.save()
    show({"profile": name, "removed": True}, f"removed profile {name}")
