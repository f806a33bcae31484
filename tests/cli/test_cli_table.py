"""`danube table` against a real broker, without Spark: what landings recorded, and what is refused at once."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from commands import danube

import pydanube
from pydanube.spark.reading.offsets import Offsets, TopicOffsets
from pydanube.spark.tables.data_files import FileOrigin, write_rows
from pydanube.spark.tables.landed import LandingRecord
from pydanube.spark.tables.options import TableOptions
from pydanube.spark.tables.table_formats import open_table

TOPIC = "/default/landed-by-the-command-line"


def run(served, *arguments: object, code: int = 0) -> str:
    done = danube("--url", served.url, "table", *map(str, arguments))
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


@pytest.fixture(scope="module")
def lake(served, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Delta and an Iceberg table with the first 30 messages of each partition, in three files; one has an orphan."""
    from pydanube.spark.reading.broker_queries import BrokerQueries

    directory = tmp_path_factory.mktemp("lake")
    with pydanube.connect_blocking(served.url) as client:
        client.create_topic(TOPIC, partitions=2)
        for partition in range(2):
            with client.producer(TOPIC, partition_by=partition) as producer:
                for number in range(40):
                    producer.send_nowait(b"%d" % number)
                producer.flush()
    with BrokerQueries(served.url, 30) as queries:
        identity = queries.view_topics([TOPIC])[TOPIC].identity
    for kind in ("delta", "iceberg"):
        table = open_table(TableOptions.parse(kind, {"path": str(directory / kind)}))
        rows = pa.record_batch({"offset": pa.array(range(20), pa.int64())})
        target = table.prepare(rows.schema)
        for batch in range(3):
            offsets = Offsets({TOPIC: TopicOffsets(identity, (10 * (batch + 1),) * 2)})
            files = write_rows(target, FileOrigin("query-1", batch, 0), [rows])
            table.commit(files, LandingRecord("query-1", batch, offsets=offsets, checkpoint=f"/ckpt/{kind}"))
        write_rows(target, FileOrigin("query-1", 1, 7), [rows])
    return directory


def test_tables_are_listed_with_topics_and_offsets(served, lake):
    found = json.loads(run(served, "list", lake, "--json"))
    assert [(one["table"], one["format"], one["rows"]) for one in found] == [
        (str(lake / "delta"), "delta", 60),
        (str(lake / "iceberg"), "iceberg", 60),
    ]
    assert [one["landings"][0]["topics"] for one in found] == [{TOPIC: [30, 30]}] * 2
    lines = run(served, "list", lake / "delta").splitlines()
    assert len(lines) == 2 and "30, 30" in lines[1] and TOPIC in lines[1]
    assert "there is no table in" in run(served, "list", lake / "nothing", code=1)


def test_the_lag_is_counted_for_each_partition(served, lake):
    found = json.loads(run(served, "lag", lake, "--json"))
    assert [(one["partition"], one["landed"], one["end"], one["behind"]) for one in found] == [
        (0, 30, 40, 10),
        (1, 30, 40, 10),
    ] * 2
    assert "behind" in run(served, "lag", lake / "iceberg").splitlines()[0]


@pytest.mark.parametrize("kind", ["delta", pytest.param("iceberg", marks=pytest.mark.exhaustive)])
def test_a_table_is_compacted_and_cleaned(served, lake, kind):
    done = json.loads(run(served, "compact", lake / kind, "--json"))
    assert (done["files_before"], done["files_after"], done["orphans"], done["expired"]) == (3, 1, 1, 0)
    assert done["bytes_before"] > 0 and done["bytes_after"] > 0
    assert run(served, "compact", lake / kind) == "no small files to compact\n"
    assert "--retain must be at least 1h" in run(served, "compact", lake / kind, "--retain", "10m", code=2)
    (described,) = json.loads(run(served, "list", lake / kind, "--json"))
    assert (described["rows"], described["files"]) == (60, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((TOPIC, "{lake}/delta"), "continue that landing with --checkpoint /ckpt/delta"),
        ((TOPIC, "{lake}/delta", "--format", "iceberg"), "is a table of the format delta"),
        (("/default/nobody-made-this", "{lake}/new"), "does not exist"),
        ((TOPIC, "s3://bucket/table"), "name a checkpoint directory"),
        ((TOPIC, "s3://bucket/table", "--format", "iceberg"), "needs a catalog"),
        ((TOPIC, "{lake}/new", "--partition-by", "key,key"), "more than once"),
    ],
)
def test_a_landing_that_cannot_work_is_refused_in_one_line_before_spark_starts(served, lake, arguments, message):
    said = run(served, "land", *(one.format(lake=lake) for one in arguments), code=1)
    assert message in said
    assert said.count("\n") == 1
    assert not (lake / "new").exists()


def test_options_of_decoding_need_decode(served, lake):
    assert "are for --decode" in run(served, "land", TOPIC, lake / "new", "--on-decode-error", "null", code=2)
