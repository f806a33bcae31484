"""Messages on their way into one batch: columns of plain lists, so that adding one costs a few appends.

Everything is checked before it is added, because what is in one batch succeeds or fails together.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Final

from pydanube.codec.batch import Codec, encode
from pydanube.model.errors import Invalid
from pydanube.model.limits import ATTRIBUTES_PER_MESSAGE_MAX, BATCH_BYTES_MAX, MESSAGE_BYTES_MAX

ROW_BYTES: Final = 24
"""What one message takes besides its own bytes: offsets, times, hashes. An estimate on the high side."""

Attributes = Mapping[str, str]
_NO_ATTRIBUTES: Final[dict[str, str]] = {}


class MessageRows:
    """The columns of one batch that is being filled. `waiters` are opaque: (whoever waits, its first row, its rows)."""

    __slots__ = ("attributes", "born", "deliver_at", "keys", "lengths", "payloads", "size", "time", "times", "waiters")

    def __init__(self, born: float) -> None:
        self.payloads: list[bytes] = []
        self.lengths: list[int] = []
        """Of the payloads."""
        self.keys: list[str | None] | None = None
        self.attributes: list[Attributes] | None = None
        self.deliver_at: array[int] | None = None
        """Once some row is not to be delivered at once (0)."""
        self.time = 0
        """The publish time of all rows, while they have the same."""
        self.times: array[int] | None = None
        """The publish time of each row, once they differ."""
        self.size = 0
        self.born = born
        """When the first message came in; its deadline counts from here."""
        self.waiters: list[tuple[object, int, int]] = []

    def __len__(self) -> int:
        return len(self.payloads)

    def add(
        self,
        payload: bytes,
        key: str | None,
        attributes: Attributes | None,
        time_us: int,
        size: int,
        deliver_at: int = 0,
    ) -> None:
        if key is not None or self.keys is not None:
            self._key_column().append(key)
        if attributes or self.attributes is not None:
            self._attribute_column().append(dict(attributes) if attributes else _NO_ATTRIBUTES)
        if deliver_at or self.deliver_at is not None:
            self._deliver_at_column().append(deliver_at)
        if self.times is not None:
            self.times.append(time_us)
        elif time_us != self.time:
            self._add_times(time_us, 1)
        self.payloads.append(payload)
        self.lengths.append(len(payload))
        self.size += size

    def add_many(
        self,
        payloads: Sequence[bytes],
        lengths: Sequence[int],
        keys: Sequence[str | None] | None,
        attributes: Sequence[Attributes | None] | None,
        time_us: int,
        size: int,
        deliver_at: int = 0,
    ) -> None:
        count = len(payloads)
        assert len(lengths) == count
        if deliver_at or self.deliver_at is not None:
            self._deliver_at_column().extend(array("q", (deliver_at,)) * count)
        if keys is not None or self.keys is not None:
            self._key_column().extend(keys if keys is not None else [None] * count)
        if attributes is not None or self.attributes is not None:
            self._attribute_column().extend(
                [one or _NO_ATTRIBUTES for one in attributes] if attributes is not None else [_NO_ATTRIBUTES] * count
            )
        if time_us != self.time or self.times is not None:
            self._add_times(time_us, count)
        self.payloads.extend(payloads)
        self.lengths.extend(lengths)
        self.size += size

    def encode(
        self,
        producer_name: str,
        producer_id: int,
        producer_epoch: int,
        first_sequence: int,
        codec: Codec,
        schema: tuple[int, int] = (0, 0),
    ) -> bytearray:
        return encode(
            self.payloads,
            keys=self.keys,
            attributes=self.attributes,
            publish_times=self.time if self.times is None else self.times,
            producer_name=producer_name,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            first_sequence=first_sequence,
            deliver_at=self.deliver_at,
            schema_id=schema[0],
            schema_version=schema[1],
            codec=codec,
            payload_lengths=self.lengths,
        )

    def _key_column(self) -> list[str | None]:
        if self.keys is None:
            self.keys = [None] * len(self.payloads)
        return self.keys

    def _attribute_column(self) -> list[Attributes]:
        if self.attributes is None:
            self.attributes = [_NO_ATTRIBUTES] * len(self.payloads)
        return self.attributes

    def _deliver_at_column(self) -> array[int]:
        if self.deliver_at is None:
            self.deliver_at = array("q", bytes(8 * len(self.payloads)))
        return self.deliver_at

    def _add_times(self, time_us: int, count: int) -> None:
        """Called before the rows are added."""
        if self.times is not None:
            self.times.extend(array("q", (time_us,)) * count)
        elif not self.payloads:
            self.time = time_us
        else:
            self.times = array("q", (self.time,)) * len(self.payloads) + array("q", (time_us,)) * count


def checked_payload(payload: bytes) -> bytes:
    """The payload as bytes, or Invalid."""
    if type(payload) is not bytes:
        if not isinstance(payload, bytes | bytearray | memoryview):
            raise Invalid(f"payload is {type(payload).__name__}, not bytes: encode it first, for example text.encode()")
        payload = bytes(payload)
    if len(payload) > MESSAGE_BYTES_MAX:
        raise Invalid(f"payload of {len(payload)} bytes is too large: at most {MESSAGE_BYTES_MAX}")
    return payload


def attributes_size(attributes: Attributes) -> int:
    """What the attributes of one message take, or Invalid. Keys and values are text."""
    if not isinstance(attributes, Mapping):
        raise Invalid(f"attributes are {type(attributes).__name__}, not a mapping of text to text")
    if len(attributes) > ATTRIBUTES_PER_MESSAGE_MAX:
        raise Invalid(f"{len(attributes)} attributes on one message are too many: at most {ATTRIBUTES_PER_MESSAGE_MAX}")
    size = 0
    for name, value in attributes.items():
        if not (isinstance(name, str) and isinstance(value, str)):
            raise Invalid(f"attribute {name!r}: {value!r} is not text: keys and values are str")
        try:
            size += len(name.encode()) + len(value.encode()) + 8
        except UnicodeEncodeError:
            raise Invalid(f"attribute {name!r}: {value!r} cannot be written as UTF-8") from None
    if size > BATCH_BYTES_MAX - MESSAGE_BYTES_MAX - (1 << 20):
        raise Invalid(f"attributes of {size} bytes on one message are too large")
    return size
