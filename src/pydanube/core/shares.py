"""The rule by which callers share what all of them take from: memory, places, records."""

from __future__ import annotations


def is_within_share(own: int, free: int) -> bool:
    """Return whether one caller may have `own` of what is shared while `free` is left for all.

    It may have as much as is still free: one alone gets half of everything, each of many the same part, and whoever
    comes next finds something.
    """
    return own <= free
