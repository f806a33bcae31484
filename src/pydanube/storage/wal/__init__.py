"""The write-ahead log: one per broker, shared by all partitions. An ack means synced because of what is in here."""

from __future__ import annotations

from pydanube.codec.wal import MetadataStamp, NodeIdentity

from .recovery import RecoveredLog
from .settings import DurabilityLevel, WalSettings
from .table import LedgerSummary
from .writer import LogWriter

__all__ = [
    "DurabilityLevel",
    "LedgerSummary",
    "LogWriter",
    "MetadataStamp",
    "NodeIdentity",
    "RecoveredLog",
    "WalSettings",
]
