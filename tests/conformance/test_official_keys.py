"""The official client: key-shared subscriptions."""

from __future__ import annotations

import pytest
from danube_client import OfficialClient

pytestmark = pytest.mark.process


@pytest.mark.parametrize(("partitions", "reliable"), [(0, True), (0, False), (2, True)])
def test_each_key_goes_to_one_consumer_in_order(official: OfficialClient, partitions: int, reliable: bool) -> None:
    topic = f"/default/keys-{partitions}-{reliable}"
    received = official.run("keys.affinity", topic=topic, count=60, partitions=partitions, reliable=reliable)
    assert sorted(int(payload) for one in received for _, payload in one) == list(range(60))
    owners: dict[str, set[int]] = {}
    for place, one in enumerate(received):
        for key in {key for key, _ in one}:
            owners.setdefault(key, set()).add(place)
            of_key = [int(payload) for other, payload in one if other == key]
            assert of_key == sorted(of_key)
    assert len(owners) == 12
    assert all(len(places) == 1 for places in owners.values())


def test_filters_choose_keys_and_what_none_accepts_waits(official: OfficialClient) -> None:
    europe, others, late = official.run("keys.filters", topic="/default/key-filters")
    assert europe == [["eu-west", "1"], ["eu-north", "5"]]
    assert others == [["us-1", "2"], ["asia-south", "3"], ["us-2", "6"]]
    assert sorted(late) == [["mars-1", "0"], ["us-12", "4"]]


def test_acks_in_reverse_order_leave_nothing_behind(official: OfficialClient) -> None:
    first, second = official.run("keys.reverse_acks", topic="/default/reverse-acks", count=12)
    assert [payload for _, payload in first] == [str(number) for number in range(12)]
    assert second == [["user-0", "last"]]
