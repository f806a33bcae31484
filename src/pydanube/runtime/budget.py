"""A limit that many users share, and the share that each of them may have of it.

A user may have as much as is still free for all. So one that takes whatever it gets leaves half of the limit, the next
one a quarter, and nobody finds everything taken by one other. A user is what the caller counts by: a principal, a
namespace, an address. What is taken may count for several of them, from the widest to the narrowest: a principal may
have as much as its namespace may still have, so that it leaves some for others in the namespace too. Where no user is
named, users are not told apart.

Invariants
    used is what was taken and not given back, and is never more than the limit
    what a user has is forgotten when it is nothing
"""

from __future__ import annotations

from collections import Counter


def fits_share(own: int, wanted: int, free: int) -> bool:
    """Return whether a user that has `own` may take `wanted` more while `free` is left for all."""
    return own + wanted <= free


class Budget:
    """Counts what is taken of one limit: bytes, connections, records."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._of: Counter[str] = Counter()

    @property
    def free(self) -> int:
        return self.limit - self.used

    def used_by(self, user: str) -> int:
        return self._of.get(user, 0)

    def over_share(self, wanted: int, *users: str) -> str:
        """Return the first of these users, the widest first, that may not have so much more, empty if all may."""
        free = self.free
        for one in users:
            own = self._of.get(one, 0)
            if not fits_share(own, wanted, free):
                return one
            free -= own
        return ""

    def take(self, wanted: int, *users: str) -> bool:
        """Take this much for each of these users; return False, without effect, if that would exceed the limit or a
        share."""
        if wanted > self.free or self.over_share(wanted, *users):
            return False
        self.used += wanted
        for one in users:
            self._of[one] += wanted
        return True

    def give_back(self, taken: int, *users: str) -> None:
        """Give back what was taken for these users, or a part of it."""
        self.used -= taken
        assert self.used >= 0
        for one in users:
            self._of[one] -= taken
            assert self._of[one] >= 0
            if not self._of[one]:
                del self._of[one]
