"""The module in which Spark looks up ``format("danube-delta")``: it must have such a name and contain `DefaultSource`."""

from __future__ import annotations

from pydanube.spark import DanubeDeltaDataSource

DefaultSource = DanubeDeltaDataSource

__all__ = ["DefaultSource"]
