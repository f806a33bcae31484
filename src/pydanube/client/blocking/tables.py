"""The blocking form of a read of a topic, batch by batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .loop_thread import Blocking

if TYPE_CHECKING:
    import pyarrow

    from pydanube.client.tables.topic_batches import TopicBatches
else:
    TopicBatches = object  # its module needs pyarrow


class BlockingTopicBatches(Blocking[TopicBatches]):
    """See `TopicBatches`. It has the C stream interface of Arrow too, which reads as much as its user asks for."""

    def __iter__(self) -> Iterator[pyarrow.RecordBatch]:
        return self._thread.iterate(self._inner._each())

    @property
    def schema(self) -> pyarrow.Schema:
        """The columns of the batches. Opens the read if it is not open yet."""
        if not self._inner._opened:
            self.open()
        return self._inner.schema

    @property
    def undecoded(self) -> int:
        """See `TopicBatches.undecoded`."""
        return self._inner.undecoded

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        import pyarrow

        reader = pyarrow.RecordBatchReader.from_batches(self.schema, iter(self))
        return reader.__arrow_c_stream__(requested_schema)
