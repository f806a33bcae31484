"""`danube table`: lands topics in Delta and Iceberg tables, and looks after the tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from pydanube.cli.credential_options import show_to_children
from pydanube.cli.options import (
    DURATION,
    POSITION,
    STORE_OPTION,
    SUBSCRIPTION,
    TOPIC,
    broker_options,
    examples,
    json_option,
)
from pydanube.cli.output import emit_json, plural, shown_as_json, size, table, wants_json
from pydanube.cli.storage.admin import SIZE
from pydanube.cli.synonyms import Group
from pydanube.cli.values import TakesAgo
from pydanube.model.errors import Refused
from pydanube.model.names import TopicName
from pydanube.model.positions import datetime_from_micros

if TYPE_CHECKING:
    from pydanube.spark.tables.landed import LandingRecord
    from pydanube.spark.tables.options import Format, TableOptions
    from pydanube.spark.tables.table_formats import TableFormat

DEFAULT_MASTER: Final = "local[*,4]"
RETAIN_SECONDS_MIN: Final = 3600.0
"""Readers that began before may still need what a compaction replaced."""

catalog_option = click.option(
    "--catalog",
    "catalog",
    type=STORE_OPTION,
    multiple=True,
    metavar="NAME=VALUE",
    help="Iceberg: a property of the catalog, such as uri=...; TABLE is then namespace.name.",
)
store_option = click.option(
    "--option",
    "store",
    type=STORE_OPTION,
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting of the table's object store, such as aws_region=eu-central-1.",
)
format_option = click.option(
    "--format",
    "format_",
    type=click.Choice(["delta", "iceberg"]),
    help="Of a new table.  [default: that of the existing table, else delta]",
)


@click.group(
    "table",
    cls=Group,
    epilog=examples(
        """
danube table land /default/orders /lake/orders
danube table list /lake
danube table lag /lake/orders
danube table compact /lake/orders
"""
    ),
)
def table_() -> None:
    """Land topics in Delta and Iceberg tables, exactly once, and look after the tables.

    A landing is a Spark stream that this command runs; Spark and Java come with pydanube[spark], the tables with
    pydanube[lakehouse]. Every message is a row in the table once, whatever is killed when. Any number of landings may
    write to one table.
    """


@table_.command(
    "land",
    cls=TakesAgo,
    epilog=examples(
        """
danube table land /default/orders /lake/orders
danube table land /default/orders /lake/orders --once               what there is, then end
danube table land /default/orders /lake/orders --decode             columns of the topic's schema
danube table land /default/orders /lake/orders --from -7d --once    a backfill of a week
danube table land /default/orders /lake/orders --format iceberg --partition-by topic
danube table land /default/orders s3://lake/orders --option aws_region=eu-central-1 --checkpoint /var/lib/ckpt
"""
    ),
)
@click.argument("topic", type=TOPIC)
@click.argument("place", metavar="TABLE")
@format_option
@click.option("--once", is_flag=True, help="Land what there is now, then end.")
@click.option("--every", type=DURATION, default="10s", show_default=True, help="The time between two commits.")
@click.option("--from", "start", type=POSITION, help="Where a new landing starts: earliest, an offset, a time, -2h.")
@click.option("--decode", is_flag=True, help="Decode payloads by the topic's schema: a column for each field.")
@click.option("--schema-version", type=click.IntRange(min=1), help="With --decode: this version.  [default: newest]")
@click.option(
    "--on-decode-error",
    type=click.Choice(["fail", "null"]),
    help="With --decode: end, or keep the row with its payload and the reason.  [default: fail]",
)
@click.option("--columns", help="The message columns, with commas between them.  [default: all]")
@click.option("--partition-by", help="Partition columns of a new table, with commas between them.")
@click.option("--merge-schema", is_flag=True, help="Add columns that the table lacks.")
@click.option("--checkpoint", default="", help="The directory of the stream's progress.  [default: in the table's]")
@click.option("--subscription", type=SUBSCRIPTION, help="Show the progress as this subscription; it holds retention.")
@click.option("--batch-bytes", type=SIZE, help="Read at most this much per commit.  [default: 1 GiB]")
@click.option("--master", default=DEFAULT_MASTER, show_default=True, help="Where Spark runs.")
@click.option("--spark-log", type=click.Path(dir_okay=False), help="Append what Spark and its workers print to it.")
@catalog_option
@store_option
@broker_options
def land(topic: TopicName, place: str, url: str, master: str, **given: Any) -> None:
    """Land a topic in a table: continuously, or what there is now.

    The table is created if it does not exist, and appended to if its columns fit; a table of other columns is refused
    and not changed. Without --decode, rows have the message's columns: topic, partition, offset, append_time,
    publish_time, key, payload, attributes, producer, schema_id, schema_version.

    The stream's progress is a checkpoint in the table's directory (_danube): a landing that is started again continues
    where it was. --from only counts at the first start. Ctrl-C and SIGTERM end after the current batch.
    """
    from pydanube.cli.spark.table_landing import run_landing

    show_to_children()
    run_landing(str(topic), place, url, master, given)


@table_.command(
    "list",
    epilog=examples(
        """
danube table list /lake
danube table list /lake/orders --json | jq '.[].landings[].topics'
"""
    ),
)
@click.argument("places", metavar="DIRECTORY...", nargs=-1, required=True)
@json_option
def list_(places: tuple[str, ...]) -> None:
    """List the tables in directories, and what was landed in them: topics, offsets, queries.

    Read from the tables themselves, where each commit records it. A table that nothing was landed in has no topic.
    """
    found = [_description(one) for one in _find(places)]
    if shown_as_json(found):
        return
    rows = []
    for one in found:
        for landing in one["landings"] or [{}]:
            offsets = landing.get("topics", {})
            rows.append(
                (
                    one["table"],
                    one["format"],
                    f"{one['rows']:,}",
                    f"{one['files']:,}",
                    size(one["bytes"]),
                    ", ".join(offsets),
                    "; ".join(", ".join(map(str, ends)) for ends in offsets.values()),
                    landing.get("landed_at", ""),
                )
            )
    columns = ["table", "format", "rows", "files", "size", "topic", "landed up to", "last commit"]
    table(columns, rows, right=["rows", "files", "size"])


@table_.command(
    "lag",
    epilog=examples(
        """
danube table lag /lake/orders
danube table lag /lake/orders --json | jq '[.[].behind] | add'
"""
    ),
)
@click.argument("places", metavar="TABLE...", nargs=-1, required=True)
@broker_options
def lag(places: tuple[str, ...], url: str) -> None:
    """Show how many messages the landings of tables are behind, for each partition.

    Compares the offsets that the table records with the ends of the topic's partitions.
    """
    from pydanube.cli.connecting import REACH_SECONDS
    from pydanube.spark.reading.broker_queries import BrokerQueries
    from pydanube.spark.tables.lag import lag_of

    show_to_children()
    lags: list[dict[str, Any]] = []
    with BrokerQueries(url, REACH_SECONDS) as queries:
        for one in _find(places):
            for record in _landings(one):
                lags += [{"table": one.home, "query": record.query, **asdict(part)} for part in lag_of(record, queries)]
    if shown_as_json(lags):
        return
    if not lags:
        click.echo("nothing was landed in this table by 'danube table land'")
        return
    columns = ["table", "topic", "partition", "landed", "end", "behind", "note"]
    rows = [[f"{one[name]:,}" if name == "behind" else one[name] for name in columns] for one in lags]
    table(columns, rows, right=columns[2:6])


@table_.command(
    "compact",
    epilog=examples(
        """
danube table compact /lake/orders
danube table compact /lake/orders --target 256MiB
danube table compact /lake/orders --retain 30d          keep older versions readable for a month
"""
    ),
)
@click.argument("place", metavar="TABLE")
@click.option("--target", type=SIZE, default="128MiB", show_default=True, help="The size of files to aim at.")
@click.option("--retain", type=DURATION, default="7d", show_default=True, help="Keep files of versions this young.")
@format_option
@catalog_option
@store_option
@json_option
def compact(
    place: str,
    target: int,
    retain: float,
    format_: Format | None,
    catalog: tuple[tuple[str, str], ...],
    store: tuple[tuple[str, str], ...],
) -> None:
    """Rewrite small files into larger ones, and delete what no version needs any more.

    No row changes, and landings may run meanwhile. Files that killed tasks left behind are removed if their batch can
    not be committed any more; then files that only versions older than --retain need.
    """
    from pydanube.spark.tables.orphans import remove_orphans
    from pydanube.spark.tables.table_formats import open_table

    if retain < RETAIN_SECONDS_MIN:
        raise click.UsageError("--retain must be at least 1h: readers may still need what was replaced")
    one = open_table(_options(place, format_, catalog, store))
    _must_exist(one)
    done = one.compact(target)
    orphans = remove_orphans(one)
    expired = one.expire(retain)
    if wants_json():
        orphan_bytes = sum(file.size for file in orphans)
        emit_json(
            {
                "table": one.home,
                **asdict(done),
                "orphans": len(orphans),
                "orphan_bytes": orphan_bytes,
                "expired": expired,
            }
        )
        return
    if done.files_before:
        before, after = size(done.bytes_before), size(done.bytes_after)
        click.echo(f"{plural(done.files_before, 'file')} ({before}) became {done.files_after:,} ({after})")
    else:
        click.echo("no small files to compact")
    if orphans:
        click.echo(f"removed {plural(len(orphans), 'file')} that were never committed")
    if expired:
        click.echo(f"deleted {plural(expired, 'file')} of versions older than {retain / 3600:g} h")


# -- shared ------------------------------------------------------------------------------------------------------------


def _options(
    place: str,
    format_: Format | None,
    catalog: Sequence[tuple[str, str]],
    store: Sequence[tuple[str, str]],
    **more: str,
) -> TableOptions:
    from pydanube.spark.tables.options import TableOptions

    kind, text = table_options(place, format_, catalog, store)
    return TableOptions.parse(kind, {**text, **more})


def table_options(
    place: str, format_: Format | None, catalog: Sequence[tuple[str, str]], store: Sequence[tuple[str, str]]
) -> tuple[Format, dict[str, str]]:
    """Return the format of a table and the options that name it, as text."""
    from pydanube.spark.tables.lag import detect_format

    found = None if catalog else detect_format(place)
    kind: Format = format_ or found or ("iceberg" if catalog else "delta")
    if found is not None and found != kind:
        raise Refused(f"{place} is a table of the format {found}: leave --format out")
    text = {"table" if catalog else "path": place}
    text |= {f"catalog.{name}": value for name, value in catalog}
    text |= {f"store.{name}": value for name, value in store}
    return kind, text


def _must_exist(one: TableFormat) -> None:
    if not one.exists():
        raise Refused(f"there is no {one.options.format} table at {one.options.name}")


def _find(places: Sequence[str]) -> list[TableFormat]:
    from pydanube.spark.tables.lag import find_tables

    return list(find_tables(places))


def _landings(one: TableFormat) -> list[LandingRecord]:
    return [record for record in one.records() if record.offsets is not None]


def _description(one: TableFormat) -> dict[str, Any]:
    measured = one.size()
    return {
        "table": one.home,
        "format": one.options.format,
        "rows": measured.rows,
        "files": measured.files,
        "bytes": measured.bytes,
        "version": measured.version,
        "landings": [_landing(record) for record in _landings(one)],
    }


def _landing(record: LandingRecord) -> dict[str, Any]:
    assert record.offsets is not None
    moment = datetime_from_micros(record.time_ms * 1000).isoformat(sep=" ", timespec="seconds")
    return {
        "query": record.query,
        "batch": record.batch_id,
        "topics": {name: list(topic.offsets) for name, topic in record.offsets.topics.items()},
        "landed_at": moment,
        "checkpoint": record.checkpoint or None,
    }
