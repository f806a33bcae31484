"""How far the queries of a pipeline have come, from their checkpoints, without Spark and without a broker."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pydanube.model.positions import datetime_from_micros

from .definition import Pipeline


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """The last batch that a query has completed."""

    query: str
    batch: int | None
    """None: no batch was completed."""
    time: datetime | None
    known: bool = True
    """False: the checkpoint is not on this machine."""

    def __str__(self) -> str:
        if not self.known:
            return "checkpoint is elsewhere"
        return "new" if self.batch is None else f"batch {self.batch}"


def read_states(pipeline: Pipeline) -> list[CheckpointState]:
    """Return the state of every query of the pipeline."""
    root = _local(pipeline.checkpoint)
    if root is None:
        return [CheckpointState(name, None, None, known=False) for name in pipeline.query_names()]
    return [_read(name, root / name / "commits") for name in pipeline.query_names()]


def _local(path: str) -> Path | None:
    if path.startswith("file:"):
        return Path(unquote(urlsplit(path).path))
    return None if "://" in path else Path(path)


def _read(query: str, commits: Path) -> CheckpointState:
    """Spark writes a file for each completed batch, named by its number, and keeps the last hundred."""
    try:
        numbers = [int(path.name) for path in commits.iterdir() if path.name.isdecimal()]
        if not numbers:
            return CheckpointState(query, None, None)
        written = (commits / str(max(numbers))).stat().st_mtime_ns // 1000
    except FileNotFoundError:
        return CheckpointState(query, None, None)
    return CheckpointState(query, max(numbers), datetime_from_micros(written))
