"""Who may use the engine: the log's thread, or, while that has nothing to do, the event loop.

The thread holds the baton as long as it has mail, has said something that the loop has not heard, or may wake up by
itself. Otherwise the loop holds it, and may write a lone record without waiting for a thread to wake up.

```
 loop     counts what it puts into the thread's mail, before it puts it, and what it has heard, after it acted on it
 thread   counts what it has done of its mail, and what it has told; offers both numbers before it waits for mail
```

Invariants
    each number has one writer
    the loop holds the baton only while the offer equals its own two numbers: then all mail is done, and everything told
    is heard. The thread waits for mail, which only the loop can put, so that this stays true until the loop puts some
    while the disk fails nothing is offered: the thread wakes up to cure it, and has given up ledgers
"""

from __future__ import annotations


class EngineGuard:
    """The first half is for the loop, the second for the thread."""

    __slots__ = ("_done", "_heard", "_offer", "_put", "_told")

    def __init__(self) -> None:
        self._put = 0
        self._heard = 0
        self._done = 0
        self._told = 0
        self._offer: tuple[int, int] | None = (0, 0)

    @property
    def is_with_loop(self) -> bool:
        return self._offer == (self._put, self._heard)

    def hand_over(self) -> None:
        """Mail is about to be put."""
        self._put += 1

    def heard(self) -> None:
        """Something the thread told was acted on."""
        self._heard += 1

    # -- the thread --------------------------------------------------------------------------------------------------

    def did(self, mail: int) -> None:
        """So much mail is done, or about to be."""
        self._done += mail

    def telling(self) -> None:
        """The loop is about to be told something."""
        self._told += 1

    def offer(self) -> None:
        """Nothing is touched from here on until mail comes."""
        self._offer = (self._done, self._told)

    def keep(self) -> None:
        """The thread may wake up by itself."""
        self._offer = None
