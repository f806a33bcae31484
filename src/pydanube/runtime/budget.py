"""Memory that many share, counted."""

from __future__ import annotations


class Budget:
    """Bytes that many connections share."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0

    def take(self, wanted_bytes: int) -> bool:
        if self.used_bytes + wanted_bytes > self.limit_bytes:
            return False
        self.used_bytes += wanted_bytes
        return True

    def give_back(self, taken_bytes: int) -> None:
        self.used_bytes -= taken_bytes
        assert self.used_bytes >= 0
