"""The settings of producers and consumers, checked when they are made. Hard limits are in `model.limits`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from pydanube.client.connection.observing import PartitionHook, checked_hook
from pydanube.codec.batch import Codec
from pydanube.model.errors import Invalid
from pydanube.model.limits import (
    BATCH_BYTES_MAX,
    BATCH_MESSAGES_MAX,
    KIB,
    MIB,
    PRODUCER_BATCHES_IN_FLIGHT_MAX,
    PRODUCER_NAME_BYTES_MAX,
)

AccessName = Literal["shared", "exclusive"]
"""How users write whether other producers may publish to the topic."""

CompressionName = Literal["none", "lz4", "zstd"]
"""How users write a `Codec`."""

BATCH_BYTES_HIGHEST: Final = BATCH_BYTES_MAX // 2
"""The highest setting of `batch_bytes`: half of the hard limit, because sizes are estimated while a batch is filled."""


def is_utf8(value: object) -> bool:
    """Return whether the value is a str that can be encoded as UTF-8, that is, without lone surrogates."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_number(name: str, value: float, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Invalid(f"{name}={value!r} is not a number: use {low:g} to {high:g}")
    if not low <= value <= high:
        raise Invalid(f"{name}={value!r} is out of range: use {low:g} to {high:g}")


def check_count(name: str, value: int, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise Invalid(f"{name}={value!r} is out of range: use a whole number from {low} to {high}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """How a producer batches and waits."""

    name: str = ""
    codec: Codec = Codec.NONE
    batch_bytes: int = 256 * KIB
    batch_messages: int = 10_000
    linger_ms: float = 5.0
    """The longest a message waits for its batch to fill while earlier batches are in flight; else it does not wait."""
    in_flight_batches: int = 64
    queue_messages: int = 100_000
    queue_bytes: int = 64 * MIB
    timeout: float = 30.0
    refresh_seconds: float = 5.0
    """How often a producer checks whether its topic has more partitions."""
    access: AccessName = "shared"
    schema: tuple[int, int] = (0, 0)
    """Schema id and version, which are written to every batch."""
    subject: str = ""
    """The subject of this schema. The first producer that names one binds the topic to it."""
    on_partition: PartitionHook | None = None

    def __post_init__(self) -> None:
        checked_hook(self.on_partition)
        if self.access not in ("shared", "exclusive"):
            raise Invalid(f"access {self.access!r} is unknown: use shared or exclusive")
        check_number("refresh_seconds", self.refresh_seconds, 0.01, 1e6)
        if not is_utf8(self.name) or len(self.name.encode()) > PRODUCER_NAME_BYTES_MAX:
            raise Invalid(f"producer name {self.name!r} is not text of at most {PRODUCER_NAME_BYTES_MAX} bytes")
        check_count("batch_bytes", self.batch_bytes, 1, BATCH_BYTES_HIGHEST)
        check_count("batch_messages", self.batch_messages, 1, BATCH_MESSAGES_MAX)
        check_number("linger_ms", self.linger_ms, 0, 60_000)
        check_count("in_flight_batches", self.in_flight_batches, 1, PRODUCER_BATCHES_IN_FLIGHT_MAX)
        check_count("queue_messages", self.queue_messages, 1, 1 << 31)
        check_count("queue_bytes", self.queue_bytes, 1, 1 << 40)
        check_number("timeout", self.timeout, 0.001, 1e6)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """How much a consumer prefetches, and how it batches acks."""

    prefetch_messages: int = 10_000
    prefetch_bytes: int = 16 * MIB
    ack_linger_ms: float = 5.0
    refresh_seconds: float = 5.0
    """How often a consumer looks for new partitions, and for new topics that match its pattern."""
    timeout: float = 30.0
    on_partition: PartitionHook | None = None

    def __post_init__(self) -> None:
        checked_hook(self.on_partition)
        check_count("prefetch_messages", self.prefetch_messages, 1, 1 << 31)
        check_count("prefetch_bytes", self.prefetch_bytes, 1, 1 << 40)
        check_number("ack_linger_ms", self.ack_linger_ms, 0, 60_000)
        check_number("refresh_seconds", self.refresh_seconds, 0.01, 1e6)
        check_number("timeout", self.timeout, 0.001, 1e6)
