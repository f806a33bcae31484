"""Staged writes over the wire: what is staged is invisible, what is committed comes once."""

import msgspec
from native_peer import TOPIC, Peer, door, one_batch

from pydanube.codec.native import frames, requests
from pydanube.codec.native.frames import Kind


def stage_of(batches: dict[tuple[str, int], list[bytearray]], **changes) -> tuple[bytes, list[bytes]]:
    sections, body = [], []
    for (topic, partition), ones in batches.items():
        sections.append(requests.StagedSection(topic, partition, [len(one) for one in ones]))
        for one in ones:
            body += [bytes(one), bytes(-len(one) % 64)]
    stage = requests.Stage("query", "run", 0, 0, 0, 0, sections)
    return requests.encode(msgspec.structs.replace(stage, **changes)), body


async def send_stage(peer: Peer, batches: dict[tuple[str, int], list[bytearray]], **changes) -> str:
    head, body = stage_of(batches, **changes)
    correlation = peer.next_correlation()
    peer.write(frames.encode_front(Kind.STAGE, head, sum(map(len, body)), correlation), *body)
    answer = await peer.receive(Kind.RESPONSE)
    return requests.decode(answer.head, requests.Staged).stage


async def messages_of(peer: Peer, topic: str = TOPIC, partition: int = 0) -> int:
    found = await peer.request(requests.FindOffset(topic, partition, requests.Start("latest")), requests.Offset)
    return found.offset


async def test_what_is_staged_is_seen_by_nobody_until_it_is_committed():
    async with door() as one, await Peer.greet(one) as peer:
        await peer.request(requests.CreateTopic(TOPIC, partitions=2), requests.Done)
        stages = [
            await send_stage(peer, {(TOPIC, 0): [one_batch(count=3)], (TOPIC, 1): [one_batch(count=2)] * 2}),
            await send_stage(peer, {(TOPIC, 1): [one_batch(count=5)]}),
        ]
        assert [await messages_of(peer, partition=index) for index in (0, 1)] == [0, 0]

        commit = requests.CommitStages("query", "run", 0, stages, wait_ms=10_000)
        assert await peer.request(commit, requests.StagesCommitted) == requests.StagesCommitted(False, True)
        assert [await messages_of(peer, partition=index) for index in (0, 1)] == [3, 9]

        assert await peer.request(commit, requests.StagesCommitted) == requests.StagesCommitted(True, True)
        assert [await messages_of(peer, partition=index) for index in (0, 1)] == [3, 9]
