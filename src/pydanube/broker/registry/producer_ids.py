"""Ids of producers: a number from a counter, and a mark of the principal that the number was given to.

```
 63 62 61                           34 33                             0
+--+--+-------------------------------+--------------------------------+
| 0| 0| mark of the owner             | number                         |
+--+--+-------------------------------+--------------------------------+
```

Deduplication goes by the id, and ids can be guessed. The mark makes an id useless to others: a caller can only come
back with ids that have its own mark. The mark is a hash of the principal's name, so that nothing has to be stored for
the thousands of producers without a name. Without authentication the mark is 0.
"""

from __future__ import annotations

import hashlib
from typing import Final

from pydanube.model.errors import Denied
from pydanube.model.names import TopicName

NUMBER_BITS: Final = 34
MARK_BITS: Final = 28
"""Of a million principals, one pair in 270 million has the same mark: they are names that an administrator gave, not
numbers that an attacker can try."""

_NUMBER_MASK: Final = (1 << NUMBER_BITS) - 1


def owned_id(owner: str, number: int) -> int:
    """Return the id of a producer of the principal `owner`; empty: it has no owner."""
    assert 0 < number <= _NUMBER_MASK
    return _mark(owner) << NUMBER_BITS | number


def counted_id(producer_id: int) -> int:
    """Return the number of an id that a client presents; -1 if it is none that could have been given out."""
    return producer_id & _NUMBER_MASK if 0 < producer_id < 1 << NUMBER_BITS + MARK_BITS else -1


def check_owned(producer_id: int, owner: str) -> None:
    """Raise Denied if the id was not given to the principal `owner`. Without authentication every id is accepted."""
    if owner and producer_id >> NUMBER_BITS != _mark(owner):
        raise Denied(f"producer {producer_id} does not belong to {owner}: open without an id")


def check_name_owned(name: str, topic: TopicName, owner: str, caller: str) -> None:
    """Raise Denied if the name of a producer belongs to another principal than `caller`. Without authentication, and
    before an authenticated caller has opened the name, it belongs to nobody."""
    if owner and caller and owner != caller:
        raise Denied(
            f"producer {name!r} on {topic} belongs to another principal than {caller}: use another name, or let a "
            f"principal that may administer the topic open it"
        )


def _mark(owner: str) -> int:
    if not owner:
        return 0
    digest = hashlib.blake2b(owner.encode(), digest_size=4, person=b"danube-owner").digest()
    return (int.from_bytes(digest, "big") >> 32 - MARK_BITS) or 1
