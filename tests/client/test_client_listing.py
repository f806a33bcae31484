"""Listings in pages over the client."""

from __future__ import annotations

from typing import Any

import pytest

from pydanube import Client, Invalid
from pydanube.client.admin.area import name_page
from pydanube.model.paging import NamePage, PageQuery

TOPIC = "/default/orders"


async def test_pages_and_summaries_of_topics(client: Client) -> None:
    for number in range(7):
        await client.create_topic(f"/default/t{number}")
    async with client.producer("/default/t3") as producer:
        await producer.send_many([b"x"] * 5)
    page = await client.topic_page(filter="/default/t*", sort="-published", limit=3)
    assert [(one.topic, one.published) for one in page.topics][:2] == [("/default/t3", 5), ("/default/t0", 0)]
    following = await client.topic_page("default", filter="/default/t*", sort="-published", limit=10, after=page.next)
    assert ([one.topic[-1] for one in following.topics], following.next) == (["2", "4", "5", "6"], "")
    assert [one.topic[-1] for one in await client.topic_summaries(filter="/default/t*")] == list("0123456")
    assert await client.topic_summaries("default", filter="nothing") == []


async def test_pages_of_names(client, topic):
    for name in ("a", "b", "c"):
        await client.create_namespace(name)
        await client.create_subscription(TOPIC, name)
    page = await client.namespace_page(limit=2, sort="-name")
    assert page.names == ["default", "c"]
    page = await client.namespace_page(limit=2, sort="-name", after=page.next)
    assert (page.names, page.next) == (["b", "a"], "")
    assert (await client.subscription_page(TOPIC, filter="[ab]")).names == ["a", "b"]


@pytest.mark.parametrize("wrong", [{"limit": 0}, {"sort": "size"}, {"filter": 7}, {"after": None}])
async def test_a_wrong_query_is_refused_before_it_is_sent(client: Client, wrong: dict[str, Any]) -> None:
    await client.close()
    with pytest.raises(Invalid):
        await client.topic_page(**wrong)


def test_a_page_is_cut_from_the_whole_list_of_an_earlier_broker() -> None:
    everything = NamePage([f"n{number}" for number in range(7)] + ["other"])
    listed, after = list[str](), ""
    while True:
        page = name_page(everything, PageQuery(filter="n*", sort="-name", limit=3, after=after))
        listed += page.names
        if not page.next:
            break
        after = page.next
    assert listed == [f"n{number}" for number in reversed(range(7))]
