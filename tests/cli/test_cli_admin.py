"""`danube topics`, `namespaces`, `subscriptions` and `brokers` against a real broker process."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.process


def answer(done) -> object:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_life_of_a_topic(danube, topic):
    assert (
        danube("topics", "create", topic, "--partitions", "3", "--ack-level", "written").stdout == f"created {topic}\n"
    )
    assert topic in danube("topics", "list").stdout.splitlines()
    assert topic in answer(danube("topics", "list", "--namespace", "default", "--json"))
    described = answer(danube("topics", "describe", topic, "--json"))
    assert (described["name"], described["config"]["partitions"]) == (topic, 3)
    assert described["config"]["ack_level"] == "written"
    assert [one["index"] for one in described["partitions"]] == [0, 1, 2]
    table = danube("topics", "describe", topic).stdout
    assert "written" in table
    assert "end offset" in table
    assert danube("topics", "delete", topic, "--yes").stdout == f"deleted {topic}\n"
    assert topic not in danube("topics", "list").stdout.splitlines()


def test_a_topic_that_exists_is_refused_unless_that_is_fine(danube, topic):
    danube("topics", "create", topic)
    again = danube("topics", "create", topic)
    assert again.returncode == 1
    assert topic in again.stderr
    fine = danube("topics", "create", topic, "--if-not-exists", "--json")
    assert answer(fine) == {"topic": topic, "created": False}
    assert fine.stderr == ""
    other = danube("topics", "create", topic, "--if-not-exists", "--partitions", "4")
    assert other.returncode == 0
    assert "created with other settings: non-partitioned, reliable, durable acks" in other.stderr


def test_a_url_that_is_none_is_wrong_usage(danube):
    done = danube("topics", "list", "--url", "ftp://127.0.0.1:6655")
    assert done.returncode == 2
    assert "danube://" in done.stderr


def test_a_topic_that_does_not_exist_is_one_clear_line(danube):
    done = danube("topics", "describe", "/default/no-such-topic")
    assert done.returncode == 1
    assert "/default/no-such-topic" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_life_of_a_namespace(danube):
    assert danube("namespaces", "create", "shop").stdout == "created shop\n"
    assert {"default", "shop"} <= set(answer(danube("namespaces", "list", "--json")))
    danube("topics", "create", "/shop/orders")
    assert answer(danube("namespaces", "describe", "shop", "--json")) == {
        "namespace": "shop",
        "topics": ["/shop/orders"],
    }
    full = danube("namespaces", "delete", "shop", "--yes")
    assert full.returncode == 1
    danube("topics", "delete", "/shop/orders", "--yes")
    assert danube("namespaces", "delete", "shop", "--yes").stdout == "deleted shop\n"
    assert danube("namespaces", "describe", "shop").returncode == 1


def test_the_life_of_a_subscription(danube, topic):
    danube("produce", topic, stdin="0\n1\n2\n3\n")
    assert danube("subscriptions", "create", topic, "billing", "--from", "1").stdout == f"created billing on {topic}\n"
    (listed,) = answer(danube("subscriptions", "list", topic, "--json"))
    assert (listed["topic"], listed["subscription"], listed["type"]) == (topic, "billing", "exclusive")
    assert (listed["backlog"], listed["consumers"]) == (3, 0)
    described = answer(danube("subscriptions", "describe", topic, "billing", "--json"))
    assert (described["type"], described["lag"], described["partitions"][0]["position"]) == ("exclusive", 3, 1)
    moved = danube("subscriptions", "seek", topic, "billing", "--to", "3")
    assert moved.stdout == f"moved billing on {topic} to 3 (partition 0: offset 3)\n", moved.stderr
    assert danube("consume", topic, "-s", "billing", "--count", "1").stdout == "3\n"
    assert "billing" in danube("subscriptions", "describe", topic, "billing").stdout
    assert danube("subscriptions", "delete", topic, "billing", "--yes").stdout == f"deleted billing of {topic}\n"
    assert answer(danube("subscriptions", "list", topic, "--json")) == []


def test_brokers(danube):
    (only,) = answer(danube("brokers", "list", "--json"))
    assert only["state"] == "ok"
    assert answer(danube("brokers", "describe", "--json"))["node"] == only["name"]
    assert only["name"] in danube("brokers", "describe").stdout


def test_the_status_of_a_cluster_of_one(danube, served):
    about = answer(danube("cluster", "status", "--json"))
    (only,) = about["brokers"]
    assert (about["coordinator"], only["name"], only["state"]) == (only["name"], only["name"], "ok")
    assert only["addresses"]["native"] == served.url.removeprefix("danube://")
    assert only["since"] > 0
    shown = danube("cluster", "status").stdout
    assert f"{only['name']} *" in shown
    assert about["cluster"] in shown


def test_a_broker_alone_is_upgraded(danube):
    about = answer(danube("cluster", "upgrade", "--json"))
    (only,) = about["brokers"]
    assert (about["level"], about["highest"], about["behind"]) == (only["level"], only["level"], [])
    assert answer(danube("cluster", "upgrade", "--finish", "--json")) == about, "there is nothing to raise"
    shown = danube("cluster", "upgrade").stdout
    assert f"feature level {about['level']}, can be raised to {about['highest']}" in shown
    assert only["name"] in shown


def test_the_description_of_a_broker_names_its_listeners(danube, served):
    told = answer(danube("brokers", "describe", "--json"))["addresses"]
    assert told["native"] == served.url.removeprefix("danube://")
    assert f"native address  {told['native']}" in danube("brokers", "describe").stdout
