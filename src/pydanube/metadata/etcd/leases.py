"""Keeps leases alive, over one stream for all of them."""

from __future__ import annotations

import asyncio
from typing import Final

from pydanube.model.errors import NotFound, Unavailable
from pydanube.runtime.clock import Clock

from .client import PAUSE_SECONDS, EtcdClient, EtcdStream, MemberFailed
from .messages import LEASE_KEEP_ALIVE, LeaseKeepAliveRequest

ANSWER_SECONDS: Final = 3.0
"""How long a member may take to answer; then another one is asked."""


class LeaseKeeper:
    """Sends one keep-alive at a time: etcd answers them in order, and a broker has few leases."""

    def __init__(self, client: EtcdClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._stream: EtcdStream | None = None
        self._lock = asyncio.Lock()

    def close(self) -> None:
        if self._stream is not None:
            self._stream.cancel()

    async def keep_alive(self, lease: int) -> int:
        """Restart the lease's time and return it in seconds. Raises NotFound when the lease has ended.

        It is asked again, at other members too, until an answer comes or the time of a request is over: to do it twice
        does no harm. When cancelled, it may have happened.
        """
        why = ""
        try:
            async with asyncio.timeout(self._client.place.timeout_s), self._lock:
                while True:
                    try:
                        return await self._attempt(lease)
                    except MemberFailed as lost:
                        why = str(lost)
                        await self._clock.sleep(PAUSE_SECONDS)
        except TimeoutError:
            raise Unavailable(
                f"{self._client.place}: lease {lease} could not be kept alive: {why or 'no answer'}"
            ) from None

    async def _attempt(self, lease: int) -> int:
        stream, self._stream = self._stream, None  # an attempt that is cancelled leaves no stream behind
        try:
            if stream is None:
                stream = await self._client.open_stream(LEASE_KEEP_ALIVE)
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    await stream.send(LeaseKeepAliveRequest(ID=lease))
                    reply = await stream.receive()
            except TimeoutError:
                raise stream.fail("no answer to a keep-alive") from None
        except BaseException:
            if stream is not None:
                stream.cancel()
            raise
        self._stream = stream
        if lease != reply.ID:
            raise stream.fail(f"an answer for lease {reply.ID} instead of {lease}")
        if reply.TTL <= 0:
            raise NotFound(f"lease {lease} has ended, or never was")
        return int(reply.TTL)
