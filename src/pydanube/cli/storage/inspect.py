"""`danube inspect`: shows stored files record by record. Read-only, without a broker."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pydanube.cli.options import examples, json_option, json_option_with
from pydanube.cli.output import emit_json, fail, fields, note, payload_json, shown_as_json, table, to_json, wants_json
from pydanube.cli.storage.inspect_segment import segment
from pydanube.cli.synonyms import Group
from pydanube.model.positions import datetime_from_micros

if TYPE_CHECKING:
    from pydanube.codec.batch import Batch, BatchHeader
    from pydanube.storage.wal.inspect import InspectedRecord


@click.group(
    cls=Group,
    epilog=examples(
        """
danube inspect wal --data-dir ./danube-data
danube inspect wal /var/lib/danube/wal --ledger 7 --json
danube inspect batch batch.bin
danube inspect segment file:///var/lib/danube/objects segments/shared/0006498e/4f1d2c-00000007.seg
"""
    ),
)
def inspect() -> None:
    """Look into stored files without a broker."""


inspect.add_command(segment)


@inspect.command(
    "wal",
    epilog=examples(
        """
danube inspect wal                                     of ./danube-data
danube inspect wal --data-dir /var/lib/danube --problems
danube inspect wal /fast-disk/wal --ledger 7 --limit 0
danube inspect wal --json | jq 'select(.kind == "DATA") | .batch.count'
"""
    ),
)
@click.argument("directory", type=click.Path(path_type=Path, exists=True, file_okay=False), required=False)
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="The broker's data directory.  [default: ./danube-data]",
)
@click.option("--ledger", type=int, help="Only records of this ledger.")
@click.option("--problems", is_flag=True, help="Only what is torn, damaged or stale.")
@click.option("--limit", type=click.IntRange(min=0), help="Records to show; 0: all.  [default: 100, with --json all]")
@json_option_with("One JSON object a line, for scripts.")
def wal(directory: Path | None, data_dir: Path | None, ledger: int | None, problems: bool, limit: int | None) -> None:
    """Show the records of the write-ahead log: where each is, what it is, and whether it counts.

    DIRECTORY is the log's own directory, or a data directory. Reads only; a running broker does not mind. States: ok;
    torn (the end, never synced, does not count); damaged (synced, and not what was written); stale (of an earlier use
    of the file). Damage sets exit code 1.
    """
    from pydanube.runtime.disk import OsDisk
    from pydanube.storage.wal.inspect import records

    found = (
        record
        for record in records(OsDisk(), _log_directory(directory, data_dir))
        if (ledger is None or record.ledger_id == ledger) and (not problems or record.state != "ok")
    )
    wanted = limit if limit is not None else 0 if wants_json() else 100
    shown = list(islice(found, wanted)) if wanted else found
    damaged = 0
    if wants_json():
        for record in shown:
            damaged += record.state == "damaged"
            emit_json(_record(record), compact=True)
    else:
        rows = list(shown)
        damaged = sum(record.state == "damaged" for record in rows)
        _show_records(rows)
    if wanted and next(found, None) is not None:
        note(f"... only the first {wanted:,} are shown; --limit 0 shows all")
    if damaged:
        fail(f"{damaged:,} of the records shown are damaged: see 'Damage' in docs/operations.md")


def _log_directory(directory: Path | None, data_dir: Path | None) -> Path:
    if directory is not None and data_dir is not None:
        raise click.UsageError("give the log's directory or --data-dir, not both")
    chosen = directory or data_dir or Path("danube-data")
    inner = chosen / "wal"
    chosen = inner if inner.is_dir() else chosen
    if not any(chosen.glob("wal-*.log")):
        fail(f"there is no log in {chosen}: name the broker's --data-dir")
    return chosen


def _show_records(rows: list[InspectedRecord]) -> None:
    table(
        ["file", "position", "kind", "ledger", "entry", "epoch", "bytes", "offsets", "state", "detail"],
        [
            (
                record.file.removeprefix("wal-").removesuffix(".log").lstrip("0"),
                record.position,
                record.kind or "?",
                record.ledger_id,
                record.entry_id,
                record.owner_epoch,
                record.body_length,
                f"{record.batch.base_offset}..{record.batch.base_offset + record.batch.span - 1}"
                if record.batch
                else "",
                record.state,
                record.detail,
            )
            for record in rows
        ],
        right=["file", "position", "ledger", "entry", "epoch", "bytes", "offsets"],
    )


def _record(record: InspectedRecord) -> dict[str, Any]:
    batch = record.batch
    return {
        "file": record.file,
        "generation": record.generation,
        "position": record.position,
        "kind": record.kind,
        "ledger": record.ledger_id,
        "entry": record.entry_id,
        "epoch": record.owner_epoch,
        "bytes": record.body_length,
        "durable": record.durable,
        "state": record.state,
        "detail": record.detail,
        "batch": None if batch is None else batch_header(batch),
    }


@inspect.command("batch", epilog=examples("danube inspect batch batch.bin\ndanube inspect batch batch.bin --json"))
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--limit", type=click.IntRange(min=0), default=20, show_default=True, help="Messages to show.")
@json_option
def batch(file: Path, limit: int) -> None:
    """Check a batch (header, checksums, structure) and show what is in it."""
    from pydanube.codec.batch import Batch

    found = Batch.open(bytearray(file.read_bytes()))
    about = {**batch_header(found.header), "producer": found.producer_name}
    if shown_as_json({**about, "messages": list(_messages(found, limit))}):
        return
    fields([(name.replace("_", " "), value) for name, value in about.items()])
    click.echo()
    columns = ["offset", "publish_time", "key", "payload", "attributes"]
    rows = [
        (m["offset"], m["publish_time"], m["key"] or "", m["payload"], to_json(m["attributes"], compact=True))
        for m in _messages(found, limit)
    ]
    table(columns, rows, right=["offset"])
    if found.count > limit:
        click.echo(f"... and {found.count - limit:,} more; --limit shows them")


def batch_header(header: BatchHeader) -> dict[str, Any]:
    return {
        "count": header.count,
        "codec": header.codec.name.lower(),
        "bytes": header.batch_bytes,
        "plain_bytes": header.plain_length,
        "base_offset": header.base_offset,
        "span": header.span,
        "append_time": _time(header.append_time),
        "owner_epoch": header.owner_epoch,
        "publish_time_min": _time(header.publish_time_min),
        "publish_time_max": _time(header.publish_time_max),
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
