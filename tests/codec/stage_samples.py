"""Stages for tests: made of batches, and read back whole."""

from __future__ import annotations

from collections.abc import Sequence

from pydanube.codec import stage
from pydanube.codec.stage import StageIndex, StagePart

TOPICS = [(18, "/default/orders"), (19, "/default/letters")]
NAME = "stages/a/b/c"

Part = tuple[int, int, Sequence[bytes | bytearray], int]
"""Topic (its place in TOPICS), partition, batches, messages."""


def built(parts: Sequence[Part], created_at_us: int = 1, topics: Sequence[tuple[int, str]] = TOPICS) -> bytes:
    pieces, _ = stage.encode(created_at_us, topics, [StagePart(*part) for part in parts])
    return b"".join(pieces)


def index_of(content: bytes, name: str = NAME) -> StageIndex:
    front = stage.read_stage_header(content, name)
    return stage.decode_index(content[stage.HEADER_BYTES : front.index_end], front)


def read_whole(content: bytes, name: str = NAME) -> list[tuple[int, int, list[bytes]]]:
    """Return topic id, partition and batches of each section. Raises Corrupt if anything was changed."""
    index = index_of(content, name)
    view = memoryview(content)
    return [
        (index.topic_id(one), one.partition, [bytes(b) for b in stage.split(view[one.start : one.end], one, name)])
        for one in index.sections
    ]
