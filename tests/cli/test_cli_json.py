"""What commands print with --json is what REST answers, and what the client returns."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
from commands import danube

from pydanube import BlockingClient, connect_blocking
from pydanube.model.json_values import as_json

TOPIC, T = "/default/orders", "/topics/default/orders"
SUB = f"{T}/subscriptions/billing"

Asked = Callable[[BlockingClient], Any]

SAME: tuple[tuple[str, str, str, Asked], ...] = (
    ("auth whoami", "/access/whoami", "", lambda one: one.access.whoami()),
    (
        "auth can read /default",
        "/access/can?action=read&resource=/default",
        "",
        lambda one: one.access.can("read", "/default"),
    ),
    ("auth roles list", "/access/roles", "roles", lambda one: one.access.roles()),
    ("auth roles show producer", "/access/roles/producer", "", lambda one: one.access.role("producer")),
    ("auth bindings list", "/access/bindings", "bindings", lambda one: one.access.bindings()),
    ("auth bindings show b-etl", "/access/bindings/b-etl", "", lambda one: one.access.binding("b-etl")),
    ("auth keys list", "/access/keys", "keys", lambda one: one.access.keys()),
    ("auth quotas list", "/access/quotas", "quotas", lambda one: one.access.quotas()),
    ("auth quotas get user:alice", "/access/quotas/user:alice", "", lambda one: one.access.quota("user:alice")),
    ("cluster status", "/cluster", "", lambda one: one.describe_cluster()),
    ("cluster upgrade", "/cluster/upgrade", "", lambda one: one.describe_upgrade()),
    ("brokers list", "/cluster", "brokers", lambda one: one.describe_cluster().brokers),
    ("brokers describe", "/brokers", "brokers.0", lambda one: one.describe_broker()),
    ("brokers leftovers", "/leftovers", "leftovers", lambda one: one.leftovers()),
    ("namespaces list", "/namespaces", "names", lambda one: one.namespaces.list()),
    ("namespaces policies default", "/namespaces/default/policies", "", lambda one: one.policies("default")),
    (f"topics policies {TOPIC}", f"{T}/policies", "", lambda one: one.policies(TOPIC)),
    (f"topics describe {TOPIC}", T, "", lambda one: one.describe_topic(TOPIC)),
    (f"topics stats {TOPIC}", f"{T}/statistics", "", lambda one: one.topic_statistics(TOPIC)),
    ("topics stats --limit 100", "/topics", "", lambda one: one.topic_page()),
    (
        f"subscriptions describe {TOPIC} billing",
        f"{SUB}",
        "",
        lambda one: one.describe_subscription(TOPIC, "billing"),
    ),
    (
        f"subscriptions failure-policy {TOPIC} billing",
        f"{SUB}/failure-policy",
        "",
        lambda one: one.describe_subscription(TOPIC, "billing").failure_policy,
    ),
    ("schemas get orders", "/schemas/orders/versions/latest", "", lambda one: one.schemas.get("orders")),
    ("schemas get --global-id 1", "/schema-ids/global/1", "", lambda one: one.schemas.by_global_id(1)),
    ("schemas list", "/schemas", "names", lambda one: one.schemas.subjects()),
    ("schemas describe orders", "/schemas/orders", "", lambda one: one.schemas.describe("orders")),
    (f"schemas binding {TOPIC}", f"{T}/schema", "", lambda one: one.schemas.binding(TOPIC)),
    ("storage usage", "/storage", "", lambda one: one.storage_usage()),
    (f"storage segments {TOPIC}", f"{T}/partitions/0/segments", "segments", lambda one: one.storage_segments(TOPIC)),
    ("queries list", "/staged-queries", "queries", lambda one: one.staged_queries()),
)
"""A command, the path in REST, the part of that answer that the command prints, and what the client returns."""

LEFT_OUT = ("messages_per_s", "bytes_per_s", "acks_per_s", "since", "backlog_s", "waiting_s", "next")
"""What changes from one answer to the next, and the next page, which commands that print everything do not have."""


class Broker:
    """A broker that has one of everything, and its super user."""

    def __init__(self, serve: Any, token: str) -> None:
        self.serve = serve
        self.token = token
        self.http = serve.ready_line.strip().rpartition("http=")[2]

    def run(self, command: str) -> str:
        environment = {**os.environ, "DANUBE_TOKEN": self.token}
        done = danube(*command.split(), environment=environment, url=self.serve.url)
        assert done.returncode == 0, (command, done.stderr)
        return done.stdout

    def printed(self, command: str) -> Any:
        return json.loads(self.run(f"{command} --json"))

    def answered(self, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"authorization": f"Bearer {self.token}", "content-type": "application/json"}
        request = urllib.request.Request(f"http://{self.http}/api/v1{quote(path, safe='/?=&:')}", data, headers)
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)


@pytest.fixture(scope="module")
def broker(secured_serve: tuple[Any, str]) -> Broker:
    made = Broker(*secured_serve)
    for line in (
        "auth bindings create group:etl /shop/orders-* --role producer --id b-etl",
        "auth keys create service_account:loader --expires 90d",
        "auth quotas set user:alice --requests-per-s 100",
        f"topics create {TOPIC} --partitions 2",
        f"subscriptions create {TOPIC} billing --from earliest",
        "schemas register orders --format string",
        f"schemas bind {TOPIC} orders --policy none",
        f"topics policies {TOPIC} --set ttl_s=1h",
        f"produce {TOPIC} -m hello --partition 0",
        f"storage upload {TOPIC}",
    ):
        made.run(line)
    return made


def steady(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: steady(one) for name, one in value.items() if name not in LEFT_OUT}
    return [steady(one) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize(("command", "path", "part", "asked"), SAME, ids=[one[0] for one in SAME])
def test_a_command_prints_what_rest_answers_and_the_client_returns(broker, command, path, part, asked):
    told = steady(broker.printed(command))
    rest = steady(broker.answered(path))
    for name in filter(None, part.split(".")):
        rest = rest[int(name)] if name.isdecimal() else rest[name]
    with connect_blocking(broker.serve.url, token=broker.token) as client:
        python = json.loads(json.dumps(steady(as_json(asked(client)))))
    if isinstance(told, dict) and isinstance(rest, dict):
        told = {name: told[name] for name in rest}  # a command may add what it has asked besides
    assert told == rest
    assert python == rest


@pytest.mark.parametrize(
    ("command", "path", "body"),
    [
        (f"topics truncate {TOPIC} --before 0 --yes", f"{T}/truncate", {"offsets": [[0, 0], [1, 0]]}),
        (f"subscriptions seek {TOPIC} billing earliest", f"{SUB}/seek", {"position": "earliest"}),
    ],
)
def test_a_change_prints_what_rest_answers(broker, command, path, body):
    assert broker.printed(command) == broker.answered(path, body) == {"positions": [[0, 0], [1, 0]]}
