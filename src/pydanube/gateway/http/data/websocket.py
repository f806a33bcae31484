"""A consumer over WebSocket. Both sides send JSON objects.

```
 broker  {"consumer": "6f1c...", "permits": 1000}            once, at the beginning
         {"messages": [{"id": "0.17.0", ...}, ...]}          one or more messages
         {"error": {...}}                                    a problem, as in answers; then the connection is closed
 client  {"ack": ["0.17.0"], "nack": ["0.18.0"], "delay_ms": 1000, "reason": "...", "permits": 100}
         {"reject": ["0.19.0"], "reason": "..."}
```

Every field of what the client sends may be absent. Without `permits` in the URL the broker sends as fast as the client
reads. With `permits=N` it sends N messages, and as many more as the client permits later. In both cases the broker
makes the next messages only when the connection has taken those before, so that a slow client stops the sending and
costs a bounded amount of memory.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Final

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from pydanube.gateway.http.errors import problem_of
from pydanube.gateway.rows import WINDOW_MESSAGES
from pydanube.model.errors import DanubeError, Invalid
from pydanube.model.failure import DELAY_MS_MAX

from .messages import PayloadForm
from .pieces import PIECE_BYTES
from .sessions import Session, Sessions

PERMITS_MAX: Final = 1_000_000
ATTACH_S: Final = 15.0
"""How often it is looked for partitions that were added."""

GOING_AWAY: Final = 1001
POLICY_VIOLATION: Final = 1008
INTERNAL_ERROR: Final = 1011


class ClientFrame(msgspec.Struct, forbid_unknown_fields=True):
    """What a client sends."""

    ack: list[str] = []
    nack: list[str] = []
    delay_ms: int | None = None
    """The delay of the redelivery of those in `nack`; None: that of the failure policy."""
    reason: str = ""
    reject: list[str] = []
    """These are not delivered again: the failure policy does with them what it does after the last try."""
    permits: int = 0
    """How many more messages the broker may send; allowed if the URL has `permits`."""


_read_frame: Final = msgspec.json.Decoder(ClientFrame).decode


@dataclass(eq=False)
class WebSocketConsumer:
    """One consumer on one WebSocket.

    `permits` is how many messages may be sent at first; None: there is no such limit.
    """

    websocket: WebSocket
    sessions: Sessions
    session: Session
    form: PayloadForm
    permits: int | None

    async def run(self) -> None:
        """Serve the client until it leaves, does something wrong, or the broker ends the consumer."""
        session, websocket = self.session, self.websocket
        code = GOING_AWAY
        try:
            with self.sessions.using(session):
                await websocket.accept()
                await websocket.send_json({"consumer": session.id, "permits": self.permits})
                async with asyncio.TaskGroup() as group:
                    receiving = group.create_task(self._receive_all())
                    sending = group.create_task(self._send_all())
                    await asyncio.wait((receiving, sending), return_when=asyncio.FIRST_COMPLETED)
                    session.end()
                    receiving.cancel()
        except* DanubeError as failed:
            error = failed.exceptions[0]
            assert isinstance(error, DanubeError)
            code = POLICY_VIOLATION if isinstance(error, Invalid) else INTERNAL_ERROR
            await self._report(error)
        except* WebSocketDisconnect:
            pass
        finally:
            self.sessions.close(session)
        await self._close(code)

    async def _report(self, error: DanubeError) -> None:
        with contextlib.suppress(WebSocketDisconnect):
            await self.websocket.send_text(msgspec.json.encode({"error": problem_of(error)}).decode())

    async def _close(self, code: int) -> None:
        websocket = self.websocket
        if WebSocketState.CONNECTED is websocket.client_state is websocket.application_state:
            await websocket.close(code)

    async def _receive_all(self) -> None:
        while True:
            message = await self.websocket.receive()
            if message["type"] == "websocket.disconnect":
                return
            text = message.get("text")
            self._handle(_parse(message["bytes"] if text is None else text))

    def _handle(self, frame: ClientFrame) -> None:
        subscriber = self.session.subscriber
        if frame.delay_ms is not None and not 0 <= frame.delay_ms <= DELAY_MS_MAX:
            raise Invalid(f"delay_ms={frame.delay_ms} is not allowed: use 0 to {DELAY_MS_MAX}")
        if frame.permits and self.permits is None:
            raise Invalid("permits are counted only if the URL has permits=N: connect again with it")
        if not 0 <= frame.permits <= PERMITS_MAX:
            raise Invalid(f"permits={frame.permits} is not allowed: use 1 to {PERMITS_MAX}")
        subscriber.settle(frame.ack, frame.nack, frame.delay_ms, frame.reason, frame.reject)
        if self.permits is not None and frame.permits:
            self.permits = min(PERMITS_MAX, self.permits + frame.permits)
            subscriber.wake()

    async def _send_all(self) -> None:
        session, subscriber = self.session, self.session.subscriber
        while not session.is_ending:
            permits = WINDOW_MESSAGES if self.permits is None else min(self.permits, WINDOW_MESSAGES)
            if permits:
                subscriber.want(permits)
            if permits and subscriber.has_messages:
                with subscriber.sending(self.websocket.state.connection):
                    await self._send_piece()
                continue
            await subscriber.wait_idle(ATTACH_S)
            subscriber.check()
            if not session.is_ending:
                await subscriber.attach_missing()

    async def _send_piece(self) -> None:
        """Send some messages in one frame; a large one is alone, and counts until the client has read it."""
        subscriber, size = self.session.subscriber, 0
        encoded: list[bytes] = []
        while size <= PIECE_BYTES and (self.permits is None or self.permits > 0):
            first = subscriber.first()
            if first is None or (encoded and first.size_bytes > PIECE_BYTES):
                break
            del first
            message = subscriber.take()
            assert message is not None
            encoded.append(message.encode(self.form))
            del message
            size += len(encoded[-1])
            if self.permits is not None:
                self.permits -= 1
        await self._send_frame(encoded)
        await self.websocket.state.connection.until_writable()
        subscriber.flushed()

    async def _send_frame(self, encoded: list[bytes]) -> None:
        text = (b'{"messages":[%s]}' % b",".join(encoded)).decode()
        encoded.clear()
        await self.websocket.send_text(text)


def _parse(data: str | bytes) -> ClientFrame:
    try:
        return _read_frame(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid(f"the message is not what is expected here: {error}") from None
    except RecursionError:
        raise Invalid("the message is nested too deeply") from None
