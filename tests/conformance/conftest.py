"""The official client, and a broker process that it connects to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from brokers import BrokerProcess
from danube_client import OfficialClient, find_python


@pytest.fixture(scope="session")
def client_python() -> Path:
    python = find_python()
    if python is None:
        pytest.skip("the official Danube client is not installed: run `make danube-client`, or use `make test`")
    return python


@pytest.fixture(scope="session")
def danube_broker(client_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker for all scenarios that do not stop it: each uses topics of its own."""
    with BrokerProcess(tmp_path_factory.mktemp("conformance") / "data") as broker:
        yield broker


@pytest.fixture
def official(client_python: Path, danube_broker: BrokerProcess) -> OfficialClient:
    return OfficialClient(client_python, f"http://127.0.0.1:{danube_broker.grpc_port}")
