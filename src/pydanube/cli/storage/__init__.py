"""Stored data on the command line: object stores, the metadata of a stopped broker, single files."""
