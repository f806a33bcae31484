"""Lakehouse tables: sinks for Delta and Iceberg that need no JARs, and landing topics in tables."""
