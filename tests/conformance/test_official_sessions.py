"""The official client: consumers and producers that go away, come back, take over, or are refused."""

from __future__ import annotations

import asyncio

import pytest
from brokers import BrokerProcess
from danube_client import OfficialClient
from grpc_peer import connect

pytestmark = pytest.mark.process


def test_an_unacked_message_comes_again_until_it_is_acked(official: OfficialClient) -> None:
    lives = official.run("sessions.reconnection", topic="/default/reconnection")
    assert lives == [["kept"], ["kept"], ["kept"], ["new"]]


def test_what_a_shared_consumer_did_not_ack_goes_to_another(official: OfficialClient) -> None:
    first, second = official.run("sessions.hand_over", topic="/default/hand-over")
    assert first == second == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize("how", ["kill", "freeze"])
def test_a_consumer_of_the_same_name_takes_over_what_is_unacked(official: OfficialClient, how: str) -> None:
    """From a client that was killed, and from one that hangs and keeps its connection."""
    topic = f"/default/take-over-{how}"
    with official.start("sessions.hold", topic=topic, count=3) as held:
        ids = held.wait_for("holding")
        getattr(held, how)()
        assert official.run("sessions.take_over", topic=topic) == [ids, "2"]


def test_an_exclusive_subscription_has_one_consumer_until_it_leaves(official: OfficialClient) -> None:
    assert official.run("sessions.exclusive", topic="/default/exclusive") == ["PERMISSION_DENIED", ["second"]]


def test_refusals_name_the_problem(official: OfficialClient) -> None:
    assert official.run("sessions.refusals", topic="/default/refusals") == {
        "a consumer of no topic": "DanubeError",
        "another dispatch strategy": "FAILED_PRECONDITION",
        "partitions of a plain topic": "UnrecoverableError",
        "a bad name": "INVALID_ARGUMENT",
    }


def test_producers_of_one_name_share_an_id_and_both_publish(official: OfficialClient) -> None:
    ids, received = official.run("sessions.one_name", topic="/default/one-name")
    assert len(set(ids)) == 1
    payloads = [payload for payload, *_ in received]
    for place in range(2):
        of_one = [payload for payload in payloads if payload.startswith(f"{place}-")]
        assert of_one == [f"{place}-{number}" for number in range(10)]
    assert payloads[-1] == "2-0"
    assert {(number, name) for _, number, name in received} == {(ids[0], "producer")}


def test_health_checks_know_who_is_there(official: OfficialClient) -> None:
    answers = official.run("sessions.health", topic="/default/health")
    assert answers == {"producer": "OK", "consumer": "OK", "no producer": "CLOSE", "no consumer": "CLOSE"}


def test_a_consumer_whose_subscription_is_removed_subscribes_again(
    official: OfficialClient, danube_broker: BrokerProcess
) -> None:
    topic = "/default/told-to-close"

    async def unsubscribe() -> None:
        async with connect(f"127.0.0.1:{danube_broker.admin_port}") as admin:
            await admin.call("danube_admin.TopicAdmin/Unsubscribe", topic=topic, subscription="subscription")

    with official.start("sessions.told_to_close", topic=topic) as scenario:
        scenario.wait_for("subscribed")
        asyncio.run(unsubscribe())
        scenario.tell("removed")
        assert scenario.result() is True
