"""Typed messages: the objects that programs send and receive, their schemas, and the schemas they were written with."""
