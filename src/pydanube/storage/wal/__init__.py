"""The write-ahead log: one per broker, shared by all partitions. An append is done when it is synced.

writer                  what the broker calls, on the event loop
committer               the log thread: takes what waits, writes it, syncs once
engine, engine_guard    writes files; decides which of the two threads may
table, sidecar          where each record lies, in memory and in the index of a closed file
reader, handles         reads records back
recovery, scan, mark    opens a log: which records count, and how far it was synced
release                 which files are not needed any more
layout                  the names of the files
metrics                 counters and timings
inspect                 lists a log for operators
"""

from __future__ import annotations

from pydanube.codec.wal import MetadataStamp, NodeIdentity

from .committer import DurabilityLevel
from .recovery import RecoveredLog, check_manifest
from .table import LedgerSummary
from .writer import LogListener, LogWriter

__all__ = [
    "DurabilityLevel",
    "LedgerSummary",
    "LogListener",
    "LogWriter",
    "MetadataStamp",
    "NodeIdentity",
    "RecoveredLog",
    "check_manifest",
]
