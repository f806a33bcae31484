"""The thread of the embedded store: executes one group of requests at a time, with one commit for each group.

A group that fails is tried again request by request, so that a request that cannot be done (a write, on a full disk)
does not fail those that can (the reads in the same group).

While the journal, the second copy, is behind the database, reads are answered and writes are not: before the next
write the journal is written anew.

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

from pydanube.metadata.repair import open_database
from pydanube.model.errors import DanubeError, Unavailable
from pydanube.runtime.disk import Disk
from pydanube.runtime.telemetry import get_logger

from .database import Database, translate
from .store import Event

log = get_logger(__name__)


@dataclass(slots=True)
class StoreRequest:
    run: Callable[[Database], Any]
    """Called in the thread. Raises a DanubeError only if it has written nothing."""
    answer: asyncio.Future[Any]
    then: Callable[[Any], None] | None
    """Called on the loop with the answer, if the request did not fail."""
    writes: bool = False
    """The request may change something."""


Group = list[StoreRequest]


@dataclass(slots=True)
class GroupOutcome:
    """The result of one group."""

    answers: list[tuple[StoreRequest, Any]]
    """Each request with its answer; an exception is to be raised to the caller."""
    changes: list[tuple[int, list[Event]]]
    revision: int
    committed: bool = False
    """Something was changed and committed, in both copies."""


class StoreWorker:
    """Opens the database with the first group, and executes groups. After a failure it reads the state again first."""

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
            outcome = self._execute(reads) if reads else GroupOutcome([], [], self._revision)
            outcome.answers += refused
            return outcome
        return self._execute(group)

    def maintain(self) -> None:
        """Write the journal anew if it has grown too large. Called between groups, after all answers were given."""
        if self._database is None or self._suspect or not self._database.journal_grown:
            return
        try:
            self._database.renew_journal()
        except (OSError, sqlite3.Error, DanubeError) as error:
            log.warning("metadata.journal_not_renewed", path=str(self._path), error=str(error))

    def _execute(self, group: Group) -> GroupOutcome:
        before = self._commits
        outcome = self._attempt(group)
        if outcome is None and len(group) > 1 and not self._suspect and self._commits == before:
            return self._execute_one_by_one(group)
        return outcome or GroupOutcome([(request, self._failure()) for request in group], [], self._revision)

    def _renew_if_behind(self) -> bool:
        """Write the journal anew if it is behind; return False if that failed."""
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
        """Execute the whole group in one commit; return None if that failed."""
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

    def _execute_one_by_one(self, group: Group) -> GroupOutcome:
        every = GroupOutcome([], [], self._revision)
        for request in group:
            is_behind = self._database is not None and self._database.journal_behind
            outcome = None if request.writes and is_behind else self._attempt([request])
            if outcome is None:
                every.answers.append((request, self._failure()))
            else:
                every.answers += outcome.answers
                every.changes += outcome.changes
                every.committed |= outcome.committed
        every.revision = self._revision
        return every

    def close(self) -> Exception | None:
        """Close the file and return the error, if there was one. What was committed is safe in any case."""
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
        """Roll the failed commit back. If that fails too, the next group begins with it."""
        self._suspect = self._database is not None
        try:
            if self._suspect:
                database = self._ready()
                self._revision, self._commits = database.revision, database.commits
        except (sqlite3.Error, DanubeError):
            assert self._suspect

    def _failure(self) -> Exception:
        """Return a new exception for the last error. Each request gets its own, because raising adds to the
        traceback."""
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
