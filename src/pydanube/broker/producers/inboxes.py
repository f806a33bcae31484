"""The inboxes of this broker: each waits for the replies to one request that a client of this broker has made.

```
 responder ─► its broker: deliver ─► this broker's inbox ─► the connection of the caller
                                  ├► another broker's: sent on to it, once
                                  └► an incarnation that is over, or an inbox that is closed: dropped
```

An inbox exists in memory only, as long as its caller waits. Its address has an unguessable token, so that nobody
answers who has not read the request; no rights are asked for.

Invariants
    an inbox gets at most as many replies as its caller asked for
    a reply that nobody waits for leaves nothing behind
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pydanube.broker.cluster.parts import ClusterParts
from pydanube.model.errors import Invalid
from pydanube.model.limits import MESSAGE_BYTES_MAX
from pydanube.model.replies import FAILURE_CHARACTERS_MAX, TOKEN_BYTES, InboxAddress, ReplyHead
from pydanube.runtime.randomness import secret_text

INBOX_BYTES: Final = 512
"""About what an inbox takes in memory, with what its listener keeps for it."""

Replied = Callable[[ReplyHead, bytes, bool], None]
"""Takes a reply: its head, its payload, and whether it is the last one."""


class Inbox:
    """Where the replies to one request go."""

    __slots__ = ("address", "left", "replied")

    def __init__(self, address: InboxAddress, replies_max: int, replied: Replied) -> None:
        self.address = address
        self.left = replies_max
        """How many replies may still come."""
        self.replied = replied


class Inboxes:
    """The inboxes of all listeners of this broker, and the way to those of others."""

    def __init__(self, cluster: ClusterParts) -> None:
        self._cluster = cluster
        self._open: dict[str, Inbox] = {}
        self.dropped = 0
        """Replies that nobody waited for."""

    def __len__(self) -> int:
        return len(self._open)

    def open(self, replied: Replied, replies_max: int = 1) -> Inbox:
        """Return a new inbox. The caller closes it, unless its last reply has come."""
        address = InboxAddress(*self._cluster.membership.identity, secret_text(TOKEN_BYTES))
        inbox = self._open[address.token] = Inbox(address, replies_max, replied)
        return inbox

    def close(self, inbox: Inbox) -> None:
        """Drop what still comes. An inbox that is closed may be closed again."""
        self._open.pop(inbox.address.token, None)

    def deliver(self, address: str, head: ReplyHead, payload: bytes) -> None:
        """Take a reply to the inbox of this address, here or at another broker. Raises Invalid."""
        inbox = InboxAddress.parse(address)
        if len(payload) > MESSAGE_BYTES_MAX:
            raise Invalid(f"a reply of {len(payload)} bytes is too large: at most {MESSAGE_BYTES_MAX}")
        if head.failure is not None and len(head.failure) > FAILURE_CHARACTERS_MAX:
            head = ReplyHead(head.failure[:FAILURE_CHARACTERS_MAX], head.kind[:FAILURE_CHARACTERS_MAX], head.attributes)
        if inbox.broker == self._cluster.membership.identity[0]:
            self._deliver_here(inbox, head, payload)
        else:
            self._send_on(inbox, head, payload)

    def _deliver_here(self, address: InboxAddress, head: ReplyHead, payload: bytes) -> None:
        inbox = self._open.get(address.token)
        if inbox is None or inbox.address != address:
            self.dropped += 1
            return
        inbox.left -= 1
        if not inbox.left:
            self.close(inbox)
        inbox.replied(head, payload, not inbox.left)

    def _send_on(self, address: InboxAddress, head: ReplyHead, payload: bytes) -> None:
        session = self._cluster.membership.find(address.broker)
        if session is None or session.incarnation != address.incarnation:
            self.dropped += 1
            return
        self._cluster.peers.reply(address, head, payload)
