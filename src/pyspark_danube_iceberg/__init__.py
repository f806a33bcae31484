"""The module in which Spark looks up ``format("danube-iceberg")``: it must have such a name and contain `DefaultSource`."""

from __future__ import annotations

from pydanube.spark import DanubeIcebergDataSource

DefaultSource = DanubeIcebergDataSource

__all__ = ["DefaultSource"]
