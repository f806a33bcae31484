"""Staged writes over the wire: what is staged is invisible, what is committed comes once, garbage harms nobody."""

import asyncio
import random

import msgspec
import pytest
from native_peer import TOPIC, Between, Peer, neighbour, one_batch, open_listener

from pydanube.codec.native import frames, requests
from pydanube.codec.native.frames import FrameKind
from pydanube.model.errors import Corrupt, DanubeError, Invalid, NotFound, StaleEpoch
from pydanube.model.positions import Position
from pydanube.model.quotas import Quota, QuotaSubject
from pydanube.operations import access, staging, topics

Batches = dict[tuple[str, int], list[bytearray]]


def stage_frame(batches: Batches, correlation: int, **changes) -> bytes:
    sections, body = [], b""
    for (topic, partition), ones in batches.items():
        sections.append(requests.StagedSection(topic, partition, [len(one) for one in ones]))
        body += b"".join(bytes(one) + bytes(-len(one) % 64) for one in ones)
    stage = msgspec.structs.replace(requests.Stage("query", "run", 0, 0, 0, 0, sections), **changes)
    return frames.encode_front(FrameKind.STAGE, requests.encode(stage), len(body), correlation) + body


async def stage(peer: Peer, batches: Batches, **changes) -> str:
    correlation = peer.next_correlation()
    peer.write(stage_frame(batches, correlation, **changes))
    answer = await peer.receive(FrameKind.RESPONSE)
    assert answer.correlation == correlation
    return requests.decode(answer.head, requests.Staged).stage


async def end_of(peer: Peer, partition: int = 0) -> int:
    ask = topics.FindOffset(topic=TOPIC, partition=partition, position=Position("latest"))
    return (await peer.request(ask, topics.Offset)).offset


async def test_what_is_staged_is_seen_by_nobody_until_it_is_committed(peer):
    await peer.request(topics.CreateTopic(topic=TOPIC, partitions=2), requests.Done)
    stages = [
        await stage(peer, {(TOPIC, 0): [one_batch(count=3)], (TOPIC, 1): [one_batch(count=2)] * 2}),
        await stage(peer, {(TOPIC, 1): [one_batch(count=5)]}),
    ]
    assert [await end_of(peer, index) for index in (0, 1)] == [0, 0]
    commit = staging.CommitStages(query="query", run="run", batch_id=0, stages=stages, wait_ms=10_000)
    assert await peer.request(commit, staging.StagesCommitted) == staging.StagesCommitted(False, True)
    assert [await end_of(peer, index) for index in (0, 1)] == [3, 9]
    assert await peer.request(commit, staging.StagesCommitted) == staging.StagesCommitted(True, True)
    assert [await end_of(peer, index) for index in (0, 1)] == [3, 9]


async def test_stages_count_for_quotas_whatever_lengths_the_client_gives(native, peer):
    async with await Peer.greet(native) as other:
        await peer.create_topic()
        batch = one_batch()
        await peer.request(
            access.SetQuota(subject=QuotaSubject.parse("/default"), changes={"publish_bytes_per_s": len(batch)}), Quota
        )
        await stage(peer, {(TOPIC, 0): [batch]})
        late = peer.next_correlation()
        peer.write(stage_frame({(TOPIC, 0): [batch]}, late))
        wrong = requests.Stage("query", "run", 0, 0, 0, 0, [requests.StagedSection(TOPIC, 0, [-(1 << 40)])])
        refused = other.next_correlation()
        other.write(frames.encode(FrameKind.STAGE, requests.encode(wrong), refused))
        assert (await other.receive(FrameKind.ERROR)).correlation == refused
        assert (await peer.receive(FrameKind.RESPONSE)).correlation == late  # about a second later
        found = await peer.request(access.GetQuota(subject=QuotaSubject.parse("/default")), Quota)
        assert found.used.publish_bytes_per_s > 0


async def test_stages_that_wait_for_a_quota_are_dropped_with_their_connection(native):
    async with await Peer.greet(native) as other:
        memory = native.server._resources.door.publish_memory
        await other.create_topic()
        await other.request(
            access.SetQuota(subject=QuotaSubject.parse("/default"), changes={"publish_bytes_per_s": 1}), Quota
        )
        async with await Peer.greet(native) as peer:
            await stage(peer, {(TOPIC, 0): [one_batch()]})
            for _ in range(5):
                peer.write(stage_frame({(TOPIC, 0): [one_batch()]}, peer.next_correlation()))
            await native.until(lambda: native.broker.throttle.waiting == 5)
            assert memory.used_bytes > 0
        await native.until(lambda: native.broker.throttle.waiting == 0 and memory.used_bytes == 0)


async def test_queries_are_listed_and_forgotten(peer, topic):
    name = await stage(peer, {(TOPIC, 0): [one_batch()]})
    commit = staging.CommitStages(query="query", run="run", batch_id=0, stages=[name], wait_ms=10_000)
    await peer.request(commit, staging.StagesCommitted)
    listed = await peer.request(staging.ListStagedQueries(), staging.StagedQueries)
    assert [(query.query, query.run, query.last_batch_id) for query in listed.queries] == [("query", "run", 0)]
    await peer.request(staging.ForgetStagedQuery(query="query"), requests.Done)
    assert (await peer.request(staging.ListStagedQueries(), staging.StagedQueries)).queries == []
    with pytest.raises(NotFound, match="query"):
        await peer.request(staging.ForgetStagedQuery(query="query"), requests.Done)


async def test_a_fenced_run_hears_so_on_its_own_request(peer, topic):
    await stage(peer, {(TOPIC, 0): [one_batch()]})
    await stage(peer, {(TOPIC, 0): [one_batch()]}, run="next")
    with pytest.raises(StaleEpoch, match="next"):
        await stage(peer, {(TOPIC, 0): [one_batch()]})
    assert await end_of(peer) == 0


@pytest.mark.parametrize(
    ("batches", "changes", "error"),
    [
        ({("no topic", 0): [one_batch()]}, {}, Invalid),
        ({("/default/unknown", 0): [one_batch()]}, {}, NotFound),
        ({(TOPIC, 7): [one_batch()]}, {}, NotFound),
        ({(TOPIC, -1): [one_batch()]}, {}, NotFound),
        ({(TOPIC, 0): [bytearray(192)]}, {}, Corrupt),
        ({(TOPIC, 0): [bytearray(10)]}, {}, Invalid),
        ({(TOPIC, 0): []}, {}, Invalid),
        ({}, {}, Invalid),
        ({(TOPIC, 0): [one_batch()]}, {"batch_id": 2**31}, Invalid),
        ({(TOPIC, 0): [one_batch()]}, {"query": "x" * 201}, Invalid),
        ({(TOPIC, 0): [one_batch()]}, {"attempt": -5}, Invalid),
        ({(TOPIC, 0): [one_batch()]}, {"sections": [requests.StagedSection(TOPIC, 0, [2**62])]}, Invalid),
        ({(TOPIC, 0): [one_batch()]}, {"sections": [requests.StagedSection(TOPIC, 0, [128] * 50_000)]}, Invalid),
    ],
)
async def test_a_stage_that_makes_no_sense_is_refused_and_the_connection_goes_on(
    native, peer, topic, batches, changes, error
):
    with pytest.raises(error):
        await stage(peer, batches, **changes)
    await stage(peer, {(TOPIC, 0): [one_batch()]})
    assert native.sessions[0].publish_bytes == 0


async def test_a_head_that_is_no_map_is_refused_and_the_connection_goes_on(peer, topic):
    peer.write(frames.encode(FrameKind.STAGE, b"\xc1", 5))
    assert isinstance(await peer.error(5), Invalid)
    await stage(peer, {(TOPIC, 0): [one_batch()]})


async def test_a_stage_without_a_correlation_ends_the_connection(peer):
    peer.write(stage_frame({(TOPIC, 0): [one_batch()]}, 0))
    assert isinstance(await peer.last_words(), Invalid)


async def test_garbage_in_stages_harms_neither_the_broker_nor_others(native):
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    async with neighbour(native):
        for _ in range(150):
            async with await Peer.greet(native) as peer:
                frame = bytearray(stage_frame({(TOPIC, 0): [one_batch(count=chance.randint(1, 50))]}, 1))
                for _ in range(chance.randint(1, 6)):
                    frame[chance.randrange(8, len(frame))] = chance.randrange(256)
                peer.write(frame)
                answer = await peer.receive(FrameKind.RESPONSE, FrameKind.ERROR)
                if answer.kind is FrameKind.ERROR:
                    error = requests.decode(answer.head, requests.Failure).error()
                    assert isinstance(error, DanubeError) and "internal" not in error.message


class Slow(Between):
    """Stages wait until they are let go."""

    def __init__(self, broker) -> None:
        super().__init__(broker)
        self.go = asyncio.Event()

    @property
    def staging(self):
        return self

    async def stage(self, *arguments):
        await self.go.wait()
        return await self._broker.staging.stage(*arguments)


async def test_stages_count_for_the_publish_window():
    async with open_listener(wrap=Slow, publish_window_bytes=10_000) as one, await Peer.greet(one) as peer:
        await peer.create_topic()
        peer.write(stage_frame({(TOPIC, 0): [one_batch(payload_bytes=2_000)]}, 1))
        peer.write(stage_frame({(TOPIC, 0): [one_batch(payload_bytes=2_000)]}, 2))
        assert "publish window" in str(await peer.last_words())


async def test_a_stage_that_is_larger_than_the_window_may_go_alone():
    async with open_listener(publish_window_bytes=10_000) as one, await Peer.greet(one) as peer:
        await peer.create_topic()
        await stage(peer, {(TOPIC, 0): [one_batch(payload_bytes=20_000)]})


async def test_a_stage_in_flight_is_answered_while_the_listener_closes():
    async with open_listener(wrap=Slow, drain_s=5) as one, await Peer.greet(one) as peer:
        await peer.create_topic()
        peer.write(stage_frame({(TOPIC, 0): [one_batch()]}, 3))
        await one.until(lambda: one.sessions[0].publish_bytes > 0)
        one.sessions[0].drain()
        await peer.receive(FrameKind.GOAWAY)
        peer.write(stage_frame({(TOPIC, 0): [one_batch()]}, 4))
        assert "shutting down" in (await peer.error(4)).message
        one.broker.go.set()
        assert (await peer.receive(FrameKind.RESPONSE)).correlation == 3
