"""The native listener: Danube's own binary protocol over TCP (docs/protocol.md).

server          listens, counts connections, ends the ones that are dead, shuts down
session         one client: handshake, publishing, consuming, flow control
requests        control requests: from a struct to a call of the broker and back
fetches         fetch requests: reading by offset
delivery        sends deliveries to one consumer
answer_share    counts the memory of fetch answers that a client has not read yet
chunks          decides whether a received batch stays in the receive buffer or is copied
peers           requests from this broker to the others of its cluster
"""

from .peers import NativePeers
from .server import NativeServer

__all__ = ["NativePeers", "NativeServer"]
