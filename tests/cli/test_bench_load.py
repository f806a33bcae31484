"""The bench's own integrity check: it passes what is right and finds every kind of fault."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydanube.cli.bench.checking import DeliveryVerifier, compare, pack, unpack
from pydanube.cli.bench.load import STAMP_BYTES, PayloadSource, sent_time, stamped


def batches(*, producer: int = 1, size: int = 100, batch: int = 50, count: int = 4) -> list[list[bytes]]:
    source = PayloadSource(producer=producer, size=size, batch=batch, verify=True)
    return [source.take(batch) for _ in range(count)]


def verified(deliveries: list[tuple[int, list[bytes]]], sent: dict[int, int], size: int = 100) -> dict[str, int]:
    verifier = DeliveryVerifier(size=size)
    for partition, payloads in deliveries:
        verifier.check("/default/t", partition, payloads)
    return verifier.finish(sent)


@given(size=st.integers(STAMP_BYTES, 200), counts=st.lists(st.integers(1, 40), min_size=1, max_size=8))
def test_everything_once_and_in_order_is_faultless_whatever_the_sizes(size: int, counts: list[int]):
    source = PayloadSource(producer=7, size=size, batch=40, verify=True)
    made = [source.take(count) for count in counts]
    assert all(len(payload) == size for payloads in made for payload in payloads)
    assert verified([(0, payloads) for payloads in made], {7: sum(counts)}, size) == {}


def test_producers_may_be_mixed_and_partitions_interleaved():
    first, second = batches(producer=1), batches(producer=2)
    mixed = [payload for pair in zip(first[0], second[0], strict=True) for payload in pair]
    deliveries = [
        (0, mixed),
        (1, first[1]),
        (0, second[1]),
        (0, first[2]),
        (1, second[2]),
        (0, first[3]),
        (1, second[3]),
    ]
    assert verified(deliveries, {1: 200, 2: 200}) == {}


def test_a_missing_batch_is_found():
    made = batches()
    assert verified([(0, made[0]), (0, made[2]), (0, made[3])], {1: 200}) == {"missing": 50}


def test_a_message_received_again_is_found_and_so_is_its_place():
    made = batches()
    faults = verified([(0, payloads) for payloads in (*made, made[1][:3])], {1: 200})
    assert faults == {"received again": 3, "out of order": 1}


def test_two_messages_that_changed_places_are_found():
    made = batches()
    made[1][3], made[1][4] = made[1][4], made[1][3]
    assert verified([(0, payloads) for payloads in made], {1: 200}) == {"out of order": 1}


def test_any_flipped_bit_but_the_clock_is_found():
    rng = random.Random(20260131)
    for _ in range(200):
        made = batches(count=1)
        row = rng.randrange(50)
        bit = rng.randrange(8 * 100)
        if STAMP_BYTES - 8 <= bit // 8 < STAMP_BYTES:
            continue
        damaged = bytearray(made[0][row])
        damaged[bit // 8] ^= 1 << bit % 8
        made[0][row] = bytes(damaged)
        assert verified([(0, made[0])], {1: 50}) != {}, f"bit {bit} of row {row}"


@pytest.mark.parametrize("payload", [b"", b"x", b"x" * 99, b"x" * 101])
def test_a_payload_of_another_length_is_found(payload: bytes):
    made = batches(count=1)
    made[0][9] = payload
    assert verified([(0, made[0])], {1: 50})["wrong length"] == 50


def test_messages_nobody_sent_are_found():
    made = batches()
    assert verified([(0, payloads) for payloads in made], {1: 150}) == {"never sent": 50}
    assert verified([(0, payloads) for payloads in made], {}) == {"from an unknown producer": 200}


def test_the_time_of_sending_travels_in_the_payload():
    payload = stamped(batches(count=1)[0][7], 1 << 40)
    assert sent_time(payload) == 1 << 40
    assert verified([(0, [payload])], {1: 50}) == {"missing": 49}


def test_without_verification_batches_are_prepared_once():
    source = PayloadSource(producer=1, size=100, batch=50, verify=False)
    first = [source.take(50) for _ in range(64)]
    assert source.take(50) is first[0]
    assert len(source.take(7)) == 7


def keyed(deliveries: list[tuple[list[bytes], list[str]]], keys: int) -> DeliveryVerifier:
    verifier = DeliveryVerifier(size=100, order="key", keys=keys)
    for payloads, texts in deliveries:
        verifier.check("/default/t", 0, payloads, texts)
    return verifier


def keyed_batches(keys: int, count: int = 4) -> list[tuple[list[bytes], list[str]]]:
    source = PayloadSource(producer=1, size=100, batch=50, verify=True, keys=keys)
    return [source.take_keyed(50) for _ in range(count)]


def test_keys_may_overtake_each_other_and_a_message_may_not_overtake_its_key():
    made = keyed_batches(keys=5)
    assert keyed(made, 5).finish({1: 200}) == {}
    by_key = [sorted(zip(*batch, strict=True), key=lambda row: row[1]) for batch in made]
    assert keyed([tuple(map(list, zip(*rows, strict=True))) for rows in by_key], 5).finish({1: 200}) == {}
    assert keyed([made[1], made[0], made[2], made[3]], 5).finish({1: 200})["out of order"] >= 5


def test_a_wrong_key_is_found():
    (payloads, texts), *_ = keyed_batches(keys=5, count=1)
    assert keyed([(payloads, ["key-9", *texts[1:]])], 5).finish({1: 50}) == {"wrong key": 1}


def test_shared_consumers_are_checked_together():
    made = batches()
    parts = []
    for some in (made[:2], made[2:]):
        verifier = DeliveryVerifier(size=100, order="none")
        for payloads in some:
            verifier.check("/default/t", 0, payloads[::-1])
        assert verifier.faults == {}
        parts.append(unpack(pack(verifier.seen)))
    assert compare(parts, {1: 200}) == {}
    assert compare(parts[:1], {1: 200}) == {"missing": 100}
    assert compare(parts[:1], {1: 200}, lossy=True) == {}
    assert compare([*parts, parts[0]], {1: 200}) == {"received again": 100}
    assert compare(parts, {1: 150}) == {"never sent": 50}
    assert compare(parts, {}) == {"from an unknown producer": 200}


def test_a_key_with_two_consumers_is_found():
    parts = [keyed([batch], 5).seen for batch in keyed_batches(keys=5, count=2)]
    assert compare(parts, {1: 100}, keys=5) == {"keys of several consumers": 5}


def test_keys_are_prepared_with_their_payloads():
    source = PayloadSource(producer=1, size=100, batch=50, verify=False, keys=7)
    first = [source.take_keyed(50) for _ in range(64)]
    assert source.take_keyed(50) == first[0]
    assert set(first[0][1]) == {f"key-{number}" for number in range(7)}
    assert [len(part) for part in source.take_keyed(9)] == [9, 9]
