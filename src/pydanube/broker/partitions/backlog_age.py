"""The age of a backlog, estimated from what is in memory: when a partition is opened, from the ledgers of the log."""

from __future__ import annotations

from pydanube.core.append_times import AppendTimes
from pydanube.storage.stream import LoggedStream, PartitionStream
from pydanube.storage.wal import LogWriter


def stored_times(stream: PartitionStream, writer: LogWriter) -> AppendTimes:
    """Return the append times of what a stream holds, as far as the ledgers of the log report them."""
    times = AppendTimes()
    if isinstance(stream, LoggedStream):
        for one in [one for ledger_id in stream.ledger_ids if (one := writer.ledger(ledger_id)) is not None]:
            if one.first_offset < one.end_offset:
                times.add(one.first_offset, one.first_time)
                times.add(one.end_offset - 1, one.last_time)
    return times
