"""`danube schemas diff`: what changed between two versions, and whether each can read what the other wrote."""

from __future__ import annotations

import base64
import difflib
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from pydanube.cli.connecting import with_client
from pydanube.cli.options import SUBJECT, VERSION, broker_options, examples
from pydanube.cli.output import note, printable, shown_as_json
from pydanube.cli.schemas.files import FORMATS, read_definition, reference_option, with_references
from pydanube.cli.standard_streams import is_terminal
from pydanube.cli.synonyms import Command
from pydanube.cli.values import SchemaName
from pydanube.model.errors import Invalid, NotFound
from pydanube.model.schemas import Incompatibility, SchemaDefinition, SchemaFormat

if TYPE_CHECKING:
    from pydanube.client import Client

KEYS_FIRST: Final = ("$schema", "$id", "name", "namespace", "type", "doc")
"""In a normalised definition of Avro or JSON Schema, these come first, in this order; the others by name."""


@dataclass(frozen=True, slots=True)
class Compared:
    """Two definitions and their compatibility; None: it is not known, because the old version is deleted."""

    old: SchemaDefinition
    new: SchemaDefinition
    old_name: str
    new_name: str
    backward: list[Incompatibility] | None
    """Why the new one cannot read what was written with the old one."""
    forward: list[Incompatibility] | None
    """Why the old one cannot read what was written with the new one."""


@click.command(
    cls=Command,
    epilog=examples(
        """
danube schemas diff orders                                   the last two versions
danube schemas diff orders 1 3
danube schemas diff orders --file order-next.avsc            the latest version, and a file
danube schemas diff orders 1 2 --json | jq .forward
"""
    ),
)
@click.argument("subject", type=SUBJECT)
@click.argument("old", type=VERSION, required=False)
@click.argument("new", type=VERSION, required=False)
@click.option(
    "--file",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    help="The new definition, in place of a version; - is stdin.",
)
@click.option("--format", "format_", type=FORMATS, help="Of the file.  [default: the subject's]")
@reference_option
@broker_options
def diff(
    subject: str,
    old: int | None,
    new: int | None,
    file: str | None,
    format_: str | None,
    references: tuple[tuple[str, SchemaName], ...],
    url: str,
) -> None:
    """Show what changed between two versions of a subject.

    Prints a unified diff of both definitions in a normalised form, in which white space and the order of keys do not
    count, and says whether new readers can read old data (backward) and old readers new data (forward), with every
    reason why not. OLD defaults to the version before NEW, and NEW to the latest.
    """
    if file is not None and new is not None:
        raise click.UsageError("NEW and --file exclude each other: both are the new definition")
    if file is None and (format_ or references):
        raise click.UsageError("--format and --reference are about a --file")
    compared = with_client(url, lambda client: _compare(client, subject, old, new, file, format_, references))
    lines = list(_diff_lines(compared))
    if shown_as_json(
        {
            "subject": subject,
            "old": compared.old_name,
            "new": compared.new_name,
            "diff": lines,
            "backward": _verdict_json(compared.backward),
            "forward": _verdict_json(compared.forward),
        }
    ):
        return
    colors = {"+": "green", "-": "red", "@": "cyan"}
    terminal = is_terminal(sys.stdout)
    for line in lines:
        click.secho(printable(line), fg=colors.get(line[:1]) if terminal else None)
    if not lines:
        click.echo(f"{compared.old_name} and {compared.new_name} are the same")
    _show_verdict("backward", "new readers, old data", compared.backward)
    _show_verdict("forward", "old readers, new data", compared.forward)


async def _compare(
    client: Client,
    subject: str,
    old: int | None,
    new: int | None,
    file: str | None,
    format_: str | None,
    references: Sequence[tuple[str, SchemaName]],
) -> Compared:
    registry = client.schemas
    if file is not None:
        before = await registry.get(subject, old or "latest", deleted=True)
        definition = read_definition(file, format_ or str(before.definition.format))
        after, new_name = await with_references(client, definition, references), "stdin" if file == "-" else file
    else:
        newer = await registry.get(subject, new or "latest", deleted=True)
        after, new_name = newer.definition, f"{subject}:{newer.version}"
        before = await registry.get(subject, await _former(client, subject, old, newer.version), deleted=True)
    backward: list[Incompatibility] | None = None
    forward: list[Incompatibility] | None = None
    try:
        backward = await registry.check(subject, after, version=before.version, level="backward")
        forward = await registry.check(subject, after, version=before.version, level="forward")
    except NotFound:
        note(f"version {before.version} is deleted: whether the versions are compatible is not checked")
    return Compared(before.definition, after, f"{subject}:{before.version}", new_name, backward, forward)


async def _former(client: Client, subject: str, old: int | None, newer: int) -> int:
    """Return the old version: the one that is given, or the last before `newer`."""
    if old:
        return old
    earlier = [one for one in await client.schemas.versions(subject) if one < newer]
    if old is None and not earlier:
        raise Invalid(f"subject {subject!r} has no version before {newer}: there is nothing to compare it with")
    return earlier[-1] if old is None else (await client.schemas.get(subject)).version


def _verdict_json(reasons: list[Incompatibility] | None) -> dict[str, Any] | None:
    if reasons is None:
        return None
    return {"compatible": not reasons, "reasons": reasons}


def _show_verdict(level: str, meaning: str, reasons: list[Incompatibility] | None) -> None:
    if reasons is None:
        return
    click.echo(f"{level} ({meaning}): {'not compatible' if reasons else 'compatible'}")
    for one in reasons:
        click.echo(f"  {printable(f'{one.path}: {one.reason}')}")


# -- the normalised form -----------------------------------------------------------------------------------------------


def _diff_lines(compared: Compared) -> Iterable[str]:
    as_text = not (_is_descriptor(compared.old) or _is_descriptor(compared.new))
    return difflib.unified_diff(
        normalised(compared.old, proto_text=as_text),
        normalised(compared.new, proto_text=as_text),
        compared.old_name,
        compared.new_name,
        lineterm="",
    )


def normalised(definition: SchemaDefinition, *, proto_text: bool = True) -> list[str]:
    """Return the lines of a definition in a form in which only what matters differs, and first its references.

    Without `proto_text`, Protobuf is shown as the text form of its descriptor.
    """
    head = [f"reference {one.name} = {one.subject}:{one.version}" for one in definition.references]
    match definition.format:
        case SchemaFormat.AVRO | SchemaFormat.JSON:
            try:
                body = json.dumps(_sorted(json.loads(definition.text)), indent=2, ensure_ascii=False).splitlines()
            except (ValueError, RecursionError):
                body = definition.text.splitlines()
        case SchemaFormat.PROTOBUF if not proto_text:
            body = _descriptor_text(definition)
        case SchemaFormat.PROTOBUF:
            body = [" ".join(line.split()) for line in definition.text.splitlines()]
            body = _indented([line for line in body if line])
        case _:
            body = definition.text.splitlines()
    return [*head, *body]


def _sorted(value: Any) -> Any:
    match value:
        case dict():
            first = {key: _sorted(value[key]) for key in KEYS_FIRST if key in value}
            return first | {key: _sorted(value[key]) for key in sorted(value) if key not in first}
        case list():
            return [_sorted(one) for one in value]
    return value


def _indented(lines: Sequence[str]) -> list[str]:
    """Indent lines of `.proto` text by the braces around them."""
    made, depth = [], 0
    for line in lines:
        made.append("  " * max(depth - line.startswith("}"), 0) + line)
        depth += line.count("{") - line.count("}")
    return made


def _is_descriptor(definition: SchemaDefinition) -> bool:
    """Return whether a definition of Protobuf is a descriptor in Base64."""
    if definition.format is not SchemaFormat.PROTOBUF:
        return False
    try:
        base64.b64decode("".join(definition.text.split()), validate=True)
    except ValueError:
        return False
    return bool(definition.text.strip())


def _descriptor_text(definition: SchemaDefinition) -> list[str]:
    from google.protobuf import text_format

    from pydanube.formats.protobuf.proto_files import load

    files = load(definition, {})
    return str(text_format.MessageToString(files[-1])).splitlines()
