"""`danube auth` against a broker with authentication, and one without."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from access_broker import AccessBroker
from commands import Ended, danube


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AccessBroker]:
    """A broker with authentication, where callers without credentials are a super user."""
    broker = AccessBroker(tmp_path_factory.mktemp("secured") / "data")
    yield broker
    broker.kill()


def danube_auth(broker, *arguments: str) -> Ended:
    return danube("auth", *arguments, "--url", broker.url)


def run(broker, *arguments: str, code: int = 0) -> str:
    done = danube_auth(broker, *arguments)
    assert done.returncode == code, done.stderr
    return done.stderr if code and not done.stdout else done.stdout


def test_roles_are_created_listed_changed_and_deleted(secured):
    assert run(secured, "roles", "create", "loader", "produce", "create") == "created loader: produce, create\n"
    lines = run(secured, "roles", "list").splitlines()
    assert lines[0].split() == ["role", "actions", "built", "in"]
    assert lines[-1].split() == ["loader", "produce,", "create", "no"]
    shown = json.loads(run(secured, "roles", "show", "loader", "--json"))
    assert shown["actions"] == ["produce", "create"] and not shown["built_in"]
    changed = json.loads(run(secured, "roles", "change", "loader", "read", "--expected", shown["version"], "--json"))
    assert changed["actions"] == ["read"]
    assert "has changed" in run(secured, "roles", "change", "loader", "read", "--expected", shown["version"], code=1)
    assert "is built in" in run(secured, "roles", "delete", "admin", "--yes", code=1)
    assert "add --yes" in run(secured, "roles", "delete", "loader", code=2)
    assert run(secured, "roles", "delete", "loader", "--yes") == "deleted loader\n"
    assert "'fly' is not one of" in run(secured, "roles", "create", "loader", "fly", code=2)


def test_bindings_say_who_may_do_what_and_can_explains_it(secured):
    made = run(secured, "bindings", "create", "group:etl", "/shop/orders-*", "--role", "producer", "--id", "b-etl")
    assert made == "created b-etl: group:etl has producer on /shop/orders-*\n"
    asked = ("can", "produce", "/shop/orders-eu", "--principal", "service_account:loader")
    assert run(secured, *asked, code=1).startswith("no: no binding of service_account:loader gives a role with produce")
    yes = run(secured, *asked, "--group", "etl")
    assert yes == "yes: binding 'b-etl' gives group:etl the role 'producer' on /shop/orders-*\n"
    told = json.loads(run(secured, *asked, "--group", "etl", "--json"))
    assert (told["allowed"], told["binding"], told["role"]) == (True, "b-etl", "producer")
    assert json.loads(run(secured, *asked, "--json", code=1))["allowed"] is False
    assert json.loads(run(secured, "bindings", "list", "--subject", "group:etl", "--json")) == [
        {"id": "b-etl", "subject": "group:etl", "roles": ["producer"], "resource": "/shop/orders-*"}
    ]
    assert "/shop/orders-*" in run(secured, "bindings", "show", "b-etl")
    assert run(secured, "bindings", "delete", "b-etl", "--yes") == "deleted b-etl\n"
    assert "names no resource" in run(secured, "bindings", "create", "group:etl", "shop", "--role", "producer", code=2)


def test_a_new_key_is_alone_on_stdout_and_listed_with_dates_but_no_secret(secured):
    done = danube_auth(secured, "keys", "create", "service_account:loader", "--expires", "90d", "--comment", "nightly")
    assert done.returncode == 0, done.stderr
    (secret,) = done.stdout.splitlines()
    prefix, key_id, _ = secret.split("_", 2)
    assert prefix == "dnb" and key_id in done.stderr and secret not in done.stderr
    listed = run(secured, "keys", "list")
    assert key_id in listed and "nightly" in listed and secret not in listed
    (one,) = json.loads(run(secured, "keys", "list", "--principal", "service_account:loader", "--json"))
    assert one["id"] == key_id and one["expires_at"] > one["created_at"]
    short = danube_auth(secured, "keys", "create", "user:brief", "--expires", "1s").stderr.split()[2]
    deadline = time.monotonic() + 60
    while "(expired)" not in (brief := run(secured, "keys", "list", "--principal", "user:brief")):
        assert time.monotonic() < deadline, brief
    assert short in brief and "(expired)" not in run(secured, "keys", "list", "--principal", "service_account:loader")
    made = json.loads(run(secured, "keys", "create", "--json"))
    assert made["secret"].startswith(f"dnb_{made['key']['id']}_") and made["key"]["expires_at"] == 0
    for key in (key_id, made["key"]["id"]):
        assert run(secured, "keys", "revoke", key, "--yes") == f"revoked {key}\n"
    assert "there is no API key" in run(secured, "keys", "revoke", key_id, "--yes", code=1)
    assert "give one of them" in run(secured, "keys", "create", "--expires", "1d", "--expires-at", "2099-01-01", code=2)


def test_whoami_tells_who_one_is(secured):
    assert "everything: a super user" in run(secured, "whoami")
    told = json.loads(run(secured, "whoami", "--json"))
    assert (told["principal"], told["method"], told["expires_at"]) == ("user:anonymous", "none", 0)


def test_a_broker_without_authentication_names_the_setting(served):
    assert "set auth.enabled = true" in run(served, "roles", "list", code=1)
    assert "this broker has no authentication" in run(served, "whoami")
    assert run(served, "can", "administer", "/").startswith("yes: ")


def test_quotas_are_set_listed_shown_and_deleted(secured):
    made = run(secured, "quotas", "set", "alice", "--publish-bytes-per-s", "10MB", "--connections-max", "20")
    assert made == "set the quota of user:alice: connections_max=20, publish_bytes_per_s=10000000\n"
    run(secured, "quotas", "set", "user:alice", "--connections-max", "0")
    shown = json.loads(run(secured, "quotas", "get", "user:alice", "--json"))
    assert (shown["connections_max"], shown["publish_bytes_per_s"]) == (0, 10_000_000)
    assert shown["used"]["stored_bytes"] == 0 and shown["version"]
    run(secured, "quotas", "set", "/default", "--stored-bytes-max", "1GiB", "--json")
    lines = run(secured, "quotas", "list").splitlines()
    assert lines[0].split() == ["subject", "connections", "requests/s", "publish/s", "fetch/s", "stored"]
    assert [one.split()[0] for one in lines[1:]] == ["/default", "user:alice"] and "1.0 GiB (0 B)" in lines[1]
    assert [one["subject"] for one in json.loads(run(secured, "quotas", "list", "--json"))] == [
        "/default",
        "user:alice",
    ]
    assert "no limit is named" in run(secured, "quotas", "set", "user:alice", code=2)
    assert "'group:ops' has no quota" in run(secured, "quotas", "set", "group:ops", "--requests-per-s", "1", code=2)
    assert "use a size" in run(secured, "quotas", "set", "user:alice", "--fetch-bytes-per-s", "fast", code=2)
    assert "requests_per_s" in run(secured, "quotas", "set", "user:alice", "--requests-per-s", "-1", code=1)
    assert "is a namespace" in run(secured, "quotas", "set", "/default", "--connections-max", "1", code=1)
    assert "has changed" in run(secured, "quotas", "delete", "user:alice", "--yes", "--expected", "f00", code=1)
    assert "add --yes" in run(secured, "quotas", "delete", "user:alice", code=2)
    assert run(secured, "quotas", "delete", "user:alice", "--yes") == "deleted the quota of user:alice\n"
    assert "has no quota of its own" in run(secured, "quotas", "get", "user:alice", code=1)
