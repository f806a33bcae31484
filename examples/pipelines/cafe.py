"""A function of the pipeline examples/pipelines/orders.yaml: data frames in, a data frame out."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f


def with_price(orders: DataFrame) -> DataFrame:
    """Add the price in whole currency units, and make a moment of the text `at`."""
    price = (f.col("cents") / 100).cast("decimal(12, 2)")
    return orders.withColumns({"price": price, "at": f.to_timestamp("at")})
