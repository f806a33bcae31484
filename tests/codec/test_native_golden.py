"""The native protocol's bytes are what they were, in the code and in the documentation."""

from __future__ import annotations

import re
import typing
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from native_access_samples import ACCESS_HEADS
from native_listing_samples import LISTING_HEADS
from native_samples import FRAMES, GOLDEN, HEADS, PARTITION, STATISTICS_BEFORE_GAPS, with_golden
from native_schema_samples import SCHEMA_HEADS
from native_storage_samples import STORAGE_HEADS

from pydanube.codec.native import frames, requests
from pydanube.codec.native.frames import FrameKind
from pydanube.model.failure import FailurePolicy
from pydanube.model.gaps import Gaps
from pydanube.model.limits import ALIGNMENT
from pydanube.model.security import NewApiKey
from pydanube.model.topics import PartitionDescription
from pydanube.operations import subscriptions, topics

EVERY_HEAD = [
    *HEADS,
    *ACCESS_HEADS,
    *LISTING_HEADS,
    *STORAGE_HEADS,
    *SCHEMA_HEADS,
]


@pytest.mark.parametrize("name", sorted({*FRAMES, *(kind.name for kind in FrameKind)}))
def test_a_frame_of_each_kind_has_the_bytes_it_had_when_it_was_released(name: str) -> None:
    golden = GOLDEN[f"frame {name}"]
    assert FRAMES[name].hex() == golden.hex()
    assert frames.decode(memoryview(golden)).kind is FrameKind[name.partition(",")[0]]
    assert frames.frame_length(memoryview(golden)) == len(golden)


def test_all_golden_bytes_are_of_a_sample() -> None:
    assert len(GOLDEN) == len(FRAMES) + len(EVERY_HEAD)


def frames_drawn_in(page: Path) -> dict[str, bytes]:
    """The frames in blocks under "NAME (number)" or "NAME (number), words": hex up to two blanks, then words.

    "..." is zeros to 64.
    """
    drawn: dict[str, bytes] = {}
    for block in re.findall(r"^```\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL):
        name = ""
        for line in block.splitlines():
            heading = re.match(r"([A-Z_]+) \((\d+)\)(, [a-z. ]+)?(.*)", line)
            if heading is not None:
                assert FrameKind[heading[1]] == int(heading[2])
                name, line = heading[1] + (heading[3] or ""), heading[4]
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
        name.removeprefix("frame "): golden.hex() for name, golden in GOLDEN.items() if name.startswith("frame ")
    }


def test_published_has_the_same_bytes_in_one_step() -> None:
    assert frames.encode_published(8, 5, 1000, 2, duplicate=True) == GOLDEN["frame PUBLISHED"]


def test_publish_and_deliver_have_the_same_fronts_in_one_step() -> None:
    golden = GOLDEN["frame PUBLISH"]
    assert frames.encode_publish_front(8, 5, len(golden) - ALIGNMENT) == golden[:ALIGNMENT]
    front = frames.encode_front(FrameKind.DELIVER, frames.encode_deliver_head(6, 2), 1_000)
    assert frames.encode_deliver_front(6, 2, 1_000) == front


def test_the_preamble_is_what_it_was() -> None:
    assert frames.PREAMBLE.hex() == "44414e5542450001"


def test_every_request_has_golden_bytes() -> None:
    """They hold its name, which never changes."""
    assert {*typing.get_args(requests.AnyRequest)} <= {type(one) for one in EVERY_HEAD}


@pytest.mark.parametrize(("value", "golden"), list(with_golden(EVERY_HEAD)), ids=lambda one: type(one).__name__)
def test_a_head_with_values_of_the_model_has_the_bytes_it_had_when_it_was_released(
    value: msgspec.Struct, golden: bytes
) -> None:
    assert requests.encode(value).hex() == golden.hex()
    if isinstance(value, requests.Request):
        assert requests.decode_request(memoryview(golden)) == value
    else:
        assert requests.decode(memoryview(golden), type(value)) == value


def test_answers_of_a_broker_that_does_not_tell_gaps_are_read_as_having_none() -> None:
    statistics = requests.decode(memoryview(STATISTICS_BEFORE_GAPS), topics.StatisticsReport)
    earlier = [replace(one, stale_acks=0) for one in PARTITION.subscriptions]
    assert statistics.topic.partitions == [
        replace(PARTITION, missing_offsets=0, schema_warnings=0, subscriptions=earlier)
    ]
    before = {"index": 0, "owner": "a:1", "epoch": 3, "start_offset": 10, "end_offset": 50}
    info = requests.decode(memoryview(msgspec.msgpack.encode(before)), PartitionDescription)
    assert (info.missing_offsets, info.gaps) == (0, Gaps())


def test_the_golden_frames_of_delivery_say_what_was_put_in() -> None:
    head = frames.decode_deliver_head(frames.decode(memoryview(GOLDEN["frame DELIVER, with reasons"])).head)
    assert head == (6, 2, [(0, 2), (5, 6)], (0, 1, 3), [None, "no stock", "ack timeout"])
    nack = requests.decode(frames.decode(memoryview(GOLDEN["frame NACK"])).head, requests.Nack)
    assert nack == requests.Nack(6, [(1000, 1003), (1005, 1006)], 2000, "no stock")
    timeout = requests.decode(frames.decode(memoryview(GOLDEN["frame NACK, of a timeout"])).head, requests.Nack)
    assert (timeout.delay_ms, timeout.reason, timeout.timeout) == (-1, "", True)
    changed = requests.decode(
        frames.decode(memoryview(GOLDEN["frame CONSUMER_CHANGED"])).head, requests.ConsumerChanged
    )
    assert (changed.handle, changed.ack_timeout_ms) == (6, 30_000)


def test_a_request_without_the_newer_fields_takes_their_defaults() -> None:
    old = {"op": "consumer.open", "topic": "/default/orders", "partition": 0, "subscription": "s", "consumer": "c"}
    request = requests.decode_request(memoryview(msgspec.msgpack.encode(old)))
    assert isinstance(request, requests.Subscribe)
    assert (request.priority, request.key_filters, request.failure_policy) == (0, [], None)


def test_a_failure_policy_that_says_little_takes_the_defaults_for_the_rest() -> None:
    little = {"op": "subscription.failure_policy", "topic": "/default/orders", "subscription": "s"}
    head = msgspec.msgpack.encode({**little, "failure_policy": {"delay_ms": 5, "since": "later"}})
    request = requests.decode_request(memoryview(head))
    assert isinstance(request, subscriptions.SetFailurePolicy)
    assert request.failure_policy == FailurePolicy(delay_ms=5)


def test_the_secret_of_a_new_key_is_not_in_its_representation() -> None:
    made = next(value for value in ACCESS_HEADS if isinstance(value, NewApiKey))
    assert made.secret not in repr(made) and made.key.id in repr(made)
