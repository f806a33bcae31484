"""What a table records about the streams that write to it: each query's last batch, and the offsets that it landed.

The record is written in the same commit as the rows, so it is true whenever the table can be read:

    {"version": 1, "query": "5f0c...", "batch": 12, "time": 1794858489115, "topics": {"/default/orders":
        {"cluster": "danube-5f0c", "id": 12, "offsets": [4711, 4702]}}}

Delta keeps it in the commit's information (key `danube`), Iceberg in a property of the table for each query, because
snapshots expire. `topics` has the next offset of each partition, in the form of the stream's checkpoint (see
`reading.offsets`); it is missing if the rows did not come from a landing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydanube.model.errors import DanubeError
from pydanube.spark.reading.offsets import Offsets

VERSION: Final = 1
DELTA_KEY: Final = "danube"
ICEBERG_PREFIX: Final = "danube.query."
"""Of the table's properties; the query id follows."""


@dataclass(frozen=True, slots=True)
class LandingRecord:
    """The last commit of one query."""

    query: str
    batch_id: int
    time_ms: int = 0
    """Of the commit, in milliseconds since 1970."""
    offsets: Offsets | None = None
    """The next offset of each partition of each topic; None: the rows are not those of a landing."""
    checkpoint: str = ""

    def to_json(self) -> str:
        document: dict[str, Any] = {"version": VERSION, "query": self.query, "batch": self.batch_id}
        document["time"] = self.time_ms
        if self.offsets is not None:
            document["topics"] = self.offsets.to_json()["topics"]
        if self.checkpoint:
            document["checkpoint"] = self.checkpoint
        return json.dumps(document)

    @property
    def topics(self) -> list[str]:
        return [] if self.offsets is None else sorted(self.offsets.topics)


def parse_record(text: object) -> LandingRecord | None:
    """Parse a record; None if it is not one that this release can read."""
    try:
        document: Mapping[str, Any] = json.loads(text) if isinstance(text, str) else {}
        if document.get("version") != VERSION:
            return None
        offsets = None
        if "topics" in document:
            offsets = Offsets.from_json({"version": 1, "topics": document["topics"]})
        return LandingRecord(
            str(document["query"]),
            int(document["batch"]),
            int(document.get("time", 0)),
            offsets,
            str(document.get("checkpoint", "")),
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, DanubeError):
        return None
