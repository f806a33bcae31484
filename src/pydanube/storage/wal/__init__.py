"""The write-ahead log: one per broker, shared by all partitions. An append is done when it is synced."""

from __future__ import annotations

from pydanube.codec.wal import MetadataStamp, NodeIdentity

from .recovery import RecoveredLog
from .settings import DurabilityLevel, WalSettings
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
    "WalSettings",
]
