"""The prefix that Confluent's serializers write before a payload: a zero byte and the global id in four bytes, the
highest first. Of protobuf, the position of the message in the file follows; one byte 0 stands for the first message."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

PREFIX_BYTES: Final = 5
UNFRAMED: Final = "the payload does not begin with the prefix of Confluent, a zero byte and a schema id"
NOT_FIRST: Final = "the payload is not of the first message of the protobuf file, which is the one that has columns"


class Unframed(NamedTuple):
    """Payloads without their prefixes. Where there was none, the global id is -1."""

    payloads: pa.Array
    global_ids: npt.NDArray[np.int64]


def remove_prefixes(payloads: pa.Array) -> Unframed:
    """Split the prefixes off."""
    heads = pc.binary_slice(payloads, 0, PREFIX_BYTES).to_pylist()
    ids = [int.from_bytes(one[1:]) if len(one) == PREFIX_BYTES and one[0] == 0 else -1 for one in heads]
    return Unframed(pc.binary_slice(payloads, PREFIX_BYTES), np.array(ids, np.int64))


def remove_message_indexes(payloads: pa.Array) -> tuple[pa.Array, dict[int, str]]:
    """Remove the position of the message from payloads of protobuf; return them, and the rows that are of another
    message than the first."""
    firsts = pc.binary_slice(payloads, 0, 1).to_pylist()
    return pc.binary_slice(payloads, 1), {row: NOT_FIRST for row, one in enumerate(firsts) if one != b"\0"}
