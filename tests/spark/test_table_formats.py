"""Delta and Iceberg tables without Spark: creating, appending, evolving, committing once, compacting, cleaning."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Sequence
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pydanube.model.errors import Invalid, Refused
from pydanube.spark.errors import reason
from pydanube.spark.reading.offsets import Offsets, TopicIdentity, TopicOffsets
from pydanube.spark.tables.data_files import DataFile, FileOrigin, parse_name, write_rows
from pydanube.spark.tables.lag import detect_format, find_tables
from pydanube.spark.tables.landed import LandingRecord, parse_record
from pydanube.spark.tables.landing import Landing, check_landing
from pydanube.spark.tables.options import Format, TableOptions
from pydanube.spark.tables.orphans import find_orphans, remove_orphans
from pydanube.spark.tables.table_formats import TableFormat, open_table

MAP = pa.map_(pa.string(), pa.string())
FORMATS: tuple[Format, ...] = ("delta", "iceberg")
QUERY = "5d3f1c0e-7a0b-4a51-8b0a-2f6f3f1f7a11"


def rows(count: int, first: int = 0) -> pa.RecordBatch:
    numbers = range(first, first + count)
    return pa.record_batch(
        {
            "id": pa.array(numbers, pa.int64()),
            "region": pa.array([("eu", "us", None, "a b/%é=")[one % 4] for one in numbers]),
            "day": pa.array([date(2026, 1, 1 + one % 2) for one in numbers]),
            "at": pa.array([one * 1_000_001 for one in numbers], pa.timestamp("us", tz="UTC")),
            "amount": pa.array([one / 2 for one in numbers]),
            "note": pa.array([None if one % 3 else f"note {one}" * (1 + one % 9) for one in numbers]),
            "payload": pa.array([b"\x00\xff" * (one % 5) for one in numbers], pa.binary()),
            "attributes": pa.array([[("n", str(one))] * (one % 2) for one in numbers], MAP),
            "items": pa.array([list(range(one % 3)) for one in numbers], pa.list_(pa.int64())),
            "place": pa.array([{"x": one, "name": "here"} for one in numbers]),
        }
    )


@pytest.fixture(params=FORMATS)
def kind(request: pytest.FixtureRequest) -> Format:
    return request.param


def table_at(kind: Format, path: Path, **options: str) -> TableFormat:
    return open_table(TableOptions.parse(kind, {"path": str(path), **options}))


def write(table: TableFormat, *batches: pa.RecordBatch, batch_id: int = 0, task: int = 0) -> tuple[DataFile, ...]:
    target = table.prepare(batches[0].schema)
    return write_rows(target, FileOrigin(QUERY, batch_id, task), batches)


def append(table: TableFormat, *batches: pa.RecordBatch, batch_id: int = 0) -> bool:
    return table.commit(write(table, *batches, batch_id=batch_id), LandingRecord(QUERY, batch_id))


def stored(table: TableFormat, condition: tuple[str, str, int] | None = None) -> pa.Table:
    if table.options.format == "delta":
        from deltalake import DeltaTable

        return DeltaTable(table.home).to_pyarrow_table(filters=None if condition is None else [condition])
    found = table._load().scan(*([] if condition is None else [" ".join(map(str, condition))]))
    return found.to_arrow()


def counted(tables: Sequence[pa.Table | pa.RecordBatch]) -> Counter[str]:
    names = sorted(tables[0].schema.names)
    return Counter(repr([row[name] for name in names]) for one in tables for row in one.to_pylist())


# -- writing -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partition_by", ["", "region", "region,day"])
def test_rows_of_every_type_come_back_and_files_are_skipped_rightly(kind, tmp_path, partition_by):
    table = table_at(kind, tmp_path / "t", **({"partitionBy": partition_by} if partition_by else {}))
    assert not table.exists()
    assert append(table, rows(50), rows(150, 50))
    assert append(table, rows(100, 200), batch_id=1)
    assert counted([stored(table)]) == counted([rows(300)])
    assert stored(table, ("id", ">", 250)).num_rows == 49
    assert table.size().rows == 300
    assert detect_format(str(tmp_path / "t")) == kind
    assert [one.home for one in find_tables([str(tmp_path)])] == [str(tmp_path / "t")]


def test_a_batch_counts_once_however_often_it_is_committed(kind, tmp_path):
    table = table_at(kind, tmp_path / "t")
    assert append(table, rows(10), batch_id=3)
    assert not append(table, rows(10), batch_id=3)
    assert not append(table, rows(10), batch_id=2)
    assert table.committed_batch(QUERY) == 3
    assert table.committed_batch("another") is None
    assert table.commit(write(table, rows(10)), None)
    assert table.size().rows == 20


def test_of_two_drivers_of_one_query_one_commits_a_batch(kind, tmp_path):
    table_at(kind, tmp_path / "t").prepare(rows(1).schema)
    shares = [write(table_at(kind, tmp_path / "t"), rows(10), task=task) for task in range(4)]
    begin = threading.Barrier(len(shares))
    applied: list[bool] = []

    def commit(files: tuple[DataFile, ...]) -> None:
        begin.wait()
        applied.append(table_at(kind, tmp_path / "t").commit(files, LandingRecord(QUERY, 0)))

    threads = [threading.Thread(target=commit, args=(one,)) for one in shares]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert sorted(applied) == [False, False, False, True]
    assert stored(table_at(kind, tmp_path / "t")).num_rows == 10


def test_iceberg_remembers_batches_after_its_snapshots_expired(tmp_path):
    table = table_at("iceberg", tmp_path / "t")
    for batch_id in range(3):
        append(table, rows(10, 10 * batch_id), batch_id=batch_id)
    assert table.compact(1 << 27).files_before == 3
    table.expire(0)
    assert len(table._load().snapshots()) == 1
    assert not append(table, rows(10), batch_id=2)
    assert counted([stored(table)]) == counted([rows(30)])


# -- existing tables ---------------------------------------------------------------------------------------------------


def test_rows_that_do_not_fit_are_refused_by_name_and_change_nothing(kind, tmp_path):
    table = table_at(kind, tmp_path / "t")
    append(table, rows(10))
    version = table.size()
    wrong = pa.schema([("id", pa.string()), ("amount", pa.float32()), ("other", pa.int32())])
    with pytest.raises(Refused, match=r"'id' is bigint in the table, and string here; the table has no column 'other'"):
        table.prepare(wrong)
    with pytest.raises(Refused, match=r"'ID' is 'id' in the table"):
        table.prepare(pa.schema([("ID", pa.int64())]))
    with pytest.raises(Refused, match=r"is not partitioned, and partitionBy says region"):
        table_at(kind, tmp_path / "t", partitionBy="region").prepare(rows(1).schema)
    assert table.size() == version


def test_smaller_numbers_and_fewer_columns_fit_and_new_columns_are_added_if_wanted(kind, tmp_path):
    table = table_at(kind, tmp_path / "t")
    append(table, rows(10))
    narrow = pa.record_batch({"amount": pa.array([1.5], pa.float32()), "id": pa.array([77], pa.int16())})
    assert append(table, narrow, batch_id=1)
    wider = narrow.append_column("extra", pa.array(["new"]))
    with pytest.raises(Refused, match="mergeSchema=true"):
        append(table, wider, batch_id=2)
    merging = table_at(kind, tmp_path / "t", mergeSchema="true")
    assert append(merging, wider, batch_id=2)
    found = stored(merging, ("id", ">", 50)).to_pylist()
    assert Counter((row["id"], row["amount"], row["extra"], row["note"]) for row in found) == Counter(
        [(77, 1.5, None, None), (77, 1.5, "new", None)]
    )
    assert merging.size().rows == 12


def test_a_directory_with_other_files_is_not_made_a_table(kind, tmp_path):
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "mine.csv").write_text("a,b")
    with pytest.raises(Refused, match=r"is not empty \(mine.csv\)"):
        table_at(kind, tmp_path / "t").prepare(rows(1).schema)
    assert [one.name for one in (tmp_path / "t").iterdir()] == ["mine.csv"]


def landing_at(kind: Format, path: Path, checkpoint: str = "") -> Landing:
    write = {"path": str(path)}
    return Landing(topic="/default/orders", table=TableOptions.parse(kind, write), write=write, checkpoint=checkpoint)


def test_a_landing_in_a_directory_of_other_files_is_refused_before_spark_starts(kind, tmp_path):
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "letter.txt").write_text("mine")
    with pytest.raises(Refused, match=r"is no table of this format and is not empty \(letter.txt\)"):
        check_landing(landing_at(kind, tmp_path / "files"))
    (tmp_path / "file").write_text("mine")
    with pytest.raises(Refused, match="the table is a file, and must be a directory"):
        check_landing(landing_at(kind, tmp_path / "file"))
    with pytest.raises(Refused, match="the table lies below a file"):
        check_landing(landing_at(kind, tmp_path / "file" / "table"))
    with pytest.raises(Refused, match="the checkpoint lies below a file"):
        check_landing(landing_at(kind, tmp_path / "table", str(tmp_path / "file" / "checkpoint")))


@pytest.mark.parametrize("checkpoint", ["table", "", "table/progress", "table/../table"])
def test_a_checkpoint_among_the_files_of_its_table_is_refused(kind, tmp_path, checkpoint):
    with pytest.raises(Refused, match="would lie among each other's files"):
        check_landing(landing_at(kind, tmp_path / "table", str(tmp_path / checkpoint)))
    assert not (tmp_path / "table").exists()


@pytest.mark.parametrize("checkpoint", ["", "table/_progress", "progress", "table2"])
def test_a_checkpoint_that_readers_of_the_table_do_not_see_is_accepted(kind, tmp_path, checkpoint):
    given = str(tmp_path / checkpoint) if checkpoint else ""
    assert check_landing(landing_at(kind, tmp_path / "table", given)).startswith(str(tmp_path))


def test_the_name_of_a_table_in_a_catalog_is_no_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.orders").write_text("mine")
    write = {"table": "shop.orders", "catalog.type": "sql", "catalog.uri": f"sqlite:///{tmp_path}/c.db"}
    table = TableOptions.parse("iceberg", {**write, "catalog.warehouse": f"file://{tmp_path}/w"})
    checkpoint = str(tmp_path / "progress")
    assert check_landing(Landing(topic="/default/orders", table=table, checkpoint=checkpoint)) == checkpoint


@pytest.mark.parametrize(
    ("column", "named"),
    [
        (("ID", pa.string()), "'id' and 'ID'"),
        (("n", pa.struct({"Id": pa.int64(), "id": pa.int64()})), "'n.Id' and 'n.id'"),
        (("n", pa.list_(pa.struct({"a": pa.int64(), "A": pa.int64()}))), "'n.a' and 'n.A'"),
        (("n", pa.map_(pa.string(), pa.struct({"b": pa.int64(), "B": pa.int64()}))), "'n.value.b' and 'n.value.B'"),
    ],
)
def test_delta_refuses_columns_that_differ_only_in_case_by_name(tmp_path, column, named):
    with pytest.raises(Refused, match=f"cannot have the columns {named}"):
        table_at("delta", tmp_path / "t").prepare(pa.schema([("id", pa.int64()), column]))
    assert not (tmp_path / "t").exists()


def test_the_reason_of_a_failure_is_the_last_exception_of_python_whatever_its_class():
    text = "[STREAM_FAILED] Query failed\nTraceback (most recent call last):\n  File x\nException: the disk is full\n"
    assert reason(RuntimeError(text)) == "Exception: the disk is full"
    assert reason(RuntimeError(text.replace("Exception:", "deltalake.DeltaError:"))) == "DeltaError: the disk is full"


def test_delta_tables_with_rules_are_refused(tmp_path):
    from deltalake import DeltaTable

    table = table_at("delta", tmp_path / "t")
    append(table, rows(10))
    DeltaTable(table.home).alter.add_constraint({"positive": "id >= 0"})
    with pytest.raises(Refused, match=r"the constraint delta.constraints.positive"):
        table.prepare(rows(1).schema)


def test_iceberg_tables_partitioned_by_a_transform_are_refused(tmp_path):
    table = table_at("iceberg", tmp_path / "t")
    append(table, rows(10))
    with table._load().update_spec() as spec:
        spec.add_field("at", "day")
    with pytest.raises(Refused, match="partitioned by day of at"):
        table.prepare(rows(1).schema)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "path is missing"),
        ({"path": "/x", "pathh": "/y"}, "did you mean 'path'"),
        ({"path": "/x", "mergeSchema": "maybe"}, "use true or false"),
        ({"path": "/x", "queryId": "q"}, "belong together"),
        ({"path": "/x", "partitionBy": "a,a"}, "more than once"),
        ({"path": "/x", "table": "a.b"}, "for danube-iceberg"),
        ({"path": "/x", "compression": "rar"}, "use one of snappy"),
    ],
)
def test_options_are_refused_by_name(options, message):
    with pytest.raises(Invalid, match=message):
        TableOptions.parse("delta", options)


def test_options_do_not_show_credentials():
    options = TableOptions.parse("delta", {"path": "s3://b/t", "store.aws_secret_access_key": "hush"})
    assert "hush" not in repr(options)


# -- files -------------------------------------------------------------------------------------------------------------


def test_names_of_files_say_query_and_batch():
    for query in (QUERY, "nightly totals/ü-2026-0000000001", "a+b%2F"):
        prefix = FileOrigin(query, 12, 3).file_prefix()
        assert "/" not in prefix
        assert parse_name(f"region=eu/{prefix}-0.parquet") == (query, 12)
    assert parse_name("part-00001-c7f8d167.snappy.parquet") is None


def test_a_record_is_stored_in_this_form():
    offsets = Offsets({"/default/orders": TopicOffsets(TopicIdentity("danube-5f0c", 12), (4711, 0))})
    record = LandingRecord("q", 7, 1_794_858_489_115, offsets, "/ckpt")
    assert record.to_json() == (
        '{"version": 1, "query": "q", "batch": 7, "time": 1794858489115, "topics": {"/default/orders": {"cluster": '
        '"danube-5f0c", "id": 12, "offsets": [4711, 0]}}, "checkpoint": "/ckpt"}'
    )
    assert parse_record(record.to_json()) == record
    for other in (None, 5, "", "{}", '{"version": 2}', '{"version": 1, "query": "q"}', "[" * 10_000):
        assert parse_record(other) is None


# -- compaction and orphans --------------------------------------------------------------------------------------------


def test_compaction_keeps_every_row_beside_a_running_landing(kind, tmp_path):
    table = table_at(kind, tmp_path / "t", partitionBy="day")
    append(table, rows(10))
    stop = threading.Event()
    written: list[int] = [1]

    def run() -> None:
        own = table_at(kind, tmp_path / "t")
        while written[0] < 12 and not stop.is_set():
            assert append(own, rows(10, 10 * written[0]), batch_id=written[0])
            written[0] += 1

    landing = threading.Thread(target=run)
    landing.start()
    before = 0
    try:
        while landing.is_alive():
            before += table.compact(1 << 27).files_before
    finally:
        stop.set()
        landing.join()
    before += table.compact(1 << 27).files_before
    assert written == [12]
    assert before > 0
    assert counted([stored(table)]) == counted([rows(120)])
    assert table.size().files == 2


def test_only_files_that_can_not_be_committed_any_more_are_orphans(kind, tmp_path):
    table = table_at(kind, tmp_path / "t")
    append(table, rows(10))
    lost = write(table, rows(10, 10), batch_id=1, task=1)
    append(table, rows(10, 10), batch_id=1)
    running = write(table, rows(10, 20), batch_id=2)
    pq.write_table(pa.table({"x": [1]}), (table.store.local or tmp_path) / "foreign.parquet")
    table.compact(1 << 27)  # the files that it replaced are of older versions, and not orphans

    assert [one.path for one in find_orphans(table)] == [one.path for one in lost]
    assert find_orphans(table, query="another") == []
    assert [one.path for one in remove_orphans(table)] == [one.path for one in lost]
    assert find_orphans(table) == []

    assert table.commit(running, LandingRecord(QUERY, 2))
    assert counted([stored(table)]) == counted([rows(30)])


def test_files_of_a_query_that_was_given_up_are_orphans_after_the_grace_period(kind, tmp_path):
    table = table_at(kind, tmp_path / "t")
    append(table, rows(10))
    files = write(table, rows(10, 10), batch_id=5)
    assert find_orphans(table, grace_s=3600) == []
    old = time.time() - 7200
    for one in files:
        os.utime((table.store.local or tmp_path) / one.path, (old, old))
    assert [one.path for one in find_orphans(table, grace_s=3600)] == [one.path for one in files]


def test_older_versions_of_a_delta_table_keep_their_files_until_they_expire(tmp_path):
    from deltalake import DeltaTable

    table = table_at("delta", tmp_path / "t")
    for batch_id in range(3):
        append(table, rows(10, 10 * batch_id), batch_id=batch_id)
    table.compact(1 << 27)
    DeltaTable(table.home).create_checkpoint()
    append(table, rows(10, 30), batch_id=3)
    assert remove_orphans(table) == []
    assert DeltaTable(table.home, version=3).to_pyarrow_table().num_rows == 30
    assert table.expire(3600) == 0
    assert table.expire(0) == 3
    assert stored(table).num_rows == 40
