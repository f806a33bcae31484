"""`danube sql`: runs a query over topics in DuckDB, or in a Spark of its own, and prints the rows."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, Final

import click

from pydanube.cli.connecting import ANSWER_SECONDS, REACH_SECONDS, with_client
from pydanube.cli.credential_options import show_to_children
from pydanube.cli.options import broker_options, examples
from pydanube.cli.output import fail, note, plural, wants_json
from pydanube.cli.spark.sql_output import FORMATS, write_rows
from pydanube.cli.standard_streams import is_terminal, need_stdout
from pydanube.cli.synonyms import Command
from pydanube.cli.tls_options import spark_tls_options, tls_options
from pydanube.model.errors import DanubeError, Invalid

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import SparkSession

    from pydanube.client.tables.read_types import OnDecodeError
    from pydanube.spark.sql import Query, TopicTable

SETTINGS: Final = {
    "spark.log.level": "OFF",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
}
"""Failures are reported by the command, and a JVM that runs one query had better start soon."""

_OPTIONS_HERE: Final = {"the option onDecodeError=null": "--on-decode-error null", "the option columns=": "--columns "}
"""Options of the data source that its errors advise, and the options of this command."""

ENGINES: Final = ("duckdb", "spark")
LOCAL_MASTER: Final = "local[*]"

TABLE_ROWS: Final = 200
"""The rows of a table if --limit does not say: more than anybody reads on a terminal."""


@click.command(
    cls=Command,
    epilog=examples(
        """
danube sql 'select * from `/default/orders` limit 10'
danube sql 'select key, count(*) n from `/default/orders` group by key order by n desc'
danube sql 'select * from `/default/orders` where offset >= 1000 and partition = 0'
danube sql 'select * from `/default/orders` where append_time > now() - interval 10 minutes'
danube sql 'select o.id, u.name from `/default/orders` o join `/default/users` u on o.key = u.key'
danube sql --raw 'select cast(payload as string) from `/default/orders`'
danube sql 'describe `/default/orders`'
danube sql --file report.sql --format csv > report.csv
danube sql 'select * from `/default/orders`' --format parquet --output orders.parquet
danube sql --engine spark 'select count(*) from `/default/everything`'
"""
    ),
)
@click.argument("query", required=False)
@click.option(
    "-f", "--file", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Read the query from a file."
)
@click.option("--limit", type=click.IntRange(0), help=f"The most rows; 0: all.  [default: {TABLE_ROWS} for a table]")
@click.option("--format", "form", type=click.Choice(FORMATS), help="How rows are written.  [default: table]")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write to a file.")
@click.option("--raw", is_flag=True, help="Do not decode: payloads are bytes, also where a topic has a schema.")
@click.option("--columns", help="The columns of messages that typed topics have, with commas between them.")
@click.option(
    "--on-decode-error",
    type=click.Choice(["fail", "null"]),
    help="null: keep messages that cannot be decoded, with the columns payload and decode_error.",
)
@click.option(
    "--engine",
    type=click.Choice(ENGINES),
    help="duckdb: in memory; spark: for large topics.  [default: duckdb, or spark with --master]",
)
@click.option("--master", help=f"The Spark that runs the query.  [default: {LOCAL_MASTER}]")
@broker_options
def sql(
    query: str | None,
    file: Path | None,
    limit: int | None,
    form: str | None,
    output: Path | None,
    raw: bool,
    columns: str | None,
    on_decode_error: str | None,
    engine: str | None,
    master: str | None,
    url: str,
) -> None:
    """Query topics with SQL.

    A topic is a table: its name stands in backticks. One that is bound to a subject has the columns of its schema
    beside those of messages, another one the payload as bytes. The query sees all messages that are stored when it
    starts.

    DuckDB reads the topics into memory. Spark starts in some seconds, and applies filters on partition, offset,
    append_time, publish_time and key before messages are read.
    """
    form = _form(form, output)
    text = _text(query, file)
    need_stdout()
    most = limit if limit is not None else TABLE_ROWS if form == "table" else 0
    try:
        if _engine(engine, master) == "duckdb":
            if columns is not None:
                raise click.UsageError("--columns belongs to --engine spark: name the columns in the query")
            _write(_run_in_duckdb(text, url, raw, on_decode_error, most), form, output, most)
        else:
            given = {"servers": url, "columns": columns, "onDecodeError": on_decode_error, **spark_tls_options()}
            options = {name: value for name, value in given.items() if value is not None}
            _write(_run_in_spark(text, url, raw, options, master or LOCAL_MASTER, most), form, output, most)
    except KeyboardInterrupt:
        raise click.Abort from None


def _engine(engine: str | None, master: str | None) -> str:
    """Return what runs the query: Spark if it was asked for, or if it is installed and DuckDB is not."""
    if engine == "duckdb" and master is not None:
        raise click.UsageError("--master names a Spark, and --engine duckdb runs none: give one of them")
    if engine or master:
        return engine or "spark"
    return "spark" if find_spec("duckdb") is None and find_spec("pyspark") is not None else "duckdb"


def _run_in_duckdb(text: str, url: str, raw: bool, on_decode_error: str | None, most: int) -> pyarrow.Table:
    _leave_out_pandas()
    try:
        from pydanube.cli.spark.duckdb_query import parse_query, read_topics, run_query

        query = parse_query(text)
        with _status() as say:
            say("reading " + ", ".join(query.topics))
            errors: OnDecodeError = "keep" if on_decode_error == "null" else "raise"
            topics = with_client(url, lambda client: read_topics(client, query, raw=raw, errors=errors))
            say("running the query")
            return run_query(query, topics, most)
    except Invalid as error:
        told = error.message.partition('. errors="skip"')[0]
        advice = ". --on-decode-error null keeps such messages" if told != error.message else ""
        raise Invalid(told + advice) from None
    except ModuleNotFoundError as error:
        fail(f"danube sql needs {error.name}, which is not installed: pip install 'pydanube[sql]'")


class _WithoutPandas(MetaPathFinder):
    """Says that pandas is not installed."""

    def find_spec(self, fullname: str, *_: object) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("danube sql leaves out pandas", name=fullname)


def _leave_out_pandas() -> None:
    """Keep Arrow from importing pandas, which takes longer than a small query: it would only look whether values are of
    a class of pandas. Does nothing in a process that is not this command alone."""
    if click.get_current_context().obj:
        sys.meta_path.insert(0, _WithoutPandas())


def _run_in_spark(text: str, url: str, raw: bool, options: dict[str, str], master: str, most: int) -> pyarrow.Table:
    show_to_children()
    try:
        from pydanube.spark.sql import parse_query
    except ModuleNotFoundError as error:
        fail(f"danube sql needs {error.name}, which is not installed: pip install 'pydanube[spark]'")
    parsed = parse_query(text)
    with _status() as say:
        tables = _find_tables(parsed, url, raw, options)
        say("starting Spark")
        with _spark(master) as spark:
            say(f"reading {plural(sum(one.messages for one in tables), 'message')}")
            return _collect(spark, parsed, tables, most)


def _form(form: str | None, output: Path | None) -> str:
    """Return the format that was chosen. Raises UsageError for a contradiction."""
    if wants_json() and form not in (None, "json"):
        raise click.UsageError(f"--json and --format {form} contradict each other: give one of them")
    chosen = "json" if wants_json() else form or "table"
    if chosen == "parquet" and output is None:
        raise click.UsageError("--format parquet needs --output FILE")
    if output is not None and not (output.parent.is_dir() and os.access(output.parent, os.W_OK | os.X_OK)):
        raise click.UsageError(f"--output {output}: there is no directory {output.parent} that can be written")
    return chosen


def _text(query: str | None, file: Path | None) -> str:
    if (query is None) == (file is None):
        raise click.UsageError("give a query, or --file with one; a query is one argument: put quotes around it")
    try:
        return query if query is not None else file.read_text()  # type: ignore[union-attr]
    except UnicodeDecodeError:
        raise Invalid(f"{file} is not text in UTF-8") from None


def _find_tables(query: Query, url: str, raw: bool, options: dict[str, str]) -> list[TopicTable]:
    from pydanube.client.blocking.client import connect_blocking
    from pydanube.spark.sql import find_tables

    with connect_blocking(url, timeout=REACH_SECONDS, **tls_options()):
        pass  # the broker is reachable
    with connect_blocking(url, timeout=ANSWER_SECONDS, **tls_options()) as client:
        return find_tables(client, query, raw=raw, options=options)


def _collect(spark: SparkSession, query: Query, tables: list[TopicTable], most: int) -> pyarrow.Table:
    """Return the rows: one more than `most` if there are more; 0: all of them."""
    from pydanube.spark.errors import explain_sql
    from pydanube.spark.sql import run_query

    logging.disable(logging.CRITICAL)  # PySpark and py4j log failures and Ctrl-C with stack traces; we report them
    try:
        frame = run_query(spark, query, tables)
        return (frame.limit(most + 1) if most else frame).toArrow()
    except DanubeError:
        raise
    except Exception as error:
        if _was_interrupted(error):
            raise KeyboardInterrupt from None
        reason = explain_sql(error)
        for option, ours in _OPTIONS_HERE.items():
            reason = reason.replace(option, ours)
        fail(reason)


def _was_interrupted(error: BaseException) -> bool:
    """Return whether an error is what Spark makes of Ctrl-C: that the query failed because its jobs were cancelled."""
    context = error.__context__
    return isinstance(error, KeyboardInterrupt) or (context is not None and _was_interrupted(context))


def _write(rows: pyarrow.Table, form: str, output: Path | None, most: int) -> None:
    more = 0 < most < rows.num_rows
    shown = rows.slice(0, most) if more else rows
    write_rows(shown, form, output)
    if output is not None:
        note(f"wrote {plural(shown.num_rows, 'row')} to {output}")
    if more:
        note(f"there are more than {plural(most, 'row')}: --limit N shows more, --limit 0 all of them")


@contextmanager
def _spark(master: str) -> Iterator[SparkSession]:
    """Yield a Spark session, and stop it. What its JVM says on stderr is shown only if it does not start."""
    try:
        from pydanube.spark import session
    except ModuleNotFoundError as error:
        fail(str(error))
    with TemporaryFile() as log:
        try:
            with _stderr_to(log.fileno()):
                spark = session("danube sql", master, **SETTINGS)
        except (DanubeError, KeyboardInterrupt):
            raise
        except Exception as error:
            log.seek(0)
            note(log.read().decode(errors="replace").rstrip())
            fail(f"Spark does not start on {master}: {' '.join(str(error).split())[:300]}")
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def _stderr_to(target: int) -> Iterator[None]:
    """Let processes that are started in the block write their stderr to the file `target`."""
    own = os.dup(2)
    try:
        os.dup2(target, 2)
        yield
    finally:
        os.dup2(own, 2)
        os.close(own)


@contextmanager
def _status() -> Iterator[Any]:
    """Yield a function that shows what is being done on a terminal's stderr, until the block ends."""
    if not is_terminal(sys.stderr):
        yield lambda _text: None
        return
    from rich.console import Console

    # A copy of stderr: the spinner goes on while the JVM, which starts meanwhile, gets another one.
    with os.fdopen(os.dup(2), "w") as own, Console(file=own).status("connecting") as status:
        yield lambda text: status.update(text) if text else status.stop()
