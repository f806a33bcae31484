"""Pipelines from YAML files: parsing and checking a file before Spark starts, then running it."""
