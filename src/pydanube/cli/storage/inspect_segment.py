"""`danube inspect segment`: shows one segment object, from a file or a store. Read-only, without a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from pydanube.cli.options import STORE_OPTION, examples, json_option
from pydanube.cli.output import fail, fields, plural, show, size, table
from pydanube.cli.synonyms import Command
from pydanube.model.positions import datetime_from_micros

if TYPE_CHECKING:
    from pydanube.codec.segment import SegmentFooter, SegmentSection

Read = Callable[[int, int], Awaitable[memoryview]]
"""Returns bytes [start, end) of the object."""


class InspectedSegment(NamedTuple):
    """The content of one segment object."""

    name: str
    size: int
    created_at_us: int
    footer: SegmentFooter
    problems: list[str]
    """Problems in the batches; empty if they were not read."""


@click.command(
    "segment",
    cls=Command,
    epilog=examples(
        """
danube inspect segment 00000000000000000000-0000000000000002-00000001-4f1d2c-00000001.seg
danube inspect segment file:///var/lib/danube/objects segments/shared/0006498e/4f1d2c-00000007.seg
danube inspect segment s3://bucket/prefix segments/... --option region=eu-central-1 --check
danube inspect segment FILE --index --json | jq '.sections[].index'
"""
    ),
)
@click.argument("target", metavar="FILE|URL")
@click.argument("key", required=False)
@click.option(
    "--option", "options", type=STORE_OPTION, multiple=True, metavar="NAME=VALUE", help="A setting of the store."
)
@click.option("--index", "with_index", is_flag=True, help="Show the index: the first batch of every block.")
@click.option("--check", is_flag=True, help="Read all batches too, and check them.")
@json_option
def segment(target: str, key: str | None, options: tuple[tuple[str, str], ...], with_index: bool, check: bool) -> None:
    """Show a segment: its header, and what lies where in it. A FILE, or the URL of a store and an object's KEY.

    Reads both ends, and with --check everything. Damage is an error that says what and where, with exit code 1.
    """
    if key is None:
        found = _of_file(Path(target), check)
    else:
        found = asyncio.run(_of_store(target, key, dict(options), check))
    show(_as_dict(found, with_index, check), lambda: _show(found, with_index, check))
    if found.problems:
        fail(f"{plural(len(found.problems), 'section')} damaged; first {found.problems[0]}")


def _of_file(path: Path, check: bool) -> InspectedSegment:
    if not path.is_file():
        raise click.UsageError(f"{path} is no file; for an object of a store give its URL and the object's key")
    with path.open("rb") as file:

        async def read(start: int, end: int) -> memoryview:
            file.seek(start)
            return memoryview(file.read(end - start))

        return asyncio.run(_read(str(path), path.stat().st_size, read, check))


async def _of_store(url: str, key: str, options: dict[str, str], check: bool) -> InspectedSegment:
    from pydanube.runtime.objects import open_store

    async with await open_store(url, options) as store:

        async def read(start: int, end: int) -> memoryview:
            return await store.get(key, start, end)

        return await _read(key, (await store.head(key)).size, read, check)


async def _read(name: str, object_bytes: int, read: Read, check: bool) -> InspectedSegment:
    from pydanube.codec.segment import HEADER_BYTES, TRAILER_BYTES, check_header, decode_footer, read_trailer

    created_at_us = check_header(await read(0, HEADER_BYTES), name)
    trailer = read_trailer(await read(max(0, object_bytes - TRAILER_BYTES), object_bytes), object_bytes, name)
    footer = decode_footer(await read(trailer.footer_start, trailer.footer_end), trailer)
    problems = [one for section in footer.sections if (one := await _problem(section, read, name))] if check else []
    return InspectedSegment(name, object_bytes, created_at_us, footer, problems)


async def _problem(section: SegmentSection, read: Read, name: str) -> str:
    """Read a section block by block and return what is wrong with its batches; empty: nothing."""
    from crc32c import crc32c

    from pydanube.model.errors import Corrupt

    crc = 0
    try:
        for block in section.blocks():
            content = await read(block.start, block.end)
            section.split(content, block.start, name)
            crc = crc32c(content, crc)
        if crc != section.crc:
            return f"{name}: bytes {section.start}..{section.end} do not match their checksum"
    except Corrupt as error:
        return error.message
    return ""


def _as_dict(found: InspectedSegment, with_index: bool, check: bool) -> dict[str, Any]:
    return {
        "name": found.name,
        "bytes": found.size,
        "created_at": _time(found.created_at_us),
        "writer": found.footer.writer,
        "format": found.footer.format,
        "sections": [_section(one, with_index) for one in found.footer.sections],
        **({"sound": not found.problems, "problems": found.problems} if check else {}),
    }


def _section(one: SegmentSection, with_index: bool) -> dict[str, Any]:
    told: dict[str, Any] = {
        "topic_id": one.topic_id,
        "partition": one.partition,
        "ledger": one.ledger_id,
        "epoch": one.owner_epoch,
        "first_offset": one.first_offset,
        "end_offset": one.end_offset,
        "start": one.start,
        "end": one.end,
        "batches": one.batches,
        "messages": one.messages,
        "append_time_min": _time(one.append_time_min),
        "append_time_max": _time(one.append_time_max),
        "publish_time_min": _time(one.publish_time_min),
        "publish_time_max": _time(one.publish_time_max),
        "schemas": [{"id": schema_id, "version": version} for schema_id, version in one.schemas],
        "producers": len(one.producers),
        "blocks": len(one.index),
        "crc": f"{one.crc:08x}",
    }
    if with_index:
        told["index"] = [{"offset": offset, "append_time": _time(us), "byte": byte} for offset, us, byte in one.index]
    return told


def _show(found: InspectedSegment, with_index: bool, check: bool) -> None:
    sections = found.footer.sections
    state = [("batches", "all sound")] if check and not found.problems else []
    fields(
        [
            ("segment", found.name),
            ("size", f"{size(found.size)} ({found.size:,} bytes)"),
            ("created", _time(found.created_at_us)),
            ("writer", found.footer.writer),
            ("footer", f"format {found.footer.format}, at byte {found.footer.start:,}"),
            ("holds", f"{plural(sum(one.messages for one in sections), 'message')} in {len(sections)} sections"),
            *state,
        ]
    )
    click.echo()
    columns = ["topic id", "partition", "ledger", "epoch", "offsets", "bytes", "batches", "messages", "blocks"]
    table(
        [*columns, "producers", "schemas", "first appended", "last appended"],
        [
            (
                one.topic_id,
                one.partition,
                one.ledger_id,
                one.owner_epoch,
                f"{one.first_offset}..{one.end_offset - 1}",
                f"{one.start}..{one.end}",
                one.batches,
                one.messages,
                len(one.index),
                len(one.producers),
                _schemas(one),
                _time(one.append_time_min),
                _time(one.append_time_max),
            )
            for one in sections
        ],
        right=[*columns, "producers"],
    )
    if with_index:
        _show_index(sections)


def _show_index(sections: list[SegmentSection]) -> None:
    click.echo()
    table(
        ["section", "offset", "byte", "append time"],
        [
            (number, offset, byte, _time(us))
            for number, section in enumerate(sections)
            for offset, us, byte in section.index
        ],
        right=["section", "offset", "byte"],
    )


def _schemas(one: SegmentSection) -> str:
    return " ".join(f"{schema_id}:{version}" if schema_id else "none" for schema_id, version in one.schemas)


def _time(micros: int) -> str:
    return datetime_from_micros(micros).isoformat() if micros else ""
