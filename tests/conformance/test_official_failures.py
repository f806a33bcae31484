"""The official client: messages that are not acked, by the failure policy of their subscription."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from brokers import BrokerProcess
from danube_client import OfficialClient
from grpc_peer import connect

pytestmark = pytest.mark.process

FIXED = 0
DEAD_LETTER, BLOCK, DROP = range(3)


def set_policy(broker: BrokerProcess, topic: str, **fields: Any) -> None:
    """Set the failure policy of the only subscription, as an administrator does."""
    policy = {
        "max_redelivery_count": 5,
        "ack_timeout_ms": 30_000,
        "base_redelivery_delay_ms": 100,
        "max_redelivery_delay_ms": 1000,
        "backoff_strategy": FIXED,
        "poison_policy": BLOCK,
        **fields,
    }

    async def call() -> None:
        async with connect(f"127.0.0.1:{broker.admin_port}") as admin:
            await admin.call(
                "danube_admin.TopicAdmin/SetSubscriptionFailurePolicy",
                topic=topic,
                subscription="subscription",
                failure_policy=policy,
            )

    asyncio.run(call())


def run_with_policy(
    official: OfficialClient, broker: BrokerProcess, name: str, topic: str, policy: dict[str, Any], **arguments: Any
) -> Any:
    with official.start(name, topic=topic, **arguments) as scenario:
        scenario.wait_for("subscribed")
        set_policy(broker, topic, **policy)
        scenario.tell("policy set")
        return scenario.result()


def test_a_nack_comes_again_after_its_delay_within_the_policy(
    official: OfficialClient, danube_broker: BrokerProcess
) -> None:
    delays = [None, 0, 600, 3_600_000]
    waited, payloads = run_with_policy(official, danube_broker, "failures.nack", "/default/nacks", {}, delays_ms=delays)
    assert payloads == ["again"] * 5 + ["last"]
    policy, none, asked, capped = waited
    assert policy >= 99, "the delay of the policy, less a rounding of the clock"
    assert none >= 99
    assert asked >= 599
    assert capped >= 999


def test_a_message_that_is_not_acked_in_time_comes_again(
    official: OfficialClient, danube_broker: BrokerProcess
) -> None:
    payloads = run_with_policy(
        official, danube_broker, "failures.ack_timeout", "/default/ack-timeouts", {"ack_timeout_ms": 1000}
    )
    assert payloads == ["slow", "slow", "slow", "last"]


def test_an_exhausted_message_becomes_a_dead_letter_with_all_attributes(
    official: OfficialClient, danube_broker: BrokerProcess
) -> None:
    topic, dead_topic = "/default/invoices", "/default/invoices-dlq"
    policy = {"max_redelivery_count": 2, "poison_policy": DEAD_LETTER, "dead_letter_topic": dead_topic}
    original, letter, payloads = run_with_policy(
        official, danube_broker, "failures.dead_letter", topic, policy, dead_topic=dead_topic, redeliveries=2
    )
    assert payloads == ["before", "poison", "poison", "poison", "after"]
    assert (letter["payload"], letter["key"]) == ("poison", "customer 7")
    assert letter["attributes"] == {
        "kind": "invoice",
        "x-original-topic": topic,
        "x-original-partition": "0",
        "x-original-subscription": "subscription",
        "x-original-topic-offset": str(original["offset"]),
        "x-original-producer-id": str(original["producer_id"]),
        "x-original-broker-addr": f"127.0.0.1:{danube_broker.port}",
        "x-poison-policy": "dead-letter",
        "x-delivery-attempt": "3",
        "x-failure-reason": "cannot be read",
        "x-dead-letter-id": f"{topic}/0/subscription/{original['offset']}",
    }


def test_an_exhausted_message_is_dropped(official: OfficialClient, danube_broker: BrokerProcess) -> None:
    policy = {"max_redelivery_count": 0, "poison_policy": DROP}
    payloads = run_with_policy(official, danube_broker, "failures.dropped", "/default/dropped", policy)
    assert payloads == ["poison", "after"]
