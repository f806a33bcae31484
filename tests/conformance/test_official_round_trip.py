"""The official Danube client, unmodified, against a broker in a process of its own."""

from __future__ import annotations

import pytest
from danube_client import OfficialClient

pytestmark = pytest.mark.process


@pytest.mark.parametrize("reliable", [True, False])
def test_what_the_official_client_publishes_it_receives(official: OfficialClient, reliable: bool) -> None:
    topic = f"/default/round-trip-{reliable}"
    payloads = [f"message {number}" for number in range(20)]
    received = official.run("round_trip.publish_and_receive", topic=topic, payloads=payloads, reliable=reliable)
    assert [(payload, attributes) for payload, attributes, *_ in received] == [
        (payload, {"number": payload}) for payload in payloads
    ]
    assert {(where, producer) for *_, where, producer in received} == {(topic, "producer")}
    if reliable:
        assert [offset for _, _, offset, *_ in received] == list(range(20))
