"""Limits that are promises: part of a format or of a protocol, the same on both sides of a border.

What is merely taste (how long to linger, how much to cache) is a setting. Sizes are bytes unless the name says so.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

ALIGNMENT: Final = 64
"""Batches and records start on this boundary in frames, log and segments: a cache line, and what Arrow likes."""

MESSAGE_BYTES_MAX: Final = 10 * MIB
"""The largest payload of one message."""

BATCH_BYTES_MAX: Final = 32 * MIB
"""The largest batch, header included, stored and uncompressed: room for the largest message and all that is on it."""

BATCH_MESSAGES_MAX: Final = 100_000
"""More rows per batch win nothing, and per-row columns have to be bounded."""

KEY_BYTES_MAX: Final = 64 * KIB
"""One routing key, in UTF-8."""

ATTRIBUTES_PER_MESSAGE_MAX: Final = 1_000

PRODUCER_NAME_BYTES_MAX: Final = 255

NAME_CHARACTERS_MAX: Final = 200
"""A namespace, a topic or a subscription."""

PARTITIONS_MAX: Final = 10_000
"""Partitions of one topic."""

CONTROL_BYTES_MAX: Final = 1 * MIB
"""The head of one frame (a request, an answer, a list of ranges)."""

FRAME_BYTES_MAX: Final = BATCH_BYTES_MAX + CONTROL_BYTES_MAX + ALIGNMENT
"""One frame of the native protocol: the largest batch behind the largest head."""

RECORD_BODY_BYTES_MAX: Final = BATCH_BYTES_MAX
"""One record of the write-ahead log."""

METADATA_VALUE_BYTES_MAX: Final = 1 * MIB
METADATA_OPERATIONS_MAX: Final = 128
"""etcd's limits, kept in every form of the metadata store."""

PRODUCER_BATCHES_IN_FLIGHT_MAX: Final = 64
"""Unacknowledged batches of one producer and partition; the log remembers at least as many for deduplication."""

ACKED_RANGES_MAX: Final = 25_000
"""Gaps in what a subscription has acked; past it delivery waits, and no ack is forgotten."""

ACKED_RANGES_REFUSED: Final = 2 * ACKED_RANGES_MAX
"""What was delivered before the waiting began may still be acked; whoever makes more gaps than this is closed."""

NACKED_MESSAGES_MAX: Final = 10_000
"""Messages that one frame gives back: each of them is remembered by itself."""

STAGES_PER_COMMIT_MAX: Final = 10_000
"""Staged objects that one commit names: their names fit one metadata value, and the request that brings them."""

DELIVERY_DELAY_S_MAX: Final = 10 * 366 * 24 * 3600
"""How far ahead a message may ask to be delivered: some ten years. What is further away is a mistake of units."""

assert MESSAGE_BYTES_MAX + KEY_BYTES_MAX < BATCH_BYTES_MAX < FRAME_BYTES_MAX
assert ACKED_RANGES_MAX * 8 + BATCH_MESSAGES_MAX * 2 + ALIGNMENT < CONTROL_BYTES_MAX, "a delivery's row selection"
