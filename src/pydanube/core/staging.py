"""Decides about staged writes: which run counts, what a commit changes, what has expired, what is stored already.

What is known of a query is one record, and every decision is a new record made of the last one. Whoever writes it
compares that the last one still stands; lost that, he reads again and decides again.

Invariants
    a query has one current run; the runs before it, as far as they are remembered, never count again
    last_batch_id only rises: a batch id is committed at most once
    a stage that was named before `expired_before_ms` is in no commit from then on
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple, Self

import msgspec

from pydanube.model.errors import Invalid, Refused, StaleEpoch, Unavailable
from pydanube.model.limits import STAGES_PER_COMMIT_MAX

RUNS_REMEMBERED: Final = 16
"""Lives of a query that are known to be over. One that is older still and comes back would count as new."""

UNAPPLIED_MAX: Final = 4
"""Batches of a query that are decided and not in the log yet: past it the query waits, as a publisher would."""

STAGED_PRODUCER: Final = 1 << 63
"""This bit of a producer id says that a query is meant, by its number. Producers are given smaller ids, so that nobody
can publish under the name of a query."""

TASK_MAX: Final = 2**31 - 1
ATTEMPT_MAX: Final = 2**63 - 1
NAME_CHARACTERS_MAX: Final = 64
_NAME: Final = re.compile(r"([0-9a-f]{11})-([0-9a-f]{1,8})-([0-9a-f]{1,16})-([0-9a-f]{1,8})-([0-9a-f]{12})")


class QueryRecord(msgspec.Struct, omit_defaults=True, frozen=True):
    """What is remembered of a query; see model.staging for the words."""

    query: str
    number: int
    """Given out once. It names the query's stages, and stands for the query as the producer of what it wrote."""
    run: str
    earlier_runs: list[str] = []
    """The latest last."""
    last_batch_id: int = -1
    last_commit_at: int = 0
    """Microseconds, as all times but that of stages; 0: never."""
    started_at: int = 0
    """When the current run came."""
    expired_before_ms: int = 0
    """Stages with an earlier time in their names are gone, or will be at any moment."""

    @property
    def producer_id(self) -> int:
        return self.number | STAGED_PRODUCER


class StageName(NamedTuple):
    """What a stage is called: when it was staged, by whom, and something nobody can guess."""

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


def entered(record: QueryRecord, run: str, now_us: int) -> QueryRecord:
    """The record under this run: the same one if it is the current run, else one in which it is. Raises StaleEpoch."""
    if run == record.run:
        return record
    if run in record.earlier_runs:
        raise StaleEpoch(
            f"run {run!r} of query {record.query!r} is over: run {record.run!r} has taken its place; stop this one"
        )
    earlier = [*record.earlier_runs, record.run][-RUNS_REMEMBERED:]
    return msgspec.structs.replace(record, run=run, earlier_runs=earlier, started_at=now_us)


def committed(
    record: QueryRecord, batch_id: int, stages: Sequence[StageName], unapplied: int, now_us: int
) -> QueryRecord | None:
    """The record once this batch is committed; None: it was before, and nothing changes.

    Raises Refused for stages that have expired, and Unavailable while `unapplied` batches are too many.
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


def expiring(record: QueryRecord, before_ms: int) -> QueryRecord | None:
    """The record once stages from before that time count no more; None: they do not already."""
    if before_ms <= record.expired_before_ms:
        return None
    return msgspec.structs.replace(record, expired_before_ms=before_ms)


def is_over(record: QueryRecord, before_us: int) -> bool:
    """Whether a query was not heard of since then."""
    return max(record.last_commit_at, record.started_at) < before_us


def stage_time(record: QueryRecord, now_us: int) -> int:
    """The time in the name of a new stage, in milliseconds: one that has not expired, wherever the clock went."""
    return max(now_us // 1000, record.expired_before_ms)


def epoch_of(batch_id: int) -> int:
    """The producer epoch of what a batch publishes: a later batch's is higher."""
    return batch_id + 1


def rows_to_skip(reached: tuple[int, int] | None, batch_id: int) -> int | None:
    """How many rows of a batch a partition has already, by the epoch and next sequence it knows; None: all of them."""
    if reached is None or reached[0] < epoch_of(batch_id):
        return 0
    return reached[1] if reached[0] == epoch_of(batch_id) else None
