"""Heads of frames that are no requests: MessagePack maps, by the same rules."""

from __future__ import annotations

from typing import Literal

import msgspec

from pydanube.model.errors import DanubeError, Invalid, NotOwner, from_code

from .frames import GENERATION_UNKNOWN, PROTOCOL_VERSION


class Hello(msgspec.Struct):
    """HELLO: the client's first frame. Room for credentials and features is here from the first version.

    Always sent whole: the version that is a default today is not the default of the next release.
    """

    version_min: int = PROTOCOL_VERSION
    version_max: int = PROTOCOL_VERSION
    client: str = ""
    features: list[str] = []
    auth_scheme: str = ""
    auth_data: bytes = b""


class Welcome(msgspec.Struct, omit_defaults=True):
    """WELCOME: the broker's answer. `publish_window_bytes` is the credit for unacknowledged PUBLISH frames."""

    version: int
    broker: str
    cluster: str = ""
    features: list[str] = []
    frame_bytes_max: int = 0
    publish_window_bytes: int = 0
    keep_alive_ms: int = 5000


class Failure(msgspec.Struct, omit_defaults=True):
    """ERROR, and GOAWAY and CONSUMER_CLOSED where they have a reason: one error of the tree as a value."""

    code: int
    message: str
    owner: str = ""
    handle: int = 0

    @classmethod
    def of(cls, error: DanubeError, handle: int = 0) -> Failure:
        return cls(error.code, error.message, error.owner if isinstance(error, NotOwner) else "", handle)

    def error(self) -> DanubeError:
        return from_code(self.code, self.message, self.owner)


class Fetch(msgspec.Struct, omit_defaults=True):
    """FETCH: read without a subscription. Answered by FETCHED, empty when nothing came within `wait_ms`."""

    topic: str
    partition: int
    start: Start
    bytes_max: int = 1 << 20
    wait_ms: int = 0
    topic_id: int = 0
    """Tells a topic from a later one of the same name; 0: whichever has it."""


class Nack(msgspec.Struct, omit_defaults=True):
    """NACK: these offsets were not managed. `delay_ms` -1 lets the failure policy choose.

    `timeout`: nobody settled them within the subscription's ack timeout, counted from when the application took them.
    """

    handle: int
    ranges: list[tuple[int, int]]
    delay_ms: int = -1
    reason: str = ""
    timeout: bool = False
    generation: int = GENERATION_UNKNOWN
    """The seek generation under which they were delivered. Clients of earlier releases name none."""

    def __post_init__(self) -> None:
        check_ranges("NACK", self.ranges)


class StagedSection(msgspec.Struct, omit_defaults=True):
    """Batches of one partition within a STAGE."""

    topic: str
    partition: int
    lengths: list[int]
    """Of each batch in bytes, without the padding behind it."""


class Stage(msgspec.Struct, omit_defaults=True):
    """STAGE: store batches where nobody sees them until `stage.commit` names them. Answered by a RESPONSE with Staged.

    Body: the batches of all sections in order, each padded to 64. It counts for the publish window like a PUBLISH. The
    batches carry no sequence; whoever stores them in the end gives them one. See `model.staging` for the words.
    """

    query: str
    run: str
    batch_id: int
    task: int
    attempt: int
    part: int
    sections: list[StagedSection]


class ConsumerChanged(msgspec.Struct, omit_defaults=True):
    """CONSUMER_CHANGED: the subscription of this consumer has other settings from now on, or was sought."""

    handle: int
    ack_timeout_ms: int = 0
    generation: int = GENERATION_UNKNOWN
    """The seek generation of the deliveries that follow. Brokers of earlier releases tell none."""


class Start(msgspec.Struct, omit_defaults=True):
    """A `model.positions.Position` on the wire."""

    kind: Literal["earliest", "latest", "offset", "time"] = "latest"
    value: int = 0


def check_ranges(what: str, ranges: list[tuple[int, int]]) -> None:
    """Offsets that exist nowhere are refused, as in an ACK; order and overlap are the receiver's business."""
    if any(not 0 <= start < end < 2**63 for start, end in ranges):
        raise Invalid(f"{what} holds a range that is empty, negative or too large")
