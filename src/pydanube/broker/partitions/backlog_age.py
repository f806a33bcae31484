"""When the messages of a partition were appended, estimated from what the catalog and the log say when it is opened."""

from __future__ import annotations

from pydanube.core.append_times import AppendTimes
from pydanube.storage.stream import LoggedStream, PartitionStream, StoredRange
from pydanube.storage.wal import LogWriter


def stored_times(stream: PartitionStream, writer: LogWriter) -> AppendTimes:
    """Return the append times of what a stream holds, as the catalog and, after its end, the ledgers of the log report
    them."""
    times, end = AppendTimes(), 0
    if not isinstance(stream, LoggedStream):
        return times
    found = list(stream.history.sizes) if stream.history is not None else []
    for one in [one for ledger_id in stream.ledger_ids if (one := writer.ledger(ledger_id)) is not None]:
        found.append(StoredRange(one.first_offset, one.end_offset, one.bytes, one.first_time, one.last_time))
    for stored in found:
        if stored.end > max(end, stored.first) and stored.last_time:
            if stored.first >= end and stored.first_time:
                times.add(stored.first, stored.first_time)
            times.add(stored.end - 1, stored.last_time)
            end = stored.end
    return times
