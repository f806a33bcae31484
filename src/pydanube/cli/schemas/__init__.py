"""Schemas on the command line: subjects, versions, bindings, differences."""
