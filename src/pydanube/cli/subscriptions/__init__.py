"""Subscriptions on the command line: positions, backlogs, failure policies and dead letters."""
