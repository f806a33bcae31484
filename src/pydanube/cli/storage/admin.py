"""`danube storage usage|segments|upload|verify|gc`: inspect and maintain a running broker's object storage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from pydanube.cli.connecting import with_client
from pydanube.cli.options import POSITION, TOPIC, Parsed, broker_options, examples
from pydanube.cli.output import (
    emit_json,
    fail,
    fields,
    note,
    plural,
    printable,
    show,
    shown_as_json,
    size,
    span,
    table,
    wants_json,
)
from pydanube.cli.synonyms import Command
from pydanube.cli.values import TakesAgo, some_bytes
from pydanube.model.json_values import as_json
from pydanube.model.names import TopicName
from pydanube.model.positions import Position, datetime_from_micros
from pydanube.model.storage import PartitionUsage, StorageDamage, StorageStatus, StorageUsage, StorageVerified

if TYPE_CHECKING:
    from pydanube.client import Client
    from pydanube.model.storage import SegmentDescription, StorageCollected, StorageUpload

PATIENCE_SECONDS: Final = 60.0
"""A broker answers a step in about a second, but its store may be slow."""


SIZE: Final = Parsed("size", some_bytes)


@click.command(
    "usage",
    cls=Command,
    epilog=examples(
        """
danube storage usage
danube storage usage /default/orders                        each partition
danube storage usage --json | jq '.status.uploads, .total.waiting_bytes'
"""
    ),
)
@click.argument("topic", type=TOPIC, required=False)
@broker_options
def usage(topic: TopicName | None, url: str) -> None:
    """Show what is in the log and in object storage, what waits to be uploaded, and how uploads are doing.

    Without TOPIC, all topics, added up over their partitions. 'waiting' is in the log and not yet in object storage; of
    a stored topic, it is in slices there, and becomes segments later. In a cluster, topics are shown as all brokers
    have them, and 'uploads', 'log on disk' and 'slices' are those of the broker that is asked.
    """
    found = with_client(url, lambda client: client.storage_usage(_text(topic)), answer_seconds=PATIENCE_SECONDS)
    if shown_as_json(as_json(found) | {"total": found.total}):
        return
    fields(_status(found.status, found.total))
    click.echo()
    _usage_table(found, partitions=topic is not None)


def _text(topic: TopicName | None) -> str | None:
    return None if topic is None else str(topic)


def _status(status: StorageStatus, total: PartitionUsage) -> list[tuple[str, object]]:
    since = f" since {_time(status.failing_since)}" if status.failing_since else ""
    uploads = f"{status.uploads}{since}: {status.failure}" if status.failure else status.uploads
    limit = f" of {size(status.log_bytes_max)} allowed" if status.log_bytes_max else ""
    waits = f"{size(total.waiting_bytes)}, {plural(total.waiting_messages, 'message')}"
    told: list[tuple[str, object]] = [
        ("store", status.url),
        ("uploads", uploads),
        ("uploaded", f"{size(total.uploaded_bytes)} in {plural(total.segments, 'segment')}"),
        ("waiting", f"{waits}, oldest {span(total.waiting_s)}" if total.waiting_messages else "nothing"),
        ("log on disk", f"{size(status.log_bytes)}{limit}"),
        ("garbage", f"{plural(status.garbage, 'object')} to be deleted after the grace period"),
    ]
    if status.slice_puts:
        puts = f"{plural(status.slice_puts, 'put')}, {status.slice_puts_per_s:.1f}/s"
        told.append(("slices", f"{puts}, {size(status.slice_waiting_bytes)} waiting"))
        allowed = f" of {size(status.slice_unlisted_bytes_max)} allowed" if status.slice_unlisted_bytes_max else ""
        told.append(("not in catalog", f"{size(status.slice_unlisted_bytes)}{allowed}"))
    return [*told, ("publishes", f"refused: {status.refusing}")] if status.refusing else told


def _usage_table(found: StorageUsage, *, partitions: bool) -> None:
    rows = found.partitions if partitions else found.topics
    if not rows:
        click.echo("nothing is stored: topics in memory only have no history")
        return
    columns = ["topic", *(["partition", "uploaded to"] if partitions else []), "segments", "uploaded", "messages"]
    columns += ["in the log", "waiting", "oldest", "health"]
    table(
        columns,
        [
            (
                one.topic,
                *((one.partition, one.uploaded_end) if partitions else ()),
                f"{one.segments:,}",
                size(one.uploaded_bytes),
                f"{one.messages:,}",
                size(one.log_bytes),
                size(one.waiting_bytes),
                span(one.waiting_s) if one.waiting_messages else "",
                one.health,
            )
            for one in rows
        ],
        right=columns[1:-1],
    )


def _time(micros: int) -> str:
    return datetime_from_micros(micros).isoformat(sep=" ", timespec="seconds")


@click.command(
    "segments",
    cls=TakesAgo,
    epilog=examples(
        """
danube storage segments /default/orders
danube storage segments /default/orders --partition 2 --from 2026-01-31T12:00:00Z
danube storage segments /default/orders --from -2h -n 10
danube storage segments /default/orders -n 0 --json | jq -r '.[].object'
"""
    ),
)
@click.argument("topic", type=TOPIC)
@click.option("--partition", type=click.IntRange(min=0), default=0, show_default=True, help="Which partition.")
@click.option("--from", "start", type=POSITION, default="earliest", show_default=True, help="An offset or a time.")
@click.option("-n", "--count", type=click.IntRange(min=0), default=100, show_default=True, help="How many; 0: all.")
@broker_options
def segments(topic: TopicName, partition: int, start: Position, count: int, url: str) -> None:
    """List the objects that hold a partition's history: which offsets and times are in which object.

    One partition at a time: --partition says which.
    """

    async def ask(client: Client) -> tuple[list[SegmentDescription], int]:
        found = await client.storage_segments(str(topic), partition, start=start, count=count + 1 if count else None)
        return found, len(await client.partitions(str(topic)))

    found, partitions = with_client(url, ask, answer_seconds=PATIENCE_SECONDS)
    shown = found[:count] if count else found
    if wants_json():
        emit_json(shown)
    elif shown:
        _segments_table(shown)
    else:
        what = f"no segment of {topic} partition {partition} from there on"
        click.echo(f"{what}: what it has is in the log ('danube storage upload' uploads it now)")
    if partitions > 1:
        note(f"partition {partition} of {partitions}, counted from 0; --partition shows another")
    if len(found) > len(shown):
        note(f"only the first {count:,} are shown; -n 0 shows all")


def _segments_table(shown: list[SegmentDescription]) -> None:
    columns = ["first offset", "last offset", "messages", "size", "first appended", "last appended", "object"]
    table(
        columns,
        [
            (
                one.first_offset,
                one.end_offset - 1,
                f"{one.messages:,}",
                size(one.bytes),
                _time(one.first_time),
                _time(one.last_time),
                one.object if one.bytes + 4096 > one.object_bytes else f"{one.object} (shared)",
            )
            for one in shown
        ],
        right=columns[:4],
    )


@click.command(
    "upload",
    cls=Command,
    epilog=examples(
        """
danube storage upload                           everything that waits
danube storage upload /default/orders
danube storage upload && systemctl stop danube
"""
    ),
)
@click.argument("topic", type=TOPIC, required=False)
@broker_options
def upload(topic: TopicName | None, url: str) -> None:
    """Upload what waits in the log now, however little it is, and wait until it is done.

    Brokers upload by themselves, once a partition has enough (storage.segment_bytes) or has waited long enough
    (storage.segment_age_s). This is for moments before maintenance. It goes on in the broker when this is interrupted.
    """
    from pydanube.cli.progress_line import BytesBar

    with BytesBar("uploading", 0) as bar:

        def progress(state: StorageUpload) -> None:
            bar(state.total_bytes - state.left_bytes, state.total_bytes)

        async def work(client: Client) -> StorageUpload:
            return await client.upload_storage(_text(topic), progress=progress)

        done = with_client(url, work, answer_seconds=PATIENCE_SECONDS)
    show(done, f"uploaded {size(done.total_bytes)}" if done.total_bytes else "nothing was waiting")


@click.command(
    "verify",
    cls=Command,
    epilog=examples(
        """
danube storage verify
danube storage verify /default/orders
danube storage verify --rate 50MiB                          at most this much a second
danube storage verify --json | jq '.damages[] | {object, detail}'
"""
    ),
)
@click.argument("topic", type=TOPIC, required=False)
@click.option("--rate", type=SIZE, help="Read at most this many bytes a second.")
@broker_options
def verify(topic: TopicName | None, rate: int | None, url: str) -> None:
    """Let the broker read every object of a topic, or of all topics, and report what is damaged or missing.

    Reads footers, every batch and every checksum, and compares them with the catalog. Changes nothing. Damage is one
    line each on stdout, and sets exit code 1.
    """
    from pydanube.cli.progress_line import BytesBar

    async def work(client: Client) -> StorageVerified:
        total = (await client.storage_usage(_text(topic))).total.uploaded_bytes
        with BytesBar("verifying", total) as bar:
            return await client.verify_storage(_text(topic), rate=rate, progress=lambda found: bar(found.bytes))

    found = with_client(url, work, answer_seconds=PATIENCE_SECONDS)
    if wants_json():
        emit_json({"sound": not found.damages, **as_json(found)})
    else:
        for one in found.damages:
            click.echo(_damage(one))
    read = f"{plural(found.segments, 'segment')}, {plural(found.messages, 'message')}, {size(found.bytes)} read"
    if found.damages:
        fail(f"{plural(len(found.damages), 'segment')} damaged or missing ({read}): see 'Damage' in docs/operations.md")
    if not wants_json():
        click.echo(f"sound: {read}")


def _damage(one: StorageDamage) -> str:
    where = f"{one.topic} partition {one.partition} offsets {one.first_offset}..{one.end_offset - 1}"
    return printable(f"{one.kind}: {where}: {one.detail}")


@click.command(
    "gc",
    cls=Command,
    epilog=examples(
        """
danube storage gc --dry-run                     what would be deleted
danube storage gc
danube storage gc --orphans                     also what uploads that were cut short left behind
"""
    ),
)
@click.option("--dry-run", is_flag=True, help="Delete nothing, only count.")
@click.option("--orphans", is_flag=True, help="Also objects that no upload came to list; reads the whole listing.")
@broker_options
def gc(dry_run: bool, orphans: bool, url: str) -> None:
    """Delete objects that are no longer needed: their topic was deleted, or retention has passed them.

    Only after the grace period (storage.grace_s), so that their readers can finish. Brokers do this by
    themselves: every minute, and orphans every hour.
    """
    from pydanube.cli.progress_line import Bar

    async def work(client: Client) -> StorageCollected:
        with Bar("looked at") as bar:
            return await client.collect_garbage(
                orphans=orphans, dry_run=dry_run, progress=lambda done: bar(done.looked_at, done.looked_at)
            )

    done = with_client(url, work, answer_seconds=PATIENCE_SECONDS)
    if shown_as_json({"dry_run": dry_run, **as_json(done)}):
        return
    verb = "would delete" if dry_run else "deleted"
    more = f", {size(done.deleted_bytes)} of orphans" if done.deleted_bytes else ""
    waits = f"; {plural(done.waiting, 'object')} in the grace period" if done.waiting else ""
    click.echo(f"{verb} {plural(done.deleted, 'object')}{more}{waits}")


@click.command(
    "repair-slice",
    cls=Command,
    epilog=examples(
        """
danube storage repair-slice slices/0000000000000007/0000000000000012                says what would be lost
danube storage repair-slice slices/0000000000000007/0000000000000012 --accept-loss
"""
    ),
)
@click.argument("path")
@click.option("--accept-loss", is_flag=True, help="Give up what only this object has held.")
@broker_options
def repair_slice(path: str, accept_loss: bool, url: str) -> None:
    """Replace the damaged, missing or foreign object at PATH, for which partitions wait.

    PATH is below slices/, as the error of such a partition names it. If you have a copy of the object, put that back
    instead. The messages that only this object has held are a gap from then on, and what consumers acked in it can be
    delivered again. Refused while the broker that wrote the object lives.
    """
    lost = with_client(
        url,
        lambda client: client.storage.repair_slice(path, accept_loss=accept_loss),
        answer_seconds=PATIENCE_SECONDS,
    )
    if shown_as_json(lost):
        return
    for one in lost:
        click.echo(f"{one.topic} partition {one.partition}: offsets {one.start} to {one.end - 1} are given up")
    click.echo(printable(f"{path} is repaired" + ("" if lost else ": nothing is lost")))
