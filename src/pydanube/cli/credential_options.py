"""The options --profile and --token-file, which every command that talks to a broker has; they may stand before the
command too.

`client.profiles` says which of them counts beside the environment.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from pydanube.model.errors import DanubeError

from .tls_options import show_tls_to_children, use_profile_files

if TYPE_CHECKING:
    from pydanube.client.profiles import Profile

_META: Final = "danube.credentials"
_URL_META: Final = "danube.url-given"
_VARIABLES: Final = {"token": "DANUBE_TOKEN", "api_key": "DANUBE_API_KEY", "token_file": "DANUBE_TOKEN_FILE"}


def credential_options(command: Any) -> Any:
    """Add --profile and --token-file to a command; neither is a parameter of its function."""
    file = click.option(
        "--token-file",
        type=click.Path(path_type=Path, dir_okay=False),
        is_eager=True,
        expose_value=False,
        callback=_remember,
        help="A file with the API key or token to show.  [env var: DANUBE_TOKEN_FILE, DANUBE_TOKEN, DANUBE_API_KEY]",
    )
    profile = click.option(
        "--profile",
        cls=_ProfileOption,
        metavar="NAME",
        is_eager=True,
        expose_value=False,
        callback=_remember,
        help="Broker and credentials of 'danube profile add'.  [env var: DANUBE_PROFILE]",
    )
    return profile(file(command))


class _ProfileOption(click.Option):
    """--profile, which is read before other options and remembers whether --url is beside it."""

    def handle_parse_result(self, ctx: click.Context, opts: Any, args: list[str]) -> Any:
        if opts.get("url") is not None:
            ctx.meta[_URL_META] = True
        return super().handle_parse_result(ctx, opts, args)


def default_namespace(context: click.Context) -> str:
    """Return the namespace of topics that are named without one: that of the profile that counts, or `default`."""
    from pydanube.model.names import DEFAULT_NAMESPACE

    named = context.meta.get(_META, {}).get("profile")
    if named is None and context.meta.get(_URL_META):
        return DEFAULT_NAMESPACE
    try:
        profile = _profile(named, None)
    except DanubeError as error:
        raise click.UsageError(error.message, context) from None
    return (profile.namespace if profile is not None else "") or DEFAULT_NAMESPACE


def _remember(context: click.Context, parameter: click.Parameter, value: object) -> object:
    if value is not None:
        context.meta.setdefault(_META, {})[str(parameter.name)] = value
    return value


def choose_broker(context: click.Context, url: str | None, *, named_only: bool = False) -> str | None:
    """Return where the broker is, and keep the credentials for `chosen_credentials`.

    url             that of the command line; None: none was given
    named_only      whether only a profile that --profile names counts: the command finds a broker in another way

    The options have been read before. Returns None if nothing names a broker but the environment, or nothing does.
    """
    given: dict[str, Any] = context.meta.setdefault(_META, {})
    try:
        named = given.get("profile")
        profile = None if named is None and named_only else _profile(named, url)
    except DanubeError as error:
        raise click.UsageError(error.message, context) from None
    if profile is not None:
        use_profile_files(context, profile.tls_files)
    if (file := given.get("token_file")) is not None:
        given["chosen"] = {"token_file": file}
    elif profile is not None:
        given["chosen"] = profile.credentials_for(named)
    return url if url is not None or profile is None else profile.url


def _profile(named: str | None, url: str | None) -> Profile | None:
    from pydanube.client.profiles import choose_profile  # imported late: `danube --help` has to start at once

    return choose_profile(named, url)


def chosen_credentials() -> dict[str, Any]:
    """Return the credentials of the command that runs, as `pydanube.connect` takes them. Empty: those of the
    environment."""
    context = click.get_current_context(silent=True)
    return {} if context is None else dict(context.meta.get(_META, {}).get("chosen", {}))


def show_to_children() -> None:
    """Put the credentials of the command, and its options of TLS, into the environment, for Spark and other processes
    that it starts."""
    show_tls_to_children()
    chosen = chosen_credentials()
    if chosen:
        for variable in _VARIABLES.values():
            os.environ.pop(variable, None)
    for name, value in chosen.items():
        os.environ[_VARIABLES[name]] = str(value)
