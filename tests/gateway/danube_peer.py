"""A client of the Danube gRPC API that sends exactly what a test wants sent, and a broker for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import grpc
import grpc.aio

import waiting
from pydanube import testing
from pydanube.gateway.grpc.messages import API, SCHEMA
from pydanube.model.names import TopicName

TIMEOUT_S = waiting.HANG_S

EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED = range(4)
PRODUCER, CONSUMER = range(2)
OK, CLOSE = range(2)


class Refused(Exception):
    """A call ended with a status other than OK."""

    def __init__(self, error: grpc.aio.AioRpcError) -> None:
        super().__init__(f"{error.code().name}: {error.details()}")
        self.code = error.code().name
        self.details = error.details() or ""


class DanubePeer:
    """One channel to a broker."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._channel = grpc.aio.insecure_channel(
            address, [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        )
        self.requests = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    async def call(self, path: str, **fields: Any) -> Any:
        """Call `Service/Method` of the package `danube`, and return its reply. Raises Refused."""
        method = _method(path)
        self.requests += 1
        request_id, request = self.requests, method.request(**fields)
        if "request_id" in method.request.DESCRIPTOR.fields_by_name:
            request.request_id = request_id
        stub = self._channel.unary_unary(
            method.path, method.request.SerializeToString, response_deserializer=method.reply.FromString
        )
        try:
            reply = await stub(request, timeout=TIMEOUT_S, wait_for_ready=True)
        except grpc.aio.AioRpcError as error:
            raise Refused(error) from None
        assert getattr(reply, "request_id", request_id) == request_id
        return reply

    async def producer(self, topic: str, name: str = "p", reliable: bool = True, **fields: Any) -> PeerProducer:
        reply = await self.call(
            "ProducerService/CreateProducer",
            topic_name=topic,
            producer_name=name,
            dispatch_strategy=int(reliable),
            **fields,
        )
        assert reply.producer_name == name
        return PeerProducer(self, topic, name, reply.producer_id)

    async def subscribe(
        self, topic: str, subscription: str = "s", name: str = "c", kind: int = SHARED, filters: tuple[str, ...] = ()
    ) -> int:
        """Subscribe without opening a stream, and return the consumer's id."""
        reply = await self.call(
            "ConsumerService/Subscribe",
            topic_name=topic,
            subscription=subscription,
            consumer_name=name,
            subscription_type=kind,
            key_filters=filters,
        )
        assert reply.consumer_name == name
        number: int = reply.consumer_id
        return number

    async def consumer(self, topic: str, subscription: str = "s", name: str = "c", **options: Any) -> PeerStream:
        """Subscribe, and open the stream."""
        return self.stream(await self.subscribe(topic, subscription, name, **options), subscription)

    def stream(self, consumer_id: int, subscription: str = "s") -> PeerStream:
        return PeerStream(self, consumer_id, subscription)

    async def health(self, client: int, number: int) -> int:
        status: int = (await self.call("HealthCheck/HealthCheck", client=client, id=number)).status
        return status

    async def partitions(self, topic: str) -> list[str]:
        return list((await self.call("Discovery/TopicPartitions", topic=topic)).partitions)


class PeerProducer:
    def __init__(self, peer: DanubePeer, topic: str, name: str, number: int) -> None:
        self.peer = peer
        self.topic = topic
        self.name = name
        self.number = number

    async def send(self, payload: bytes, key: str | None = None, **fields: Any) -> None:
        await self.peer.call(
            "ProducerService/SendMessage",
            msg_id=API["MsgID"](producer_id=self.number, topic_name=self.topic),
            payload=payload,
            producer_name=self.name,
            routing_key=key,
            **{"publish_time": 1_700_000_000_123, **fields},
        )


class PeerStream:
    """The stream of a consumer."""

    def __init__(self, peer: DanubePeer, consumer_id: int, subscription: str) -> None:
        self.peer = peer
        self.number = consumer_id
        self.subscription = subscription
        method = _method("ConsumerService/ReceiveMessages")
        stub = peer._channel.unary_stream(
            method.path, method.request.SerializeToString, response_deserializer=method.reply.FromString
        )
        self._call = stub(method.request(consumer_id=consumer_id), wait_for_ready=True)

    async def opened(self) -> None:
        """Wait until the broker has answered that the stream is open, which it does before the first message."""
        async with asyncio.timeout(TIMEOUT_S):
            await self._call.initial_metadata()

    async def receive(self) -> Any:
        """Return the next message. Raises Refused when the stream ends."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                message = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise Refused(error) from None
        assert message is not grpc.aio.EOF, "a stream never ends well"
        return message

    async def receive_many(self, count: int, ack: bool = True) -> list[Any]:
        messages = []
        for _ in range(count):
            messages.append(await self.receive())
            if ack:
                await self.ack(messages[-1])
        return messages

    async def payloads(self, count: int, ack: bool = True) -> list[bytes]:
        return [message.payload for message in await self.receive_many(count, ack)]

    async def ack(self, message: Any) -> None:
        await self.peer.call("ConsumerService/Ack", msg_id=message.msg_id, subscription_name=self.subscription)

    async def nack(self, message: Any, **fields: Any) -> None:
        fields = {"msg_id": message.msg_id, "subscription_name": self.subscription, **fields}
        await self.peer.call("ConsumerService/Nack", **fields)

    async def end(self) -> Refused:
        """Wait until the broker ends the stream, and return how."""
        try:
            await self.receive()
        except Refused as refused:
            return refused
        raise AssertionError("a message came instead of the end")

    def cancel(self) -> None:
        """Go away, as a client that is killed does."""
        self._call.cancel()


class GrpcBroker:
    """A broker with all its listeners."""

    def __init__(self, server: Any) -> None:
        self.server = server
        self.broker = server._native._resources.broker
        self.address = "{}:{}".format(*server.grpc_address)
        self.url: str = server.url

    def peer(self) -> DanubePeer:
        return DanubePeer(self.address)

    def live(self, topic: str, subscription: str = "s", partition: int = 0) -> Any:
        """Return a running subscription."""
        name = TopicName.parse(topic)
        return self.broker._partitions.of(name)[partition].subscriptions[subscription]

    until = staticmethod(waiting.until)

    async def attached(self, topic: str, count: int, subscription: str = "s") -> None:
        """Wait until this many consumers can receive."""
        members = self.live(topic, subscription).dispatcher
        await self.until(lambda: sum(member.can_receive for member in members.members) == count)


@asynccontextmanager
async def grpc_broker(data_dir: Path | None = None, **settings: object) -> AsyncIterator[GrpcBroker]:
    async with testing._server(data_dir, {"grpc_data": True, **settings}) as server:
        yield GrpcBroker(server)


def _method(path: str) -> Any:
    service, _, method = path.partition("/")
    return SCHEMA.methods(f"danube.{service}")[method]
