"""Accepts the connections of a gRPC listener, and passes the bytes of each on to gRPC's own server.

```
 client ── TCP, TLS ──► Front: places, handshakes ── unix socket ──► server of grpc.aio
```

gRPC cannot count connections per address, nor hold back those whose handshake is not over, and it writes about each
that fails to stderr. So the listener accepts here, by the same rules as the others (`gateway.places`), and TLS ends
here. gRPC listens on a socket in a directory that nobody else can enter. Each connection to it is made from a name of
its own, which gRPC gives as the peer of a call; by it `Peers` knows the client's address and certificate.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import socket
import tempfile
from itertools import count
from pathlib import Path
from typing import Any, Final, cast

from pydanube.core.identity import PeerCertificate
from pydanube.gateway import peer_certificates
from pydanube.gateway.places import Places
from pydanube.model.addresses import host_port
from pydanube.model.errors import Unavailable
from pydanube.runtime.network import address_of, open_server
from pydanube.runtime.tasks import Tasks
from pydanube.runtime.tls_transport import TlsListening

_SOCKET_PATH_BYTES_MAX: Final = 80
"""Operating systems take a little more than 100; the names of connections need some of it."""


_DIRECTORY: Final = "danube-grpc-"
_UNLOCKED: Final = "new-"
"""Before its name, a directory that is not locked yet."""

LAST_BYTES_S: Final = 5.0
"""A connection that gRPC has ended, and whose client reads nothing, has its place for this long."""

LAST_ANSWER_S: Final = 0.5
"""How long a client that is disconnected has to read why."""


class Peers:
    """The clients of all gRPC listeners, by what gRPC says is the peer of a call."""

    def __init__(self) -> None:
        self._clients: dict[str, ClientSide] = {}

    def add(self, name: str, client: ClientSide) -> None:
        self._clients[f"unix:{name}"] = client

    def remove(self, name: str) -> None:
        self._clients.pop(f"unix:{name}", None)

    def address(self, context: Any) -> str:
        """Return the address of the client of a call as gRPC writes it: `ipv4:127.0.0.1:5000`. Raises Unavailable if it
        is gone."""
        peer: str = context.peer()
        return self._client(peer).address if peer.startswith("unix:") else peer

    def disconnect(self, context: Any) -> None:
        """Disconnect the client of a call once what was answered has been sent."""
        found = self._clients.get(context.peer())
        if found is not None:
            found.disconnect()

    def abort(self, context: Any) -> None:
        """End the connection that a call came on; what was sent and has not arrived is dropped."""
        if (client := self._clients.get(context.peer())) is not None:
            client.transport.abort()

    def certificate(self, context: Any) -> PeerCertificate | None:
        """Return the certificate that the client of a call has proven to hold. Raises Invalid and Unavailable."""
        peer: str = context.peer()
        if not peer.startswith("unix:"):
            return peer_certificates.of_call(context)
        return peer_certificates.of_transport(self._client(peer).transport)

    def _client(self, peer: str) -> ClientSide:
        found = self._clients.get(peer)
        if found is None:
            raise Unavailable("the connection was closed")
        return found


class Front:
    """The connections of one listener."""

    def __init__(
        self,
        places: Places,
        peers: Peers,
        tasks: Tasks,
        tls: TlsListening | None,
    ) -> None:
        self.places = places
        self.peers = peers
        self.tasks = tasks
        self._tls = tls
        self._numbers = count(1)
        self._directory = _PrivateDirectory()
        self._server: asyncio.Server | None = None
        self.clients: set[ClientSide] = set()

    @property
    def inner_address(self) -> str:
        """Where gRPC listens."""
        return f"{self._directory.path}/grpc"

    def new_name(self) -> str:
        return f"{self._directory.path}/{next(self._numbers)}"

    async def open(self, host: str, port: int) -> tuple[str, int]:
        """Listen, and return the address in use. Raises OSError where that is impossible."""
        self._server = await open_server(host, port, lambda: ClientSide(self), tls=self._tls)
        return address_of(self._server)

    def close(self) -> None:
        """Accept nothing more, and disconnect everybody."""
        if self._server is not None:
            self._server.close()
        for client in list(self.clients):
            client.transport.abort()
        self._directory.remove()


class _Side(asyncio.Protocol):
    """One of the two connections that belong together: what is received is written to the other one."""

    transport: asyncio.Transport
    other: _Side | None = None
    _ending: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            self.other.transport.write(data)

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._ending is not None:
            self._ending.cancel()
        if self.other is not None:
            self.other.end()

    def end(self) -> None:
        """Close the connection once the peer has read what was written; one that does not read is disconnected."""
        self.transport.close()
        self._abort_in(LAST_BYTES_S)

    def _abort_in(self, seconds: float) -> None:
        if self._ending is None:
            self._ending = asyncio.get_running_loop().call_later(seconds, self.transport.abort)


class ClientSide(_Side):
    """The connection to a client."""

    def __init__(self, front: Front) -> None:
        self.address = ""
        self._front = front
        self._host = ""
        self._name = ""
        self._has_place = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        host, port = (transport.get_extra_info("peername") or ("", 0))[:2]
        self._host = host
        if self._front.places.enter(host, transport.get_extra_info("handshake_s", 0.0)):
            self.transport.abort()
            return
        self._has_place = True
        self._front.clients.add(self)
        self.address = f"{'ipv6' if ':' in host else 'ipv4'}:{host_port(host, port)}"
        self.transport.pause_reading()
        self._front.tasks.spawn(self._connect(), "grpc connection")

    def disconnect(self) -> None:
        """Read nothing more, and disconnect the client after a moment, in which it gets its answers."""
        if not self.transport.is_closing():
            self.transport.pause_reading()
            self._abort_in(LAST_ANSWER_S)

    async def _connect(self) -> None:
        """Connect to gRPC's server from a name of its own, and begin to read."""
        front, self._name = self._front, self._front.new_name()
        front.peers.add(self._name, self)
        side = _Side()
        side.other = self
        try:
            inner = _connected(self._name, front.inner_address)
            await asyncio.get_running_loop().create_unix_connection(lambda: side, sock=inner)
        except OSError:
            self.transport.abort()
            return
        self.other = side
        if self.transport.is_closing():
            side.transport.abort()
        else:
            self.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._has_place:
            self._has_place = False
            self._front.clients.discard(self)
            self._front.peers.remove(self._name)
            self._front.places.leave(self._host)


def _connected(name: str, address: str) -> socket.socket:
    """Return a connection to a local socket from one of this name. Raises OSError."""
    inner = socket.socket(socket.AF_UNIX)
    try:
        inner.setblocking(False)  # whoever listens has room, or the connection is refused
        inner.bind(name)
        inner.connect(address)
        Path(name).unlink()  # the connection keeps its name
    except OSError:
        inner.close()
        raise
    return inner


class _PrivateDirectory:
    """A new directory that nobody else can enter. It is locked as long as this process has it, so that the next one
    removes what a killed process has left."""

    def __init__(self) -> None:
        prefix = f"{_UNLOCKED}{_DIRECTORY}"
        self.path = tempfile.mkdtemp(prefix=prefix)
        if len(self.path) > _SOCKET_PATH_BYTES_MAX:
            Path(self.path).rmdir()
            self.path = tempfile.mkdtemp(prefix=prefix, dir="/tmp")
        self._lock = os.open(self.path, os.O_RDONLY)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        parent = Path(self.path).parent
        for left in parent.glob(f"{_DIRECTORY}*"):
            _remove_unlocked(left)
        named = parent / Path(self.path).name.removeprefix(_UNLOCKED)
        self.path = str(Path(self.path).rename(named))

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _remove_unlocked(directory: Path) -> None:
    """Remove a directory unless a process has it, or it is of another user."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(directory, ignore_errors=True)
    except OSError:
        pass
    finally:
        os.close(descriptor)
