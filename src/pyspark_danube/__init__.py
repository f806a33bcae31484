"""Where Spark looks for ``format("danube")`` by itself: a top-level module of this name with a `DefaultSource`."""

from __future__ import annotations

from pydanube.spark import DanubeDataSource

DefaultSource = DanubeDataSource

__all__ = ["DefaultSource"]
