"""Typed rows: payloads become columns by the schema that a topic is bound to."""
