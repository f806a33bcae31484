"""Reads keys and ranges of keys of etcd, those that are asked for at the same time in one request.

Invariants
    a read sees everything that was acknowledged before it was asked for
    if a joined request is refused, each read is sent alone: the refusal is about one of them, or about all together
"""

from __future__ import annotations

import asyncio
from copy import copy
from typing import Any, Final

import grpc

from pydanube.metadata.joining import Asked, Group, Joining
from pydanube.model.errors import DanubeError
from pydanube.runtime.tasks import Tasks

from .client import EtcdClient
from .messages import RANGE, TXN, RequestOp, TxnRequest

JOINED_MAX: Final = 12
"""Reads in one request. Each returns about a page at most, and all of them must fit into one reply."""


class _Read(Asked[Any]):
    def __init__(self, request: Any) -> None:
        super().__init__()
        self.request = request


class _Reads(Group[_Read]):
    def __init__(self, client: EtcdClient) -> None:
        super().__init__()
        self._client = client

    def add(self, asked: _Read) -> bool:
        if len(self.members) == JOINED_MAX:
            return False
        self.members.append(asked)
        return True

    async def send(self) -> None:
        if len(self.members) == 1 or not await self._is_read():
            await asyncio.gather(*map(self._send_alone, self.members))

    async def _is_read(self) -> bool:
        request = TxnRequest(success=[RequestOp(request_range=one.request) for one in self.members])
        try:
            reply = await self._client.call(TXN, request, reads=True)
        except grpc.aio.AioRpcError:
            return False
        except DanubeError as error:
            for one in self.members:
                one.fail(copy(error))
            return True
        for one, response in zip(self.members, reply.responses, strict=True):
            response.response_range.header.CopyFrom(reply.header)
            one.succeed(response.response_range)
        return True

    async def _send_alone(self, asked: _Read) -> None:
        if asked.answer.done():
            return
        try:
            asked.succeed(await self._client.call(RANGE, asked.request, reads=True))
        except (grpc.aio.AioRpcError, DanubeError) as error:
            asked.fail(error)


class JoinedReads:
    """The reads of one store that are on their way."""

    def __init__(self, client: EtcdClient) -> None:
        self._tasks = Tasks()
        self._joining = Joining(self._tasks, lambda: _Reads(client))

    async def read(self, request: Any) -> Any:
        """Send a RangeRequest for the newest revision and return the reply. Raises as `EtcdClient.call` does."""
        asked = _Read(request)
        self._joining.ask(asked)
        return await asked.answer

    async def close(self) -> None:
        """Give up what is on its way. Nobody waits for it any more."""
        await self._tasks.close()
