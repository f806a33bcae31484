"""Fetches of a range of offsets, and where a range is in object storage."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path

import pytest

import pydanube
from pydanube import Client, NotFound
from pydanube.client.connection.connection import Connection
from pydanube.client.connection.pending_answers import FetchAnswer
from pydanube.client.history.range_fetch import AHEAD, RangeFetch
from pydanube.client.history.reader import split_batches
from pydanube.codec.native import requests
from waiting import until

TOPIC = "/default/orders"
PAYLOAD = b"x" * 1000


async def publish(client: Client, count: int, batch: int = 50) -> None:
    async with client.producer(TOPIC, batch_messages=batch) as producer:
        for _ in range(count // batch):
            await producer.send_many([PAYLOAD] * batch)


async def remake(client: Client, count: int) -> None:
    """Delete the topic and create another of the same name, with so many messages."""
    await client.delete_topic(TOPIC)
    await publish(client, count)


async def answers(client: Client, span: RangeFetch, fetch_bytes: int = 200_000) -> list[FetchAnswer]:
    return [answer async for answer in client.fetches(span, fetch_bytes=fetch_bytes)]


def offsets(found: list[FetchAnswer]) -> list[int]:
    return [int(offset) for answer in found for batch in split_batches(answer.body) for offset in batch.offsets]


async def test_a_range_is_fetched_in_consecutive_answers(client: Client) -> None:
    await publish(client, 1000)
    found = await answers(client, RangeFetch(TOPIC, 0, 120, 900))
    assert len(found) > 3
    assert offsets(found) == list(range(100, found[-1].next_offset))
    assert found[-1].next_offset >= 900
    assert {(one.start_offset, one.end_offset) for one in found} == {(0, 1000)}


async def test_little_is_fetched_of_a_large_topic_for_a_small_range(client: Client) -> None:
    await publish(client, 2000)
    (only,) = await answers(client, RangeFetch(TOPIC, 0, 500, 510), fetch_bytes=4 << 20)
    assert len(only.body) < 100_000


async def test_a_range_beyond_the_end_ends_where_the_log_does(client: Client) -> None:
    await publish(client, 100)
    found = await answers(client, RangeFetch(TOPIC, 0, 50, 500))
    assert offsets(found) == list(range(50, 100))
    assert found[-1].next_offset == 100


async def test_an_empty_range_sends_no_fetch(client: Client) -> None:
    await publish(client, 100)
    assert await answers(client, RangeFetch(TOPIC, 0, 40, 40)) == []


async def test_another_topic_of_the_same_name_is_not_found(client: Client) -> None:
    await publish(client, 50)
    same = (await client.describe_topic(TOPIC)).topic_id
    assert offsets(await answers(client, RangeFetch(TOPIC, 0, 0, 50, same))) == list(range(50))
    with pytest.raises(NotFound, match=f"it had the id {same + 1}, and has {same} now"):
        await answers(client, RangeFetch(TOPIC, 0, 0, 50, same + 1))
    with pytest.raises(NotFound, match="/default/none"):
        await answers(client, RangeFetch("/default/none", 0, 0, 50))


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> list[FetchAnswer]:
    """Return a list to which the answer of every fetch is added."""
    seen: list[FetchAnswer] = []
    fetch = Connection.fetch

    async def noticed(connection: Connection, request: requests.Fetch) -> FetchAnswer:
        seen.append(await fetch(connection, request))
        return seen[-1]

    monkeypatch.setattr(Connection, "fetch", noticed)
    return seen


async def test_a_topic_that_is_recreated_in_the_middle_of_a_range_ends_it(
    client: Client, answered: list[FetchAnswer]
) -> None:
    await publish(client, 1000)
    meant = (await client.describe_topic(TOPIC)).topic_id
    async with aclosing(client.fetches(RangeFetch(TOPIC, 0, 0, 1000, meant), fetch_bytes=1)) as found:
        await anext(found)
        await until(lambda: len(answered) == 1 + AHEAD + 1)  # no further fetch before the next answer is taken
        await remake(client, 1000)
        for _ in range(AHEAD + 1):
            await anext(found)
        with pytest.raises(NotFound, match="was deleted and made anew since"):
            await anext(found)


async def test_a_topic_that_another_client_recreated_is_noticed_at_the_first_fetch(url: str, client: Client) -> None:
    await publish(client, 50)
    meant = (await client.describe_topic(TOPIC)).topic_id
    await answers(client, RangeFetch(TOPIC, 0, 0, 50, meant))  # what was looked up for this is known still
    async with pydanube.connect(url) as other:
        await remake(other, 50)
    with pytest.raises(NotFound, match=f"it had the id {meant}"):
        await answers(client, RangeFetch(TOPIC, 0, 0, 50, meant))


async def test_iterating_may_end_early(client: Client) -> None:
    """What is left running would be noticed by the fixture of this directory."""
    await publish(client, 1000)
    async with aclosing(client.fetches(RangeFetch(TOPIC, 0, 0, 1000), fetch_bytes=1)) as found:
        first = await anext(found)
    assert first.next_offset < 1000


async def test_histories_name_the_segments_of_a_range(client: Client, tmp_path: Path) -> None:
    for _ in range(2):
        await publish(client, 500)
        await client.upload_storage(TOPIC)
    await publish(client, 100)
    wanted = [(TOPIC, 0, 0, 1100), (TOPIC, 0, 600, 700), (TOPIC, 0, 0, 500), (TOPIC, 0, 1000, 1100)]
    found = await client.storage_histories(wanted)
    topic_id = (await client.describe_topic(TOPIC)).topic_id
    assert {(one.store, one.topic_id) for one in found} == {((tmp_path / "data" / "objects").as_uri(), topic_id)}
    assert [[(one.first_offset, one.end_offset) for one in history.segments] for history in found] == [
        [(0, 500), (500, 1000)],
        [(500, 1000)],
        [(0, 500)],
        [],
    ]
    assert {one.topic_id for history in found for one in history.segments} == {topic_id}


async def test_histories_of_missing_topics_and_partitions_are_empty(client: Client) -> None:
    await publish(client, 100)
    await client.upload_storage(TOPIC)
    found = await client.storage_histories([("/default/none", 0, 0, 10), (TOPIC, 0, 0, 100), (TOPIC, 7, 0, 10)])
    assert [len(one.segments) for one in found] == [0, 1, 0]
