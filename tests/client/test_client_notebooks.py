"""What notebooks show: the values, escaped and shortened, whoever wrote them."""

from __future__ import annotations

from html.parser import HTMLParser

import pydanube

TOPIC = "/default/orders"
HOSTILE = "<script>alert('x')</script>&\"<b>"


class Page(HTMLParser):
    """Collects the tags and the text of a page, as a browser takes them."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.texts: list[str] = []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert attrs == []
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


PLAIN = {"table", "caption", "thead", "tbody", "tr", "th", "td", "p"}


def texts(shown: str) -> list[str]:
    page = Page(shown)
    assert page.tags <= PLAIN
    return page.texts


async def test_messages_and_batches_are_shown_escaped(client, topic):
    async with client.producer(TOPIC, name=HOSTILE) as producer:
        for number in range(25):
            payload = b"\xff" * 1_000_000 if number else HOSTILE.encode()
            producer.send_nowait(payload, key=HOSTILE, attributes={HOSTILE: HOSTILE})
    async with client.reader(TOPIC, start="earliest") as reader:
        batch = await reader.receive_batch()
        shown = texts(batch[0]._repr_html_())
        assert shown[0] == "/default/orders[0]"
        assert shown.count(HOSTILE) == 3  # key, producer, payload
        whole = texts(batch._repr_html_())
        assert whole[:5] == ["/default/orders[0]", "offset", "key", "publish_time", "payload"]
        assert HOSTILE in whole
        assert len(batch._repr_html_()) < 40_000


async def test_rows_are_shown_escaped_and_only_the_first(client, topic):
    async with client.producer(TOPIC) as producer:
        await producer.send_many([HOSTILE.encode()] * 25)
    shown = texts((await client.read(TOPIC, columns=["offset", "payload"]))._repr_html_())
    assert shown[:3] == [TOPIC, "offset", "payload"]
    assert shown.count(HOSTILE) == 20
    assert shown[-1] == "20 of 25 rows"


async def test_descriptions_are_tables(client: pydanube.Client) -> None:
    await client.create_topic(TOPIC, partitions=3)
    await client.create_subscription(TOPIC, "billing")
    topic = texts((await client.describe_topic(TOPIC))._repr_html_())
    assert topic[0] == "TopicDescription"
    assert {"partitions", "start_offset", "billing"} <= set(topic)
    assert "SubscriptionDescription" in texts((await client.describe_subscription(TOPIC, "billing"))._repr_html_())
    assert "BrokerDescription" in texts((await client.describe_broker())._repr_html_())
