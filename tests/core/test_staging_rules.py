"""Staged writes: which run counts, what a commit changes, what has expired, what a partition has already."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydanube.core.staging import (
    ATTEMPT_MAX,
    NAME_CHARACTERS_MAX,
    RUNS_REMEMBERED,
    TASK_MAX,
    UNAPPLIED_MAX,
    QueryRecord,
    StageName,
    check_attempt,
    check_stages,
    epoch_of,
    is_idle,
    rows_to_skip,
    stage_time,
    with_commit,
    with_expiry,
    with_run,
)
from pydanube.model.errors import Invalid, Refused, StaleEpoch, Unavailable
from pydanube.model.limits import METADATA_VALUE_BYTES_MAX, STAGES_PER_COMMIT_MAX
from pydanube.model.staging import BATCH_ID_MAX

RECORD = QueryRecord("q", 7, "a")


def stage(at_ms: int = 1_000, chance: str = "0" * 12) -> StageName:
    return StageName(at_ms, 0, 0, 0, chance)


# -- runs ----------------------------------------------------------------------------------------------------------


def test_the_current_run_changes_nothing():
    assert with_run(RECORD, "a", 5) is RECORD


def test_an_unknown_run_takes_the_place_of_the_current_one():
    after = with_run(RECORD, "b", 5)
    assert (after.run, after.earlier_runs, after.started_at) == ("b", ["a"], 5)


def test_a_run_that_was_followed_by_another_is_fenced_and_both_are_named():
    with pytest.raises(StaleEpoch, match=r"run 'a' of query 'q' is over: run 'b'"):
        with_run(with_run(RECORD, "b", 5), "a", 6)


def test_the_last_sixteen_runs_stay_fenced():
    record = RECORD
    for number in range(RUNS_REMEMBERED + 3):
        record = with_run(record, f"r{number}", 5)
    assert len(record.earlier_runs) == RUNS_REMEMBERED
    for run in record.earlier_runs:
        with pytest.raises(StaleEpoch):
            with_run(record, run, 6)
    assert record.run not in record.earlier_runs


# -- commits -------------------------------------------------------------------------------------------------------


def test_a_commit_moves_the_last_batch_id():
    after = with_commit(RECORD, 3, [stage()], 0, 9)
    assert after is not None
    assert (after.last_batch_id, after.last_commit_at) == (3, 9)


@pytest.mark.parametrize("batch_id", [0, 2, 3])
def test_a_batch_id_that_was_committed_or_passed_by_changes_nothing(batch_id):
    after = with_commit(RECORD, 3, [stage()], 0, 9)
    assert after is not None
    assert with_commit(after, batch_id, [stage(0)], UNAPPLIED_MAX, 10) is None


def test_a_stage_from_before_the_expiry_refuses_the_whole_commit():
    record = with_expiry(RECORD, 1_000)
    assert record is not None
    with pytest.raises(Refused, match="has expired"):
        with_commit(record, 0, [stage(1_000), stage(999, "1" * 12)], 0, 9)
    assert with_commit(record, 0, [stage(1_000)], 0, 9) is not None


def test_a_query_with_many_unpublished_batches_waits():
    assert with_commit(RECORD, 0, [stage()], UNAPPLIED_MAX - 1, 9) is not None
    with pytest.raises(Unavailable, match="commit again"):
        with_commit(RECORD, 0, [stage()], UNAPPLIED_MAX, 9)


def test_a_stage_that_is_named_twice_is_invalid():
    with pytest.raises(Invalid, match="twice"):
        check_stages([stage(), stage()])


def test_too_many_stages_are_invalid():
    with pytest.raises(Invalid, match=str(STAGES_PER_COMMIT_MAX)):
        check_stages([stage(at) for at in range(STAGES_PER_COMMIT_MAX + 1)])


# -- expiry --------------------------------------------------------------------------------------------------------


def test_an_expiry_never_moves_back():
    record = with_expiry(RECORD, 1_000)
    assert record is not None
    assert with_expiry(record, 1_000) is None
    assert with_expiry(record, 999) is None


def test_a_new_stage_has_not_expired_wherever_the_clock_went():
    record = with_expiry(RECORD, 5_000)
    assert record is not None
    assert stage_time(record, 4_000_000) == 5_000
    assert stage_time(record, 6_000_000) == 6_000


def test_a_query_is_over_when_neither_a_commit_nor_a_run_came():
    record = QueryRecord("q", 7, "a", last_commit_at=10, started_at=20)
    assert not is_idle(record, 20)
    assert is_idle(record, 21)


# -- names ---------------------------------------------------------------------------------------------------------


@given(
    st.integers(0, 2**44 - 1),
    st.integers(0, TASK_MAX),
    st.integers(0, ATTEMPT_MAX),
    st.integers(0, TASK_MAX),
    st.text("0123456789abcdef", min_size=12, max_size=12),
)
def test_the_name_of_a_stage_says_what_it_was_made_of(at_ms, task, attempt, part, chance):
    name = StageName(at_ms, task, attempt, part, chance)
    check_attempt(task, attempt, part)
    assert StageName.parse(str(name)) == name
    assert len(str(name)) <= NAME_CHARACTERS_MAX


def test_the_names_of_the_largest_commit_fit_one_metadata_value():
    assert STAGES_PER_COMMIT_MAX * (NAME_CHARACTERS_MAX + 3) + 1_000 < METADATA_VALUE_BYTES_MAX


@pytest.mark.parametrize("text", ["", "x", "../../etc/passwd", "0" * 11, "00000000001-0-0-0-00000000000G", "a/b"])
def test_what_is_no_stage_is_refused_by_name(text):
    with pytest.raises(Invalid, match="no stage"):
        StageName.parse(text)


@pytest.mark.parametrize("numbers", [(-1, 0, 0), (0, -1, 0), (0, 0, -1), (TASK_MAX + 1, 0, 0), (0, ATTEMPT_MAX + 1, 0)])
def test_attempts_outside_their_range_are_invalid(numbers):
    with pytest.raises(Invalid, match="outside"):
        check_attempt(*numbers)


# -- what is stored already ----------------------------------------------------------------------------------------


def test_a_partition_that_knows_nothing_of_the_query_gets_everything():
    assert rows_to_skip(None, 4) == 0


def test_a_partition_that_has_the_batch_before_gets_everything():
    assert rows_to_skip((epoch_of(3), 100), 4) == 0


def test_a_partition_that_has_a_part_of_the_batch_gets_the_rest():
    assert rows_to_skip((epoch_of(4), 100), 4) == 100


def test_a_partition_that_has_a_later_batch_gets_nothing():
    assert rows_to_skip((epoch_of(5), 0), 4) is None


def test_epochs_of_all_batch_ids_fit_a_batch_header():
    assert 0 < epoch_of(0) < epoch_of(BATCH_ID_MAX) < 2**32
