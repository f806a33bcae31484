"""Dispatch of one subscription on one partition: which rows go to which consumer, and what is acknowledged.

The cursor is the same for every subscription type; a type is a policy over it (`policy`).
"""
