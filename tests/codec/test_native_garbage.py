"""Whatever bytes arrive: the native protocol's readers return a value or raise Invalid, and nothing else."""

from __future__ import annotations

import contextlib
import dataclasses
import typing
from functools import partial

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from native_samples import FRAMES, GOLDEN, HEADS, with_golden
from native_strategies import OTHERS

from pydanube.codec.native import frames, requests
from pydanube.codec.native.frames import Frame, FrameKind
from pydanube.model.errors import Invalid
from pydanube.model.failure import FailurePolicy
from pydanube.model.limits import FRAME_BYTES_MAX
from pydanube.model.policies import FIELDS, Policies, PolicyReport
from pydanube.model.topics import SubscriptionDescription


def header(length: int, kind: int = 3, zero: int = 0, head_length: int = 0) -> bytes:
    return frames.HEADER.pack(length, kind, 0, zero, 0, head_length)


@pytest.mark.parametrize("length", [0, 15, FRAME_BYTES_MAX + 1, 2**32 - 1])
def test_a_length_no_frame_can_have_is_refused_before_memory_is_taken(length: int) -> None:
    with pytest.raises(Invalid, match="frame length"):
        frames.frame_length(memoryview(header(length)))


@pytest.mark.parametrize(
    "frame",
    [
        header(16, kind=0),
        header(16, kind=255),
        header(16, zero=1),
        header(17),
        header(16, head_length=1),
        header(16, head_length=2**32 - 1),
        b"",
        b"\x10\x00\x00",
    ],
)
def test_a_frame_that_contradicts_itself_is_refused(frame: bytes) -> None:
    with pytest.raises(Invalid):
        frames.decode(memoryview(frame))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_frame_or_invalid(garbage: bytes) -> None:
    with contextlib.suppress(Invalid):
        assert isinstance(frames.decode(memoryview(garbage)), Frame)


SAMPLES = list(with_golden(HEADS))
DELIVERED = GOLDEN["frame DELIVER, with reasons"]
DELIVERED_HEAD = bytes(frames.decode(memoryview(DELIVERED)).head)
COUNTS_END = frames.DELIVER.size + 2 * 8 + 3 * 2


@pytest.mark.parametrize("end", range(len(DELIVERED)))
def test_a_delivery_with_reasons_that_is_cut_anywhere_is_refused(end: int) -> None:
    with pytest.raises(Invalid):
        frames.decode(memoryview(DELIVERED[:end]))


@pytest.mark.parametrize("end", range(len(DELIVERED_HEAD)))
def test_reasons_that_are_cut_anywhere_are_refused_and_cut_off_whole_they_are_none(end: int) -> None:
    cut = memoryview(DELIVERED_HEAD[:end])
    if end == COUNTS_END:
        assert frames.decode_deliver_head(cut).reasons == ()
        return
    with pytest.raises(Invalid, match="DELIVER"):
        frames.decode_deliver_head(cut)


@pytest.mark.parametrize(
    "reasons",
    [
        b"\x90",  # none for three rows
        b"\x92\xc0\xc0",  # two for three rows
        b"\x94\xc0\xc0\xc0\xc0",  # four for three rows
        b"\x93\xc0\xc0\x01",  # a number
        b"\x93\xc0\xc0\xa2\xff\xff",  # text that is not UTF-8
        b"\x93\xc0\xc0\xc0\xc0",  # something behind them
        b"\xdd\xff\xff\xff\xff",  # says it is enormous
        b"\x91" * 100_000,  # deeper than anybody's stack
        b"\xc0",
        b"\x80",
    ],
)
def test_reasons_that_do_not_fit_their_rows_are_refused(reasons: bytes) -> None:
    with pytest.raises(Invalid, match="DELIVER"):
        frames.decode_deliver_head(memoryview(DELIVERED_HEAD[:COUNTS_END] + reasons))


@given(st.binary(max_size=60))
def test_any_bytes_behind_the_counts_are_reasons_or_invalid(garbage: bytes) -> None:
    try:
        head = frames.decode_deliver_head(memoryview(DELIVERED_HEAD[:COUNTS_END] + garbage))
    except Invalid:
        return
    assert len(head.reasons) in (0, 3)
    assert all(one is None or isinstance(one, str) for one in head.reasons)


@pytest.mark.parametrize(("value", "golden"), SAMPLES, ids=lambda one: type(one).__name__)
def test_a_head_that_is_cut_anywhere_is_refused(value: msgspec.Struct, golden: bytes) -> None:
    for end in range(len(golden)):
        with pytest.raises(Invalid):
            read_as(type(value), golden[:end])


@given(st.sampled_from(SAMPLES), st.data())
def test_a_damaged_head_is_read_or_invalid(sample: tuple[msgspec.Struct, bytes], data: st.DataObject) -> None:
    value, golden = sample
    damaged = bytearray(golden)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(Invalid):
        read_as(type(value), bytes(damaged))


NUMBERS = st.none() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=5) | st.booleans()


@given(st.dictionaries(st.sampled_from([one.name for one in dataclasses.fields(FailurePolicy)]), NUMBERS))
@example({"poison": 0})  # without a topic for the dead letters
@example({"dead_letter_topic": "no name"})
@example({"delay_ms": 60_001})  # more than delay_max_ms
@example({"backoff": 2})
def test_any_failure_policy_is_read_or_invalid(policy: dict[str, object]) -> None:
    subscription = {"topic": "/default/orders", "subscription": "billing", "failure_policy": policy}
    for op in ("subscription.failure_policy", "subscription.create"):
        with contextlib.suppress(Invalid):
            requests.decode_request(memoryview(msgspec.msgpack.encode({"op": op, **subscription})))
    with contextlib.suppress(Invalid):
        head = msgspec.msgpack.encode({**subscription, "name": "billing", "subscription_id": 1, "type": "shared"})
        requests.decode(memoryview(head), SubscriptionDescription)


@given(st.dictionaries(st.sampled_from(FIELDS), NUMBERS), st.dictionaries(st.text(max_size=5), NUMBERS))
@example({"backlog_action": 2}, {})
@example({"ttl_s": -1}, {})
def test_any_policies_are_read_or_invalid(own: dict[str, object], unknown: dict[str, object]) -> None:
    head = memoryview(msgspec.msgpack.encode({"own": {**unknown, **own}, "effective": {}}))
    with contextlib.suppress(Invalid):
        report = requests.decode(head, PolicyReport)
        assert report.effective == Policies()


@pytest.mark.parametrize("policy", [{"poison": 0}, {"redeliveries_max": -1}, {"delay_ms": 60_001}])
def test_what_the_model_refuses_inside_a_request_is_said_in_its_words(policy: dict[str, object]) -> None:
    with pytest.raises(Invalid, match=next(iter(policy)) if policy != {"poison": 0} else "dead_letter_topic"):
        requests.decode_request(
            memoryview(
                msgspec.msgpack.encode(
                    {"op": "subscription.create", "topic": "/a/b", "subscription": "s", "failure_policy": policy}
                )
            )
        )


@given(st.sampled_from(sorted(FRAMES)), st.data())
def test_a_damaged_frame_is_a_frame_or_invalid_and_so_is_its_head(name: str, data: st.DataObject) -> None:
    damaged = bytearray(GOLDEN[f"frame {name}"])
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        frame = frames.decode(memoryview(damaged))
    except Invalid:
        return
    assert len(frame.head) + len(frame.body) <= len(damaged)
    read_any_head(frame.head)


@given(st.binary(max_size=200))
@example(b"\x82\xa2op\xa6lookup\xa5topic\xa2\xff\xff")  # text that is not UTF-8
@example(b"\x81\xa8features\xdd\xff\xff\xff\xff")  # a list that says it is enormous
@example(b"\x82\xa2op\xa6lookup\xa1x" + b"\x91" * 100_000)  # deeper than anybody's stack
def test_any_head_is_read_or_invalid(garbage: bytes) -> None:
    read_any_head(memoryview(garbage))


def read_any_head(head: memoryview) -> None:
    readers: list[typing.Callable[[], object]] = [
        lambda: frames.decode_deliver_head(head),
        lambda: frames.decode_ack_head(head),
        lambda: frames.unpack_head(head, frames.CREDIT, FrameKind.CREDIT),
        lambda: requests.decode_request(head),
        *(partial(requests.decode, head, kind) for kind in OTHERS),
    ]
    for read in readers:
        with contextlib.suppress(Invalid):
            read()


def read_as(kind: type[msgspec.Struct], head: bytes) -> object:
    if issubclass(kind, requests.Request):
        return requests.decode_request(memoryview(head))
    return requests.decode(memoryview(head), kind)
