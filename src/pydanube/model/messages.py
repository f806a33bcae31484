"""Where messages were stored, and a stored message with everything that it has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Published(NamedTuple):
    """The answer to a publish. `duplicate`: an earlier try of the same batch had stored it."""

    base_offset: int
    owner_epoch: int
    duplicate: bool


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message as it is stored. Times are in microseconds since 1970."""

    partition: int
    offset: int
    payload: bytes
    key: str | None
    attributes: dict[str, str]
    publish_time: int
    append_time: int
    producer: str = ""
    deliver_at: int = 0
    """The time before which the message is not delivered; 0: no such time."""
    schema_id: int = 0
    schema_version: int = 0
    is_by_broker: bool = False
    """Whether a broker wrote it as a dead letter; see `model.dead_letters`."""
