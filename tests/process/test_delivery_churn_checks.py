"""The churn tests' own checks: they pass what is right and find what is not."""

import pytest
from churn import FOREVER, Record, Session, Took, check_content, check_once, check_order, check_repetitions


def recorded(kind: str, *sessions: Session, payloads: int = 10) -> Record:
    record = Record()
    record.sent = {f"0-{n}": 0.0 for n in range(payloads)}
    record.sessions = list(sessions)
    for session in sessions:
        session.type = kind
    return record


def session(*took: Took, ended_at: float = FOREVER) -> Session:
    return Session("", 0.0, list(took), ended_at)


def took(offset: int, at: float, *, key: str = "k", settled_at: float = FOREVER, partition: int = 0) -> Took:
    return Took(at, partition, offset, key, f"0-{offset}", settled_at)


def test_what_came_in_order_is_in_order():
    record = recorded("exclusive", session(took(0, 1), took(1, 2)), session(took(1, 3), took(2, 4)))
    check_order(record, "exclusive")


def test_a_first_delivery_behind_a_later_one_is_found_on_all_types_but_shared():
    for kind in ("exclusive", "failover", "key-shared"):
        with pytest.raises(AssertionError, match="0-0 at \\(0, 0\\) came after offset 1"):
            check_order(recorded(kind, session(took(1, 1), took(0, 2))), kind)
    check_order(recorded("shared", session(took(1, 1), took(0, 2))), "shared")


def test_keys_have_an_order_of_their_own():
    check_order(recorded("key-shared", session(took(1, 1, key="a"), took(0, 2, key="b"))), "key-shared")


def test_what_was_settled_must_not_come_again():
    record = recorded("shared", session(took(0, 1, settled_at=2), ended_at=3), session(took(0, 4)))
    with pytest.raises(AssertionError, match="0-0 at \\(0, 0\\) came again without a reason"):
        check_repetitions(record, "shared")


def test_what_somebody_alive_has_must_not_come_again():
    record = recorded("shared", session(took(0, 1)), session(took(0, 4)))
    with pytest.raises(AssertionError, match="came again without a reason"):
        check_repetitions(record, "shared")


def test_what_was_with_the_dead_may_come_again():
    record = recorded("shared", session(took(0, 1), ended_at=3), session(took(0, 4)))
    assert check_repetitions(record, "shared") == 1


def test_what_was_not_settled_when_the_broker_died_may_come_again():
    record = recorded("shared", session(took(0, 1, settled_at=5), took(0, 4, settled_at=5)))
    record.broker_kills = [(2.0, 2.1)]
    assert check_repetitions(record, "shared") == 1
    record.sessions[0].took[0].settled_at = 1.5
    with pytest.raises(AssertionError, match="came again without a reason"):
        check_repetitions(record, "shared")


def test_at_most_once_is_not_twice():
    record = recorded("shared", session(took(0, 1), ended_at=2), session(took(0, 3)))
    with pytest.raises(AssertionError, match="0-0 came twice"):
        check_once(record, "shared")


def test_what_nobody_sent_and_an_offset_with_two_contents_are_found():
    with pytest.raises(AssertionError, match="0-11 was never sent"):
        check_content(recorded("shared", session(took(11, 1))), "shared")
    other = Took(2, 0, 0, "k", "0-1")
    with pytest.raises(AssertionError, match="an offset was used twice"):
        check_content(recorded("shared", session(took(0, 1), other)), "shared")
