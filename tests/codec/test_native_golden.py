"""The native protocol's bytes: golden frames of every kind, round trips of every head, and garbage."""

from __future__ import annotations

import contextlib
import re
import struct
import typing
from functools import partial
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pydanube.codec.native import frames, requests
from pydanube.codec.native.frames import Frame, Kind
from pydanube.model.errors import DanubeError, Invalid, NotFound, NotOwner, Unavailable, tree
from pydanube.model.limits import ALIGNMENT, FRAME_BYTES_MAX

BODY = bytes(range(1, 17))
U16 = st.integers(0, 2**16 - 1)
U32 = st.integers(0, 2**32 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
OFFSET = st.integers(0, 2**63 - 1)


def unhex(text: str) -> bytes:
    return bytes.fromhex(text)


GOLDEN: dict[str, tuple[bytes, bytes]] = {
    "HELLO": (
        frames.encode(Kind.HELLO, requests.encode(requests.Hello(client="example 1.0"))),
        unhex("""
        68000000 01000000 00000000 51000000 86ab7665 7273696f 6e5f6d69 6e01ab76
        65727369 6f6e5f6d 617801a6 636c6965 6e74ab65 78616d70 6c652031 2e30a866
        65617475 72657390 ab617574 685f7363 68656d65 a0a96175 74685f64 617461c4
        00000000 00000000
        """),
    ),
    "WELCOME": (
        frames.encode(
            Kind.WELCOME,
            requests.encode(
                requests.Welcome(
                    version=1,
                    broker="node-a",
                    cluster="dev",
                    frame_bytes_max=34_603_072,
                    publish_window_bytes=16_777_216,
                )
            ),
        ),
        unhex("""
        68000000 02000000 00000000 53000000 85a77665 7273696f 6e01a662 726f6b65
        72a66e6f 64652d61 a7636c75 73746572 a3646576 af667261 6d655f62 79746573
        5f6d6178 ce021000 40b47075 626c6973 685f7769 6e646f77 5f627974 6573ce01
        00000000 00000000
        """),
    ),
    "PING": (frames.encode(Kind.PING), unhex("10000000 03000000 00000000 00000000")),
    "PONG": (frames.encode(Kind.PONG), unhex("10000000 04000000 00000000 00000000")),
    "GOAWAY": (
        frames.encode(Kind.GOAWAY, requests.encode(requests.Failure.of(Unavailable("going down")))),
        unhex("""
        30000000 05000000 00000000 1a000000 82a4636f 64650ba7 6d657373 616765aa
        676f696e 6720646f 776e0000 00000000
        """),
    ),
    "REQUEST": (
        frames.encode(Kind.REQUEST, requests.encode(requests.Lookup(topic="/default/orders", create=True)), 7),
        unhex("""
        40000000 0a000000 07000000 29000000 83a26f70 a66c6f6f 6b7570a5 746f7069
        63af2f64 65666175 6c742f6f 72646572 73a66372 65617465 c3000000 00000000
        """),
    ),
    "RESPONSE": (
        frames.encode(
            Kind.RESPONSE,
            requests.encode(
                requests.Route(
                    "/default/orders", 3, False, True, "durable", [requests.PartitionRoute(0, "127.0.0.1:6655", 1)]
                )
            ),
            7,
        ),
        unhex("""
        90000000 0b000000 07000000 7a000000 86a5746f 706963af 2f646566 61756c74
        2f6f7264 657273a8 746f7069 635f6964 03ab7061 72746974 696f6e65 64c2a872
        656c6961 626c65c3 a961636b 5f6c6576 656ca764 75726162 6c65aa70 61727469
        74696f6e 739183a5 696e6465 7800a56f 776e6572 ae313237 2e302e30 2e313a36
        363535a5 65706f63 68010000 00000000
        """),
    ),
    "ERROR": (
        frames.encode(Kind.ERROR, requests.encode(requests.Failure.of(NotOwner("moved", "10.0.0.2:6655"), 5)), 9),
        unhex("""
        48000000 0c000000 09000000 31000000 84a4636f 646509a7 6d657373 616765a5
        6d6f7665 64a56f77 6e6572ad 31302e30 2e302e32 3a363635 35a66861 6e646c65
        05000000 00000000
        """),
    ),
    "PUBLISH": (
        frames.encode_front(Kind.PUBLISH, frames.PUBLISH.pack(5), len(BODY), 8) + BODY,
        unhex("""
        50000000 14000000 08000000 04000000 05000000 00000000 00000000 00000000
        00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000
        01020304 05060708 090a0b0c 0d0e0f10
        """),
    ),
    "PUBLISHED": (
        frames.encode(Kind.PUBLISHED, frames.PUBLISHED.pack(5, 1000, 2), 8, frames.FLAG_DUPLICATE),
        unhex("20000000 15010000 08000000 10000000 05000000 e8030000 00000000 02000000"),
    ),
    "DELIVER": (
        frames.encode_front(
            Kind.DELIVER, frames.encode_deliver_head(6, 2, [(0, 3), (5, 6)], [0, 1, 0, 65_535]), len(BODY)
        )
        + BODY,
        unhex("""
        50000000 1e000000 00000000 28000000 06000000 02000000 02000000 04000000
        00000000 03000000 05000000 06000000 00000100 0000ffff 00000000 00000000
        01020304 05060708 090a0b0c 0d0e0f10
        """),
    ),
    "CREDIT": (
        frames.encode(Kind.CREDIT, frames.CREDIT.pack(6, 1000, 1 << 20)),
        unhex("""
        28000000 1f000000 00000000 14000000 06000000 e8030000 00000000 00001000
        00000000 00000000
        """),
    ),
    "ACK": (
        frames.encode(Kind.ACK, frames.encode_ack_head(6, [(1000, 1003), (1005, 1006)]), 11),
        unhex("""
        38000000 20000000 0b000000 28000000 06000000 02000000 e8030000 00000000
        eb030000 00000000 ed030000 00000000 ee030000 00000000
        """),
    ),
    "CONSUMER_CLOSED": (
        frames.encode(Kind.CONSUMER_CLOSED, requests.encode(requests.Failure.of(NotFound("gone"), 6))),
        unhex("""
        30000000 21000000 00000000 1c000000 83a4636f 646504a7 6d657373 616765a4
        676f6e65 a668616e 646c6506 00000000
        """),
    ),
    "FETCH": (
        frames.encode(
            Kind.FETCH,
            requests.encode(requests.Fetch("/default/orders", 0, requests.Start("offset", 1000), 65_536, 500)),
            12,
        ),
        unhex("""
        68000000 28000000 0c000000 58000000 85a5746f 706963af 2f646566 61756c74
        2f6f7264 657273a9 70617274 6974696f 6e00a573 74617274 82a46b69 6e64a66f
        66667365 74a57661 6c7565cd 03e8a962 79746573 5f6d6178 ce000100 00a77761
        69745f6d 73cd01f4
        """),
    ),
    "FETCHED": (
        frames.encode_front(Kind.FETCHED, frames.FETCHED.pack(1010, 0, 2000, 2), 64, 12) + BODY + bytes(48),
        unhex("""
        80000000 29000000 0c000000 1c000000 f2030000 00000000 00000000 00000000
        d0070000 00000000 02000000 00000000 00000000 00000000 00000000 00000000
        01020304 05060708 090a0b0c 0d0e0f10 00000000 00000000 00000000 00000000
        00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000
        """),
    ),
}


@pytest.mark.parametrize("name", [kind.name for kind in Kind])
def test_a_frame_of_each_kind_has_the_bytes_it_had_when_it_was_released(name: str) -> None:
    built, golden = GOLDEN[name]
    assert built.hex() == golden.hex()
    assert frames.decode(memoryview(golden)).kind is Kind[name]
    assert frames.frame_length(memoryview(golden)) == len(golden)


def frames_drawn_in(page: Path) -> dict[str, bytes]:
    """The frames in blocks under "NAME (number)": hex up to two blanks, then words; "..." is zeros to 64."""
    drawn: dict[str, bytes] = {}
    for block in re.findall(r"^```\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL):
        name = ""
        for line in block.splitlines():
            heading = re.match(r"([A-Z_]+) \((\d+)\)(.*)", line)
            if heading is not None:
                name, line = heading[1], heading[3]
                assert Kind[name] == int(heading[2])
                drawn[name] = b""
            if name and line.strip():
                digits = re.split(" {2,}", line.strip())[0]
                drawn[name] += bytes.fromhex(digits.removesuffix("..."))
                if digits.endswith("..."):
                    drawn[name] += bytes(-len(drawn[name]) % ALIGNMENT)
    return drawn


def test_the_frames_drawn_in_the_documentation_are_these() -> None:
    drawn = frames_drawn_in(Path(__file__).parents[2] / "docs" / "protocol.md")
    assert {name: frame.hex() for name, frame in drawn.items()} == {
        name: golden.hex() for name, (_, golden) in GOLDEN.items()
    }


def test_published_has_the_same_bytes_in_one_step() -> None:
    assert frames.encode_published(8, 5, 1000, 2, duplicate=True) == GOLDEN["PUBLISHED"][1]


def test_the_preamble_is_what_it_was() -> None:
    assert frames.PREAMBLE.hex() == "44414e5542450001"


def test_requests_keep_their_names() -> None:
    ops = {cls.__struct_config__.tag for cls in typing.get_args(requests.AnyRequest)}
    assert ops == {
        "lookup",
        "topic.create",
        "topic.delete",
        "topic.list",
        "topic.describe",
        "namespace.create",
        "namespace.delete",
        "namespace.list",
        "producer.open",
        "producer.close",
        "consumer.open",
        "consumer.close",
        "subscription.create",
        "subscription.delete",
        "subscription.list",
        "subscription.describe",
        "subscription.seek",
        "offset.find",
        "broker.describe",
    }


# -- round trips -------------------------------------------------------------------------------------------------------


@given(st.sampled_from(Kind), st.integers(0, 255), U32, st.binary(max_size=300))
def test_a_frame_without_a_body_comes_back(kind: Kind, flags: int, correlation: int, head: bytes) -> None:
    encoded = frames.encode(kind, head, correlation, flags)
    assert len(encoded) % frames.PADDING == 0
    decoded = frames.decode(memoryview(encoded))
    assert decoded[:3] == (kind, flags, correlation)
    assert bytes(decoded.head) == head
    assert len(decoded.body) == 0


@given(st.sampled_from(Kind), U32, st.binary(max_size=300), st.binary(min_size=1, max_size=300))
def test_a_frame_with_a_body_comes_back_and_its_body_is_aligned(
    kind: Kind, correlation: int, head: bytes, body: bytes
) -> None:
    front = frames.encode_front(kind, head, len(body), correlation)
    assert len(front) % ALIGNMENT == 0
    decoded = frames.decode(memoryview(front + body))
    assert (decoded.kind, decoded.correlation) == (kind, correlation)
    assert bytes(decoded.head) == head
    assert bytes(decoded.body) == body


@given(U32, U32, st.lists(st.tuples(U32, U32), max_size=20), st.lists(U16, max_size=40))
def test_a_deliver_head_comes_back(
    handle: int, epoch: int, ranges: list[tuple[int, int]], redeliveries: list[int]
) -> None:
    head = frames.decode_deliver_head(memoryview(frames.encode_deliver_head(handle, epoch, ranges, redeliveries)))
    assert head == (handle, epoch, ranges, tuple(redeliveries))


@given(U32, st.lists(st.tuples(OFFSET, OFFSET).filter(lambda one: one[0] < one[1]), max_size=20))
def test_an_ack_head_comes_back(handle: int, ranges: list[tuple[int, int]]) -> None:
    assert frames.decode_ack_head(memoryview(frames.encode_ack_head(handle, ranges))) == (handle, ranges)


@pytest.mark.parametrize("ranges", [[(3, 3)], [(5, 4)], [(-1, 4)]])
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
    assert frames.unpack_head(memoryview(packed), layout, Kind.PUBLISH) == numbers
    for wrong in (packed[:-1], packed + b"\x00", b""):
        with pytest.raises(Invalid, match="bytes instead of"):
            frames.unpack_head(memoryview(wrong), layout, Kind.PUBLISH)


def values_of(kind: object) -> st.SearchStrategy[object]:
    """Anything that a field of this type may hold."""
    plain = {
        int: st.integers(-(2**63), 2**64 - 1),
        str: st.text(max_size=20),
        bool: st.booleans(),
        bytes: st.binary(max_size=20),
    }
    if kind in plain:
        return plain[kind]  # type: ignore[index]
    origin = typing.get_origin(kind)
    if origin is typing.Literal:
        return st.sampled_from(typing.get_args(kind))
    if origin is list:
        return st.lists(values_of(typing.get_args(kind)[0]), max_size=3)
    assert isinstance(kind, type) and issubclass(kind, msgspec.Struct), kind
    hints = typing.get_type_hints(kind)
    return st.builds(kind, **{field.name: values_of(hints[field.name]) for field in msgspec.structs.fields(kind)})


REQUESTS = list(typing.get_args(requests.AnyRequest))
OTHERS = [
    one
    for one in vars(requests).values()
    if isinstance(one, type)
    and issubclass(one, msgspec.Struct)
    and one not in REQUESTS
    and one not in (requests.Request, msgspec.Struct)
]


@pytest.mark.parametrize("kind", REQUESTS, ids=lambda kind: kind.__name__)
@settings(max_examples=30)
@given(data=st.data())
def test_a_request_comes_back_as_the_one_it_was(kind: type[requests.Request], data: st.DataObject) -> None:
    request = data.draw(values_of(kind))
    assert isinstance(request, kind)
    decoded = requests.decode_request(memoryview(requests.encode(request)))
    assert type(decoded) is kind
    assert decoded == request


@pytest.mark.parametrize("kind", OTHERS, ids=lambda kind: kind.__name__)
@settings(max_examples=30)
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
    }


def test_a_field_that_is_not_known_yet_is_passed_over() -> None:
    later = msgspec.msgpack.encode({"op": "lookup", "topic": "/default/orders", "since": [1, {"deep": None}]})
    assert requests.decode_request(memoryview(later)) == requests.Lookup(topic="/default/orders")


def test_hello_says_its_versions_even_where_they_are_todays_defaults() -> None:
    told = msgspec.msgpack.decode(requests.encode(requests.Hello()))
    assert (told["version_min"], told["version_max"]) == (1, 1)


# -- garbage -----------------------------------------------------------------------------------------------------------


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


@given(st.sampled_from(sorted(GOLDEN)), st.data())
def test_a_damaged_frame_is_a_frame_or_invalid_and_so_is_its_head(name: str, data: st.DataObject) -> None:
    damaged = bytearray(GOLDEN[name][1])
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
        lambda: frames.unpack_head(head, frames.CREDIT, Kind.CREDIT),
        lambda: requests.decode_request(head),
        *(partial(requests.decode, head, kind) for kind in OTHERS),
    ]
    for read in readers:
        with contextlib.suppress(Invalid):
            read()
