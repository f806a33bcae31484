"""The write-ahead log: one per broker, shared by all partitions. An append is done when it is synced.

log_writer              what the broker calls, on the event loop
committer               the log thread: takes what waits, writes it, syncs once
engine, engine_guard    writes files; decides which of the two threads may
log_contents, sidecar   where each record lies, in memory and in the index of a closed file
log_reader, handles     reads records back
recovery, scan, mark    opens a log: which records count, and how far it was synced
release                 which files are not needed any more
log_files               the names of the files
metrics                 counters and timings
inspect                 lists a log for operators
"""

from __future__ import annotations

from pydanube.codec.wal import MetadataStamp, NodeIdentity

from .committer import DurabilityLevel
from .log_contents import LedgerSummary
from .log_writer import LogListener, LogWriter
from .recovery import RecoveredLog, check_manifest

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
