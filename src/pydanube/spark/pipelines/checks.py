"""Checks of a pipeline that look at more than one key, without a broker and without Spark.

Checked are the names and references between sources, transforms and sinks, cycles, SQL and its columns, functions, and
the paths of tables and checkpoints.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from pydanube.client.tables.read_types import COLUMNS
from pydanube.model.errors import Invalid
from pydanube.model.text import did_you_mean
from pydanube.spark.local_directories import not_a_directory
from pydanube.spark.options import ReadOptions
from pydanube.spark.writing.frame_columns import WRITTEN

from .casts import message_column
from .definition import Pipeline, Sink, Source, Transform
from .file_places import Problems, TextInFile
from .sql_checks import Columns, check_columns, check_condition, parse_condition, parse_query, place_in, tables_of

LETTER_COLUMNS: Final = ("topic", "partition", "offset", "publish_time", "key", "payload", "attributes")
"""The message columns that a dead letter is made of."""


def check_pipeline(pipeline: Pipeline, problems: Problems) -> Pipeline:
    """Report what is wrong; return the pipeline with the inputs of its SQL."""
    _check_names(pipeline, problems)
    pipeline = _with_sql_inputs(pipeline, problems)
    for rules in pipeline.expectations.values():
        for rule in rules:
            parse_condition(rule.check, problems)
    _check_references(pipeline, problems)
    _check_cycles(pipeline, problems)
    _check_paths(pipeline, problems)
    return pipeline


def check_all_columns(pipeline: Pipeline, known: Mapping[str, Columns], problems: Problems) -> None:
    """Check the columns that SQL and expectations name. `known` has the columns of each source; None: not known."""
    columns: dict[str, Columns] = {}
    for name in _in_order(pipeline):
        if (source := pipeline.sources.get(name)) is not None:
            columns[name.lower()] = known.get(name)
            watermark = source.watermark
        else:
            transform = pipeline.transforms[name]
            columns[name.lower()] = _columns_of(transform, columns, problems)
            watermark = transform.watermark
        found = columns[name.lower()]
        if watermark is not None and found is not None and watermark.column.partition(".")[0] not in found:
            told = did_you_mean(watermark.column, found, "there are")
            problems.add(watermark.place, f"{name} has no column {watermark.column!r}: {told}")
        for one in pipeline.expectations.get(name, ()):
            condition = parse_condition(one.check, Problems())
            if condition is not None:
                check_condition(one.check, condition, found, problems)
    for sink in pipeline.sinks.values():
        found = columns.get(sink.input.lower())
        if found is not None:
            _check_written(sink, found, problems)


def _check_written(sink: Sink, columns: tuple[str, ...], problems: Problems) -> None:
    """Report columns that a topic cannot take, and columns to partition by that do not exist."""
    if sink.format == "danube":
        if "schema" in sink.options:
            return
        if "payload" not in columns:
            told = "select to_json(struct(*)) as payload in a transform"
            problems.add(sink.input_place, f"a message needs a column 'payload', which {sink.input} has not: {told}")
        for name in columns:
            if name not in WRITTEN:
                told = f"a message is made of {', '.join(WRITTEN)}"
                problems.add(sink.input_place, f"{sink.input} has a column {name!r}, and {told}: select without it")
        return
    for name in (one.strip() for one in sink.options.get("partitionBy", "").split(",") if one.strip()):
        if name not in columns:
            told = did_you_mean(name, columns, "there are")
            problems.add(sink.places["partitionBy"], f"{sink.input} has no column {name!r} to partition by: {told}")


def raw_columns(source: Source) -> Columns:
    """Return the columns of a source that is not decoded; None if they depend on a schema or the options are wrong."""
    if source.decoded:
        return None
    try:
        return tuple(map(message_column, ReadOptions.parse(source.options, "stream").columns))
    except Invalid:
        return None


def _columns_of(transform: Transform, columns: Mapping[str, Columns], problems: Problems) -> Columns:
    if transform.sql is None:
        return None
    query = parse_query(transform.sql, Problems())
    return None if query is None else check_columns(transform.sql, query, columns, problems)


def _in_order(pipeline: Pipeline) -> list[str]:
    ordered: dict[str, None] = {}
    for name in (*pipeline.sources, *pipeline.transforms):
        for one in pipeline.needed(name):
            ordered[one] = None
    return list(ordered)


def _check_names(pipeline: Pipeline, problems: Problems) -> None:
    taken = {name.lower(): f"source {name}" for name in pipeline.sources}
    for name, transform in pipeline.transforms.items():
        if (other := taken.get(name.lower())) is not None:
            problems.add(transform.place, f"transform {name} has the name of {other}: SQL could not tell them apart")
        taken.setdefault(name.lower(), f"transform {name}")
    for seen, what in ((pipeline.sources, "sources"), (pipeline.sinks, "sinks")):
        lower: dict[str, str] = {}
        for name in seen:
            if name.lower() in lower:
                told = f"{what} {lower[name.lower()]} and {name} differ only in upper and lower case: rename one"
                problems.add(seen[name].place, told)
            lower[name.lower()] = name


def _with_sql_inputs(pipeline: Pipeline, problems: Problems) -> Pipeline:
    """Find out which inputs the SQL of each transform names."""
    spelling = {name.lower(): name for name in (*pipeline.sources, *pipeline.transforms)}
    transforms = dict(pipeline.transforms)
    for name, transform in pipeline.transforms.items():
        if transform.sql is None or (query := parse_query(transform.sql, problems)) is None:
            continue
        inputs: list[str] = []
        for table, node in tables_of(query).items():
            if table in spelling:
                inputs.append(spelling[table])
            else:
                others = [one for one in spelling.values() if one != name]
                told = did_you_mean(node.name, others, "the inputs are")
                problems.add(place_in(transform.sql, node), f"there is no source or transform {node.name!r}: {told}")
        transforms[name] = replace(transform, inputs=tuple(inputs))
    return replace(pipeline, transforms=transforms)


def _check_references(pipeline: Pipeline, problems: Problems) -> None:
    known = (*pipeline.sources, *pipeline.transforms)
    if not pipeline.sources:
        return  # which is reported already
    for sink in pipeline.sinks.values():
        if sink.input and sink.input not in known:
            problems.add(
                sink.input_place, f"there is no source or transform {sink.input!r}: {did_you_mean(sink.input, known)}"
            )
    for transform in pipeline.transforms.values():
        for name, place in transform.input_places.items():
            if name not in known:
                problems.add(place, f"there is no source or transform {name!r}: {did_you_mean(name, known)}")
    for name, rules in pipeline.expectations.items():
        if name not in known:
            place = rules[0].place if rules else pipeline.places["expectations"]
            problems.add(
                place, f"there is no source or transform {name!r} to expect something of: {did_you_mean(name, known)}"
            )
    for name, source in pipeline.sources.items():
        topics = {one.strip() for one in source.options.get("topic", "").split(",")}
        for rule in pipeline.expectations.get(name, ()):
            if rule.topic in topics:
                told = f"{rule.topic} cannot be its own dead letter topic: its letters would come back"
                problems.add(rule.place, told)


def _check_cycles(pipeline: Pipeline, problems: Problems) -> None:
    """Report transforms that are computed from themselves, once for each cycle."""
    visited: set[str] = set()

    def visit(name: str, path: list[str]) -> None:
        if name in path:
            cycle = [*path[path.index(name) :], name]
            problems.add(pipeline.transforms[name].place, f"transforms form a cycle: {' -> '.join(cycle)}")
            return
        if name not in visited and name in pipeline.transforms:
            visited.add(name)
            for one in pipeline.transforms[name].inputs:
                visit(one, [*path, name])

    for name in pipeline.transforms:
        visit(name, [])


def _check_paths(pipeline: Pipeline, problems: Problems) -> None:
    places = pipeline.places
    if pipeline.checkpoint and "checkpoint" in places and (trouble := not_a_directory(pipeline.checkpoint)):
        problems.add(places["checkpoint"], f"the checkpoint {trouble}")
    seen: dict[str, str] = {}
    for sink in pipeline.sinks.values():
        path = sink.options.get("path", "")
        if not path:
            continue
        if trouble := not_a_directory(path):
            problems.add(sink.places["path"], f"the path of sink {sink.name} {trouble}")
        if (other := seen.setdefault(path.rstrip("/"), sink.name)) != sink.name:
            problems.add(sink.places["path"], f"sinks {other} and {sink.name} have the same path: give each its own")
        if _inside(pipeline.checkpoint, path) or _inside(path, pipeline.checkpoint):
            told = "one is in the other: keep them apart, so that no reader takes one for the other"
            problems.add(sink.places["path"], f"the path of sink {sink.name} and the checkpoint overlap; {told}")


def _inside(inner: str, outer: str) -> bool:
    return bool(inner and outer) and (inner.rstrip("/") + "/").startswith(outer.rstrip("/") + "/")


# -- functions ---------------------------------------------------------------------------------------------------------


@contextmanager
def importing_from(directory: str) -> Iterator[None]:
    """Let modules beside the pipeline file be imported."""
    sys.path.insert(0, directory)
    try:
        yield
    finally:
        if directory in sys.path:
            sys.path.remove(directory)


def check_functions(pipeline: Pipeline, problems: Problems) -> None:
    """Import the functions of transforms, and check that they can be called with their inputs."""
    for transform in pipeline.transforms.values():
        if transform.function is None:
            continue
        try:
            load_function(transform.function, pipeline.directory, len(transform.inputs))
        except Invalid as error:
            problems.add(transform.function.place, error.message)


def load_function(named: TextInFile, directory: str, inputs: int) -> Callable[..., Any]:
    """Import ``module:function``. Raises Invalid if there is none, or it does not take `inputs` data frames."""
    module_name, colon, name = named.text.partition(":")
    if not colon or not module_name.strip() or not name.isidentifier():
        raise Invalid(f"{named.text!r} is no function: write it as module:function, for example enrich:add_customers")
    with importing_from(directory):
        importlib.invalidate_caches()
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name and (module_name == error.name or module_name.startswith(f"{error.name}.")):
                told = f"put {module_name.replace('.', '/')}.py beside the pipeline file, or install it"
                raise Invalid(f"there is no module {module_name!r}: {told}") from None
            raise Invalid(f"the module {module_name!r} cannot be imported: {error}") from None
        except (Exception, SystemExit) as error:  # a script that calls sys.exit() is no module, and ends nothing here
            raise Invalid(f"the module {module_name!r} cannot be imported: {type(error).__name__}: {error}") from None
    function = getattr(module, name, None)
    if function is None:
        functions = [one for one, value in vars(module).items() if callable(value) and not one.startswith("_")]
        raise Invalid(f"the module {module_name!r} has no function {name!r}: {did_you_mean(name, functions, 'it has')}")
    if not callable(function):
        raise Invalid(f"{named.text!r} is a {type(function).__name__} and cannot be called")
    try:
        inspect.signature(function).bind(*range(inputs))
    except TypeError:
        signature = f"{name}{inspect.signature(function)}"
        told = f"{inputs} input" + "s" * (inputs != 1)
        raise Invalid(f"{signature} cannot be called with {told}: list as many inputs as it has parameters") from None
    except ValueError:  # some built-in functions tell no signature
        pass
    found: Callable[..., Any] = function
    return found


def letter_columns(source: Source) -> list[str]:
    """Return the message columns for reading a source whose rows may become dead letters."""
    given = [one.strip().lower() for one in source.options.get("columns", "").split(",") if one.strip()]
    chosen = given or (list(COLUMNS) if not source.decoded else ["append_time"])
    return [*chosen, *(one for one in LETTER_COLUMNS if one not in chosen)]
