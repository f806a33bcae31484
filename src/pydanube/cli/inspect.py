"""`danube inspect`: what is in the files, record by record. Reads only, and needs no broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pydanube.model.positions import datetime_from_micros

from .options import examples, json_option
from .output import emit_json, fields, payload_json, table, to_json

if TYPE_CHECKING:
    from pydanube.codec.batch import Batch


@click.group(
    epilog=examples(
        """
danube inspect wal --data-dir ./danube-data
danube inspect wal /var/lib/danube/wal --ledger 7 --json
danube inspect batch batch.bin
"""
    )
)
def inspect() -> None:
    """Look into stored files without a broker."""


@inspect.command("batch", epilog=examples("danube inspect batch batch.bin\ndanube inspect batch batch.bin --json"))
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--limit", type=click.IntRange(min=0), default=20, show_default=True, help="Messages to show.")
@json_option
def batch(file: Path, limit: int, as_json: bool) -> None:
    """Check a batch (header, checksums, structure) and show what is in it."""
    from pydanube.codec.batch import Batch

    found = Batch.open(bytearray(file.read_bytes()))
    if as_json:
        emit_json({**_header(found), "messages": list(_messages(found, limit))})
        return
    fields([(name.replace("_", " "), value) for name, value in _header(found).items()])
    click.echo()
    columns = ["offset", "publish_time", "key", "payload", "attributes"]
    rows = [
        (m["offset"], m["publish_time"], m["key"] or "", m["payload"], to_json(m["attributes"], compact=True))
        for m in _messages(found, limit)
    ]
    table(columns, rows, right=["offset"])
    if found.count > limit:
        click.echo(f"... and {found.count - limit:,} more; --limit shows them")


def _header(found: Batch) -> dict[str, Any]:
    header = found.header
    return {
        "messages_count": header.count,
        "codec": header.codec.name.lower(),
        "bytes": header.batch_bytes,
        "plain_bytes": header.plain_length,
        "base_offset": header.base_offset,
        "span": header.span,
        "append_time": _time(header.append_time),
        "owner_epoch": header.owner_epoch,
        "publish_time_min": _time(header.publish_time_min),
        "publish_time_max": _time(header.publish_time_max),
        "producer": found.producer_name,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "first_sequence": header.first_sequence,
        "schema_id": header.schema_id,
        "schema_version": header.schema_version,
        "body_crc": f"{header.body_crc:08x}",
    }


def _time(micros: int) -> str:
    return datetime_from_micros(micros).isoformat() if micros else ""


def _messages(found: Batch, limit: int) -> Iterator[dict[str, Any]]:
    for message, _ in zip(found.messages(), range(limit), strict=False):
        payload, encoding = payload_json(message.payload)
        yield {
            "offset": message.offset,
            "key": message.key,
            "payload": payload,
            "payload_encoding": encoding,
            "attributes": message.attributes,
            "publish_time": message.publish_time.isoformat(),
        }
