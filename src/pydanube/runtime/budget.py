"""A limit on memory that several users share."""

from __future__ import annotations


class Budget:
    """Counts the bytes that several connections use together."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0

    def take(self, wanted_bytes: int) -> bool:
        """Reserve the bytes; return False, without effect, if the limit would be exceeded."""
        if self.used_bytes + wanted_bytes > self.limit_bytes:
            return False
        self.used_bytes += wanted_bytes
        return True

    def give_back(self, taken_bytes: int) -> None:
        self.used_bytes -= taken_bytes
        assert self.used_bytes >= 0
