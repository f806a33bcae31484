"""How old the answers of a broker may be.

A broker answers reads from memory, which follows the metadata by watch. One rule holds for all of them, on every
listener:

```
 with a session      memory is as old as the watch is late; before it is said that something does not exist, the
                     metadata is asked
 past the session    others may have changed anything: the answer says how old it may be, and what memory does not have
                     is Unavailable, never NotFound
```

A listener carries each operation out in `checked`, and tells its clients `age_s` with the answer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from pydanube.broker.cluster.membership import Membership
from pydanube.model.errors import NotFound, Unavailable


class Freshness:
    """How old what one broker says may be."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership

    @property
    def age_s(self) -> int:
        """For how many seconds the broker may have missed changes, rounded up; 0: it follows them."""
        return math.ceil(self._membership.age_s())

    @property
    def trouble(self) -> str:
        """What is wrong, in one sentence; empty while the broker follows the metadata."""
        return f"without its session: what it says may be {age} s old" if (age := self.age_s) else ""

    @contextmanager
    def checked(self) -> Iterator[None]:
        """Surrounds an operation: past the session, NotFound becomes Unavailable."""
        try:
            yield
        except NotFound as error:
            if (doubt := self.doubt(error.message)) is None:
                raise
            raise doubt from error

    def doubt(self, missing: str) -> Unavailable | None:
        """Return what is answered in the place of `missing`, which says that something does not exist; None: just
        that."""
        if not (age_s := self.age_s):
            return None
        return Unavailable(
            f"broker {self._membership.session.name!r} has no session, and may have missed the changes of the last "
            f"{age_s} s; as it was then: {missing}"
        )
