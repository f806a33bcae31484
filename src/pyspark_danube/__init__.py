"""The module in which Spark looks up ``format("danube")``: it must have this name and contain `DefaultSource`."""

from __future__ import annotations

from pydanube.spark import DanubeDataSource

DefaultSource = DanubeDataSource

__all__ = ["DefaultSource"]
