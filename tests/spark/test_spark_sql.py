"""`danube sql`: what is wrong with a query is said before Spark starts, and only what it needs is read."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession
from spark_broker import Broker

import pydanube
from pydanube.cli.root import cli
from pydanube.cli.spark.sql_output import write_rows
from pydanube.model.errors import Invalid, NotFound
from pydanube.spark.errors import explain_sql
from pydanube.spark.sql import find_tables, parse_query, run_query

ORDERS, USERS = "/default/orders", "/default/users"
SCHEMA = {"type": "object", "properties": {"id": {"type": "integer"}, "cents": {"type": "integer"}}}


# -- the text of a query -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "topics"),
    [
        ("select * from `/default/orders`", [ORDERS]),
        ("SELECT o.key FROM `/default/orders` o JOIN `/default/users` u ON o.key = u.key;", [ORDERS, USERS]),
        ("with o as (select * from `/default/orders`) select count(*) from o, O", [ORDERS]),
        ("select * from `/default/orders` where key in (select key from `/default/users`)", [ORDERS, USERS]),
        ("select 1 union all select offset from `/default/orders` union select 2", [ORDERS]),
        ("describe `/default/orders`", [ORDERS]),
        ("select * from range(10)", []),
        ("select '/default/users' as `/default/x` from `/default/orders` -- `/default/y`", [ORDERS]),
    ],
)
def test_topics_are_found_where_tables_are(text: str, topics: list[str]) -> None:
    assert sorted(parse_query(text).topics) == topics


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", r"the query is empty"),
        ("-- nothing", r"the query is empty"),
        ("selec 1 from `/default/x`", r"^line 1, column 7 at '1': "),
        ("select *\n  from `/default/x`\n where and 3", r"^line 3, column 12 at '3': "),
        ("select * from /default/orders", r"^line 1, column 15 at '/': .*in backticks, as `/default/orders`"),
        ("select * from `/default/x` limit", r"^line 1, column 28 at 'limit': "),
        ("select 'never ends", r"^line 1, column 8: what begins here with ' is not closed"),
        ("select 1\n from `/default/x", r"^line 2, column 7: what begins here with ` is not closed"),
        ("select 1 /* never ends", r"^the query cannot be read: a text or a comment is not closed"),
        ("(" * 3000 + "1" + ")" * 3000, r"^the query cannot be read: it is nested too deeply"),
        ("-- all\n/* of */ show tables", r"^SHOW is not possible here"),
        ("explain select 1", r"^EXPLAIN is not possible here"),
        ("table `/default/orders`", r"^TABLE is not possible here"),
        ("select * from `/default/x` join `/default/X`", r"differ only in upper and lower case: .* two queries"),
        ("select 1; select 2", r"there are 2 statements"),
        ("drop table `/default/x`", r"^DROP is not possible here: a query only reads"),
        ("insert into `/default/x` select 1", r"^INSERT is not possible here"),
        ("create table x as select 1", r"^CREATE is not possible here"),
        ("select * from orders", r"there is no table orders: .*; did you mean `/default/orders`\?"),
        ("select * from shop.orders", r"there is no table shop.orders: .*; did you mean `/shop/orders`\?"),
        ("select * from `/default/or ders`", r"^`/default/or ders`: "),
        ("select * from `/orders`", r"^`/orders`: "),
    ],
)
def test_a_query_that_cannot_be_run_is_refused_with_its_place(text: str, reason: str) -> None:
    with pytest.raises(Invalid, match=reason):
        parse_query(text)


def test_failures_of_spark_are_one_line_with_their_place() -> None:
    column = (
        "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `x` cannot be resolved. Did you mean one of the "
        "following? [`id`]. SQLSTATE: 42703; line 2 pos 7;\n'Project ['x]\n+- View\n\n\tat org.apache.spark.Foo"
    )
    reason = "a column with name `x` cannot be resolved. Did you mean one of the following? [`id`]"
    assert explain_sql(Exception(column)) == f"line 2, column 8: {reason}"
    syntax = "\n[PARSE_SYNTAX_ERROR] Syntax error at or near 'x'. SQLSTATE: 42601 (line 1, pos 9)\n\n== SQL ==\nselect"
    assert explain_sql(Exception(syntax)) == "line 1, column 10: syntax error at or near 'x'"
    ours = (
        "Job aborted: An exception was thrown\npydanube.model.errors.Invalid: /default/o[0] offset 3: no JSON\n  at x"
    )
    assert explain_sql(Exception(ours)) == "/default/o[0] offset 3: no JSON"


# -- rows --------------------------------------------------------------------------------------------------------------


ROWS = pa.table(
    {
        "id": pa.array([1, None]),
        "payload": pa.array([b"text", b"\xff"]),
        "at": pa.array([datetime(2026, 1, 2, 3, 4, 5, 600_000, UTC), None], pa.timestamp("us", "UTC")),
        "tags": pa.array([["a", 'b"'], None]),
        "map": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
        "sum": pa.array([Decimal("1.50"), Decimal("2.00")], pa.decimal128(9, 2)),
    }
)


def test_rows_are_json_lines_csv_a_table_or_parquet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_rows(ROWS, "json", None)
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    expected = {"id": 1, "payload": "text", "at": "2026-01-02T03:04:05.600000+00:00", "tags": ["a", 'b"']}
    assert first == {**expected, "map": {"k": 1}, "sum": "1.50"}
    assert second == {"id": None, "payload": "/w==", "at": None, "tags": None, "map": None, "sum": 2}
    write_rows(ROWS, "csv", tmp_path / "rows.csv")
    assert (tmp_path / "rows.csv").read_text().splitlines() == [
        "id,payload,at,tags,map,sum",
        '1,text,2026-01-02T03:04:05.600+00:00,"[""a"", ""b\\""""]","{""k"": 1}",1.50',
        ",/w==,,,,2.00",
    ]
    write_rows(ROWS, "table", None)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["id", "payload", "at", "tags", "map", "sum"]
    assert lines[2].split() == ["null", r"\xff", "null", "null", "null", "2.00"]
    write_rows(ROWS, "parquet", tmp_path / "rows.parquet")
    assert pyarrow.parquet.read_table(tmp_path / "rows.parquet").equals(ROWS)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["rows.csv", "rows.parquet"]


def test_maps_are_objects_whatever_is_in_them(capsys: pytest.CaptureFixture[str]) -> None:
    attributes = pa.array([[], [("k", 1.5)], None], pa.map_(pa.string(), pa.float64()))
    numbers = pa.array([[(1, [(b"\xff", 2)])], [], None], pa.map_(pa.int32(), pa.map_(pa.binary(), pa.int32())))
    record = pa.array([[({"a": 1}, 2)], [], None], pa.map_(pa.struct({"a": pa.int32()}), pa.int32()))
    write_rows(pa.table({"attributes": attributes, "numbers": numbers, "record": record}), "json", None)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {"attributes": {}, "numbers": {"1": {"/w==": 2}}, "record": {'{"a": 1}': 2}},
        {"attributes": {"k": 1.5}, "numbers": {}, "record": []},
        {"attributes": None, "numbers": None, "record": None},
    ]


@pytest.mark.parametrize("form", ["json", "parquet"])
def test_two_columns_of_one_name_are_refused_where_one_would_be_lost(form: str, tmp_path: Path) -> None:
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["key", "key"])
    with pytest.raises(Invalid, match=r"two columns are called 'key': .* with AS"):
        write_rows(twice, form, tmp_path / "rows")
    assert not list(tmp_path.iterdir())
    write_rows(twice, "csv", tmp_path / "rows.csv")
    assert (tmp_path / "rows.csv").read_text() == "key,key\n1,2\n"


def test_a_result_without_rows_has_its_columns(capsys: pytest.CaptureFixture[str]) -> None:
    write_rows(ROWS.slice(0, 0), "csv", None)
    assert capsys.readouterr().out == "id,payload,at,tags,map,sum\n"


# -- the command, before Spark starts ----------------------------------------------------------------------------------


def call(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["sql", "--engine", "spark", *arguments], standalone_mode=False)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "give a query, or --file"),
        (["select 1", "--format", "parquet"], "--format parquet needs --output"),
        (["select 1", "--json", "--format", "csv"], "--json and --format csv contradict"),
        (["select 1", "--output", "/no/such/directory/x"], "there is no directory /no/such/directory that"),
    ],
)
def test_options_that_contradict_each_other_are_wrong_usage(arguments: list[str], reason: str) -> None:
    assert reason in str(call(*arguments).exception)


def test_bad_sql_and_unknown_topics_are_refused_before_spark_starts(
    broker: Broker, client: pydanube.BlockingClient
) -> None:
    client.create_topic(ORDERS)
    assert "line 1, column 7" in str(call("selec 1", "--url", broker.url).exception)
    found = call("select * from `/default/order`", "--url", broker.url).exception
    assert isinstance(found, NotFound)
    assert "/default/order does not exist: did you mean `/default/orders`?" in found.message


# -- with Spark --------------------------------------------------------------------------------------------------------


@pytest.fixture
def topics(client: pydanube.BlockingClient) -> datetime:
    """Typed orders, the first ten of which cannot be decoded, and users without a schema. Returns when others came."""
    client.create_topic(ORDERS)
    client.schemas.register("orders", json.dumps(SCHEMA), format="json")
    client.schemas.bind(ORDERS, "orders", policy="none")
    with client.producer(ORDERS) as producer:
        producer.send_many([b"broken"] * 10, keys=["bad"] * 10)
        payloads = [json.dumps({"id": number, "cents": number * 10}).encode() for number in range(10, 20)]
        producer.send_many(payloads, keys=[f"user-{number % 2}" for number in range(10, 20)])
    with client.producer(USERS) as producer:
        producer.send_many([b"Ann", b"Bob"], keys=["user-0", "user-1"])
    with client.reader(ORDERS, start=10) as reader:
        return next(iter(reader)).append_time


def test_a_filtered_query_reads_nothing_else_and_topics_are_joined(
    spark: SparkSession, broker: Broker, client: pydanube.BlockingClient, topics: datetime
) -> None:
    """A message that cannot be decoded fails the query that reads it: so those that a filter rules out are not read."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")

    def ask(text: str) -> list[dict[str, object]]:
        query = parse_query(text)
        tables = find_tables(client, query, options={"servers": broker.servers})
        assert {one.topic: one.subject for one in tables} == {ORDERS: "orders", USERS: ""}
        return run_query(spark, query, tables).toArrow().to_pylist()  # type: ignore[no-any-return]

    joined = ask(f"""
        with o as (select * from `{ORDERS}` where offset >= 10)
        select cast(u.payload as string) name, sum(o.cents) cents, (
            select count(*) from `{ORDERS}` where append_time >= timestamp'{topics.isoformat()}'
        ) later, (select sum(id) from `{ORDERS}` where key = 'user-1') ids
        from o join `{USERS}` u on o.key = u.key group by u.payload order by name
    """)
    assert joined == [
        {"name": "Ann", "cents": 700, "later": 10, "ids": 75},
        {"name": "Bob", "cents": 750, "later": 10, "ids": 75},
    ]
    with pytest.raises(Exception, match=r"message \d of /default/orders") as failed:
        ask(f"select sum(o.id) from `{ORDERS}` o where o.offset > 8 or o.key in (select key from `{USERS}`)")
    assert ORDERS in explain_sql(failed.value) and "\n" not in explain_sql(failed.value)


@pytest.mark.spark_kill
def test_the_command_prints_rows_and_nothing_else(
    broker: Broker, client: pydanube.BlockingClient, topics: datetime
) -> None:
    command = [sys.executable, "-m", "pydanube.cli", "sql", "--engine", "spark", "--url", broker.url]
    text = f"select key, count(*) n, sum(cents) cents from `{ORDERS}` where offset >= 10 group by key order by key"
    done = subprocess.run([*command, text], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["key", "n", "cents"],
        ["user-0", "5", "700"],
        ["user-1", "5", "750"],
    ]
    done = subprocess.run([*command, f"select nothing from `{ORDERS}`"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 1
    assert done.stderr.startswith("danube: line 1, column 8: ") and done.stderr.count("\n") == 1


@pytest.mark.spark_kill
def test_ctrl_c_ends_the_command_while_it_reads(broker: Broker, topics: datetime) -> None:
    endless = f"select count(*) from `{USERS}` a, range(1000000000) b, range(1000000) c where hash(b.id, c.id) = 1"
    terminal, stderr = os.openpty()
    command = [sys.executable, "-m", "pydanube.cli", "sql", "--engine", "spark", "--url", broker.url, endless]
    running = subprocess.Popen(command, stderr=stderr, start_new_session=True)
    os.close(stderr)
    shown = b""
    while b"reading 2 messages" not in shown:
        shown += os.read(terminal, 4096)
    for _ in range(3):
        shown += os.read(terminal, 4096)  # the spinner goes on while Spark works
    running.send_signal(signal.SIGINT)
    assert running.wait(timeout=300) == 130
    with suppress(OSError):  # the other end is closed
        while data := os.read(terminal, 4096):
            shown += data
    os.close(terminal)
    assert shown.endswith(b"danube: interrupted\r\n")
    assert b"Traceback" not in shown, shown.decode()
