"""How much is sent to one HTTP client at a time, and what is known of how fast it reads."""

from __future__ import annotations

from typing import Final

from pydanube.gateway.http.connection import HttpConnection
from pydanube.gateway.http.websocket_connection import WebSocketConnection
from pydanube.model.limits import KIB

PIECE_BYTES: Final = 64 * KIB
"""What is sent to one client at a time, unless a single message is larger."""

MADE_TIMES: Final = 3
"""In the memory of what clients have not received, a batch takes this many times its size: itself, the JSON that is
made of its messages, and what of that waits in the connection."""

ClientConnection = HttpConnection | WebSocketConnection
