from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from pydanube.core.placement import Candidate, Unplaced, place

NAMES = st.integers(1, 8).map(lambda count: [f"b{index}" for index in range(count)])
LOADS = st.tuples(st.integers(0, 100), st.floats(0, 1e9), st.sampled_from(["", "x", "y", "z"]))
TOPICS = st.lists(st.integers(0, 40), max_size=8).map(
    lambda counts: [Unplaced(topic, range(count)) for topic, count in enumerate(counts)]
)


@st.composite
def clusters(draw: st.DrawFn) -> list[Candidate]:
    return [
        Candidate(name, zone, partitions, traffic)
        for name in draw(NAMES)
        for partitions, traffic, zone in [draw(LOADS)]
    ]


def spread(counts: Counter[str], over: list[str]) -> int:
    return max(counts[one] for one in over) - min(counts[one] for one in over)


@given(clusters(), TOPICS)
def test_every_partition_is_placed_once_on_a_living_broker(brokers, topics):
    placed = place(brokers, topics)
    assert sorted(placed) == [(one.topic, index) for one in topics for index in one.indexes]
    assert set(placed.values()) <= {one.name for one in brokers}


@given(clusters(), TOPICS)
def test_a_topics_partitions_differ_by_at_most_one_between_brokers(brokers, topics):
    placed = place(brokers, topics)
    for topic in topics:
        counts = Counter(placed[topic.topic, index] for index in topic.indexes)
        assert spread(counts, [one.name for one in brokers]) <= 1


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 40), st.randoms())
def test_a_topics_partitions_differ_by_at_most_one_between_zones_of_equal_size(zones, size, partitions, random):
    brokers = [
        Candidate(f"b{number}", f"zone{number % zones}", random.randrange(100), random.random())
        for number in range(zones * size)
    ]
    placed = place(brokers, [Unplaced(1, range(partitions))])
    zone_of = {one.name: one.zone for one in brokers}
    counts = Counter(zone_of[name] for name in placed.values())
    assert spread(counts, sorted(set(zone_of.values()))) <= 1


@given(clusters(), TOPICS, st.randoms())
def test_the_order_in_which_brokers_are_given_does_not_matter(brokers, topics, random):
    assert place(random.sample(brokers, len(brokers)), topics) == place(brokers, topics)


@given(st.integers(1, 6), st.integers(0, 200))
def test_topics_of_one_partition_are_spread_over_equal_brokers(count, topics):
    brokers = [Candidate(f"b{number}", partitions=7) for number in range(count)]
    placed = place(brokers, [Unplaced(topic, [0]) for topic in range(topics)])
    assert spread(Counter(placed.values()), [one.name for one in brokers]) <= 1


def test_the_zone_without_a_partition_of_the_topic_comes_first():
    brokers = [Candidate("a1", "a"), Candidate("a2", "a"), Candidate("b1", "b", partitions=50)]
    placed = place(brokers, [Unplaced(1, [1], {"a1": 1})])
    assert placed == {(1, 1): "b1"}, "although a2 has less to do"


def test_a_new_partition_goes_where_its_topic_has_the_fewest():
    brokers = [Candidate("a", partitions=5), Candidate("b", partitions=9)]
    assert place(brokers, [Unplaced(1, [3], {"a": 2, "b": 1})]) == {(1, 3): "b"}


def test_the_least_loaded_broker_comes_first():
    assert place([Candidate("a", partitions=3), Candidate("b", partitions=2)], [Unplaced(1, [0])]) == {(1, 0): "b"}
    busy = [Candidate("a", partitions=3, traffic=100.0), Candidate("b", partitions=4, traffic=1.0)]
    assert place(busy, [Unplaced(1, [0])]) == {(1, 0): "b"}, "traffic counts as much as partitions"


def test_without_brokers_nothing_is_placed():
    assert place([], [Unplaced(1, [0])]) == {}


def test_partitions_elsewhere_of_brokers_that_are_gone_are_no_obstacle():
    assert place([Candidate("a")], [Unplaced(1, [0], {"gone": 3})]) == {(1, 0): "a"}


class CountedName(str):
    """A name that counts how often it is looked up or compared."""

    used = 0

    def __hash__(self) -> int:
        CountedName.used += 1
        return super().__hash__()

    def __lt__(self, other: str) -> bool:
        CountedName.used += 1
        return super().__lt__(other)


def test_the_cost_of_a_large_topic_hardly_grows_with_the_number_of_brokers():
    brokers = [Candidate(CountedName(f"b{number:03}"), f"zone{number % 5}") for number in range(200)]
    CountedName.used = 0
    place(brokers, [Unplaced(1, range(10_000))])
    assert CountedName.used < 10_000 * 30, "looking at each of the 200 brokers would take two million"
