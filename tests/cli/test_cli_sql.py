"""`danube sql` in DuckDB: what the text of a query means, what it prints, and what it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import commands
import pytest

import pydanube
from pydanube.cli.spark.duckdb_query import parse_query
from pydanube.model.errors import Invalid

Danube = Callable[..., commands.Ended]
ORDERS, USERS = "/default/sql-orders", "/default/sql-users"
SCHEMA = {"type": "object", "properties": {"id": {"type": "integer"}, "cents": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("text", "written", "topics"),
    [
        ("select * from `/default/o`", 'select * from "/default/o"', ["/default/o"]),
        ('from "/default/o" join `/default/u` using (id);', 'from "/default/o" join "/default/u" using (id);', None),
        ("select 'a `/default/x`' -- `/default/y`", "select 'a `/default/x`' -- `/default/y`", []),
        ("select 1 /* `/default/y` */", "select 1 /* `/default/y` */", []),
        ("select 'it''s' as `a ``b` ", "select 'it''s' as \"a `b\" ", []),
        ("select offset, o.offset from o order by OFFSET", 'select "offset", o."offset" from o order by "OFFSET"', []),
        ("select 1 limit 3 offset 6", "select 1 limit 3 offset 6", []),
        ("select a_offset, 'offset' from o", "select a_offset, 'offset' from o", []),
    ],
)
def test_names_are_written_as_duckdb_has_them(text: str, written: str, topics: list[str] | None) -> None:
    query = parse_query(text)
    assert query.text == written
    assert list(query.topics) == (["/default/o", "/default/u"] if topics is None else topics)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", r"the query is empty"),
        ("-- nothing", r"the query is empty"),
        ("selec 1", r'^line 1: syntax error at or near "selec"$'),
        ("select *\n  from `/default/x`\n where and 3", r'^line 3: syntax error at or near "and"$'),
        ("select * from /default/orders", r"^line 1: .*in backticks, as `/default/orders`"),
        ("select 'never ends", r"^line 1: unterminated"),
        ("select 1; select 2", r"there are 2 statements"),
        ("drop table `/default/x`", r"^DROP is not possible here: a query only reads"),
        ("copy (select 1) to 'x.csv'", r"^COPY is not possible here"),
        ("install httpfs", r"is not possible here"),
        ("set threads = 1", r"^SET is not possible here"),
        ("select * from `/default/or ders`", r"^`/default/or ders`: "),
        ("select * from `/default/x` join `/default/X` using (id)", r"differ only in upper and lower case"),
    ],
)
def test_a_query_that_cannot_be_run_is_refused(text: str, reason: str) -> None:
    with pytest.raises(Invalid, match=reason):
        parse_query(text)


@pytest.fixture(scope="module")
def topics(served: object) -> None:
    """Typed orders, one of which cannot be decoded, and users without a schema."""
    with pydanube.connect_blocking(served.url) as client:  # type: ignore[attr-defined]
        client.create_topic(ORDERS, partitions=2)
        client.schemas.register("sql-orders", json.dumps(SCHEMA), format="json")
        client.schemas.bind(ORDERS, "sql-orders", policy="none")
        with client.producer(ORDERS) as producer:
            for number in range(10):
                document = json.dumps({"id": number, "cents": number * 10}).encode()
                producer.send(document, key=f"user-{number % 2}")
            producer.send(b"broken", key="bad")
        with client.producer(USERS) as producer:
            producer.send_many(["Ännchen".encode(), b"Bob"], keys=["user-0", "user-1"])


@pytest.mark.usefixtures("topics")
def test_topics_are_joined_and_printed(danube: Danube) -> None:
    text = f"""
        select decode(u.payload) as name, sum(o.cents) as cents, count(*) as n
        from `{ORDERS}` o join `{USERS}` u on o.key = u.key group by all order by name
    """
    done = danube("sql", "--on-decode-error", "null", text)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["name", "cents", "n"],
        ["Bob", "250", "5"],
        ["Ännchen", "200", "5"],
    ]


@pytest.mark.usefixtures("topics")
def test_rows_are_limited_and_written_as_json_or_to_a_file(danube: Danube, tmp_path: Path) -> None:
    done = danube("sql", "--json", "--limit", "1", f"select key, offset from `{USERS}` order by offset")
    assert json.loads(done.stdout) == {"key": "user-0", "offset": 0}
    assert "there are more than 1 row" in done.stderr
    output = tmp_path / "rows.csv"
    done = danube("sql", "--format", "csv", "--output", str(output), f"select count(*) n from `{USERS}`")
    assert (done.returncode, output.read_text()) == (0, "n\n2\n")
    (described,) = [
        line.split() for line in danube("sql", f"describe `{ORDERS}`", "--raw").stdout.splitlines() if "payload" in line
    ]
    assert described[:2] == ["payload", "BLOB"]


@pytest.mark.usefixtures("topics")
@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        ([f"select * from `{ORDERS}`"], 1, "cannot be decoded: "),
        ([f"select * from `{ORDERS}`"], 1, "--on-decode-error null keeps such messages"),
        ([f"select nothing from `{USERS}`"], 1, 'column "nothing" not found'),
        (["select * from `/default/sql-user`"], 1, f"/default/sql-user does not exist: did you mean `{USERS}`?"),
        (["select * from read_text('/etc/hostname')"], 1, "file system operations are disabled"),
        (["select 1", "--engine", "duckdb", "--master", "local[1]"], 2, "--master names a Spark"),
        (["select 1", "--columns", "key"], 2, "--columns belongs to --engine spark"),
    ],
)
def test_what_cannot_be_answered_is_one_line(danube: Danube, arguments: list[str], code: int, reason: str) -> None:
    done = danube("sql", *arguments)
    assert done.returncode == code
    assert reason in done.stderr
    assert done.stdout == ""
    if code == 1:
        assert done.stderr.startswith("danube: ") and done.stderr.count("\n") == 1


@pytest.mark.process
@pytest.mark.usefixtures("topics")
def test_a_query_does_not_wait_for_pandas(served: object, tmp_path: Path) -> None:
    """Arrow imports it, if it is there, to look whether values are of a class of it."""
    (tmp_path / "pandas.py").write_text("import sys\nsys.exit('pandas is imported')\n")
    command = [sys.executable, "-m", "pydanube.cli", "sql", f"select count(*) n from `{USERS}`", "--json"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "DANUBE_URL": served.url}  # type: ignore[attr-defined]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (0, '{"n": 2}\n'), done.stderr
