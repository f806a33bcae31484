"""Reads and checks a pipeline file: `check_file` reports every problem, `load` raises Invalid with all of them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydanube.model.errors import Invalid
from pydanube.runtime.environment import DEFAULT_URL, URL_VARIABLE

from .checks import check_all_columns, check_functions, check_pipeline, raw_columns
from .definition import Pipeline
from .file_places import Place, Problem, Problems
from .parsing import parse_pipeline
from .sql_checks import Columns
from .yaml_nodes import read_yaml, substitute

VERBATIM = frozenset({"sql", "check"})
"""Keys whose values are SQL, in which ``${...}`` is left alone."""


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """What was found in a pipeline file. The pipeline can run if there are no problems."""

    pipeline: Pipeline | None
    problems: tuple[Problem, ...]


def check_file(
    path: str | Path,
    *,
    variables: Mapping[str, str] | None = None,
    servers: str | None = None,
    offline: bool = True,
) -> CheckedFile:
    """Read a pipeline file and check it. No Spark is started.

    `variables` are the values of ``${NAME}``, before those of the environment. Unless `offline`, the broker is asked
    for topics and schemas; `servers` then replaces what the file says. Raises Unavailable if it cannot be reached.
    """
    problems = Problems()
    pipeline = _read(Path(path), {**os.environ, **(variables or {})}, problems)
    if pipeline is not None:
        check_functions(pipeline, problems)
    if pipeline is not None and not problems:
        known: dict[str, Columns] = {name: raw_columns(one) for name, one in pipeline.sources.items()}
        if not offline:
            from .broker_checks import check_against_broker

            known |= check_against_broker(pipeline, servers or servers_of(pipeline), problems)
        check_all_columns(pipeline, known, problems)
    return CheckedFile(None if problems else pipeline, tuple(sorted(problems.found)))


def servers_of(pipeline: Pipeline) -> str:
    """Return where the broker is: what the file says, the environment variable DANUBE_URL, or the default."""
    return pipeline.servers or os.environ.get(URL_VARIABLE) or DEFAULT_URL


def load(
    path: str | Path,
    *,
    variables: Mapping[str, str] | None = None,
    servers: str | None = None,
    offline: bool = True,
) -> Pipeline:
    """Return the checked pipeline of a file. Raises Invalid with all problems, one on each line."""
    checked = check_file(path, variables=variables, servers=servers, offline=offline)
    if checked.pipeline is None:
        raise Invalid("\n".join(str(problem) for problem in checked.problems))
    return checked.pipeline


def _read(path: Path, variables: Mapping[str, str], problems: Problems) -> Pipeline | None:
    start = Place(str(path), 1, 1)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        problems.add(start, f"the file cannot be read: {(error.strerror or str(error)).lower()}")
        return None
    except UnicodeDecodeError as error:
        problems.add(start, f"the file is not UTF-8 text: {error.reason} at byte {error.start}")
        return None
    root = read_yaml(text, str(path), problems)
    if root is None or problems:
        return None
    root = substitute(root, variables, problems, VERBATIM)
    if problems:
        return None
    pipeline = parse_pipeline(root, path, problems)
    return None if pipeline is None else check_pipeline(pipeline, problems)
