"""The official client: who gets which messages."""

from __future__ import annotations

from itertools import chain

import pytest
from danube_client import OfficialClient

pytestmark = pytest.mark.process


def numbers(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def test_each_exclusive_subscription_gets_every_message_in_order(official: OfficialClient) -> None:
    assert official.run("delivery.fan_out", topic="/default/fan-out", count=24) == [numbers(24)] * 3


@pytest.mark.parametrize("reliable", [True, False])
def test_a_shared_subscription_deals_36_messages_to_3_consumers_12_each(
    official: OfficialClient, reliable: bool
) -> None:
    received = official.run(
        "delivery.round_robin", topic=f"/default/round-robin-{reliable}", count=36, reliable=reliable
    )
    assert [len(one) for one in received] == [12, 12, 12]
    assert sorted(chain(*received), key=int) == numbers(36)


def test_all_partitions_are_seen_and_messages_have_the_name_of_their_partition(official: OfficialClient) -> None:
    topic = "/default/partitioned"
    exclusive, *shared = official.run("delivery.partitions", topic=topic, partitions=3, count=30)
    for received in (exclusive, list(chain(*shared))):
        assert sorted((payload for payload, *_ in received), key=int) == numbers(30)
        places = [(where, offset) for _, where, offset in received]
        assert sorted(places) == [(f"{topic}-part-{one}", offset) for one in range(3) for offset in range(10)]
    for partition in range(3):
        offsets = [offset for _, where, offset in exclusive if where == f"{topic}-part-{partition}"]
        assert offsets == list(range(10))


def test_twenty_messages_of_100_kb_arrive_byte_for_byte(official: OfficialClient) -> None:
    sent, exclusive, shared = official.run("delivery.large_messages", topic="/default/large", count=20, size=100 * 1024)
    assert len(set(sent)) == 20
    assert exclusive == sent
    assert shared == sent
