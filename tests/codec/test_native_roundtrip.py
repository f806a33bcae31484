"""The native protocol's frames and heads come back as what they were."""

from __future__ import annotations

import struct

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from native_strategies import I64, OFFSET, OTHERS, REQUESTS, ROW_RANGES, U16, U32, values_of

from pydanube.codec.native import frames, requests
from pydanube.codec.native.frames import FrameKind
from pydanube.model.errors import Conflict, DanubeError, Full, Held, Invalid, NotOwner, Refused, RequestFailed, tree
from pydanube.model.failure import REASON_CHARACTERS_MAX
from pydanube.model.limits import ALIGNMENT, BATCH_MESSAGES_MAX, CONTROL_BYTES_MAX
from pydanube.model.names import TopicName
from pydanube.operations import topics


@given(st.sampled_from(FrameKind), st.integers(0, 255), U32, st.binary(max_size=300))
def test_a_frame_without_a_body_comes_back(kind: FrameKind, flags: int, correlation: int, head: bytes) -> None:
    encoded = frames.encode(kind, head, correlation, flags)
    assert len(encoded) % frames.PADDING == 0
    decoded = frames.decode(memoryview(encoded))
    assert decoded[:3] == (kind, flags, correlation)
    assert bytes(decoded.head) == head
    assert len(decoded.body) == 0


@given(st.sampled_from(FrameKind), U32, st.binary(max_size=300), st.binary(min_size=1, max_size=300))
def test_a_frame_with_a_body_comes_back_and_its_body_is_aligned(
    kind: FrameKind, correlation: int, head: bytes, body: bytes
) -> None:
    front = frames.encode_front(kind, head, len(body), correlation)
    assert len(front) % ALIGNMENT == 0
    decoded = frames.decode(memoryview(front + body))
    assert (decoded.kind, decoded.correlation) == (kind, correlation)
    assert bytes(decoded.head) == head
    assert bytes(decoded.body) == body


@given(U32, U32, ROW_RANGES, st.lists(U16, max_size=40))
def test_a_deliver_head_comes_back(
    handle: int, epoch: int, ranges: list[tuple[int, int]], redeliveries: list[int]
) -> None:
    head = frames.decode_deliver_head(memoryview(frames.encode_deliver_head(handle, epoch, ranges, redeliveries)))
    assert head == (handle, epoch, ranges, tuple(redeliveries), ())


@given(ROW_RANGES, st.lists(st.tuples(U16, st.none() | st.text(max_size=20)), min_size=1, max_size=20))
def test_a_deliver_head_with_reasons_comes_back(
    ranges: list[tuple[int, int]], rows: list[tuple[int, str | None]]
) -> None:
    redeliveries, reasons = [count for count, _ in rows], [reason for _, reason in rows]
    head = frames.decode_deliver_head(memoryview(frames.encode_deliver_head(6, 2, ranges, redeliveries, reasons)))
    assert head == (6, 2, ranges, tuple(redeliveries), reasons)


def test_a_message_that_failed_more_often_than_is_counted_is_delivered_all_the_same() -> None:
    head = frames.decode_deliver_head(memoryview(frames.encode_deliver_head(6, 2, [], [3, 2**16, 2**40])))
    assert head.redeliveries == (3, 2**16 - 1, 2**16 - 1)


def test_more_reasons_than_a_head_takes_lose_some_reasons_and_no_row() -> None:
    counts, reason = [1] * BATCH_MESSAGES_MAX, "é" * REASON_CHARACTERS_MAX
    encoded = frames.encode_deliver_head(6, 2, [], counts, [reason] * BATCH_MESSAGES_MAX)
    assert len(encoded) <= CONTROL_BYTES_MAX
    head = frames.decode_deliver_head(memoryview(encoded))
    assert (len(head.redeliveries), len(head.reasons)) == (BATCH_MESSAGES_MAX, BATCH_MESSAGES_MAX)
    assert set(head.reasons) == {reason, None}
    kept = len(head.reasons) - list(head.reasons).count(None)
    assert head.reasons[:kept] == [reason] * kept


GENERATION = st.just(frames.GENERATION_UNKNOWN) | st.integers(0, 2**64 - 1)


@given(U32, st.lists(st.tuples(OFFSET, OFFSET).filter(lambda one: one[0] < one[1]), max_size=60), GENERATION)
def test_an_ack_head_comes_back_however_many_ranges_it_has_and_however_they_are_given(
    handle: int, ranges: list[tuple[int, int]], generation: int
) -> None:
    head = frames.encode_ack_head(handle, ranges, generation)
    assert frames.encode_ack_head(handle, np.array(ranges, np.int64).reshape(-1, 2), generation) == head
    found, decoded, told = frames.decode_ack_head(memoryview(head))
    assert (found, [(int(start), int(end)) for start, end in decoded], told) == (handle, ranges, generation)
    assert isinstance(decoded, np.ndarray) == (len(ranges) >= frames.MANY_RANGES)


@pytest.mark.parametrize("ranges", [[(3, 3)], [(5, 4)], [(-1, 4)], [(0, 1)] * 40 + [(7, 7)], [(0, 1)] * 40 + [(-1, 4)]])
def test_an_ack_of_nothing_or_of_less_is_refused(ranges: list[tuple[int, int]]) -> None:
    with pytest.raises(Invalid, match="empty or negative"):
        frames.decode_ack_head(memoryview(frames.encode_ack_head(1, ranges)))


@pytest.mark.parametrize(
    ("layout", "values"),
    [
        (frames.PUBLISH, st.tuples(U32)),
        (frames.PUBLISHED, st.tuples(U32, I64, U32)),
        (frames.CREDIT, st.tuples(U32, I64, I64)),
        (frames.FETCHED, st.tuples(I64, I64, I64, U32)),
    ],
    ids=["PUBLISH", "PUBLISHED", "CREDIT", "FETCHED"],
)
@given(data=st.data())
def test_a_fixed_head_comes_back_and_only_at_its_own_length(
    layout: struct.Struct, values: st.SearchStrategy[tuple[int, ...]], data: st.DataObject
) -> None:
    numbers = data.draw(values)
    packed = layout.pack(*numbers)
    assert frames.unpack_head(memoryview(packed), layout, FrameKind.PUBLISH) == numbers
    for wrong in (packed[:-1], packed + b"\x00", b""):
        with pytest.raises(Invalid, match="bytes instead of"):
            frames.unpack_head(memoryview(wrong), layout, FrameKind.PUBLISH)


@pytest.mark.parametrize("ranges", [[(3, 3)], [(5, 4)], [(-1, 4)], [(0, 2**63)], [(0, 1), (2**64 - 2, 2**64 - 1)]])
@pytest.mark.parametrize(
    "fields", [{"handle": 6}, {"op": "subscription.settle", "topic": "/default/orders", "subscription": "billing"}]
)
def test_a_nack_or_a_skip_of_nothing_or_of_less_is_refused(
    fields: dict[str, object], ranges: list[tuple[int, int]]
) -> None:
    head = memoryview(msgspec.msgpack.encode({**fields, "ranges": ranges}))
    with pytest.raises(Invalid, match="empty, negative or too large"):
        requests.decode_request(head) if "op" in fields else requests.decode(head, requests.Nack)


@pytest.mark.parametrize("kind", REQUESTS, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_a_request_comes_back_as_the_one_it_was(kind: type[requests.Request], data: st.DataObject) -> None:
    request = data.draw(values_of(kind))
    assert isinstance(request, kind)
    decoded = requests.decode_request(memoryview(requests.encode(request)))
    assert type(decoded) is kind
    assert decoded == request


@pytest.mark.parametrize("kind", OTHERS, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_an_answer_comes_back(kind: type[msgspec.Struct], data: st.DataObject) -> None:
    answer = data.draw(values_of(kind))
    assert isinstance(answer, kind)
    assert requests.decode(memoryview(requests.encode(answer)), kind) == answer


@pytest.mark.parametrize("kind", tree(), ids=lambda kind: kind.__name__)
def test_an_error_arrives_as_the_class_it_was(kind: type[DanubeError]) -> None:
    error = NotOwner("why", "elsewhere:1") if kind is NotOwner else kind("why")
    arrived = requests.decode(memoryview(requests.encode(requests.Failure.of(error, 3))), requests.Failure)
    assert type(arrived.error()) is kind
    assert arrived.error().message == "why"
    assert arrived.handle == 3
    assert not isinstance(error, NotOwner) or arrived.owner == "elsewhere:1"


def test_the_error_codes_are_what_they_were() -> None:
    assert {kind.__name__: kind.code for kind in tree() if kind.__module__ == DanubeError.__module__} == {
        "DanubeError": 1,
        "Invalid": 2,
        "Refused": 3,
        "NotFound": 4,
        "AlreadyExists": 5,
        "Denied": 6,
        "Unauthenticated": 7,
        "Full": 8,
        "NotOwner": 9,
        "StaleEpoch": 10,
        "Unavailable": 11,
        "Corrupt": 12,
        "Held": 13,
        "Conflict": 14,
        "RequestFailed": 15,
    }


def test_a_newer_error_class_reaches_an_earlier_client_as_its_base_class() -> None:
    for error, code in (
        (Held("held by another"), 13),
        (Conflict("held by another"), 14),
        (RequestFailed("held by another"), 15),
    ):
        sent = msgspec.msgpack.decode(requests.encode(requests.Failure.of(error)))
        assert sent == {"code": 3, "message": "held by another", "subcode": code}
        del sent["subcode"]  # which an earlier client does not read
        assert type(msgspec.convert(sent, requests.Failure).error()) is Refused


def test_a_subcode_that_is_not_known_yet_is_passed_over() -> None:
    assert type(requests.Failure(8, "a limit of later releases", subcode=99).error()) is Full


def test_a_field_that_is_not_known_yet_is_passed_over() -> None:
    later = msgspec.msgpack.encode({"op": "lookup", "topic": "/default/orders", "since": [1, {"deep": None}]})
    assert requests.decode_request(memoryview(later)) == topics.Lookup(topic=TopicName.parse("/default/orders"))


def test_hello_says_its_versions_even_where_they_are_todays_defaults() -> None:
    told = msgspec.msgpack.decode(requests.encode(requests.Hello()))
    assert (told["version_min"], told["version_max"]) == (1, 1)
