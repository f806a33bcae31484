"""The module in which Spark looks up ``format("danube-iceberg")``: Spark needs such a name, and `DefaultSource`."""

from __future__ import annotations

from pydanube.spark import DanubeIcebergDataSource

DefaultSource = DanubeIcebergDataSource

__all__ = ["DefaultSource"]
