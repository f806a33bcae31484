"""Which data is uploaded to object storage, in which objects, and which segments are merged."""

from hypothesis import given
from hypothesis import strategies as st

from pydanube.core.tiering import (
    MERGED_MAX,
    SECTIONS_MAX,
    MergeCandidate,
    TieringPolicy,
    WaitingUpload,
    plan_merge,
    plan_uploads,
)

POLICY = TieringPolicy(segment_bytes=1000, segment_age_us=60, shared_below_bytes=100)


def waiting(index: int, size: int, oldest_us: int = 0) -> WaitingUpload:
    return WaitingUpload(1, index, 0, 10, size, oldest_us)


def test_a_segments_worth_of_bytes_goes_at_once_in_an_object_of_its_own():
    (job,) = plan_uploads([waiting(0, 1000, oldest_us=59), waiting(1, 999, oldest_us=59)], 60, POLICY)
    assert [one.index for one in job.parts] == [0]


def test_what_has_waited_long_enough_goes_however_little_it_is():
    assert plan_uploads([waiting(0, 1)], 59, POLICY) == []
    assert [one.index for job in plan_uploads([waiting(0, 1)], 60, POLICY) for one in job.parts] == [0]


def test_small_remainders_share_an_object_and_larger_ones_do_not():
    jobs = plan_uploads([waiting(0, 99), waiting(1, 100), waiting(2, 50)], 60, POLICY)
    assert sorted([one.index for one in job.parts] for job in jobs) == [[0, 2], [1]]


def test_a_topic_may_want_segments_of_its_own_size_and_age():
    small = WaitingUpload(1, 0, 0, 10, 200, 60, segment_bytes=200)
    large = WaitingUpload(1, 1, 0, 10, 1000, 60, segment_bytes=2000)
    soon = WaitingUpload(1, 2, 0, 10, 100, 50, segment_age_us=10)
    late = WaitingUpload(1, 3, 0, 10, 100, 0, segment_age_us=61)
    assert [one.index for job in plan_uploads([small, large, soon, late], 60, POLICY) for one in job.parts] == [2, 0]


def test_everything_goes_when_that_is_asked_for():
    assert len(plan_uploads([waiting(0, 1, 60), waiting(1, 500, 60)], 60, POLICY, everything=True)) == 2


@given(st.lists(st.tuples(st.integers(1, 2000), st.integers(0, 100)), max_size=500), st.booleans())
def test_nothing_goes_twice_no_shared_object_is_too_large_and_the_oldest_comes_first(sizes, everything):
    given_parts = [waiting(index, size, oldest) for index, (size, oldest) in enumerate(sizes)]
    jobs = plan_uploads(given_parts, 100, POLICY, everything)
    chosen = [one.index for job in jobs for one in job.parts]
    assert len(set(chosen)) == len(chosen)
    due = [one.index for one in given_parts if everything or one.bytes >= 1000 or one.oldest_us <= 40]
    assert sorted(chosen) == due
    for job in jobs:
        assert len(job.parts) <= SECTIONS_MAX
        assert len(job.parts) == 1 or sum(one.bytes for one in job.parts) <= POLICY.segment_bytes
    assert [job.oldest_us for job in jobs] == sorted(job.oldest_us for job in jobs)


def pieces(*sizes: int) -> list[MergeCandidate]:
    return [MergeCandidate(size) for size in sizes]


def test_small_neighbours_are_merged_once_they_make_half_a_segment():
    assert plan_merge(pieces(200, 200), 1000) is None
    assert plan_merge(pieces(200, 200, 100), 1000) == (0, 3)
    assert plan_merge(pieces(900, 200, 200, 100, 900), 1000) == (1, 4)
    assert plan_merge(pieces(250, 250, 250, 250), 1000) is None


def test_what_would_be_too_large_is_left_to_the_next_merge():
    assert plan_merge(pieces(*[240] * 9), 1000) == (0, 4)
    assert plan_merge(pieces(100, 900, *[240] * 3), 1000) == (2, 5)


def test_many_crumbs_are_merged_although_they_stay_small():
    assert plan_merge(pieces(*[1] * 15), 1000) is None
    assert plan_merge(pieces(*[1] * 16), 1000) == (0, 16)
    assert plan_merge(pieces(*[1] * 100), 1000) == (0, MERGED_MAX)


@given(st.lists(st.tuples(st.integers(1, 1500), st.integers(1, MERGED_MAX)), max_size=60))
def test_merging_ends_and_what_it_makes_fits(given_pieces):
    left = [MergeCandidate(*one) for one in given_pieces]
    total = sum(one.bytes for one in left)
    while (found := plan_merge(left, 1000)) is not None:
        start, end = found
        run = left[start:end]
        assert len(run) > 1
        assert all(one.bytes < 250 for one in run)
        assert sum(one.bytes for one in run) <= 1000
        assert sum(one.segments for one in run) <= MERGED_MAX
        left[start:end] = [MergeCandidate(sum(one.bytes for one in run), 1)]
    assert sum(one.bytes for one in left) == total
