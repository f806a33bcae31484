"""Roles, keys and certificates on the command line."""
