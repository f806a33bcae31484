"""What is a name of a topic, a namespace or a subscription, and what is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydanube.broker.registry.records import TOPICS, topic_key, topic_of_key
from pydanube.model.errors import Invalid
from pydanube.model.limits import NAME_CHARACTERS_MAX
from pydanube.model.names import TopicAddress, TopicName, parse_namespace, parse_subscription
from pydanube.model.schemas import parse_subject

GOOD = ["orders", "orders.v1", "com.example.orders-v1_2", "1.2.3", "-.-", "_", "a" * NAME_CHARACTERS_MAX]
BAD = [
    "",
    ".",
    "..",
    ".orders",
    "orders.",
    "orders..v1",
    "orders v1",
    "orders.v1\n",
    "a/b",
    "größe",
    "orders.*",
    "a" * (NAME_CHARACTERS_MAX + 1),
    "a." * (NAME_CHARACTERS_MAX // 2) + "a",
]
words = st.from_regex(r"[A-Za-z0-9_-]{1,20}(\.[A-Za-z0-9_-]{1,20}){0,4}", fullmatch=True)


@pytest.mark.parametrize("name", GOOD)
def test_dots_are_part_of_a_name(name: str) -> None:
    assert parse_namespace(name) == name
    assert parse_subscription(name) == name
    assert TopicName.parse(f"/{name}/{name}") == TopicName(name, name)


@pytest.mark.parametrize("letter", ["ö", "o\u0308", "ж", "名", "ª", "٣"])
def test_letters_and_digits_of_names_are_ascii_which_the_refusal_says(letter: str) -> None:
    for parse in (parse_namespace, parse_subscription, parse_subject, lambda name: TopicName.parse(f"/default/{name}")):
        with pytest.raises(Invalid, match="ASCII letters, digits"):
            parse(f"orders{letter}")


@pytest.mark.parametrize("name", BAD)
def test_a_dot_is_never_first_last_or_doubled(name: str) -> None:
    for parse in (parse_namespace, parse_subscription):
        with pytest.raises(Invalid, match="single dots between them"):
            parse(name)
    for text in (f"/{name}/orders", f"/default/{name}"):
        with pytest.raises(Invalid, match=r"is not a name|is not a full name"):
            TopicName.parse(text)


@given(words, words)
def test_a_topic_is_found_again_by_its_text_and_by_its_metadata_key(namespace: str, topic: str) -> None:
    name = TopicName.parse(f"/{namespace}/{topic}")
    assert TopicName.parse(str(name)) == name
    assert topic_of_key(topic_key(name)) == name
    assert topic_key(name).startswith(f"{TOPICS}{namespace}/")


def test_topics_of_a_namespace_are_not_below_a_namespace_whose_name_begins_alike() -> None:
    assert not topic_key(TopicName.parse("/default.eu/orders")).startswith(f"{TOPICS}default/")


@pytest.mark.parametrize(
    ("topic", "reserved"),
    [
        ("orders.v1", False),
        ("orders.v1-part-0", True),
        ("orders-part-1.v1", False),
        ("orders.part-1", False),
        ("orders.v1-part-01", False),
    ],
)
def test_a_dot_changes_nothing_about_the_names_of_partitions(topic: str, reserved: bool) -> None:
    assert TopicName("default", topic).names_partition is reserved
    assert TopicName("default", topic).partition(7) == f"/default/{topic}-part-7"


@pytest.mark.parametrize(
    ("text", "base", "partition"),
    [
        ("/default/orders", None, 0),
        ("/default/orders-part-0", "orders", 0),
        ("/default/orders-part-12", "orders", 12),
        ("/default/orders-part-1-part-2", "orders-part-1", 2),
        ("/default/orders-part-01", None, 0),
        ("/default/-part-1", None, 0),
    ],
)
def test_an_address_says_which_partition_it_names(text: str, base: str | None, partition: int) -> None:
    address = TopicAddress.parse(text)
    assert address.base == (TopicName("default", base) if base else None)
    assert (address.partition, str(address), address.topic) == (partition, text, TopicName.parse(text))
    if address.base is not None:
        assert address.base.partition(partition) == text


def test_the_longest_topic_has_addresses_of_its_partitions() -> None:
    topic = TopicName("default", "t" * 200)
    assert TopicAddress.parse(topic.partition(3)) == TopicAddress(topic.partition(3), None, topic, 3)


@pytest.mark.parametrize(
    "text", ["orders-part-0", "/a/b/c-part-0", "/default/o-part-0\n", f"/d/o-part-{'9' * 5000}", 7]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(Invalid):
        TopicAddress.parse(text)
