"""Control entries as bytes: what is stored today must be readable for ever."""

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydanube.codec.state import (
    FORMAT,
    ChangeKind,
    CursorChange,
    Delta,
    LedgerStart,
    PackedChange,
    StateSnapshot,
    decode,
    encode,
    encode_delta,
    ledger_stamp,
    packed,
)
from pydanube.model.errors import Corrupt
from pydanube.model.ledgers import CursorEntry, ProducerEntry

PRODUCER = ProducerEntry(7, 2, 500, 1_700_000_000_000_000, [(0, 10, 300), (300, 400, 200)])
CURSOR = CursorEntry(3, 120, [(130, 140), (150, 151)])

LEDGER_START_0_1 = "9301cd0258919507" + "02cd01f4cf00060a24181e4000" + "9293000acd012c93cd012ccd0190ccc8"

GOLDEN = [
    (
        LedgerStart(FORMAT, 600, [PRODUCER], "5f" * 4, 300),
        "95" + LEDGER_START_0_1[2:] + "a8" + b"5f5f5f5f".hex() + "cd012c",
    ),
    (
        StateSnapshot(FORMAT, 600, [], [CURSOR], [(3, (2 << 32) + 1)]),
        "9501cd0258" + "90" + "919303789292cc82cc8c92cc96cc97" + "919203" + "cf0000000200000001",
    ),
    (
        Delta(
            FORMAT,
            [CursorChange(3, ChangeKind.ACKED, [(1, 2)]), CursorChange(3, ChangeKind.MOVED, [(9, 9)], (2 << 32) + 1)],
        ),
        "9201" + "92" + "94030091920102" + "00" + "940301919209" + "09" + "cf0000000200000001",
    ),
]

EARLIER = [
    (StateSnapshot(FORMAT, 600, [], [CURSOR]), "9401cd0258" + "90" + "919303789292cc82cc8c92cc96cc97"),
    (
        Delta(FORMAT, [CursorChange(3, ChangeKind.ACKED, [(1, 2)]), CursorChange(3, ChangeKind.MOVED, [(9, 9)])]),
        "9201" + "92" + "930300919201" + "02" + "9303019192" + "0909",
    ),
]
"""As releases wrote them that knew no seek generation."""


@pytest.mark.parametrize(("entry", "golden"), GOLDEN, ids=lambda value: type(value).__name__)
def test_golden_bytes(entry, golden):
    assert encode(entry).hex() == golden
    assert decode(bytes.fromhex(golden), type(entry)) == entry


def test_a_ledger_start_of_an_earlier_release_names_no_metadata():
    body = bytes.fromhex(LEDGER_START_0_1)
    assert decode(body, LedgerStart) == LedgerStart(FORMAT, 600, [PRODUCER])
    assert ledger_stamp(body) is None
    assert ledger_stamp(encode(LedgerStart(FORMAT, 600, [PRODUCER], "5f", 300))) == ("5f", 300)
    assert ledger_stamp(b"start") is None


@pytest.mark.parametrize(("entry", "golden"), EARLIER, ids=lambda value: type(value).__name__)
def test_bytes_of_releases_without_a_seek_generation_are_read(entry, golden):
    assert decode(bytes.fromhex(golden), type(entry)) == entry


def test_a_later_format_is_refused_by_name():
    with pytest.raises(Corrupt, match="Snapshot entry has format 2; this release reads 1"):
        decode(encode(StateSnapshot(2, 0, [], [])), StateSnapshot)


def test_fields_a_later_release_appends_are_passed_over():
    body = encode(Delta(FORMAT, []))
    assert decode(b"\x93" + body[1:] + b"\x07", Delta) == Delta(FORMAT, [])


numbers = st.integers(0, 2**63 - 1)
producers = st.builds(ProducerEntry, numbers, numbers, numbers, numbers, st.lists(st.tuples(numbers, numbers, numbers)))
cursors = st.builds(CursorEntry, numbers, numbers, st.lists(st.tuples(numbers, numbers)))


@given(numbers, st.lists(producers, max_size=5), st.lists(cursors, max_size=5))
def test_snapshots_come_back(next_offset, some_producers, some_cursors):
    entry = StateSnapshot(FORMAT, next_offset, some_producers, some_cursors)
    assert decode(encode(entry), StateSnapshot) == entry


@given(st.binary(max_size=200), st.sampled_from([LedgerStart, StateSnapshot, Delta]))
def test_no_bytes_do_anything_but_decode_or_raise_corrupt(body, kind):
    with suppress(Corrupt):
        assert isinstance(decode(body, kind), kind)


@pytest.mark.parametrize("ranges", [[], [(1, 2)], [(0, 1), (5, 2**32 - 1)], [(7, 9), (2**32, 2**63 - 1)]])
def test_packed_ranges_are_read_back_as_they_were(ranges):
    table = np.array(ranges, np.int64).reshape(-1, 2)
    change = PackedChange(3, ChangeKind.ACKED, packed(table[:, 0], table[:, 1]))
    moved = CursorChange(4, ChangeKind.MOVED, [(9, 9)])
    expected = Delta(FORMAT, [CursorChange(3, ChangeKind.ACKED, ranges), moved])
    assert decode(encode_delta([change, moved]), Delta) == expected
    assert encode_delta(expected.changes) == encode(expected)


def test_packed_ranges_have_the_bytes_they_had_when_they_were_released():
    body = encode_delta([PackedChange(3, ChangeKind.ACKED, packed(np.array([1, 5]), np.array([2, 9])))])
    assert (
        body.hex() == "9201" + "91" + "9303" + "00" + "dd00000002" + "92ce00000001ce00000002" + "92ce00000005ce00000009"
    )
