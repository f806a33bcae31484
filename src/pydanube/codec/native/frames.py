"""Frames of the native protocol. One frame carries one request, answer, batch or event.

A connection opens with 8 bytes of PREAMBLE from the client; after that both sides send frames:

```
 0        4    5    6        8        12       16                  body_start            length
 +--------+----+----+--------+--------+--------+---------------------+----------------------+
 | length |kind|flag|  zero  | correl.|head len| head ...  | zeros   | body: batches ...    |
 | u32    | u8 | u8 |  u16   | u32    | u32    |           | to 64   |                      |
 +--------+----+----+--------+--------+--------+---------------------+----------------------+
```

All numbers are little-endian. `length` counts the whole frame. The body, where there is one, starts on a multiple of 64
so that batches keep their alignment; a frame without one is filled up with zeros to a multiple of 8, so that batches
which arrive behind it in one receive buffer can be read in place as columns. A request's correlation number is chosen
by the client (never 0) and comes back on its answer; frames that answer nothing carry 0. Nothing here is trusted before
it is checked against `model.limits`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from pydanube.model.errors import Invalid
from pydanube.model.limits import ALIGNMENT, CONTROL_BYTES_MAX, FRAME_BYTES_MAX

PREAMBLE: Final = b"DANUBE\x00\x01"
PROTOCOL_VERSION: Final = 1
HEADER: Final = struct.Struct("<IBBHII")
_LENGTH: Final = struct.Struct("<I")
PADDING: Final = 8
"""The length of a frame without a body is a multiple of this, the smallest alignment that Arrow columns need."""

_ZEROS: Final = bytes(ALIGNMENT)

assert HEADER.size == 16
assert (
    ALIGNMENT % PADDING == 0
)  # the padding of a frame without a body never reaches the position where a body would begin


class FrameKind(IntEnum):
    """What a frame is. A number never gets another meaning."""

    HELLO = 1
    WELCOME = 2
    PING = 3
    PONG = 4
    GOAWAY = 5
    REQUEST = 10
    RESPONSE = 11
    ERROR = 12
    PUBLISH = 20
    PUBLISHED = 21
    STAGE = 22
    DELIVER = 30
    CREDIT = 31
    ACK = 32
    CONSUMER_CLOSED = 33
    NACK = 34
    CONSUMER_CHANGED = 35
    FETCH = 40
    FETCHED = 41
    ASK = 50
    REPLIED = 51
    REPLY = 52
    CANCEL = 53


_KINDS: Final = {int(kind): kind for kind in FrameKind}


class Frame(NamedTuple):
    """A received frame: views into the receive buffer, which stays in memory as long as they do."""

    kind: FrameKind
    flags: int
    correlation: int
    head: memoryview
    body: memoryview


def body_start(head_length: int) -> int:
    """Return where the body begins in a frame with a head of this length."""
    return -(-(HEADER.size + head_length) // ALIGNMENT) * ALIGNMENT


def frame_length(header: memoryview) -> int:
    """Return the length of the whole frame that starts with `header`. It is checked before memory is allocated for
    it."""
    length: int = _LENGTH.unpack_from(header)[0]
    if not HEADER.size <= length <= FRAME_BYTES_MAX:
        raise Invalid(f"frame length {length} is outside {HEADER.size}..{FRAME_BYTES_MAX}")
    return length


def decode(frame: memoryview) -> Frame:
    """Split one whole frame into its parts, which share memory with `frame`."""
    if len(frame) < HEADER.size:
        raise Invalid(f"frame is cut short at {len(frame)} bytes")
    length, kind, flags, zero, correlation, head_length = HEADER.unpack_from(frame)
    known = _KINDS.get(kind)
    if known is None:
        raise Invalid(f"frame kind {kind} is unknown to protocol version {PROTOCOL_VERSION}")
    if length != len(frame) or zero or head_length > CONTROL_BYTES_MAX or HEADER.size + head_length > length:
        raise Invalid(f"{known.name} frame of {length} bytes with a head of {head_length} is malformed")
    head = frame[HEADER.size : HEADER.size + head_length]
    start = body_start(head_length)
    return Frame(known, flags, correlation, head, frame[start:] if start < length else frame[length:])


def encode(kind: FrameKind, head: bytes = b"", correlation: int = 0, flags: int = 0) -> bytes:
    """Return a frame without a body."""
    length = HEADER.size + len(head)
    padding = -length % PADDING
    return HEADER.pack(length + padding, kind, flags, 0, correlation, len(head)) + head + _ZEROS[:padding]


def encode_front(kind: FrameKind, head: bytes, body_length: int, correlation: int = 0, flags: int = 0) -> bytes:
    """Return a frame up to its body; the caller sends the buffers of the body behind it."""
    start = body_start(len(head))
    front = HEADER.pack(start + body_length, kind, flags, 0, correlation, len(head)) + head
    return front + _ZEROS[: start - len(front)]


def encode_with_payload(
    kind: FrameKind, head: bytes, payload: bytes, correlation: int = 0, flags: int = 0
) -> tuple[bytes, bytes]:
    """Return a frame whose body is a payload, not a batch, as two buffers. Zeros fill it up to a multiple of PADDING,
    so its head says how long the payload is."""
    padding = -len(payload) % PADDING
    front = encode_front(kind, head, len(payload) + padding, correlation, flags)
    return front, payload + _ZEROS[:padding] if padding else payload


def payload_of(frame: Frame, size_bytes: int) -> bytes:
    """Return a copy of the payload of a received frame whose head gives its length. Raises Invalid."""
    if not size_bytes <= len(frame.body) < size_bytes + PADDING:
        raise Invalid(f"{frame.kind.name} with a body of {len(frame.body)} bytes says its payload has {size_bytes}")
    return bytes(frame.body[:size_bytes])


# -- heads of the hot path -------------------------------------------------------------------------------------------

PUBLISH: Final = struct.Struct("<I")
"""handle u32; body: one batch"""

PUBLISHED: Final = struct.Struct("<IqI")
"""handle u32, base offset i64, owner epoch u32. FLAG_DUPLICATE: an earlier publish has stored the batch."""

FLAG_DUPLICATE: Final = 1

_PUBLISHED_FRAME: Final = struct.Struct("<IBBHII" + "IqI")

assert _PUBLISHED_FRAME.size == HEADER.size + PUBLISHED.size
assert _PUBLISHED_FRAME.size % PADDING == 0

_PUBLISH_FRONT: Final = struct.Struct(f"{HEADER.format} I {ALIGNMENT - HEADER.size - PUBLISH.size}x")

CREDIT: Final = struct.Struct("<Iqq")
"""handle u32, messages i64, bytes i64: both are added to the credit that the consumer has left"""

DELIVER: Final = struct.Struct("<IIII")
"""handle u32, owner epoch u32, row ranges u32, redelivery counts u32; then for each range (start u32, end u32), then
for each selected row its redelivery count u16, then, if any row failed before, a MessagePack array with the reason of
the last failure (or nil) for each. No ranges: every row. No counts: no row was delivered before. Body: one batch."""

_DELIVER_FRONT: Final = struct.Struct(f"{HEADER.format} IIII {ALIGNMENT - HEADER.size - DELIVER.size}x")

assert _PUBLISH_FRONT.size == _DELIVER_FRONT.size == ALIGNMENT

ACK: Final = struct.Struct("<II")
"""handle u32, ranges u32; then for each range (start i64, end i64) of offsets, then the seek generation u64 under which
the messages were delivered; clients of earlier releases leave it out. FLAG_CUMULATIVE: there is one range, and
everything below its end is acked. With a correlation number, a RESPONSE follows once the acks are synced."""

FLAG_CUMULATIVE: Final = 1

GENERATION_UNKNOWN: Final = -1
"""The seek generation of a peer of an earlier release, which sends none."""

FETCHED: Final = struct.Struct("<qqqI")
"""next offset i64 (where the next fetch continues), start offset i64, end offset i64 of the partition, owner epoch u32.
Body: whole batches, each padded to 64; the first may begin below the offset that was asked for."""

FLAG_LAST: Final = 1
"""Of REPLIED: no other reply to this ASK follows."""

REDELIVERIES_COUNTED: Final = 2**16 - 1
"""The largest redelivery count that is sent; it means this often or more."""

MANY_RANGES: Final = 32
"""From this many ranges on, an ACK is checked with numpy instead of a loop."""

RangeTable = np.ndarray[Any, np.dtype[np.int64]]

_reasons: Final = msgspec.msgpack.Decoder(list[str | None])
_ARRAY_HEAD_BYTES_MAX: Final = 5
"""The longest head of a MessagePack array."""

_RANGE_ROWS: Final = struct.Struct("<II")
_RANGE_OFFSETS: Final = struct.Struct("<qq")
_GENERATION: Final = struct.Struct("<Q")


def encode_publish_front(correlation: int, handle: int, body_length: int) -> bytes:
    """Return a PUBLISH frame up to its batch. It is packed in one step because every batch needs one."""
    return _PUBLISH_FRONT.pack(ALIGNMENT + body_length, FrameKind.PUBLISH, 0, 0, correlation, PUBLISH.size, handle)


def encode_published(correlation: int, handle: int, base_offset: int, owner_epoch: int, duplicate: bool) -> bytes:
    """Return a whole PUBLISHED frame. It is packed in one step because every batch needs one."""
    return _PUBLISHED_FRAME.pack(
        _PUBLISHED_FRAME.size,
        FrameKind.PUBLISHED,
        FLAG_DUPLICATE if duplicate else 0,
        0,
        correlation,
        PUBLISHED.size,
        handle,
        base_offset,
        owner_epoch,
    )


def encode_deliver_front(handle: int, epoch: int, body_length: int) -> bytes:
    """Return a DELIVER frame up to its batch, for a batch of which every row is delivered for the first time."""
    length = ALIGNMENT + body_length
    return _DELIVER_FRONT.pack(length, FrameKind.DELIVER, 0, 0, 0, DELIVER.size, handle, epoch, 0, 0)


def encode_deliver_head(
    handle: int,
    epoch: int,
    ranges: Sequence[tuple[int, int]] = (),
    redeliveries: Sequence[int] = (),
    reasons: Sequence[str | None] = (),
) -> bytes:
    head = DELIVER.pack(handle, epoch, len(ranges), len(redeliveries))
    if ranges:
        head += b"".join(_RANGE_ROWS.pack(start, end) for start, end in ranges)
    if redeliveries:
        head += struct.pack(f"<{len(redeliveries)}H", *[min(one, REDELIVERIES_COUNTED) for one in redeliveries])
    if reasons:
        head += _encode_reasons(reasons, CONTROL_BYTES_MAX - len(head))
    return head


def _encode_reasons(reasons: Sequence[str | None], bytes_max: int) -> bytes:
    """Encode the reasons in at most `bytes_max` bytes; reasons that do not fit become None."""
    packed = msgspec.msgpack.encode(reasons)
    if len(packed) <= bytes_max:
        return packed
    free_bytes = bytes_max - _ARRAY_HEAD_BYTES_MAX - len(reasons)  # a nil for each
    kept: list[str | None] = []
    for reason in reasons:
        free_bytes -= len(msgspec.msgpack.encode(reason)) - 1
        kept.append(reason if free_bytes >= 0 else None)
    return msgspec.msgpack.encode(kept)


class DeliverHead(NamedTuple):
    handle: int
    epoch: int
    ranges: list[tuple[int, int]]
    redeliveries: tuple[int, ...]
    reasons: Sequence[str | None] = ()


def decode_deliver_head(head: memoryview) -> DeliverHead:
    _at_least(head, DELIVER.size, FrameKind.DELIVER)
    handle, epoch, range_count, redelivery_count = DELIVER.unpack_from(head)
    if len(head) == DELIVER.size and not (range_count or redelivery_count):
        return DeliverHead(handle, epoch, [], ())
    ranges_end = DELIVER.size + range_count * _RANGE_ROWS.size
    counts_end = ranges_end + redelivery_count * 2
    if len(head) < counts_end:
        raise Invalid("DELIVER head does not have the length its counts ask for")
    ranges = list(_RANGE_ROWS.iter_unpack(head[DELIVER.size : ranges_end]))
    redeliveries = struct.unpack_from(f"<{redelivery_count}H", head, ranges_end)
    reasons = _decode_reasons(head[counts_end:], redelivery_count) if len(head) > counts_end else ()
    return DeliverHead(handle, epoch, ranges, redeliveries, reasons)


def _decode_reasons(packed: memoryview, count: int) -> list[str | None]:
    try:
        reasons = _reasons.decode(packed)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Invalid(f"DELIVER: the reasons cannot be read: {error}") from None
    if len(reasons) != count:
        raise Invalid(f"DELIVER has {len(reasons)} reasons for {count} rows")
    return reasons


def encode_ack_head(
    handle: int, ranges: Sequence[tuple[int, int]] | RangeTable, generation: int = GENERATION_UNKNOWN
) -> bytes:
    """Encode the head of an ACK. Many ranges may be given as a table of two columns, which needs no loop."""
    tail = b"" if generation == GENERATION_UNKNOWN else _GENERATION.pack(generation)
    if isinstance(ranges, np.ndarray):
        return ACK.pack(handle, len(ranges)) + ranges.astype("<i8", copy=False).tobytes() + tail
    return ACK.pack(handle, len(ranges)) + b"".join(_RANGE_OFFSETS.pack(start, end) for start, end in ranges) + tail


class AckHead(NamedTuple):
    handle: int
    ranges: list[tuple[int, int]] | RangeTable
    """No range is empty or negative; they may be in any order and overlap. Many of them come as a table of two
    columns."""
    generation: int = GENERATION_UNKNOWN


def decode_ack_head(head: memoryview) -> AckHead:
    _at_least(head, ACK.size, FrameKind.ACK)
    handle, count = ACK.unpack_from(head)
    generation, ranges_end = GENERATION_UNKNOWN, ACK.size + count * _RANGE_OFFSETS.size
    if len(head) == ranges_end + _GENERATION.size:
        (generation,) = _GENERATION.unpack_from(head, ranges_end)
    elif len(head) != ranges_end:
        raise Invalid("ACK head does not have the length its count asks for")
    if count >= MANY_RANGES:
        table = np.frombuffer(head, "<i8", count=2 * count, offset=ACK.size).reshape(count, 2)
        if int(table[:, 0].min()) < 0 or not (table[:, 0] < table[:, 1]).all():
            raise Invalid("ACK holds a range that is empty or negative")
        return AckHead(handle, table, generation)
    ranges = list(_RANGE_OFFSETS.iter_unpack(head[ACK.size : ranges_end]))
    if any(start < 0 or end <= start for start, end in ranges):
        raise Invalid("ACK holds a range that is empty or negative")
    return AckHead(handle, ranges, generation)


def unpack_head(head: memoryview, layout: struct.Struct, kind: FrameKind) -> tuple[int, ...]:
    """Unpack a head of fixed size. Raises Invalid if it has another size."""
    if len(head) != layout.size:
        raise Invalid(f"{kind.name} head has {len(head)} bytes instead of {layout.size}")
    return layout.unpack(head)


def _at_least(head: memoryview, size: int, kind: FrameKind) -> None:
    if len(head) < size:
        raise Invalid(f"{kind.name} head is cut short at {len(head)} bytes")
