"""Decides about staged writes: which run is current, what a commit changes, what has expired, what is published.

The state of a query is one record, and every decision makes a new record from the last one. The caller writes it with a
compare-and-set against the last one; when the comparison fails, it reads the record again and decides again.

Invariants
    a query has one current run; earlier runs, as far as they are remembered, stay fenced
    last_batch_id only rises: a batch id is committed at most once
    a stage with a time before `expired_before_ms` in its name can no longer be committed
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple, Self

import msgspec

from pydanube.model.errors import Invalid, Refused, StaleEpoch, Unavailable
from pydanube.model.limits import STAGES_PER_COMMIT_MAX

RUNS_REMEMBERED: Final = 16
"""How many earlier runs of a query are remembered as fenced. A run older than these would be taken for a new one."""

UNAPPLIED_MAX: Final = 4
"""Batches of a query that are committed and not in the log yet. At this limit further commits are Unavailable: flow
control for queries."""

STAGED_PRODUCER: Final = 1 << 63
"""A producer id with this bit set stands for a query, by its number. Producers get smaller ids, so no producer can
publish with the id of a query."""

TASK_MAX: Final = 2**31 - 1
ATTEMPT_MAX: Final = 2**63 - 1
NAME_CHARACTERS_MAX: Final = 64
_NAME: Final = re.compile(r"([0-9a-f]{11})-([0-9a-f]{1,8})-([0-9a-f]{1,16})-([0-9a-f]{1,8})-([0-9a-f]{12})")


class QueryRecord(msgspec.Struct, omit_defaults=True, frozen=True):
    """What the metadata holds about a query; model.staging defines the terms."""

    query: str
    number: int
    """Never used twice. It is part of the names of the query's stages and of the producer id of what the query
    publishes."""
    run: str
    earlier_runs: list[str] = []
    """Oldest first."""
    last_batch_id: int = -1
    last_commit_at: int = 0
    """Microseconds, like all times except those of stages; 0: never."""
    started_at: int = 0
    """When the current run was first seen."""
    expired_before_ms: int = 0
    """Stages with an earlier time in their names are deleted, or will be at any moment."""
    owner: str = ""
    """The principal that made the query; empty: no caller that was authenticated has used it yet."""
    namespace: str = ""
    """The namespace of the first topic that the query staged something for, in which nobody else has its name; empty:
    it has staged nothing yet, or its name was taken there, or it is of an earlier release."""

    @property
    def producer_id(self) -> int:
        return self.number | STAGED_PRODUCER


class StageName(NamedTuple):
    """The name of a stage: when it was staged, by which task and attempt, and random digits that cannot be guessed."""

    staged_at_ms: int
    task: int
    attempt: int
    part: int
    chance: str

    @classmethod
    def parse(cls, text: str) -> Self:
        found = _NAME.fullmatch(text)
        if found is None:
            raise Invalid(f"{text[:80]!r} is no stage: a commit names stages as STAGE answered them")
        at, task, attempt, part = (int(digits, 16) for digits in found.groups()[:4])
        return cls(at, task, attempt, part, found[5])

    def __str__(self) -> str:
        return f"{self.staged_at_ms:011x}-{self.task:x}-{self.attempt:x}-{self.part:x}-{self.chance}"


def check_attempt(task: int, attempt: int, part: int) -> None:
    for what, value, most in (("task", task, TASK_MAX), ("attempt", attempt, ATTEMPT_MAX), ("part", part, TASK_MAX)):
        if not 0 <= value <= most:
            raise Invalid(f"{what} {value} is outside 0..{most}")


def with_run(record: QueryRecord, run: str, now_us: int) -> QueryRecord:
    """Return the record with `run` as the current run: the same object if it already is.

    Raises StaleEpoch when `run` is an earlier run, which a later one has fenced.
    """
    if run == record.run:
        return record
    if run in record.earlier_runs:
        raise StaleEpoch(
            f"run {run!r} of query {record.query!r} is over: run {record.run!r} has taken its place; stop this one"
        )
    earlier = [*record.earlier_runs, record.run][-RUNS_REMEMBERED:]
    return msgspec.structs.replace(record, run=run, earlier_runs=earlier, started_at=now_us)


def with_owner(record: QueryRecord, owner: str) -> QueryRecord:
    """Return the record with an owner: the same object if it has one, or `owner` is empty."""
    return record if record.owner or not owner else msgspec.structs.replace(record, owner=owner)


def with_namespace(record: QueryRecord, namespace: str) -> QueryRecord:
    """Return the record with a namespace: the same object if it has one, or `namespace` is empty."""
    return record if record.namespace or not namespace else msgspec.structs.replace(record, namespace=namespace)


def with_commit(
    record: QueryRecord, batch_id: int, stages: Sequence[StageName], unapplied: int, now_us: int
) -> QueryRecord | None:
    """Return the record after a commit of this batch, or None if the batch was committed before.

    `unapplied` is the number of committed batches that are not published yet. Raises Refused when a stage has expired,
    and Unavailable when `unapplied` has reached its limit.
    """
    if batch_id <= record.last_batch_id:
        return None
    check_stages(stages)
    for stage in stages:
        if stage.staged_at_ms < record.expired_before_ms:
            raise Refused(
                f"stage {stage} of batch {batch_id} of query {record.query!r} has expired: nothing was published; "
                f"stage the batch again, and commit it sooner or raise storage.stage_keep_s"
            )
    if unapplied >= UNAPPLIED_MAX:
        raise Unavailable(
            f"{unapplied} batches of query {record.query!r} are committed and not in all partitions yet: commit again, "
            f"later"
        )
    return msgspec.structs.replace(record, last_batch_id=batch_id, last_commit_at=now_us)


def check_stages(stages: Sequence[StageName]) -> None:
    if len(stages) > STAGES_PER_COMMIT_MAX:
        raise Invalid(
            f"a commit of {len(stages)} stages: at most {STAGES_PER_COMMIT_MAX} are taken; stage larger parts"
        )
    if len(set(stages)) != len(stages):
        raise Invalid("a commit names the same stage twice")


def with_expiry(record: QueryRecord, before_ms: int) -> QueryRecord | None:
    """Return the record after stages older than `before_ms` have expired, or None if they already have."""
    if before_ms <= record.expired_before_ms:
        return None
    return msgspec.structs.replace(record, expired_before_ms=before_ms)


def is_idle(record: QueryRecord, before_us: int) -> bool:
    """Return whether the query has neither started a run nor committed since `before_us`."""
    return max(record.last_commit_at, record.started_at) < before_us


def stage_time(record: QueryRecord, now_us: int) -> int:
    """Return the time for the name of a new stage, in milliseconds. It has not expired, even if the clock went back."""
    return max(now_us // 1000, record.expired_before_ms)


def epoch_of(batch_id: int) -> int:
    """Return the producer epoch under which a batch is published; later batches have higher epochs."""
    return batch_id + 1


def rows_to_skip(reached: tuple[int, int] | None, batch_id: int) -> int | None:
    """Return how many rows of the batch a partition already has; None means all of them.

    `reached` is the epoch and the next sequence that the partition knows of the query.
    """
    if reached is None or reached[0] < epoch_of(batch_id):
        return 0
    return reached[1] if reached[0] == epoch_of(batch_id) else None
