"""The write-ahead log: one per broker, shared by all partitions. An ack means synced because of what is in here."""

from __future__ import annotations

from pydanube.codec.wal import Identity, MetadataStamp

from .recovery import Recovered
from .settings import Level, WalSettings
from .table import LedgerSummary
from .writer import LogWriter

__all__ = ["Identity", "LedgerSummary", "Level", "LogWriter", "MetadataStamp", "Recovered", "WalSettings"]
