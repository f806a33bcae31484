"""The module in which Spark looks up ``format("danube-delta")``: Spark needs such a name, and `DefaultSource`."""

from __future__ import annotations

from pydanube.spark import DanubeDeltaDataSource

DefaultSource = DanubeDeltaDataSource

__all__ = ["DefaultSource"]
