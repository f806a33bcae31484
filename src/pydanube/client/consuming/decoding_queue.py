"""A receiver queue whose batches are decoded: each waits until the schema that it was written with is known.

```
 put() --> undecoded: the first one's schema is being fetched --> batches, as in `ReceiverQueue`
```

Invariants
    batches keep their order; none is taken before it has its decoding function
    batches that wait here count as prefetched, so that the broker does not send more of them than it may
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from pydanube.client.typed.value_reader import ValueReader
from pydanube.client.typed.value_type import ValueT
from pydanube.model.errors import DanubeError

from .messages import ReceivedBatch
from .receiver_queue import ReceiverQueue


class DecodingQueue(ReceiverQueue[ValueT]):
    """The queue of a consumer or reader that has a schema."""

    __slots__ = ("_undecoded", "_values")

    def __init__(self, on_batch_begun: Callable[[ReceivedBatch[ValueT]], None], values: ValueReader[ValueT]) -> None:
        super().__init__(on_batch_begun)
        self._values = values
        self._undecoded: deque[ReceivedBatch[ValueT]] = deque()

    @property
    def empty(self) -> bool:
        return not self._undecoded and super().empty

    def put(self, batch: ReceivedBatch[ValueT]) -> None:
        if not self._undecoded and self._set_decoder(batch):
            super().put(batch)
            return
        self._undecoded.append(batch)
        if len(self._undecoded) == 1:
            self._fetch_schema(batch)

    def _set_decoder(self, batch: ReceivedBatch[ValueT]) -> bool:
        """Give the batch its decoding function. Returns False if its schema has to be fetched first."""
        decode = self._values.find_decoder((batch.schema_id, batch.schema_version))
        if decode is None:
            return False
        batch.use_decoder(decode)
        return True

    def _fetch_schema(self, batch: ReceivedBatch[ValueT]) -> None:
        self._values.when_known((batch.schema_id, batch.schema_version), self._schema_known)

    def _schema_known(self) -> None:
        """Put the batches whose schemas are known by now, up to the first whose schema is not."""
        while self._undecoded:
            batch = self._undecoded[0]
            if not self._set_decoder(batch):
                self._fetch_schema(batch)
                return
            super().put(self._undecoded.popleft())

    def discard(self, unwanted: Callable[[ReceivedBatch[ValueT]], bool]) -> list[ReceivedBatch[ValueT]]:
        dropped = super().discard(unwanted)
        dropped += [batch for batch in self._undecoded if unwanted(batch)]
        self._undecoded = deque(batch for batch in self._undecoded if not unwanted(batch))
        return dropped

    def fail(self, error: DanubeError) -> None:
        self._undecoded.clear()
        super().fail(error)

    def close(self) -> None:
        self._undecoded.clear()
        super().close()
