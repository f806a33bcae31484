"""Definitions of schemas from files, and the options that name them."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import click

from pydanube.cli.options import REFERENCE, VERSION
from pydanube.cli.values import SchemaName
from pydanube.model.errors import Invalid
from pydanube.model.limits import SCHEMA_BYTES_MAX
from pydanube.model.schemas import SchemaDefinition, SchemaFormat, SchemaReference

if TYPE_CHECKING:
    from pydanube.client import Client

FORMATS: Final = click.Choice([str(one) for one in SchemaFormat])
SUFFIXES: Final = {
    ".avsc": SchemaFormat.AVRO,
    ".json": SchemaFormat.JSON,
    ".jsonschema": SchemaFormat.JSON,
    ".proto": SchemaFormat.PROTOBUF,
}
"""The format of a file whose name ends so."""
DESCRIPTORS: Final = frozenset({".binpb", ".desc", ".fds", ".pb", ".protoset"})
"""Files with a descriptor set of protobuf, in binary."""
WITHOUT_FILE: Final = frozenset({SchemaFormat.STRING, SchemaFormat.NUMBER, SchemaFormat.BYTES})

reference_option = click.option(
    "--reference",
    "references",
    type=REFERENCE,
    multiple=True,
    metavar="NAME=SUBJECT:VERSION",
    help="What a name in the definition means; may be repeated.",
)

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


def definition_options(command: CommandT) -> CommandT:
    """Add the file of a definition, its format and its references; `read_definition` makes a definition of them."""
    for option in reversed(_DEFINITION):
        command = option(command)
    return command


_DEFINITION: Final = (
    click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True), required=False),
    click.option("--format", "format_", type=FORMATS, help="[default: by the name: .avsc, .json, .proto]"),
    reference_option,
)


def read_definition(file: str | None, format_: str | None) -> SchemaDefinition:
    """Read a definition without its references. FILE `-` is stdin. Raises UsageError if the format is not known."""
    suffix = Path(file or "").suffix.lower()
    is_descriptor = suffix in DESCRIPTORS
    kind = SchemaFormat.parse(format_) if format_ else SchemaFormat.PROTOBUF if is_descriptor else SUFFIXES.get(suffix)
    if kind is None:
        what = "a definition from stdin" if file == "-" else f"{file}" if file else "a definition without a file"
        raise click.UsageError(f"{what} needs a --format: {', '.join(str(one) for one in SchemaFormat)}")
    if file is None:
        if kind not in WITHOUT_FILE:
            raise click.UsageError(f"a definition of the format {kind} needs a FILE; - is stdin")
        return SchemaDefinition(kind, "")
    with click.open_file(file, "rb") as stream:
        content = stream.read(SCHEMA_BYTES_MAX + 1)
    if len(content) > SCHEMA_BYTES_MAX:
        raise Invalid(f"{file} is larger than a schema may be, which is {SCHEMA_BYTES_MAX} bytes")
    if is_descriptor:
        return SchemaDefinition(kind, base64.b64encode(content).decode())
    try:
        return SchemaDefinition(kind, content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise Invalid(f"{file} is not text in UTF-8: {error.reason} at byte {error.start}") from None


async def with_references(
    client: Client, definition: SchemaDefinition, references: Sequence[tuple[str, SchemaName]]
) -> SchemaDefinition:
    """Return the definition with its references; a reference without a version is to the latest."""
    made = []
    for name, target in references:
        version = target.version or (await client.schemas.get(target.subject)).version
        made.append(SchemaReference(name, target.subject, version))
    return SchemaDefinition(definition.format, definition.text, tuple(made))


def version_options(default: str) -> Callable[[CommandT], CommandT]:
    """Add --version and --latest; `chosen_version` makes one of them. `default` says in the help what neither means."""

    def add(command: CommandT) -> CommandT:
        version = click.option("--version", type=VERSION, help=f"This version.  [default: {default}]")
        return version(click.option("--latest", is_flag=True, help="The latest version.")(command))

    return add


def chosen_version(version: int | None, latest: bool) -> int | Literal["latest"] | None:
    """Return the version that was asked for, None if nothing was."""
    if version and latest:
        raise click.UsageError("--version and --latest exclude each other")
    return "latest" if latest or version == 0 else version
