"""`danube schemas`: subjects, versions, compatibility and tags. Bindings are in schema_bindings.py."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from pydanube.cli.connecting import with_client
from pydanube.cli.options import SUBJECT, broker_options, confirm, examples, yes_option
from pydanube.cli.output import emit_json, fields, note, plural, show, shown_as_json, table, wants_json
from pydanube.cli.schemas.bindings import bind, binding, unbind
from pydanube.cli.schemas.diff import diff
from pydanube.cli.schemas.files import (
    chosen_version,
    definition_options,
    read_definition,
    version_options,
    with_references,
)
from pydanube.cli.standard_streams import is_terminal
from pydanube.cli.synonyms import Group
from pydanube.cli.values import SchemaName
from pydanube.model.errors import Invalid, NotFound, Refused
from pydanube.model.positions import datetime_from_micros
from pydanube.model.schemas import (
    Compatibility,
    Incompatibility,
    SchemaDefinition,
    SchemaVersion,
    SubjectDescription,
)

if TYPE_CHECKING:
    from pydanube.client import Client

LEVELS: Final = click.Choice([str(one) for one in Compatibility])


@click.group(
    cls=Group,
    epilog=examples(
        """
danube schemas register orders order.avsc
danube schemas check orders order-2.avsc                    may it be the next version?
danube schemas diff orders                                  what changed last
danube schemas bind /default/orders orders --policy enforce
danube produce /default/orders --schema orders -m '{"id": 1}'
danube consume /default/orders -e --decode
danube schemas set-compatibility orders full
"""
    ),
)
def schemas() -> None:
    """Register, read, compare and delete schemas, and bind topics to them.

    A subject is a name with versions, counted from 1. Its schema id is in every batch, with the version; the global id
    is the one of a definition, which the Confluent API calls id.
    """


for _command in (bind, unbind, binding, diff):
    schemas.add_command(_command)


# -- registering -------------------------------------------------------------------------------------------------------


@schemas.command(
    "register",
    epilog=examples(
        """
danube schemas register orders order.avsc
danube schemas register orders order.json --format json --tag team=shop
danube schemas register orders order.proto --reference common/address.proto=address:1
protoc --descriptor_set_out=/dev/stdout order.proto | base64 | danube schemas register orders - --format protobuf
danube schemas register names --format string                text, without a definition
"""
    ),
)
@click.argument("subject", type=SUBJECT)
@definition_options
@click.option("--tag", "tags", multiple=True, help="Of the version; may be repeated.")
@broker_options
def register(
    subject: str,
    file: str | None,
    format_: str | None,
    references: tuple[tuple[str, SchemaName], ...],
    tags: tuple[str, ...],
    url: str,
) -> None:
    """Register a definition as the next version of a subject.

    Prints its ids and its version. A definition that the subject has already, perhaps written differently, is found and
    not registered again. One that is not compatible with the versions before it is refused with every reason, one a
    line; 'danube schemas check' asks without registering. FILE may be - for stdin, and a descriptor set of protobuf
    (.binpb, .desc, .pb, .protoset).
    """
    definition = read_definition(file, format_)

    async def work(client: Client) -> Any:
        whole = await with_references(client, definition, references)
        try:
            registered = await client.schemas.register(subject, whole)
        except Refused as error:
            if reasons := await _reasons(client, subject, whole):
                level = await client.schemas.compatibility(subject)
                return Refused(f"{subject}: the definition is not compatible ({level})"), reasons
            raise error from None
        if tags:
            await _change_tags(client, subject, registered.version, tags, remove=False)
        return registered, None

    registered, reasons = with_client(url, work)
    if reasons is not None:
        refuse(registered.message, reasons)
    if shown_as_json(registered):
        return
    what = "registered" if registered.is_new else "already registered"
    ids = f"schema id {registered.schema_id}, version {registered.version}, global id {registered.global_id}"
    click.echo(f"{what} {subject}: {ids}")


async def _reasons(client: Client, subject: str, definition: SchemaDefinition) -> list[Incompatibility]:
    try:
        return await client.schemas.check(subject, definition)
    except (Refused, Invalid):
        return []


def refuse(message: str, reasons: Sequence[Incompatibility]) -> None:
    """End the command with exit code 1 and every reason on a line of its own."""
    raise click.ClickException("\n  ".join([f"{message}:", *(" ".join(str(one).split()) for one in reasons)]))


@schemas.command(
    "check",
    epilog=examples(
        """
danube schemas check orders order-2.avsc
danube schemas check orders order-2.avsc --version 1 --level full
danube schemas check orders order-2.avsc --json | jq -r '.reasons[].path'
"""
    ),
)
@click.argument("subject", type=SUBJECT)
@definition_options
@version_options("as 'register' compares it")
@click.option("--level", type=LEVELS, help="In place of the subject's own.")
@broker_options
def check(
    subject: str,
    file: str | None,
    format_: str | None,
    references: tuple[tuple[str, SchemaName], ...],
    version: int | None,
    latest: bool,
    level: str | None,
    url: str,
) -> None:
    """Check whether a definition may be the next version of a subject.

    Without --version it is compared as 'register' would do it. Exit code 0: it is compatible, also if the subject does
    not exist yet, which a line on stderr says; 1: it is not, and every field and reason is on a line of its own.
    """
    definition = read_definition(file, format_)
    chosen = chosen_version(version, latest)

    async def work(client: Client) -> tuple[list[Incompatibility], str]:
        whole = await with_references(client, definition, references)
        found = await client.schemas.check(subject, whole, version=chosen, level=level)
        try:
            await client.schemas.versions(subject)
        except NotFound:
            note(f"subject {subject!r} does not exist: there is nothing to compare the definition with")
        return found, level or str(await client.schemas.compatibility(subject))

    reasons, used = with_client(url, work)
    if wants_json():
        emit_json({"subject": subject, "level": used, "compatible": not reasons, "reasons": reasons})
        if reasons:
            sys.exit(1)
    elif reasons:
        refuse(f"{subject}: the definition is not compatible ({used})", reasons)
    else:
        click.echo(f"compatible with {subject} ({used})")


# -- reading -----------------------------------------------------------------------------------------------------------


@schemas.command(
    "get",
    epilog=examples(
        """
danube schemas get orders
danube schemas get orders --version 1 > order-1.avsc
danube schemas get --id 3 --version 2                        as a message has them: schema_id, schema_version
danube schemas get --global-id 7 --json
"""
    ),
)
@click.argument("subject", type=SUBJECT, required=False)
@version_options("the latest")
@click.option("--id", "schema_id", type=click.IntRange(min=1), help="Of the subject with this schema id.")
@click.option("--global-id", type=click.IntRange(1, 2**31 - 1), help="With this global id.")
@click.option("--deleted", is_flag=True, help="Also if it is deleted.")
@broker_options
def get(
    subject: str | None,
    version: int | None,
    latest: bool,
    schema_id: int | None,
    global_id: int | None,
    deleted: bool,
    url: str,
) -> None:
    """Print a definition as it was registered; with --json, everything about the version."""
    if sum(one is not None for one in (subject, schema_id, global_id)) != 1:
        raise click.UsageError("give a SUBJECT, --id or --global-id, one of them")
    chosen = chosen_version(version, latest)
    if global_id is not None and chosen is not None:
        raise click.UsageError("--global-id is of one version: leave out --version and --latest")

    async def work(client: Client) -> SchemaVersion:
        if global_id is not None:
            return await client.schemas.by_global_id(global_id)
        if schema_id is not None:
            return await client.schemas.get_by_id(schema_id, chosen or "latest")
        assert subject is not None
        return await client.schemas.get(subject, chosen or "latest", deleted=deleted)

    found = with_client(url, work)
    if shown_as_json(found):
        return
    if is_terminal(sys.stdout):
        note(f"{found.subject} version {found.version}, {found.definition.format}, global id {found.global_id}")
    click.echo(found.definition.text.removesuffix("\n"))


@schemas.command(
    "list",
    epilog=examples(
        """
danube schemas list
danube schemas list orders                                   those that begin with orders
danube schemas list --long
danube schemas list --deleted --json
"""
    ),
)
@click.argument("prefix", default="")
@click.option("-l", "--long", "is_long", is_flag=True, help="With formats, versions, levels and topics.")
@click.option("--deleted", is_flag=True, help="Also those that are deleted.")
@broker_options
def list_(prefix: str, is_long: bool, deleted: bool, url: str) -> None:
    """List subjects by name, those that begin with PREFIX."""

    async def work(client: Client) -> tuple[list[str], list[SubjectDescription]]:
        names = await client.schemas.subjects(prefix, deleted=deleted)
        return names, [await client.schemas.describe(name) for name in names] if is_long else []

    names, found = with_client(url, work)
    if not is_long:
        if wants_json():
            emit_json(names)
        else:
            for name in names:
                click.echo(name)
    elif wants_json():
        emit_json(found)
    else:
        table(
            ["subject", "schema id", "format", "versions", "compatibility", "topics"],
            [
                (
                    one.subject,
                    one.schema_id,
                    one.format,
                    f"{len(one.versions)}" if one.versions else "deleted",
                    one.effective_compatibility,
                    len(one.topics),
                )
                for one in found
            ],
            right=["schema id", "versions", "topics"],
        )


@schemas.command("describe", epilog=examples("danube schemas describe orders\ndanube schemas describe orders --json"))
@click.argument("subject", type=SUBJECT)
@broker_options
def describe(subject: str, url: str) -> None:
    """Show a subject: its ids, versions, compatibility, and the topics that are bound to it."""
    found = with_client(url, lambda client: client.schemas.describe(subject))
    if shown_as_json(found):
        return
    inherited = " (the broker's default)" if found.compatibility is None else ""
    fields(
        [
            ("subject", found.subject),
            ("schema id", found.schema_id),
            ("format", found.format),
            ("versions", ", ".join(map(str, found.versions)) or "none: the subject is deleted"),
            ("deleted versions", ", ".join(map(str, found.deleted_versions)) or "none"),
            ("compatibility", f"{found.effective_compatibility}{inherited}"),
            ("mode", found.mode),
            ("topics", ", ".join(found.topics) or "none"),
            ("created", datetime_from_micros(found.created_at).isoformat()),
        ]
    )


@schemas.command(
    "versions", epilog=examples("danube schemas versions orders\ndanube schemas versions orders --deleted --json")
)
@click.argument("subject", type=SUBJECT)
@click.option("--deleted", is_flag=True, help="Also those that are deleted.")
@broker_options
def versions(subject: str, deleted: bool, url: str) -> None:
    """List the versions of a subject with their ids, tags and references."""

    async def work(client: Client) -> list[SchemaVersion]:
        numbers = await client.schemas.versions(subject, deleted=deleted)
        return [await client.schemas.get(subject, number, deleted=True) for number in numbers]

    found = with_client(url, work)
    if shown_as_json(found):
        return
    table(
        ["version", "global id", "format", "created", "state", "tags", "references"],
        [
            (
                one.version,
                one.global_id,
                one.definition.format,
                f"{datetime_from_micros(one.created_at):%Y-%m-%d %H:%M:%S}",
                "deleted" if one.deleted else "in use",
                ", ".join(one.tags),
                ", ".join(f"{ref.name}={ref.subject}:{ref.version}" for ref in one.definition.references),
            )
            for one in found
        ],
        right=["version", "global id"],
        cut=["tags", "references"],
    )


# -- changing ----------------------------------------------------------------------------------------------------------


@schemas.command(
    "delete",
    epilog=examples(
        """
danube schemas delete orders --version 1 --yes
danube schemas delete orders --yes                           all versions
danube schemas delete orders --permanent --yes               for good, after it was deleted
"""
    ),
)
@click.argument("subject", type=SUBJECT)
@version_options("the whole subject")
@click.option("--permanent", is_flag=True, help="Remove for good what is deleted already.")
@yes_option
@broker_options
def delete(subject: str, version: int | None, latest: bool, permanent: bool, yes: bool, url: str) -> None:
    """Delete a version of a subject, or without --version the whole subject.

    A deleted version takes no new messages; messages that have it can still be decoded. --permanent removes what was
    deleted before: messages that have it cannot be decoded any more. A subject that topics are bound to, and a version
    that others refer to, cannot be deleted. Ids and versions are never used again.
    """
    chosen = chosen_version(version, latest)
    what = subject if chosen is None else f"version {chosen} of {subject}"
    confirm(f"Delete {what}{' for good' * permanent}?", yes)
    deleted = with_client(url, lambda client: client.schemas.delete(subject, chosen, permanent=permanent))
    if shown_as_json({"subject": subject, "deleted": deleted, "permanent": permanent}):
        return
    how = "removed" if permanent else "deleted"
    click.echo(f"{how} {plural(len(deleted), 'version')} of {subject}: {', '.join(map(str, deleted))}")


@schemas.command(
    "set-compatibility",
    epilog=examples(
        """
danube schemas set-compatibility orders full
danube schemas set-compatibility orders backward-transitive
danube schemas set-compatibility orders default              the broker's default applies again
danube schemas set-compatibility --default forward           changes the broker's default
"""
    ),
)
@click.argument("words", nargs=-1, metavar="[SUBJECT] LEVEL")
@click.option("--default", "is_default", is_flag=True, help="Set the broker's default: leave out SUBJECT.")
@broker_options
def set_compatibility(words: tuple[str, ...], is_default: bool, url: str) -> None:
    """Set what a new version must be able to do with those before it.

    none, backward (reads what the last one wrote), forward (is read by the last one), full (both), or with -transitive
    for all versions: backward-transitive, forward-transitive, full-transitive. It applies to what is registered later.
    """
    if len(words) != (1 if is_default else 2):
        raise click.UsageError("give a LEVEL" if is_default else "give a SUBJECT and a LEVEL, or --default and a LEVEL")
    try:
        subject = None if is_default else SUBJECT.convert(words[0], None, None)
        level = None if words[-1] == "default" else Compatibility.parse(words[-1])
    except Invalid as error:
        raise click.UsageError(error.message) from None
    used = with_client(url, lambda client: client.schemas.set_compatibility(subject, level))
    _show_level(subject, used)


@schemas.command(
    "compatibility", epilog=examples("danube schemas compatibility orders\ndanube schemas compatibility --json")
)
@click.argument("subject", type=SUBJECT, required=False)
@broker_options
def compatibility(subject: str | None, url: str) -> None:
    """Show the compatibility level of a subject, or the broker's default."""
    _show_level(subject, with_client(url, lambda client: client.schemas.compatibility(subject)))


def _show_level(subject: str | None, level: Compatibility) -> None:
    show({"subject": subject, "compatibility": str(level)}, f"{subject or 'default'}: {level}")


@schemas.command(
    "tag",
    epilog=examples(
        """
danube schemas tag orders team=shop reviewed
danube schemas tag orders reviewed --version 2 --remove
"""
    ),
)
@click.argument("subject", type=SUBJECT)
@click.argument("tags", nargs=-1, required=True)
@version_options("the latest")
@click.option("--remove", is_flag=True, help="Remove the tags instead of adding them.")
@broker_options
def tag(subject: str, tags: tuple[str, ...], version: int | None, latest: bool, remove: bool, url: str) -> None:
    """Add tags to a version, or remove them. A tag is any text."""
    chosen = chosen_version(version, latest) or "latest"
    number, left = with_client(url, lambda client: _change_tags(client, subject, chosen, tags, remove))
    show(
        {"subject": subject, "version": number, "tags": left},
        f"{subject} version {number}: {', '.join(left) or 'no tags'}",
    )


async def _change_tags(
    client: Client, subject: str, version: int | Literal["latest"], tags: Sequence[str], remove: bool
) -> tuple[int, list[str]]:
    """Add or remove tags of a version, and return the version and the tags it has now."""
    found = await client.schemas.get(subject, version)
    kept = [one for one in found.tags if one not in tags]
    left = kept if remove else [*kept, *dict.fromkeys(tags)]
    await client.schemas.set_tags(subject, found.version, left)
    return found.version, left
