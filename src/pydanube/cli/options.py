"""Options and argument types that several commands share. Text that cannot be parsed is a usage error, exit code 2."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from pydanube.cli import output, values
from pydanube.cli.messages import format_strings as message_format
from pydanube.model.errors import Invalid
from pydanube.model.names import TopicName, parse_namespace, parse_subscription
from pydanube.model.schemas import parse_subject
from pydanube.runtime.environment import DEFAULT_URL, URL_VARIABLE

from .credential_options import choose_broker, credential_options, default_namespace
from .standard_streams import is_terminal
from .tls_options import tls_file_options

if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]  # generic only in the later releases of click that we allow
else:
    _ParamType = click.ParamType


class Parsed(_ParamType):
    """A parameter type that uses a parser of the model and shows its error message unchanged."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except Invalid as error:
            self.fail(error.message, param, ctx)


class Topic(Parsed):
    """A topic's name: full, or without a namespace, which is then that of the profile."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and value and "/" not in value and ctx is not None:
            value = f"/{default_namespace(ctx)}/{value}"
        return super().convert(value, param, ctx)


def _attribute(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise Invalid(f"{text!r} is not an attribute: write it as NAME=VALUE, for example -a region=eu")
    return name, value


def _store_option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise Invalid("an option of the store is written as NAME=VALUE, for example --option region=eu-central-1")
    return name, value


STORE_OPTION: Final = Parsed("name=value", _store_option)
TOPIC: Final = Topic("topic", TopicName.parse)
NAMESPACE: Final = Parsed("namespace", parse_namespace)
SUBSCRIPTION: Final = Parsed("subscription", parse_subscription)
POSITION: Final = Parsed("position", values.position)
ATTRIBUTE: Final = Parsed("name=value", _attribute)
PLACE: Final = Parsed("partition:offset", values.place)
BYTES: Final = Parsed("size", values.byte_count)
DURATION: Final = Parsed("seconds", values.duration)
DELIMITER: Final = Parsed("text", message_format.delimiter)
MOMENT: Final = Parsed("time", values.moment)
SUBJECT: Final = Parsed("subject", parse_subject)
SCHEMA: Final = Parsed("subject:version", values.SchemaName.parse)
REFERENCE: Final = Parsed("name=subject:version", values.schema_reference)
VERSION: Final = Parsed("version", values.schema_version)
POLICY: Final = Parsed("name=value", values.policy)
POLICY_NAME: Final = Parsed("name", values.policy_name)
ACK_LEVEL: Final = click.Choice(["durable", "stored", "written", "memory"])
SUBSCRIPTION_TYPE: Final = click.Choice(["exclusive", "shared", "failover", "key-shared"])
COMPRESSION: Final = click.Choice(["none", "lz4", "zstd"])


def _check_url(
    context: click.Context, _parameter: click.Parameter, url: str | None, named_only: bool = False
) -> str | None:
    """Choose the broker, and check its URL before connecting. `danube --url URL COMMAND` applies if COMMAND has no
    --url, then --profile and what `client.profiles` says."""
    from pydanube.client.connection.servers import parse_servers

    is_given = context.get_parameter_source("url") is click.core.ParameterSource.COMMANDLINE
    named = url if is_given else context.find_root().params.get("url")
    url = choose_broker(context, named or None, named_only=named_only) or url
    try:
        if url is not None:
            parse_servers(url)
    except Invalid as error:
        raise click.BadParameter(error.message) from None
    return url


_plain_url_option = click.option(
    "--url",
    envvar=URL_VARIABLE,
    default=DEFAULT_URL,
    show_default=True,
    show_envvar=True,
    callback=_check_url,
    help="Where the broker is: danube://HOST:PORT, or http://HOST:PORT of its HTTP listener; danubes:// and https:// "
    "with TLS.",
)


def url_option(command: Any) -> Any:
    """Add to a command the options that tell where the broker is, as whom, and how connections are encrypted."""
    return _plain_url_option(credential_options(tls_file_options(command)))


def optional_url_option(command: Any) -> Any:
    """Add the same to a command that finds its broker in another way, if neither an option nor DANUBE_URL names it."""
    url = click.option(
        "--url",
        envvar=URL_VARIABLE,
        show_envvar=True,
        callback=partial(_check_url, named_only=True),
        help="Where the broker is.  [default: what the app says]",
    )
    return url(credential_options(tls_file_options(command)))


def json_option_with(text: str) -> Callable[[Any], Any]:
    """Return the option --json with a help text of its own; `output.show` and `output.wants_json` read it."""
    return click.option("--json", is_flag=True, expose_value=False, callback=_remember_json, help=text)


def _remember_json(context: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    context.meta[output.JSON] = wanted


json_option = json_option_with("Print JSON for scripts instead of a table.")


def broker_options(command: Any) -> Any:
    """Add to a command the options of most that ask a broker: those of `url_option`, and --json."""
    return url_option(json_option(command))


config_option = click.option(
    "--config",
    "path",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    envvar="DANUBE_CONFIG",
    show_envvar=True,
    help="A TOML file with settings.",
)
expected_option = click.option(
    "--expected",
    default="",
    metavar="VERSION",
    help="Only if it still has this version, as --json shows it.",
)
yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask.")


def examples(text: str) -> str:
    """Return an epilog with example commands whose line breaks are kept."""
    lines = [f"  {line}" if line else "" for line in text.strip("\n").splitlines()]
    return "\b\nExamples:\n" + "\n".join(lines)


def confirm(question: str, yes: bool, *, verb: str = "delete", not_done: str = "not deleted") -> None:
    """Ask the user before data is lost; without a terminal, require --yes."""
    if yes:
        return
    if not is_terminal(sys.stdin):
        raise click.UsageError(f"refusing to {verb} without being asked: add --yes")
    if not click.confirm(question, err=True):
        raise click.ClickException(not_done)
