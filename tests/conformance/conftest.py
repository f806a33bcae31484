"""The official client, and a broker process that it connects to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from brokers import BrokerProcess
from danube_client import OfficialClient, find_command


@pytest.fixture(scope="session")
def client_command() -> list[str]:
    command = find_command()
    if command is None:
        pytest.skip("the official Danube client is not installed: run `make danube-client`, or use `make test`")
    return command


@pytest.fixture(scope="session")
def danube_broker(client_command: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker for all scenarios that do not stop it: each uses topics of its own."""
    with BrokerProcess(tmp_path_factory.mktemp("conformance") / "data") as broker:
        yield broker


@pytest.fixture
def official(client_command: list[str], danube_broker: BrokerProcess) -> OfficialClient:
    return OfficialClient(client_command, f"http://127.0.0.1:{danube_broker.grpc_port}")
