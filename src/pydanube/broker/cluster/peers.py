"""Requests from one broker to another, over the native protocol."""

from __future__ import annotations

from typing import Protocol, TypeVar

import msgspec

from pydanube.codec.native.requests import Request
from pydanube.model.errors import Unavailable
from pydanube.model.messages import Published
from pydanube.model.names import TopicName
from pydanube.model.replies import InboxAddress, ReplyHead

AnswerT = TypeVar("AnswerT", bound=msgspec.Struct)


class Peers(Protocol):
    """The other brokers of the cluster, by name. Raises what the other broker answered, and Unavailable, naming the
    broker, if it has no session or does not answer."""

    async def request(self, broker: str, request: Request, answer: type[AnswerT]) -> AnswerT:
        """Send one request and return its answer. Cancelled: the other broker may have carried it out."""
        ...

    async def publish(self, broker: str, topic: TopicName, partition: int, batch: memoryview) -> Published:
        """Have the owner of a partition append a batch, and return where it is. The batch keeps its own producer id,
        epoch and sequence. Cancelled: it may have been appended."""
        ...

    def reply(self, inbox: InboxAddress, head: ReplyHead, payload: bytes) -> None:
        """Send a reply on to the broker of its inbox, once, without an answer. It is dropped if that broker is another
        incarnation, cannot be reached, or does not take what it is sent."""
        ...


class NoPeers:
    """Of a broker that is no part of a cluster."""

    async def request(self, broker: str, request: Request, answer: type[AnswerT]) -> AnswerT:
        raise Unavailable(f"there is no broker {broker!r}: this one is no part of a cluster")

    async def publish(self, broker: str, topic: TopicName, partition: int, batch: memoryview) -> Published:
        raise Unavailable(f"there is no broker {broker!r}: this one is no part of a cluster")

    def reply(self, inbox: InboxAddress, head: ReplyHead, payload: bytes) -> None:
        """Drop it: there is no such broker."""
