"""What the embedded store's thread does: one group of requests at a time, one commit for each group.

A group that fails is tried again request by request, so that what cannot be done (a write, on a full disk) does not
take with it what can (the reads around it).

While the journal, the second copy, is behind the database, reads are answered and writes are not: before the next
write it is written anew.

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
from pydanube.runtime.disk import Disk
from pydanube.runtime.telemetry import get_logger

from .database import Database, translate
from .recovery import open_database
from .store import Event

log = get_logger(__name__)


@dataclass(slots=True)
class StoreRequest:
    run: Callable[[Database], Any]
    """In the thread. Raises a DanubeError only if it has written nothing."""
    answer: asyncio.Future[Any]
    then: Callable[[Any], None] | None
    """On the loop, with the answer, if it did not fail."""
    writes: bool = False
    """It may change something."""


Group = list[StoreRequest]


@dataclass(slots=True)
class GroupOutcome:
    """What became of one group."""

    answers: list[tuple[StoreRequest, Any]]
    """An exception as answer is to be raised."""
    changes: list[tuple[int, list[Event]]]
    revision: int
    committed: bool = False
    """Something was changed, in both copies."""


class StoreWorker:
    """Opens the database with the first group; runs groups; knows after a failure that it must look again."""

    def __init__(self, path: Path, disk: Disk) -> None:
        self._path = path
        self._disk = disk
        self._database: Database | None = None
        self._suspect = False
        self._revision = 0
        self._commits = 0
        self._error: Exception = RuntimeError("nothing failed yet")

    def execute(self, group: Group) -> GroupOutcome:
        """Run the requests and return an answer for each."""
        if any(request.writes for request in group) and not self._renew_if_behind():
            refused = [(request, self._failure()) for request in group if request.writes]
            reads = [request for request in group if not request.writes]
            settled = self._execute(reads) if reads else GroupOutcome([], [], self._revision)
            settled.answers += refused
            return settled
        return self._execute(group)

    def tidy(self) -> None:
        """Write the journal anew if it has grown too large; between groups, when nobody waits for an answer."""
        if self._database is None or self._suspect or not self._database.journal_grown:
            return
        try:
            self._database.renew_journal()
        except (OSError, sqlite3.Error, DanubeError) as error:
            log.warning("metadata.journal_not_renewed", path=str(self._path), error=str(error))

    def _execute(self, group: Group) -> GroupOutcome:
        before = self._commits
        settled = self._attempt(group)
        if settled is None and len(group) > 1 and not self._suspect and self._commits == before:
            return self._one_by_one(group)
        return settled or GroupOutcome([(request, self._failure()) for request in group], [], self._revision)

    def _renew_if_behind(self) -> bool:
        """Write the journal anew where it is behind; False if that failed."""
        try:
            database = self._ready()
            if database.journal_behind:
                database.renew_journal()
                log.info("metadata.journal_rewritten", path=str(self._path), reason="it was behind the database")
        except Exception as error:
            self._error = error
            return False
        return True

    def _attempt(self, group: Group) -> GroupOutcome | None:
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
        committed = database.commits != self._commits
        self._revision, self._commits = database.revision, database.commits
        return GroupOutcome(answers, changes, self._revision, committed)

    def _one_by_one(self, group: Group) -> GroupOutcome:
        every = GroupOutcome([], [], self._revision)
        for request in group:
            is_behind = self._database is not None and self._database.journal_behind
            settled = None if request.writes and is_behind else self._attempt([request])
            if settled is None:
                every.answers.append((request, self._failure()))
            else:
                every.answers += settled.answers
                every.changes += settled.changes
                every.committed |= settled.committed
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
            self._database = open_database(self._path, self._disk)
            self._revision, self._commits = self._database.revision, self._database.commits
        if self._suspect:
            self._database.rollback()
            self._suspect = False
        return self._database

    def _recover(self) -> None:
        """Leave the failed commit behind; if even that fails now, the next group begins with it."""
        self._suspect = self._database is not None
        try:
            if self._suspect:
                database = self._ready()
                self._revision, self._commits = database.revision, database.commits
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
            if self._database is None:
                return Unavailable(f"metadata database {self._path} cannot be opened: {error}")
            return Unavailable(f"the journal of metadata database {self._path} cannot be written: {error}")
        return error


def _run(request: StoreRequest, database: Database) -> Any:
    try:
        return request.run(database)
    except DanubeError as refused:
        return refused
