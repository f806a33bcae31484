"""Producer ids that stand for the broker's own dead letters and for staged queries: no client publishes with them, on
no listener, with authentication and without it."""

from __future__ import annotations

from pathlib import Path

import http_peer
import pytest
from danube_peer import PeerProducer, Refused, grpc_broker
from letter_writer import broker_for_letters, open_peer, write_letters
from native_peer import TOPIC, Peer
from test_http_publishing import publish
from test_native_staging import stage

from pydanube import testing
from pydanube.codec.batch import Batch, encode
from pydanube.codec.native import requests
from pydanube.codec.native.frames import FrameKind
from pydanube.core.access import ANONYMOUS
from pydanube.core.staging import STAGED_PRODUCER
from pydanube.model.dead_letters import LETTER_PRODUCER
from pydanube.model.errors import DanubeError, Denied, Invalid
from pydanube.model.names import TopicName
from pydanube.model.positions import Position
from pydanube.operations import staging

RESERVED = [LETTER_PRODUCER, STAGED_PRODUCER | 7]
CLUSTER_TOKEN = "c1uster-token-0123456789abcdef-0123456789"


def signed(producer_id: int) -> bytearray:
    return encode([b"forged"], attributes=[{"x-original-topic": TOPIC}], publish_times=1, producer_id=producer_id)


async def outcome(peer: Peer, handle: int, producer_id: int) -> DanubeError | None:
    """Publish a batch with this producer id, and return the error that came instead of an answer."""
    peer.publish(handle, signed(producer_id))
    try:
        await peer.receive(FrameKind.PUBLISHED)
    except DanubeError as error:
        return error
    return None


async def stored_ids(broker, topic: str = TOPIC) -> list[int]:
    fetched = await broker.fetch(ANONYMOUS, TopicName.parse(topic), 0, Position("earliest"), 1 << 20, 0)
    return [Batch.trust(view).header.producer_id for view in fetched.batches]


@pytest.mark.parametrize("producer_id", RESERVED)
async def test_a_native_producer_signs_with_its_own_id(peer, topic, producer_id):
    producer = await peer.open_producer()
    error = await outcome(peer, producer.handle, producer_id)
    assert isinstance(error, Invalid) and "is signed by producer" in error.message


@pytest.mark.parametrize("producer_id", RESERVED)
async def test_who_says_to_be_a_broker_has_to_show_it(native, peer, topic, producer_id):
    """Without authentication everybody may ask for what brokers ask each other; the name of a broker is no secret."""
    session = native.broker._cluster.membership.session
    for name, proof in (("", ""), (session.name, ""), (session.name, "x" * 22), ("another", session.proof)):
        asked = requests.OpenForwarder(topic=TOPIC, partition=0, broker=name, proof=proof)
        opened = await peer.request(asked, requests.ProducerOpened)
        assert isinstance(await outcome(peer, opened.handle, producer_id), Invalid)
        assert await outcome(peer, opened.handle, 0) is None, "other batches are taken as before"
    assert set(await stored_ids(native.broker)) == {0}


async def test_a_broker_writes_dead_letters_and_never_for_a_staged_query(tmp_path: Path) -> None:
    async with broker_for_letters(tmp_path) as url:
        peer = await open_peer(url)
        await peer.create_topic()
        await write_letters(url, TOPIC, [b"letter"], [{"x-original-topic": TOPIC}])
        with pytest.raises(Invalid, match="stands for a staged query"):
            await write_letters(url, TOPIC, [b"forged"], [{}], producer_id=STAGED_PRODUCER | 7)
        peer.close()


async def test_with_authentication_only_the_cluster_token_opens_a_forwarder(tmp_path: Path) -> None:
    given = {"auth_enabled": True, "auth_cluster_token": CLUSTER_TOKEN}
    async with testing._server(tmp_path, given) as server:
        admin = testing._with_admin_key(server).admin_key
        peer = await open_peer(server.url, admin)
        await peer.create_topic()
        with pytest.raises(Denied, match="is no broker of this cluster"):
            await peer.request(requests.OpenForwarder(topic=TOPIC, partition=0), requests.ProducerOpened)
        broker = await open_peer(server.url, CLUSTER_TOKEN)
        opened = await broker.request(requests.OpenForwarder(topic=TOPIC, partition=0), requests.ProducerOpened)
        assert await outcome(broker, opened.handle, LETTER_PRODUCER) is None
        assert isinstance(await outcome(broker, opened.handle, STAGED_PRODUCER | 7), Invalid)
        peer.close()
        broker.close()


@pytest.mark.parametrize("producer_id", RESERVED)
async def test_what_is_staged_gets_the_id_of_its_query(native, peer, topic, producer_id):
    name = await stage(peer, {(TOPIC, 0): [signed(producer_id)]})
    commit = staging.CommitStages(query="query", run="run", batch_id=0, stages=[name], wait_ms=10_000)
    await peer.request(commit, staging.StagesCommitted)
    (known,) = [known.record async for known in native.broker.staging._records.all()]
    assert await stored_ids(native.broker) == [known.producer_id] != [producer_id]


@pytest.mark.parametrize("producer_id", RESERVED)
async def test_over_grpc_a_reserved_id_is_no_producer(producer_id: int) -> None:
    async with grpc_broker() as broker, broker.peer() as peer:
        await peer.producer(TOPIC, "billing")
        with pytest.raises(Refused):
            await PeerProducer(peer, TOPIC, "billing", producer_id).send(b"forged")


async def test_over_http_no_id_can_be_given() -> None:
    async with http_peer.open_listener() as there:
        topic = TopicName.parse(TOPIC)
        body = {"messages": [{"payload": "one", "producer_id": LETTER_PRODUCER}]}
        assert (await publish(there, body)).status == 400
        assert (await publish(there, {"messages": [{"payload": "one"}]})).status == 200
        assert all(one < STAGED_PRODUCER for one in await stored_ids(there.broker, str(topic)))
