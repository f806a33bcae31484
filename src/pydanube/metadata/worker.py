"""What the embedded store's thread does: one group of requests at a time, one commit for each group.

A group that fails is tried again request by request, so that what cannot be done (a write, on a full disk) does not
take with it what can (the reads around it).

Invariants
    every request gets an answer, whatever happens
    a request that failed is not in what is committed later, unless its own commit failed and yet happened; then it
    is not tried again
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydanube.model.errors import DanubeError, Unavailable

from .database import Database, translate
from .store import Event


@dataclass(slots=True)
class Request:
    run: Callable[[Database], Any]
    """In the thread. Raises a DanubeError only if it has written nothing."""
    answer: asyncio.Future[Any]
    then: Callable[[Any], None] | None
    """On the loop, with the answer, if it did not fail."""
    writes: bool = False
    """It may change something."""


Group = list[Request]


@dataclass(slots=True)
class Settled:
    """What became of one group."""

    answers: list[tuple[Request, Any]]
    """An exception as answer is to be raised."""
    changes: list[tuple[int, list[Event]]]
    revision: int


class Worker:
    """Opens the database with the first group; runs groups; knows after a failure that it must look again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._database: Database | None = None
        self._suspect = False
        self._revision = 0
        self._error: Exception = RuntimeError("nothing failed yet")

    def execute(self, group: Group) -> Settled:
        before = self._revision
        settled = self._attempt(group)
        if settled is None and len(group) > 1 and not self._suspect and self._revision == before:
            return self._one_by_one(group)
        return settled or Settled([(request, self._failure()) for request in group], [], self._revision)

    def _attempt(self, group: Group) -> Settled | None:
        """All of them in one commit; None if that failed."""
        try:
            database = self._ready()
            database.begin()
            answers = [(request, _run(request, database)) for request in group]
            changes = database.commit()
        except Exception as error:
            self._error = error
            self._recover()
            return None
        self._revision = database.revision
        return Settled(answers, changes, self._revision)

    def _one_by_one(self, group: Group) -> Settled:
        every = Settled([], [], self._revision)
        for request in group:
            settled = self._attempt([request])
            if settled is None:
                every.answers.append((request, self._failure()))
            else:
                every.answers += settled.answers
                every.changes += settled.changes
        every.revision = self._revision
        return every

    def close(self) -> Exception | None:
        """Close the file; what went wrong with that, if anything. What was committed is safe in any case."""
        try:
            if self._database is not None:
                self._database.close()
        except sqlite3.Error as error:
            return translate(error, self._path)
        return None

    def _ready(self) -> Database:
        if self._database is None:
            self._database = Database(self._path)
        if self._suspect:
            self._database.rollback()
            self._suspect = False
        return self._database

    def _recover(self) -> None:
        """Leave the failed commit behind; if even that fails now, the next group begins with it."""
        self._suspect = self._database is not None
        try:
            if self._suspect:
                self._revision = self._ready().revision
        except (sqlite3.Error, DanubeError):
            assert self._suspect

    def _failure(self) -> Exception:
        """The last error, anew for each request: an exception carries the traceback of whoever raised it last."""
        error = self._error
        if isinstance(error, DanubeError):
            return type(error)(error.message)
        if isinstance(error, sqlite3.Error):
            return translate(error, self._path)
        if isinstance(error, OSError):
            return Unavailable(f"metadata database {self._path} cannot be opened: {error}")
        return error


def _run(request: Request, database: Database) -> Any:
    try:
        return request.run(database)
    except DanubeError as refused:
        return refused
