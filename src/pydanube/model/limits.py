"""Limits that are part of a format or of a protocol, so that both sides must have the same.

Limits that each process may choose (how long to linger, how much to cache) are settings. Sizes are in bytes unless the
name says otherwise.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

ALIGNMENT: Final = 64
"""Batches and records start on this boundary in frames, log and segments: a cache line, as Arrow recommends."""

MESSAGE_BYTES_MAX: Final = 10 * MIB
"""The largest payload of one message."""

BATCH_BYTES_MAX: Final = 32 * MIB
"""The largest batch with its header, both as stored and uncompressed. The largest message, with key and attributes,
fits."""

BATCH_MESSAGES_MAX: Final = 100_000
"""The most messages of a batch: larger batches are not faster, and columns per row need a limit."""

KEY_BYTES_MAX: Final = 64 * KIB
"""The longest key, in UTF-8."""

ATTRIBUTES_PER_MESSAGE_MAX: Final = 1_000

PRODUCER_NAME_BYTES_MAX: Final = 255

NAME_CHARACTERS_MAX: Final = 200
"""The longest name of a namespace, a topic or a subscription."""

PARTITIONS_MAX: Final = 10_000
"""The most partitions of one topic."""

CONTROL_BYTES_MAX: Final = 1 * MIB
"""The largest head of a frame (a request, an answer, a list of ranges)."""

FRAME_BYTES_MAX: Final = BATCH_BYTES_MAX + CONTROL_BYTES_MAX + ALIGNMENT
"""The largest frame of the native protocol: the largest batch behind the largest head."""

TOKEN_BYTES_MAX: Final = 8 * KIB
"""The longest API key or JWT: it fits the HELLO frame and the headers of gRPC and HTTP."""

RECORD_BODY_BYTES_MAX: Final = BATCH_BYTES_MAX
"""The largest body of a record of the write-ahead log."""

METADATA_TRANSACTION_BYTES_MAX: Final = 1 * MIB
"""The keys and values of one metadata transaction and of its comparisons: etcd takes requests of up to 1.5 MiB."""

METADATA_VALUE_BYTES_MAX: Final = METADATA_TRANSACTION_BYTES_MAX - 8 * KIB
"""The largest metadata value: with its key and a comparison of that key it fits one transaction."""

METADATA_OPERATIONS_MAX: Final = 128
"""The most comparisons, and the most writes, of one metadata transaction: etcd's limit, which every store keeps."""

METADATA_PAGE_BYTES_MAX: Final = 1 * MIB
"""A page of metadata ends with the key that brings its keys and values to this size."""

SCHEMA_BYTES_MAX: Final = 512 * KIB
"""The largest definition of a schema, in UTF-8: with its tags and references it fits one metadata value, and one
control frame even where an answer has it twice."""

SCHEMA_SUBJECTS_MAX: Final = 100_000
"""The most subjects: the broker has an index of all versions in memory."""

SCHEMA_VERSIONS_MAX: Final = 1_000
"""The most versions of one subject, with deleted ones: the transitive compatibility levels compare with each of
them."""

SCHEMA_REFERENCES_MAX: Final = 200
"""The most definitions that one definition refers to, also indirectly: they are parsed together."""

SCHEMA_REFERENCE_BYTES_MAX: Final = 1_000
"""The longest name by which a definition refers to another one, in UTF-8."""

SCHEMA_TAGS_MAX: Final = 50
"""The most tags of one version. A tag has at most NAME_CHARACTERS_MAX characters."""

PROTO_TEXT_BYTES_MAX: Final = 128 * KIB
"""The most `.proto` text that a definition and its references may have together: its parser needs 10 to 20
microseconds a byte. A descriptor set may be as large as a definition."""

PRODUCER_BATCHES_IN_FLIGHT_MAX: Final = 64
"""Unacknowledged batches of one producer and partition; the log remembers at least as many for deduplication."""

ACKED_RANGES_MAX: Final = 25_000
"""Gaps between the acks of a subscription; past this, delivery pauses, and no ack is lost."""

ACKED_RANGES_REFUSED: Final = 2 * ACKED_RANGES_MAX
"""Messages delivered before the pause may still be acked; a consumer that makes more gaps than this is closed."""

UNACKED_MAX: Final = 2**32 - 1
"""The highest limit of unacknowledged messages of a subscription: what the Danube gRPC API can carry."""

NACKED_MESSAGES_MAX: Final = 10_000
"""The most messages of one NACK frame: the broker keeps state for each of them."""

REQUESTS_WAITING_MAX: Final = 20_000
"""The most requests of one connection that wait for replies: the broker keeps an inbox for each of them."""

REPLIES_MAX: Final = 10_000
"""The most replies that one request can ask for."""

REQUEST_TIMEOUT_MS_MAX: Final = 24 * 3600 * 1000
"""The longest time that a caller can wait for replies."""

STAGES_PER_COMMIT_MAX: Final = 10_000
"""The most stages of one commit: their names fit one metadata value and one request."""

DELIVERY_DELAY_S_MAX: Final = 10 * 366 * 24 * 3600
"""The longest delivery delay of a message, about ten years: a longer one is a mistake of units."""

assert (
    SCHEMA_BYTES_MAX
    + SCHEMA_REFERENCES_MAX * (SCHEMA_REFERENCE_BYTES_MAX + NAME_CHARACTERS_MAX + 32)
    + SCHEMA_TAGS_MAX * NAME_CHARACTERS_MAX * 4
    < METADATA_VALUE_BYTES_MAX
), "a version is one metadata value"
assert MESSAGE_BYTES_MAX + KEY_BYTES_MAX < BATCH_BYTES_MAX < FRAME_BYTES_MAX
assert ACKED_RANGES_MAX * 8 + BATCH_MESSAGES_MAX * 2 + ALIGNMENT < CONTROL_BYTES_MAX, "a delivery's row selection"

ROLES_MAX: Final = 1_000
"""The most roles that are not built in: a list of all of them, each with its actions, fits one control frame."""

BINDINGS_MAX: Final = 100_000
"""The most bindings: every broker has all of them in memory, about 1 KiB each."""

BINDINGS_PER_NAMESPACE_MAX: Final = 10_000
"""The most bindings in one namespace, and on subjects, of those who do not administer the cluster: the administrator of
one namespace must not use up what all of them share."""

STAGED_QUERIES_MAX: Final = 10_000
"""The most staged queries of a cluster, about 2 KiB of metadata each. With authentication, a principal and a namespace
have at most as many as are still free."""

BINDING_ROLES_MAX: Final = 50
"""The most roles of one binding: what a subject may do is their union, which is made anew when a rule changes."""

API_KEYS_MAX: Final = 100_000
"""The most API keys: every broker has all of them in memory, about 1 KiB each."""

API_KEYS_PER_PRINCIPAL_MAX: Final = 100
"""The most API keys of one principal: principals make keys for themselves, and one must not use up those of all."""

QUOTAS_MAX: Final = 10_000
"""The most quotas: every broker has all of them in memory, about 1 KiB each."""

GROUPS_MAX: Final = 50
"""The most groups of one API key: the rules of each are asked at a decision."""

COMMENT_CHARACTERS_MAX: Final = 200
"""The longest comment of an API key: it says what the key is for, and every broker has it in memory."""
