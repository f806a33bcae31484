"""The options of TLS, which every command that talks to a broker has; they may stand before the command too."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

import click

from pydanube.runtime.environment import (
    CA_FILE_VARIABLE,
    CERT_FILE_VARIABLE,
    KEY_FILE_VARIABLE,
    SKIP_VERIFY_VARIABLE,
)

_TLS_META: Final = "danube.tls"
_PROFILE_META: Final = "danube.tls-of-profile"
_VARIABLES: Final = {
    "tls_ca_file": CA_FILE_VARIABLE,
    "tls_cert_file": CERT_FILE_VARIABLE,
    "tls_key_file": KEY_FILE_VARIABLE,
    "tls_insecure_skip_verify": SKIP_VERIFY_VARIABLE,
}


def _remember_tls(context: click.Context, parameter: click.Parameter, value: object) -> object:
    """Keep an option of TLS for `tls_options`. Given before the command, it applies to every command."""
    root = context.find_root()
    if value is not None and value is not False:
        root.meta.setdefault(_TLS_META, {})[str(parameter.name)] = value
    return value


def tls_options() -> dict[str, Any]:
    """Return the options of TLS of the command that runs, and else those of its profile, as `pydanube.connect` takes
    them. What is not there comes from the environment."""
    context = click.get_current_context(silent=True)
    if context is None:
        return {}
    given, kept = (context.find_root().meta.get(name, {}) for name in (_TLS_META, _PROFILE_META))
    if not kept:
        return dict(given)
    from pydanube.client.profiles import with_tls_of_profile

    return with_tls_of_profile(given, kept)


def use_profile_files(context: click.Context, files: Mapping[str, str]) -> None:
    """Use the files of a profile, by the names of `client.profiles.TLS_FILES`, where no option names others."""
    context.find_root().meta[_PROFILE_META] = dict(files)


def show_tls_to_children() -> None:
    """Put the options of TLS into the environment, for processes that the command starts."""
    for name, value in tls_options().items():
        os.environ[_VARIABLES[name]] = "true" if value is True else str(value)


def tls_file_options(command: Any) -> Any:
    """Add the options of TLS to a command; none of them is a parameter of its function."""
    for name, text in (
        ("--tls-key-file", "The private key (PEM) of --tls-cert-file.  [env var: DANUBE_TLS_CLIENT_KEY_FILE]"),
        (
            "--tls-cert-file",
            "The certificate (PEM) of this client, where brokers ask for one.  [env var: DANUBE_TLS_CLIENT_CERT_FILE]",
        ),
        (
            "--tls-ca-file",
            "Authorities (PEM) that a broker's certificate must come from.  [env var: DANUBE_TLS_CA_FILE]",
        ),
    ):
        path = click.Path(exists=True, dir_okay=False)
        command = click.option(name, type=path, expose_value=False, callback=_remember_tls, help=text)(command)
    skip = "Believe any server: whoever is in between can read everything.  [env var: DANUBE_TLS_INSECURE_SKIP_VERIFY]"
    return click.option(
        "--tls-insecure-skip-verify", is_flag=True, expose_value=False, callback=_remember_tls, help=skip
    )(command)


_SPARK_NAMES: Final = {
    "tls_ca_file": "tls.caFile",
    "tls_cert_file": "tls.certFile",
    "tls_key_file": "tls.keyFile",
    "tls_insecure_skip_verify": "tls.insecureSkipVerify",
}


def spark_tls_options() -> dict[str, str]:
    """Return the same as options of the Spark data source."""
    return {_SPARK_NAMES[name]: str(value).lower() if value is True else value for name, value in tls_options().items()}
