"""`danube pipeline`: runs, checks and lists Spark pipelines from YAML files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from pydanube.cli.credential_options import choose_broker, credential_options, show_to_children
from pydanube.cli.options import Parsed, examples, json_option
from pydanube.cli.output import emit_json, fail, note, plural, shown_as_json, table, wants_json
from pydanube.cli.standard_streams import is_terminal, need_stdout
from pydanube.cli.synonyms import Group
from pydanube.model.errors import Invalid, Unavailable

if TYPE_CHECKING:
    from pydanube.spark.pipelines.definition import Pipeline
    from pydanube.spark.pipelines.loading import CheckedFile
    from pydanube.spark.pipelines.progress import PipelineStatus

SUFFIXES: Final = (".yaml", ".yml")
METRICS_SECONDS: Final = 1.0
NEEDED: Final = "pipelines need the extra 'spark': pip install 'pydanube[spark]'"


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise Invalid(f"{text!r} is no variable: write it as NAME=VALUE, for example --set DIRECTORY=/data")
    return name, value


def _master(text: str) -> str:
    from pydanube.spark.pipelines.parsing import parse_master

    return parse_master(text)


file_argument = click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
_only_url_option = click.option(
    "--url", help="Where the broker is, instead of what the file says. Default: the file, DANUBE_URL."
)


def url_option(command: Any) -> Any:
    """Add to a command the options that tell where the broker is, and as whom."""
    return _only_url_option(credential_options(command))


set_option = click.option(
    "--set",
    "variables",
    type=Parsed("name=value", _variable),
    multiple=True,
    metavar="NAME=VALUE",
    help="The value of ${NAME} in the file, before that of the environment; repeat it.",
)


@click.group(
    cls=Group,
    epilog=examples(
        """
danube pipeline validate orders.yaml
danube pipeline run orders.yaml
danube pipeline run orders.yaml --once --metrics-file /var/lib/node_exporter/orders.prom
danube pipeline list pipelines/
"""
    ),
)
def pipeline() -> None:
    """Run, check and list Spark pipelines from YAML files.

    A pipeline file names sources (topics), transforms (SQL or Python functions), expectations and sinks (tables, files,
    topics). docs/spark/pipelines.md explains every key.
    """


@pipeline.command(
    epilog=examples(
        """
danube pipeline run orders.yaml                             until Ctrl-C
danube pipeline run orders.yaml --once                      all that is there, then end
danube pipeline run orders.yaml --master spark://host:7077
danube pipeline run orders.yaml --set DATA=/data --url danube://broker:6655
danube pipeline run orders.yaml --json >> batches.jsonl     one JSON document for each batch
danube pipeline run orders.yaml --metrics-port 9100         http://127.0.0.1:9100/metrics
"""
    )
)
@file_argument
@click.option("--once", is_flag=True, help="Process everything that is there, then end.")
@click.option("--master", type=Parsed("master", _master), help="Where Spark runs, instead of what the file says.")
@url_option
@set_option
@click.option(
    "--metrics-file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="F.prom",
    help="Write figures as Prometheus text to this file, every second.",
)
@click.option(
    "--metrics-port", type=click.IntRange(0, 65535), metavar="P", help="Serve them on 127.0.0.1; 0: any port."
)
@json_option
def run(
    file: Path,
    once: bool,
    master: str | None,
    url: str | None,
    variables: tuple[tuple[str, str], ...],
    metrics_file: Path | None,
    metrics_port: int | None,
) -> None:
    """Check a pipeline file and run it.

    Every sink is a streaming query of its own, exactly once by its checkpoint; a query that fails is started again, up
    to three times, without repeating the others. A terminal shows a live table; otherwise, or with --json, every batch
    is a line of JSON on stdout. Ctrl-C and SIGTERM end it after the batch (exit code 0), a second Ctrl-C at once.
    """
    need_stdout()
    url = _given_url(url)
    from pydanube.runtime.signals import StopSignals

    with _needed_packages():
        from pydanube.spark.pipelines import queries  # noqa: F401  fails here if Spark is missing
        from pydanube.spark.pipelines.runner import RunOptions, start_session
        from pydanube.spark.pipelines.runner import run as run_pipeline

    from pydanube.cli.spark.pipeline_view import json_view, live_view

    loaded = _load(file, dict(variables), url)
    with ExitStack() as stack:
        measure = _metrics(stack, metrics_file, metrics_port)
        note(f"starting Spark for pipeline {loaded.name}")
        spark = start_session(loaded, master)
        stack.callback(spark.stop)
        signals = stack.enter_context(StopSignals())
        is_ending = False
        live = is_terminal(sys.stdout) and not wants_json()
        view = stack.enter_context(live_view(loaded) if live else json_view(loaded))

        def on_status(status: PipelineStatus) -> None:
            nonlocal is_ending
            if signals.stop.is_set() and not is_ending:
                is_ending = True
                note("ending after the batch; again to interrupt it")
            view.status(status)
            measure(status, False)

        options = RunOptions(servers=url, master=master, once=once, spark=spark)
        try:
            status = run_pipeline(
                loaded,
                options,
                stop=signals.stop,
                interrupt=signals.interrupt,
                pause=signals.wait,
                on_batch=view.batch,
                on_status=on_status,
            )
        finally:
            view.end()
        measure(status, True)
    if signals.interrupt.is_set():
        raise click.Abort
    totals = ", ".join(f"{one.name} {one.rows:,}" for one in status.queries.values())
    note(f"pipeline {loaded.name} ended; messages read: {totals}")


@pipeline.command(
    epilog=examples(
        """
danube pipeline validate orders.yaml
danube pipeline validate pipelines/*.yaml --offline         without a broker
danube pipeline validate orders.yaml --json
"""
    )
)
@click.argument("files", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option("--offline", is_flag=True, help="Ask no broker: topics and schemas are not checked.")
@url_option
@set_option
@json_option
def validate(files: tuple[Path, ...], offline: bool, url: str | None, variables: tuple[tuple[str, str], ...]) -> None:
    """Check pipeline files without starting Spark.

    Every problem is printed as FILE:LINE:COLUMN: message. Checked are keys and values, names, references and cycles,
    SQL and its columns, functions, options, paths, and with a broker the topics, subjects and schema versions. A broker
    that cannot be reached is noted, and the rest is checked.
    """
    url = _given_url(url)
    found: list[CheckedFile] = []
    with _needed_packages():
        from pydanube.spark.pipelines.loading import check_file
    for file in files:
        try:
            checked = check_file(file, variables=dict(variables), servers=url, offline=offline)
        except Unavailable as error:
            note(f"{file}: topics and schemas are not checked: {error.message}")
            checked = check_file(file, variables=dict(variables))
        found.append(checked)
    problems = [problem for checked in found for problem in checked.problems]
    if wants_json():
        emit_json(
            [
                {"file": one.place.file, "line": one.place.line, "column": one.place.column, "message": one.message}
                for one in problems
            ]
        )
    else:
        for problem in problems:
            click.echo(str(problem))
        for file, checked in zip(files, found, strict=True):
            if checked.pipeline is not None:
                click.echo(f"{file}: ok: {_summary(checked.pipeline)}")
    if problems:
        fail(plural(len(problems), "problem"))


@pipeline.command(
    "list",
    epilog=examples(
        """
danube pipeline list orders.yaml
danube pipeline list pipelines/ --json
"""
    ),
)
@click.argument("paths", type=click.Path(path_type=Path, exists=True), nargs=-1, required=True, metavar="FILE|DIR...")
@set_option
@json_option
def list_pipelines(paths: tuple[Path, ...], variables: tuple[tuple[str, str], ...]) -> None:
    """List pipelines with their sources and sinks, and how far each has come.

    The last batch that a query has completed, and when, comes from its checkpoint; no broker and no Spark is needed.
    """
    with _needed_packages():
        from pydanube.spark.pipelines.loading import check_file
    files = [file for path in paths for file in _files(path)]
    checked = [(file, check_file(file, variables=dict(variables))) for file in files]
    if shown_as_json([_as_dict(file, one) for file, one in checked]):
        return
    rows = [row for file, one in checked for row in _rows(file, one)]
    table(["file", "pipeline", "sources", "query", "target", "state", "when"], rows)


# -- parts of the commands ---------------------------------------------------------------------------------------------


def _given_url(url: str | None) -> str | None:
    """Return the broker of the command line, also that of `danube --url URL pipeline ...`; None: none was given."""
    from pydanube.client.connection.servers import parse_servers

    context = click.get_current_context()
    url = choose_broker(context, url or context.find_root().params.get("url"), named_only=True)
    show_to_children()
    try:
        if url is not None:
            parse_servers(url)
    except Invalid as error:
        raise click.BadParameter(error.message, param_hint="--url") from None
    return url


@contextmanager
def _needed_packages() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("pyspark", "yaml", "sqlglot", "pyarrow", "py4j"):
            fail(f"{error.name} is not installed: {NEEDED}")
        raise


def _load(file: Path, variables: dict[str, str], url: str | None) -> Pipeline:
    from pydanube.spark.pipelines.loading import check_file

    checked = check_file(file, variables=variables, servers=url, offline=False)
    if checked.pipeline is None:
        for problem in checked.problems:
            note(str(problem))
        fail(f"{file} has {plural(len(checked.problems), 'problem')}: nothing was started")
    return checked.pipeline


def _metrics(stack: ExitStack, file: Path | None, port: int | None) -> Callable[[PipelineStatus, bool], None]:
    """Return a function that publishes the figures, at most every METRICS_SECONDS unless it is the last time."""
    from pydanube.runtime.clock import SystemClock
    from pydanube.spark.pipelines.metrics import MetricsServer, write_file

    clock, due = SystemClock(), 0.0
    server = stack.enter_context(MetricsServer(port)) if port is not None else None
    if server is not None:
        note(f"metrics at http://127.0.0.1:{server.port}/metrics")

    def measure(status: PipelineStatus, last: bool) -> None:
        nonlocal due
        if not last and clock.monotonic() < due:
            return
        due = clock.monotonic() + METRICS_SECONDS
        if server is not None:
            server.show(status)
        if file is not None:
            write_file(status, file)

    return measure


def _summary(found: Pipeline) -> str:
    parts = [plural(len(found.sources), "source"), plural(len(found.transforms), "transform")]
    expected = sum(len(rules) for rules in found.expectations.values())
    return ", ".join([*parts, plural(expected, "expectation"), plural(len(found.sinks), "sink")])


def _files(path: Path) -> list[Path]:
    """Return the file, or the YAML files of the directory."""
    if not path.is_dir():
        return [path]
    return sorted(one for one in path.iterdir() if one.suffix in SUFFIXES and one.is_file())


def _rows(file: Path, checked: CheckedFile) -> list[list[object]]:
    from pydanube.spark.pipelines.progress import read_states, target_of

    found = checked.pipeline
    if found is None:
        return [[file, "", "", "", "", f"{plural(len(checked.problems), 'problem')}: danube pipeline validate", ""]]
    sources = ", ".join(source.options.get("topic", name) for name, source in found.sources.items())
    return [
        [
            file,
            found.name,
            sources,
            state.query,
            target_of(found, state.query),
            state,
            f"{state.time:%Y-%m-%d %H:%M:%S} UTC" if state.time else "",
        ]
        for state in read_states(found)
    ]


def _as_dict(file: Path, checked: CheckedFile) -> dict[str, Any]:
    from pydanube.spark.pipelines.progress import read_states, target_of

    found = checked.pipeline
    if found is None:
        return {"file": str(file), "problems": [str(problem) for problem in checked.problems]}
    states = [
        {
            "query": one.query,
            "target": target_of(found, one.query),
            "batch": one.batch,
            "time": one.time.isoformat() if one.time else None,
            "checkpoint_readable": one.known,
        }
        for one in read_states(found)
    ]
    sources = {name: source.options.get("topic", "") for name, source in found.sources.items()}
    return {"file": str(file), "name": found.name, "sources": sources, "sinks": list(found.sinks), "queries": states}
