"""The producer table of a partition as of the end of its uploaded part, which the footer of each segment repeats."""

from __future__ import annotations

from collections.abc import Collection

from pydanube.codec.batch import read_header
from pydanube.core.producer_table import ProducerTable
from pydanube.model.ledgers import ProducerEntry


class UploadedProducers:
    """The producer table of a partition, from the end of its uploaded part on. Implements `ProducerHistory`."""

    def __init__(self, known: list[ProducerEntry], remembered_max: int, kept: Collection[int]) -> None:
        self._table = ProducerTable(remembered_max, pinned=kept)
        self._table.restore(known)

    def replay(self, batch: memoryview) -> None:
        self._table.replay(read_header(batch, stamped=True))

    def entries(self) -> list[ProducerEntry]:
        return self._table.entries()
