"""The checker of recorded histories finds what it must find, and nothing where nothing is wrong."""

from collections.abc import Iterable

import pytest
from recorded_history import COMPLAINTS_MAX, History, Kept, Outcome, Publish, Row, StagedBatch, Tag, TopicHistory, check


def acked(producer: str, number: int, offset: int, partition: int = 0) -> Publish:
    return Publish(Tag(producer, number), Outcome.ACKED, partition, offset)


def row(producer: str, number: int, offset: int, partition: int = 0) -> Row:
    return Row(partition, offset, Tag(producer, number))


def judged(
    publishes: Iterable[Publish],
    *readings: list[Row],
    kept: Kept = Kept.ALL,
    received: list[Row] | None = None,
) -> list[str]:
    topic = TopicHistory(kept, list(publishes), {f"r{number}": rows for number, rows in enumerate(readings)})
    if received is not None:
        topic.received["s"] = received
    return check(History({"/t": topic}))


GOOD = [acked("a", 0, 0), acked("b", 0, 1), acked("a", 1, 2)]
ROWS = [row("a", 0, 0), row("b", 0, 1), row("a", 1, 2)]


def test_a_run_that_keeps_every_promise_has_no_complaint() -> None:
    assert judged(GOOD, ROWS, ROWS, received=[*ROWS, ROWS[0]]) == []


def test_an_unknown_publish_may_be_there_or_not() -> None:
    unknown = [*GOOD, Publish(Tag("a", 2), Outcome.UNKNOWN)]
    assert judged(unknown, ROWS, ROWS) == []
    assert judged(unknown, [*ROWS, row("a", 2, 3)], [*ROWS, row("a", 2, 3)]) == []


def test_partitions_have_offsets_and_orders_of_their_own() -> None:
    publishes = [acked("a", 0, 0, 1), acked("a", 1, 0, 0), acked("a", 2, 1, 1)]
    assert judged(publishes, [row("a", 1, 0, 0), row("a", 0, 0, 1), row("a", 2, 1, 1)]) == []


def test_a_lost_ack_is_found() -> None:
    assert judged(GOOD, ROWS[:2]) == [f"/t: reader r0: {Tag('a', 1)} was acked at partition 0 offset 2 and is lost"]


@pytest.mark.parametrize("kept", [Kept.SOME, Kept.NONE])
def test_a_topic_that_promises_less_may_lose_acked_messages(kept: Kept) -> None:
    assert judged(GOOD, ROWS[:2], kept=kept) == []


def test_an_offset_that_was_given_out_twice_is_found() -> None:
    (complaint,) = judged([acked("a", 0, 5), acked("b", 0, 5)], kept=Kept.SOME)
    assert "offset 5 was given to" in complaint


@pytest.mark.parametrize("kept", [Kept.ALL, Kept.SOME])
def test_another_message_at_an_acked_offset_is_found_whatever_the_topic_promises(kept: Kept) -> None:
    publishes = [*GOOD, Publish(Tag("x", 0), Outcome.UNKNOWN)]
    complaints = judged(publishes, [*ROWS[:2], row("x", 0, 2)], kept=kept)
    assert any("offset 2 was acked to" in one and "holds" in one for one in complaints)


def test_a_message_that_is_there_twice_is_found() -> None:
    complaints = judged(GOOD, [*ROWS, row("b", 0, 3)])
    assert f"/t: reader r0: {Tag('b', 0)} is there 2 times" in complaints


def test_two_messages_of_one_offset_are_found_in_one_reading() -> None:
    publishes = [*GOOD, Publish(Tag("x", 0), Outcome.UNKNOWN)]
    assert any("offset 2 came after 2" in one for one in judged(publishes, [*ROWS, row("x", 0, 2)]))


def test_a_message_at_another_offset_than_its_ack_said_is_found() -> None:
    (complaint,) = judged([acked("a", 0, 0)], [row("a", 0, 1)])
    assert "was acked at (0, 0) and is at (0, 1)" in complaint


def test_readers_that_differ_are_found() -> None:
    publishes = [*GOOD, Publish(Tag("x", 0), Outcome.UNKNOWN)]
    assert judged(publishes, ROWS, [*ROWS, row("x", 0, 3)]) == [
        f"/t: {Tag('x', 0)} at partition 0 offset 3 was seen by r1 only"
    ]


def test_messages_out_of_the_order_of_their_producer_are_found() -> None:
    publishes = [acked("a", 1, 0), acked("a", 0, 1)]
    (complaint,) = judged(publishes, [row("a", 1, 0), row("a", 0, 1)])
    assert "is behind message 1 of its producer" in complaint


def test_a_message_that_nobody_sent_is_found() -> None:
    (complaint,) = judged(GOOD, [*ROWS, row("ghost", 7, 3)])
    assert "was never sent to this topic" in complaint


def test_a_refused_message_that_is_there_after_all_is_found() -> None:
    (complaint,) = judged([*GOOD, Publish(Tag("x", 0), Outcome.REFUSED)], [*ROWS, row("x", 0, 3)])
    assert "was refused, and is at" in complaint


def test_a_message_that_a_subscription_never_got_is_found() -> None:
    (complaint,) = judged(GOOD, ROWS, received=ROWS[1:])
    assert "subscription s" in complaint and "is lost" in complaint


def test_a_message_that_came_from_two_offsets_is_found() -> None:
    assert any("came from" in one for one in judged(GOOD, received=[*ROWS, row("a", 0, 9)]))


def test_complaints_are_cut_short() -> None:
    publishes = [acked("a", number, number) for number in range(100)]
    complaints = judged(publishes, [])
    assert len(complaints) == COMPLAINTS_MAX + 1
    assert complaints[-1] == "/t: and more"


def test_a_payload_says_which_message_it_is() -> None:
    tag = Tag("producer-7/life-2", 12)
    assert Tag.parse(tag.payload()) == tag


def test_a_message_that_a_reader_saw_and_that_is_gone_is_found() -> None:
    publishes = [*GOOD, Publish(Tag("x", 0), Outcome.UNKNOWN)]
    topic = TopicHistory(Kept.ALL, publishes, {"r": ROWS}, {"live": [*ROWS[1:], row("x", 0, 3)]})
    (complaint,) = check(History({"/t": topic}))
    assert "offset 3 and is there no more" in complaint


def test_a_committed_message_without_an_offset_is_there_once() -> None:
    committed = [Publish(Tag("s", 0), Outcome.ACKED)]
    assert judged(committed, [row("s", 0, 4)]) == []
    assert judged(committed, []) == [f"/t: reader r0: {Tag('s', 0)} was acked and is lost"]
    assert any("2 times" in one for one in judged(committed, [row("s", 0, 4), row("s", 0, 5)]))


def staged(found: list[Row], *attempts: list[Tag]) -> list[str]:
    """Return the complaints about a committed batch, of two topics, of which these messages are there."""
    unknown = [Publish(tag, Outcome.UNKNOWN) for attempt in attempts for tag in attempt]
    topics = {
        name: TopicHistory(Kept.ALL, unknown, {"r": [one for one in found if one.partition == index]})
        for index, name in enumerate(("/one", "/two"))
    }
    return check(History(topics, [StagedBatch("batch 0", list(attempts))]))


def test_a_committed_batch_is_one_of_its_attempts_over_all_topics() -> None:
    first, second = [Tag("s0", 0), Tag("s0", 1)], [Tag("s1", 0), Tag("s1", 1)]
    assert staged([row("s1", 0, 0, 0), row("s1", 1, 0, 1)], first, second) == []


def test_a_committed_batch_that_is_there_in_part_is_found() -> None:
    attempt = [Tag("s0", 0), Tag("s0", 1)]
    assert staged([row("s0", 0, 0, 0)], attempt) == [f"reader r: batch 0 is there in part: {attempt[1]} is missing"]


def test_a_committed_batch_that_is_missing_is_found() -> None:
    assert staged([], [Tag("s0", 0)]) == ["reader r: batch 0 was committed, and 0 of its attempts are there"]


def test_two_attempts_of_one_batch_are_found() -> None:
    rows = [row("s0", 0, 0, 0), row("s1", 0, 0, 1)]
    (complaint,) = staged(rows, [Tag("s0", 0)], [Tag("s1", 0)])
    assert "2 of its attempts are there" in complaint
