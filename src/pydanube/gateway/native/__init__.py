"""The native door: Danube's own binary protocol over TCP (docs/protocol.md).

server      listens, counts connections, keeps them alive, shuts down
connection  one client's session: handshake, publishing, flow control
requests    control requests and fetches: from a struct to a call of the broker and back
delivery    the broker's way to one consumer
chunks      where a batch stays that has arrived
"""

from .server import NativeServer
from .settings import NativeSettings

__all__ = ["NativeServer", "NativeSettings"]
