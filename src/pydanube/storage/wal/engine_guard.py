"""Decides which thread may use the log engine: the log thread, or, while that thread is idle, the event loop.

The log thread owns the engine while it has mail, has posted something that the loop has not handled yet, or may wake up
without mail. At all other times the loop owns the engine, and may write a single record without waking the log thread.

```
 loop     counts the mail it puts (before it puts it) and the posts it has handled (after it handled them)
 thread   counts the mail it has done and the posts it has made; offers both numbers before it waits for mail
```

Invariants
    each number has one writer
    the loop owns the engine only while the offer equals the loop's own two numbers: then all mail is done and every
    post is handled. The thread waits for mail, which only the loop can put, so this stays true until the loop puts some
    while the disk fails nothing is offered: the thread wakes up by itself to try the disk again, and ledgers are
    abandoned
"""

from __future__ import annotations


class EngineGuard:
    """Two pairs of counters, no lock. The first half of the methods is for the loop, the second for the thread."""

    __slots__ = ("_done", "_handled", "_offer", "_posted", "_put")

    def __init__(self) -> None:
        self._put = 0
        self._handled = 0
        self._done = 0
        self._posted = 0
        self._offer: tuple[int, int] | None = (0, 0)

    @property
    def loop_owns_engine(self) -> bool:
        return self._offer == (self._put, self._handled)

    def count_put(self) -> None:
        """Call this before putting one item into the thread's mail."""
        self._put += 1

    def count_handled(self) -> None:
        """Call this after the loop has handled one post of the thread."""
        self._handled += 1

    # -- the log thread ----------------------------------------------------------------------------------------------

    def count_done(self, count: int) -> None:
        """Call this for each item of mail, at the latest before the next `offer`."""
        self._done += count

    def count_posted(self) -> None:
        """Call this before posting something to the loop."""
        self._posted += 1

    def offer(self) -> None:
        """Let the loop use the engine. The thread does not touch the engine again before it has received mail."""
        self._offer = (self._done, self._posted)

    def withhold(self) -> None:
        """Keep the engine: the thread may wake up without mail."""
        self._offer = None
