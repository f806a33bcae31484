"""What a batch reads, and in which tasks: decided without a broker."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydanube import Invalid, Refused
from pydanube.model.gaps import Gaps
from pydanube.spark.reading.bounds import Bound, Bounds
from pydanube.spark.reading.data_loss import LostRange, fail_or_log, format_report, lost_of_topics
from pydanube.spark.reading.offsets import Offsets, TopicIdentity, TopicOffsets, TopicView
from pydanube.spark.reading.planning import (
    OffsetRange,
    TimeLookup,
    check_named_partitions,
    limit_batch,
    plan_tasks,
    ranges_between,
    resolve_bounds,
    time_lookups,
)

TOPIC = "/default/orders"


def identity(topic_id: int, cluster: str = "here") -> TopicIdentity:
    return TopicIdentity(cluster, topic_id)


def offsets(*values: int, topic_id: int = 7) -> Offsets:
    return Offsets({TOPIC: TopicOffsets(identity(topic_id), values)})


def view(*spans: tuple[int, int], topic_id: int = 7, cluster: str = "here") -> dict[str, TopicView]:
    return {
        TOPIC: TopicView(identity(topic_id, cluster), tuple(one for one, _ in spans), tuple(one for _, one in spans))
    }


def spread(end: Offsets) -> list[int]:
    return list(end.topics[TOPIC].offsets)


# -- offsets as JSON ---------------------------------------------------------------------------------------------------


def test_offsets_come_back_from_json_as_the_same_text() -> None:
    """Spark compares them as text."""
    both = Offsets({"/default/b": TopicOffsets(identity(2), (1,)), "/default/a": TopicOffsets(identity(1), (5, 0))})
    text = json.dumps(both.to_json())
    assert text.index("/default/a") < text.index("/default/b")
    assert json.dumps(Offsets.from_json(json.loads(text)).to_json()) == text
    assert json.dumps(json.loads(text)) == text


def test_the_end_of_a_first_batch_says_where_it_began() -> None:
    initial = Offsets(initial=True)
    end = Offsets(offsets(9).topics, since=offsets(4).topics)
    assert Offsets.from_json(json.loads(json.dumps(end.to_json()))) == end
    assert Offsets.from_json(initial.to_json()) == initial
    assert initial.batch_start(end) == offsets(4)
    assert offsets(9).batch_start(offsets(12)) == offsets(9)


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"version": 1},
        {"version": 1, "topics": []},
        {"version": True, "initial": True},
        {"version": 1, "initial": 1},
        *(
            {"version": 1, "topics": {TOPIC: {"cluster": "here", "id": 1, "offsets": [0], **wrong}}}
            for wrong in (
                {"offsets": [-1]},
                {"offsets": [True]},
                {"offsets": [1.0]},
                {"offsets": ""},
                {"id": True},
                {"cluster": 1},
            )
        ),
        {"version": 1, "topics": {TOPIC: {"id": 1, "offsets": [0]}}},
    ],
)
def test_offsets_of_another_source_are_refused(value: dict[str, Any]) -> None:
    with pytest.raises(Invalid, match="did not write"):
        Offsets.from_json(value)


def test_offsets_of_a_later_release_are_refused_by_their_version() -> None:
    with pytest.raises(Invalid, match="version 2"):
        Offsets.from_json({"version": 2, "topics": {}})


# -- bounds ------------------------------------------------------------------------------------------------------------


def test_bounds_are_placed_in_each_partition() -> None:
    bounds = Bounds.of_offsets(
        json.dumps({TOPIC: {"0": "earliest", "1": "latest", "2": 12, "3": "-5", "4": "-500"}}),
        "startingOffsets",
        Bound("latest"),
    )
    seen = view((3, 9), (3, 9), (10, 20), (10, 20), (10, 20), (1, 2))
    assert spread(resolve_bounds(bounds, seen, 0, {})) == [3, 9, 12, 15, 10, 2]


def test_times_are_asked_for_and_never_lie_behind_the_end() -> None:
    bounds = Bounds.of_times("-1 second", "startingTimestamp")
    seen = view((0, 10), (0, 20))
    asked = time_lookups(bounds, seen, now_us=5_000_000)
    assert asked == [TimeLookup(TOPIC, 0, 4_000_000), TimeLookup(TOPIC, 1, 4_000_000)]
    assert spread(resolve_bounds(bounds, seen, 5_000_000, {asked[0]: 4, asked[1]: 25})) == [4, 20]


@pytest.mark.parametrize("long_ago", ["1960-01-01", "0001-01-01T00:00:00Z", "-900 weeks"])
def test_a_time_before_1970_is_asked_for_as_1970(long_ago: str) -> None:
    bounds = Bounds.of_times(long_ago, "startingTimestamp")
    seen = view((3, 10))
    asked = time_lookups(bounds, seen, now_us=5_000_000)
    assert asked == [TimeLookup(TOPIC, 0, 0)]
    assert spread(resolve_bounds(bounds, seen, 5_000_000, {asked[0]: 3})) == [3]


def test_offsets_and_partitions_that_do_not_exist_are_named() -> None:
    seen = view((0, 10))
    with pytest.raises(Invalid, match=r"names offset 11 of /default/orders\[0\], which ends at 10"):
        resolve_bounds(Bounds("startingOffsets", Bound("offset", 11)), seen, 0, {})
    with pytest.raises(Invalid, match="names partition 1 of /default/orders, which has 1"):
        check_named_partitions(
            Bounds.of_offsets(f'{{"{TOPIC}": {{"1": 0}}}}', "startingOffsets", Bound("latest")), seen
        )
    with pytest.raises(Invalid, match="names /default/other, which is not among the topics"):
        check_named_partitions(Bounds.of_offsets('{"/default/other": 0}', "startingOffsets", Bound("latest")), seen)


# -- limits ------------------------------------------------------------------------------------------------------------


def test_a_limit_is_shared_by_what_each_partition_has() -> None:
    assert spread(limit_batch(offsets(0, 0), offsets(900, 100), rows_max=100)) == [90, 10]
    assert spread(limit_batch(offsets(0, 0), offsets(50, 50), rows_max=100)) == [50, 50]


def test_bytes_are_limited_by_the_average_size() -> None:
    assert spread(limit_batch(offsets(0, 0), offsets(600, 400), bytes_max=5_000, sizes={TOPIC: 10.0})) == [300, 200]
    assert spread(limit_batch(offsets(0), offsets(600), bytes_max=5_000)) == [600], "nobody knows how large they are"
    assert spread(limit_batch(offsets(0), offsets(600), bytes_max=1, sizes={TOPIC: 10.0})) == [1], "one goes through"


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), min_size=1, max_size=20), st.integers(1, 3000))
def test_a_limit_is_kept_to_the_message_and_something_always_goes(spans: list[tuple[int, int]], most: int) -> None:
    start = offsets(*(first for first, _ in spans))
    end = offsets(*(first + more for first, more in spans))
    reached = limit_batch(start, end, rows_max=most)
    went = [here - first for here, (first, _) in zip(spread(reached), spans, strict=True)]
    assert all(0 <= one <= more for one, (_, more) in zip(went, spans, strict=True))
    assert sum(went) == min(most, sum(more for _, more in spans))


def test_the_start_of_a_first_batch_stays_known_when_it_is_limited() -> None:
    end = Offsets(offsets(10).topics, since=offsets(0).topics)
    assert limit_batch(offsets(0), end, rows_max=3).since == end.since


# -- ranges and losses -------------------------------------------------------------------------------------------------


def test_new_partitions_and_topics_are_read_from_their_beginning() -> None:
    end = Offsets({TOPIC: TopicOffsets(identity(7), (5, 3)), "/default/new": TopicOffsets(identity(8), (2,))})
    seen = {**view((0, 5), (0, 3)), "/default/new": TopicView(identity(8), (0,), (2,))}
    ranges, losses = ranges_between(offsets(4), end, seen)
    assert [str(one) for one in ranges] == [
        "/default/orders[0] offsets 4..5",
        "/default/orders[1] offsets 0..3",
        "/default/new[0] offsets 0..2",
    ]
    assert not losses


def test_what_retention_took_is_reported_offset_by_offset_and_the_rest_is_read() -> None:
    ranges, losses = ranges_between(offsets(100, 0, 50), offsets(200, 10, 60), view((150, 300), (0, 10), (80, 90)))
    assert [(one.partition, one.start, one.end) for one in ranges] == [(0, 150, 200), (1, 0, 10)]
    assert [(one.partition, one.start, one.end) for one in losses] == [(0, 100, 150), (2, 50, 60)]
    text = format_report(losses, "  policies: none")
    assert "60 messages of 2 partitions cannot be read any more" in text
    assert "[0] offsets 100..150 (50): retention or truncation removed them, the partition begins at 150 now" in text
    assert "policies: none" in text and "failOnDataLoss=false" in text


def test_a_topic_that_was_made_anew_is_another_topic() -> None:
    seen = view((0, 500), topic_id=8)
    (lost,) = lost_of_topics(offsets(100), seen)
    assert (lost.start, lost.end) == (100, -1) and "id 7 then, 8 now" in lost.why
    _, losses = ranges_between(offsets(100), offsets(200), seen)
    assert [(one.start, one.end) for one in losses] == [(100, 200)]
    ranges, losses = ranges_between(offsets(100), offsets(500, topic_id=8), seen)
    assert [(one.start, one.end) for one in ranges] == [(0, 500)] and not losses


def test_a_topic_of_another_cluster_is_another_topic_though_its_id_is_the_same() -> None:
    seen = view((0, 500), cluster="there")
    (lost,) = lost_of_topics(offsets(100), seen)
    assert (lost.start, lost.end) == (100, -1) and "they were of cluster here, and this is there" in lost.why
    ranges, (lost,) = ranges_between(offsets(100), offsets(200), seen)
    assert not ranges and (lost.start, lost.end) == (100, 200) and "of cluster here" in lost.why
    ranges, losses = ranges_between(offsets(100), Offsets.ends_of(seen), seen)
    assert [(one.start, one.end) for one in ranges] == [(0, 500)] and not losses


def test_a_log_that_came_back_shorter_is_a_loss() -> None:
    ranges, losses = ranges_between(offsets(5), offsets(20), view((0, 12)))
    assert [(one.start, one.end) for one in ranges] == [(5, 12)]
    assert [(one.start, one.end) for one in losses] == [(12, 20)] and "came back shorter" in losses[0].why


def test_losses_fail_the_query_unless_it_may_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    lost = [LostRange(TOPIC, 1, 5, 8, "retention or truncation removed them")]
    with pytest.raises(Refused, match=r"3 messages of 1 partition .*\n.*\[1\] offsets 5..8 \(3\): retention"):
        fail_or_log(lost, fail=True)
    fail_or_log(lost, fail=False)
    assert "spark.messages_lost" in capsys.readouterr().err
    fail_or_log([], fail=True)


def test_a_report_of_many_losses_stays_readable() -> None:
    text = format_report([LostRange(TOPIC, number, 0, 1, "gone") for number in range(5_000)])
    assert len(text.splitlines()) < 60 and "5000 messages of 5000 partitions" in text and "4950 ranges more" in text


# -- tasks -------------------------------------------------------------------------------------------------------------


def ranges_of(*sizes: int) -> list[OffsetRange]:
    return [OffsetRange(TOPIC, 7, number, 10, 10 + size) for number, size in enumerate(sizes)]


def test_few_partitions_have_a_task_each_and_many_share() -> None:
    assert len(plan_tasks(ranges_of(5, 0, 7))) == 2
    shared = plan_tasks(ranges_of(*[10] * 5_000))
    assert len(shared) == 32
    assert max(one.size for one in shared) - min(one.size for one in shared) <= 10
    assert len(plan_tasks(ranges_of(*[1_000_000] * 200))) == 200


def test_hot_partitions_are_split() -> None:
    parts = plan_tasks(ranges_of(100, 10), at_least=6)
    assert len(parts) == 6 and sum(one.size for one in parts) == 110
    assert max(one.size for one in parts) <= 20
    assert [one.size for one in plan_tasks(ranges_of(100), rows_max=40)] == [34, 33, 33]
    assert len(plan_tasks(ranges_of(2), at_least=10)) == 2, "a task without a row is of no use"


@given(st.lists(st.integers(0, 500), max_size=80), st.integers(0, 100), st.integers(0, 200))
def test_every_offset_is_in_exactly_one_task(sizes: list[int], at_least: int, rows_max: int) -> None:
    wanted = {(one.partition, offset) for one in ranges_of(*sizes) for offset in range(one.start, one.end)}
    planned = plan_tasks(ranges_of(*sizes), at_least, rows_max)
    read = [(one.partition, offset) for task in planned for one in task.ranges for offset in range(one.start, one.end)]
    assert len(read) == len(wanted) and set(read) == wanted
    assert all(task.ranges for task in planned)
    assert not rows_max or all(task.size <= rows_max for task in planned)
    assert len(planned) >= min(at_least, sum(sizes))


# -- offsets that hold no message --------------------------------------------------------------------------------------

GAP = (100, 78_000_100)


def gapped(*partitions: tuple[int, int, list[tuple[int, int]]]) -> dict[str, TopicView]:
    """(start, end, gaps) of each partition."""
    starts, ends, gaps = zip(*partitions, strict=True)
    return {TOPIC: TopicView(identity(7), starts, ends, tuple(map(Gaps, gaps)))}


def test_a_count_back_from_the_end_is_one_of_messages() -> None:
    seen = gapped((0, 78_000_101, [GAP]), (0, 100, []), (0, GAP[1], [GAP]), (95, 78_000_103, [GAP]))
    bounds = Bounds("startingOffsets", Bound("back", 10))
    assert spread(resolve_bounds(bounds, seen, 0, {})) == [91, 90, 90, 95]


def test_a_limit_goes_over_a_gap_and_makes_no_batch_of_it() -> None:
    seen = gapped((0, 78_000_140, [GAP]))
    place, sizes = offsets(0), []
    while (after := limit_batch(place, offsets(78_000_140), rows_max=50, view=seen)) != place:
        ranges, losses = ranges_between(place, after, seen)
        assert not losses
        sizes.append(sum(task.size for task in plan_tasks(ranges)))
        place = after
    assert sizes == [50, 50, 40] and spread(place) == [78_000_140]
    assert spread(limit_batch(offsets(0), offsets(78_000_140), rows_max=100, view=seen)) == [GAP[1]]


def test_where_nothing_but_a_gap_follows_a_stream_stays() -> None:
    seen = gapped((0, GAP[1], [GAP]), (0, 5, []))
    end = Offsets.ends_of(seen)
    assert spread(limit_batch(offsets(100, 5), end, view=seen)) == [100, 5]
    assert spread(limit_batch(offsets(100, 3), end, rows_max=1, view=seen)) == [100, 4]
    assert spread(limit_batch(offsets(90, 5), end, view=seen)) == [100, 5], "not into the gap either"
    assert spread(limit_batch(offsets(5_000, 5), end, view=seen)) == [5_000, 5], (
        "read before the disaster, and lost in it"
    )


def test_partitions_share_a_limit_by_their_messages() -> None:
    seen = gapped((0, 78_000_200, [GAP]), (0, 200, []))
    end = Offsets.ends_of(seen)
    assert spread(limit_batch(offsets(0, 0), end, rows_max=100, view=seen)) == [50, 50]
    sizes = {TOPIC: 10.0}
    assert spread(limit_batch(offsets(0, 0), end, bytes_max=1_000, sizes=sizes, view=seen)) == [50, 50]


@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(1, 300)), max_size=5), st.integers(0, 20), st.integers(0, 50)
)
def test_tasks_have_messages_alike_however_the_gaps_lie(
    lengths: list[tuple[int, int]], at_least: int, rows_max: int
) -> None:
    """Messages, then a gap, and so on."""
    gaps, messages, end = [], set[int](), 0
    for count, gap in lengths:
        messages.update(range(end, end + count))
        gaps.append((end + count, end + count + gap))
        end += count + gap
    seen = gapped((0, end, gaps))
    ranges, _ = ranges_between(offsets(0), Offsets.ends_of(seen), seen)
    planned = plan_tasks(ranges, at_least, rows_max)
    read = [offset for task in planned for one in task.ranges for offset in range(one.start, one.end)]
    assert len(read) == len(set(read)) and messages <= set(read)
    assert sum(task.size for task in planned) == len(messages)
    assert all(task.size for task in planned)
    assert not rows_max or all(task.size <= rows_max for task in planned)
    assert len(planned) >= min(at_least, len(messages))
