"""The commands for data: SQL (in DuckDB or Spark), and with Spark pipelines, tables and the state of queries."""
