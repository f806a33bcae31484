"""Commands on topics, namespaces and subscriptions with dots in their names."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytestmark = pytest.mark.process


def test_commands_take_names_and_patterns_with_dots(danube: Any) -> None:
    assert danube("namespaces", "create", "shop.eu").returncode == 0
    for topic in ("/shop.eu/orders.v1", "/shop.eu/ordersxv1"):
        assert danube("produce", topic, "-m", topic).returncode == 0
    consumed = danube("consume", "/shop.eu/orders.v*", "--from", "earliest", "--count", "1", "--json")
    assert json.loads(consumed.stdout)["topic"] == "/shop.eu/orders.v1", consumed.stderr
    consumed = danube("consume", "/shop.eu/orders.v1", "-s", "billing.v2", "--from", "earliest", "--count", "1")
    assert consumed.stdout.strip() == "/shop.eu/orders.v1", consumed.stderr
    described = danube("subscriptions", "describe", "/shop.eu/orders.v1", "billing.v2", "--json")
    assert json.loads(described.stdout)["name"] == "billing.v2", described.stderr
    refused = danube("topics", "create", "/shop.eu/orders.")
    assert refused.returncode == 2 and "single dots" in " ".join(refused.stderr.split())
