"""The prefix that Confluent's serializers write before a payload: a zero byte and the global id in four bytes, the
highest first. Of protobuf, the position of the message in the file follows; one byte 0 stands for the first message."""

from __future__ import annotations

from typing import Final, NamedTuple

import pyarrow as pa

PREFIX_BYTES: Final = 5
UNFRAMED: Final = "the payload does not begin with the prefix of Confluent, a zero byte and a schema id"
NOT_FIRST: Final = "the payload is not of the first message of the protobuf file, which is the one that has columns"


class Unframed(NamedTuple):
    """Payloads without their prefixes. Where there was none, the global id is -1."""

    payloads: pa.Array
    global_ids: list[int]


def remove_prefixes(payloads: pa.Array) -> Unframed:
    """Split the prefixes off."""
    whole = payloads.to_pylist()
    ids = [int.from_bytes(one[1:PREFIX_BYTES]) if len(one) >= PREFIX_BYTES and one[0] == 0 else -1 for one in whole]
    return Unframed(pa.array([one[PREFIX_BYTES:] for one in whole], pa.binary()), ids)


def remove_message_indexes(payloads: pa.Array) -> tuple[pa.Array, dict[int, str]]:
    """Remove the position of the message from payloads of protobuf; return them, and the rows that are of another
    message than the first."""
    whole = payloads.to_pylist()
    others = {row: NOT_FIRST for row, one in enumerate(whole) if one[:1] != b"\0"}
    return pa.array([one[1:] for one in whole], pa.binary()), others
