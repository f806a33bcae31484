"""The commands that run Spark: SQL, pipelines, tables, and the state of queries."""
