"""The answer to a long poll: waits for messages, then sends them as one JSON object.

An answer of up to PIECE_BYTES is sent whole; a longer one in pieces, each after the client has read enough of those
before, so that a slow client costs little memory.
"""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pydanube.model.limits import MIB

from .messages import PayloadForm
from .pieces import PIECE_BYTES, ClientConnection
from .sessions import Session, Sessions

ANSWER_BYTES: Final = 1 * MIB
"""An answer that has this much in payloads gets no further message."""

_BEGIN: Final = b'{"messages":['
_END: Final = b"]}"
_HEADERS: Final = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]


class LongPoll(Response):
    """Answers with the messages that come within `wait_s`: at least one, or none at the end of that time."""

    def __init__(
        self,
        sessions: Sessions,
        session: Session,
        messages_max: int,
        wait_s: float,
        form: PayloadForm,
    ) -> None:
        self._sessions = sessions
        self._session = session
        self._messages_max = messages_max
        self._wait_s = wait_s
        self._form = form

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        session = self._session
        subscriber = session.subscriber
        with self._sessions.using(session):
            await subscriber.attach_missing()
            subscriber.resume()
            subscriber.want(self._messages_max)
            try:
                is_there = subscriber.has_messages or await self._wait(receive)
                subscriber.check()
            finally:
                subscriber.pause()
            if is_there:
                connection: ClientConnection = scope["state"]["connection"]
                try:
                    with subscriber.sending(connection):
                        await self._answer(send, connection)
                finally:
                    subscriber.flushed()

    async def _wait(self, receive: Receive) -> bool:
        """Wait for messages; return False if the client is gone."""
        session, is_gone = self._session, False

        async def watch() -> None:
            nonlocal is_gone
            while (await receive())["type"] != "http.disconnect":
                pass
            is_gone = True
            session.subscriber.wake()

        async with asyncio.TaskGroup() as group:
            watching = group.create_task(watch())
            if not session.is_ending:
                await session.subscriber.wait(self._wait_s)
            watching.cancel()
        return not is_gone

    async def _answer(self, send: Send, connection: ClientConnection) -> None:
        subscriber = self._session.subscriber
        pieces, size, payload_bytes, count, is_begun = [_BEGIN], 0, 0, 0, False
        while count < self._messages_max and payload_bytes < ANSWER_BYTES:
            message = subscriber.take()
            if message is None:
                break
            pieces += [b",", message.encode(self._form)] if count else [message.encode(self._form)]
            size += len(pieces[-1])
            payload_bytes += message.size_bytes
            count += 1
            if size > PIECE_BYTES:
                if not is_begun:
                    await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
                    is_begun = True
                piece, pieces, size = b"".join(pieces), [], 0
                await send({"type": "http.response.body", "body": piece, "more_body": True})
                del piece, message
                await connection.until_writable()
                subscriber.flushed()
        body = b"".join([*pieces, _END])
        if not is_begun:
            length = (b"content-length", str(len(body)).encode())
            await send({"type": "http.response.start", "status": 200, "headers": [*_HEADERS, length]})
        await send({"type": "http.response.body", "body": body})
