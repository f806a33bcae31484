"""The cursor against the simplest possible model: a set of offsets."""

from hypothesis import given
from hypothesis import strategies as st

from pydanube.core.dispatch.cursor import Cursor

ranges = st.tuples(st.integers(0, 60), st.integers(0, 20)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@given(st.integers(0, 20), st.lists(ranges, max_size=40), st.tuples(st.integers(0, 70), st.integers(0, 70)))
def test_a_cursor_is_a_set_of_acked_offsets(position, acks, window):
    cursor, settled = Cursor(position), set(range(position))
    for start, end in acks:
        fresh = set(range(start, end)) - settled
        assert cursor.ack(start, end) == len(fresh)
        settled |= fresh
        lowest = next(offset for offset in range(1000) if offset not in settled)
        assert cursor.position == lowest
        assert cursor.acked_ahead == len([offset for offset in settled if offset >= lowest])
        assert _well_formed(cursor)
    low, high = window
    missing = {offset for start, end in cursor.missing(low, high) for offset in range(start, end)}
    assert missing == set(range(low, high)) - settled


def _well_formed(cursor: Cursor) -> bool:
    last = cursor.position
    for start, end in cursor.acked:
        if not last < start < end:
            return False
        last = end
    return True


def test_one_stuck_message_costs_one_gap_however_many_follow_it():
    cursor = Cursor(0)
    for start in range(1, 100_001, 100):
        cursor.ack(start, start + 100)
    assert cursor.position == 0
    assert cursor.gaps == 1
    cursor.ack(0, 1)
    assert (cursor.position, cursor.gaps) == (100_001, 0)


def test_moving_a_cursor_forgets_what_was_acked_ahead():
    cursor = Cursor(0)
    cursor.ack(5, 10)
    cursor.move(3, 1)
    assert cursor.missing(0, 12) == [(3, 12)]


def test_a_cursor_is_restored_from_its_position_and_acked_ranges():
    cursor = Cursor(0)
    cursor.ack(5, 10)
    cursor.ack(12, 13)
    again = Cursor(cursor.position, cursor.acked)
    assert (again.position, again.acked) == (0, [(5, 10), (12, 13)])
